"""Many runs at once: each is trained once, on all cores; a failure stops no other run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import transformer
from claims.training import pool, sealed
from claims.training.loop import train
from claims.training.pool import Done, Failure, Place, Pool, do_all, do_here
from claims.training.run import settle_process
from claims.training.spec import Evaluation, RunResult, RunSpec
from conftest import ROOT
from small_runs import MODEL, SCORED, SPEC, ids, same

TEXT = ids()
# The reference, but models of some widths fail, each in another way.
PACKAGE = """
import os, time, pathlib
import transformer

class LanguageModel(transformer.LanguageModel):
    def __init__(self, **settings):
        if settings["d_model"] == 4:
            raise ZeroDivisionError("no model of width 4")
        if settings["d_model"] == 6:
            os._exit(3)
        if settings["d_model"] == 10:
            pathlib.Path("pids").open("a").write(f"{os.getpid()}\\n")
            time.sleep(300)
        super().__init__(**settings)
"""


def quiet(spec: RunSpec, step: int, loss: float | None) -> None:
    pass


def wide(width: int) -> RunSpec:
    return replace(SPEC, model=replace(MODEL, d_model=width))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A store for a package that fails at some widths."""
    (tmp_path / "failing.py").write_text(PACKAGE)
    monkeypatch.delitem(sys.modules, "failing", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path / "runs", "failing")


