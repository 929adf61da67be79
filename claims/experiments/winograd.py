"""The Winograd languages (l.202 to l.241): what order-blind models, one block and two make of them.

The chapter gives none of the settings. "full" are its main ones (l.13): width 128, four heads,
learned positions, AdamW at 1e-3, batches of 64. "small" are half as wide, with batches of 32 at
3e-3; "steep" are small, 1,200 steps at 1e-2. Every seed draws its own held-out pairs.
"""

from __future__ import annotations

from dataclasses import replace

from claims.experiments.rungs import AVERAGE_REPLACING
from claims.instruments.languages.schemas import LENGTH, POOL
from claims.training.experiment import Budgets, Experiment
from claims.training.spec import ModelSettings, RunSpec, Schemas

# Seed and draw are set by `Experiment.of`.
IN_POOL = Schemas("pool", held_out=48, draw=0)
IN_CATEGORY = Schemas("category", held_out=12, draw=0)

ONE = ModelSettings(vocabulary=len(POOL.vocabulary), context=LENGTH)
TWO = replace(ONE, n_blocks=2)
# The chapter's average (l.11 to l.28), bare: embedding, average, output head. Blind to order.
AVERAGE = replace(AVERAGE_REPLACING.model, vocabulary=ONE.vocabulary, context=LENGTH)


def small(model: ModelSettings, data: Schemas, steps: int) -> RunSpec:
    return RunSpec(replace(model, d_model=64), data, steps=steps, batch=32, learning_rate=3e-3)


def full(model: ModelSettings, data: Schemas, steps: int) -> RunSpec:
    return RunSpec(model, data, steps=steps, batch=64)


def steep(model: ModelSettings, data: Schemas) -> RunSpec:
    return replace(small(model, data, 1200), learning_rate=1e-2)


# The version that needs no order.
CATEGORIES: Budgets = {
    "ci": Experiment({"average, 1e-2": steep(AVERAGE, IN_CATEGORY)}, seeds=5),
    "document": Experiment(
        {
            "average": full(AVERAGE, IN_CATEGORY, 3000),
            "one block": full(ONE, IN_CATEGORY, 800),
            "average, 1e-2": steep(AVERAGE, IN_CATEGORY),
            "one block, 1e-2": steep(ONE, IN_CATEGORY),
        },
        seeds=10,
    ),
}
# What is blind to order, where order is needed: after as many steps as l.13 has, and after twice as
# many.
ORDER_BLIND: Budgets = {
    "ci": Experiment({"average": steep(AVERAGE, IN_POOL)}, seeds=6),
    "document": Experiment(
        {
            "average": full(AVERAGE, IN_POOL, 3000),
            "average, 6,000 steps": full(AVERAGE, IN_POOL, 6000),
        },
        seeds=10,
    ),
}

# At 3e-3 a model of two blocks loses now and then, for a while, what it had learnt.
WINOGRAD: Budgets = {
    "ci": Experiment(
        {"two blocks": replace(small(TWO, IN_POOL, 800), learning_rate=2e-3)},
        seeds=5,
        earlier=(3,),
    ),
    "document": Experiment(
        {"one block": full(ONE, IN_POOL, 800), "two blocks": full(TWO, IN_POOL, 800)}, seeds=10
    ),
}

# One block after the steps of l.13; after as many as two blocks need, it still learns.
LONGER: Budgets = {"document": Experiment({"one block": full(ONE, IN_POOL, 3000)}, seeds=10)}

# Of whose attention a map is printed, at two settings.
MAPS: Budgets = {
    "document": Experiment(
        {"full": full(TWO, IN_POOL, 800), "small": small(TWO, IN_POOL, 500)}, seeds=10
    ),
}

# For what takes more seeds than a small budget has.
TEN_SEEDS: Budgets = {"document": WINOGRAD["document"]}

# The answers in both languages, for one table.
BOTH_LANGUAGES: Budgets = {
    "document": Experiment(
        {
            "category, average": CATEGORIES["document"].runs["average"],
            "category, one block": CATEGORIES["document"].runs["one block"],
            "pool, average": ORDER_BLIND["document"].runs["average"],
            **{f"pool, {label}": run for label, run in WINOGRAD["document"].runs.items()},
        },
        seeds=10,
    ),
}
