"""An experiment: runs that are compared with each other, over the same seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from claims.harness.per_seed import FEWEST
from claims.training.spec import RunSpec, Schemas


@dataclass(frozen=True)
class Experiment:
    """Runs that are compared with each other, every one over the same seeds.

    runs       label -> the run, whose own seed is not used
    seeds      0 to seeds - 1
    earlier    numbers of seeds, rising, after which a claim may be decided earlier: more are
               trained only for claims that these leave undecided. By default all are, at once
    """

    runs: Mapping[str, RunSpec]
    seeds: int
    earlier: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.runs or self.seeds < 1:
            raise ValueError(
                f"an experiment has runs and seeds, got {len(self.runs)} and {self.seeds}"
            )
        rising = (FEWEST - 1, *self.looks)
        if self.earlier and not all(a < b for a, b in pairwise(rising)):
            raise ValueError(
                f"earlier looks rise from {FEWEST} seeds to fewer than all {self.seeds}, "
                f"got {self.earlier}"
            )

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of seeds after which a claim may be decided."""
        return (*self.earlier, self.seeds)

    def of(self, label: str, first: int = 0) -> list[RunSpec]:
        """The run of that label, once per seed, counted from `first`.

        In a Winograd language the seed also draws which pairs are held out, so that a mean over
        seeds is one over splits as well.
        """
        return [_seeded(self.runs[label], first + i) for i in range(self.seeds)]


def whatever_the_seed(run: RunSpec) -> str:
    """What a run has in common with the same run of other seeds, on whatever text."""
    return _seeded(run, 0).on("").digest()


def _seeded(run: RunSpec, seed: int) -> RunSpec:
    data = replace(run.data, draw=seed) if isinstance(run.data, Schemas) else run.data
    return replace(run, seed=seed, data=data)


# By budget.
Budgets = Mapping[str, Experiment]
