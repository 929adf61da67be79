"""One block and two on the pool language, by steps, width, heads, network and positions.

All at the small settings of `winograd`: width 64, four heads, batches of 32 at 3e-3. The variants
change one thing at a time; a step of two blocks costs about two of one block, so that the models
that stand side by side there have had the same computation. Two rows are trained for longer, to see
where they end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from claims.experiments.winograd import IN_POOL, ONE, TWO, small
from claims.training.experiment import Budgets, Experiment
from claims.training.spec import RunSpec

STEPS = {"one block": (250, 500, 1000, 4000), "two blocks": (250, 500, 1000)}
CHANGES: dict[str, dict[str, Any]] = {
    "width 32": {"d_model": 32},
    "width 128": {"d_model": 128},
    "1 head": {"n_heads": 1},
    "8 heads": {"n_heads": 8},
    "no network": {"feed_forward": False},
    "no positions": {"positions": "none"},
    "rotary": {"positions": "rotary"},
}
LONG = "one block, no network, 4000"
BLOCKS = {"one block": (ONE, 1000), "two blocks": (TWO, 500)}

WINOGRAD_STEPS: Budgets = {
    "document": Experiment(
        {
            f"{name}, {steps}": small(model, IN_POOL, steps)
            for name, (model, _) in BLOCKS.items()
            for steps in STEPS[name]
        },
        seeds=10,
    ),
}


def _changed(run: RunSpec, change: dict[str, Any]) -> RunSpec:
    return replace(run, model=replace(run.model, **change))


WINOGRAD_VARIANTS: Budgets = {
    "document": Experiment(
        {
            f"{name}, {label}": _changed(small(model, IN_POOL, steps), change)
            for label, change in CHANGES.items()
            for name, (model, steps) in BLOCKS.items()
        }
        | {LONG: _changed(small(ONE, IN_POOL, 4000), CHANGES["no network"])},
        seeds=10,
    ),
}
