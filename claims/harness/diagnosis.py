"""Which known mistake a failed run looks like, by the claims that the mistake breaks.

`fixtures/implementations/mistakes.yaml` has each as a change to `transformer/` and a sentence;
`fingerprints.csv` beside it has the claims that each breaks (`claims.studies.fingerprints` measures
them). Claims that need training or a GPU have no part in it.
"""

from __future__ import annotations

import csv
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path

import yaml

from claims.harness import paths

FOLDER = paths.IMPLEMENTATIONS
# Of the claims that either side broke, this share must be broken by both.
ALIKE = 0.5
SHOWN = 3


@dataclass(frozen=True)
class Mistake:
    """A line that occurs once in a file of `transformer/`, and the mistake that replaces it."""

    name: str
    says: str
    file: str
    old: str
    new: str

    def make(self, package: Path) -> None:
        """Change a copy of the package.

        Raises ValueError unless the file is there and has the line exactly once.
        """
        path = package / self.file
        if not path.is_file():
            raise ValueError(f"mistake {self.name}: {self.file} does not exist")
        source = path.read_text(encoding="utf-8")
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"mistake {self.name}: {self.file} has {count} times: {self.old}")
        path.write_text(source.replace(self.old, self.new), encoding="utf-8")


@dataclass(frozen=True)
class Likeness:
    """How far a failed run agrees with a mistake.

    broken    claims that both break, out of the `of` claims of the mistake that ran
    others    claims that the run breaks and the mistake does not
    """

    mistake: Mistake
    broken: int
    of: int
    others: int

    @property
    def share(self) -> float:
        return self.broken / (self.of + self.others)

    def __str__(self) -> str:
        beside = f", and {self.others} more" if self.others else ""
        return (
            f"{self.mistake.says} ({self.mistake.name}: {self.broken} of the {self.of} claims "
            f"that it breaks{beside})"
        )


def mistakes(folder: Path) -> list[Mistake]:
    """Those of `mistakes.yaml`, in its order. Raises ValueError for a file of another kind."""
    path = folder / "mistakes.yaml"
    try:
        return [Mistake(**entry) for entry in yaml.safe_load(path.read_text(encoding="utf-8"))]
    except (yaml.YAMLError, TypeError) as error:
        allowed = ", ".join(field.name for field in fields(Mistake))
        raise ValueError(f"{path} must be a list, with {allowed} in each entry: {error}") from error


def fingerprints(folder: Path) -> dict[str, set[str]]:
    """Name of the mistake -> the claims that it breaks."""
    found: dict[str, set[str]] = {}
    with (folder / "fingerprints.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["mistake"], set()).add(row["claim"])
    return found


def looks_like(failed: Collection[str], ran: Collection[str]) -> list[Likeness]:
    """The known mistakes that break nearly the same claims, the most similar first.

    Empty where more than three fit equally well.

    Args:
        failed: ids of the claims that turned out otherwise than the ledger says.
        ran: ids of all claims that ran; of a mistake's claims only these are counted.
    """
    if not failed:
        return []
    breaks = fingerprints(FOLDER)
    every = [_likeness(m, breaks.get(m.name, set()), failed, ran) for m in mistakes(FOLDER)]
    alike = [each for each in every if each.broken and each.share >= ALIKE]
    alike.sort(key=lambda each: -each.share)
    # A single claim that failed may be of a dozen mistakes, and points to none.
    undecided = len(alike) > SHOWN and alike[SHOWN].share == alike[0].share
    return [] if undecided else alike[:SHOWN]


def _likeness(
    mistake: Mistake, breaks: Collection[str], failed: Collection[str], ran: Collection[str]
) -> Likeness:
    of = set(breaks) & set(ran)
    return Likeness(mistake, len(of & set(failed)), len(of), len(set(failed) - of))
