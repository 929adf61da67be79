"""What large scores do to a softmax: which rows are saturated, and what is lost in them.

Section 5 says that unscaled rows are frozen and that the derivative of a scaled row is flat at
0.96. These claims decide which rows and which quantity it means, show that the numbers do not hang
on a seed, and give the bounds within which entropy, effective tokens and rounding stay.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from claims.harness import (
    Check,
    Draws,
    Expected,
    claim,
    digits,
    mean_within,
    rounding,
    share_within,
    within,
)
from claims.harness.implementation import Implementation
from claims.harness.strategies import tensors
from claims.instruments.attention.random_rows import (
    KEYS,
    draw_rows,
    share,
    softmax_of_normal_scores,
    successes,
)
from claims.instruments.attention.scores import (
    effective_tokens,
    entropy,
    jacobian_diagonal_by_autograd,
    jacobian_trace,
    saturated,
    softmax_of,
    weights_of,
)

U = torch.finfo(torch.float64).eps / 2
FACTORS = st.floats(0, 5, width=32, allow_subnormal=False)

# ---- entropy and effective tokens --------------------------------------------------------------


@claim("entropy-falls-with-scale")
@settings(max_examples=50)
@given(scores=tensors(st.integers(2, 16), dtype=torch.float64), smaller=FACTORS, more=FACTORS)
def test_a_larger_factor_never_raises_the_entropy(
    implementation: Implementation, check: Check, scores: Tensor, smaller: float, more: float
) -> None:
    """Multiplying a row of scores by a larger factor never raises the entropy of its softmax.

    For rows of up to 16 scores and factors up to 10: at a factor f the slope is -f Var_w(s).
    """
    before, after = (
        float(entropy(softmax_of(implementation.attention, factor * scores)))
        for factor in (smaller, smaller + more)
    )
    # A weight has a relative error of (2 |s| + 6) u, |s| <= 80; sum w (|ln w| + 1) <= ln 16 + 1.
    because = "the slope is a negative variance; two entropies are rounded by at most 1024 u"
    check(after - before, within(-math.log(16), 2 * 1024 * U, because))


@claim("effective-tokens-between-1-and-n")
@settings(max_examples=50)
@given(scores=tensors(st.integers(1, 16), dtype=torch.float64, magnitude=64.0))
def test_a_row_of_n_weights_has_between_one_and_n_effective_tokens(
    implementation: Implementation, check: Check, scores: Tensor
) -> None:
    """A row of n weights has between one and n effective tokens.

    For rows of up to 16 scores, including equal scores and scores far apart.
    """
    n = len(scores)
    tokens = effective_tokens(softmax_of(implementation.attention, scores))
    because = "0 <= entropy <= ln n; exp and 16 rounded terms allow 128 u"
    check(tokens, within(1.0, n * (1 + 128 * U), because), unit="tokens")


# ---- frozen rows -------------------------------------------------------------------------------


@claim("frozen-rows-any-seed")
def test_at_1024_the_share_of_frozen_rows_rounds_to_seven_in_ten_at_any_seed(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """At d_k = 1024, the share of frozen rows rounds to 0.7, whatever the seed.

    Over 6,144 independent rows, an exact binomial test.
    """
    rows = draw_rows(implementation.attention, expected["d_k"], rng.generator(), n_rows=6144)
    seven_in_ten = share_within(expected["low"], expected["high"], detects=0.05)
    check(successes(saturated(rows.unscaled)), seven_in_ten)


@claim("frozen-means-0.99")
def test_of_the_round_thresholds_0_99_alone_gives_seven_in_ten(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Of the thresholds 0.9, 0.95, 0.99 and 0.999, 0.99 alone gives seven in ten.

    The rows of `frozen-rows-seven-in-ten`, of seed 0, at each threshold, to one decimal.
    """
    seed_0 = torch.Generator().manual_seed(0)
    rows = draw_rows(implementation.attention, expected["d_k"], seed_0)
    shares = {limit: share(saturated(rows.unscaled, limit)) for limit in expected["printed"]}
    check(shares, digits(expected["printed"], decimals=1))


# ---- the trace that is flat at 0.96 ------------------------------------------------------------


@claim("divided-trace-any-seed")
def test_scaled_the_mean_trace_rounds_to_0_96_at_any_seed(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """With division the mean trace rounds to 0.96 at every width, whatever the seed.

    The mean over 2,048 rows at each width lies between 0.955 and 0.965.
    """
    band = mean_within(expected["low"], expected["high"], detects=0.005)
    for d in expected["widths"]:
        rows = draw_rows(implementation.attention, d, rng.generator(str(d)))
        check(jacobian_trace(rows.scaled), band)


@claim("divided-trace-normal-queries")
def test_with_normal_queries_the_narrowest_width_still_gives_0_96(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Queries of unequal length do not change the 0.96, even where they differ most.

    At d_k = 4, each row with a normal query and 64 normal keys of its own: 0.958.
    """
    d_k, double = expected["d_k"], torch.float64
    q = rng.normal(4096, 1, d_k, salt="q", dtype=double)
    k = rng.normal(4096, KEYS, d_k, salt="k", dtype=double)
    traces = jacobian_trace(weights_of(implementation.attention, q, k))
    check(traces, mean_within(expected["low"], expected["high"], detects=0.01))


@claim("divided-trace-derived")
def test_the_expected_trace_at_unit_variance_is_0_96(check: Check, expected: Expected) -> None:
    """The expected trace for 64 independent scores of variance one is 0.96.

    By quadrature, 0.9612.
    """
    check(softmax_of_normal_scores(1.0).trace, digits(expected["value"], decimals=2))


@claim("flat-quantity-is-the-trace")
@settings(max_examples=30)
@given(scores=tensors(st.integers(1, 8), dtype=torch.float64, magnitude=2.0))
def test_no_entry_of_the_diagonal_exceeds_one_quarter(
    implementation: Implementation, check: Check, expected: Expected, scores: Tensor
) -> None:
    """No w_i (1 - w_i) exceeds 1/4, so the quantity that is flat at 0.96 can only be their sum.

    For rows of up to 8 scores, by autograd.
    """
    entries = jacobian_diagonal_by_autograd(implementation.attention, scores)
    check(entries, within(0.0, expected["largest"], "w - w^2 = 1/4 - (w - 1/2)^2"))


# ---- rounding at large scores ------------------------------------------------------------------


@claim("softmax-at-scores-of-60")
@pytest.mark.parametrize("fused", [False, True], ids=["explicit", "fused"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["float32", "bfloat16", "float16"]
)
def test_attention_is_accurate_at_scores_of_60(
    implementation: Implementation,
    check: Check,
    expected: Expected,
    rng: Draws,
    dtype: torch.dtype,
    fused: bool,
) -> None:
    """With scores up to +-60 attention is as accurate as the plain computation in its precision.

    Against float64 on the same rounded inputs; the plain computation does every step in `dtype`.
    2,048 rows, so that one unlucky row does not decide. In half precision the fused error is a
    twentieth of the plain one.
    """
    q, k, v = (rng.normal(32, 64, 64, salt=name).to(dtype) for name in "qkv")
    scores = q.double() @ k.double().transpose(-2, -1)
    scale = expected["largest_score"] / float(scores.abs().max())
    reference = (scale * scores).softmax(-1) @ v.double()
    simplest = (q @ k.transpose(-2, -1) * scale).softmax(-1) @ v
    measured = implementation.attention(q, k, v, scale=scale, fused=fused)
    because = "the steps may be rounded in another order"
    check(measured, rounding(reference, simplest, 2, because))
