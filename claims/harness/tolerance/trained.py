"""The fourth kind of tolerance, trained: values of runs over listed seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from claims.harness.per_seed import PerSeed
from claims.harness.tolerance.judgement import Judgement, MisusedTolerance

ERROR = 0.01

@dataclass(frozen=True)
class seed_mean_within:
    """A difference or ratio of runs over listed seeds, one value per seed.

    Holds when Student's t test tells the mean from both ends of the band [low, high] and it lies
    inside, and is refuted when it lies outside. In between the seeds do not decide, and the claim
    is neither. The band has two sides, for too good is a bug as well.

    `error` is the chance of a wrong verdict where the true mean lies at an end of the band, the
    worst case. Looks at more and more seeds share it in equal parts (Bonferroni).
    """

    band: Sequence[float]
    because: str
    error: float = ERROR
    kind: ClassVar[str] = "trained"

    def judge(self, measured: PerSeed[float]) -> Judgement:
        from scipy import stats  # slow to import

        low, high = self.band
        values = _seeds(measured, low, high)
        mean, sd, n = float(values.mean()), float(values.std()), values.numel()
        error = sd / math.sqrt(n)
        # Above zero inside of the band, below outside.
        margin = min(mean - low, high - mean)
        needed = float(stats.t.isf(self.error / measured.looks, n - 1))
        # A run that diverged has a perplexity of infinity, and no band holds that.
        decided = math.isinf(mean) or abs(margin) > needed * error
        return Judgement(
            margin > needed * error,
            {"mean": mean, "sd": sd, "n": n},
            [low, high],
            f"mean inside ({low:g}, {high:g}) by {needed:.3g} standard "
            f"errors of {error:.3g}, n = {n} ({self.because})",
            facts={"margin": round(margin / (needed * error), 2)} if error > 0 else {},
            decided=decided,
            settled=decided,
        )


@dataclass(frozen=True)
class every_seed_within:
    """A sentence without a condition: each of the listed seeds has its value inside the band.

    One seed outside is a counterexample, however the others spread.
    """

    band: Sequence[float]
    because: str
    kind: ClassVar[str] = "trained"

    def judge(self, measured: PerSeed[float]) -> Judgement:
        low, high = self.band
        values = _seeds(measured, low, high)
        outside = int(((values < low) | (values > high)).sum())
        return Judgement(
            not outside,
            {"mean": float(values.mean()), "sd": float(values.std()), "n": values.numel()},
            [low, high],
            f"every seed inside [{low:g}, {high:g}] ({self.because})",
            facts={"seeds outside": outside, "values": [float(f"{v:.4g}") for v in values]},
            settled=outside > 0,
        )


def _seeds(measured: PerSeed[float], low: float, high: float) -> Tensor:
    if not isinstance(measured, PerSeed):
        raise MisusedTolerance("values of runs come with their seeds: give a PerSeed")
    values = torch.as_tensor([*measured], dtype=torch.float64).flatten()
    if values.numel() < 3:
        raise MisusedTolerance(
            f"a trained claim needs at least 3 seeds; it was given {values.numel()}"
        )
    if not (math.isfinite(low) and math.isfinite(high)):
        raise MisusedTolerance(f"the band ({low}, {high}) must have two finite sides")
    return values
