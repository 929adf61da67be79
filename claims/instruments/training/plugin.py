"""Trains what the selected claims declare, before the first of them, and hands them the results."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from torch import Tensor

from claims.harness import machine
from claims.harness.implementation import IMPLEMENTATION, Implementation
from claims.harness.mark import RunsOn, budget_of, runs_on
from claims.harness.seeds import BASE_SEEDS
from claims.instruments.corpus import Corpus
from claims.instruments.session import cache_dir, corpus_of, tokens_of
from claims.instruments.tokens import digest
from claims.instruments.training.gather import (
    Place,
    cores,
    do_all,
    do_here,
    merged,
    name_of,
)
from claims.instruments.training.progress import shown
from claims.instruments.training.results import Gathered, Runs
from claims.instruments.training.spec import RunSpec, Text
from claims.instruments.training.store import RunStoreWarning

GATHERED = pytest.StashKey[Gathered]()


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
    if not on_text:
        return ""
    if isinstance(found := tokens_of(config), str):
        return found
    corpus = corpus_of(config)
    if isinstance(corpus, Corpus) and not corpus.shakespeare:
        return "needs Tiny Shakespeare or its stand-in: what is trained is about that text"
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
