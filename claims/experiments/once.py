"""One block of the small budget that sees no token of the text twice (l.163)."""

from __future__ import annotations

from claims.experiments import LENGTH, RATE, small
from claims.experiments.rungs import ONE_BLOCK
from claims.training.experiment import Budgets, Experiment
from claims.training.spec import RunSpec, Text

# 400 steps are nearly the whole training split: 12,800 of its 12,930 windows.
ONCE_RUNS: Budgets = {
    "ci": Experiment(
        {
            "one block": RunSpec(
                small(ONE_BLOCK.model), Text(LENGTH, once=True), steps=400, batch=32,
                learning_rate=RATE,
            )
        },
        seeds=5,
        earlier=(3,),
    ),
}
