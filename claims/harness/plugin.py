"""The pytest plugin: options, fixtures and hooks that make a test a claim."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import traceback
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

# cuBLAS reads this once, at its first use; 8.125 MiB is what GPUs before Hopper take by default.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")

import hypothesis
import pytest
import torch

from claims.harness import completeness, foreign, gpu_table, machine, options, paths, report
from claims.harness.check import BrokenClaim, Check, Refuted, Undecided
from claims.harness.isolation import GlobalState
from claims.harness.layout import Missing
from claims.harness.ledger import Entry
from claims.harness.mark import base_seed_of, budget_of, declared, runs_on
from claims.harness.reach import names_in_reach
from claims.harness.stash import BASE_SEEDS, FOREIGN, IMPLEMENTATION, LEDGER, entry_of

# Fixture -> the names of the package under test that it asked for.
USED = pytest.StashKey[dict[str, set[str]]]()

pytest_plugins = ("claims.harness.fixtures",)
MARKERS = (
    "claim(id): the claim of fixtures/ledger.yaml that the test decides",
    "trains(experiment, label, ...): the runs of an experiment that the claim is decided on",
    "gpu: needs a CUDA GPU; the other tests never touch CUDA",
    "statistical: draws random numbers; must pass for every base seed (`--base-seed 0..99`)",
)
PLUGINS = ("pytest_benchmark.plugin", "pytest_regressions.plugin")
SLOW = (hypothesis.Phase.shrink, hypothesis.Phase.explain)
# Fixtures that hand a claim the package under test, or what was made with it.
OF_THE_PACKAGE = {"implementation", "tokenizer", "tokens"}


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    if sys.flags.optimize:
        raise pytest.UsageError(
            "python -O leaves out assertions, which pytest and implementations rely on: run "
            "without -O, and unset PYTHONOPTIMIZE"
        )
    _demand_the_plugins(pluginmanager)
    options.add_options(parser)


def _demand_the_plugins(manager: pytest.PytestPluginManager) -> None:
    """Tables and benchmarks need plugins of pytest that load by themselves, unless told not to."""
    loaded = {getattr(plugin, "__name__", "") for plugin in manager.get_plugins()}
    for name in (module for module in PLUGINS if module not in loaded):
        distribution = name.partition(".")[0].replace("_", "-")
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            raise pytest.UsageError(f"{distribution} is not installed: pip install {distribution}")
        if os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
            raise pytest.UsageError(
                f"the plugin {distribution} is not loaded: unset PYTEST_DISABLE_PLUGIN_AUTOLOAD, "
                f"or add {' '.join(f'-p {each}' for each in PLUGINS)}"
            )


def pytest_configure(config: pytest.Config) -> None:
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    options.refuse_bad_options(config)
    # One thread: the same rounding on every machine and under xdist, which brings the parallelism.
    torch.set_num_threads(1)
    # TF32 would keep 10 bits of a float32 product, silently.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    config.stash[USED] = {}
    _set_up_hypothesis(shrink=not config.stash[FOREIGN])
    if config.stash[FOREIGN]:
        # Its author answers for its warnings, and for how old the libraries are that it uses.
        config.addinivalue_line("filterwarnings", "default")
    if not hasattr(config, "workerinput"):
        results = report.Report(config, config.stash[LEDGER])
        config.pluginmanager.register(results, "claims-report")
        if target := config.getoption("gpu_table"):
            source = config.stash[IMPLEMENTATION].source_digest()
            table = gpu_table.GpuTable(Path(target), config, results, source)
            config.pluginmanager.register(table, "claims-gpu-table")


def _set_up_hypothesis(*, shrink: bool) -> None:
    """One profile. What departs from Hypothesis' defaults, and why:

    - no shrinking for somebody's own code: the sentence that fails is what they need, at once.
    - derandomize: the same examples on every run, so that a red CI is red at home.
    - deadline None: the first, lazy call into torch takes longer than any other.
    - too_slow suppressed: building tensors is slow on a busy machine.
    - function_scoped_fixture suppressed: the examples of a claim share `check` on purpose, which
      merges them into one record; no other fixture of a claim changes from example to example.
    - report_multiple_bugs False: several failures would come as a group, which hides that all are
      Refuted.
    """
    hypothesis.settings.register_profile(
        "claims",
        derandomize=True,
        deadline=None,
        suppress_health_check=[
            hypothesis.HealthCheck.too_slow,
            hypothesis.HealthCheck.function_scoped_fixture,
        ],
        report_multiple_bugs=False,
        phases=[phase for phase in hypothesis.Phase if shrink or phase not in SLOW],
        print_blob=False,
        database=None,
    )
    hypothesis.settings.load_profile("claims")
    hypothesis.register_random(_TORCH_RANDOM)


class _TorchRandom:
    """torch's generator of the CPU, as Hypothesis manages it: seeded per example, restored after.

    torch.manual_seed keeps a stack for each kind of GPU that is not in use, at every call.
    """

    seed = staticmethod(torch.default_generator.manual_seed)
    getstate = staticmethod(torch.default_generator.get_state)
    setstate = staticmethod(torch.default_generator.set_state)


# Hypothesis keeps a weak reference.
_TORCH_RANDOM = _TorchRandom()


def pytest_report_header(config: pytest.Config) -> list[str]:
    facts = machine.description()
    implementation = config.stash[IMPLEMENTATION]
    return [
        f"claims: implementation {implementation.package} ({implementation.file}), "
        f"base seed {config.getoption('base_seed')}, "
        f"budget {config.getoption('budget') or 'ci, and document from the record'}",
        "machine: " + ", ".join(f"{key} {value}" for key, value in facts.items()),
        *implementation.remarks,
        *(f"found: {sentence}" for sentence in implementation.unfit.values()),
        *(f"found: {sentence}" for sentence in implementation.weightless.values()),
    ]


# ---- collection --------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seeds = metafunc.config.stash[BASE_SEEDS]
    mark = metafunc.definition.get_closest_marker("trains")
    if mark is not None:
        if "budget" not in metafunc.fixturenames:
            raise pytest.UsageError(
                f"{metafunc.definition.nodeid}: a test marked @trains(...) takes `runs`"
            )
        metafunc.parametrize("budget", list(declared(mark, metafunc.definition.nodeid).budgets))
    if len(seeds) > 1 and "base_seed" in metafunc.fixturenames:
        metafunc.parametrize("base_seed", seeds, ids=[f"seed={seed}" for seed in seeds])


@pytest.hookimpl(tryfirst=True)  # before -m deselects by the marks that are added here
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    faults = completeness.faults(config.stash[LEDGER], items, paths.EXPECTED)
    if faults:
        raise pytest.UsageError(
            "ledger and tests disagree:\n" + "\n".join(f"  {f}" for f in faults)
        )
    _deselect_other_budgets(config, items)
    if config.stash[FOREIGN]:
        _deselect(config, items, [item for item in items if not _says_something(item)])
    for item in items:
        budget = budget_of(item)
        measured_here = config.getoption("device") == "cpu" or item.get_closest_marker("recorded")
        if budget == "document" and not measured_here:
            item.add_marker(pytest.mark.gpu)
        entry = entry_of(item)
        if entry is None:
            continue
        if "gpu" in entry.needs:
            item.add_marker(pytest.mark.gpu)
        if "rng" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.statistical)
        if entry.verdict_at(budget) == "refuted":
            reason = f"refuted: {entry.reason_at(budget)}"
            # What is false of the reference may be true of another package, which is a result.
            strict = not config.stash[FOREIGN]
            item.add_marker(pytest.mark.xfail(raises=Refuted, strict=strict, reason=reason))


def _says_something(item: pytest.Item) -> bool:
    """Whether a test says something about the package under test."""
    entry = entry_of(item)
    if entry is None:
        return True
    return entry.bound != "nobody" and bool(OF_THE_PACKAGE & {*getattr(item, "fixturenames", ())})


def _deselect_other_budgets(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What --budget does not choose, and the small budget of claims that it cannot decide.

    Also all but the first of a range of base seeds at the document's budget, whose seeds are fixed.
    """
    chosen = config.getoption("budget")
    others = []
    for item in items:
        budget, entry = budget_of(item), entry_of(item)
        too_small = budget == "ci" and entry is not None and entry.needs_document
        again = budget == "document" and base_seed_of(item) not in (
            None, config.stash[BASE_SEEDS][0]
        )
        if budget is not None and (too_small or again or chosen not in (None, budget)):
            others.append(item)
    _deselect(config, items, others)


