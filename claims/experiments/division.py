"""The division by sqrt(d_k) taken out, at the head widths of l.110 to l.118.

The first two rows have the ladder's budget and its block, with four heads of 32 or one of 128. The
last three have 1,500 steps of 32 windows, one head and no LayerNorm before the projections; width
and context are the chapter's. Not printed, and read so: these models are the ladder's "one head,
added", with a W_o that brings heads of any width back to 128.
"""

from __future__ import annotations

from dataclasses import replace

from claims.experiments import BATCH, LENGTH, RATE, small
from claims.experiments.rungs import FOUR_HEADS, ONE_BLOCK
from claims.training.experiment import Budgets, Experiment
from claims.training.spec import FASTEST, Evaluation, ModelSettings, RunSpec, Text

RECORDED = ("scores", "gradients")


def _long(model: ModelSettings) -> RunSpec:
    return RunSpec(
        model, Text(128), steps=3000, batch=64, precision=FASTEST, record=RECORDED,
        evaluations=(Evaluation(128),),
    )


def _short(d_head: int) -> RunSpec:
    model = replace(FOUR_HEADS.model, n_heads=1, d_head=d_head)
    return RunSpec(
        model, Text(128), steps=1500, batch=32, precision=FASTEST, record=RECORDED,
        evaluations=(Evaluation(128),),
    )


def both(runs: dict[str, RunSpec]) -> dict[str, RunSpec]:
    """Every run twice, scaled and unscaled, with otherwise identical settings."""
    return {
        f"{label}, {'scaled' if scaled else 'unscaled'}": replace(
            run, model=replace(run.model, scaled=scaled)
        )
        for label, run in runs.items()
        for scaled in (True, False)
    }


def _small(d_head: int) -> RunSpec:
    model = replace(small(FOUR_HEADS.model), n_heads=1, d_head=d_head)
    return RunSpec(
        model, Text(LENGTH), steps=150, batch=BATCH, learning_rate=RATE, record=RECORDED,
        evaluations=(Evaluation(LENGTH),),
    )


DIVISION_RUNS: Budgets = {
    "ci": Experiment(both({"256": _small(256), "1024": _small(1024)}), seeds=5, earlier=(3,)),
    "document": Experiment(
        both(
            {
                "32 of four heads": _long(ONE_BLOCK.model),
                "128, long": _long(replace(ONE_BLOCK.model, n_heads=1)),
                "128": _short(128),
                "256": _short(256),
                "1024": _short(1024),
            }
        ),
        seeds=3,
    ),
}

# Three seeds leave undecided whether the unscaled head recovers for a while.
LASTING_RUNS: Budgets = {
    "ci": DIVISION_RUNS["ci"],
    "document": Experiment(
        {"1024, unscaled": DIVISION_RUNS["document"].runs["1024, unscaled"]}, seeds=5
    ),
}

# The learning rate of the last three rows is not printed; l.13 has 1e-3, l.142 has 3e-3. Between
# 3e-3 and 1e-2 the unscaled scores come to end where l.116 prints.
STEEPER_RUNS: Budgets = {
    "document": Experiment(
        both(
            {
                f"1024 at {rate:g}": replace(_short(1024), learning_rate=rate)
                for rate in (3e-3, 6e-3, 1e-2)
            }
        ),
        seeds=3,
    ),
}

# All of them, beside each other.
BY_WIDTH_AND_RATE: Budgets = {
    "document": Experiment(
        {**DIVISION_RUNS["document"].runs, **STEEPER_RUNS["document"].runs},
        seeds=DIVISION_RUNS["document"].seeds,
    ),
}

# Can a head that starts frozen learn where to look (l.108)? The widest head, at the chapter's rate,
# with W_q and W_k trained and with both as they were drawn.
_FROZEN = replace(
    _small(1024), steps=300, batch=8, learning_rate=1e-3, record=("scores",), record_every=50
)
FROZEN_RUNS: Budgets = {
    "ci": Experiment(
        both(
            {
                "trained": _FROZEN,
                "fixed": replace(_FROZEN, fixed=("mixer.q.weight", "mixer.k.weight")),
            }
        ),
        seeds=6,
    ),
}
