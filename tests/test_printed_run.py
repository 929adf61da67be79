"""A printed number of one run: the interval's error rates, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from claims.harness import Check, PerSeed, Refuted, Undecided, printed_run
from claims.harness.ledger import load_ledger
from claims.harness.paths import LEDGER
from claims.harness.tolerance import MisusedTolerance

WHY = "a departure of the test"


def seeds(*values: float) -> PerSeed[float]:
    return PerSeed(range(len(values)), values)


def outside(n: int, draws: int, *, shift: float = 0.0, level: float = 0.99, rows: int = 1) -> float:
    """The share of prints, `shift` standard deviations off, that lie outside of the interval.

    The judgement itself for each of `draws` simulated papers: `n` seeds measured, one run printed.
    """
    normal = torch.randn(draws, rows * n + 1, generator=torch.Generator().manual_seed(0)).double()
    count = 0
    for *measured, printed in normal.tolist():
        first, *like = (seeds(*measured[i * n : (i + 1) * n]) for i in range(rows))
        tolerance = printed_run(printed + shift, math.inf, WHY, level, like=tuple(like))
        try:
            count += not tolerance.judge(first).ok
        except MisusedTolerance:  # Levene's test refuses one simulated table in a hundred
            continue
    return count / draws


@pytest.mark.parametrize("n", [3, 5, 10, 30])
def test_a_print_that_is_right_lies_outside_at_the_declared_rate_whatever_n_is(n: int) -> None:
    # 2,000 draws: the binomial standard deviation of a rate of 0.05 is 0.005, of 0.01 0.002.
    assert abs(outside(n, 2_000, level=0.95) - 0.05) < 0.02
    assert abs(outside(n, 2_000) - 0.01) < 0.008


def test_pooling_rows_keeps_the_rate() -> None:
    assert abs(outside(3, 1_000, rows=5) - 0.01) < 0.012


@pytest.mark.parametrize("n", [3, 5, 10, 30])
def test_a_print_five_standard_deviations_off_is_noticed_as_often_as_theory_says(n: int) -> None:
    # (print - mean) / (s sqrt(1 + 1/n)) has the noncentral t distribution.
    off, freedom = 5.0 / math.sqrt(1 + 1 / n), n - 1
    quantile = stats.t.isf(0.005, freedom)
    power = stats.nct.sf(quantile, freedom, off) + stats.nct.cdf(-quantile, freedom, off)
    assert abs(outside(n, 1_000, shift=5.0) - power) < 0.06


def test_more_seeds_do_not_refute_a_print_that_is_one_draw() -> None:
    generator = torch.Generator().manual_seed(1)
    many = seeds(*torch.randn(10_000, generator=generator).tolist())
    assert printed_run(2.0, 3.0, WHY).judge(many).ok
    assert not printed_run(2.7, 3.0, WHY).judge(many).ok


def test_an_interval_that_is_too_wide_decides_nothing() -> None:
    wide = printed_run(10.0, 1.0, WHY).judge(seeds(8.0, 10.0, 12.0))
    assert wide.ok
    assert not wide.decided
    assert "too wide" in wide.detail
    # A print outside of even a wide interval is refuted.
    far = printed_run(100.0, 1.0, WHY).judge(seeds(8.0, 10.0, 12.0))
    assert far.decided
    assert not far.ok


def test_notice_and_spread_may_be_shares_of_the_mean() -> None:
    judgement = printed_run(101.0, 0.2, WHY, relative=True).judge(seeds(100.0, 101.0, 99.0))
    assert judgement.ok
    assert judgement.decided
    assert judgement.measured["sd"] == pytest.approx(1.0)


def test_few_seeds_and_unequal_spreads_are_refused() -> None:
    with pytest.raises(MisusedTolerance, match="at least 3 seeds; 2 were given"):
        printed_run(1.0, 1.0, WHY).judge(seeds(1.0, 2.0))
    with pytest.raises(MisusedTolerance, match="give a PerSeed"):
        printed_run(1.0, 1.0, WHY).judge([1.0, 2.0, 3.0])  # type: ignore[arg-type]
    steady = seeds(*(1.0 + 0.001 * (i % 2) for i in range(20)))
    wild = seeds(*(float(i) for i in range(20)))
    with pytest.raises(MisusedTolerance, match="do not spread alike"):
        printed_run(1.0, 1.0, WHY, like=(wild,)).judge(steady)


def test_check_records_the_seeds_and_raises_what_the_judgement_says() -> None:
    check = Check(load_ledger(LEDGER)["token-count"], "")
    check(seeds(1.0, 1.1, 0.9), printed_run(1.0, 5.0, WHY))
    assert check.records[0].seeds == [0, 1, 2]
    assert check.records[0].kind == "printed run"
    with pytest.raises(Refuted):
        check(seeds(1.0, 1.1, 0.9), printed_run(9.0, 5.0, WHY))
    with pytest.raises(Undecided):
        check(seeds(1.0, 1.1, 0.9), printed_run(1.0, 0.01, WHY))
