"""The run store: no run is trained twice.

An entry is found by its content: the specification, the source of the implementation, the torch
version and the device. Its files are sealed, so that a kill at any moment leaves an older file or
none. What cannot be written or read costs a sentence and time, never a wrong result.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from claims.harness.files import CACHE_VARIABLE, PART
from claims.training import sealed
from claims.training.evaluation import EVALUATION_FORMAT
from claims.training.measurement import MEASUREMENT_FORMAT
from claims.training.spec import Evaluation, RunResult, RunSpec, Score

RESULT, WEIGHTS, CHECKPOINT = "result.json", "weights", "checkpoint"
SCORES, MEASURED = "scores.json", "measured.json"
LOCK = ".lock"
Weights = dict[str, Tensor]


class RunStoreWarning(UserWarning):
    """A run could not be kept, or is damaged in the store. It is trained again; nothing is lost."""


class Busy(Exception):
    """Another process is at this run."""


class RunStore:
    """Runs of one implementation on one kind of device, in a folder shared by all."""

    def __init__(self, folder: Path, source: str, device: str = "cpu") -> None:
        """`source` is a digest of the implementation's source."""
        self.folder = folder
        self.device = device
        self.faults: list[str] = []
        self._source = source
        self._kept: dict[str, tuple[RunResult, Weights]] = {}

    def key(self, spec: RunSpec) -> str:
        facts = [spec.digest(), self._source, torch.__version__, self.device]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:40]

    def entry(self, spec: RunSpec) -> Path:
        return self.folder / self.key(spec)

    # ---- what is there -------------------------------------------------------------------------

    def result(self, spec: RunSpec) -> RunResult | None:
        """The result with the scores of the specification's evaluations, if all of it is there."""
        result = self.trained(spec)
        if result is None:
            return None
        scores = self.scores(spec)
        if not all(evaluation in scores for evaluation in spec.evaluations):
            return None
        return replace(result, scores=tuple(scores[e] for e in spec.evaluations))

    def trained(self, spec: RunSpec) -> RunResult | None:
        """The result without scores, where the weights are there too."""
        if (kept := self._kept.get(self.key(spec))) is not None:
            return kept[0]
        body = self._read(self.entry(spec) / RESULT)
        # Damaged weights are noticed now, not by the claim that asks for the model.
        if body is None or self._read(self.entry(spec) / WEIGHTS) is None:
            return None
        return RunResult.from_json(json.loads(body)["result"])

    def unstored(self, spec: RunSpec) -> tuple[RunResult, Weights] | None:
        """What this process trained and could not write."""
        return self._kept.get(self.key(spec))

    def weights(self, spec: RunSpec) -> Weights | None:
        if (kept := self._kept.get(self.key(spec))) is not None:
            return kept[1]
        body = self._read(self.entry(spec) / WEIGHTS)
        return None if body is None else load(body)

    def scores(self, spec: RunSpec) -> dict[Evaluation, Score]:
        body = self._read(self.entry(spec) / SCORES)
        stored = [] if body is None else json.loads(body)
        return {
            Evaluation(**each["evaluation"]): Score(**each["score"])
            for each in stored
            if each["format"] == EVALUATION_FORMAT
        }

    def measured(self, spec: RunSpec) -> dict[str, Any]:
        """What was measured on the run's weights: name -> value, as JSON has it."""
        body = self._read(self.entry(spec) / MEASURED)
        stored: dict[str, Any] = {} if body is None else json.loads(body)
        return stored["values"] if stored.get("format") == MEASUREMENT_FORMAT else {}

    def checkpoint(self, spec: RunSpec) -> dict[str, Any] | None:
        body = self._read(self.entry(spec) / CHECKPOINT)
        return None if body is None else load(body)

    # ---- what is put there ---------------------------------------------------------------------

    def keep(
        self, spec: RunSpec, result: RunResult, weights: Weights,
        made: dict[str, Any] | None = None,
    ) -> None:
        """Keep a trained run; in memory where the folder does not take it.

        `made` has the facts of the machine on which it was trained, by default of this one.
        """
        facts = {
            "spec": spec.to_json(), "result": result.to_json(), "torch": torch.__version__,
            "device": self.device, **(made or made_here()),
            "finished": datetime.now(UTC).isoformat("T", "seconds"),
        }
        entry = self.entry(spec)
        # The result is written last: a run with a result has its weights.
        stored = self._write(entry / WEIGHTS, dump(weights)) and self._write(
            entry / RESULT, json.dumps(facts, indent=1).encode()
        )
        if not stored:
            self.hold(spec, result, weights)
        with suppress(OSError):  # left behind, it is not looked at: the result is
            (entry / CHECKPOINT).unlink()

    def hold(self, spec: RunSpec, result: RunResult, weights: Weights) -> None:
        """Keep a trained run in memory."""
        self._kept[self.key(spec)] = (result, weights)

    def keep_scores(self, spec: RunSpec, scores: dict[Evaluation, Score]) -> None:
        rows = [
            {"evaluation": asdict(e), "score": asdict(s), "format": EVALUATION_FORMAT}
            for e, s in scores.items()
        ]
        self._write(self.entry(spec) / SCORES, json.dumps(rows, indent=1).encode())

    def keep_measured(self, spec: RunSpec, values: dict[str, Any]) -> None:
        facts = {"format": MEASUREMENT_FORMAT, "values": values}
        self._write(self.entry(spec) / MEASURED, json.dumps(facts).encode())

    def keep_checkpoint(self, spec: RunSpec, state: dict[str, Any]) -> None:
        self._write(self.entry(spec) / CHECKPOINT, dump(state))

    @contextmanager
    def lock(self, spec: RunSpec, wait: bool = True) -> Iterator[None]:
        """Only one process at a time is at a run. The system frees the lock when that process ends.

        Raises:
            Busy: another process has it, and `wait` is False.
        """
        lock = FileLock(self.folder / f"{self.key(spec)}{LOCK}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=-1 if wait else 0)
        except Timeout:
            raise Busy from None
        except (OSError, NotImplementedError) as error:  # the latter: a file system without locks
            self._fault(f"the run store {self.folder} takes no lock ({_reason(error)})")
        else:
            with suppress(OSError):
                for part in self.entry(spec).glob(f"*{PART}"):
                    part.unlink()
        try:
            yield
        finally:
            lock.release()

    # ---- files ---------------------------------------------------------------------------------

    def _read(self, path: Path) -> bytes | None:
        try:
            return sealed.read(path)
        except sealed.TornFile:
            self._fault(f"{path} is damaged; what it held is made again")
        except OSError as error:
            self._fault(f"{path} cannot be read ({_reason(error)}); what it holds is made again")
        return None

    def _write(self, path: Path, body: bytes) -> bool:
        try:
            sealed.write(path, body)
        except OSError as error:
            self._fault(
                f"the run store {self.folder} cannot be written ({_reason(error)}): runs are not "
                f"kept; the environment variable {CACHE_VARIABLE} names another cache"
            )
            return False
        return True

    def _fault(self, sentence: str) -> None:
        if sentence not in self.faults:
            self.faults.append(sentence)


def made_here() -> dict[str, Any]:
    """The facts of this machine that are kept with a run."""
    return {"machine": platform.machine(), "threads": torch.get_num_threads()}


@dataclass(frozen=True)
class Listed:
    """One entry of the store, for people."""

    key: str
    state: str
    spec: dict[str, Any] | None
    finished: str
    seconds: float
    size: int
    age: float

    @property
    def done(self) -> bool:
        return self.state == "done"


def listed(folder: Path) -> list[Listed]:
    """What the store holds, oldest first."""
    entries = [path for path in folder.glob("*") if path.is_dir()]
    return sorted((_listed(path) for path in entries), key=lambda each: -each.age)


def _listed(path: Path) -> Listed:
    stats = []
    for file in (path, *path.iterdir()):
        with suppress(FileNotFoundError):  # a process at the entry has moved it into its place
            stats.append(file.stat())
    size = sum(each.st_size for each in stats[1:])
    age = time.time() - max(each.st_mtime for each in stats)
    rest = Listed(path.name, "unfinished", None, "", 0.0, size, age)
    if path.name.startswith("."):
        return replace(rest, state="half removed")
    try:
        bodies = [sealed.read(path / name) for name in (RESULT, WEIGHTS)]
    except (sealed.TornFile, OSError):
        return replace(rest, state="damaged")
    if bodies[0] is None or bodies[1] is None:
        return rest
    facts = json.loads(bodies[0])
    seconds = facts["result"]["seconds"]
    return Listed(path.name, "done", facts["spec"], facts["finished"], seconds, size, age)


def remove(folder: Path, key: str) -> None:
    """Take an entry out with its lock, unless a process is at it. Raises Busy, OSError."""
    path = folder / f"{key}{LOCK}"
    try:
        with FileLock(path, timeout=0):
            # Renamed first: what is half removed must not look like an entry.
            gone = folder / f".{key.strip('.')}.{os.getpid()}"
            with suppress(FileNotFoundError):  # another process removed it meanwhile
                (folder / key).rename(gone)
                shutil.rmtree(gone)
            # Removed while it is held: a process that waits for it then makes a new one.
            path.unlink(missing_ok=True)
    except Timeout:
        raise Busy(key) from None


def remove_stray_locks(folder: Path) -> None:
    """Take out the locks of runs that have no entry, as a run that failed leaves them."""
    for path in folder.glob(f"*{LOCK}"):
        if not (folder / path.name.removesuffix(LOCK)).exists():
            with suppress(Busy):
                remove(folder, path.name.removesuffix(LOCK))


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def dump(value: Any) -> bytes:
    """Tensors and plain data, as `load` reads them."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def load(body: bytes) -> Any:
    """What was dumped, on the CPU."""
    return torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
