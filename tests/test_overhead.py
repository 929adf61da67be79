"""What the harness adds to its runs: little of their time, and no more for each of many.

That it stays so at ten thousand specifications follows from the two: the share of a few hundred
runs, and that each step of the way takes the same number of calls for each run however many there
are.
"""

from __future__ import annotations

import io
import itertools
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from claims.experiments.registry import EXPERIMENTS
from claims.harness.implementation import Implementation
from claims.plugins.shards import Group, balanced
from claims.report.merging import merge as merge_reports
from claims.report.stored import of_data
from claims.training import pool, progress_bar, run
from claims.training.evidence import Evidence, Record, merge
from claims.training.experiment import Experiment
from claims.training.loop import train
from claims.training.planning import makespan
from claims.training.pool import Place, cost, do_all, merged
from claims.training.progress_bar import shown
from claims.training.results import Gathered, Recorded, Runs
from claims.training.spec import Evaluation, RunResult, RunSpec, Score, Snapshot
from claims.training.store import listed
from claims.training.travel import export
from small_results import entry, ledger, results
from small_results import run as claim_run
from small_runs import SPEC

SHARE = 0.02  # of the time of a run
LABELS = 10
FEW, MANY = 60, 240  # runs of which the calls are counted
MORE = 1.1  # times as many calls for each run of many as for each of few would be a growth

SCORED = replace(SPEC, evaluations=(Evaluation(8),))
SCORE = Score(2.0, 1)
RESULT = RunResult(SPEC.steps, None, tuple(Snapshot(n, 2.0) for n in (0, 3, 6)), 1.0, (SCORE,))
REFERENCE = Implementation("transformer")


