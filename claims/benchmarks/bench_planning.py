"""How near a plan comes to the sweep that it is of (`--benchmark-enable`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from claims.experiments.ladder import LADDER_RUNS
from claims.harness.implementation import Implementation
from claims.training.experiment import Experiment
from claims.training.planning import plan
from claims.training.pool import Place, cores, do_all, merged
from claims.training.spec import RunResult

pytestmark = pytest.mark.benchmark(group="planning")

SEEDS, STEPS = 3, 150  # of the small budget's ladder, with half of its steps


def test_a_plan_beside_its_sweep(
    implementation: Implementation, tokens: Tensor, tmp_path: Path, once: Any,
    show: Callable[..., None],
) -> None:
    """The ladder's runs at the small budget, planned and then trained into an empty store."""
    ladder = Experiment(LADDER_RUNS["ci"].runs, SEEDS)
    runs = [
        replace(run, steps=STEPS).on("planned") for label in ladder.runs for run in ladder.of(label)
    ]
    workers = cores()
    planned = plan({"ladder": runs}, implementation.package, workers, workers)

    def sweep() -> tuple[float, float]:
        began = time.perf_counter()
        place = Place(tmp_path, implementation.package)
        done = do_all(merged(runs), place, tokens, workers, lambda *_: None)
        results = [each for each in done.outcomes.values() if isinstance(each, RunResult)]
        return sum(result.seconds for result in results), time.perf_counter() - began

    training, whole = once(sweep)
    show(f"\n{len(runs)} runs, {workers} workers, seconds: planned, measured, planned / measured")
    for name, ours, theirs in (
        ("in all processes", planned.total.seconds, training), ("whole", planned.seconds, whole)
    ):
        show(f"{name:<20}{ours:8.1f}{theirs:8.1f}{ours / theirs:8.2f}")
