"""The pytest plugin: options, fixtures and hooks that make a test a claim."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

# cuBLAS reads this once, at its first use; 8.125 MiB is what GPUs before Hopper take by default.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")

import hypothesis
import pytest
import torch

from claims.harness import completeness, gpu_table, machine, options, paths, report
from claims.harness.check import BrokenClaim, Check, Refuted, Undecided
from claims.harness.isolation import GlobalState
from claims.harness.ledger import Entry
from claims.harness.mark import base_seed_of, budget_of, declared
from claims.harness.stash import BASE_SEEDS, IMPLEMENTATION, LEDGER, entry_of

pytest_plugins = ("claims.harness.fixtures",)


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    options.refuse_bad_options(config)
    # One thread: the same rounding on every machine and under xdist, which brings the parallelism.
    torch.set_num_threads(1)
    # TF32 would keep 10 bits of a float32 product, silently.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    _set_up_hypothesis()
    if not hasattr(config, "workerinput"):
        results = report.Report(config, config.stash[LEDGER])
        config.pluginmanager.register(results, "claims-report")
        if target := config.getoption("gpu_table"):
            source = config.stash[IMPLEMENTATION].source_digest()
            table = gpu_table.GpuTable(Path(target), config, results, source)
            config.pluginmanager.register(table, "claims-gpu-table")


def _set_up_hypothesis() -> None:
    """One profile. What departs from Hypothesis' defaults, and why:

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
        print_blob=False,
        database=None,
    )
    hypothesis.settings.load_profile("claims")
    hypothesis.register_random(_TORCH_RANDOM)


class _TorchRandom:
    """torch's global generator, as Hypothesis manages it: seeded per example, restored after."""

    seed = staticmethod(torch.manual_seed)
    getstate = staticmethod(torch.get_rng_state)
    setstate = staticmethod(torch.set_rng_state)


# Hypothesis keeps a weak reference.
_TORCH_RANDOM = _TorchRandom()


def pytest_report_header(config: pytest.Config) -> list[str]:
    facts = machine.description()
    return [
        f"claims: implementation {config.stash[IMPLEMENTATION].package}, "
        f"base seed {config.getoption('base_seed')}, "
        f"budget {config.getoption('budget') or 'ci, and document from the record'}",
        "machine: " + ", ".join(f"{key} {value}" for key, value in facts.items()),
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
            item.add_marker(pytest.mark.xfail(raises=Refuted, strict=True, reason=reason))


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
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


# ---- running -----------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Around the body of every test: global state is restored, and a claim must keep the rules."""
    entry = entry_of(pyfuncitem)
    before = GlobalState()
    try:
        result = yield
    finally:
        changes = before.restore()
    if entry is not None:
        if changes:
            raise BrokenClaim(
                f"claim {entry.id} left global state changed: {', '.join(changes)}; "
                "draw from `rng`, and set flags only inside a context that restores them"
            )
        _demand_verdict(entry, budget_of(pyfuncitem), pyfuncitem.funcargs.get("check"))
    return result


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
    if call.excinfo is not None and isinstance(
        call.excinfo.value, BrokenClaim | Undecided
    ):
        outcome.longrepr = str(call.excinfo.value)  # the fault is not a line of code
    if entry is not None and decided:
        check = getattr(item, "funcargs", {}).get("check")
        item.user_properties.extend(
            report.properties(entry, budget_of(item), outcome, check)
        )
        outcome.user_properties = list(item.user_properties)
    return outcome
