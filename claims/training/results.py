"""The results of a claim's runs, by label and seed: trained in this session, or of the record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from claims.harness import paths
from claims.harness.implementation import Implementation, Missing
from claims.harness.layout import Broken
from claims.harness.per_seed import PerSeed
from claims.training.evidence import Evidence, Record
from claims.training.experiment import Experiment
from claims.training.measurement import Measurement
from claims.training.pool import Failure, Outcome
from claims.training.run import trained_model
from claims.training.spec import Evaluation, RunResult, RunSpec
from claims.training.store import RunStore

T = TypeVar("T")


class RunFailed(Broken):
    """The package under test could not be trained."""


class Source(Protocol):
    """Where the results of runs come from."""

    def result(self, spec: RunSpec) -> RunResult: ...

    def measured(self, spec: RunSpec, measurement: Measurement[T]) -> T: ...

    def has(self, spec: RunSpec) -> bool:
        """False for a run that has never been made; one that failed is there."""

    def words(self, spec: RunSpec) -> str:
        """Where the result is from, for the report; empty for a run of this session."""


@dataclass
class Gathered:
    """What was trained for this session, or found in the run store of a device."""

    store: RunStore
    implementation: Implementation
    # Digest -> the run with all evaluations that were asked of it, and what it came to.
    outcomes: dict[str, tuple[RunSpec, Outcome]] = field(default_factory=dict)

    def result(self, spec: RunSpec) -> RunResult:
        """Raises RunFailed, or Missing where the package lacks what the run needs."""
        __tracebackhide__ = True
        merged, outcome = self.outcomes[spec.digest()]
        if isinstance(outcome, Failure):
            if outcome.lacking:
                raise Missing(outcome.sentence)
            raise RunFailed(f"{outcome.sentence}\n{outcome.details}".strip())
        if outcome.failed_at is not None and self.implementation.package != paths.REFERENCE:
            raise Missing(
                f"the loss of {self.implementation.package} is not finite at step "
                f"{outcome.failed_at} of training"
            )
        # Evaluations of the same training that other claims asked for are left aside.
        scores = dict(zip(merged.evaluations, outcome.scores, strict=True))
        return replace(outcome, scores=tuple(scores[asked] for asked in spec.evaluations))

    def measured(self, spec: RunSpec, measurement: Measurement[T]) -> T:
        """What was measured on the run's model; measured once, and kept with the run."""
        self.result(spec)
        kept = self.store.measured(spec)
        if measurement.name not in kept:
            model = trained_model(self.implementation, spec, self.store, "cpu")
            kept[measurement.name] = measurement.to_json(measurement.measure(spec, model))
            self.store.keep_measured(spec, kept)
        return measurement.from_json(kept[measurement.name])

    def has(self, spec: RunSpec) -> bool:
        return True

    def words(self, spec: RunSpec) -> str:
        return ""


@dataclass(frozen=True)
class Recorded:
    """Runs of the record."""

    record: Record

    def result(self, spec: RunSpec) -> RunResult:
        """Raises Missing where the record has no such run of this implementation."""
        evidence = self._find(spec)
        scores = dict(zip(evidence.spec.evaluations, evidence.result.scores, strict=True))
        return replace(evidence.result, scores=tuple(scores[asked] for asked in spec.evaluations))

    def measured(self, spec: RunSpec, measurement: Measurement[T]) -> T:
        """Raises Missing also where the record lacks that measurement."""
        measured = self._find(spec).measured
        if measurement.name not in measured:
            raise Missing(f"the record has not measured {measurement.name}")
        return measurement.from_json(measured[measurement.name])

    def has(self, spec: RunSpec) -> bool:
        return self.record.has(spec)

    def words(self, spec: RunSpec) -> str:
        return self._find(spec).source

    def _find(self, spec: RunSpec) -> Evidence:
        found = self.record.find(spec)
        if isinstance(found, str):
            raise Missing(found)
        return found


class Runs:
    """The `runs` fixture: the results of a claim's experiment, one per seed and label."""

    def __init__(
        self, experiment: Experiment, labels: Sequence[str], first: int, corpus: str,
        source: Source, look: int | None = None,
    ) -> None:
        """`look` is the number of seeds that are there so far; by default all are."""
        self._look = experiment.seeds if look is None else look
        self._experiment, self._labels = experiment, labels
        self._first, self._corpus = first, corpus
        self._source = source
        self._made_alone = False

    @property
    def seeds(self) -> list[int]:
        return [self._first + i for i in range(self._look)]

    @property
    def complete(self) -> bool:
        """False while some of the experiment's seeds have not been asked for."""
        return self._look == self._experiment.seeds

    def look_further(self) -> None:
        """Take the seeds of the next look."""
        self._look = min(look for look in self._experiment.looks if look > self._look)

    def made(self) -> Runs:
        """The same, of the seeds alone whose runs have been made; a label may have none."""
        made = copy(self)
        made._made_alone = True
        return made

    def specs(self, label: str) -> list[RunSpec]:
        """The specifications of one label, by seed."""
        if label not in self._labels:
            raise ValueError(f"the claim declares {', '.join(self._labels)}; it asks for '{label}'")
        runs = self._experiment.of(label, self._first)[: self._look]
        specs = [spec.on(self._corpus) for spec in runs]
        return [spec for spec in specs if not self._made_alone or self._source.has(spec)]

    def results(self, label: str) -> PerSeed[RunResult]:
        """The results of one label, by seed. Raises RunFailed, Missing."""
        return self._per_seed(label, map(self._source.result, self.specs(label)))

    def perplexities(self, label: str, evaluation: Evaluation | None = None) -> PerSeed[float]:
        """The perplexity after training, by seed; by default of the first evaluation declared.

        Raises ValueError for an evaluation that the run does not have; RunFailed, Missing.
        """
        values = []
        for spec, result in zip(self.specs(label), self.results(label), strict=True):
            asked = spec.evaluations[0] if evaluation is None and spec.evaluations else evaluation
            scores = dict(zip(spec.evaluations, result.scores, strict=True))
            if asked not in scores:
                raise ValueError(f"the run '{label}' has the evaluations {[*scores]}, not {asked}")
            values.append(scores[asked].perplexity)
        return self._per_seed(label, values)

    def measured(self, label: str, measurement: Measurement[T]) -> PerSeed[T]:
        """What was measured on the trained models of one label, by seed."""
        values = [self._source.measured(spec, measurement) for spec in self.specs(label)]
        return self._per_seed(label, values)

    def _per_seed(self, label: str, values: Iterable[T]) -> PerSeed[T]:
        listed = list(values)
        specs = self.specs(label)
        sources = dict.fromkeys(map(self._source.words, specs))
        seeds = [spec.seed for spec in specs]
        source = "; ".join(filter(None, sources))
        return PerSeed(seeds, listed, source, len(self._experiment.looks))