def experiment(runs: int) -> Experiment:
    """So many runs: ten labels over the seeds."""
    labels = {f"label {i}": replace(SCORED, steps=SPEC.steps + i) for i in range(LABELS)}
    return Experiment(labels, seeds=runs // LABELS)


def specs_of(of: Experiment) -> list[RunSpec]:
    return [spec for label in of.runs for spec in of.of(label)]


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that cost nothing, in a thread of this process."""

    def no_training(*_: Any, report: Callable[[int, float], None], **__: Any) -> Any:
        for snapshot in RESULT.snapshots:
            report(snapshot.step, 2.0)
        return replace(RESULT, scores=()), {"weight": torch.zeros(1)}

    def begin(place: Place, ids: Any, messages: Any) -> None:
        messages.cancel_join_thread()
        pool._worker.update(
            implementation=REFERENCE, store=place.store(), ids=torch.from_numpy(ids),
            messages=messages,
        )  # fmt: skip

    def in_a_thread(workers: int, initargs: Any, **_: Any) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, initializer=begin, initargs=initargs)

    monkeypatch.setattr(pool, "ProcessPoolExecutor", in_a_thread)
    monkeypatch.setattr(pool, "_worker", {})
    monkeypatch.setattr(run, "train", no_training)
    monkeypatch.setattr(run, "_evaluated", lambda *_: {Evaluation(8): SCORE})
    monkeypatch.setattr(run, "demand_fit", lambda *_: None)


def sweep(of: Experiment, folder: Path) -> None:
    """From the specifications to the values of claims, as the plugin goes: gather, look up, train
    what is missing and show it, look up again, and read by label and seed.
    """
    place = Place(folder, "transformer")
    found = Gathered(place.store(), REFERENCE)
    specs = merged([*specs_of(of), *specs_of(of)])
    missing = [spec for spec in specs if found.store.result(spec) is None]
    with shown(missing, 0, []) as report:
        done = do_all(missing, place, torch.zeros(100, dtype=torch.long), 1, report)
    for spec in specs:
        found.outcomes[spec.digest()] = spec, done.outcomes[spec.digest()]
    assert all(found.store.result(spec) is not None for spec in specs)
    runs = Runs(of, [*of.runs], 0, "", found)
    assert sum(len(runs.perplexities(label)) for label in of.runs) == len(missing)


@pytest.mark.usefixtures("untrained")
def test_the_harness_takes_a_small_share_of_the_time_of_a_run(tmp_path: Path) -> None:
    """Of the cheapest run of all, trained in this process; both in seconds of its cores."""
    small = (budgets["ci"] for budgets in EXPERIMENTS.values() if "ci" in budgets)
    cheapest = min((run for each in small for run in each.runs.values()), key=cost)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a process that trains
    try:
        began = time.process_time()
        train(REFERENCE, cheapest, None, report=lambda step, loss: None)
        trained = time.process_time() - began
    finally:
        torch.set_num_threads(threads)
    began = time.process_time()
    sweep(experiment(MANY), tmp_path)
    added = (time.process_time() - began) / MANY
    assert added < SHARE * trained


# ---- growth --------------------------------------------------------------------------------------


def calls(do: Callable[[], object]) -> int:
    """How often Python and C functions are called, in this thread."""
    count = itertools.count()
    sys.setprofile(lambda frame, event, argument: next(count) and None)
    try:
        do()
    finally:
        sys.setprofile(None)
    return next(count)


def evidence(spec: RunSpec) -> Evidence:
    facts = {"date": "2026-01-31", "device": "cpu", "torch": "2.13.0"}
    return Evidence(spec, RESULT, {}, {}, facts)


def gathered(n: int, folder: Path) -> Callable[[], object]:
    specs = specs_of(experiment(n))
    return lambda: merged([*specs, *specs])


def looked_up(n: int, folder: Path) -> Callable[[], object]:
    store, specs = kept(n, folder)
    return lambda: [store.result(spec) for spec in specs]


def kept(n: int, folder: Path) -> Any:
    store, specs = Place(folder, "transformer").store(), specs_of(experiment(n))
    for spec in specs:
        store.keep(spec, RESULT, {"weight": torch.zeros(1)})
        store.keep_scores(spec, {Evaluation(8): SCORE})
    return store, specs


def pooled(n: int, folder: Path) -> Callable[[], object]:
    specs = specs_of(experiment(n))
    place, ids = Place(folder, "transformer"), torch.zeros(100, dtype=torch.long)
    return lambda: do_all(specs, place, ids, 1, lambda *_: None)


def shown_in_lines(n: int, folder: Path) -> Callable[[], object]:
    specs = specs_of(experiment(n))
    report = progress_bar._lines(Console(file=io.StringIO()), specs)
    return lambda: [report(spec, step, loss) for spec in specs for step, loss in STEPS]


def shown_in_bars(n: int, folder: Path) -> Callable[[], object]:
    specs = specs_of(experiment(n))

    def show() -> None:
        with progress_bar._bars(Console(file=io.StringIO(), force_terminal=True), n, 0) as report:
            for spec in specs:
                for step, loss in STEPS:
                    report(spec, step, loss)

    return show


STEPS = ((0, 2.0), (3, 2.0), (SPEC.steps, None))


def read_by_seed(n: int, folder: Path) -> Callable[[], object]:
    of = experiment(n)
    outcomes: Any = {spec.digest(): (spec, RESULT) for spec in specs_of(of)}
    found = Gathered(Place(folder, "transformer").store(), REFERENCE, outcomes)
    runs = Runs(of, [*of.runs], 0, "", found)
    return lambda: [runs.perplexities(label) for label in of.runs]


def merged_into_a_record(n: int, folder: Path) -> Callable[[], object]:
    runs = [(f"run {i}", evidence(spec)) for i, spec in enumerate(specs_of(experiment(n)))]
    merge(runs[: n // 2], folder)
    return lambda: merge(runs, folder)


def read_from_a_record(n: int, folder: Path) -> Callable[[], object]:
    of = experiment(n)
    merge([(f"run {i}", evidence(spec)) for i, spec in enumerate(specs_of(of))], folder)

    def read() -> None:
        runs = Runs(of, [*of.runs], 0, "", Recorded(Record([folder], REFERENCE)))
        assert sum(len(runs.perplexities(label)) for label in of.runs) == n

    return read


def listed_and_exported(n: int, folder: Path) -> Callable[[], object]:
    store, _ = kept(n, folder / "runs")
    (folder / "record").mkdir()
    return lambda: (listed(store.folder), export(store, REFERENCE, folder / "record", None))


def planned(n: int, folder: Path) -> Callable[[], object]:
    return lambda: makespan(map(float, range(n)), 8)


def cut_into_shards(n: int, folder: Path) -> Callable[[], object]:
    groups = [Group((f"test {i}",), float(i)) for i in range(n)]
    return lambda: balanced(groups, 8)


def merged_into_a_report(n: int, folder: Path) -> Callable[[], object]:
    names = [f"claim-{i}" for i in range(n)]
    known = ledger(*map(entry, names))
    files = [of_data(results(*map(claim_run, names)), "a"), of_data(results(), "b")]
    return lambda: merge_reports(files, known).count("transformer")


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize(
    "step",
    [
        gathered, looked_up, pooled, shown_in_lines, shown_in_bars, read_by_seed,
        merged_into_a_record, read_from_a_record, listed_and_exported, planned, cut_into_shards,
        merged_into_a_report,
    ],
)  # fmt: skip
def test_each_step_grows_with_the_number_of_runs_and_no_faster(
    step: Callable[[int, Path], Callable[[], object]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress_bar, "LINE_EVERY", 0.0)  # as often as it could be
    monkeypatch.setattr("claims.training.evidence.probe", lambda *_: {})
    monkeypatch.setattr("claims.training.travel.probe", lambda *_: {})
    monkeypatch.setattr("claims.training.travel.commit", lambda: "")
    by_size = {}
    for n in (10, FEW, MANY):  # what is made once is made by the first
        (tmp_path / str(n)).mkdir()
        by_size[n] = calls(step(n, tmp_path / str(n)))
    assert by_size[MANY] / MANY < MORE * by_size[FEW] / FEW, by_size
