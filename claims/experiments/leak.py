"""The block of the ladder with its mask taken out: each position sees the token it must predict."""

from __future__ import annotations

from dataclasses import replace

from claims.experiments.ladder import LADDER_RUNS
from claims.experiments.rungs import ONE_BLOCK
from claims.training.experiment import Budgets, Experiment

LEAK_RUNS: Budgets = {
    budget: Experiment(
        {
            "with the mask": ladder.runs[ONE_BLOCK.label],
            "without the mask": replace(ladder.runs[ONE_BLOCK.label], causal=False),
        },
        seeds=3,
    )
    for budget, ladder in LADDER_RUNS.items()
}
