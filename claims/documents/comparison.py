"""What differs: between a translation and the list of the chapter's figures, and between two."""

from __future__ import annotations

import functools
import operator
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest

from claims.documents.inventory import Inventory, Printed
from claims.documents.notation import Figure, example, figures, verbatim_figures
from claims.documents.translations import Translation


@dataclass(frozen=True)
class Paired:
    """A translation, paired with the chapter's lines."""

    translation: Translation
    lines: Mapping[int, str]  # by the chapter's line; a line that is missing is absent
    lost: tuple[str, ...]  # each line that is missing, empty or too many, as a sentence
    figures: Mapping[int, tuple[Figure, ...]]


def pair(translation: Translation, inventory: Inventory) -> Paired:
    """Pair by line; around a line that is missing or too many, by what the lines contain."""
    lines: dict[int, str] = {}
    lost = []
    for ours, theirs in _pairs(translation, inventory):
        if ours is None:
            lost.append(f"line {theirs} of {translation.file} is one that the chapter lacks")
        elif theirs is None:
            lost.append(f"l.{ours} is missing{_with_it(inventory, ours)}")
        elif not translation.lines[theirs - 1].strip() and ours not in inventory.blank:
            lost.append(f"l.{ours} is empty{_with_it(inventory, ours)}")
        else:
            lines[ours] = translation.lines[theirs - 1]
    read = {line: _figures(text, line, translation, inventory) for line, text in lines.items()}
    return Paired(translation, lines, tuple(lost), read)


def _pairs(
    translation: Translation, inventory: Inventory
) -> Iterator[tuple[int | None, int | None]]:
    """(line of the chapter, line of the file), from 1; None where one of them has no partner."""
    count = len(translation.lines)
    blank = {n for n, line in enumerate(translation.lines, 1) if not line.strip()}
    if count == inventory.lines and blank == inventory.blank:
        yield from ((n, n) for n in range(1, count + 1))
        return
    chapter = [
        "" if n in inventory.blank else " ".join(sorted(inventory.order(n, ""))) or "words"
        for n in range(1, inventory.lines + 1)
    ]
    file = []
    for n, text in enumerate(translation.lines, 1):
        # Which lines are code is not known before they are paired, so that both are tried.
        code = " ".join(sorted(figure.value for figure in verbatim_figures(text)))
        prose = " ".join(sorted(figure.value for figure in figures(text, translation.language)))
        file.append("" if n in blank else (code if code in chapter else prose) or "words")
    matcher = SequenceMatcher(None, chapter, file, autojunk=False)
    for _, i, end_i, j, end_j in matcher.get_opcodes():
        yield from zip_longest(range(i + 1, end_i + 1), range(j + 1, end_j + 1))


def _figures(
    text: str, line: int, translation: Translation, inventory: Inventory
) -> tuple[Figure, ...]:
    if line in inventory.verbatim:
        return tuple(verbatim_figures(text))
    return tuple(figures(text, translation.language))


def _with_it(inventory: Inventory, line: int) -> str:
    gone = [_described(printed, inventory) for printed in inventory.figures.get(line, ())]
    return f", and with it {', '.join(gone)}" if gone else ""


def _described(printed: Printed, inventory: Inventory) -> str:
    return f"{printed.value} ({inventory.no_claim.get(printed.by, printed.by)})"


# ---- one translation and the chapter ------------------------------------------------------------


def missing(paired: Paired, inventory: Inventory) -> Iterator[str]:
    """Figures of the chapter that the translation lacks, or has in another order."""
    code = paired.translation.language.language
    for line, found in paired.figures.items():
        values = [figure.value for figure in found]
        left = Counter(values)
        gone = []
        for printed in inventory.figures.get(line, ()):
            if left[printed.value]:
                left[printed.value] -= 1
            else:
                gone.append(_described(printed, inventory))
        order = inventory.order(line, code)
        if gone:
            yield f"l.{line}: {', '.join(gone)} is missing"
        elif len(values) == len(order) and tuple(values) != order:
            yield (
                f"l.{line}: {_exchanged(values, order)} have changed places; if the language wants "
                f"it so, add the order under `orders` of figures.yaml"
            )


def _exchanged(values: Sequence[str], order: Sequence[str]) -> str:
    return " and ".join(sorted({v for v, o in zip(values, order, strict=True) if v != o}))


def unexplained(paired: Paired, inventory: Inventory) -> Iterator[str]:
    """Figures of the translation that belong to no claim, or that its language writes otherwise."""
    language = paired.translation.language
    usual = _usual_script(paired)
    for line, found in paired.figures.items():
        left = Counter(printed.value for printed in inventory.figures.get(line, ()))
        for figure in found:
            if not figure.readable:
                yield (
                    f"l.{line}: '{figure.printed}' is no number as {language} writes it "
                    f"({example(language)})"
                )
            elif left[figure.value]:
                left[figure.value] -= 1
            else:
                yield f"l.{line}: no claim accounts for '{figure.printed}' (read as {figure.value})"
            expected = "" if figure.verbatim else usual
            if figure.readable and figure.value.isascii() and figure.script != expected:
                yield (
                    f"l.{line}: '{figure.printed}' has {figure.script or 'ASCII'} digits, where "
                    f"the others have {expected or 'ASCII'} digits"
                )


def _usual_script(paired: Paired) -> str:
    found = (figure for row in paired.figures.values() for figure in row)
    scripts = Counter(figure.script for figure in found if not figure.verbatim)
    return scripts.most_common(1)[0][0] if scripts else ""


# ---- the translations among each other ----------------------------------------------------------


def differences(paired: Sequence[Paired], inventory: Inventory) -> Iterator[str]:
    """Lines on which the translations have other figures, or other code, than each other."""
    for line in range(1, inventory.lines + 1):
        present = [each for each in paired if line in each.lines]
        if line in inventory.verbatim:
            sides = _grouped({each.translation.name: each.lines[line].rstrip() for each in present})
            if len(sides) > 1:
                yield f"l.{line}: code or printed output that differs: {' | '.join(sides.values())}"
            continue
        values = {each.translation.name: _values(each.figures[line]) for each in present}
        shared = functools.reduce(operator.and_, values.values()) if values else Counter()
        own = {name: " ".join(sorted((all_ - shared).elements())) for name, all_ in values.items()}
        sides = _grouped(own)
        if len(sides) > 1:
            yield f"l.{line}: " + "; ".join(
                f"{names} has {figures or 'none of these'}" for figures, names in sides.items()
            )


def _values(found: Sequence[Figure]) -> Counter[str]:
    return Counter(figure.value or f"'{figure.printed}'" for figure in found)


def _grouped(by_name: Mapping[str, str]) -> dict[str, str]:
    """What is said, and by whom: {said: 'hi, tr'}."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, said in by_name.items():
        groups[said].append(name)
    return {said: ", ".join(names) for said, names in groups.items()}
