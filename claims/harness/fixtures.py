"""The fixtures that a claim is written with."""

from __future__ import annotations

import pytest
import torch

from claims.harness import machine, paths, tables
from claims.harness.check import Check
from claims.harness.implementation import Implementation
from claims.harness.ledger import Entry, Expected
from claims.harness.mark import budget_of
from claims.harness.seeds import Draws
from claims.harness.stash import BASE_SEEDS, FOREIGN, IMPLEMENTATION, entry_of


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
    # Where the claims are installed, pytest's own name of a test says nothing of where it is.
    installed = request.config.getoption("pyargs")
    test = f"--pyargs {item.module.__name__}::{item.name}" if installed else f'"{item.nodeid}"'
    rerun = f"pytest {test} {' '.join(options)}"
    declared = request.config.stash[IMPLEMENTATION].declares["precision"]
    precision = torch.float32 if declared == "float32" else None
    return Check(_require_entry(request), rerun, request.config.stash[FOREIGN], precision)


@pytest.fixture
def expected(request: pytest.FixtureRequest) -> Expected:
    """The values that the ledger expects of this claim, at the budget that is run."""
    return _require_entry(request).expected.at(budget_of(request.node))


@pytest.fixture
def base_seed(pytestconfig: pytest.Config) -> int:
    """The base seed; parametrised when --base-seed is a range."""
    return pytestconfig.stash[BASE_SEEDS][0]


@pytest.fixture
def rng(request: pytest.FixtureRequest, base_seed: int) -> Draws:
    """Random streams of this claim, from (base seed, claim, salt)."""
    parameters = getattr(request.node, "callspec", None)
    chosen = dict(parameters.params) if parameters else {}
    chosen.pop("base_seed", None)
    name = _require_entry(request).id
    return Draws(base_seed, f"{name}{sorted(chosen.items(), key=str) or ''}")


@pytest.fixture
def table(request: pytest.FixtureRequest) -> tables.Table:
    """`table(columns, decimals)`, the stored expected table of this claim."""
    entry = _require_entry(request)
    path = paths.EXPECTED / entry.module / f"{entry.id}.csv"
    return tables.Table(path, request, request.config.stash[BASE_SEEDS])


@pytest.fixture(scope="session")
def cuda() -> torch.device:
    """The GPU. Without a usable one the claim is not run, and the report says why."""
    if fault := machine.gpu_fault():
        pytest.skip(f"needs a CUDA GPU: {fault}")
    return torch.device("cuda")


def _require_entry(request: pytest.FixtureRequest) -> Entry:
    entry = entry_of(request.node)
    if entry is None:
        raise pytest.UsageError(
            f'{request.node.nodeid}: `{request.fixturename}` belongs to a test marked @claim("id")'
        )
    return entry
