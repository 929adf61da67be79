"""Implementations side by side: verdicts on the same claims, known mistakes, and times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from claims.harness.report import OF_OTHERS, VERDICTS
from claims.report.merging import Merged
from claims.report.stored import Stored


@dataclass(frozen=True)
class SideBySide:
    """A table with a row for each implementation.

    header    what each column is, the implementation's name first
    rows      cells as text, in the order of the header
    note      what was counted, and how it was timed
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str


def side_by_side(merged: Merged) -> SideBySide:
    """The table. Times are those of the newest comparison alone: others were not measured in turn
    with these.
    """
    packages = merged.implementations
    common = [claim for claim in merged.claims if all(p in claim.verdicts for p in packages)]
    counts = {p: Counter(claim.verdicts[p] for claim in common) for p in packages}
    verdicts = [v for v in (*VERDICTS, *OF_OTHERS) if any(counts[p][v] for p in packages)]
    alike = {p: _alike(merged.files, p) for p in packages}
    likely = ["looks like"] if any(alike.values()) else []
    timed = next((file.comparison for file in merged.files if file.comparison), None)
    whats = timed.whats if timed else ()
    rows = [
        [
            package, *(str(counts[package][verdict]) for verdict in verdicts),
            *([alike[package] or "-"] if likely else ()),
            *(timed.shown(package, what) for what in whats if timed),
        ]
        for package in packages
    ]  # fmt: skip
    note = f"Verdicts of the {len(common)} claims that every one of them was asked about."
    if timed:
        note += f" {timed.note}"
    header = ["implementation", *verdicts, *likely, *(f"{what}, ms" for what in whats)]
    return SideBySide(header, rows, note)


def _alike(files: Sequence[Stored], package: str) -> str:
    said = (
        str(each["mistake"]["says"])
        for file in files if file.implementation == package for each in file.looks_like
    )  # fmt: skip
    return "; ".join(dict.fromkeys(said))
