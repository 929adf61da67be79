"""Pre-norm and post-norm, twelve blocks deep, with and without warmup (l.142 to l.153).

1,000 steps at 3e-3, a warmup of 200 steps where there is one. The batch is not printed: 32 windows
is the reading taken, and 64 stands beside it. A shallow post-norm model is the control that the
document lacks.
"""

from __future__ import annotations

from dataclasses import replace

from claims.experiments import LENGTH, small
from claims.experiments.rungs import ONE_BLOCK
from claims.training.experiment import Budgets, Experiment
from claims.training.spec import FASTEST, Evaluation, RunSpec, Text

DEEP = replace(ONE_BLOCK.model, n_blocks=12)
_PRE = RunSpec(
    DEEP, Text(128), steps=1000, batch=32, learning_rate=3e-3, precision=FASTEST,
    record=("gradients",), evaluations=(Evaluation(128),),
)
_POST = replace(_PRE, model=replace(DEEP, norm="post"))

_SMALL = RunSpec(
    small(DEEP), Text(LENGTH), steps=100, batch=16, learning_rate=3e-3,
    evaluations=(Evaluation(LENGTH),),
)

NORM_RUNS: Budgets = {
    # So few steps that a warmup would take most of them.
    "ci": Experiment(
        {
            "pre-norm": _SMALL,
            "post-norm": replace(_SMALL, model=replace(_SMALL.model, norm="post")),
            "post-norm, two blocks": replace(
                _SMALL, model=replace(_SMALL.model, norm="post", n_blocks=2)
            ),
        },
        seeds=3,
    ),
    "document": Experiment(
        {
            "pre-norm": _PRE,
            "pre-norm, 64 windows": replace(_PRE, batch=64),
            "pre-norm, warmup": replace(_PRE, warmup=200),
            "post-norm": _POST,
            "post-norm, warmup": replace(_POST, warmup=200),
            "post-norm, two blocks": replace(_POST, model=replace(DEEP, norm="post", n_blocks=2)),
        },
        seeds=3,
    ),
}
