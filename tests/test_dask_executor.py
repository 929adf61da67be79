"""Runs on the workers of a Dask scheduler, with every process real and everything on loopback."""

from __future__ import annotations

import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import transformer
from claims.harness.implementation import Implementation
from claims.training import dask_executor
from claims.training.dask_executor import (
    Cluster,
    NoCluster,
    _workers,
    address_of,
    check,
    connected,
)
from claims.training.loop import train
from claims.training.measurement import Measurement
from claims.training.pool import Done, Failure, Place, do_here
from claims.training.results import Gathered
from claims.training.spec import RunResult, RunSpec
from claims.training.store import dump, load
from dask_machines import Machines, kill, until
from small_runs import MODEL, SCORED, SPEC, ids, same

TEXT = ids()
VERSION = torch.__version__
# The reference, which notes in a file each step of a training: process, seed of its weights. Some
# widths are special. Its constants come from a neighbour, and from a file of data.
PACKAGE = """
import os, time
from pathlib import Path
import torch, transformer
from beside import SLOW, DEADLY

PAUSE = float((Path(__file__).parent / "pause.txt").read_text())

class LanguageModel(transformer.LanguageModel):
    def __init__(self, **settings):
        if settings["d_model"] == DEADLY:
            os.kill(os.getpid(), 9)
        super().__init__(**settings)
        self.pause = PAUSE if settings["d_model"] == SLOW else 0.0
        first = next(self.parameters()).flatten()[0].item()
        self.mark = f"{settings['d_model']}:{first:.6f}"

    def forward(self, tokens):
        if torch.is_grad_enabled():
            with open(os.environ["STEPS"], "a") as file:
                file.write(f"{os.getpid()} {self.mark}\\n")
            time.sleep(self.pause)
        return super().forward(tokens)
"""
DEADLY, SLOW = 6, 10
# Code that a worker runs before it is one.
SAVES_EVERY_STEP = """
from claims.training.run import run
run.__kwdefaults__["save_every"] = 0.0
"""
FULL_DISK = """
import errno, os
from claims.training import sealed
def write(path, body):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
sealed.write = write
"""
SLOW_WORKER = """
import time
from claims.training import run
train = run.train
def slowly(*arguments, **settings):
    time.sleep(2)
    return train(*arguments, **settings)
run.train = slowly
"""
OTHER_TORCH = """
from claims.training.dask_executor import versions
versions()["torch"] = "1.0"
"""
# The runs that ask for a GPU are trained on the CPU, and said to be of the GPU.
GPU = """
from claims.harness import machine
from claims.training import run
train = run.train
machine.gpu_fault = lambda: ""
run.train = lambda *arguments, device, **settings: train(*arguments, device="cpu", **settings)
"""


def quiet(spec: RunSpec, step: int, loss: float | None) -> None:
    pass


def seeds(spec: RunSpec, n: int) -> list[RunSpec]:
    return [replace(spec, seed=seed) for seed in range(n)]


def wide(width: int, **more: Any) -> RunSpec:
    return replace(SPEC, model=replace(MODEL, d_model=width), **more)


class Sweep:
    """A scheduler, a client's folder with a package and a store, and the steps that are noted."""

    def __init__(self, machines: Machines, folder: Path) -> None:
        self.machines, self.folder = machines, folder
        self.executor, self.process = machines.scheduler(allowed_failures=0)
        self.place = Place(folder / "runs", "counting")
        self.steps = folder / "steps"
        self.shared = folder / "shared"

    def worker(self, name: str, **options: Any) -> int:
        process = self.machines.worker(self.executor, name, STEPS=str(self.steps), **options)
        with connected(self.executor) as client:
            until(lambda: any(each["name"] == name for each in _workers(client).values()))
        return process

    def do(self, specs: list[RunSpec], report: Any = quiet) -> Done:
        return Cluster(self.executor, self.place, TEXT).do_all(specs, report)

    def result(self, done: Done, spec: RunSpec) -> RunResult:
        outcome = done.outcomes[spec.digest()]
        assert isinstance(outcome, RunResult), outcome
        return outcome

    def noted(self) -> list[tuple[int, str]]:
        """(process, model) of each step that was done."""
        lines = self.steps.read_text().splitlines() if self.steps.exists() else []
        return [(int(line.split()[0]), line.split()[1]) for line in lines]

    def counts(self) -> list[int]:
        """How many steps each model took, in whatever processes."""
        return sorted(Counter(model for _, model in self.noted()).values())


