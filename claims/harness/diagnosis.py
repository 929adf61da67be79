"""Which known mistake a failed run looks like, by the claims that the mistake breaks.

`fixtures/implementations/mistakes.yaml` has each as a change to `transformer/` and a sentence;
`fingerprints.csv` beside it has the claims that each breaks, its fingerprint
(`claims.studies.fingerprints` measures them). Claims that need training or a GPU have no part in
it, nor have claims that did not run, or crashed. `claims.studies.diagnoses` measures how often the
answer is right.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

import yaml

from claims.harness import paths

FOLDER = paths.IMPLEMENTATIONS
SHOWN = 3  # mistakes, each with those that are as likely
MOST_ALIKE = 4  # that are equally likely and are named
# A claim of the fingerprint fails with this probability where the mistake was made: other code may
# make it in another way.
FAILS = 0.9
FEWEST = 2  # claims that both break
# Of the claims of a fingerprint that ran, this share must have failed.
SHARE = 0.75
# The logarithm of the odds that the evidence must give, before a mistake is named; less suffices
# where every claim of the fingerprint that ran has failed.
ODDS, ODDS_OF_ALL = 8.0, 7.0
# Mistakes whose odds differ by less than this are equally likely.
ALIKE = 1.0


@dataclass(frozen=True)
class Mistake:
    """A line that occurs once in a file of `transformer/`, and the mistake that replaces it.

    also    claims that take seconds, and are tried on this mistake all the same
    """

    name: str
    says: str
    file: str
    old: str
    new: str
    also: Sequence[str] = ()

    def made_in(self, package: Path) -> str:
        """The file's text with the mistake.

        Raises ValueError unless the file is there and has the line exactly once.
        """
        path = package / self.file
        if not path.is_file():
            raise ValueError(f"mistake {self.name}: {self.file} does not exist")
        source = path.read_text(encoding="utf-8")
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"mistake {self.name}: {self.file} has {count} times: {self.old}")
        return source.replace(self.old, self.new)


@dataclass(frozen=True)
class Likeness:
    """How far a failed run agrees with a mistake.

    broken    claims that both break, out of the `of` claims of the fingerprint that ran
    known     claims of the whole fingerprint
    others    claims that the run breaks and the mistake does not; they say nothing against it
    odds      logarithm of the odds for the mistake, from the claims of the fingerprint that ran
    instead   it explains the same as the one named before it, and about as well
    """

    mistake: Mistake
    broken: int
    of: int
    known: int
    others: int
    odds: float
    instead: bool = False

    def __str__(self) -> str:
        ran = f"{self.of} of the {self.known} claims that it breaks ran"
        failed = "all of them failed" if self.broken == self.of else f"{self.broken} of them failed"
        text = f"{self.mistake.says} ({self.mistake.name}: {ran}, and {failed})"
        return f"or {text}" if self.instead else text


@dataclass(frozen=True)
class Known:
    """The known mistakes, in their order, with the claims that each breaks."""

    mistakes: Sequence[Mistake]
    fingerprints: Mapping[str, Set[str]]

    def without(self, name: str) -> Known:
        """As if one of them were not known."""
        return Known([each for each in self.mistakes if each.name != name], self.fingerprints)

    def looks_like(self, failed: Collection[str], ran: Collection[str]) -> list[Likeness]:
        """The mistakes that explain what failed, the most likely first; empty when unsure.

        After the first, only what it does not explain speaks for another: of two mistakes at once
        both are found. Mistakes that are equally likely stand together, if they are few; where they
        are many none of them is named, and the search goes on with what they leave unexplained.

        Args:
            failed: ids of the claims where a measurement disagreed.
            ran: ids of these, and of the claims that came out as expected. A claim that was not
                run, or crashed, is in neither.
        """
        groups: list[list[Likeness]] = []
        left, open_ = set(failed), set(ran)
        while len(groups) < SHOWN and (alike := self._likeliest(left, open_)):
            few = len(alike) <= MOST_ALIKE
            groups += [alike] if few else []
            for each in alike if few else alike[:1]:
                left -= self.fingerprints[each.mistake.name]
                open_ -= self.fingerprints[each.mistake.name]
        return [each for group in groups for each in group]

    def _likeliest(self, failed: Set[str], ran: Set[str]) -> list[Likeness]:
        every = [self._likeness(mistake, failed, ran) for mistake in self.mistakes]
        sure = [
            each for each in every
            if each.broken >= FEWEST and each.broken >= SHARE * each.of
            and each.odds >= (ODDS_OF_ALL if each.broken == each.of else ODDS)
        ]
        # Of equal odds, the one of which more has run.
        sure.sort(key=lambda each: (-each.odds, each.known - each.of))
        first, others = sure[:1], sure[1:]
        alike = [
            each for each in others
            if each.odds > first[0].odds - ALIKE and self._explain_the_same(first[0], each, failed)
        ]
        return first + [replace(each, instead=True) for each in alike]

    def _explain_the_same(self, one: Likeness, other: Likeness, failed: Set[str]) -> bool:
        """Or most of it: what explains something else may have been made as well."""
        prints = (self.fingerprints[each.mistake.name] for each in (one, other))
        both = len(frozenset.intersection(frozenset(failed), *prints))
        return both >= SHARE * max(one.broken, other.broken)

    @cached_property
    def _rates(self) -> dict[str, float]:
        """Claim -> the share of mistakes that break it: what a failure of it says of none."""
        counts = Counter(c for m in self.mistakes for c in self.fingerprints.get(m.name, ()))
        return {claim: (n + 1) / (len(self.mistakes) + 2) for claim, n in counts.items()}

    def _likeness(self, mistake: Mistake, failed: Set[str], ran: Set[str]) -> Likeness:
        rates = self._rates
        fingerprint = self.fingerprints.get(mistake.name, frozenset())
        of = fingerprint & ran
        broken = of & failed
        odds = _sum(math.log(FAILS / rates[claim]) for claim in broken)
        odds += _sum(math.log((1 - FAILS) / (1 - rates[claim])) for claim in of - broken)
        others = len(failed - fingerprint)
        return Likeness(mistake, len(broken), len(of), len(fingerprint), others, odds)


def _sum(terms: Iterable[float]) -> float:
    """The same whatever the order of a set."""
    return math.fsum(terms)


def mistakes(path: Path) -> list[Mistake]:
    """Those of `mistakes.yaml`, in its order. Raises ValueError for a file of another kind."""
    try:
        return [Mistake(**entry) for entry in yaml.safe_load(path.read_text(encoding="utf-8"))]
    except (yaml.YAMLError, TypeError) as error:
        allowed = ", ".join(field.name for field in fields(Mistake))
        raise ValueError(f"{path} must be a list, with {allowed} in each entry: {error}") from error


def fingerprints(path: Path) -> dict[str, set[str]]:
    """Name of the mistake -> the claims that it breaks, of `fingerprints.csv`."""
    found: dict[str, set[str]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["mistake"], set()).add(row["claim"])
    return found


def known(folder: Path) -> Known:
    """The mistakes of a folder, and the claims that each breaks."""
    return Known(mistakes(folder / "mistakes.yaml"), fingerprints(folder / "fingerprints.csv"))


def looks_like(failed: Collection[str], ran: Collection[str]) -> list[Likeness]:
    """The known mistakes that a run looks like: see `Known.looks_like`."""
    return known(FOLDER).looks_like(failed, ran) if failed else []
