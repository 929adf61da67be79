"""One mask given as booleans, as -inf added or as the lowest number added: one attention.

Faults that users reported: NaN for one kind of mask, a fused kernel that takes one kind for
another, and a mask constant that float16 cannot hold.
"""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from claims.beyond.bounds import same_attention
from claims.harness import Check, Draws, claim, exact, rounding
from claims.harness.implementation import Implementation
from claims.harness.strategies import tensors
from claims.instruments.attention.formula import formula

FEW = settings(max_examples=20)  # each example is a whole matrix of cases
DOUBLE = torch.float64


@st.composite
def masks(draw: st.DrawFn) -> dict[str, Tensor]:
    """One mask of 6 queries and keys as three kinds; each query may attend to some key."""
    allowed = (draw(tensors(6, 6)) > 0) | torch.eye(6, dtype=torch.bool)
    nothing = torch.zeros(6, 6, dtype=DOUBLE)
    return {
        "boolean": allowed,
        "-inf": nothing.masked_fill(~allowed, -math.inf),
        "lowest": nothing.masked_fill(~allowed, torch.finfo(DOUBLE).min),
    }


@claim("masks-of-all-kinds-agree")
@FEW
@given(x=tensors(3, 6, 3, dtype=DOUBLE), mask=masks())
def test_boolean_and_additive_masks_give_the_same_attention(
    implementation: Implementation, check: Check, x: Tensor, mask: dict[str, Tensor]
) -> None:
    """Boolean masks, added -inf and the most negative finite number added give the same attention.

    The same bits: the lowest number plus a score is so small that its exponential is 0.
    """
    boolean, infinite, lowest = (implementation.attention(*x, mask[kind]) for kind in mask)
    because = "the exponential of a masked score is exactly 0"
    check(torch.stack([infinite, lowest]), exact(torch.stack([boolean, boolean]), because))


@claim("masks-of-all-kinds-agree-when-fused")
@FEW
@given(x=tensors(3, 6, 3, dtype=DOUBLE), mask=masks())
def test_a_fused_kernel_takes_every_kind_of_mask(
    implementation: Implementation, check: Check, x: Tensor, mask: dict[str, Tensor]
) -> None:
    """The fused kernel gives the explicit steps' attention for every kind of mask."""
    fused = [implementation.attention(*x, mask[kind], fused=True) for kind in mask]
    explicit = implementation.attention(*x, mask["boolean"])
    check(torch.stack(fused), same_attention(torch.stack([explicit] * 3), *x))


@claim("half-precision-masks-are-representable")
def test_attention_runs_in_half_precision_with_every_mask(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """In float16 and bfloat16 attention runs with every kind of mask.

    Against the formula in float64 on the same rounded inputs; allowed is twice the error of the
    formula in the same half precision.
    """
    causal = implementation.causal_mask(32)
    for dtype in (torch.float16, torch.bfloat16):
        q, k, v = rng.normal(3, 4, 32, 16).to(dtype)
        M = torch.full((32, 32), -math.inf, dtype=dtype).triu(1)
        reference = formula(q.double(), k.double(), v.double(), M.double())
        simplest = formula(q, k, v, M)
        for mask in (causal, M, M.clamp(min=torch.finfo(dtype).min)):
            output = implementation.attention(q, k, v, mask)
            because = "the same roundings, perhaps in another order"
            check(output, rounding(reference, simplest, 2, because))
