"""What is trained for the claims: plain data, one module per experiment of the chapter.

Each experiment exists at one or two budgets. "ci" is small and decides on a CPU, in minutes, what
it can; "document" has the chapter's own steps, batch and widths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from claims.training.spec import ModelSettings, RunSpec, Schemas


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
        """The run of that label, once per seed, counted from `first`.

        In a Winograd language the seed also draws which pairs are held out, so that a mean over
        seeds is one over splits as well.
        """
        return [_seeded(self.runs[label], first + i) for i in range(self.seeds)]


def _seeded(run: RunSpec, seed: int) -> RunSpec:
    data = replace(run.data, draw=seed) if isinstance(run.data, Schemas) else run.data
    return replace(run, seed=seed, data=data)


# Why a trained value that the document prints is compared as it is.
PRINTED = "the printed value within 5 %: one run, of a seed and of settings that are not printed"

# By budget.
Budgets = Mapping[str, Experiment]

# The small budget: width 64, windows of 32 tokens, a learning rate that suits few steps. Chosen by
# measuring: README's power table says by how many standard errors each claim is decided.
WIDTH, LENGTH, BATCH, RATE = 64, 32, 32, 1e-2


def small(model: ModelSettings, context: int = LENGTH) -> ModelSettings:
    """The same model at the small budget's width."""
    return replace(model, d_model=WIDTH, context=context)
