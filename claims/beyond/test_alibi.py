"""ALiBi's slopes and biases: the faults that users of such code reported.

Section 8 says that each head takes a penalty proportional to the distance off its scores, with a
slope of its own. These claims give the slopes for any number of heads, the shape of the bias, and
check that each head's bias reaches its own scores.
"""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from claims.harness import Check, Draws, Expected, claim, digits, exact, ulps
from claims.harness.implementation import Implementation
from claims.harness.strategies import lengths


@claim("alibi-eight-heads")
def test_eight_heads_have_slopes_one_half_to_one_256th(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Eight heads: 2^-1 to 2^-8, to the bit; the first is a half, not one."""
    derived = [2.0**-exponent for exponent in expected["exponents"]]
    slopes = implementation.alibi_slopes(8).tolist()
    check(slopes, exact(derived, because="powers of two"))


@claim("alibi-other-numbers-of-heads")
def test_other_numbers_of_heads_interleave_the_next_power_of_two(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """12 heads: the eight slopes of 8, then the 1st, 3rd, 5th and 7th of 16.

    With h a power of two the exponents are 8/h, 16/h, ..., 8. Otherwise those of the power of two
    below come first, followed by every second one of the power above: 12 = 8 + 4, 6 = 4 + 2,
    3 = 2 + 1. The exponents are multiples of a half, so four decimals decide.
    """
    exponents = {
        heads: (-implementation.alibi_slopes(int(heads)).double().log2()).tolist()
        for heads in expected["exponents"]
    }
    check(exponents, digits(expected["exponents"], 4))


@claim("alibi-bias-shape")
@settings(max_examples=30)
@given(heads=lengths(20), n=lengths(12), older=st.integers(0, 12))
def test_the_bias_has_one_plane_per_head(
    implementation: Implementation, check: Check, heads: int, n: int, older: int
) -> None:
    """The bias is (heads, n, m), for any number of heads and of tokens; without m it is square."""
    shapes = [implementation.alibi_bias(heads, n, *m).shape for m in ((n + older,), ())]
    check([list(shape) for shape in shapes], exact([[heads, n, n + older], [heads, n, n]]))


@claim("alibi-in-the-layer")
def test_the_layer_takes_each_heads_penalty_off_its_scores(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """With queries of zero only the penalty is left: weights fall geometrically with distance.

    Head h gives distance n the weight r^n (1 - r) / (1 - r^(t+1)), r = e^(-2^-h). Rounding: a
    softmax of exact scores (exp 2 u, a sum of 12, a quotient) against that closed form (three
    exponentials 2 u each, a product, a quotient).
    """
    layer = rng.build(lambda: implementation.MultiHeadAttention(32, 8, positions="alibi")).double()
    implementation.set_weights(layer, q=torch.zeros(32, 32))
    _, weights = layer(rng.normal(2, 12, 32, salt="x", dtype=torch.float64), return_weights=True)
    t = torch.arange(12, dtype=torch.float64)
    slopes = 2.0 ** -torch.arange(1, 9, dtype=torch.float64)[:, None, None]
    falling = (-slopes * (t[:, None] - t)).exp() * torch.expm1(-slopes)
    derived = (falling / torch.expm1(-slopes * (t[:, None] + 1))).tril().expand(2, 8, 12, 12)
    check(weights, ulps(derived, (2 + 12 + 1) + (6 + 2), "15 u and 8 u"))
