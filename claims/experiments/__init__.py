"""What is trained for the claims: plain data, one module per experiment of the chapter.

Each experiment exists at one or two budgets. "ci" is small and decides on a CPU, in minutes, what
it can; "document" has the chapter's own steps, batch and widths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from claims.instruments.training.spec import RunSpec


@dataclass(frozen=True)
class Experiment:
    """Runs that are compared with each other, every one over the same seeds.

    runs     label -> the run, whose own seed is not used
    seeds    0 to seeds - 1
    """

    runs: Mapping[str, RunSpec]
    seeds: int

    def __post_init__(self) -> None:
        if not self.runs or self.seeds < 1:
            raise ValueError(
                f"an experiment has runs and seeds, got {len(self.runs)} and {self.seeds}"
            )

    def of(self, label: str, first: int = 0) -> list[RunSpec]:
        """The run of that label, once per seed, counted from `first`."""
        return [replace(self.runs[label], seed=first + i) for i in range(self.seeds)]


# By budget.
Budgets = Mapping[str, Experiment]


def at_document(runs: Mapping[str, RunSpec], seeds: int = 3) -> Experiment:
    return Experiment(runs, seeds)


Labels = Sequence[str]
