"""`@claim("id")`: this test decides that entry of the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

claim = pytest.mark.claim


def claim_id(item: pytest.Item) -> str | None:
    """The id that a collected test is marked with; None for a test that is no claim.

    Raises:
        pytest.UsageError: the mark stands there without its one id.
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
