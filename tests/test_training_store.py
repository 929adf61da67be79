"""The run store: kept results, damage, full disks, kills, two processes at one run."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import transformer
from claims.training import loop, sealed
from claims.training import run as one_run
from claims.training.loop import train
from claims.training.run import run, trained_model
from claims.training.spec import Evaluation, RunResult, RunSpec, Score
from claims.training.store import (
    CHECKPOINT,
    RESULT,
    SCORES,
    WEIGHTS,
    Busy,
    RunStore,
    remove,
)
from small_runs import SCORED, SPEC, ids, same, store

TEXT = ids()
Trainings = Callable[[], int]


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Trainings:
    """How often something was trained in this process."""
    calls: list[RunSpec] = []

    def counted(implementation: Any, spec: RunSpec, *args: Any, **more: Any) -> Any:
        calls.append(spec)
        return train(implementation, spec, *args, **more)

    monkeypatch.setattr(one_run, "train", counted)
    return lambda: len(calls)


@pytest.fixture(scope="module")
def reference() -> tuple[RunResult, dict[str, Tensor]]:
    return train(transformer, SCORED, TEXT)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# ---- what is kept --------------------------------------------------------------------------------


def test_a_run_is_trained_once(
    tmp_path: Path, trainings: Trainings, reference: tuple[RunResult, dict[str, Tensor]]
) -> None:
    first = run(transformer, SCORED, store(tmp_path), TEXT)
    again = store(tmp_path)
    assert run(transformer, SCORED, again, TEXT) == first
    assert trainings() == 1
    weights = again.weights(SCORED)
    assert weights is not None
    assert same(weights, reference[1])
    assert replace(first, seconds=0.0, scores=()) == replace(reference[0], seconds=0.0)
    assert names(again.entry(SCORED)) == {RESULT, WEIGHTS, SCORES}
    assert again.faults == []


def test_the_model_of_a_run_has_its_weights(tmp_path: Path) -> None:
    kept = store(tmp_path)
    with pytest.raises(ValueError, match="has not been trained"):
        trained_model(transformer, SPEC, kept)
    run(transformer, SPEC, kept, TEXT)
    model = trained_model(transformer, SPEC, kept)
    weights = kept.weights(SPEC)
    assert weights is not None
    assert same(model.state_dict(), weights)
    assert not model.training


def test_another_evaluation_trains_nothing(tmp_path: Path, trainings: Trainings) -> None:
    first = run(transformer, SCORED, store(tmp_path), TEXT)
    more = replace(SCORED, evaluations=(Evaluation(4), *reversed(SCORED.evaluations)))
    second = run(transformer, more, store(tmp_path), TEXT)
    assert second.scores[1:] == first.scores[::-1]
    assert second.scores[0].tokens == first.scores[0].tokens
    # The scores that the first one asked for are kept.
    assert store(tmp_path).result(SCORED) == first
    assert trainings() == 1


def test_what_a_run_depends_on_is_in_its_key(tmp_path: Path, monkeypatch: Any) -> None:
    keys = {
        store(tmp_path).key(SPEC),
        store(tmp_path).key(replace(SPEC, seed=1)),
        store(tmp_path, "cuda").key(SPEC),
        RunStore(tmp_path, "other source").key(SPEC),
    }
    before = store(tmp_path).key(SCORED)
    assert before in keys  # evaluations are not
    monkeypatch.setattr(torch, "__version__", "9.9")
    assert len(keys | {store(tmp_path).key(SPEC)}) == 5


def test_a_run_that_fails_is_a_result_that_is_kept(tmp_path: Path, trainings: Trainings) -> None:
    spec = replace(SCORED, steps=60, learning_rate=1e38)
    first = run(transformer, spec, store(tmp_path), TEXT)
    assert first.failed_at is not None
    assert [score.perplexity for score in first.scores] == [float("inf")] * 2
    back = store(tmp_path).result(spec)
    assert back is not None
    assert (back.failed_at, back.scores) == (first.failed_at, first.scores)
    run(transformer, spec, store(tmp_path), TEXT)
    assert trainings() == 1


def test_a_text_too_short_to_score_is_known_before_the_training(
    tmp_path: Path, trainings: Trainings
) -> None:
    spec = replace(SCORED, evaluations=(Evaluation(40),))
    with pytest.raises(ValueError, match="40 tokens hold no window of 40"):
        run(transformer, spec, store(tmp_path), TEXT)
    assert trainings() == 0


def test_the_scores_of_a_run_are_sums_and_counts(tmp_path: Path) -> None:
    result = run(transformer, SCORED, store(tmp_path), TEXT)
    assert [score.tokens for score in result.scores] == [39, 359]
    assert isinstance(result.scores[0], Score)



# ---- damage --------------------------------------------------------------------------------------


def truncated(body: bytes) -> bytes:
    return body[: len(body) // 2]


def flipped(body: bytes) -> bytes:
    middle = len(body) * 3 // 4
    return body[:middle] + bytes([body[middle] ^ 16]) + body[middle + 1 :]


def emptied(body: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [truncated, flipped, emptied])
@pytest.mark.parametrize("name", [RESULT, WEIGHTS, SCORES])
def test_a_damaged_file_is_named_and_made_again(
    tmp_path: Path, trainings: Trainings, name: str, damage: Callable[[bytes], bytes]
) -> None:
    """Damaged scores are computed again from the weights; all else is trained again."""
    first = run(transformer, SCORED, store(tmp_path), TEXT)
    path = store(tmp_path).entry(SCORED) / name
    body = path.read_bytes()
    path.write_bytes(damage(body))
    again = store(tmp_path)
    second = run(transformer, SCORED, again, TEXT)
    assert replace(second, seconds=0.0) == replace(first, seconds=0.0)
    assert again.faults == [f"{path} is damaged; what it held is made again"]
    assert trainings() == (1 if name == SCORES else 2)
    after = store(tmp_path)
    assert after.result(SCORED) == second
    assert after.faults == []


@pytest.mark.parametrize("damage", [truncated, flipped, emptied])
def test_a_damaged_checkpoint_costs_its_steps(
    tmp_path: Path, damage: Callable[[bytes], bytes], reference: tuple[RunResult, Any]
) -> None:
    half = store(tmp_path)
    half.keep_checkpoint(SCORED, stopped())
    path = half.entry(SCORED) / CHECKPOINT
    path.write_bytes(damage(path.read_bytes()))
    again = store(tmp_path)
    assert run(transformer, SCORED, again, TEXT).snapshots == reference[0].snapshots
    assert again.faults == [f"{path} is damaged; what it held is made again"]
    assert CHECKPOINT not in names(again.entry(SCORED))


def stopped() -> dict[str, Any]:
    """The state after three steps."""
    states: list[dict[str, Any]] = []

    class Stop(Exception):
        pass

    def save(state: dict[str, Any]) -> None:
        states.append(state)
        if state["step"] == 3:
            raise Stop

    with pytest.raises(Stop):
        train(transformer, SCORED, TEXT, save=save, save_every=0.0)
    return states[-1]


def test_a_run_continues_from_its_checkpoint(
    tmp_path: Path, reference: tuple[RunResult, dict[str, Tensor]]
) -> None:
    kept = store(tmp_path)
    kept.keep_checkpoint(SCORED, stopped())
    state = kept.checkpoint(SCORED)
    assert state is not None
    assert state["step"] == 3
    first_reported: list[int] = []
    run(
        transformer, SCORED, kept, TEXT, save_every=0.0,
        report=lambda step, loss: first_reported.append(step),
    )  # fmt: skip
    weights = kept.weights(SCORED)
    assert weights is not None
    assert same(weights, reference[1])


def test_scores_of_an_older_kind_of_evaluation_are_computed_again(tmp_path: Path) -> None:
    kept = store(tmp_path)
    first = run(transformer, SCORED, kept, TEXT)
    path = kept.entry(SCORED) / SCORES
    stored = json.loads(path.read_bytes().partition(b"\n")[2])
    for row in stored:
        row["format"], row["score"]["nll"] = 0, 1.0
    sealed.write(path, json.dumps(stored).encode())
    assert run(transformer, SCORED, store(tmp_path), TEXT) == first


# ---- folders that cannot be written --------------------------------------------------------------


def test_a_file_in_place_of_the_folder_costs_a_message(
    tmp_path: Path, trainings: Trainings, reference: tuple[RunResult, dict[str, Tensor]]
) -> None:
    """A read-only folder does not stop root; this stops every user."""
    (tmp_path / "runs").write_text("not a folder")
    closed = store(tmp_path / "runs")
    result = run(transformer, SCORED, closed, TEXT)
    assert result.snapshots == reference[0].snapshots
    assert len(result.scores) == 2
    assert same(trained_model(transformer, SCORED, closed).state_dict(), reference[1])
    assert run(transformer, SCORED, closed, TEXT).scores == result.scores
    assert trainings() == 1
    takes_no_lock, not_written = closed.faults
    assert "takes no lock (File exists)" in takes_no_lock
    assert "runs are not kept; the environment variable CLAIMS_CACHE names another" in not_written


def test_a_full_disk_costs_a_message(
    tmp_path: Path, trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, body: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    whole = run(transformer, SCORED, store(tmp_path / "other"), TEXT)
    monkeypatch.setattr(sealed, "write", full)
    small = store(tmp_path / "runs")
    result = run(transformer, SCORED, small, TEXT, save_every=0.0)
    assert replace(result, seconds=0.0) == replace(whole, seconds=0.0)
    [fault] = small.faults
    assert "cannot be written (No space left on device): runs are not kept" in fault
    assert trained_model(transformer, SCORED, small)
    assert trainings() == 2
    monkeypatch.undo()
    assert store(tmp_path / "runs").result(SCORED) is None


def test_a_disk_that_fills_up_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    sealed.write(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        sealed.write(path, b"new")
    assert sealed.read(path) == b"old"
    assert names(tmp_path) == {"file"}


def test_what_is_sealed_is_read_whole_or_called_torn(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    assert sealed.read(path) is None
    sealed.write(path, b"a\nb")
    assert sealed.read(path) == b"a\nb"
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(sealed.TornFile, match="is damaged"):
            sealed.read(path)


# ---- kills, and two processes --------------------------------------------------------------------

LONG = replace(SCORED, steps=1000)
# A new process would need seconds to import torch. Each child trains on one thread, which it has.
forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def forked(work: Callable[..., None], *arguments: Any) -> int:
    """`work(*arguments)` in a child of this process; its process id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            work(*arguments)
            code = 0
        finally:
            os._exit(code)
    return pid


