"""Attention alone, one block and two, on random rows that repeat after 8 to 16 tokens.

Beyond the chapter, which hands its l.241 to the papers. Steps, width and data are ours: the
smallest at which two blocks learn it. "one block, one period" shows why the period must vary.
"""

from __future__ import annotations

from dataclasses import replace

from claims.training.experiment import Budgets, Experiment
from claims.training.spec import ModelSettings, Repeats, RunSpec

DATA = Repeats(vocabulary=32, length=32, shortest=8, longest=16)
TWO = RunSpec(
    ModelSettings(vocabulary=32, context=32, d_model=64, n_blocks=2, feed_forward=False),
    DATA, steps=300, batch=32, learning_rate=3e-3,
)
ONE = replace(TWO, model=replace(TWO.model, n_blocks=1))
STEPS = (25, 50, 75, 100, 150, 200, 300)

INDUCTION: Budgets = {
    "ci": Experiment(
        {
            "two blocks": TWO,
            "one block": ONE,
            "one block, one period": replace(
                ONE, data=replace(DATA, shortest=16), steps=150
            ),
        },
        seeds=5,
        earlier=(3,),
    ),
}

FORMING: Budgets = {
    "document": Experiment(
        {f"{steps} steps": replace(TWO, steps=steps) for steps in STEPS}, seeds=10
    ),
}
