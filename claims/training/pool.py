"""Many runs: the store's are taken from it, the others are trained on all cores, each once."""

from __future__ import annotations

import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from claims.harness import paths
from claims.harness.implementation import Implementation, Missing
from claims.training.run import run, settle_process
from claims.training.spec import RunResult, RunSpec, Text
from claims.training.store import Busy, RunStore, Weights, dump, load


@dataclass(frozen=True)
class Failure:
    """A run that raised: the package under test could not be trained.

    lacking    the package lacks a name that the run needs, so that its claims are not run
    """

    sentence: str
    details: str = ""
    lacking: bool = False


Outcome = RunResult | Failure
# (run, steps done, loss) now and then while a run goes on; its end has no loss.
Report = Callable[[RunSpec, int, float | None], None]


@dataclass(frozen=True)
class Place:
    """Where runs come from and go to."""

    folder: Path
    package: str
    device: str = "cpu"

    def store(self) -> RunStore:
        return RunStore(self.folder, Implementation(self.package).source_digest(), self.device)


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def merged(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """Each training once, with every evaluation that is asked of it, the longest first."""
    found: dict[str, RunSpec] = {}
    for spec in specs:
        other = found.setdefault(spec.digest(), spec)
        both = tuple(dict.fromkeys(other.evaluations + spec.evaluations))
        found[spec.digest()] = replace(other, evaluations=both)
    return sorted(found.values(), key=cost, reverse=True)


def cost(spec: RunSpec) -> float:
    """About how long a run takes, in arbitrary units: to start the long ones first."""
    model = spec.model
    width = model.d_model * (1 + model.n_blocks * (12 if model.feed_forward else 4))
    length = spec.data.length if isinstance(spec.data, Text) else 18
    return spec.steps * spec.batch * length * (width + model.vocabulary)


def name_of(spec: RunSpec) -> str:
    """A run in a few words, for people."""
    m = spec.model
    words = [f"{m.n_blocks} x {m.mixer}" if m.n_blocks else "no block", f"width {m.d_model}"]
    words += [f"head width {m.d_head}"] if m.d_head else []
    words += [] if m.residual else ["not added"]
    words += [f"{m.norm}-norm"] if m.norm != "none" else []
    words += [m.positions] if m.positions != "none" else []
    words += [] if m.scaled else ["unscaled"]
    words += [] if spec.causal else ["no mask"]
    words += [f"fixed {', '.join(spec.fixed)}"] if spec.fixed else []
    words += [f"warmup {spec.warmup}"] if spec.warmup else []
    return f"{', '.join(words)}, seed {spec.seed}"


@dataclass
class Done:
    """The outcomes of runs, by digest; the results that could not be stored, by digest; and every
    fault of the store, in a sentence.
    """

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    unstored: dict[str, tuple[RunResult, Weights]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def do_all(
    specs: Sequence[RunSpec], place: Place, ids: Tensor | None, workers: int, report: Report
) -> Done:
    """Train what is missing of `specs`, each in a process with one thread."""
    with Pool(place, ids, workers) as pool:
        return pool.do_all(specs, report)


class Pool:
    """Processes of one thread each, which train one run after another until the pool is closed.

    A process is started when a run finds none idle: it needs seconds to import torch.
    """

    def __init__(self, place: Place, ids: Tensor | None, workers: int) -> None:
        """`ids` are the tokens (N,) of the text, for runs on text."""
        self.place, self.ids = place, ids
        self._workers = workers
        self._executor: ProcessPoolExecutor | None = None
        self._messages: Any = None

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None

    def do_all(self, specs: Sequence[RunSpec], report: Report) -> Done:
        """Train what is missing of `specs`."""
        done = Done()
        retry_alone(specs, lambda some: self._do(some, report, done), done, report)
        return done

    def _do(self, specs: Sequence[RunSpec], report: Report, into: Done) -> list[RunSpec]:
        """Returns the runs that a dying process took with it."""
        lost: list[RunSpec] = []
        pending: dict[Future[Any], RunSpec] = {}
        # What has ended since the last look: to wait for all of many runs would take a look at each
        # of them for every one that ends.
        ended: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        running: set[str] = set()
        try:
            for spec in specs:
                try:
                    future = self._started().submit(_one, spec)
                except BrokenProcessPool:
                    lost.append(spec)
                    continue
                pending[future] = spec
                running.add(spec.digest())
                future.add_done_callback(ended.put)
            while pending:
                futures = [*_drained(ended, wait=0.2)]
                for spec, step, loss in _drained(self._messages):
                    if spec.digest() in running:  # the last of an earlier run may come late
                        report(spec, step, loss)
                for future in futures:
                    spec = pending.pop(future)
                    running.remove(spec.digest())
                    try:
                        outcome, kept, said = future.result()
                    except BrokenProcessPool:
                        lost.append(spec)
                        continue
                    into.outcomes[spec.digest()] = outcome
                    into.faults += [sentence for sentence in said if sentence not in into.faults]
                    if kept is not None:
                        into.unstored[spec.digest()] = (kept[0], load(kept[1]))
                    report(spec, spec.steps, None)
        except BaseException:
            # Ctrl-C must not wait for the runs in progress; the pool has no public way to end them.
            executor = self._started()
            for process in list((executor._processes or {}).values()):
                process.terminate()
            executor.shutdown(cancel_futures=True)
            self._executor = None
            raise
        if lost:
            self.close()  # it takes no more runs
        return lost

    def _started(self) -> ProcessPoolExecutor:
        if self._executor is None:
            context = get_context("spawn")
            ids = None if self.ids is None else self.ids.numpy()
            # With each executor: a process that was killed may hold the lock of the queue.
            self._messages = context.Queue()
            self._executor = ProcessPoolExecutor(
                self._workers, mp_context=context, initializer=_begin,
                initargs=(self.place, ids, self._messages),
            )
        return self._executor


def retry_alone(
    specs: Sequence[RunSpec], do: Callable[[Sequence[RunSpec]], list[RunSpec]], done: Done,
    report: Report,
) -> None:
    """`do` the runs; it returns those that were lost with their processes.

    A process that dies may take other runs with it. Each is then tried alone, so that the one that
    kills its process is told from its neighbours.
    """
    for spec in do(specs):
        if do([spec]):
            done.outcomes[spec.digest()] = Failure(
                f"{name_of(spec)} cannot be trained: its process died each time. Most often the "
                "system has ended it for want of memory"
            )
            report(spec, spec.steps, None)


def do_here(
    specs: Sequence[RunSpec], place: Place, ids: Tensor | None
) -> Done:
    """The same in this process, one after another; a run of another process is left to it."""
    store = place.store()
    implementation = Implementation(place.package)
    outcomes: dict[str, Outcome] = {}
    for patient in (False, True):
        for spec in specs:
            if spec.digest() in outcomes:
                continue
            try:
                outcomes[spec.digest()] = outcome_of(implementation, spec, store, ids, wait=patient)
            except Busy:
                continue
    unstored = {s.digest(): kept for s in specs if (kept := store.unstored(s)) is not None}
    return Done(outcomes, unstored, store.faults)


# ---- in a worker process ---------------------------------------------------------------------

_worker: dict[str, Any] = {}


def _begin(place: Place, ids: Any, messages: Any) -> None:
    # Ctrl-C goes to every process of a terminal; the one that started this one decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    messages.cancel_join_thread()
    settle_process()
    _worker.update(
        place=place, implementation=Implementation(place.package), store=place.store(),
        ids=None if ids is None else torch.from_numpy(ids), messages=messages,
    )


def _end_with_parent() -> None:
    """End when the parent process ends: no run continues after its session was killed."""
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


def _one(spec: RunSpec) -> tuple[Outcome, tuple[RunResult, bytes] | None, list[str]]:
    store: RunStore = _worker["store"]

    def report(step: int, loss: float) -> None:
        _worker["messages"].put((spec, step, loss))

    outcome = outcome_of(_worker["implementation"], spec, store, _worker["ids"], report=report)
    kept = store.unstored(spec)
    # As bytes: tensors would be handed over in shared memory, which lives as long as this process.
    return outcome, None if kept is None else (kept[0], dump(kept[1])), store.faults


def outcome_of(
    implementation: Implementation, spec: RunSpec, store: RunStore, ids: Tensor | None,
    report: Callable[[int, float], None] = lambda step, loss: None, wait: bool = True,
) -> Outcome:
    try:
        return run(implementation, spec, store, ids, report=report, wait=wait)
    except Busy:
        raise
    except Missing as lack:
        return Failure(str(lack), lacking=True)
    except Exception as error:  # whatever a package under test raises is its claims' failure
        if implementation.package != paths.REFERENCE:
            return _failure_of(implementation.package, spec, error)
        sentence = f"{name_of(spec)} cannot be trained: {type(error).__name__}: {error}"
        return Failure(sentence, traceback.format_exc())


def _failure_of(package: str, spec: RunSpec, error: Exception) -> Failure:
    """What somebody else's package lacks, or the call and the line where it breaks."""
    from claims.harness import foreign  # with pytest, which trains nothing

    meaning = foreign.meaning(error, package)
    if isinstance(meaning, Missing):
        return Failure(str(meaning), lacking=True)
    return Failure(f"{meaning} (training {name_of(spec)})", traceback.format_exc())


def _drained(messages: Any, wait: float = 0.0) -> Iterator[Any]:
    """What a queue holds, once it holds something or `wait` seconds have passed."""
    try:
        if wait:
            yield messages.get(timeout=wait)
        while True:
            yield messages.get_nowait()
    except queue.Empty:
        return
