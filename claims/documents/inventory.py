"""The figures that the chapter prints, line by line, each with the claim that it belongs to.

The list is `fixtures/documents/figures.yaml`. It was reviewed by hand. It is what a single
translation can be compared with, and what says of a figure that it is no claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from claims.harness import paths
from claims.harness.ledger import Ledger

INVENTORY = paths.FIXTURES / "documents" / "figures.yaml"


class InventoryError(ValueError):
    """The list of figures and the ledger disagree; the message names every line at fault."""


@dataclass(frozen=True)
class Printed:
    """One figure of the chapter: its value as `notation.Figure` has it, and what it belongs to."""

    value: str
    by: str  # the id of a claim, or a kind of what is no claim


@dataclass(frozen=True)
class Inventory:
    lines: int
    blank: frozenset[int]
    verbatim: frozenset[int]  # code and printed output, the same in every language
    no_claim: Mapping[str, str]  # kinds of figures that are no claim, and what each is
    words: Mapping[str, tuple[str, ...]]  # a language's numbers in words that no library has
    figures: Mapping[int, tuple[Printed, ...]]
    orders: Mapping[int, Mapping[str, tuple[str, ...]]]  # by line and language

    def order(self, line: int, language: str) -> tuple[str, ...]:
        """The values of a line in the order in which a language has them."""
        usual = tuple(printed.value for printed in self.figures.get(line, ()))
        return self.orders.get(line, {}).get(language, usual)


def load_inventory(path: Path, ledger: Ledger) -> Inventory:
    """Read the list.

    Raises:
        InventoryError: a figure belongs to no entry of the ledger and to no kind of non-claim, or
            a language's order has other figures than its line.
    """
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = Inventory(
        lines=data["lines"],
        blank=_numbers(data["blank"]),
        verbatim=_numbers(data["verbatim"]),
        no_claim=data["no_claim"],
        words={language: tuple(words.split()) for language, words in data["words"].items()},
        figures={line: tuple(_printed(groups)) for line, groups in data["figures"].items()},
        orders={
            line: {language: tuple(order.split()) for language, order in orders.items()}
            for line, orders in data["orders"].items()
        },
    )
    faults = [
        f"l.{line}: '{printed.by}' is neither a claim of the ledger nor one of "
        f"{', '.join(found.no_claim)}"
        for line, row in found.figures.items()
        for printed in row
        if printed.by not in ledger and printed.by not in found.no_claim
    ]
    faults += [
        f"l.{line}: the order in {language} has other figures than the line"
        for line, orders in found.orders.items()
        for language, order in orders.items()
        if sorted(order) != sorted(printed.value for printed in found.figures.get(line, ()))
    ]
    if faults:
        raise InventoryError(f"{path.name}:\n" + "\n".join(f"  {fault}" for fault in faults))
    return found


def _numbers(ranges: str) -> frozenset[int]:
    """The numbers of '2 4 19-22'."""
    bounds = [[int(end) for end in part.split("-")] for part in str(ranges).split()]
    return frozenset(number for b in bounds for number in range(b[0], b[-1] + 1))


def _printed(groups: list[Any]) -> list[Printed]:
    """Each group is one or more figures and, last, what they belong to."""
    rows = [str(group).split() for group in groups]
    return [Printed(value, row[-1]) for row in rows for value in row[:-1]]
