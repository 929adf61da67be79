"""The generated parts of README.md and docs/: `python -m claims.studies.docs`.

They show the ledger, the stored tables of the chapter and the records in fixtures/studies. Nothing
is measured for them.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence

from claims.harness import paths
from claims.harness.files import write_whole
from claims.harness.ledger import load_ledger
from claims.studies import (
    chapter_tables,
    document_tables,
    repetitions,
    verdicts,
    winograd_tables,
)
from claims.studies.markdown import COMMAND, with_parts


def main(arguments: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(prog=COMMAND, description=__doc__).parse_args(arguments)
    for name, parts in generated().items():
        path = paths.ROOT / name
        write_whole(path, with_parts(path.read_text(encoding="utf-8"), parts))
    return 0


def generated() -> dict[str, dict[str, str]]:
    """For each document with generated parts: the name and the content of each part."""
    ledger = load_ledger(paths.LEDGER)
    return {
        "README.md": {
            "verdicts": verdicts.by_section(ledger, verdicts.stored())
            + "\n"
            + verdicts.summary(ledger, verdicts.stored()),
        },
        "docs/results.md": {
            "refuted": verdicts.sentences(ledger, "refuted", verdicts.stored()),
            "open": verdicts.sentences(ledger, "open", verdicts.stored()),
            "the chapter's tables": chapter_tables.restored(ledger),
            **document_tables.tables(document_tables.values_of(_rows("document/runs.csv"))),
        },
        "docs/winograd.md": {
            "accuracy": winograd_tables.accuracy(_rows("winograd/accuracy.csv")),
            "circuits": winograd_tables.circuits(_rows("winograd/circuits.csv")),
            "cuts": winograd_tables.cuts(_rows("winograd/cuts.csv")),
            "induction": winograd_tables.induction(_rows("winograd/induction.csv")),
        },
        "docs/how-verdicts-are-made.md": {
            "margins": repetitions.shown(_rows("repetitions/margins.csv")),
        },
    }


def _rows(file: str) -> list[dict[str, str]]:
    """The rows of a file of fixtures/studies."""
    with (paths.FIXTURES / "studies" / file).open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


if __name__ == "__main__":
    raise SystemExit(main())