def ended(pid: int) -> int:
    """Wait for it; returns its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def train_saving_every_step(folder: Path) -> None:
    run(transformer, LONG, store(folder), TEXT, save_every=0.0)


@forks
def test_killed_ten_times_a_run_ends_as_if_undisturbed(tmp_path: Path) -> None:
    """SIGKILL at ten moments, most of the time inside a write: every step is saved here.

    At most the step in progress is lost; no file is torn.
    """
    reference = run(transformer, LONG, store(tmp_path / "reference"), TEXT)
    path = store(tmp_path / "runs").entry(LONG) / CHECKPOINT
    steps = [0]
    generator = torch.Generator().manual_seed(4)
    for moment in torch.rand(10, generator=generator).tolist():
        before = path.stat().st_mtime_ns if path.exists() else 0
        pid = forked(train_saving_every_step, tmp_path / "runs")
        while not path.exists() or path.stat().st_mtime_ns == before:
            time.sleep(0.001)
        time.sleep(0.03 * moment)
        os.kill(pid, signal.SIGKILL)
        assert ended(pid) == -signal.SIGKILL, "it ended before the kill"
        left = store(tmp_path / "runs")
        state = left.checkpoint(LONG)
        assert left.faults == []
        assert state is not None
        assert left.result(LONG) is None
        steps.append(state["step"])
    # Each process continued from where the one before it was killed.
    assert all(before < after for before, after in pairwise(steps))

    after = store(tmp_path / "runs")
    result = run(transformer, LONG, after, TEXT)
    assert after.faults == []
    assert result.snapshots == reference.snapshots
    assert result.scores == reference.scores
    weights, wanted = after.weights(LONG), store(tmp_path / "reference").weights(LONG)
    assert weights is not None
    assert wanted is not None
    assert same(weights, wanted)
    # No checkpoint and no part of a file is left.
    assert names(after.entry(LONG)) == {RESULT, WEIGHTS, SCORES}


def train_counting_steps(folder: Path, number: int) -> None:
    """Writes {steps trained, perplexity, faults} to a file of that number."""
    gradients, trained = loop.gradients, []

    def slowly(*arguments: Any) -> float:
        trained.append(1)
        time.sleep(0.02)
        return gradients(*arguments)

    loop.gradients = slowly
    place = store(folder / "runs")
    result = run(transformer, SCORED, place, TEXT, save_every=0.0)
    said = [len(trained), result.scores[0].perplexity, place.faults]
    (folder / str(number)).write_text(json.dumps(said))


@forks
def test_two_processes_train_one_run_once(tmp_path: Path) -> None:
    """The second process waits for the first one and takes its result."""
    pids = [forked(train_counting_steps, tmp_path, n) for n in range(2)]
    assert [ended(pid) for pid in pids] == [0, 0]
    said = [json.loads((tmp_path / str(n)).read_text()) for n in range(2)]
    assert sorted(steps for steps, _, _ in said) == [0, 7]
    assert said[0][1] == said[1][1]
    assert [faults for _, _, faults in said] == [[], []]


def test_a_process_that_does_not_wait_is_told_of_a_run_in_progress(tmp_path: Path) -> None:
    other = store(tmp_path)
    with other.lock(SPEC), pytest.raises(Busy):
        run(transformer, SPEC, store(tmp_path), TEXT, wait=False)
    assert run(transformer, SPEC, store(tmp_path), TEXT, wait=False)


def hold_the_lock(folder: Path) -> None:
    with store(folder).lock(SPEC):
        (folder / "held").touch()
        time.sleep(60)


@forks
def test_a_lock_outlives_no_process(tmp_path: Path) -> None:
    pid = forked(hold_the_lock, tmp_path)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    with pytest.raises(Busy), store(tmp_path).lock(SPEC, wait=False):
        pass
    os.kill(pid, signal.SIGKILL)
    ended(pid)
    with store(tmp_path).lock(SPEC, wait=False):
        pass


def test_a_lock_that_is_removed_while_a_process_waits_for_it_does_not_count(tmp_path: Path) -> None:
    """A process that waited for a removed lock does not share the run with a later process."""
    kept = store(tmp_path)
    kept.keep_checkpoint(SPEC, {"step": 3})
    with kept.lock(SPEC):
        pass
    path = tmp_path / f"{kept.key(SPEC)}.lock"
    descriptor = os.open(path, os.O_RDWR)  # as a waiting process holds it
    remove(tmp_path, kept.key(SPEC))
    assert not path.exists()
    with store(tmp_path).lock(SPEC):
        assert os.fstat(descriptor).st_nlink == 0
        assert not os.path.samestat(os.fstat(descriptor), path.stat())
        with pytest.raises(Busy), store(tmp_path).lock(SPEC, wait=False):
            pass
    os.close(descriptor)
