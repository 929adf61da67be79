"""The ladder (l.14, l.124): ten models, each of which adds one piece to one above it."""

from __future__ import annotations

from claims.experiments import BATCH, LENGTH, RATE, small
from claims.experiments.rungs import (
    FOUR_HEADS,
    ONE_BLOCK,
    TWO_BLOCKS,
    WITH_MLP,
)
from claims.experiments.rungs import LADDER as RUNGS
from claims.training.experiment import Budgets, Experiment
from claims.training.spec import FASTEST, Evaluation, RunSpec, Text

LADDER_RUNS: Budgets = {
    # Two blocks against one needs the document's 59 epochs, and has no run here; four heads against
    # one needs more steps or seeds than belong here.
    "ci": Experiment(
        {
            rung.label: RunSpec(
                small(rung.model), Text(LENGTH), steps=300, batch=BATCH, learning_rate=RATE,
                evaluations=(Evaluation(LENGTH),),
            )
            for rung in RUNGS
            if rung not in (FOUR_HEADS, TWO_BLOCKS)
        },
        seeds=8,
        earlier=(3, 5),
    ),
    # l.13: width 128, windows of 128, 3,000 steps of AdamW at 1e-3, batches of 64.
    "document": Experiment(
        {
            rung.label: RunSpec(
                rung.model, Text(128), steps=3000, batch=64, precision=FASTEST,
                evaluations=(Evaluation(128), Evaluation(128, "training")),
            )
            for rung in RUNGS
        },
        seeds=3,
    ),
}

# The last three rows differ by little more than their seeds do: two seeds more at the chapter's
# budget.
CLOSE_RUNS: Budgets = {
    "ci": LADDER_RUNS["ci"],
    "document": Experiment(
        {
            rung.label: LADDER_RUNS["document"].runs[rung.label]
            for rung in (WITH_MLP, ONE_BLOCK, TWO_BLOCKS)
        },
        seeds=5,
    ),
}
