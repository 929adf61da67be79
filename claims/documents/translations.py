"""The translations in a folder: their lines, and the language of each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import py3langid
from babel import Locale, UnknownLocaleError


class DocumentsError(ValueError):
    """The folder holds nothing to compare; the message says what is wrong, and what is allowed."""


@dataclass(frozen=True)
class Translation:
    name: str  # the language's code, or the file's name where two files have one language
    file: str
    language: Locale
    lines: tuple[str, ...]


def load_translations(folder: Path) -> list[Translation]:
    """Every *.txt of a folder, in UTF-8.

    The language is the last part of the file's name where that is a language's code, as in
    `chapter.es.txt`; else it is recognised from the text.

    Raises:
        DocumentsError: there is nothing to read, or it cannot be read.
    """
    if not folder.is_dir():
        raise DocumentsError(f"{folder} is no folder; give one that holds translations as *.txt")
    files = sorted(folder.glob("*.txt"))
    if not files:
        raise DocumentsError(f"{folder} holds no *.txt; give a folder of translations, one a file")
    texts = {path: _text(path) for path in files}
    languages = {path: _language(path, text) for path, text in texts.items()}
    times = Counter(str(language) for language in languages.values())
    return [
        Translation(
            str(languages[path]) if times[str(languages[path])] == 1 else path.name,
            path.name,
            languages[path],
            tuple(text.removesuffix("\n").split("\n")),
        )
        for path, text in texts.items()
    ]


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DocumentsError(f"{path} is no text in UTF-8: {error}") from error
    if not text.strip():
        raise DocumentsError(f"{path} is empty")
    return text


def _language(path: Path, text: str) -> Locale:
    named = path.stem.rpartition(".")[2]
    try:
        return Locale.parse(named, sep="-" if "-" in named else "_")
    except (ValueError, UnknownLocaleError):
        code, _ = py3langid.classify(text)
    try:
        return Locale.parse(code)
    except (ValueError, UnknownLocaleError) as error:
        raise DocumentsError(
            f"{path.name} seems to be in '{code}', of which no notation of numbers is known; "
            "name the language in the file's name, as in chapter.es.txt"
        ) from error
