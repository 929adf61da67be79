"""Runs on the workers of a Dask scheduler: `--executor dask://host:port`.

A worker has this project installed, and sees nothing of the user's files. The tokens of the text
and the source of the implementation are sent to it once. Where a checkpoint is written, in the
cache of the worker's machine, another worker finds it if the two share that folder.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import logging
import pickle
import platform
import queue
import re
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor

from claims.harness import machine, paths
from claims.harness.files import cache_dir
from claims.harness.implementation import Implementation
from claims.training.parcel import CannotTravel, Parcel, pack, unpack
from claims.training.pool import Done, Outcome, Place, Report, outcome_of, retry_alone
from claims.training.run import settle_process
from claims.training.spec import Evaluation, RunResult, RunSpec, Score
from claims.training.store import RunStore, dump, load, made_here

if TYPE_CHECKING:
    from distributed import Client

SCHEME = "dask://"
DISTRIBUTION = "transformer-claims"
# What a run computes depends on these folders of this project.
ROOMS = ("training", "instruments", "harness")
CONNECTING = 10.0  # seconds for a scheduler to answer
# A cluster that lost its last worker may be given another by a batch system.
WITHOUT_WORKERS = 300.0  # seconds
# Runs that the scheduler has, at least: a cluster that grows by need sees that there is work. Each
# costs the scheduler time, and one that is busy for half a minute loses its clients.
AT_ONCE = 100
WENT_AWAY = "went away, or was restarted"
LOOK_EVERY = 5.0  # seconds between looks at which workers there are
# One topic for all: the scheduler keeps the last messages of every topic that it has ever heard of.
TOPIC = DISTRIBUTION


class NoCluster(ValueError):
    """The workers cannot be used, or are lost; in a sentence."""


# ---- the client ----------------------------------------------------------------------------------


def address_of(executor: str) -> str:
    """The scheduler that `--executor` names. Raises NoCluster."""
    found = re.fullmatch(rf"{SCHEME}(\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+):([0-9]{{1,5}})", executor)
    if not found or not 1 <= int(found[2]) <= 65535:
        raise NoCluster(
            f"--executor takes {SCHEME}HOST:PORT, the address of a Dask scheduler, "
            f"not '{executor}'"
        )
    return f"tcp://{found[1]}:{found[2]}"


@contextmanager
def connected(executor: str) -> Iterator[Client]:
    """A client of the scheduler, left when the block ends. Raises NoCluster."""
    address = address_of(executor)
    try:
        from distributed import Client
        from distributed.comm.core import connect
    except ModuleNotFoundError as error:
        raise NoCluster(
            f"--executor {executor} needs {error.name}, which is not installed: "
            f'pip install "{DISTRIBUTION}[scale]"'
        ) from error

    async def ask() -> None:
        """A client would wait for ever for something else that listens there."""
        comm = await asyncio.wait_for(connect(address, CONNECTING), CONNECTING)
        comm.abort()

    with _quiet(), warnings.catch_warnings():
        # Of versions of Dask's own libraries that differ, and of long checkpoints.
        warnings.simplefilter("ignore")
        try:
            asyncio.run(ask())
            client = Client(address, timeout=CONNECTING, set_as_default=False)
        except Exception as error:  # whatever follows from what something else answers
            raise NoCluster(
                f"--executor {executor}: no Dask scheduler answers there within "
                f"{CONNECTING:.0f} seconds ({type(error).__name__})"
            ) from error
        try:
            yield client
        finally:
            client.close(timeout=CONNECTING)


@contextmanager
def _quiet() -> Iterator[None]:
    """Dask logs on the terminal what is said here in a sentence."""
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def check(client: Client, device: str) -> list[str]:
    """The workers that can take runs on `device`.

    Raises:
        NoCluster: there is none, or one has other versions than this process has.
    """
    where = _address(client)
    workers = _workers(client)
    if not workers:
        raise NoCluster(f"the Dask scheduler {where} has no workers; start some, and run again")
    if not (able := [worker for worker in workers if _offers(workers[worker], device)]):
        raise NoCluster(
            f"none of the {len(workers)} workers of {where} offers a GPU: start those that have "
            'one with --resources "GPU=1"'
        )
    mine = versions()
    faults = client.run(unfit, mine, device, workers=able, on_error="return")
    for worker, fault in faults.items():
        if isinstance(fault, OSError):  # it has gone since
            able.remove(worker)
            continue
        if isinstance(fault, Exception):
            fault = (
                f"cannot import this project ({type(fault).__name__}: {fault}): install "
                f"{DISTRIBUTION} {mine[DISTRIBUTION]} there"
            )
        if fault := fault or _thread_fault(workers[worker]["nthreads"]):
            raise NoCluster(f"the worker {worker} {fault}")
    return able


def _address(client: Client) -> str:
    """The scheduler's."""
    assert client.scheduler is not None  # it is connected
    return str(client.scheduler.address)