def _deselect(config: pytest.Config, items: list[pytest.Item], others: list[pytest.Item]) -> None:
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    _collect_what_is_new()


def _collect_what_is_new() -> None:
    """Collect cycles among the objects that were made since the last call.

    What outlives a test is of the session (modules, fixtures, reports): to look through all of it
    after every test would take longer than most claims.
    """
    gc.collect()
    gc.freeze()


# ---- running -----------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, Any, Any]:
    """Tensors of one test are gone before the next, which may measure memory."""
    try:
        return (yield)
    finally:
        for name in ("last_exc", "last_value", "last_traceback"):
            setattr(sys, name, None)
        _collect_what_is_new()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Around the body of every test: global state is restored, and a claim must keep the rules."""
    entry, package = entry_of(pyfuncitem), pyfuncitem.config.stash[FOREIGN]
    pyfuncitem.config.stash[IMPLEMENTATION].used.clear()
    before = GlobalState()
    try:
        result = yield
    except BaseException as error:
        if entry is None or not package:
            raise
        if isinstance(error, Refuted):
            _demand_that_it_was_asked(pyfuncitem)
        if (meaning := foreign.meaning(error, package)) is error:
            raise
        raise meaning from error
    finally:
        changes = before.restore()
    if entry is not None:
        if changes and package:
            raise foreign.PackageError(f"{package} changes global state: {', '.join(changes)}")
        if changes:
            raise BrokenClaim(
                f"claim {entry.id} left global state changed: {', '.join(changes)}; "
                "draw from `rng`, and set flags only inside a context that restores them"
            )
        check = pyfuncitem.funcargs.get("check")
        if package:
            _demand_that_it_was_asked(pyfuncitem)
            foreign.conclude(entry, check)
        else:
            _demand_names_in_reach(entry, pyfuncitem)
            _demand_verdict(entry, budget_of(pyfuncitem), check)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """What fixtures make with the package under test is judged as in the body of a claim."""
    package = item.config.stash[FOREIGN]
    try:
        if entry_of(item) and item.config.stash[IMPLEMENTATION].fills:
            _demand_that_it_can_ask(item)
        return (yield)
    except BaseException as error:
        if not package or (meaning := foreign.meaning(error, package)) is error:
            raise
        raise meaning from error


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(request: pytest.FixtureRequest) -> Generator[None, Any, Any]:
    """Which names of the package under test a fixture asked for."""
    config = request.config
    implementation = config.stash[IMPLEMENTATION]
    before, implementation.used = implementation.used, set()
    try:
        return (yield)
    finally:
        if request.fixturename is not None:
            config.stash[USED][request.fixturename] = implementation.used
        implementation.used = before


def _demand_that_it_can_ask(item: pytest.Item) -> None:
    """Raise Missing for a claim that would run on what was filled in alone, before it does."""
    implementation = item.config.stash[IMPLEMENTATION]
    # What is trained is trained elsewhere.
    if runs_on(item) is None and not names_in_reach(item) & {*implementation.provided()}:
        raise Missing(f"it asks nothing of {implementation.package}")


def _demand_that_it_was_asked(item: pytest.Function) -> None:
    """Raise Missing where a claim asked for no name of the package, directly or by a fixture."""
    if not _asked(item):
        raise Missing(f"it asks nothing of {item.config.stash[IMPLEMENTATION].package}")


def _demand_names_in_reach(entry: Entry, item: pytest.Function) -> None:
    if hidden := _asked(item) - names_in_reach(item) if runs_on(item) is None else ():
        raise BrokenClaim(
            f"claim {entry.id} asks for {', '.join(sorted(hidden))} where its code does not show "
            "it (claims/harness/reach.py); write `implementation.NAME`"
        )


def _asked(item: pytest.Function) -> set[str]:
    """Names of the package that the claim has asked for, directly or by a fixture."""
    by_fixture = item.config.stash[USED]
    own = item.config.stash[IMPLEMENTATION].used
    return own.union(*(by_fixture.get(name, ()) for name in item.fixturenames))


def _demand_verdict(entry: Entry, budget: str | None, check: object) -> None:
    """A body that ended without a failure must have compared, and with the ledger's verdict."""
    if not isinstance(check, Check):
        raise BrokenClaim(
            f"claim {entry.id} takes no `check`: a claim that compared nothing is not verified"
        )
    check.conclude()
    expected, under = entry.verdict_at(budget), entry.holds_under_at(budget)
    if expected != "refuted" and (check.verdict, check.reading) != (expected, under):
        raise BrokenClaim(
            f"claim {entry.id}: the ledger's verdict is '{expected}'{_read_as(under)}, the checks "
            f"say '{check.verdict}'{_read_as(check.reading)}; "
            "if that is right, change the ledger, so that a reviewer sees it"
        )


