"""What docs/known-mistakes.md shows of the stored fingerprints."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from claims.harness.diagnosis import FOLDER, fingerprints
from claims.harness.ledger import Ledger
from claims.studies.markdown import table

UNBROKEN = FOLDER / "unbroken.yaml"


def broken() -> set[str]:
    """The claims that a known mistake breaks."""
    return set().union(*fingerprints(FOLDER / "fingerprints.csv").values())


def testable(ledger: Ledger) -> list[str]:
    """The claims of an implementation that the known mistakes are tried on."""
    return [
        entry.id for entry in ledger.entries.values()
        if entry.has_test and entry.kind != "training" and not entry.needs_document
        and "gpu" not in entry.needs and entry.bound != "nobody"
    ]


def unbroken() -> list[Mapping[str, Any]]:
    """Why no known mistake breaks some claims: `reason` and `claims` of each entry."""
    found: list[Mapping[str, Any]] = yaml.safe_load(UNBROKEN.read_text(encoding="utf-8"))
    return found


def summary(ledger: Ledger) -> str:
    """How many mistakes break how many claims, and why some claims are broken by none."""
    sizes = [len(claims) for claims in fingerprints(FOLDER / "fingerprints.csv").values()]
    tried = testable(ledger)
    rows = [(each["reason"], str(len(each["claims"]))) for each in unbroken()]
    return (
        f"{len(sizes)} known mistakes each break {min(sizes)} to {max(sizes)} claims. Of the "
        f"{len(tried)} claims that ask\nsomething of an implementation, and need neither training "
        f"nor a GPU, {len(broken() & set(tried))} are broken by\none of them. The others, by name "
        f"in [`unbroken.yaml`](../fixtures/implementations/unbroken.yaml):\n\n"
        + table(("why no known mistake breaks them", "claims"), rows)
    )


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
