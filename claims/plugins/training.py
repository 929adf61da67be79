"""Trains what the selected claims declare, before the first of them, and hands them the results."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from inspect import signature
from typing import Any

import pytest
from torch import Tensor

from claims.harness import foreign, paths
from claims.harness.check import Check, Refuted, Undecided
from claims.harness.files import cache_dir
from claims.harness.implementation import Implementation, Missing
from claims.harness.mark import RunsOn, base_seed_of, budget_of, runs_on
from claims.harness.options import asks_for_gpu
from claims.harness.stash import BASE_SEEDS, FOREIGN, IMPLEMENTATION
from claims.instruments.text.corpus import Corpus
from claims.plugins.executor import gpu_fault, workers_of
from claims.plugins.session import corpus_of, tokens_digest, tokens_of
from claims.training.dask_executor import Cluster, NoCluster
from claims.training.evidence import Record
from claims.training.loop import build
from claims.training.pool import (
    Place,
    Pool,
    do_here,
    merged,
    name_of,
)
from claims.training.progress_bar import shown
from claims.training.results import Gathered, Recorded, Runs
from claims.training.spec import RunSpec, Text
from claims.training.store import RunStoreWarning
from claims.training.travel import IMPORTED

# What was trained or found, by device.
GATHERED = pytest.StashKey[dict[str, Gathered]]()
# Where runs are trained, by device: for all looks at the seeds, until the session ends.
POOLS = pytest.StashKey[dict[str, Pool | Cluster]]()
RECORD = pytest.StashKey[Record]()
# Test -> why the package under test cannot make one of the models that it trains.
UNSUPPORTED = pytest.StashKey[dict[str, str]]()


# ---- before the first test -----------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "recorded: decided on runs of the record, not trained in this session"
    )


@pytest.hookimpl(tryfirst=True)  # before the harness marks what needs a GPU
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The document's budget is judged from the record, unless somebody asks to measure it anew."""
    if config.getoption("budget") == "document" or asks_for_gpu(config):
        return
    for item in items:
        if budget_of(item) == "document":
            item.add_marker("recorded")


@pytest.hookimpl(tryfirst=True)  # xdist's worker has told by then what it collected
def pytest_runtestloop(session: pytest.Session) -> None:
    """Not at the end of the collection, which comes after a collection that failed as well."""
    config = session.config
    failed = session.testsfailed and not config.option.continue_on_collection_errors
    if config.option.collectonly or failed:
        return
    wanted: dict[str, list[RunSpec]] = {}
    implementation = config.stash[IMPLEMENTATION]
    if "LanguageModel" not in {*implementation.provided()} - {*implementation.unfit}:
        return
    config.stash[UNSUPPORTED] = {}
    for item in session.items:
        declared = runs_on(item)
        if declared is not None and not _recorded(item) and not _fault(config, item):
            specs = _specs(config, item, declared)
            if config.stash[FOREIGN] and (lacks := _unsupported(implementation, specs)):
                config.stash[UNSUPPORTED][item.nodeid] = lacks
                continue
            wanted.setdefault(_device(config, item), []).extend(specs)
    for device, specs in wanted.items():
        _gather(config, device, merged(specs))


def _unsupported(implementation: Implementation, specs: Sequence[RunSpec]) -> str:
    """Why somebody else's package cannot make one of these models; empty when it can.

    A claim compares runs: without one of them the others need not be trained.
    """
    for settings in {replace(spec, seed=0, evaluations=()) for spec in specs}:
        try:
            model = build(implementation, replace(settings, causal=True))
            if not settings.causal:
                _demand_that_its_mixers_can_be_replaced(implementation, model)
                build(implementation, settings)
        except Exception as error:
            meaning = foreign.meaning(error, implementation.package)
            if isinstance(meaning, Missing):
                return str(meaning)
    return ""


def _demand_that_its_mixers_can_be_replaced(implementation: Implementation, model: Any) -> None:
    """By attention without a mask: what is set by another name than its own would change nothing.

    Raises Missing.
    """
    if not all(hasattr(block, "mixer") for block in model.blocks):
        raise Missing(f"the blocks of {implementation.package} have no `mixer` to be replaced")


