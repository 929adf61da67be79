"""One block in float32 and with bfloat16 products: whether the document's budget may use those."""

from __future__ import annotations

from dataclasses import replace

from claims.experiments.rungs import ONE_BLOCK
from claims.training.experiment import Budgets, Experiment
from claims.training.spec import PRECISIONS, Evaluation, RunSpec, Text

_RUN = RunSpec(
    ONE_BLOCK.model, Text(128), steps=1000, batch=16, evaluations=(Evaluation(128),)
)

PRECISION_RUNS: Budgets = {
    "document": Experiment(
        {precision: replace(_RUN, precision=precision) for precision in PRECISIONS}, seeds=3
    ),
}
