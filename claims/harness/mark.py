"""`@claim("id")`: this test decides that entry of the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

claim = pytest.mark.claim
# `@trains(budgets, label, ...)`: the claim needs these runs of an experiment, by budget.
trains = pytest.mark.trains

BUDGETS = ("ci", "document")


def claim_id(item: pytest.Item) -> str | None:
    """The id that a collected test is marked with; None for a test that is no claim.

    Raises:
        pytest.UsageError: the mark has no id, or more than one.
    """
    marks = list(item.iter_markers("claim"))
    if not marks:
        return None
    arguments = [argument for mark in marks for argument in mark.args]
    if len(arguments) != 1 or not isinstance(arguments[0], str):
        raise pytest.UsageError(f'{item.nodeid}: write @claim("id"), one id; it has {arguments}')
    return arguments[0]


def claims_in(module: ModuleType) -> Iterator[tuple[str, str]]:
    """(id, test name) of every claim that a test module defines, selected or not."""
    for name, function in vars(module).items():
        if name.startswith("test_"):
            for mark in getattr(function, "pytestmark", []):
                if mark.name == "claim" and mark.args:
                    yield str(mark.args[0]), name


@dataclass(frozen=True)
class RunsOn:
    """The runs that a claim declares: labels of an experiment, by the budgets that have them."""

    budgets: Mapping[str, Any]
    labels: tuple[str, ...]


def runs_on(item: pytest.Item) -> RunsOn | None:
    """What `@trains(budgets, label, ...)` says; None for a claim that trains nothing.

    Raises:
        pytest.UsageError: the mark stands there without budgets and labels, or with unknown ones.
    """
    mark = item.get_closest_marker("trains")
    return None if mark is None else declared(mark, item.nodeid)


def declared(mark: pytest.Mark, where: str) -> RunsOn:
    budgets, *labels = mark.args or (None,)
    known = isinstance(budgets, Mapping) and set() < set(budgets) <= set(BUDGETS)
    if not known or not labels:
        raise pytest.UsageError(
            f"{where}: write @trains(EXPERIMENT, label, ...); an experiment has budgets "
            f"{' or '.join(BUDGETS)}"
        )
    able = {b: e for b, e in budgets.items() if all(label in e.runs for label in labels)}
    if not able:
        there = "; ".join(f"{b}: {', '.join(e.runs)}" for b, e in budgets.items())
        raise pytest.UsageError(
            f"{where}: no budget of the experiment has the runs {', '.join(labels)}; {there}"
        )
    return RunsOn(able, tuple(labels))


def budget_of(item: pytest.Item) -> str | None:
    """The budget at which an item of a trained claim runs; None for every other item."""
    budget: str | None = _parameter(item, "budget")
    return budget


def base_seed_of(item: pytest.Item) -> int | None:
    """The base seed of an item that runs once for each of a range; None for every other item."""
    seed: int | None = _parameter(item, "base_seed")
    return seed


def _parameter(item: pytest.Item, name: str) -> Any:
    parameters = getattr(item, "callspec", None)
    return parameters.params.get(name) if parameters else None
