"""Dropout keeps the expected output, does nothing when it is off, and returns after an evaluation.

The chapter leaves dropout at zero in all its runs, so the switch must then change nothing. Users
reported dropout that stays off after the first evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from claims.harness import Check, Draws, claim, exact, mean_within, rounding, share_within
from claims.harness.implementation import Implementation
from claims.instruments.attention.dropout import EmbeddingSum, Weights


@claim("dropout-keeps-expectation")
def test_dropout_on_the_weights_keeps_the_expected_output(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Dropout on the weights leaves the expected output of attention what it is without.

    One query over 16 keys, 10,000 times with p = 0.3; the first feature of its output. With the
    identity for values the output is the weights: three in ten are 0.
    """
    q, k, v = rng.normal(1, 4, salt="q"), rng.normal(16, 4, salt="k"), rng.normal(16, 1, salt="v")
    many = [part.expand(10_000, *part.shape) for part in (q, k, v)]
    output = rng.build(lambda: implementation.attention(*many, dropout=0.3))
    without = implementation.attention(q, k, v)
    check((output - without).flatten(), mean_within(0, 0, detects=0.1))
    identity = torch.eye(16).expand(10_000, 16, 16)
    left = rng.build(lambda: implementation.attention(*many[:2], identity, dropout=0.3), "left")
    check((int((left == 0).sum()), left.numel()), share_within(0.3, 0.3, detects=0.05))


@claim("dropout-off-is-absent")
def test_dropout_that_is_off_is_as_if_it_were_absent(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """In evaluation, or at p = 0, a model with dropout does what it does without.

    The same parameters with p = 1/2 in evaluation and with p = 0 in training: a model and a layer
    with a mask of its own, explicit and fused, because the fused kernel is given p at each call;
    and an encoder-decoder.
    """
    tokens, x = rng.integers(0, 64, 2, 16), rng.normal(2, 16, 32)
    mask = torch.ones(16, 16).tril(4).bool()
    both_sides = {"source_vocabulary": 64, "target_vocabulary": 64, "context": 16, "d_model": 32}
    translator = partial(implementation.EncoderDecoder, n_heads=4, n_blocks=1, **both_sides)
    cases: list[tuple[Callable[..., Any], Callable[[Any], Tensor]]] = [
        (translator, lambda model: model(tokens, tokens))
    ]
    for fused in (False, True):
        model = partial(implementation.LanguageModel, vocabulary=64, d_model=32, fused=fused)
        layer = partial(implementation.MultiHeadAttention, 32, 4, causal=False, fused=fused)
        cases += [
            (model, lambda model: model(tokens)),
            (layer, lambda layer: layer(x.to(next(layer.parameters()).dtype), mask=mask)),
        ]
    for make, run in cases:
        dropping, without = (rng.build(partial(make, dropout=p)) for p in (0.5, 0.0))
        measured, simplest = run(dropping.eval()).detach(), run(without.train()).detach()
        reference = run(without.double()).detach()
        check(measured, rounding(reference, simplest, 2, "k = 2: the same in another order"))


@claim("dropout-returns-after-evaluation")
def test_dropout_is_active_again_after_an_evaluation(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """After training, evaluation and training again, dropout is active again.

    Counted are zeros among the weights of two heads and in the sum of embeddings: half in training,
    none in evaluation.
    """
    inputs = {Weights: rng.normal(4, 64, 16), EmbeddingSum: rng.integers(0, 32, 16, 64)}
    for kind, x in inputs.items():
        module = rng.build(partial(kind, implementation))
        before = rng.build(partial(module.train(), x), "before") == 0
        evaluated = module.eval()(x) == 0
        after = rng.build(partial(module.train(), x), "after") == 0
        check((int(before.sum()), before.numel()), share_within(0.5, 0.5, detects=0.05))
        check(int(evaluated.sum()), exact(0), unit="zeros")
        check((int(after.sum()), after.numel()), share_within(0.5, 0.5, detects=0.05))