def _workers(client: Client) -> dict[str, dict[str, Any]]:
    """Facts of each worker, by its address."""
    found: dict[str, dict[str, Any]] = client.scheduler_info(n_workers=-1)["workers"]
    return found


def _offers(worker: Mapping[str, Any], device: str) -> bool:
    return device == "cpu" or worker["resources"].get("GPU", 0) >= 1


def _resources(device: str) -> dict[str, float]:
    return {"GPU": 1} if device == "cuda" else {}


class Cluster:
    """The workers of a scheduler, in the place of a `Pool` of processes.

    It is connected while runs are done, so that no thread of Dask's is there while a claim is
    judged.
    """

    def __init__(self, executor: str, place: Place, ids: Tensor | None) -> None:
        """`ids` are the tokens (N,) of the text for runs on text. Raises NoCluster."""
        self._executor, self._place = executor, place
        parcel = sendable(Implementation(place.package))
        self._sent = _Sent.of(parcel, place.device, ids)

    def do_all(self, specs: Sequence[RunSpec], report: Report) -> Done:
        """Train what is missing of `specs`; each goes into the store when it comes back.

        Raises:
            NoCluster: no worker can do the runs, or the scheduler or the last worker went away.
        """
        with connected(self._executor) as client:
            sweep = _Sweep(client, self._place, self._sent, report)
            retry_alone(specs, sweep.do, sweep.done, report)
            return sweep.done

    def close(self) -> None:
        """It is closed whenever it does nothing."""


def sendable(implementation: Implementation) -> Parcel:
    """Raises NoCluster where the implementation cannot travel."""
    try:
        return pack(implementation)
    except CannotTravel as error:
        raise NoCluster(str(error)) from error


