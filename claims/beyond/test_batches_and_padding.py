"""A sequence gets in a batch what it gets alone, padded or not.

Faults that users reported: padding that changes real tokens, a mask that is skipped for a batch of
one, and a padding mask and a causal mask whose sum is -inf.
"""

from __future__ import annotations

import itertools

import torch
from hypothesis import given, settings
from torch import Tensor

from claims.harness import Check, Draws, claim, exact, rounding
from claims.harness.implementation import Implementation
from claims.harness.strategies import tensors

DOUBLE = torch.float64


@claim("batch-members-ignore-each-other")
@settings(max_examples=20)
@given(x=tensors(3, 3, 5, 3, dtype=DOUBLE), other=tensors(3, 2, 5, 3, dtype=DOUBLE))
def test_a_sequence_ignores_the_others_of_its_batch(
    implementation: Implementation, check: Check, x: Tensor, other: Tensor
) -> None:
    """A sequence's output does not depend on the other sequences of its batch.

    The first of three sequences has the same bits before and after the other two are replaced.
    """
    mask = implementation.causal_mask(5)
    before = implementation.attention(*x, mask)[0]
    q, k, v = torch.cat([x[:, :1], other], dim=1)
    because = "a product in a batch is many products, none of which reads another's operands"
    check(implementation.attention(q, k, v, mask)[0], exact(before, because))


@claim("padding-and-causal-mask-at-once")
def test_padding_and_the_causal_mask_at_once_stay_finite(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Padding and causal masks of the most negative finite number, added up, leave outputs finite.

    Their sum is -inf where both hide a key. The rows of real tokens have the bits that the boolean
    mask gives.
    """
    x, lowest = rng.normal(3, 7, 4), torch.finfo(torch.float32).min
    causal, real = implementation.causal_mask(7), torch.arange(7) >= 3
    both = torch.zeros(7, 7).masked_fill(~causal, lowest)
    both = both + torch.zeros(7).masked_fill(~real, lowest)
    output = implementation.attention(*x, both)
    fused = implementation.attention(*x, both, fused=True)
    expected = implementation.attention(*x, causal & real)
    check(int((~torch.cat([output, fused]).isfinite()).sum()), exact(0), unit="entries not finite")
    because = "a weight is 0 whether its score is masked once or twice"
    check(output[real], exact(expected[real], because))


@claim("padded-equals-unpadded")
def test_padding_changes_nothing_for_real_tokens(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Padded on the left or on the right, real tokens get what they get without padding.

    Three sequences of different lengths, padded with noise, in one batch of three or in three of
    one. Against float64 without padding; allowed is twice the error of float32 without padding.
    """
    layer = rng.build(lambda: implementation.MultiHeadAttention(32, 4)).requires_grad_(False)
    precise = rng.build(lambda: implementation.MultiHeadAttention(32, 4)).double()
    sequences = [rng.normal(1, T, 32, salt=str(T)) for T in (16, 11, 13)]
    reference = torch.cat([precise(x.double()).detach() for x in sequences], dim=1)[0]
    simplest = torch.cat([layer(x) for x in sequences], dim=1)[0]
    on_the_right = torch.arange(20) < torch.tensor([[16], [11], [13]])
    for real, batches in itertools.product((on_the_right, on_the_right.flip(1)), (3, 1)):
        padded = rng.normal(3, 20, 32, salt="padding")
        padded[real] = torch.cat(sequences, dim=1)[0]
        parts = zip(padded.chunk(batches), real.chunk(batches), strict=True)
        output = torch.cat([layer(x, mask=m[:, None, None, :])[m] for x, m in parts])
        because = "the same sums, with zeros among the terms"
        check(output, rounding(reference, simplest, 2, because))
