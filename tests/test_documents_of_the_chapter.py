"""Errors planted in copies of the chapter's translations, which are not part of this project.

Run with `--documents DIR`; without it every test here is skipped.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import regex

from claims.documents.comparison import differences, missing, pair, unexplained
from claims.documents.inventory import INVENTORY, Inventory, load_inventory
from claims.documents.translations import Translation, load_translations
from claims.harness.ledger import load_ledger
from claims.harness.paths import LEDGER

NUMBER = regex.compile(r"\d(?:[\d.,]*\d)?")
DEVANAGARI = str.maketrans("0123456789", "०१२३४५६७८९")

Planted = tuple[str, list[str]]  # what was done, and the lines of the copy


@pytest.fixture(scope="module")
def chapter() -> Inventory:
    return load_inventory(INVENTORY, load_ledger(LEDGER))


@pytest.fixture(scope="module")
def originals(pytestconfig: pytest.Config) -> list[Translation]:
    if (named := pytestconfig.getoption("documents")) is None:
        pytest.skip("needs the chapter's translations: --documents DIR")
    return load_translations(pytestconfig.invocation_params.dir / Path(named).expanduser())


def findings(translations: Sequence[Translation], chapter: Inventory) -> list[str]:
    paired = [pair(translation, chapter) for translation in translations]
    alone = [
        finding
        for each in paired
        for finding in (*each.lost, *missing(each, chapter), *unexplained(each, chapter))
    ]
    return [*alone, *differences(paired, chapter)]


def test_no_false_alarm(originals: list[Translation], chapter: Inventory) -> None:
    assert findings(originals, chapter) == []
    for alone in originals:
        assert findings([alone], chapter) == []


# Nothing but what is printed: a power of ten is two or three of these, ¹⁴ is two.
NUMERAL = regex.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹]|[0-9]+(?:[.,][0-9]+)*(?:e[-+]?[0-9]+)?")


def test_every_numeral_belongs_to_a_figure(
    originals: list[Translation], chapter: Inventory
) -> None:
    """None of the 401 is overlooked by the list, which counts what is one number as one figure."""
    assert sum(map(len, chapter.figures.values())) == 393
    for translation in originals:
        paired = pair(translation, chapter)
        of_figures = Counter(
            numeral for row in paired.figures.values() for figure in row
            for numeral in NUMERAL.findall(figure.printed)
        )  # fmt: skip
        assert of_figures.total() == 401
        assert of_figures == Counter(NUMERAL.findall("\n".join(translation.lines)))


def each_number(lines: list[str], change: Callable[[str], str]) -> Iterator[Planted]:
    """A copy for each number that the change does not leave as it is."""
    for n, line in enumerate(lines):
        for number in NUMBER.finditer(line):
            new = line[: number.start()] + change(number[0]) + line[number.end() :]
            if new != line:
                yield f"l.{n + 1}: {line!r} -> {new!r}", [*lines[:n], new, *lines[n + 1 :]]


def a_digit_is_dropped(lines: list[str]) -> Iterator[Planted]:
    yield from each_number(lines, lambda number: number[:-1])


def separators_are_swapped(lines: list[str]) -> Iterator[Planted]:
    yield from each_number(lines, lambda number: number.translate(str.maketrans(".,", ",.")))


def digits_are_of_another_script(lines: list[str]) -> Iterator[Planted]:
    yield from each_number(lines, lambda number: number.translate(DEVANAGARI))


def two_numbers_are_exchanged(lines: list[str]) -> Iterator[Planted]:
    """Neighbours in a line, and, drawn with a fixed seed, numbers of two lines."""
    for n, line in enumerate(lines):
        numbers = list(NUMBER.finditer(line))
        for first, second in pairwise(numbers):
            if first[0] != second[0]:
                new = (
                    line[: first.start()] + second[0] + line[first.end() : second.start()]
                    + first[0] + line[second.end() :]
                )
                yield f"l.{n + 1}: {line!r} -> {new!r}", [*lines[:n], new, *lines[n + 1 :]]
    draw = random.Random(0)
    places = [(n, number) for n, line in enumerate(lines) for number in NUMBER.finditer(line)]
    for _ in range(200):
        (m, first), (n, second) = draw.sample(places, 2)
        if m != n and first[0] != second[0]:
            new_lines = list(lines)
            new_lines[m] = lines[m][: first.start()] + second[0] + lines[m][first.end() :]
            new_lines[n] = lines[n][: second.start()] + first[0] + lines[n][second.end() :]
            yield f"l.{m + 1} and l.{n + 1}: {first[0]}, {second[0]}", new_lines


def a_line_is_missing(lines: list[str]) -> Iterator[Planted]:
    for n in range(len(lines)):
        yield f"without l.{n + 1}", [*lines[:n], *lines[n + 1 :]]


def a_line_is_empty(lines: list[str]) -> Iterator[Planted]:
    for n, line in enumerate(lines):
        if line.strip():
            yield f"l.{n + 1} empty", [*lines[:n], "", *lines[n + 1 :]]


@pytest.mark.parametrize(
    "plant",
    [
        a_digit_is_dropped, separators_are_swapped, digits_are_of_another_script,
        two_numbers_are_exchanged, a_line_is_missing, a_line_is_empty,
    ],
)  # fmt: skip
def test_every_planted_error_is_found_in_each_alone(
    plant: Callable[[list[str]], Iterator[Planted]],
    originals: list[Translation],
    chapter: Inventory,
) -> None:
    """Also without the others beside it, as a translator into a new language has it."""
    for original in originals:
        planted = list(plant(list(original.lines)))
        assert planted
        copies = ((what, replace(original, lines=tuple(lines))) for what, lines in planted)
        silent = [what for what, copy in copies if not findings([copy], chapter)]
        print(f"{original.name}: {len(planted)} planted, {len(silent)} not found")
        assert silent == []
