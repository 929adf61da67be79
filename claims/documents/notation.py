"""Figures in a line of text, read as a language writes them.

A figure is every run of digits, whatever stands around it: a number, a chapter's number, the 32 of
`float32`, a footnote mark. Nothing is left out here; `inventory` says what is no claim.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

import regex
from babel import Locale

# Code, printed output and mathematics are written alike in every language.
VERBATIM = Locale("en")

_SUPERSCRIPT = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_SPACES = "\u00a0\u2009\u202f"  # between groups of digits; an ordinary space separates two numbers
_SEPARATORS = f".,'’٫٬{_SPACES}"
_PERCENT = "%٪"
_FIGURE = regex.compile(
    rf"(?P<mark>[{_SUPERSCRIPT}]+)"
    rf"|(?P<before>[{_PERCENT}])?"
    r"(?P<sign>(?<![\p{L}\p{N}_)\]}])[-−])?"
    rf"(?P<digits>\p{{Nd}}+(?:[{_SEPARATORS}]\p{{Nd}}+)*)(?P<exponent>[eE][-+]?\p{{Nd}}+)?"
    rf"(?P<after>[ {_SPACES}]?[{_PERCENT}])?"
    r"|(?P<other>[\p{Nl}\p{No}])"
)
_MATHEMATICS = regex.compile(r"\$([^$]*)\$")
_POWER_OF_TEN = regex.compile(r"(?:([0-9]+(?:\.[0-9]+)?)\s*\\times\s*)?\b10\^\{?(-?[0-9]+)\}?")


@dataclass(frozen=True)
class Figure:
    """One figure.

    `value` is the number with all of its printed digits, `0.50` and not `0.5`, and `%` where it is
    a percentage; a footnote mark and any other sign for a number is its own value. It is empty for
    what is no number in the language's notation.
    """

    value: str
    printed: str
    script: str  # of its digits, as Unicode names it, such as 'DEVANAGARI'; empty for ASCII
    verbatim: bool  # whether it stands in code or mathematics, the same in every language

    @property
    def readable(self) -> bool:
        return bool(self.value)


def figures(text: str, language: Locale) -> Iterator[Figure]:
    """The figures of a line of prose, in its order; mathematics between $ is read verbatim."""
    start = 0
    for formula in _MATHEMATICS.finditer(text):
        yield from _plain(text[start : formula.start()], language)
        yield from _mathematics(formula[1])
        start = formula.end()
    yield from _plain(text[start:], language)


def verbatim_figures(text: str) -> Iterator[Figure]:
    """The figures of a line of code or of printed output."""
    yield from _plain(text, VERBATIM, verbatim=True)


def example(language: Locale) -> str:
    """How a language writes 1115394 and 2.43."""
    decimal, group = _symbols(language, "")
    return f"1{group}115{group}394 and 2{decimal}43"


def _mathematics(text: str) -> Iterator[Figure]:
    start = 0
    for power in _POWER_OF_TEN.finditer(text):
        yield from _plain(text[start : power.start()], VERBATIM, verbatim=True)
        value = str(Decimal(f"{power[1] or 1}e{power[2]}"))
        yield Figure(value, power[0], script="", verbatim=True)
        start = power.end()
    yield from _plain(text[start:], VERBATIM, verbatim=True)


def _plain(text: str, language: Locale, *, verbatim: bool = False) -> Iterator[Figure]:
    for found in _FIGURE.finditer(text):
        if found["mark"] or found["other"]:
            yield Figure(found[0], found[0], script="", verbatim=verbatim)
            continue
        scripts = {_script(character) for character in found[0] if character.isdecimal()}
        script = scripts.pop()
        exponent = found["exponent"] or ""
        value = "" if scripts else _value(found["digits"], exponent, language, script)
        if value:
            value = ("-" if found["sign"] else "") + value
            value += "%" if found["before"] or found["after"] else ""
        yield Figure(value, found[0].strip(), script, verbatim)


def _value(digits: str, exponent: str, language: Locale, script: str) -> str:
    """The number as Decimal prints it; empty where the language does not write it so."""
    decimal, group = _symbols(language, script)
    groups = f"[{_SPACES}]" if group in _SPACES else f"[{group}’]" if group == "'" else f"\\{group}"
    d = r"\p{Nd}"
    # 1,115,394, and as in India 11,15,394
    whole = rf"{d}+|{d}{{1,3}}(?:{groups}{d}{{3}})+|{d}{{1,2}}(?:{groups}{d}{{2}})*{groups}{d}{{3}}"
    if not regex.fullmatch(rf"(?:{whole})(?:\{decimal}{d}+)?", digits):
        return ""
    parts = ("".join(filter(str.isdecimal, part)) for part in digits.split(decimal))
    return str(Decimal(".".join(parts) + exponent))


def _symbols(language: Locale, script: str) -> tuple[str, str]:
    """The separators of decimals and of groups; with digits of the Arabic script others."""
    system = {"ARABIC-INDIC": "arab", "EXTENDED ARABIC-INDIC": "arabext"}.get(script, "latn")
    symbols = language.number_symbols[system]
    return symbols["decimal"], symbols["group"]


def _script(digit: str) -> str:
    """'DEVANAGARI' of 'DEVANAGARI DIGIT FOUR'; empty for an ASCII digit."""
    return unicodedata.name(digit).rpartition("DIGIT ")[0].strip()