@pytest.fixture
def sweep(machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sweep]:
    folder = tmp_path / "client"
    (folder / "counting").mkdir(parents=True)
    (folder / "counting" / "__init__.py").write_text(PACKAGE)
    (folder / "counting" / "pause.txt").write_text("0.1")
    (folder / "beside.py").write_text(f"SLOW, DEADLY = {SLOW}, {DEADLY}\n")
    for name in ("counting", "beside"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(folder)
    yield Sweep(machines, folder)
    machines.end_all()


# ---- what comes back -----------------------------------------------------------------------------


def test_workers_train_to_the_bit_what_one_process_does(sweep: Sweep) -> None:
    """The workers have caches of their own, and neither the package nor its neighbour."""
    sweep.worker("a")
    sweep.worker("b")
    said: list[tuple[RunSpec, int, float | None]] = []
    specs = [*seeds(SCORED, 4), wide(SLOW, steps=12)]
    done = sweep.do(specs, lambda *message: said.append(message))
    assert done.faults == []
    store = sweep.place.store()
    for spec in specs:
        result, weights = train(transformer, spec, TEXT)
        assert sweep.result(done, spec).snapshots == result.snapshots
        kept = store.weights(spec)
        assert kept is not None
        assert same(kept, weights)
    here = do_here(specs, Place(sweep.folder / "others", "transformer"), TEXT)
    for spec in specs:
        scores = sweep.result(done, spec).scores
        assert scores == here.outcomes[spec.digest()].scores  # type: ignore[union-attr]
        stored = store.result(spec)
        assert stored is not None
        assert stored.scores == scores
    assert sweep.counts() == [7, 7, 7, 7, 12]
    assert len({process for process, _ in sweep.noted()}) == 2
    assert sorted(spec.digest() for spec, _, loss in said if loss is None) == sorted(done.outcomes)
    # A run of more than half a second tells how far it has come.
    assert any(loss is not None and spec == specs[-1] for spec, _, loss in said)


def test_a_package_that_was_changed_is_sent_anew(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that raises fails its run alone."""
    sweep.worker("a")
    assert isinstance(sweep.do([SPEC]).outcomes[SPEC.digest()], RunResult)
    (sweep.folder / "beside.py").write_text("SLOW, DEADLY = 0, 0 / 1\nassert not DEADLY\n")
    source = PACKAGE.replace("os.kill(os.getpid(), 9)", "pass")
    source = source.replace("first =", "1 / (settings['d_model'] - 4); first =")
    (sweep.folder / "counting" / "__init__.py").write_text(source)
    for name in ("counting", "beside"):
        monkeypatch.delitem(sys.modules, name)
    done = sweep.do([SPEC, wide(4)])
    assert isinstance(done.outcomes[SPEC.digest()], RunResult)
    failure = done.outcomes[wide(4).digest()]
    assert isinstance(failure, Failure)
    assert "raises ZeroDivisionError: division by zero" in failure.sentence
    assert sweep.counts() == [14]


def test_a_run_that_is_begun_or_lacks_scores_is_not_done_again(sweep: Sweep) -> None:
    """What the client's store has of it travels."""
    sweep.worker("a")
    states: list[bytes] = []
    begun, trained = replace(SPEC, seed=5), replace(SCORED, seed=6, evaluations=())

    def save(state: Any) -> None:
        states.append(dump(state))

    train(transformer, begun, TEXT, save=save, save_every=0.0)
    store = sweep.place.store()
    store.keep_checkpoint(begun, load(states[3]))
    store.keep(trained, *train(transformer, trained, TEXT))
    scored = replace(trained, evaluations=SCORED.evaluations)
    done = sweep.do([begun, scored])
    assert sweep.result(done, begun).snapshots == train(transformer, begun, TEXT)[0].snapshots
    assert len(sweep.result(done, scored).scores) == 2
    assert sweep.counts() == [3]


def test_a_thousand_small_runs_come_back(sweep: Sweep) -> None:
    for name in "abc":
        sweep.worker(name, cache=sweep.folder)  # its runs are those of the client
    specs = seeds(replace(SPEC, model=replace(MODEL, n_blocks=0), steps=1), 1000)
    done = sweep.do(specs)
    assert len(done.outcomes) == 1000
    assert all(isinstance(outcome, RunResult) for outcome in done.outcomes.values())
    assert sweep.counts() == [1] * 1000


# ---- what goes wrong on a worker -----------------------------------------------------------------


def test_a_run_goes_on_elsewhere_when_its_worker_is_killed(sweep: Sweep) -> None:
    """From the last checkpoint, where the workers share the folder of their caches."""
    options = {"cache": sweep.shared, "before": SAVES_EVERY_STEP}
    workers = [sweep.worker(name, **options) for name in "ab"]
    specs = [wide(SLOW, steps=20), *seeds(SPEC, 3)]
    killed: list[int] = []

    def report(spec: RunSpec, step: int, loss: float | None) -> None:
        if spec == specs[0] and loss is not None and not killed:
            of_the_run = [p for p, model in sweep.noted() if model.startswith(f"{SLOW}:")]
            killed.append(of_the_run[-1])
            assert killed[0] in workers
            kill(killed[0])

    done = sweep.do(specs, report)
    assert killed
    for spec in specs:
        result = train(transformer, spec, TEXT)[0]
        assert sweep.result(done, spec).snapshots == result.snapshots
    *others, of_the_killed = sweep.counts()
    assert others == [7, 7, 7]
    assert 20 <= of_the_killed <= 22  # the step in which it was killed


def test_a_run_that_kills_its_workers_is_told_and_stops_no_other(sweep: Sweep) -> None:
    """The scheduler of these tests gives a run up after one worker; then it is tried alone."""
    for name in "abcd":
        sweep.worker(name)
    specs = [wide(DEADLY), *seeds(SPEC, 6)]
    done = sweep.do(specs)
    failure = done.outcomes[specs[0].digest()]
    assert isinstance(failure, Failure)
    assert "width 6, pre-norm, learned, seed 0 cannot be trained: its process died" in (
        failure.sentence
    )
    assert all(isinstance(done.outcomes[spec.digest()], RunResult) for spec in specs[1:])


def test_a_slow_worker_holds_up_its_own_runs_alone(sweep: Sweep) -> None:
    slow = sweep.worker("slow", before=SLOW_WORKER)
    sweep.worker("fast")
    sweep.do(seeds(replace(SPEC, seed=0, steps=2), 1))  # the package has arrived
    done = sweep.do(seeds(replace(SPEC, steps=3), 12))
    assert len(done.outcomes) == 12
    steps = Counter(sweep.noted())
    assert sum(steps.values()) == 2 + 12 * 3
    assert sum(n for (process, _), n in steps.items() if process == slow) <= 3 * 4


def test_a_worker_with_a_full_disk_returns_its_runs(sweep: Sweep) -> None:
    sweep.worker("full", before=FULL_DISK)
    done = sweep.do([SCORED])
    assert len(done.faults) == 1
    assert re.match(
        r"on the worker tcp://127\.0\.0\.1:\d+: the run store .* cannot be written \(No space",
        done.faults[0],
    )
    stored, weights = sweep.place.store().result(SCORED), sweep.place.store().weights(SCORED)
    assert stored == sweep.result(done, SCORED)
    assert len(stored.scores) == 2
    assert weights is not None
    assert same(weights, train(transformer, SCORED, TEXT)[1])


def test_what_the_client_cannot_store_is_returned(sweep: Sweep) -> None:
    sweep.worker("a")
    sweep.place.folder.write_text("a file where the folder should be")
    done = sweep.do([SPEC])
    assert same(done.unstored[SPEC.digest()][1], train(transformer, SPEC, TEXT)[1])
    assert "cannot be written" in done.faults[0]


# ---- what goes away ------------------------------------------------------------------------------

CLIENT = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from claims.training.dask_executor import Cluster
from claims.training.pool import Place
from test_dask_executor import TEXT, quiet, seeds, SPEC
Cluster({executor!r}, Place(Path({folder!r}) / "runs", "counting"), TEXT).do_all(
    seeds(SPEC, 24), quiet
)
"""


def test_what_had_ended_is_kept_when_the_client_is_killed(sweep: Sweep) -> None:
    sweep.worker("a", cache=sweep.shared)
    sweep.worker("b", cache=sweep.shared)
    process = sweep.machines.start(
        CLIENT.format(folder=str(sweep.folder), executor=sweep.executor), STEPS=str(sweep.steps)
    )
    store, specs = sweep.place.store(), seeds(SPEC, 24)

    def finished() -> list[RunSpec]:
        return [spec for spec in specs if store.result(spec) is not None]

    until(lambda: len(finished()) >= 5)
    kill(process)
    before = finished()
    assert len(before) < 24
    done = sweep.do([spec for spec in specs if spec not in before])
    assert len(before) + len(done.outcomes) == 24
    assert len(finished()) == 24
    # The runs in progress ended on their workers, and were found in the workers' cache.
    assert sweep.counts() == [7] * 24


def test_what_had_ended_is_kept_when_the_scheduler_goes_away(sweep: Sweep) -> None:
    """One worker, two runs of seconds, in whichever order: the first to end, then no scheduler."""
    sweep.worker("a")
    specs = seeds(wide(SLOW, steps=20), 2)

    def report(spec: RunSpec, step: int, loss: float | None) -> None:
        if loss is None:
            kill(sweep.process)

    began = time.monotonic()
    with pytest.raises(
        NoCluster, match=r"went away, or was restarted; 1 runs had ended and are kept, and the same"
    ):
        sweep.do(specs, report)
    assert time.monotonic() - began < 60
    assert [sweep.place.store().result(spec) is None for spec in specs].count(True) == 1


def test_a_cluster_without_workers_is_left_after_a_while(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_executor, "WITHOUT_WORKERS", 1.0)
    monkeypatch.setattr(dask_executor, "LOOK_EVERY", 0.2)
    worker = sweep.worker("a")

    def report(spec: RunSpec, step: int, loss: float | None) -> None:
        if loss is not None:
            kill(worker)

    with pytest.raises(NoCluster, match=r"has had no worker for 1 seconds; 0 runs had ended"):
        Cluster(sweep.executor, sweep.place, TEXT).do_all([wide(SLOW, steps=100)], report)


# ---- which workers -------------------------------------------------------------------------------


def test_other_versions_are_refused_and_both_are_named(sweep: Sweep) -> None:
    sweep.worker("other", before=OTHER_TORCH)
    with (
        connected(sweep.executor) as client,
        pytest.raises(
            NoCluster, match=rf"^the worker tcp:\S+ has torch 1\.0 \(here {re.escape(VERSION)}\)"
        ),
    ):
        check(client, "cpu")


def test_a_worker_of_other_versions_that_comes_later_is_given_no_run(sweep: Sweep) -> None:
    other = sweep.worker("other", before=OTHER_TORCH)
    sweep.worker("a")
    done = sweep.do(seeds(SPEC, 8))
    assert all(isinstance(outcome, RunResult) for outcome in done.outcomes.values())
    assert len(done.outcomes) == 8
    assert re.search(r"the worker tcp://.* has torch 1\.0 .*: it was given no runs", done.faults[0])
    assert len(done.faults) == 1
    assert other not in {process for process, _ in sweep.noted()}


def test_without_a_worker_of_these_versions_nothing_is_done(sweep: Sweep) -> None:
    sweep.worker("other", before=OTHER_TORCH)
    with pytest.raises(NoCluster, match=r"has torch 1\.0"):
        sweep.do(seeds(SPEC, 3))


def test_a_worker_with_more_threads_is_refused(sweep: Sweep) -> None:
    sweep.worker("wide", threads=2)
    said = r"the worker \S+ has 2 threads, and a run needs a process of its own: .*--nthreads 1"
    with connected(sweep.executor) as client, pytest.raises(NoCluster, match=said):
        check(client, "cpu")
    with pytest.raises(NoCluster, match=said):
        sweep.do([SPEC])


def test_runs_that_ask_for_a_gpu_go_where_one_is(sweep: Sweep) -> None:
    sweep.worker("without")
    with (
        connected(sweep.executor) as client,
        pytest.raises(NoCluster, match=r'offers a GPU: .*--resources "GPU=1"'),
    ):
        check(client, "cuda")
    with_gpu = sweep.worker("with", gpus=1, before=GPU)
    with connected(sweep.executor) as client:
        assert len(check(client, "cuda")) == 1
        assert len(check(client, "cpu")) == 2
    place = replace(sweep.place, device="cuda")
    done = Cluster(sweep.executor, place, TEXT).do_all(seeds(SPEC, 4), quiet)
    assert all(isinstance(outcome, RunResult) for outcome in done.outcomes.values())
    assert {process for process, _ in sweep.noted()} == {with_gpu}
    assert place.store().result(SPEC) is not None
    assert sweep.place.store().result(SPEC) is None
    # Measured here, where there is no GPU.
    outcomes = {SPEC.digest(): (SPEC, done.outcomes[SPEC.digest()])}
    gathered = Gathered(place.store(), Implementation("counting"), outcomes)
    where = Measurement("device", lambda spec, model: next(model.parameters()).device.type)
    assert gathered.measured(SPEC, where) == "cpu"


def test_a_gpu_that_cannot_be_used_is_refused(sweep: Sweep) -> None:
    sweep.worker("broken", gpus=1)
    with (
        connected(sweep.executor) as client,
        pytest.raises(NoCluster, match="offers a GPU that it cannot use: "),
    ):
        check(client, "cuda")


# ---- before anything is done ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    ["", "dask", "dask://", "dask://host", "dask://host:", "dask://host:0", "dask://host:99999",
     "dask://:8786", "tcp://host:8786", "dask://user@host:8786", "dask://ho st:8786"],
)  # fmt: skip
def test_a_malformed_executor_is_refused(given: str) -> None:
    with pytest.raises(NoCluster) as error:
        address_of(given)
    assert str(error.value) == (
        "--executor takes dask://HOST:PORT, the address of a Dask scheduler, "
        f"not '{given}'"
    )


def test_addresses() -> None:
    assert address_of("dask://scheduler.cluster-1:8786") == "tcp://scheduler.cluster-1:8786"
    assert address_of("dask://[::1]:8786") == "tcp://[::1]:8786"


@pytest.mark.parametrize("answer", [None, b"", b"SSH-2.0-OpenSSH_9.9\r\n"])
def test_a_scheduler_that_is_not_there(
    answer: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens, or something else does, which waits or answers."""
    monkeypatch.setattr(dask_executor, "CONNECTING", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if answer is None:
            server.close()
        else:
            threading.Thread(target=lambda: server.accept()[0].sendall(answer)).start()
        with (
            pytest.raises(NoCluster, match=r"no Dask scheduler answers there within 1 seconds"),
            connected(f"dask://127.0.0.1:{port}"),
        ):
            pass


def test_a_scheduler_without_workers(sweep: Sweep) -> None:
    with (
        connected(sweep.executor) as client,
        pytest.raises(NoCluster, match=r"^the Dask scheduler tcp://[0-9.:]+ has no workers;"),
    ):
        check(client, "cpu")


def test_without_dask_a_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(NoCluster, match=r'needs distributed, .*: pip install ".*\[scale\]"$'),
        connected("dask://127.0.0.1:8786"),
    ):
        pass


def test_a_package_that_cannot_travel_is_refused(sweep: Sweep) -> None:
    (sweep.folder / "counting" / "fast.so").write_bytes(b"")
    with pytest.raises(NoCluster, match=r"counting cannot travel .* counting/fast\.so is compiled"):
        Cluster(sweep.executor, sweep.place, TEXT)
