"""Trains what the selected claims declare, before the first of them, and hands them the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from torch import Tensor

from claims.experiments import Experiment
from claims.harness import machine
from claims.harness.implementation import IMPLEMENTATION, Implementation
from claims.harness.mark import RunsOn, budget_of, runs_on
from claims.harness.seeds import BASE_SEEDS
from claims.instruments.session import cache_dir, tokens_of
from claims.instruments.tokens import digest
from claims.instruments.training.gather import (
    Failure,
    Outcome,
    Place,
    cores,
    do_all,
    do_here,
    merged,
    name_of,
)
from claims.instruments.training.obtain import trained_model
from claims.instruments.training.progress import shown
from claims.instruments.training.spec import Evaluation, RunResult, RunSpec, Text
from claims.instruments.training.store import RunStore, RunStoreWarning


class RunFailed(Exception):
    """The package under test could not be trained."""


@dataclass
class Gathered:
    """What was trained or found for this session."""

    outcomes: dict[tuple[str, str], Outcome] = field(default_factory=dict)  # (device, digest)
    stores: dict[str, RunStore] = field(default_factory=dict)               # device


GATHERED = pytest.StashKey[Gathered]()


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

    def results(self, label: str) -> list[RunResult]:
        """The results of one label, by seed. Raises RunFailed."""
        return [self._result(spec) for spec in self.specs(label)]

    def perplexities(self, label: str, evaluation: Evaluation | None = None) -> list[float]:
        """The perplexity after training, by seed; by default of the first evaluation declared."""
        values = []
        for spec, result in zip(self.specs(label), self.results(label), strict=True):
            asked = spec.evaluations[0] if evaluation is None else evaluation
            values.append(result.scores[spec.evaluations.index(asked)].perplexity)
        return values

    def models(self, label: str) -> list[Any]:
        """The trained models of one label, by seed."""
        store = self._gathered.stores[self.device]
        self.results(label)
        return [trained_model(self._implementation, spec, store) for spec in self.specs(label)]

    def _result(self, spec: RunSpec) -> RunResult:
        outcome = self._gathered.outcomes[self.device, spec.digest()]
        if isinstance(outcome, Failure):
            raise RunFailed(f"{outcome.sentence}\n{outcome.details}")
        # Evaluations of the same training that other claims asked for are left aside.
        stored = self._gathered.stores[self.device].result(spec)
        return outcome if stored is None else stored


# ---- before the first test -----------------------------------------------------------------------


@pytest.hookimpl(trylast=True)  # after xdist's worker has told what it collected
def pytest_collection_finish(session: pytest.Session) -> None:
    config = session.config
    if config.option.collectonly:
        return
    gathered = config.stash.setdefault(GATHERED, Gathered())
    wanted: dict[str, list[RunSpec]] = {}
    for item in session.items:
        if (declared := runs_on(item)) is not None and not _fault(config, item):
            wanted.setdefault(_device(config, item), []).extend(_specs(config, item, declared))
    if not wanted or "LanguageModel" not in config.stash[IMPLEMENTATION].provided():
        return
    for device, specs in wanted.items():
        _gather(config, gathered, device, merged(specs))


def _gather(config: pytest.Config, gathered: Gathered, device: str, specs: list[RunSpec]) -> None:
    place = Place(cache_dir() / "runs", config.stash[IMPLEMENTATION].package, device)
    store = gathered.stores[device] = place.store()
    missing = []
    for spec in specs:
        stored = store.result(spec)
        if stored is None:
            missing.append(spec)
        else:
            gathered.outcomes[device, spec.digest()] = stored
    if missing:
        ids = _ids(config, missing)
        if hasattr(config, "workerinput"):
            outcomes, unstored, faults = do_here(missing, place, ids)
        else:
            states = ((spec, store.checkpoint(spec)) for spec in missing)
            resumed = [
                f"{name_of(spec)} goes on from step {state['step']} of {spec.steps}"
                for spec, state in states
                if state is not None
            ]
            workers = 1 if device == "cuda" else min(cores(), len(missing))
            with shown(len(missing), len(specs) - len(missing), resumed) as report:
                outcomes, unstored, faults = do_all(missing, place, ids, workers, report)
        store.faults += [fault for fault in faults if fault not in store.faults]
        for spec in missing:
            gathered.outcomes[device, spec.digest()] = outcomes[spec.digest()]
            if spec.digest() in unstored:
                store.hold(spec, *unstored[spec.digest()])
    for sentence in store.faults:
        config.issue_config_time_warning(RunStoreWarning(sentence), stacklevel=2)


def _specs(config: pytest.Config, item: pytest.Item, declared: RunsOn) -> list[RunSpec]:
    budget = budget_of(item) or ""
    experiment = declared.budgets[budget]
    corpus = _corpus_digest(config)
    return [
        spec.on(corpus)
        for label in declared.labels
        for spec in experiment.of(label, _first_seed(config, budget))
    ]


def _first_seed(config: pytest.Config, budget: str) -> int:
    """The document's budget has fixed seeds; the small one follows the base seed."""
    return 100 * config.stash[BASE_SEEDS][0] if budget == "ci" else 0


def _device(config: pytest.Config, item: pytest.Item) -> str:
    on_gpu = budget_of(item) == "document" and config.getoption("device") != "cpu"
    return "cuda" if on_gpu else "cpu"


def _fault(config: pytest.Config, item: pytest.Item) -> str:
    """Why a claim's runs cannot be done here; empty when they can."""
    if _device(config, item) == "cuda" and (fault := machine.gpu_fault()):
        return f"needs a CUDA GPU: {fault}"
    declared = runs_on(item)
    runs = {} if declared is None else declared.budgets[budget_of(item) or ""].runs
    on_text = any(isinstance(run.data, Text) for run in runs.values())
    if on_text and isinstance(found := tokens_of(config), str):
        return found
    return ""


def _ids(config: pytest.Config, specs: Sequence[RunSpec]) -> Tensor | None:
    if not any(isinstance(spec.data, Text) for spec in specs):
        return None
    found = tokens_of(config)
    return None if isinstance(found, str) else found[1]


def _corpus_digest(config: pytest.Config) -> str:
    found = tokens_of(config)
    return "" if isinstance(found, str) else digest(found[1])


@pytest.fixture
def runs(
    request: pytest.FixtureRequest, budget: str, implementation: Implementation
) -> Runs:
    """The trained runs that the claim declares with `@trains(...)`, at the budget that is run."""
    config, item = request.config, request.node
    declared = runs_on(item)
    if declared is None:
        raise pytest.UsageError(f"{item.nodeid}: `runs` belongs to a test marked @trains(...)")
    if fault := _fault(config, item):
        pytest.skip(fault)
    implementation.LanguageModel  # noqa: B018  a package without one has its claims not run
    return Runs(
        declared.budgets[budget], declared.labels, _first_seed(config, budget),
        _corpus_digest(config), _device(config, item), config.stash[GATHERED], implementation,
    )
