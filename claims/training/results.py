"""The results of a claim's runs, by label and seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from claims.harness.implementation import Implementation, Missing
from claims.harness.per_seed import PerSeed
from claims.training.experiment import Experiment
from claims.training.pool import Failure, Outcome
from claims.training.run import trained_model
from claims.training.spec import Evaluation, RunResult, RunSpec
from claims.training.store import RunStore

T = TypeVar("T")


class RunFailed(Exception):
    """The package under test could not be trained."""


@dataclass
class Gathered:
    """What was trained or found for this session."""

    # (device, digest) -> the run with all evaluations that were asked of it, and what it came to.
    outcomes: dict[tuple[str, str], tuple[RunSpec, Outcome]] = field(default_factory=dict)
    stores: dict[str, RunStore] = field(default_factory=dict)  # device
    # (device, digest, what measures) -> what it measured on that run's model.
    measured: dict[tuple[str, str, Callable[..., Any]], Any] = field(default_factory=dict)


class Runs:
    """The `runs` fixture: the results of a claim's experiment, one per seed and label."""

    def __init__(
        self, experiment: Experiment, labels: Sequence[str], first: int, corpus: str,
        device: str, gathered: Gathered, implementation: Implementation,
    ) -> None:
        self.seeds = [first + i for i in range(experiment.seeds)]
        self.device = device
        self._experiment, self._labels = experiment, labels
        self._first, self._corpus = first, corpus
        self._gathered, self._implementation = gathered, implementation

    def specs(self, label: str) -> list[RunSpec]:
        """The specifications of one label, by seed."""
        if label not in self._labels:
            raise ValueError(f"the claim declares {', '.join(self._labels)}; it asks for '{label}'")
        return [spec.on(self._corpus) for spec in self._experiment.of(label, self._first)]

    def results(self, label: str) -> PerSeed[RunResult]:
        """The results of one label, by seed. Raises RunFailed."""
        return self._per_seed(map(self._result, self.specs(label)))

    def perplexities(self, label: str, evaluation: Evaluation | None = None) -> PerSeed[float]:
        """The perplexity after training, by seed; by default of the first evaluation declared.

        Raises ValueError for an evaluation that the run does not have, and RunFailed.
        """
        values = []
        for spec, result in zip(self.specs(label), self.results(label), strict=True):
            asked = spec.evaluations[0] if evaluation is None and spec.evaluations else evaluation
            scores = dict(zip(spec.evaluations, result.scores, strict=True))
            if asked not in scores:
                raise ValueError(f"the run '{label}' has the evaluations {[*scores]}, not {asked}")
            values.append(scores[asked].perplexity)
        return self._per_seed(values)

    def models(self, label: str) -> PerSeed[Any]:
        """The trained models of one label, by seed."""
        self.results(label)
        return self._per_seed(map(self._model, self.specs(label)))

    def once(self, label: str, measure: Callable[[RunSpec, Any], T]) -> PerSeed[T]:
        """`measure(specification, trained model)` by seed, taken once for all claims that ask."""
        self.results(label)
        kept, values = self._gathered.measured, []
        for spec in self.specs(label):
            key = (self.device, spec.digest(), measure)
            if key not in kept:
                kept[key] = measure(spec, self._model(spec))
            values.append(kept[key])
        return self._per_seed(values)

    def _per_seed(self, values: Iterable[T]) -> PerSeed[T]:
        return PerSeed(self.seeds, values)

    def _model(self, spec: RunSpec) -> Any:
        return trained_model(self._implementation, spec, self._gathered.stores[self.device])

    def _result(self, spec: RunSpec) -> RunResult:
        __tracebackhide__ = True
        merged, outcome = self._gathered.outcomes[self.device, spec.digest()]
        if isinstance(outcome, Failure):
            if outcome.lacking:
                raise Missing(outcome.sentence)
            raise RunFailed(f"{outcome.sentence}\n{outcome.details}".strip())
        # Evaluations of the same training that other claims asked for are left aside.
        scores = dict(zip(merged.evaluations, outcome.scores, strict=True))
        return replace(outcome, scores=tuple(scores[asked] for asked in spec.evaluations))
