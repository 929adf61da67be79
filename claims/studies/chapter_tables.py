"""The stored tables of the chapter in Markdown, in the chapter's order."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

from claims.harness import paths
from claims.harness.ledger import Entry, Ledger
from claims.studies.markdown import table

MODULE = "test_chapter_tables"


def restored(ledger: Ledger) -> str:
    """Each table below its line and what it shows."""
    entries = sorted(ledger.of_module(MODULE), key=lambda entry: entry.id)
    return "\n".join(part for entry in entries for part in _parts(entry))


def _parts(entry: Entry) -> Iterator[str]:
    file = f"{MODULE}/{entry.id}.csv"
    line = re.sub(r"table-l0*(\d+)-.*", r"\1", entry.id)
    yield f"**l.{line}. {entry.statement}** [`{entry.id}`](../fixtures/expected/{file})\n"
    with (paths.EXPECTED / file).open(encoding="utf-8", newline="") as lines:
        header, *rows = csv.reader(lines)
    yield table(header, rows)
