"""The pytest plugin: options, fixtures and hooks that make a test a claim."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

# cuBLAS reads this once, at its first use; 8.125 MiB is what cards before Hopper take by default.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")

import hypothesis
import pytest
import torch

from claims.harness import completeness, gpu_table, ledger, machine, report, tables
from claims.harness.check import BrokenClaim, Check, Refuted, Undecided
from claims.harness.implementation import IMPLEMENTATION, Implementation
from claims.harness.isolation import GlobalState
from claims.harness.ledger import Entry, Expected, Ledger
from claims.harness.mark import BUDGETS, base_seed_of, budget_of, claim_id, declared
from claims.harness.seeds import BASE_SEEDS, DEFAULT_BASE_SEED, Draws, parse_base_seeds

LEDGER = pytest.StashKey[Ledger]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("claims", "claims of the chapter")
    group.addoption(
        "--implementation",
        default="transformer",
        metavar="PACKAGE",
        help="importable package to run the claims against (default: transformer)",
    )
    group.addoption(
        "--base-seed",
        default=str(DEFAULT_BASE_SEED),
        metavar="N|N..M",
        help=f"seed of every draw (default: {DEFAULT_BASE_SEED}); "
        "with a range, every claim that draws runs once per seed",
    )
    group.addoption(
        "--budget",
        metavar="|".join(BUDGETS),
        help="run trained claims at one budget alone: 'ci' takes minutes on a CPU, 'document' is "
        "the document's own and needs a GPU or hours (default: both, the document's marked gpu)",
    )
    group.addoption(
        "--device",
        metavar="cpu",
        help="with --budget document: train on the CPU, for whoever has the hours",
    )
    group.addoption(
        "--claims-json", metavar="FILE", help="write every claim's verdict and record to FILE"
    )
    group.addoption(
        "--gpu-table",
        metavar="FILE.csv",
        help="with -m gpu: write what the GPU claims measured to a new FILE.csv, "
        "and what it depends on to FILE.provenance.json",
    )


def pytest_configure(config: pytest.Config) -> None:
    _refuse_bad_options(config)
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


def _refuse_bad_options(config: pytest.Config) -> None:
    """Every fault that can be known before anything runs, as one sentence."""
    try:
        config.stash[LEDGER] = ledger.load_ledger(ledger.LEDGER)
        config.stash[BASE_SEEDS] = parse_base_seeds(config.getoption("base_seed"))
        config.stash[IMPLEMENTATION] = Implementation(config.getoption("implementation"))
        if (target := config.getoption("claims_json")) is not None:
            report.demand_writable("--claims-json", target)
        if (target := config.getoption("gpu_table")) is not None:
            gpu_table.demand_new(target, asked=_asks_for_gpu(config))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    _refuse_bad_budget(config)
    tables.refuse_regeneration_in_ci(config)
    unknown = completeness.unknown_tables(config.stash[LEDGER], tables.EXPECTED)
    if unknown:
        raise pytest.UsageError("\n".join(unknown))
    # -m gpu asks for the GPU; a green run of skips would say that it answered.
    if _asks_for_gpu(config) and (fault := machine.gpu_fault()):
        raise pytest.UsageError(f"-m '{config.option.markexpr}' needs a CUDA GPU: {fault}")
    # pytest-benchmark would switch itself off and leave a run that is green and timed nothing.
    asked = [o for o in ("enable", "only") if config.getoption(f"benchmark_{o}", False)]
    if asked and config.getoption("dist", "no") != "no":
        raise pytest.UsageError(
            f"--benchmark-{asked[0]} with xdist: workers that share the machine would time each "
            "other; run benchmarks without -n"
        )


def _asks_for_gpu(config: pytest.Config) -> bool:
    wanted = re.sub(r"\bnot\s*(\([^)]*\)|\w+)", "", config.getoption("markexpr", ""))
    return re.search(r"\bgpu\b", wanted) is not None


def _refuse_bad_budget(config: pytest.Config) -> None:
    budget, device = config.getoption("budget"), config.getoption("device")
    if budget not in (None, *BUDGETS):
        raise pytest.UsageError(f"--budget takes {' or '.join(BUDGETS)}, not '{budget}'")
    if device not in (None, "cpu"):
        raise pytest.UsageError(f"--device takes cpu, not '{device}'; without it a GPU is used")
    if device == "cpu" and budget != "document":
        raise pytest.UsageError("--device cpu belongs to --budget document; all else runs there")
    if budget == "document" and device is None and (fault := machine.gpu_fault()):
        raise pytest.UsageError(
            f"--budget document needs a CUDA GPU: {fault}. Add --device cpu to train on this "
            "CPU, for hours"
        )


def _set_up_hypothesis() -> None:
    """One profile. What departs from Hypothesis' defaults, and why:

    - derandomize: the same examples on every run, so that a red CI is red at home.
    - deadline None: the first, lazy call into torch takes longer than any other.
    - too_slow suppressed: building tensors is slow on a busy machine; nothing else is suppressed.
    - report_multiple_bugs False: several failures would come as a group, which hides that all are
    Refuted.
    """
    hypothesis.settings.register_profile(
        "claims",
        derandomize=True,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
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
        f"budget {config.getoption('budget') or 'ci, and document on a GPU'}",
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
    faults = completeness.faults(config.stash[LEDGER], items, tables.EXPECTED)
    if faults:
        raise pytest.UsageError(
            "ledger and tests disagree:\n" + "\n".join(f"  {f}" for f in faults)
        )
    _deselect_other_budgets(config, items)
    for item in items:
        budget = budget_of(item)
        if budget == "document" and config.getoption("device") != "cpu":
            item.add_marker(pytest.mark.gpu)
        entry = _entry(item)
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
        budget, entry = budget_of(item), _entry(item)
        too_small = budget == "ci" and entry is not None and entry.needs_document
        again = budget == "document" and base_seed_of(item) not in (
            None, config.stash[BASE_SEEDS][0]
        )
        if budget is not None and (too_small or again or chosen not in (None, budget)):
            others.append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def _entry(item: pytest.Item) -> Entry | None:
    name = claim_id(item)
    return None if name is None else item.config.stash[LEDGER][name]


# ---- fixtures ----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def implementation(pytestconfig: pytest.Config) -> Implementation:
    """The package under test, through the seam (`implementation.py` lists its names)."""
    return pytestconfig.stash[IMPLEMENTATION]


@pytest.fixture
def check(request: pytest.FixtureRequest) -> Check:
    """`check(measured, tolerance)`, the only way to compare."""
    item = request.node
    options = [f"--base-seed {request.config.getoption('base_seed')}"]
    if (package := request.config.getoption("implementation")) != "transformer":
        options.append(f"--implementation {package}")
    return Check(_require_entry(request), f'pytest "{item.nodeid}" {" ".join(options)}')


@pytest.fixture
def document(request: pytest.FixtureRequest) -> Expected:
    """What the document says of this claim: the ledger entry's `expected`."""
    return _require_entry(request).expected


