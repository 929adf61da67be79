"""Many runs: what the store has is taken, the rest is done on all cores, each run once."""

from __future__ import annotations

import os
import queue
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from claims.harness.implementation import Implementation
from claims.instruments.training.obtain import run, settle_process
from claims.instruments.training.spec import RunResult, RunSpec, Text
from claims.instruments.training.store import Busy, RunStore, Weights


@dataclass(frozen=True)
class Failure:
    """A run that raised: the package under test could not be trained."""

    sentence: str
    details: str


Outcome = RunResult | Failure
# (label, step, steps, loss) now and then, while a run goes on; steps done == steps at its end.
Report = Callable[[str, int, int, float], None]


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
    words += [f"{m.norm}-norm"] if m.norm != "none" else []
    words += [m.positions] if m.positions != "none" else []
    words += [] if m.divided else ["undivided"]
    return f"{', '.join(words)}, seed {spec.seed}"


def do_all(
    specs: Sequence[RunSpec], place: Place, ids: Tensor | None, workers: int, report: Report
) -> tuple[dict[str, Outcome], dict[str, tuple[RunResult, Weights]], list[str]]:
    """Train what is missing of `specs`, each in a process with one thread.

    Returns the outcome by digest; what the store could not take, by digest; and what went wrong
    with the store, in sentences.
    """
    outcomes: dict[str, Outcome] = {}
    unstored: dict[str, tuple[RunResult, Weights]] = {}
    faults: list[str] = []
    context = get_context("spawn")
    messages = context.Queue()
    settings = (place, None if ids is None else ids.numpy(), messages)
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_begin, initargs=settings
    ) as pool:
        pending: dict[Future[Any], RunSpec] = {pool.submit(_one, spec): spec for spec in specs}
        try:
            while pending:
                done, _ = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                for message in _drained(messages):
                    report(*message)
                for future in done:
                    spec = pending.pop(future)
                    outcome, kept, said = future.result()
                    outcomes[spec.digest()] = outcome
                    faults += [sentence for sentence in said if sentence not in faults]
                    if kept is not None:
                        unstored[spec.digest()] = kept
                    report(name_of(spec), spec.steps, spec.steps, 0.0)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list((pool._processes or {}).values()):
                process.terminate()
            raise
    return outcomes, unstored, faults


def do_here(
    specs: Sequence[RunSpec], place: Place, ids: Tensor | None
) -> tuple[dict[str, Outcome], dict[str, tuple[RunResult, Weights]], list[str]]:
    """The same in this process, one after another, leaving to other processes what they are at."""
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
    return outcomes, unstored, store.faults


# ---- in a worker process ---------------------------------------------------------------------

_worker: dict[str, Any] = {}


def _begin(place: Place, ids: Any, messages: Any) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    settle_process()
    _worker.update(
        place=place, implementation=Implementation(place.package), store=place.store(),
        ids=None if ids is None else torch.from_numpy(ids), messages=messages,
    )


def _end_with_parent() -> None:
    """A parent that is killed shuts no pool down: nobody would read what is trained here."""
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


def _one(spec: RunSpec) -> tuple[Outcome, tuple[RunResult, Weights] | None, list[str]]:
    store: RunStore = _worker["store"]

    def report(step: int, loss: float) -> None:
        _worker["messages"].put((name_of(spec), step, spec.steps, loss))

    outcome = _outcome(_worker["implementation"], spec, store, _worker["ids"], report=report)
    return outcome, store.unstored(spec), store.faults


def _outcome(
    implementation: Implementation, spec: RunSpec, store: RunStore, ids: Tensor | None,
    report: Callable[[int, float], None] = lambda step, loss: None, wait: bool = True,
) -> Outcome:
    try:
        return run(implementation, spec, store, ids, report=report, wait=wait)
    except Busy:
        raise
    except Exception as error:  # whatever a package under test raises is its claims' failure
        sentence = f"{name_of(spec)} cannot be trained: {type(error).__name__}: {error}"
        return Failure(sentence, traceback.format_exc())


def _drained(messages: Any) -> Iterator[tuple[str, int, int, float]]:
    while True:
        try:
            yield messages.get_nowait()
        except queue.Empty:
            return