def alive(pid: int) -> bool:
    try:
        # Z: a child that has ended, and for which nobody has waited.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ---- in processes --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pooled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Place, list[Any]]:
    """Two seeds and one run that the package under test refuses, on two workers."""
    folder = tmp_path_factory.mktemp("pooled")
    (folder / "failing.py").write_text(PACKAGE)
    place, said = Place(folder / "runs", "failing"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        done = do_all(
            [SCORED, replace(SCORED, seed=1), wide(4)], place, TEXT, 2,
            lambda *message: said.append(message),
        )  # fmt: skip
    return done, place, said


def test_workers_train_to_the_bit_what_one_process_does(
    pooled: tuple[Done, Place, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    done, place, _ = pooled
    monkeypatch.syspath_prepend(place.folder.parent)
    for spec in (SCORED, replace(SCORED, seed=1)):
        outcome = done.outcomes[spec.digest()]
        assert isinstance(outcome, RunResult)
        result, weights = train(transformer, spec, TEXT)
        assert outcome.snapshots == result.snapshots
        kept = place.store().weights(spec)
        assert kept is not None
        assert same(kept, weights)
    assert (done.unstored, done.faults) == ({}, [])


def test_a_package_that_raises_fails_its_run_alone(
    pooled: tuple[Done, Place, list[Any]],
) -> None:
    done = pooled[0]
    failure = done.outcomes[wide(4).digest()]
    assert isinstance(failure, Failure)
    assert failure.sentence == (  # of another package than the reference
        "LanguageModel.__init__ (failing.py:8) raises ZeroDivisionError: no model of width 4 "
        "(training 1 x heads, width 4, pre-norm, learned, seed 0)"
    )
    # The traceback shows where it was raised, and nothing of the pool.
    assert 'raise ZeroDivisionError("no model of width 4")' in failure.details
    assert "concurrent" not in failure.details
    assert len(done.outcomes) == 3


def test_the_end_of_every_run_is_reported(pooled: tuple[Done, Place, list[Any]]) -> None:
    ends = [spec.digest() for spec, _, loss in pooled[2] if loss is None]
    assert sorted(ends) == sorted(pooled[0].outcomes)


def test_a_worker_that_dies_is_reported_and_stops_no_other(package: Place) -> None:
    """As when the system ends a process for lack of memory."""
    done = do_all([wide(6), SPEC], package, TEXT, 2, quiet)
    failure, other = done.outcomes[wide(6).digest()], done.outcomes[SPEC.digest()]
    assert isinstance(failure, Failure)
    assert "width 6, pre-norm, learned, seed 0 cannot be trained: its process died" in (
        failure.sentence
    )
    assert failure.details == ""
    assert isinstance(other, RunResult)


def test_processes_are_kept_for_the_runs_that_come_later(package: Place) -> None:
    """They are used again, and started anew after one has died."""
    seen = []
    with Pool(package, TEXT, 1) as pool:
        for spec in (SPEC, replace(SPEC, seed=1), wide(6), replace(SPEC, seed=2)):
            outcome = pool.do_all([spec], quiet).outcomes[spec.digest()]
            executor = pool._executor
            seen.append((type(outcome), [] if executor is None else list(executor._processes)))
    results, processes = zip(*seen, strict=True)
    assert results == (RunResult, RunResult, Failure, RunResult)
    assert processes[0] == processes[1] != []
    assert processes[2] == []
    assert processes[3] not in ([], processes[0])
    wait_for(lambda: not any(map(alive, processes[3])))


def test_what_cannot_be_stored_is_returned(package: Place) -> None:
    """The worker returns results, weights and its message."""
    package.folder.write_text("a file where the folder should be")
    done = do_all([SCORED], package, TEXT, 1, quiet)
    outcome, (result, weights) = done.outcomes[SCORED.digest()], done.unstored[SCORED.digest()]
    assert isinstance(outcome, RunResult)
    assert len(outcome.scores) == 2
    assert result.snapshots == outcome.snapshots
    assert same(weights, train(transformer, SCORED, TEXT)[1])
    assert any("cannot be written" in fault for fault in done.faults)


STARTER = """
import signal
from claims.training.pool import Place, do_all
from pathlib import Path
from test_training_pool import TEXT, quiet, wide

if __name__ == "__main__":
    # A shell's background job inherits that Ctrl-C is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    do_all([wide(10)], Place(Path("runs"), "failing"), TEXT, 1, quiet)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_no_worker_outlives_its_parent(package: Place, number: int, tmp_path: Path) -> None:
    """The worker sleeps for minutes when its parent is ended."""
    (tmp_path / "starter.py").write_text(STARTER)
    path = os.pathsep.join([str(tmp_path), str(ROOT / "tests"), str(ROOT)])
    process = subprocess.Popen(
        [sys.executable, "starter.py"], env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    pids = tmp_path / "pids"
    wait_for(lambda: process.poll() is not None or (pids.exists() and pids.read_text()))
    assert process.poll() is None, process.communicate()
    worker = int(pids.read_text())
    assert alive(worker)
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    wait_for(lambda: not alive(worker))
    if number == signal.SIGINT:
        assert said.splitlines()[-1] == "KeyboardInterrupt"


def wait_for(condition: Any, seconds: float = 120.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


# ---- in this process -----------------------------------------------------------------------------


def test_runs_done_here_are_the_same(package: Place) -> None:
    done = do_here([SCORED, wide(4)], package, TEXT)
    result = done.outcomes[SCORED.digest()]
    assert isinstance(result, RunResult)
    assert result.snapshots == train(transformer, SCORED, TEXT)[0].snapshots
    assert isinstance(done.outcomes[wide(4).digest()], Failure)


def test_a_run_of_another_process_is_left_for_last(
    package: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[tuple[int, bool]] = []
    busy = {0}

    def run(implementation: Any, spec: RunSpec, *args: Any, wait: bool, **more: Any) -> RunResult:
        order.append((spec.seed, wait))
        if spec.seed in busy and not wait:
            raise pool.Busy
        return RunResult(spec.seed, None, (), 0.0)

    monkeypatch.setattr(pool, "run", run)
    specs = [replace(SPEC, seed=n) for n in range(3)]
    done = do_here(specs, package, TEXT)
    assert order == [(0, False), (1, False), (2, False), (0, True)]
    assert [done.outcomes[spec.digest()].steps for spec in specs] == [0, 1, 2]  # type: ignore[union-attr]


def test_a_package_that_lacks_a_name_differs_from_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "masked.py").write_text("from transformer import LanguageModel\n")
    monkeypatch.syspath_prepend(tmp_path)
    spec = replace(SPEC, causal=False)
    failure = do_here([spec], Place(tmp_path / "runs", "masked"), TEXT).outcomes[spec.digest()]
    assert failure == Failure("masked does not provide MultiHeadAttention", lacking=True)


SMALLEST_NORMAL = torch.finfo(torch.float32).tiny


def test_threads_and_precision_of_a_worker_are_settled() -> None:
    torch.set_num_threads(2)
    try:
        settle_process()
        assert torch.get_num_threads() == 1
        assert torch.get_float32_matmul_precision() == "highest"
        assert float(torch.tensor(SMALLEST_NORMAL) / 2) == 0.0
    finally:
        torch.set_flush_denormal(False)
    assert float(torch.tensor(SMALLEST_NORMAL) / 2) > 0.0


def test_stored_results_can_be_read_again(package: Place) -> None:
    """Outcomes are plain JSON beside sealed weights."""
    do_here([SCORED], package, TEXT)
    entry = package.store().entry(SCORED)
    body = sealed.read(entry / "result.json")
    assert body is not None
    facts = json.loads(body)
    assert RunSpec.from_json(facts["spec"]) == SCORED
    assert {"torch", "device", "machine", "threads", "finished"} < facts.keys()
    assert Evaluation(8) in package.store().scores(SCORED)
