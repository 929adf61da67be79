"""`--shard I/N`: one of N parts of the selected tests, for a matrix of machines.

A run is trained before the first test that needs it, and several claims share it. So tests that
share a run stay together, and the parts are balanced by what the tests take and by what their runs
take to train. Durations are stored in fixtures/durations.json.
"""

from __future__ import annotations

import heapq
import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import pytest

from claims.harness.mark import budget_of, runs_on
from claims.harness.paths import FIXTURES
from claims.training.experiment import whatever_the_seed

DURATIONS = FIXTURES / "durations.json"
LEAST = 0.1  # seconds; durations below are not stored
SHARD = pytest.StashKey[tuple[int, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("claims").addoption(
        "--shard",
        metavar="I/N",
        help="run the I-th of N parts of the selected tests, balanced by stored durations",
    )


def pytest_configure(config: pytest.Config) -> None:
    if (given := config.getoption("shard")) is not None:
        config.stash[SHARD] = parse(given)


def parse(text: str) -> tuple[int, int]:
    """(part, number of parts), counted from 1."""
    found = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    part, parts = map(int, found.groups()) if found else (0, 0)
    if not 1 <= part <= parts:
        raise pytest.UsageError(f"--shard takes I/N with I from 1 to N, such as 2/4, not '{text}'")
    return part, parts


@pytest.hookimpl(trylast=True)  # of what is left after -k, -m and --budget
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if SHARD not in config.stash:
        return
    part, parts = config.stash[SHARD]
    stored = json.loads(DURATIONS.read_text(encoding="utf-8"))
    groups = list(together(items, stored["tests"], stored["runs"]))
    chosen = {test for group in balanced(groups, parts)[part - 1] for test in group.tests}
    others = [item for item in items if item.nodeid not in chosen]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item.nodeid in chosen]


@dataclass(frozen=True)
class Group:
    """Tests that are run together, and how long they take."""

    tests: tuple[str, ...]
    seconds: float


def together(
    items: Sequence[pytest.Item], of_tests: Mapping[str, float], of_runs: Mapping[str, float]
) -> Iterator[Group]:
    """Tests that share a run, directly or by way of others, in one group each.

    Without a stored duration a test takes half of the least that is stored, and a run as long as
    the average run.
    """
    average = statistics.fmean(of_runs.values())
    graph: nx.Graph[str] = nx.Graph()
    seconds = {item.nodeid: of_tests.get(item.nodeid, LEAST / 2) for item in items}
    for item in items:
        graph.add_node(item.nodeid)
        for run, seeds in _runs(item).items():
            graph.add_edge(item.nodeid, run)
            seconds[run] = max(seconds.get(run, 0.0), seeds * of_runs.get(run, average))
    tests = {item.nodeid for item in items}
    for connected in nx.connected_components(graph):
        yield Group(tuple(sorted(tests & connected)), sum(seconds[node] for node in connected))


def _runs(item: pytest.Item) -> dict[str, int]:
    """The runs that an item trains, and over how many seeds: those of the first look, after which
    most claims are decided.
    """
    declared, budget = runs_on(item), budget_of(item)
    if declared is None or budget is None or item.get_closest_marker("recorded"):
        return {}
    experiment = declared.budgets[budget]
    runs = (experiment.runs[label] for label in declared.labels)
    return {whatever_the_seed(run): experiment.looks[0] for run in runs}


def balanced(groups: Sequence[Group], parts: int) -> list[list[Group]]:
    """The longest first, each to the part that has the least so far."""
    found: list[list[Group]] = [[] for _ in range(parts)]
    loads = [(0.0, part) for part in range(parts)]
    for group in sorted(groups, key=lambda group: (-group.seconds, group.tests)):
        load, part = heapq.heappop(loads)
        found[part].append(group)
        heapq.heappush(loads, (load + group.seconds, part))
    return found
