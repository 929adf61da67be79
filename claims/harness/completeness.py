"""Nothing runs unless ledger, tests and stored tables match, each entry with its test and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest

from claims.harness.ledger import Entry, Ledger
from claims.harness.mark import claim_id, claims_in, runs_on

# What an entry needs, and the fixture by which its test asks for it.
NEEDS = {"gpu": "cuda", "exact-corpus": "exact_corpus"}


def faults(ledger: Ledger, items: Iterable[pytest.Item], expected: Path) -> list[str]:
    """Every entry without a test, test without an entry, table without a test, in sentences.

    Whole test modules are compared, whatever was selected of them, so that `-k` and single files
    work.
    """
    functions = [item for item in items if isinstance(item, pytest.Function)]
    found = [fault for item in functions for fault in _item_faults(ledger, item)]
    modules: dict[str, ModuleType] = {
        item.module.__name__.rpartition(".")[2]: item.module for item in functions if claim_id(item)
    }
    for name, module in modules.items():
        found += _module_faults(ledger, name, module)
        found += _table_faults(name, module, functions, expected)
    return sorted(set(found))


def unknown_tables(ledger: Ledger, expected: Path) -> list[str]:
    """Stored tables that belong to no claim of the ledger."""
    known = {(entry.module, entry.id) for entry in ledger.entries.values() if entry.has_test}
    return [
        f"stored table {path.parent.name}/{path.name}: no claim '{path.stem}' in {path.parent.name}"
        for path in sorted(expected.glob("*/*.csv"))
        if (path.parent.name, path.stem) not in known
    ]


def _item_faults(ledger: Ledger, item: pytest.Function) -> list[str]:
    name = claim_id(item)
    if name is None or name not in ledger:
        return []  # named once per module
    entry = ledger[name]
    return _budget_faults(entry, item) + [
        f"claim {name}: the ledger says it needs {need}, its test uses no `{fixture}`"
        if need in entry.needs
        else f"claim {name}: its test uses `{fixture}`, the ledger says nothing of {need}"
        for need, fixture in NEEDS.items()
        if (need in entry.needs) != (fixture in item.fixturenames)
    ]


def _budget_faults(entry: Entry, item: pytest.Item) -> list[str]:
    """A verdict at the document's budget needs runs at that budget."""
    declared = runs_on(item)
    if entry.at_document is None or (declared is not None and "document" in declared.budgets):
        return []
    return [
        f"claim {entry.id}: the ledger has a verdict at the document's budget, "
        "but its test trains nothing at it"
    ]


def _module_faults(ledger: Ledger, name: str, module: ModuleType) -> list[str]:
    tests = list(claims_in(module))
    found = [
        f"claim {claim}: {count} tests of {name} decide it, one should"
        for claim, count in Counter(claim for claim, _ in tests).items()
        if count > 1
    ]
    for claim, test in tests:
        if claim not in ledger:
            found.append(
                f"claim {claim}: {name}.{test} decides it, but the ledger has no such entry"
            )
        elif ledger[claim].module != name:
            found.append(
                f"claim {claim}: belongs to {ledger[claim].module}, but {name}.{test} decides it"
            )
        elif not ledger[claim].has_test:
            found.append(
                f"claim {claim}: {name}.{test} decides it, but the ledger's verdict is "
                f"'{ledger[claim].verdict}'"
            )
    tested = {claim for claim, _ in tests}
    found += [
        f"claim {entry.id}: the ledger's verdict is '{entry.verdict}', "
        f"but no test of {name} decides it"
        for entry in ledger.of_module(name)
        if entry.has_test and entry.id not in tested
    ]
    return found


def _table_faults(
    name: str, module: ModuleType, functions: list[pytest.Function], expected: Path
) -> list[str]:
    users = {
        claim_id(item)
        for item in functions
        if item.module is module and "table" in item.fixturenames
    }
    collected = {claim_id(item) for item in functions if item.module is module}
    return [
        f"stored table {name}/{path.name}: the test of claim '{path.stem}' compares no table"
        for path in sorted(expected.glob(f"{name}/*.csv"))
        if path.stem in collected and path.stem not in users
    ]
