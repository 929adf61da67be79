"""Measures which claims each known mistake breaks.

    python -m claims.studies.fingerprints fixtures/implementations

makes every mistake of FOLDER/mistakes.yaml and of FOLDER/outside.yaml in a copy of `transformer/`,
runs the claims that need neither training nor a GPU against it, and writes into FOLDER

fingerprints.csv    a row for each known mistake and claim that it breaks
outside.csv         the same for the mistakes from outside of the list, on which the diagnosis is
                    tested
provenance.json     with what it was measured

A claim breaks by a measured disagreement; a test that crashed does not count. What was measured is
kept in the user cache, so that a run that was stopped goes on, and a change of a claim measures its
module anew. Claims that take seconds are left out. A mistake that no claim notices is named, and
the command then ends with status 1.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.progress import track

from claims.harness import machine
from claims.harness.diagnosis import Mistake, mistakes
from claims.harness.files import cache_dir, write_whole
from claims.harness.mark import claim_id
from claims.harness.stash import CORPUS_LINE, LEDGER
from claims.studies.variants import (
    CHOICE,
    EXAMPLES,
    REFERENCE,
    Session,
    Variant,
    collected,
    evidence_digest,
    sha256,
)

LISTS = {"mistakes.yaml": "fingerprints.csv", "outside.yaml": "outside.csv"}
# They take half of the time of a run.
SLOW = frozenset({
    "gradnorm-pre", "gradnorm-post", "gradnorm-ordering", "gradnorm-over-all-parameters",
    "table-l145-gradient-norms", "postnorm-gradient-badly-scaled", "winner-is-random-draw",
    "table-l169-cost", "mb-are-allocator-counts", "flashattention-stores-no-matrix",
    "order-blind-same-logits", "more-tokens-no-less-memory", "peak-memory-at-any-size",
    "init-score-std-formula", "divided-init-score-std", "table-l095-variance", "variance-table",
})  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m claims.studies.fingerprints")
    parser.add_argument("folder", type=Path, help="has mistakes.yaml; where to write")
    folder = parser.parse_args(arguments).folder
    if not (folder / "mistakes.yaml").is_file():
        parser.error(f"{folder} has no mistakes.yaml; give fixtures/implementations")
    try:
        lists = {name: mistakes(folder / name) for name in LISTS if (folder / name).exists()}
        made = {each.name: made_in_a_copy(each) for found in lists.values() for each in found}
    except ValueError as error:
        parser.error(str(error))
    measured = Measured()
    with tempfile.TemporaryDirectory() as work:
        collected(Path(work), partial(measured.measure, made))
    for name, found in lists.items():
        _write(folder / LISTS[name], found, measured.broken)
    write_whole(folder / "provenance.json", json.dumps(measured.facts, indent=2) + "\n")
    unnoticed = [m.name for m in lists["mistakes.yaml"] if not measured.broken[m.name]]
    for name in unnoticed:
        print(f"no claim notices {name}", file=sys.stderr)
    return 1 if unnoticed else 0


def made_in_a_copy(mistake: Mistake) -> Variant:
    """`transformer/` with the mistake. Raises ValueError when the line to change is not there."""
    source = mistake.made_in(REFERENCE)
    return Variant("with_" + mistake.name.replace("-", "_"), mistake.file, source)


def _write(path: Path, found: Iterable[Mistake], broken: Mapping[str, list[str]]) -> None:
    rows = [(each.name, claim) for each in found for claim in broken.get(each.name, ())]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("mistake", "claim"), *rows])
    write_whole(path, text.getvalue())


class Measured:
    """Mistake -> the claims that it breaks, in the ledger's order."""

    def __init__(self) -> None:
        self.broken: dict[str, list[str]] = {}
        self.facts: dict[str, Any] = {}

    def measure(self, made: Mapping[str, Variant], session: Session) -> None:
        # The quick ones first: a run that is stopped has measured many.
        quick_first = sorted(made.items(), key=lambda item: len(session.items_for(item[1])))
        for name, variant in track(quick_first, "mistakes"):
            self.broken[name] = _broken(variant, session)
        option = session.config.getoption
        self.facts = {
            "command": f'pytest claims -m "{CHOICE}" --implementation <copy with the mistake>',
            "examples of a property": EXAMPLES,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "base_seed": option("base_seed"),
            "machine": machine.description(),
            # The path of the file says nothing about what was measured.
            "corpus": session.config.stash[CORPUS_LINE].partition(", from ")[0],
        }


def _broken(variant: Variant, session: Session) -> list[str]:
    items = [item for item in session.items_for(variant) if claim_id(item) not in SLOW]
    outcomes = outcomes_of(variant, items, session)
    ledger = session.config.stash[LEDGER]
    return [claim for claim in ledger.entries if outcomes.get(claim) == "failed"]


def outcomes_of(
    variant: Variant, items: Sequence[pytest.Item], session: Session
) -> Mapping[str, str]:
    """Claim -> outcome. What is stored of a test module is not run again."""
    stored = {item.path: _place(variant, item) for item in items}
    missing = [item for item in items if not stored[item.path].exists()]
    judged = session.judge(variant, missing)
    if judged.fault:
        raise RuntimeError(f"{variant.name} could not be judged: {judged.fault}")
    for path in {item.path for item in missing}:
        claims = {claim_id(item) for item in missing if item.path == path}
        found = {claim: o for claim, o in judged.outcomes.items() if claim in claims}
        write_whole(stored[path], json.dumps(found))
    outcomes: dict[str, str] = {}
    for place in stored.values():
        outcomes |= json.loads(place.read_text(encoding="utf-8"))
    return outcomes


def _place(variant: Variant, item: pytest.Item) -> Path:
    """Where the outcomes of the item's test module are kept."""
    name = sha256([variant.digest(), evidence_digest(item)])
    return cache_dir() / "mistakes" / f"{name}.json"


if __name__ == "__main__":
    raise SystemExit(main())
