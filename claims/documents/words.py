"""Numbers that are written in words: listed side by side for a person, never judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import regex
from num2words import num2words

from claims.documents.inventory import Inventory
from claims.documents.translations import Translation

# Not one: in most languages it is also an article.
_NUMBERS = (*range(2, 21), *range(30, 100, 10), 100, 1000, 1_000_000)
# A suffix after an apostrophe, the Turkish 'ten, is no word.
_WORD = regex.compile(r"(?<!['’\p{L}\p{M}])[\p{L}\p{M}]+")
_MATHEMATICS = regex.compile(r"\$[^$]*\$")


def listed(translations: Sequence[Translation], inventory: Inventory) -> Iterator[str]:
    """For each line with a number in words, what each translation has there."""
    known = {t.name: _words(t, inventory) for t in translations}
    for line in range(1, inventory.lines + 1):
        if line in inventory.verbatim:
            continue
        found = {
            t.name: [w for w in _split(t.lines[line - 1]) if w in known[t.name]]
            for t in translations
            if line <= len(t.lines)
        }
        if any(found.values()):
            sides = (f"{name}: {', '.join(words) or 'none'}" for name, words in found.items())
            yield f"l.{line}  " + "; ".join(sides)


def _words(translation: Translation, inventory: Inventory) -> set[str]:
    """The words of its language and, as technical texts mix the two, of English."""
    language = translation.language.language
    return {
        *_of_language("en"),
        *_of_language(language),
        *inventory.words.get(language, ()),
    }


def _of_language(code: str) -> Iterator[str]:
    """Cardinals and ordinals of one word; none where the library lacks the language."""
    for number in _NUMBERS:
        for kind in ("cardinal", "ordinal"):
            try:
                words = _split(num2words(number, lang=code, to=kind))
            except (NotImplementedError, KeyError):
                continue
            if len(words) == 1:
                yield words[0]


def _split(text: str) -> list[str]:
    """The words, in small letters; a dot that Turkish leaves over a small i is dropped."""
    plain: Iterable[str] = _WORD.findall(_MATHEMATICS.sub(" ", text))
    return [word.casefold().replace("i\u0307", "i") for word in plain]