@dataclass
class _Sweep:
    """Runs of one implementation on the workers of a scheduler."""

    client: Client
    place: Place
    sent: _Sent
    report: Report
    done: Done = field(default_factory=Done)

    def __post_init__(self) -> None:
        self.store = self.place.store()
        # A task and not scattered data: the scheduler makes it again when the last worker that has
        # it dies.
        body = pickle.dumps(self.sent)
        self._key = hashlib.sha256(body).hexdigest()[:16]
        self._shared = self.client.submit(bytes, body, key=f"claims-sent-{self._key}")
        self._refused: set[str] = set()
        self._tries: defaultdict[RunSpec, Iterator[int]] = defaultdict(count)

    def do(self, specs: Sequence[RunSpec]) -> list[RunSpec]:
        """Do the runs; returns those whose workers died, each more often than the scheduler allows.
        """
        executor = self.client.get_executor(resources=_resources(self.place.device), pure=False)
        by_digest = {spec.digest(): spec for spec in specs}
        waiting = deque(specs)
        pending: dict[Future[_Back], RunSpec] = {}
        # The workers to which a run is bound, where one of other versions would take it.
        bound: dict[Future[_Back], set[str]] = {}
        # What has happened, in its order: (digest, step, loss), or a future that has ended.
        events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        able = self._able()

        def send() -> None:
            workers = able if self._refused else None
            at_once = max(2 * len(able), 0 if self._refused else AT_ONCE)
            while waiting and len(pending) < at_once:
                spec = waiting.popleft()
                future = self._submit(executor, spec, workers)
                pending[future] = spec
                if workers is not None:
                    bound[future] = set(workers)
                future.add_done_callback(events.put)

        self.client.subscribe_topic(TOPIC, lambda event: events.put(event[1]))
        lost: list[RunSpec] = []
        seen = looked = time.monotonic()
        try:
            while pending or waiting:
                send()
                with suppress(queue.Empty):
                    event = events.get(timeout=LOOK_EVERY)
                    if not isinstance(event, Future):
                        digest, step, loss = event
                        if digest in by_digest:
                            self.report(by_digest[digest], step, loss)
                    elif event in pending:
                        spec = pending.pop(event)
                        bound.pop(event, None)
                        if self._given_back(event, spec, lost):
                            waiting.appendleft(spec)
                            able = self._able()
                if (now := time.monotonic()) - looked > LOOK_EVERY:
                    looked = now
                    if self.client.status != "running":
                        raise self._lost(WENT_AWAY)
                    able = self._able()
                    seen = now if able else seen
                    if now - seen > WITHOUT_WORKERS:
                        raise self._lost(f"has had no worker for {WITHOUT_WORKERS:.0f} seconds")
                    for future in [each for each, to in bound.items() if not to & set(able)]:
                        del bound[future]
                        waiting.appendleft(pending.pop(future))
                        future.cancel()
        finally:
            executor.shutdown(wait=False)
        return lost

    def _submit(self, executor: Any, spec: RunSpec, workers: list[str] | None) -> Future[_Back]:
        # The same run of two clients has one key, so that it is done once.
        name = f"claims-run-{self.store.key(spec)}-{self._key}-{next(self._tries[spec])}"
        begun = _Begun.of(self.store, spec)
        fit = {} if workers is None else {"workers": workers}
        future: Future[_Back] = executor.submit(_one, self._shared, spec, begun, key=name, **fit)
        return future

    def _given_back(self, future: Future[_Back], spec: RunSpec, lost: list[RunSpec]) -> bool:
        """Take what has ended; True for a run that its worker has refused."""
        from distributed import KilledWorker

        try:
            back = future.result()
        except KilledWorker:
            lost.append(spec)
        except Unfit as refusal:
            self._refuse(refusal)
            return True
        except CancelledError:
            raise self._lost(WENT_AWAY) from None
        except Exception as error:  # as of a worker that came without this project
            fault = f"has a worker that fails ({type(error).__name__}: {error})"
            raise self._lost(fault) from error
        else:
            self._take(spec, back)
        return False

    def _able(self) -> list[str]:
        return [
            worker for worker, facts in _workers(self.client).items()
            if worker not in self._refused and _offers(facts, self.place.device)
        ]

    def _refuse(self, refusal: Unfit) -> None:
        worker, fault = refusal.args
        self._refused.add(worker)
        self._say(f"the worker {worker} {fault}: it was given no runs")
        if not self._able():
            raise NoCluster(f"the worker {worker} {fault}")

    def _take(self, spec: RunSpec, back: _Back) -> None:
        self.done.outcomes[spec.digest()] = back.outcome
        for fault in back.faults:
            self._say(f"on the worker {back.worker}: {fault}")
        if back.trained is not None and self.store.result(spec) is None:
            self.store.keep(spec, back.trained, load(back.weights), back.made)
            self.store.keep_scores(spec, {**self.store.scores(spec), **back.scores})
            if back.measured:
                self.store.keep_measured(spec, {**back.measured, **self.store.measured(spec)})
            if (kept := self.store.unstored(spec)) is not None:
                self.done.unstored[spec.digest()] = kept
        for fault in self.store.faults:
            self._say(fault)
        self.report(spec, spec.steps, None)

    def _say(self, sentence: str) -> None:
        if sentence not in self.done.faults:
            self.done.faults.append(sentence)

    def _lost(self, what: str) -> NoCluster:
        return NoCluster(
            f"the Dask scheduler {_address(self.client)} {what}; {len(self.done.outcomes)} "
            "runs had ended and are kept, and the same command goes on from them"
        )


# ---- what travels --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sent:
    """What all runs of a sweep share, sent to each worker once."""

    parcel: Parcel
    device: str
    ids: bytes | None
    versions: dict[str, str]

    @classmethod
    def of(cls, parcel: Parcel, device: str, ids: Tensor | None) -> _Sent:
        body = None if ids is None else dump(ids.to(torch.int32))
        return cls(parcel, device, body, versions())


