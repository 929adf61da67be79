"""A query that may attend to nothing: its output is zero, and no gradient becomes NaN.

The softmax of a row of -inf is NaN, and setting it to zero afterwards is too late for the gradient:
backwards, 0 times NaN is NaN. Users reported both, and one such row that made all gradients NaN.
"""

from __future__ import annotations

import itertools
import math
from functools import partial

import torch
from torch import Tensor

from claims.harness import Check, Draws, claim, exact
from claims.harness.implementation import Implementation


def masks_with_a_fully_masked_row(implementation: Implementation) -> dict[str, Tensor]:
    """The causal mask of 6 tokens with row 2 fully masked: boolean, and -inf added."""
    allowed = implementation.causal_mask(6)
    allowed[2] = False
    return {"boolean": allowed, "-inf": torch.zeros(6, 6).masked_fill(~allowed, -math.inf)}


@claim("blind-query-gets-zero")
def test_a_query_that_may_attend_to_nothing_gets_zero(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """A query that may attend to nothing gets the output 0, and changes no other row.

    The other rows have the bits that they have under the causal mask alone.
    """
    x = rng.normal(3, 6, 4)
    expected = implementation.attention(*x, implementation.causal_mask(6))
    expected[2] = 0.0
    masks = masks_with_a_fully_masked_row(implementation).values()
    # What needs least comes first: somebody's code may have no fused call, or return no weights.
    for mask in masks:
        because = "a row depends on its own scores alone, and the masked one is 0 by definition"
        check(implementation.attention(*x, mask), exact(expected, because))
    for mask in masks:
        fused = implementation.attention(*x, mask, fused=True)
        check(fused[2], exact(torch.zeros(4), because="a definition"))
    for mask in masks:
        weights = implementation.attention(*x, mask, return_weights=True)[1]
        check(weights[2], exact(torch.zeros(6), because="a definition"))


@claim("blind-query-gradients-finite")
def test_a_query_that_may_attend_to_nothing_makes_no_gradient_nan(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """A query that may attend to nothing leaves the gradients of q, k and v finite, and sends none.

    Explicit and fused: the entries of the three gradients that are not finite, and those of the
    query's own gradient that are not 0.
    """
    draws, probe = rng.normal(3, 6, 4), rng.normal(6, 4, salt="probe")
    masks = masks_with_a_fully_masked_row(implementation)
    for fused, kind in itertools.product((False, True), masks):
        q, k, v = (part.clone().requires_grad_() for part in draws)
        (implementation.attention(q, k, v, masks[kind], fused=fused) * probe).sum().backward()
        bad = [int((~part.grad.isfinite()).sum()) for part in (q, k, v)]
        bad += [int((q.grad[2] != 0).sum())]
        path = {"mask": kind, "fused": fused}
        check(bad, exact([0, 0, 0, 0]), unit="entries", facts=path)


@claim("padding-alone-poisons-no-parameter")
def test_a_sequence_of_padding_alone_makes_no_gradient_nan(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """A sequence of nothing but padding leaves the gradient of every parameter finite.

    A batch of one such sequence and one without padding; explicit and fused, with a boolean mask
    and with -inf added.
    """
    x, real = rng.normal(2, 6, 8), torch.tensor([[True] * 6, [False] * 6])[:, None, None, :]
    masks = {"boolean": real, "-inf": real.float().log()}
    for fused, kind in itertools.product((False, True), masks):
        layer = rng.build(partial(implementation.MultiHeadAttention, 8, 2, fused=fused))
        layer(x, mask=masks[kind]).square().sum().backward()
        gradients = [parameter.grad for parameter in layer.parameters()]
        bad = sum(int((~g.isfinite()).sum()) for g in gradients if g is not None)
        check(bad, exact(0), unit="entries", facts={"mask": kind, "fused": fused})
