"""How often the diagnosis of a failed run is right, on the stored fingerprints.

    python -m claims.studies.diagnoses fixtures/implementations

writes FOLDER/diagnoses.csv, a row for each kind of case. Nothing is run: that two mistakes at once
break what either breaks is assumed, and that a mistake breaks in a library what it breaks in
`transformer/`, of the claims that say something about the library.
"""

from __future__ import annotations

import argparse
import csv
import io
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

from claims.harness import paths
from claims.harness.diagnosis import FAILS, Known, fingerprints, known
from claims.harness.files import write_whole
from claims.harness.ledger import Ledger, load_ledger
from claims.studies import peers
from claims.studies.markdown import table

SEED = 17
EXTRA = 2  # claims that fail for no reason, in a noisy case


@dataclass(frozen=True)
class Case:
    """A failed run: what was made, by name, what failed and what ran, and what is known."""

    made: Collection[str]
    failed: Collection[str]
    ran: Collection[str]
    known: Known


@dataclass(frozen=True)
class Row:
    """How many cases of a kind ended in which way.

    first      a mistake that was made is named first, or as equally likely as the first
    every      every mistake that was made is named
    silent     none is named
    another    one is named, in whatever place, where neither it nor an equally likely one was made
    """

    kind: str
    cases: int
    first: int
    every: int
    silent: int
    another: int


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m claims.studies.diagnoses")
    parser.add_argument("folder", type=Path, help="fixtures/implementations")
    folder = parser.parse_args(arguments).folder
    try:
        mistakes, outside = known(folder), fingerprints(folder / "outside.csv")
    except OSError as error:
        parser.error(f"{error.filename} is missing; run python -m claims.studies.fingerprints")
    ledger = load_ledger(paths.LEDGER)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(Row.__annotations__), lineterminator="\n")
    writer.writeheader()
    for kind, cases in kinds(mistakes, outside, ledger).items():
        writer.writerow(asdict(row(kind, cases)))
    write_whole(folder / "diagnoses.csv", text.getvalue())
    return 0


def kinds(
    mistakes: Known, outside: Mapping[str, Collection[str]], ledger: Ledger
) -> dict[str, Iterable[Case]]:
    """The cases of each kind."""
    prints, claims = mistakes.fingerprints, list(ledger.entries)
    libraries = list(_libraries(ledger))
    return {
        "a known mistake": [Case({name}, prints[name], claims, mistakes) for name in prints],
        "a known mistake, half of the claims run": _halves(mistakes, claims),
        "a known mistake, with noise": _noisy(mistakes, claims),
        "two known mistakes at once": [
            Case({a, b}, prints[a] | prints[b], claims, mistakes)
            for a, b in combinations(prints, 2)
        ],
        "a mistake taken off the list": [
            Case((), prints[name], claims, mistakes.without(name)) for name in prints
        ],
        "a departure that was never on the list": [
            Case((), failed, claims, mistakes) for failed in outside.values()
        ],
        "a known mistake, in a library": [
            Case({name}, failed, ran, mistakes)
            for broken, ran in libraries for name, failed in _made_in(broken, ran, prints).items()
        ],
        "two known mistakes at once, in a library": [
            Case({a, b}, made[a] | made[b], ran, mistakes)
            for broken, ran in libraries
            for made in [_made_in(broken, ran, prints)] for a, b in combinations(made, 2)
        ],
        "a mistake taken off the list, in a library": [
            Case((), failed, ran, mistakes.without(name))
            for broken, ran in libraries for name, failed in _made_in(broken, ran, prints).items()
        ],
        "a departure that was never on the list, in a library": [
            Case((), failed, ran, mistakes)
            for broken, ran in libraries for failed in _made_in(broken, ran, outside).values()
        ],
    }


def _libraries(ledger: Ledger) -> Iterator[tuple[set[str], set[str]]]:
    """Of each peer, what fails as it is, and what is judged, by the stored verdicts on it.

    Claims that bind the chapter alone have no part in the diagnosis of somebody else's package.
    """
    with (peers.FOLDER / "verdicts.csv").open(encoding="utf-8", newline="") as file:
        rows = [
            row for row in csv.DictReader(file)
            if row["verdict"] not in ("not run", "error") and ledger[row["claim"]].bound == "anyone"
        ]
    for package in dict.fromkeys(row["package"] for row in rows):
        of_it = [row for row in rows if row["package"] == package]
        yield (
            {row["claim"] for row in of_it if row["verdict"] == "failed"},
            {row["claim"] for row in of_it},
        )


def _made_in(
    broken: Set[str], ran: Set[str], prints: Mapping[str, Collection[str]]
) -> dict[str, Set[str]]:
    """Mistake -> what fails where it is made, of those that are noticed at all."""
    return {name: broken | (ran & {*claims}) for name, claims in prints.items() if ran & {*claims}}


def _halves(mistakes: Known, claims: Sequence[str]) -> Iterator[Case]:
    for name, failed in mistakes.fingerprints.items():
        ran = set(random.Random(f"{SEED} {name}").sample(claims, len(claims) // 2))
        yield Case({name}, failed & ran, ran, mistakes)


def _noisy(mistakes: Known, claims: Sequence[str]) -> Iterator[Case]:
    """One claim in ten does not fail, and two others do."""
    for name, fingerprint in mistakes.fingerprints.items():
        draw = random.Random(f"{SEED} {name}")
        failed = {claim for claim in sorted(fingerprint) if draw.random() < FAILS}
        yield Case({name}, failed | set(draw.sample(claims, EXTRA)), claims, mistakes)


def row(kind: str, cases: Iterable[Case]) -> Row:
    """How the diagnosis ends in these cases."""
    ends = []
    for case in cases:
        groups: list[set[str]] = []
        for each in case.known.looks_like(case.failed, case.ran):
            groups += [] if each.instead else [set()]
            groups[-1].add(each.mistake.name)
        made = set(case.made)
        first = bool(groups and groups[0] & made)
        every = bool(made) and made <= set().union(*groups)
        ends.append((first, every, not groups, any(not group & made for group in groups)))
    return Row(kind, len(ends), *(sum(column) for column in zip(*ends, strict=True)))


def shown(rows: Iterable[Mapping[str, str]]) -> str:
    """The table as Markdown."""
    header = ("what was made", "cases", "named first", "all named", "silent", "another named")
    return table(header, [list(each.values()) for each in rows])


if __name__ == "__main__":
    raise SystemExit(main())
