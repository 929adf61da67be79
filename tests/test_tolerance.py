"""For each kind of tolerance: 0.99 times what is allowed passes, 1.01 times it fails."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import pytest
import torch
from scipy import stats

from claims.harness import (
    PerSeed,
    digits,
    every_seed_within,
    exact,
    mean_within,
    rounding,
    seed_mean_within,
    share_within,
    ulps,
    uniformly_distributed,
    variance_near,
    within,
)
from claims.harness.tolerance import MisusedTolerance
from claims.harness.tolerance.judgement import has_nan, plain
from claims.harness.tolerance.statistical import FALSE_FAIL, POWER

WHY = "for the test"
NAN, INF = math.nan, math.inf


# ---- exact -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        3,
        "three",
        True,
        None,
        Fraction(2, 3),
        [1, [2, 3]],
        (1, 2),
        {"a": [1], 2: 3},
        torch.tensor([1, 2]),
        torch.tensor([True]),
        torch.Size([2, 3]),
    ],
)
def test_exact_holds_for_equal_values(value: Any) -> None:
    assert exact(value).judge(value).ok


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (3, 4),
        (True, 1),
        ("3", 3),
        ([1, 2], [1, 2, 3]),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1, "b": 2}, {"a": 1}),
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        (torch.tensor([1, 2]), torch.tensor([[1, 2]])),
        (torch.tensor([1]), torch.tensor([1], dtype=torch.int32)),
        (Fraction(2, 3), Fraction(66, 100)),
    ],
)
def test_exact_fails_for_any_difference_and_names_it(measured: Any, expected: Any) -> None:
    judgement = exact(expected).judge(measured)
    assert not judgement.ok
    assert judgement.detail


def test_exact_takes_a_fraction_for_the_integer_that_it_is() -> None:
    assert exact(2).judge(Fraction(4, 2)).ok


@pytest.mark.parametrize("value", [1.0, [1, 2.0], {"a": 0.5}, torch.ones(2)])
def test_exact_asks_why_floats_should_be_equal(value: Any) -> None:
    with pytest.raises(MisusedTolerance, match="because="):
        exact(value).judge(value)
    assert exact(value, because=WHY).judge(value).ok


def test_values_of_runs_are_compared_as_a_list() -> None:
    assert exact([7, 8]).judge(PerSeed([0, 1], [7, 8])).ok
    assert exact([7, 8]).judge(PerSeed([0, 1], [7, 9])).detail == "9 against 8 at [1]"
    with pytest.raises(MisusedTolerance, match="because="):
        exact([7, 8]).judge(PerSeed([0, 1], [7.0, 8]))
    assert digits([0.5, 1], 1).judge(PerSeed([0, 1], [0.51, 1.0])).ok


def test_exact_compares_floats_bit_for_bit_with_equal_infinities() -> None:
    value = torch.tensor([1.0, -INF])
    assert exact(value, because=WHY).judge(value.clone()).ok
    assert not exact(value, because=WHY).judge(torch.tensor([1.0, INF])).ok
    assert not exact(value, because=WHY).judge(torch.tensor([1.0 + 2**-23, -INF])).ok


# ---- printed digits ----------------------------------------------------------------------------


@pytest.mark.parametrize("printed", [3.975, 16.071, 0.16, 1100.1, -2.5])
@pytest.mark.parametrize("decimals", [1, 2, 3])
def test_digits_allow_half_a_unit_in_the_last_place(printed: float, decimals: int) -> None:
    printed = round(printed, decimals)
    half = 0.5 * 10.0**-decimals
    for sign in (-1, 1):
        assert digits(printed, decimals).judge(printed + sign * 0.99 * half).ok
        assert not digits(printed, decimals).judge(printed + sign * 1.01 * half).ok


def test_digits_of_tables_and_tensors() -> None:
    assert digits({"a": [0.5, 1]}, 2).judge({"a": [0.501, 1.0]}).ok
    assert digits([[1.0, 0], [0.5, 0.5]], 3).judge(torch.tensor([[1, 0], [0.5, 0.5]])).ok
    assert not digits([1.0, 2.0], 1).judge([1.0, 2.1]).ok
    assert not digits([1.0], 1).judge([1.0, 2.0]).ok
    assert digits(0.0, 2).judge(-0.0001).ok
    assert not digits(NAN, 2).judge(NAN).ok


# ---- bounds ------------------------------------------------------------------------------------


def test_within() -> None:
    band = within(-2.0, 4.0, WHY)
    assert band.judge(0.99 * 4.0).ok
    assert not band.judge(1.01 * 4.0).ok
    assert band.judge(0.99 * -2.0).ok
    assert not band.judge(1.01 * -2.0).ok
    assert band.judge(4.0).ok
    assert not within(-2.0, 4.0, WHY, strict=True).judge(4.0).ok
    assert not band.judge(torch.tensor([0.0, 5.0])).ok
    assert not band.judge(NAN).ok
    with pytest.raises(MisusedTolerance, match="nothing to judge"):
        band.judge(torch.empty(0))


# ---- rounding ----------------------------------------------------------------------------------


def test_rounding_allows_k_times_the_plain_error_and_one_ulp() -> None:
    reference = torch.tensor([1.0, -8.0], dtype=torch.float64)
    simplest = reference.float() + torch.tensor([2.0**-10, 0.0])
    tolerance = rounding(reference, simplest, 2, WHY)
    allowed = 2 * 2.0**-10 + 2.0**-23 * 8
    for sign in (-1, 1):
        error = torch.tensor([0.0, sign * allowed])
        assert tolerance.judge(reference.float() + 0.99 * error).ok
        assert not tolerance.judge(reference.float() + 1.01 * error).ok


def test_rounding_compares_infinities_by_place_and_sign_and_refuses_nan() -> None:
    reference = torch.tensor([1.0, -INF], dtype=torch.float64)
    tolerance = rounding(reference, reference.float(), 2, WHY)
    assert tolerance.judge(torch.tensor([1.0, -INF])).ok
    for wrong in ([1.0, INF], [1.0, 3.0], [-INF, -INF], [NAN, -INF], [1.0, NAN]):
        assert not tolerance.judge(torch.tensor(wrong)).ok
    assert not tolerance.judge(torch.tensor([1.0])).ok


def test_rounding_asks_for_a_float64_reference_and_one_precision() -> None:
    value = torch.ones(2)
    with pytest.raises(MisusedTolerance, match="float64"):
        rounding(value, value, 2, WHY).judge(value)
    with pytest.raises(MisusedTolerance, match=r"plain computation is torch\.float16"):
        rounding(value.double(), value.half(), 2, WHY).judge(value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ulps(dtype: torch.dtype) -> None:
    reference = torch.tensor([1.0, 3.0], dtype=torch.float64)
    unit = torch.finfo(dtype).eps / 2
    n, scale = 1000, torch.tensor([2.0, 5.0])
    for sign in (-1, 1):
        step = sign * n * unit * scale.double()
        assert ulps(reference, n, WHY, scale=scale).judge((reference + 0.99 * step).to(dtype)).ok
        assert (
            not ulps(reference, n, WHY, scale=scale).judge((reference + 1.01 * step).to(dtype)).ok
        )


def test_ulps_holds_element_by_element() -> None:
    reference = torch.tensor([1e-6, 1.0], dtype=torch.float64)
    large_error_on_the_small_element = reference.float() + torch.tensor([2.0**-24, 0.0])
    assert not ulps(reference, 2, WHY).judge(large_error_on_the_small_element).ok
    assert ulps(reference, 2, WHY, scale=1.0).judge(large_error_on_the_small_element).ok


def test_ulps_of_numbers_infinities_and_shapes() -> None:
    assert ulps(1.0, 2, WHY).judge(1.0 + 2**-52).ok
    assert not ulps(1.0, 2, WHY).judge(1.0 + 2**-50).ok
    infinite = torch.tensor([-INF, 1.0], dtype=torch.float64)
    assert ulps(infinite, 2, WHY).judge(infinite).ok
    assert not ulps(infinite, 2, WHY).judge(-infinite).ok
    assert not ulps(infinite, 2, WHY).judge(torch.ones(3)).ok
    assert not ulps(torch.ones(1), 2, WHY).judge(torch.tensor([NAN])).ok


# ---- statistical -------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), [(0.5, 0.5), (0.65, 0.75), (0.0, 0.01), (0.99, 1.0)])
def test_proportion_fails_a_true_claim_no_oftener_than_declared(low: float, high: float) -> None:
    """Recomputed from n and the limits; and one count further would be refused."""
    n = 20_000
    test = share_within(low, high, detects=0.05)
    lowest, highest = test.limits(n)
    for share in (low, high):
        failing = stats.binom.cdf(lowest - 1, n, share) + stats.binom.sf(highest, n, share)
        assert failing <= FALSE_FAIL
    # As narrow as that allows: refusing one count more would fail a true claim too often.
    assert stats.binom.cdf(lowest, n, low) >= FALSE_FAIL / 2
    assert stats.binom.sf(highest - 1, n, high) >= FALSE_FAIL / 2
    for k, ok in ((lowest, True), (lowest - 1, False), (highest, True), (highest + 1, False)):
        if 0 <= k <= n:
            assert test.judge((k, n)).ok is ok


def test_proportion_notices_the_declared_departure() -> None:
    test, n = share_within(0.5, 0.5, detects=0.05), 20_000
    lowest, highest = test.limits(n)
    for share in (0.45, 0.55):
        noticed = stats.binom.cdf(lowest - 1, n, share) + stats.binom.sf(highest, n, share)
        assert noticed >= POWER


def test_mean_at_its_boundary() -> None:
    n = 10_000
    values = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = (values - values.mean()) / values.std()
    reach = stats.t.isf(FALSE_FAIL / 2, n - 1) / math.sqrt(n)
    test = mean_within(2.0, 3.0, detects=0.2)
    for centre, sign in ((2.0, -1), (3.0, 1)):
        assert test.judge(values + centre + sign * 0.99 * reach).ok
        assert not test.judge(values + centre + sign * 1.01 * reach).ok


def test_variance_at_its_boundary() -> None:
    n = 10_000
    values = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = values / values.square().mean().sqrt()
    low, high = stats.chi2.ppf([FALSE_FAIL / 2, 1 - FALSE_FAIL / 2], n) / n
    test = variance_near(4.0, detects=0.2)
    for limit, inside, outside in ((high, 0.99, 1.01), (low, 1.01, 0.99)):
        excess = limit - 1
        for factor, ok in ((inside, True), (outside, False)):
            scale = 2 * math.sqrt(1 + excess * (factor if limit == high else 2 - factor))
            assert test.judge(values * scale).ok is ok


def test_uniform_at_its_boundary() -> None:
    cells, n = 4, 40_000
    limit = stats.chi2.isf(FALSE_FAIL, cells - 1)
    for factor, ok in ((0.99, True), (1.01, False)):
        shift = math.sqrt(factor * limit * n / cells / 2)
        counts = torch.full((cells,), n / cells, dtype=torch.float64)
        counts[0] += shift
        counts[1] -= shift
        assert uniformly_distributed(detects=0.1).judge(counts).ok is ok


@pytest.mark.parametrize(
    ("tolerance", "sample"),
    [
        (share_within(0.5, 0.5, detects=0.01), (50, 100)),
        (mean_within(0, 0, detects=0.01), torch.linspace(-1, 1, 100)),
        (variance_near(1 / 3, detects=0.01), torch.linspace(-1, 1, 100)),
        (uniformly_distributed(detects=0.01), torch.full((4,), 25)),
    ],
)
def test_a_sample_too_small_for_what_it_should_notice_is_a_defect(
    tolerance: Any, sample: Any
) -> None:
    with pytest.raises(MisusedTolerance, match=r"notices a departure of 0\.01"):
        tolerance.judge(sample)


@pytest.mark.parametrize(
    ("tolerance", "sample"),
    [
        (share_within(0.5, 0.5, detects=0.1, false_fail=1e-3), (5000, 10_000)),
        (mean_within(0, 0, detects=0.1, false_fail=1e-3), torch.linspace(-1, 1, 10_000)),
        (variance_near(1, detects=0.1, false_fail=1e-3), torch.linspace(-1, 1, 10_000)),
        (uniformly_distributed(detects=0.1, false_fail=0.0), torch.full((4,), 25_000)),
    ],
)
def test_a_claim_that_may_fail_too_often_though_true_is_a_defect(
    tolerance: Any, sample: Any
) -> None:
    with pytest.raises(MisusedTolerance, match="at most 1e-06"):
        tolerance.judge(sample)


def test_a_departure_that_leaves_the_unit_interval_is_a_defect() -> None:
    with pytest.raises(MisusedTolerance, match=r"leaves \[0, 1\]"):
        share_within(0.0, 1.0, detects=0.1).judge((5, 10))


# ---- trained -----------------------------------------------------------------------------------


def of_seeds(values: Iterable[float]) -> PerSeed[float]:
    """The values of runs with the seeds 0, 1, ..."""
    each = [float(value) for value in values]
    return PerSeed(range(len(each)), each)


# One-sided quantiles of Student's t with three degrees of freedom, from printed tables.
T_3 = {0.01: 4.5407, 0.005: 5.8409}


def test_trained_at_its_boundary() -> None:
    spread = torch.tensor([-1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    reach = T_3[0.01] * float(spread.std()) / 2
    band = seed_mean_within((10.0, 20.0), WHY)
    assert band.judge(of_seeds(spread + 10 + 1.01 * reach)).ok
    assert not band.judge(of_seeds(spread + 10 + 0.99 * reach)).ok
    assert band.judge(of_seeds(spread + 20 - 1.01 * reach)).ok
    assert not band.judge(of_seeds(spread + 20 - 0.99 * reach)).ok


@pytest.mark.parametrize(("end", "outwards"), [(10, -1), (20, 1)])
def test_seeds_too_near_an_end_of_the_band_decide_nothing(end: float, outwards: float) -> None:
    spread = torch.tensor([-1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    reach = outwards * T_3[0.01] * float(spread.std()) / 2
    band = seed_mean_within((10.0, 20.0), WHY)
    for share, decided in ((1.01, True), (0.99, False), (-0.99, False), (-1.01, True)):
        judgement = band.judge(of_seeds(spread + end + share * reach))
        assert (judgement.decided, judgement.settled) == (decided, decided)
        assert judgement.ok is (share == -1.01)


def test_two_looks_share_the_chance_of_a_wrong_verdict() -> None:
    spread = torch.tensor([-1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    reach = T_3[0.005] * float(spread.std()) / 2
    band = seed_mean_within((10.0, 20.0), WHY)
    for share, ok in ((1.01, True), (0.99, False)):
        values = of_seeds(spread + 10 + share * reach)
        assert band.judge(PerSeed(values.seeds, values, looks=2)).ok is ok


@pytest.mark.parametrize(("first", "last"), [(3, 5), (3, 8)])
def test_looking_twice_is_wrong_no_more_often_than_declared(first: int, last: int) -> None:
    """A mean at an end of the band, the worst case: 1 % each for holds and for refuted."""
    draws = torch.randn(4000, last, generator=torch.Generator().manual_seed(1)).double()
    # The band's other end is far away.
    band = seed_mean_within((0.0, 1e9), WHY)
    verdicts = {"holds": 0, "refuted": 0}
    for row in draws:
        judgements = (band.judge(PerSeed(range(n), row[:n].tolist(), looks=2))
                      for n in (first, last))
        judgement = next((each for each in judgements if each.settled), None)
        if judgement is not None:
            verdicts["holds" if judgement.ok else "refuted"] += 1
    # Four standard errors of a share of 1 % above it.
    assert max(verdicts.values()) <= 4000 * (0.01 + 4 * math.sqrt(0.01 / 4000)), verdicts
    # The two looks are not independent, so that they spend most of what they share.
    assert min(verdicts.values()) >= 4000 * 0.005, verdicts


def test_a_run_that_diverged_is_outside_of_every_band() -> None:
    judgement = seed_mean_within((0, 1), WHY).judge(of_seeds([0.5, 0.5, INF]))
    assert judgement.decided
    assert not judgement.ok


def test_one_seed_outside_is_a_counterexample_however_the_others_spread() -> None:
    band = every_seed_within((10.0, 20.0), WHY)
    inside = band.judge(of_seeds([10.0, 15.0, 20.0]))
    assert (inside.ok, inside.settled) == (True, False)  # the next seed may lie outside
    for outside in (9.99, 20.01, INF):
        judgement = band.judge(of_seeds([10.0, 15.0, outside]))
        assert not judgement.ok
        assert judgement.settled
        assert judgement.facts["seeds outside"] == 1
    with pytest.raises(MisusedTolerance, match="at least 3 seeds; it was given 2"):
        band.judge(of_seeds([15.0, 15.0]))


@pytest.mark.parametrize("tolerance", [seed_mean_within, every_seed_within])
def test_values_without_their_seeds_are_a_defect(tolerance: Any) -> None:
    with pytest.raises(MisusedTolerance, match="give a PerSeed"):
        tolerance((0, 1), WHY).judge([0.5, 0.5, 0.5])


def test_trained_needs_three_seeds_and_two_sides() -> None:
    with pytest.raises(MisusedTolerance, match="at least 3 seeds; it was given 2"):
        seed_mean_within((0, 1), WHY).judge(of_seeds([0.5, 0.5]))
    with pytest.raises(MisusedTolerance, match="two finite sides"):
        seed_mean_within((0, INF), WHY).judge(of_seeds([0.5, 0.5, 0.5]))
    assert not seed_mean_within((0, 1), WHY).judge(of_seeds([0.5, NAN, 0.5])).ok


# ---- plain data --------------------------------------------------------------------------------


def test_nan_is_found_anywhere() -> None:
    for value in (NAN, [1, [NAN]], {"a": NAN}, torch.tensor([1.0, NAN]), PerSeed([0], [NAN])):
        assert has_nan(value)
    for value in (1, "nan", [INF], {"a": None}, torch.tensor([1]), PerSeed([0], [INF])):
        assert not has_nan(value)


def test_records_hold_plain_data() -> None:
    assert plain(torch.ones(2, 2)) == [[1.0, 1.0], [1.0, 1.0]]
    assert plain(torch.ones(9, 9)) == "float32 tensor of shape (9, 9)"
    assert plain(PerSeed([3, 4], [0.5, NAN])) == [0.5, "nan"]
    assert plain({1: (True, INF, Fraction(1, 3))}) == {"1": [True, "inf", "1/3"]}
