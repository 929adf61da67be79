"""Several stored runs of the claims as one: two devices, two budgets, two implementations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from claims.harness.ledger import Entry, Ledger
from claims.harness.paths import REFERENCE
from claims.report.stored import Stored

# A claim that ran several times, over seeds or budgets, has the first of these that occurs.
WORST = (
    "error", "failed", "departs", "refuted", "open", "holds", "exact", "background", "not run"
)  # fmt: skip



@dataclass(frozen=True)
class Run:
    """One run of one claim, and the file that has it."""

    file: Stored
    data: Mapping[str, Any]

    @property
    def verdict(self) -> str:
        return str(self.data["verdict"])

    @property
    def budget(self) -> str:
        return str(self.data["budget"])


@dataclass(frozen=True)
class Claim:
    """A claim with everything that the files say of it.

    verdicts     implementation -> verdict
    runs         the newest first
    conflicts    sentences: files of one implementation that decided it differently
    known        False for a claim that today's ledger does not have
    """

    entry: Entry
    verdicts: Mapping[str, str]
    runs: Sequence[Run]
    conflicts: Sequence[str]
    known: bool


@dataclass(frozen=True)
class Merged:
    """Everything that a report shows.

    files              the newest first
    implementations    the reference first, where it is there
    claims             in the ledger's order
    """

    ledger: Ledger
    files: Sequence[Stored]
    implementations: Sequence[str]
    claims: Sequence[Claim]

    @property
    def main(self) -> str:
        """The implementation whose verdicts stand first."""
        return self.implementations[0]

    def count(self, implementation: str, section: str | None = None) -> Counter[str]:
        """How many claims have each verdict."""
        return Counter(
            claim.verdicts[implementation]
            for claim in self.claims
            if implementation in claim.verdicts and section in (None, claim.entry.section)
        )

    def reference(self, claim: Claim) -> str:
        """What the claim is of the reference: measured in one of the files, else the ledger's."""
        if REFERENCE in claim.verdicts:
            return claim.verdicts[REFERENCE]
        expected = [str(run.data["expected_verdict"]) for run in claim.runs]
        return expected[0] if expected else claim.entry.verdict

    def with_verdict(self, *verdicts: str) -> list[Claim]:
        """The claims that have one of these verdicts for the main implementation."""
        return [claim for claim in self.claims if claim.verdicts.get(self.main) in verdicts]


def merge(files: Iterable[Stored], ledger: Ledger) -> Merged:
    """Newest evidence first: of two files that decided a claim, the newer one counts.

    A claim is judged for each implementation and budget, and over the budgets it has its worst
    verdict. A file that did not run a claim says nothing against one that did.
    """
    newest = sorted(files, key=lambda file: file.made, reverse=True)
    packages = sorted(
        dict.fromkeys(file.implementation for file in newest), key=lambda p: p != REFERENCE
    )
    runs: dict[str, list[Run]] = {}
    for file in newest:
        for data in file.runs:
            runs.setdefault(str(data["claim"]), []).append(Run(file, data))
    said = {name for file in newest for name in file.verdicts} | runs.keys()
    names = [*(n for n in ledger.entries if n in said), *sorted(said - ledger.entries.keys())]
    claims = [_claim(name, runs.get(name, []), newest, packages, ledger) for name in names]
    return Merged(ledger, newest, packages, claims)


def _claim(
    name: str, runs: Sequence[Run], files: Sequence[Stored], packages: Iterable[str], ledger: Ledger
) -> Claim:
    verdicts: dict[str, str] = {}
    conflicts: list[str] = []
    for package in packages:
        own = [run for run in runs if run.file.implementation == package]
        said = [
            file.verdicts[name] for file in files
            if file.implementation == package and name in file.verdicts
        ]
        decided = []
        for budget in sorted({run.budget for run in own}):
            by_file = _by_file([run for run in own if run.budget == budget])
            if by_file:
                decided.append(by_file[0][1])
            if len({verdict for _, verdict in by_file}) > 1:
                conflicts.append(_conflict(package, budget, by_file))
        if decided:
            verdicts[package] = min(decided, key=WORST.index)
        elif said or own:
            verdicts[package] = said[0] if said else "not run"
    known = name in ledger
    entry = ledger[name] if known else _unknown(name, runs)
    return Claim(entry, verdicts, runs, conflicts, known)


def _by_file(runs: Sequence[Run]) -> list[tuple[Stored, str]]:
    """The verdict of each file that decided a claim, the newest first."""
    found: dict[int, tuple[Stored, str]] = {}
    for run in runs:
        if run.verdict != "not run":
            _, other = found.get(id(run.file), (run.file, run.verdict))
            found[id(run.file)] = run.file, min(run.verdict, other, key=WORST.index)
    return list(found.values())


def _conflict(package: str, budget: str, by_file: Sequence[tuple[Stored, str]]) -> str:
    at = f", budget {budget}" if budget else ""
    said = "; ".join(f"{verdict} in {f.name} ({f.day}, {f.where})" for f, verdict in by_file)
    return f"{package}{at}: {said}"


def _unknown(name: str, runs: Sequence[Run]) -> Entry:
    """A claim of another day's ledger, as far as its runs tell."""
    if not runs:
        return Entry(name, "", "Today's ledger does not have this claim.", "", "")
    data = runs[0].data
    return Entry(
        id=name, section=data["section"], statement=data["statement"], kind="",
        verdict=data["expected_verdict"], line=data["line"],
        beyond="" if data["line"] else "beyond the chapter",
    )
