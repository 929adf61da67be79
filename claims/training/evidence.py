"""The record: what runs came to, without their weights, in small files that travel.

A file holds one run: its specification, its result with the scores of its evaluations, what was
measured on its weights, a probe of the implementation, and where, when and with what it was made.
A claim that is judged from the record says so. What is not of today is refused in words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from claims.harness.files import write_whole
from claims.training.evaluation import EVALUATION_FORMAT
from claims.training.loop import Implementation, build
from claims.training.measurement import MEASUREMENT_FORMAT
from claims.training.spec import TRAINING_FORMAT, RunResult, RunSpec

FORMATS = [TRAINING_FORMAT, EVALUATION_FORMAT, MEASUREMENT_FORMAT]
# Machines round differently: a probe of the same code was seen to differ by 1e-6 of itself.
PROBE_TOLERANCE = 1e-4


class EvidenceError(ValueError):
    """A file of the record cannot be used; the message names it."""


@dataclass(frozen=True)
class Evidence:
    """One run of the record.

    spec        with every evaluation that was scored, in the order of the result's scores
    measured    name of a measurement -> its value, as JSON has it
    probe       what `probe` gave for the implementation that was trained
    facts       where, when and with what it was made
    """

    spec: RunSpec
    result: RunResult
    measured: Mapping[str, Any]
    probe: Mapping[str, float]
    facts: Mapping[str, str]

    @property
    def source(self) -> str:
        """In words, for the report: the day, the device, and the precision."""
        date, device = self.facts["date"], self.facts["device"]
        return f"the record of {date}, {device}, {self.result.precision} products"

    def to_json(self) -> dict[str, Any]:
        return {
            "formats": FORMATS,
            "facts": dict(self.facts),
            "spec": self.spec.to_json(),
            "probe": dict(self.probe),
            "result": self.result.to_json(),
            "measured": dict(self.measured),
        }


def probe(implementation: Implementation, spec: RunSpec) -> dict[str, float]:
    """What an implementation computes at the start of a run: two packages with equal values are
    the same for it, whatever their source says.

    The sum of the magnitudes of the initial weights, the loss of one fixed batch, and the norm of
    its gradient.
    """
    model = build(implementation, spec)
    vocabulary, length = spec.model.vocabulary, min(spec.model.context, 16)
    tokens = (torch.arange(2 * (length + 1)) * 7919 % vocabulary).view(2, length + 1)
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    parameters = list(model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    gradients = torch.autograd.grad(loss, trained, allow_unused=True)
    squares = sum(float(g.double().square().sum()) for g in gradients if g is not None)
    return {
        "weights": sum(float(p.detach().double().abs().sum()) for p in parameters),
        "loss": float(loss.detach()),
        "gradient": float(squares**0.5),
    }


def read(path: Path) -> Evidence:
    """One file of the record.

    Raises:
        EvidenceError: it is no such file, or of another format than today's.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["formats"] != FORMATS:
            raise EvidenceError(
                f"{path} is of the formats {data['formats']} of training, evaluation and "
                f"measurement; today's are {FORMATS}"
            )
        return Evidence(
            RunSpec.from_json(data["spec"]), RunResult.from_json(data["result"]),
            data["measured"], data["probe"], data["facts"],
        )
    except OSError as error:
        raise EvidenceError(f"{path} cannot be read ({error.strerror})") from error
    except EvidenceError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise EvidenceError(f"{path} is no file of the record ({error})") from error


def file_name(evidence: Evidence, name: str) -> str:
    """A name for people, and enough of the digest to be unique."""
    words = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
    return f"{words}-{evidence.spec.digest()[:8]}.json"


@dataclass
class Merged:
    """What became of files that were merged into a folder."""

    new: int = 0
    known: int = 0
    conflicts: list[str] = field(default_factory=list)


def merge(runs: Iterable[tuple[str, Evidence]], folder: Path) -> Merged:
    """Add runs, each with a name for people, to a folder of the record.

    By content: a run that the folder has is left as it is, also where the other copy was made on
    another day; measurements that it lacks are added. A run of the same specification with another
    result is a conflict, which is told and never overwrites.
    """
    there = {}
    for path in sorted(folder.glob("*.json")):
        evidence = read(path)
        there[evidence.spec.digest()] = path, evidence
    merged = Merged()
    for name, evidence in runs:
        digest = evidence.spec.digest()
        path, kept = there.get(digest, (folder / file_name(evidence, name), None))
        if kept is None:
            merged.new += 1
        elif not _same(kept, evidence):
            merged.conflicts.append(f"{name}: {path.name} has another result, and is kept")
            continue
        else:
            merged.known += 1
            evidence = replace(kept, measured={**evidence.measured, **kept.measured})
        if evidence != kept:
            write_whole(path, json.dumps(evidence.to_json(), indent=1) + "\n")
            there[digest] = path, evidence
    return merged


def _same(one: Evidence, other: Evidence) -> bool:
    def plain(evidence: Evidence) -> RunResult:
        return replace(evidence.result, seconds=0.0)

    return plain(one) == plain(other) and one.spec == other.spec


class Record:
    """The runs of a folder of evidence, for one implementation."""

    def __init__(self, folders: Iterable[Path], implementation: Implementation) -> None:
        """Read all files. A file that is damaged or of another format is told in `faults`."""
        self.faults: list[str] = []
        self._implementation = implementation
        self._runs: dict[str, Evidence] = {}
        self._refused: dict[str, str] = {}
        self._probes: dict[tuple[object, ...], dict[str, float]] = {}
        for folder in folders:
            for path in sorted(folder.glob("*.json")):
                try:
                    evidence = read(path)
                except EvidenceError as error:
                    self.faults.append(f"{error}: not used")
                else:
                    self._runs.setdefault(_key(evidence.spec), evidence)

    def find(self, spec: RunSpec) -> Evidence | str:
        """The run of that specification, or why the record has none."""
        evidence = self._kept(spec)
        if isinstance(evidence, str):
            return evidence
        if (key := _key(spec)) not in self._refused:
            self._refused[key] = self._fault(evidence)
        return self._refused[key] or evidence

    def has(self, spec: RunSpec) -> bool:
        """Whether the run is there with its evaluations, of whatever implementation."""
        return not isinstance(self._kept(spec), str)

    def _kept(self, spec: RunSpec) -> Evidence | str:
        evidence = self._runs.get(_key(spec))
        if evidence is None:
            return "the record has no such run"
        if any(evaluation not in evidence.spec.evaluations for evaluation in spec.evaluations):
            return "the record has the run without all of its evaluations"
        return evidence

    def _fault(self, evidence: Evidence) -> str:
        spec = evidence.spec
        # What a probe depends on: runs that differ in the rest begin with the same model.
        start = (spec.model, spec.seed, spec.causal, spec.fixed)
        if start not in self._probes:
            self._probes[start] = probe(self._implementation, spec)
        now = self._probes[start]
        for name, then in evidence.probe.items():
            if not abs(now[name] - then) <= PROBE_TOLERANCE * abs(then):
                return (
                    f"the record is of another implementation: the {name} of a run before its "
                    f"first step came to {then:.6g}, today's comes to {now[name]:.6g}"
                )
        return ""


@cache
def _key(spec: RunSpec) -> str:
    """By which a run of the record is found. It is of Tiny Shakespeare, whatever text this session
    has.
    """
    return spec.on("").digest()