@pytest.fixture
def base_seed(pytestconfig: pytest.Config) -> int:
    """The base seed; parametrised when --base-seed is a range."""
    return pytestconfig.stash[BASE_SEEDS][0]


@pytest.fixture
def rng(request: pytest.FixtureRequest, base_seed: int) -> Draws:
    """Random streams of this test, from (base seed, test, salt)."""
    item = request.node
    parameters = getattr(item, "callspec", None)
    chosen = dict(parameters.params) if parameters else {}
    chosen.pop("base_seed", None)
    name = f"{item.module.__name__}.{item.originalname}"
    return Draws(base_seed, f"{name}{sorted(chosen.items(), key=str) or ''}")


@pytest.fixture
def table(request: pytest.FixtureRequest) -> tables.Table:
    """`table(columns, decimals)`, the stored expected table of this claim."""
    entry = _require_entry(request)
    path = tables.EXPECTED / entry.module / f"{entry.id}.csv"
    return tables.Table(path, request, request.config.stash[BASE_SEEDS])


@pytest.fixture(scope="session")
def cuda() -> torch.device:
    """The GPU; without a usable one the claim is not run, with the reason."""
    if fault := machine.gpu_fault():
        pytest.skip(f"needs a CUDA GPU: {fault}")
    return torch.device("cuda")


def _require_entry(request: pytest.FixtureRequest) -> Entry:
    entry = _entry(request.node)
    if entry is None:
        raise pytest.UsageError(
            f'{request.node.nodeid}: `{request.fixturename}` belongs to a test marked @claim("id")'
        )
    return entry


# ---- running -----------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Around the body of every test: global state is restored, and a claim must keep the rules."""
    entry = _entry(pyfuncitem)
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
        expected = entry.verdict_at(budget_of(pyfuncitem))
        _demand_verdict(entry.id, expected, pyfuncitem.funcargs.get("check"))
    return result


def _demand_verdict(name: str, expected: str, check: object) -> None:
    """A body that ended without a failure must have compared, and with the ledger's verdict."""
    if not isinstance(check, Check) or not check.records:
        raise BrokenClaim(
            f"claim {name} recorded no check: a claim that compared nothing is not verified"
        )
    verdict = report.verdict_of(check.records)
    if expected != "refuted" and verdict != expected:
        raise BrokenClaim(
            f"claim {name}: the ledger's verdict is '{expected}', "
            f"the checks say '{verdict}'; "
            "if that is right, change the ledger, so that a reviewer sees it"
        )


@pytest.hookimpl(
    wrapper=True, tryfirst=True
)  # outermost: after pytest has turned xfails into outcomes
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the claim's outcome on the test report, for xdist's controller, JUnit and summary."""
    outcome = yield
    entry = _entry(item)
    decided = outcome.when == "call" or not outcome.passed
    if call.excinfo is not None and isinstance(
        call.excinfo.value, BrokenClaim | Undecided
    ):
        outcome.longrepr = str(call.excinfo.value)  # the fault is not a line of code
    if entry is not None and decided:
        check = getattr(item, "funcargs", {}).get("check")
        item.user_properties.extend(
            report.properties(entry, budget_of(item), outcome, check.records if check else [])
        )
        outcome.user_properties = list(item.user_properties)
    return outcome
