"""Dropout keeps the expected output, does nothing when it is off, and returns after an evaluation.

The chapter leaves dropout at zero in all its runs, so the switch must then change nothing. Users
reported dropout that stays off after the first evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from claims.harness import Check, Draws, claim, exact, mean_within, rounding, share_within
from claims.harness.implementation import Implementation


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


def cases_of_dropout(
    implementation: Implementation, tokens: Tensor, x: Tensor
) -> Iterator[tuple[Callable[..., Any], Callable[[Any], Tensor]]]:
    """(maker of a module, what it computes); what needs least comes first, as somebody's code may
    have no fused call, or no encoder.
    """
    mask = torch.ones(16, 16).tril(4).bool()
    for fused in (False, True):
        layer = partial(implementation.MultiHeadAttention, 32, 4, causal=False, fused=fused)
        yield layer, lambda layer: layer(x.to(next(layer.parameters()).dtype), mask=mask)
        model = partial(implementation.LanguageModel, vocabulary=64, d_model=32, fused=fused)
        yield model, lambda model: model(tokens)
    both_sides = {"source_vocabulary": 64, "target_vocabulary": 64, "context": 16, "d_model": 32}
    translator = partial(implementation.EncoderDecoder, n_heads=4, n_blocks=1, **both_sides)
    yield translator, lambda model: model(tokens, tokens)


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
    for make, run in cases_of_dropout(implementation, tokens, x):
        dropping, without = (rng.build(partial(make, dropout=p)) for p in (0.5, 0.0))
        measured, simplest = run(dropping.eval()).detach(), run(without.train()).detach()
        reference = run(without.double()).detach()
        check(measured, rounding(reference, simplest, 2, "k = 2: the same in another order"))


@claim("dropout-returns-after-evaluation")
def test_dropout_is_active_again_after_an_evaluation(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """After training, evaluation and training again, dropout is active again.

    In two passes over the same input a quarter of the numbers or more differ in training, and none
    in evaluation: at p = 1/2 in a layer, and in a model of one block. Dropout on the output alone
    would make half of them differ, and dropout before that makes more.
    """
    x, tokens = rng.normal(4, 64, 16), rng.integers(0, 32, 16, 64)
    cases: list[tuple[Callable[[], nn.Module], Tensor]] = [
        (lambda: implementation.MultiHeadAttention(16, 2, dropout=0.5), x),
        (lambda: implementation.LanguageModel(vocabulary=32, d_model=32, dropout=0.5), tokens),
    ]
    for make, given in cases:
        module = rng.build(make)
        differ = []
        for state in ("before", "evaluation", "after"):
            module.train(state != "evaluation")
            first, second = (rng.build(partial(module, given), f"{state} {i}") for i in (1, 2))
            differ.append((int((first != second).sum()), first.numel()))
        before, evaluated, after = differ
        check(before, share_within(0.25, 1, detects=0.1))
        check(evaluated[0], exact(0), unit="numbers that differ")
        check(after, share_within(0.25, 1, detects=0.1))
