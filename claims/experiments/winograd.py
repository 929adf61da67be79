"""The Winograd languages (l.202 to l.241): what order-blind models, one block and two make of them.

The chapter gives none of the settings. "document" takes its main ones: width 128, four heads,
learned positions, AdamW at 1e-3, batches of 64. "ci" is half as wide, with batches of 32 at 3e-3 or
2e-3. Every seed draws its own held-out pairs.
"""

from __future__ import annotations

from dataclasses import replace

from claims.instruments.languages.schemas import LENGTH, POOL
from claims.training.experiment import Budgets, Experiment
from claims.training.spec import ModelSettings, RunSpec, Schemas

# Seed and draw are set by `Experiment.of`.
IN_POOL = Schemas("pool", held_out=48, draw=0)
IN_CATEGORY = Schemas("category", held_out=12, draw=0)

ONE = ModelSettings(vocabulary=len(POOL.vocabulary), context=LENGTH)
TWO = replace(ONE, n_blocks=2)
# Blind to order: no positions, and averaged once.
AVERAGE = replace(ONE, mixer="average", positions="none")


def small(model: ModelSettings, data: Schemas, steps: int) -> RunSpec:
    return RunSpec(replace(model, d_model=64), data, steps=steps, batch=32, learning_rate=3e-3)


def full(model: ModelSettings, data: Schemas, steps: int) -> RunSpec:
    return RunSpec(model, data, steps=steps, batch=64)


# The version that needs no order, and what is blind to it: the small budget decides them.
CATEGORIES: Budgets = {
    "ci": Experiment(
        {
            "average": small(AVERAGE, IN_CATEGORY, 300),
            "one block": small(ONE, IN_CATEGORY, 300),
        },
        seeds=5,
    ),
}
ORDER_BLIND: Budgets = {"ci": Experiment({"average": small(AVERAGE, IN_POOL, 1200)}, seeds=10)}

# At 3e-3 a model of two blocks loses now and then, for a while, what it had learnt.
WINOGRAD: Budgets = {
    "ci": Experiment(
        {
            "one block": replace(small(ONE, IN_POOL, 500), learning_rate=2e-3),
            "two blocks": replace(small(TWO, IN_POOL, 800), learning_rate=2e-3),
        },
        seeds=5,
    ),
    "document": Experiment(
        {"one block": full(ONE, IN_POOL, 800), "two blocks": full(TWO, IN_POOL, 800)}, seeds=10
    ),
}

# For what takes more seeds than a small budget has.
TEN_SEEDS: Budgets = {"document": WINOGRAD["document"]}
