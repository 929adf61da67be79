"""The fifth kind of tolerance, printed run: a number that the document prints from one run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from claims.harness.per_seed import PerSeed
from claims.harness.tolerance.judgement import Judgement, MisusedTolerance

LEVEL = 0.99
FEWEST_SEEDS = 3


@dataclass(frozen=True)
class printed_run:
    """A number of one run is one draw: is it one that the runs measured here could have given?

    The prediction interval of one more run is mean +- t sd sqrt(1 + 1/n), with the quantile of
    Student's t for n - 1 degrees of freedom (Spence and Stanley 2016). With normal values it holds
    a further run with probability `level`, whatever n is, so that more seeds do not refute a print
    that is right. Holds when the printed number lies inside, and is refuted when it lies outside.

    Where the interval reaches further than `notice`, the departure that would matter (`because`
    says why), a print inside of it tells nothing: undecided. `relative` takes `notice`, and the
    spread, as shares of the mean.

    `like` are further rows of the same table, measured on as many seeds: their spread is pooled
    with this row's, which needs fewer seeds. They must spread alike: Levene's test (Brown and
    Forsythe 1974) at 1 % decides that.
    """

    printed: float
    notice: float
    because: str
    level: float = LEVEL
    relative: bool = False
    like: tuple[PerSeed[float], ...] = ()
    kind: ClassVar[str] = "printed run"

    def judge(self, measured: PerSeed[float]) -> Judgement:
        from scipy import stats  # slow to import

        rows = [_values(row, self.relative) for row in (measured, *self.like)]
        mean, n = float(torch.tensor([*measured], dtype=torch.float64).mean()), len(measured)
        unit = abs(mean) if self.relative else 1.0
        if len(rows) > 1 and (p := float(stats.levene(*rows, center="median").pvalue)) < 0.01:
            raise MisusedTolerance(f"the rows do not spread alike (p = {p:.2g}): do not pool them")
        freedom = sum(len(row) - 1 for row in rows)
        sd = math.sqrt(sum((len(row) - 1) * float(row.var()) for row in rows) / freedom)
        quantile = float(stats.t.isf((1 - self.level) / 2, freedom))
        reach = quantile * sd * math.sqrt(1 + 1 / n) * unit
        inside = abs(self.printed - mean) <= reach
        narrow = reach <= self.notice * unit
        return Judgement(
            inside,
            {"mean": mean, "sd": sd * unit, "n": n},
            self.printed,
            f"{mean - reach:.4g} to {mean + reach:.4g}: {self.level:.0%} of further runs; "
            f"it would notice {self.notice * unit:.3g} ({self.because})",
            detail="" if narrow or not inside else f"the interval reaches {reach:.3g}: too wide",
            facts={"degrees of freedom": freedom},
            decided=math.isinf(mean) or narrow or not inside,
        )


def _values(row: PerSeed[float], relative: bool) -> torch.Tensor:
    if not isinstance(row, PerSeed):
        raise MisusedTolerance("values of runs come with their seeds: give a PerSeed")
    if len(row) < FEWEST_SEEDS:
        raise MisusedTolerance(
            f"a printed run is judged by at least {FEWEST_SEEDS} seeds; {len(row)} were given"
        )
    values = torch.tensor([*row], dtype=torch.float64)
    return values / values.mean() if relative else values