def _read_as(reading: str) -> str:
    return f" when read as '{reading}'" if reading else ""


@pytest.hookimpl(
    wrapper=True, tryfirst=True
)  # outermost: after pytest has turned xfails into outcomes
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the claim's outcome on the test report, for xdist's controller, JUnit and summary."""
    outcome = yield
    entry = entry_of(item)
    decided = outcome.when == "call" or not outcome.passed
    raised = None if call.excinfo is None else call.excinfo.value
    brief = item.config.stash[FOREIGN] and item.config.option.tbstyle == "auto"
    if isinstance(raised, BrokenClaim | Undecided) or (
        brief and isinstance(raised, foreign.PackageError)
    ):
        outcome.longrepr = str(raised)  # the fault is not a line of code
    elif brief and entry and outcome.failed and isinstance(raised, foreign.DISAGREES):
        outcome.longrepr = foreign.in_short(entry, raised)
    if entry is not None and item.config.stash[FOREIGN] and foreign.departs(entry, raised):
        outcome.outcome = "skipped"
        outcome.wasxfail = foreign.DEPARTS
    if entry is not None and decided:
        check = getattr(item, "funcargs", {}).get("check")
        item.user_properties.extend(
            report.properties(entry, budget_of(item), outcome, check, raised)
        )
        outcome.user_properties = list(item.user_properties)
    _let_go(raised)
    return outcome


def _let_go(raised: BaseException | None) -> None:
    """Of what the frames of an exception hold, which pytest keeps for longer than the test."""
    while raised is not None:
        for frame, _ in traceback.walk_tb(raised.__traceback__):
            with suppress(RuntimeError):  # it is still running, as this one is
                frame.clear()
            # Before Python 3.13 a frame keeps a copy of its variables, made anew when asked for.
            frame.f_locals  # noqa: B018
        raised = raised.__cause__ or raised.__context__