@dataclass(frozen=True)
class _Begun:
    """What the client's store has of a run already: a checkpoint, or weights without scores."""

    checkpoint: bytes | None = None
    trained: RunResult | None = None
    weights: bytes = b""

    @classmethod
    def of(cls, store: RunStore, spec: RunSpec) -> _Begun:
        trained, weights = store.trained(spec), store.weights(spec)
        if trained is not None and weights is not None:
            return cls(None, trained, dump(weights))
        checkpoint = store.checkpoint(spec)
        return cls(None if checkpoint is None else dump(checkpoint))

    def put_into(self, store: RunStore, spec: RunSpec) -> None:
        if store.trained(spec) is not None:
            return
        if self.trained is not None:
            store.keep(spec, self.trained, load(self.weights))
        if self.checkpoint is not None:
            state, there = load(self.checkpoint), store.checkpoint(spec)
            if there is None or there["step"] < state["step"]:
                store.keep_checkpoint(spec, state)


@dataclass(frozen=True)
class _Back:
    """What a worker returns of a run: all that the client's store keeps.

    weights    as bytes, by `dump`
    made       facts of the machine
    """

    worker: str
    outcome: Outcome
    trained: RunResult | None
    weights: bytes
    scores: dict[Evaluation, Score]
    measured: dict[str, Any]
    made: dict[str, Any]
    faults: list[str]


class Unfit(Exception):
    """(worker, why it cannot do runs of this client)"""


# ---- on a worker ---------------------------------------------------------------------------------


@cache
def versions() -> dict[str, str]:
    """What the result of a run depends on beside the implementation, as this process has it."""
    code = hashlib.sha256()
    for room in ROOMS:
        for path in sorted((paths.CLAIMS / room).rglob("*.py")):
            code.update(f"{path.relative_to(paths.CLAIMS).as_posix()}\0".encode())
            code.update(path.read_bytes())
    try:
        version = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:  # from a checkout that is not installed
        version = "not installed"
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        DISTRIBUTION: f"{version} (source {code.hexdigest()[:8]})",
    }


def unfit(client: Mapping[str, str], device: str) -> str:
    """Why this process cannot do runs of a client with those versions; empty when it can."""
    own = versions()
    differing = [
        f"{name} {own[name]} (here {version})"
        for name, version in client.items() if own[name] != version
    ]
    if differing:
        return f"has {', '.join(differing)}; its results would be those of other versions"
    if device == "cuda" and (fault := machine.gpu_fault()):
        return f"offers a GPU that it cannot use: {fault}"
    return ""


def _thread_fault(threads: int) -> str:
    if threads == 1:
        return ""
    return (
        f"has {threads} threads, and a run needs a process of its own: start it with --nthreads 1 "
        "(and --nworkers for more processes)"
    )


# What was sent last, by which this process has unpacked it.
_ready: dict[bytes, tuple[_Sent, Implementation, Tensor | None]] = {}


def _one(body: bytes, spec: RunSpec, begun: _Begun) -> _Back:
    """Raises Unfit."""
    from distributed import get_worker

    worker = get_worker()
    sent, implementation, ids = _unpacked(body, worker.address, worker.state.nthreads)
    settle_process()
    digest = spec.digest()
    store = RunStore(cache_dir() / "runs", sent.parcel.digest, sent.device)
    begun.put_into(store, spec)

    def report(step: int, loss: float) -> None:
        worker.log_event(TOPIC, (digest, step, loss))

    outcome = outcome_of(implementation, spec, store, ids, report=report)
    trained, weights = store.trained(spec), store.weights(spec)
    scores = store.scores(spec)
    if isinstance(outcome, RunResult):
        scores |= dict(zip(spec.evaluations, outcome.scores, strict=True))
    return _Back(
        worker.address, outcome, trained, b"" if weights is None else dump(weights), scores,
        store.measured(spec), made_here(), store.faults,
    )


def _unpacked(
    body: bytes, worker: str, threads: int
) -> tuple[_Sent, Implementation, Tensor | None]:
    if body not in _ready:
        _ready.clear()
        sent: _Sent = pickle.loads(body)
        if fault := unfit(sent.versions, sent.device) or _thread_fault(threads):
            raise Unfit(worker, fault)
        try:
            implementation = unpack(sent.parcel)
        except CannotTravel as error:
            raise Unfit(worker, f"cannot use what it was sent: {error}") from error
        ids = None if sent.ids is None else load(sent.ids).long()
        _ready[body] = sent, implementation, ids
    return _ready[body]
