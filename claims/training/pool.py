"""Many runs: the store's are taken from it, the others are trained on all cores, each once."""

from __future__ import annotations

import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
    done = Done()
    # When a worker dies, the pool gives up every run that it has. Each is then tried alone, so that
    # the one that kills its process is told from its neighbours.
    for spec in _pooled(specs, place, ids, workers, report, done):
        if _pooled([spec], place, ids, 1, report, done):
            done.outcomes[spec.digest()] = Failure(
                f"{name_of(spec)} cannot be trained: its process died, twice. Most often the "
                "system has ended it for want of memory"
            )
            report(spec, spec.steps, None)
    return done


def _pooled(
    specs: Sequence[RunSpec], place: Place, ids: Tensor | None, workers: int, report: Report,
    into: Done,
) -> list[RunSpec]:
    """Do the runs in a pool of processes; returns those that a dying process took with it."""
    lost: list[RunSpec] = []
    context = get_context("spawn")
    messages = context.Queue()
    settings = (place, None if ids is None else ids.numpy(), messages)
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_begin, initargs=settings
    ) as pool:
        try:
            pending: dict[Future[Any], RunSpec] = {}
            for spec in specs:
                try:
                    pending[pool.submit(_one, spec)] = spec
                except BrokenProcessPool:
                    lost.append(spec)
            while pending:
                ended, _ = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                for message in _drained(messages):
                    report(*message)
                for future in ended:
                    spec = pending.pop(future)
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
            for process in list((pool._processes or {}).values()):
                process.terminate()
            pool.shutdown(cancel_futures=True)
            raise
    return lost


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
                outcomes[spec.digest()] = _outcome(implementation, spec, store, ids, wait=patient)
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

    outcome = _outcome(_worker["implementation"], spec, store, _worker["ids"], report=report)
    kept = store.unstored(spec)
    # As bytes: tensors would be handed over in shared memory, which lives as long as this process.
    return outcome, None if kept is None else (kept[0], dump(kept[1])), store.faults


def _outcome(
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
        sentence = f"{name_of(spec)} cannot be trained: {type(error).__name__}: {error}"
        return Failure(sentence, traceback.format_exc())


def _drained(messages: Any) -> Iterator[tuple[RunSpec, int, float]]:
    while True:
        try:
            yield messages.get_nowait()
        except queue.Empty:
            return
