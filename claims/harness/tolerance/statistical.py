"""The third kind of tolerance: statistical.

Each test declares the chance of failing although the claim is true (`false_fail`, at most 1e-6)
and the departure that it would notice (`detects`) with probability `POWER`. The two fix the sample
size: a sample that agrees but is too small to have noticed is a defect of the claim. Quantiles,
exact tests and power come from SciPy and statsmodels, which are imported where they are needed:
it takes longer than most claims.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from claims.harness.tolerance.judgement import Judgement, MisusedTolerance

FALSE_FAIL = 1e-6
POWER = 0.999


@dataclass(frozen=True)
class share_within:
    """k successes in n independent draws, for a share that the claim puts in [low, high].

    Exact binomial limits: refuted when k is beyond what a share of `low` or `high` gives with
    probability `false_fail` / 2. `detects` is a distance beyond those ends.
    """

    low: float
    high: float
    detects: float
    false_fail: float = FALSE_FAIL
    kind: ClassVar[str] = "statistical"

    def judge(self, measured: tuple[int, int]) -> Judgement:
        _demand_rare(self.false_fail)
        k, n = measured
        lowest, highest = self.limits(n)
        ok = lowest <= k <= highest
        _demand_power(ok, n, self.power(n), self.detects)
        return Judgement(
            ok,
            {"share": k / n, "k": k, "n": n},
            self.low if self.low == self.high else [self.low, self.high],
            f"{lowest} <= k <= {highest}: "
            f"false failure {self.false_fail:g}, detects {self.detects:g}",
        )

    def limits(self, n: int) -> tuple[int, int]:
        """The counts still accepted out of n."""
        from scipy import stats

        lowest = int(stats.binom.ppf(self.false_fail / 2, n, self.low))
        highest = int(stats.binom.isf(self.false_fail / 2, n, self.high))
        return lowest, highest

    def power(self, n: int) -> float:
        """Chance of noticing a share `detects` beyond an end of [low, high], the harder end."""
        from scipy import stats

        lowest, highest = self.limits(n)
        chances = []
        if self.high + self.detects <= 1:
            chances.append(stats.binom.sf(highest, n, self.high + self.detects))
        if self.low - self.detects >= 0:
            chances.append(stats.binom.cdf(lowest - 1, n, self.low - self.detects))
        if not chances:
            raise MisusedTolerance(
                f"a departure of {self.detects:g} from [{self.low:g}, {self.high:g}] leaves [0, 1]"
            )
        return float(min(chances))


@dataclass(frozen=True)
class mean_within:
    """The mean of n independent draws, for an expectation that the claim puts in [low, high].

    Student's t limits around the sample mean; the draws need not be normal, but their mean must be
    nearly so (n in the hundreds without heavy tails, or a few dozen averages). `detects` is a
    distance beyond [low, high]; as the power is that of the sample's own spread, it wants a margin.
    """

    low: float
    high: float
    detects: float
    false_fail: float = FALSE_FAIL
    kind: ClassVar[str] = "statistical"

    def judge(self, measured: Tensor) -> Judgement:
        from scipy import stats

        _demand_rare(self.false_fail)
        values = measured.double().flatten()
        n = values.numel()
        average, error = float(values.mean()), float(values.std()) / math.sqrt(n)
        reach = float(stats.t.isf(self.false_fail / 2, n - 1)) * error
        # A departure is noticed when the sample mean falls short of it by less than what is left.
        slack = math.inf if error == 0 else (self.detects - reach) / error
        ok = self.low - reach <= average <= self.high + reach
        _demand_power(ok, n, float(stats.t.cdf(slack, n - 1)), self.detects)
        return Judgement(
            ok,
            {"mean": average, "standard error": error, "n": n},
            self.low if self.low == self.high else [self.low, self.high],
            f"+- {reach:.3g}: false failure {self.false_fail:g}, detects {self.detects:g}",
        )


@dataclass(frozen=True)
class variance_near:
    """The variance of n independent normal draws with known mean zero, against `expected`.

    n s^2 / expected is chi-squared with n degrees of freedom, exactly; `detects` is relative.
    """

    expected: float
    detects: float
    false_fail: float = FALSE_FAIL
    kind: ClassVar[str] = "statistical"

    def judge(self, measured: Tensor) -> Judgement:
        from scipy import stats

        _demand_rare(self.false_fail)
        values = measured.double().flatten()
        n = values.numel()
        low, high = (
            float(q) for q in stats.chi2.ppf([self.false_fail / 2, 1 - self.false_fail / 2], n)
        )
        power = min(
            float(stats.chi2.sf(high / (1 + self.detects), n)),
            float(stats.chi2.cdf(low / (1 - self.detects), n)),
        )
        ratio = float(values.square().sum()) / self.expected
        ok = low <= ratio <= high
        _demand_power(ok, n, power, self.detects)
        return Judgement(
            ok,
            {"variance": ratio / n * self.expected, "n": n},
            self.expected,
            f"{low / n:.4g} <= ratio <= {high / n:.4g}: false failure {self.false_fail:g}, "
            f"detects {self.detects:g} (relative)",
        )


@dataclass(frozen=True)
class uniformly_distributed:
    """Counts over equally likely cells, by Pearson's chi-squared test of goodness of fit.

    `detects` is Cohen's effect size w, the root of the sum of (p_i - 1/cells)^2 * cells.
    """

    detects: float
    false_fail: float = FALSE_FAIL
    kind: ClassVar[str] = "statistical"

    def judge(self, measured: Tensor) -> Judgement:
        from scipy import stats
        from statsmodels.stats.power import GofChisquarePower

        _demand_rare(self.false_fail)
        counts = measured.double().flatten()
        n, cells = int(counts.sum()), counts.numel()
        power = GofChisquarePower().power(self.detects, n, self.false_fail, n_bins=cells)
        p_value = float(stats.chisquare(counts.numpy()).pvalue)
        ok = p_value >= self.false_fail
        _demand_power(ok, n, float(power), self.detects)
        return Judgement(
            ok,
            {"p": p_value, "cells": cells, "n": n},
            "uniform",
            f"p >= {self.false_fail:g}, detects w = {self.detects:g}",
        )


def _demand_rare(false_fail: float) -> None:
    if not 0 < false_fail <= FALSE_FAIL:
        raise MisusedTolerance(
            f"a claim may fail though true with probability at most {FALSE_FAIL:g}; "
            f"it declares {false_fail:g}"
        )


def _demand_power(ok: bool, n: int, power: float, detects: float) -> None:
    """A sample that agrees must have been able to disagree; one that disagrees has shown it."""
    # `not >=` so that a NaN counts as no power.
    if ok and not power >= POWER:
        raise MisusedTolerance(
            f"n = {n} notices a departure of {detects:g} with probability {power:.4f}; "
            f"at least {POWER} is asked: draw more, or declare a larger departure"
        )


def counts(indices: Any, cells: int) -> Tensor:
    """How often each of `cells` indices occurs, for `uniform`."""
    return torch.bincount(torch.as_tensor(indices).flatten(), minlength=cells)