def pytest_unconfigure(config: pytest.Config) -> None:
    for pool in config.stash.get(POOLS, {}).values():
        pool.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a trained claim on the first seeds of its experiment; on more, where these do not tell.

    The body is run again from its beginning: what it draws follows from the claim's id.
    """
    fixtures: dict[str, Any] = pyfuncitem.funcargs
    runs = fixtures.get("runs")
    if not isinstance(runs, Runs):
        return None
    check: Check = fixtures["check"]
    arguments = {name: fixtures[name] for name in signature(pyfuncitem.obj).parameters}
    while not runs.complete:
        try:
            pyfuncitem.obj(**arguments)
        except (Refuted, Undecided):
            if check.settled:
                raise
        if check.settled:
            return True
        check.forget()
        _look_further(pyfuncitem, runs)
    return None  # pytest runs it, on all seeds


def _look_further(item: pytest.Item, runs: Runs) -> None:
    """Train the runs of the next look, in the middle of a test."""
    declared = runs_on(item)
    assert declared is not None  # it has runs
    runs.look_further()
    specs = [spec for label in declared.labels for spec in runs.specs(label)]
    capture = item.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        _gather(item.config, _device(item.config, item), merged(specs))


def _recorded(item: pytest.Item) -> bool:
    return item.get_closest_marker("recorded") is not None


def _gather(config: pytest.Config, device: str, specs: list[RunSpec]) -> None:
    place = Place(cache_dir() / "runs", config.stash[IMPLEMENTATION].package, device)
    by_device = config.stash.setdefault(GATHERED, {})
    pools = config.stash.setdefault(POOLS, {})
    if device not in by_device:
        by_device[device] = Gathered(place.store(), config.stash[IMPLEMENTATION])
        # The first look has runs on text if any later one has.
        pools[device] = workers_of(config, place, _ids(config, specs))
    gathered, pool = by_device[device], pools[device]
    store = gathered.store
    missing = []
    for spec in specs:
        stored = store.result(spec)
        if stored is None:
            missing.append(spec)
        else:
            gathered.outcomes[spec.digest()] = spec, stored
    if missing:
        if hasattr(config, "workerinput"):
            done = do_here(missing, place, _ids(config, missing))
        else:
            states = ((spec, store.checkpoint(spec)) for spec in missing)
            resumed = [
                f"{name_of(spec)} goes on from step {state['step']} of {spec.steps}"
                for spec, state in states
                if state is not None
            ]
            with shown(missing, len(specs) - len(missing), resumed) as report:
                try:
                    done = pool.do_all(missing, report)
                except NoCluster as error:
                    pytest.exit(str(error))
        store.faults += [fault for fault in done.faults if fault not in store.faults]
        for spec in missing:
            gathered.outcomes[spec.digest()] = spec, done.outcomes[spec.digest()]
            if spec.digest() in done.unstored:
                store.hold(spec, *done.unstored[spec.digest()])
    for sentence in store.faults:
        config.issue_config_time_warning(RunStoreWarning(sentence), stacklevel=2)


def _record_of(config: pytest.Config) -> Record:
    """Read once per session: the project's own, and what was imported."""
    if RECORD not in config.stash:
        folders = (paths.EVIDENCE, cache_dir() / IMPORTED)
        config.stash[RECORD] = record = Record(folders, config.stash[IMPLEMENTATION])
        for sentence in record.faults:
            config.issue_config_time_warning(RunStoreWarning(sentence), stacklevel=2)
    return config.stash[RECORD]


def _specs(config: pytest.Config, item: pytest.Item, declared: RunsOn) -> list[RunSpec]:
    """What a claim needs at its first look at the seeds."""
    budget = budget_of(item) or ""
    experiment = declared.budgets[budget]
    corpus, first = tokens_digest(config), _first_seed(budget, _base_seed(config, item))
    return [
        spec.on(corpus)
        for label in declared.labels
        for spec in experiment.of(label, first)[: experiment.looks[0]]
    ]


def _base_seed(config: pytest.Config, item: pytest.Item) -> int:
    """The one that the fixture `base_seed` will have."""
    own = base_seed_of(item)
    return config.stash[BASE_SEEDS][0] if own is None else own


def _first_seed(budget: str, base_seed: int) -> int:
    """The document's budget has fixed seeds; the small one follows the base seed."""
    return 100 * base_seed if budget == "ci" else 0


def _device(config: pytest.Config, item: pytest.Item) -> str:
    on_gpu = budget_of(item) == "document" and config.getoption("device") != "cpu"
    return "cuda" if on_gpu else "cpu"


def _fault(config: pytest.Config, item: pytest.Item) -> str:
    """Why a claim's runs cannot be done here; empty when they can."""
    if _device(config, item) == "cuda" and (fault := gpu_fault(config)):
        return f"needs a CUDA GPU: {fault}"
    declared = runs_on(item)
    budget = budget_of(item)
    if declared is None or budget is None:
        return ""
    runs = declared.budgets[budget].runs
    on_text = any(isinstance(runs[label].data, Text) for label in declared.labels)
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


@pytest.fixture
def budget(request: pytest.FixtureRequest) -> str:
    """The budget at which a claim marked `@trains(...)` runs: it is parametrised over them."""
    raise pytest.UsageError(f"{request.node.nodeid}: `runs` belongs to a test marked @trains(...)")


@pytest.fixture
def runs(
    request: pytest.FixtureRequest, budget: str, base_seed: int, implementation: Implementation
) -> Runs:
    """The trained runs that the claim declares with `@trains(...)`, at the budget that is run."""
    config, item = request.config, request.node
    declared = runs_on(item)
    assert declared is not None  # it has a budget
    experiment = declared.budgets[budget]
    if "LanguageModel" not in implementation.provided() and implementation.fills:
        raise Missing(f"it asks nothing of {implementation.package}")
    implementation.LanguageModel  # noqa: B018 - in another process, or when the run was made
    if _recorded(item):
        return Runs(experiment, declared.labels, 0, "", Recorded(_record_of(config)))
    if fault := _fault(config, item):
        pytest.skip(fault)
    if lacks := config.stash[UNSUPPORTED].get(item.nodeid):
        raise Missing(lacks)
    gathered = config.stash[GATHERED][_device(config, item)]
    first = _first_seed(budget, base_seed)
    return Runs(
        experiment, declared.labels, first, tokens_digest(config), gathered, experiment.looks[0]
    )
