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
module anew. Claims that take seconds are tried on the mistakes alone that name them (`also`). A
mistake that no claim notices is named, and the command then ends with status 1.

    python -m claims.studies.fingerprints fixtures/implementations --mistakes mask-of-zeros
    python -m claims.studies.fingerprints fixtures/implementations --tests claims/test_09_dropout.py

measure these mistakes or these tests alone, and leave the other rows as they are.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.progress import track

from claims.harness import machine
from claims.harness.diagnosis import Mistake, fingerprints, mistakes
from claims.harness.files import cache_dir, write_whole
from claims.harness.ledger import Ledger
from claims.harness.mark import claim_id
from claims.harness.paths import ROOT
from claims.harness.provenance import without_origin
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
    parser.add_argument("--mistakes", nargs="+", metavar="NAME", help="these alone")
    parser.add_argument("--tests", nargs="+", metavar="FILE", help="claims of these alone")
    options = parser.parse_args(arguments)
    folder = options.folder
    if not (folder / "mistakes.yaml").is_file():
        parser.error(f"{folder} has no mistakes.yaml; give fixtures/implementations")
    try:
        lists = {name: mistakes(folder / name) for name in LISTS if (folder / name).exists()}
        for found in lists.values():
            _demand_slow_claims(found)
        made = {
            each.name: (made_in_a_copy(each), each.also)
            for found in lists.values() for each in found
        }
    except ValueError as error:
        parser.error(str(error))
    for name in options.mistakes or ():
        if name not in made:
            parser.error(f"--mistakes {name}: {folder} has no mistake of that name")
    tests = [Path(name) for name in options.tests or ()]
    for test in tests:
        if not (ROOT / test).is_file():
            parser.error(f"--tests {test}: no such file in this project")
    if partly := bool(options.mistakes or tests):
        for name in (*LISTS.values(), "provenance.json"):
            if not (folder / name).is_file():
                parser.error(f"{folder} has no {name} to keep rows of; measure all of it first")
    chosen = {name: made[name] for name in options.mistakes or made}
    measured = Measured()
    with tempfile.TemporaryDirectory() as work:
        collected(Path(work), partial(measured.measure, chosen), options.tests or ("claims",))
    facts = measured.facts
    if partly:
        before = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
        part = {"mistakes": options.mistakes or "all", "tests": options.tests or "all"}
        part |= {"made": facts["made"], "machine": facts["machine"]}
        facts = before | {"measured anew": [*before.get("measured anew", ()), part]}
        stems = {test.stem for test in tests}
        for name in LISTS.values():
            _keep(measured, fingerprints(folder / name), stems)
    for name, found in lists.items():
        _write(folder / LISTS[name], found, measured.broken)
    write_whole(folder / "provenance.json", json.dumps(facts, indent=2) + "\n")
    unnoticed = [m.name for m in lists["mistakes.yaml"] if not measured.broken.get(m.name)]
    for name in unnoticed:
        print(f"no claim notices {name}", file=sys.stderr)
    return 1 if unnoticed else 0


def made_in_a_copy(mistake: Mistake) -> Variant:
    """`transformer/` with the mistake. Raises ValueError when the line to change is not there."""
    source = mistake.made_in(REFERENCE)
    return Variant("with_" + mistake.name.replace("-", "_"), mistake.file, source)


def _demand_slow_claims(made: Iterable[Mistake]) -> None:
    """Raise ValueError where a mistake names a claim that does not take seconds, or is none."""
    for mistake in made:
        if unknown := sorted({*mistake.also} - SLOW):
            known = ", ".join(sorted(SLOW))
            raise ValueError(
                f"mistake {mistake.name}: `also` has {', '.join(unknown)}; it may have {known}"
            )


def _keep(measured: Measured, before: Mapping[str, set[str]], stems: Collection[str]) -> None:
    """Take over what was not measured anew: other mistakes, and claims of other test modules."""
    order = list(measured.ledger.entries)
    for name, claims in before.items():
        again = name in measured.broken
        kept = {
            claim for claim in claims
            if claim in measured.ledger
            and not (again and (not stems or measured.ledger[claim].module in stems))
        }
        measured.broken[name] = sorted(kept.union(measured.broken.get(name, ())), key=order.index)


def _write(path: Path, found: Iterable[Mistake], broken: Mapping[str, list[str]]) -> None:
    rows = [(each.name, claim) for each in found for claim in broken.get(each.name, ())]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("mistake", "claim"), *rows])
    write_whole(path, text.getvalue())


class Measured:
    """Mistake -> the claims that it breaks, in the ledger's order."""

    ledger: Ledger

    def __init__(self) -> None:
        self.broken: dict[str, list[str]] = {}
        self.facts: dict[str, Any] = {}

    def measure(
        self, made: Mapping[str, tuple[Variant, Collection[str]]], session: Session
    ) -> None:
        """`made` has each mistake's copy, and the claims that take seconds and are tried on it."""
        self.ledger = session.config.stash[LEDGER]
        # The quick ones first: a run that is stopped has measured many.
        quick_first = sorted(made.items(), key=lambda item: len(session.items_for(item[1][0])))
        for name, (variant, also) in track(quick_first, "mistakes"):
            self.broken[name] = _broken(variant, also, session)
        option = session.config.getoption
        self.facts = {
            "command": f'pytest claims -m "{CHOICE}" --implementation <copy with the mistake>',
            "examples of a property": EXAMPLES,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "base_seed": option("base_seed"),
            "machine": machine.description(),
            "corpus": without_origin(session.config.stash[CORPUS_LINE]),
        }


def _broken(variant: Variant, also: Collection[str], session: Session) -> list[str]:
    outcomes = outcomes_of(variant, items_of(variant, also, session), session)
    ledger = session.config.stash[LEDGER]
    return [claim for claim in ledger.entries if outcomes.get(claim) == "failed"]


def items_of(variant: Variant, also: Collection[str], session: Session) -> list[pytest.Item]:
    """The claims that are tried on a variant: of those that take seconds `also` alone."""
    left_out = SLOW.difference(also)
    return [item for item in session.items_for(variant) if claim_id(item) not in left_out]


def outcomes_of(
    variant: Variant, items: Sequence[pytest.Item], session: Session
) -> Mapping[str, str]:
    """Claim -> outcome. What is stored of a test module is not run again."""
    slow = sorted({claim_id(item) or "" for item in items} & SLOW)
    stored = {item.path: _place(variant, item, slow) for item in items}
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


def _place(variant: Variant, item: pytest.Item, slow: Sequence[str]) -> Path:
    """Where the outcomes of the item's test module are kept, with those of slow claims."""
    name = sha256([variant.digest(), evidence_digest(item), *slow])
    return cache_dir() / "mistakes" / f"{name}.json"


if __name__ == "__main__":
    raise SystemExit(main())
