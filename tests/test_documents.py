"""`--documents`: a small chapter in translations of our own, and what is found when they differ."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from babel import Locale

from claims.documents.comparison import differences, missing, pair, unexplained
from claims.documents.inventory import (
    INVENTORY,
    Inventory,
    InventoryError,
    Printed,
    load_inventory,
)  # fmt: skip
from claims.documents.notation import figures, verbatim_figures
from claims.documents.translations import DocumentsError, Translation, load_translations
from claims.documents.words import listed
from claims.harness.ledger import Ledger, load_ledger
from claims.harness.paths import LEDGER

# ---- how a language writes numbers ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "text", "values"),
    [
        ("en", "1,234,567 at 2.50", ["1234567", "2.50"]),
        ("hi", "12,34,567 at 2.5", ["1234567", "2.5"]),
        ("hi", "१,२३४ and 99.9 %", ["1234", "99.9%"]),
        ("tr", "1.234'ten %27,9’a", ["1234", "27.9%"]),
        ("pt", "de 1.234.567,8 a 50 %.", ["1234567.8", "50%"]),
        ("fr", "1\u202f234\u202f567,8 et 1\u00a0234", ["1234567.8", "1234"]),
        ("fr", "12 345", ["12", "345"]),
        ("de_CH", "1’234.5 und 1'234", ["1234.5", "1234"]),
        ("ar", "٢٫٤٣ ١٬١١٥٬٣٩٤ ٥٠٪", ["2.43", "1115394", "50%"]),
        ("pt", r"$1.8 \times 10^{-7}$, $10^{-3}$, $4d^2 - 1$", ["1.8E-7", "0.001", "4", "2", "1"]),
        ("pt", "2.43", [""]),
        ("pt", "1,234,567", [""]),
        ("en", "1.234.567", [""]),
        ("hi", "1२", [""]),
        ("en", "GPT-2, float32, 90/10 and t-1", ["2", "32", "90", "10", "1"]),
        ("en", "-1e9, x[-1] and n=-2", ["-1E+9", "-1", "-2"]),
        ("en", "marks¹² and ½.", ["¹²", "½"]),
        ("en", "7-10 in 1997", ["7", "10", "1997"]),
    ],
)  # fmt: skip
def test_numbers_are_read_as_the_language_writes_them(
    language: str, text: str, values: list[str]
) -> None:
    assert [figure.value for figure in figures(text, Locale.parse(language))] == values


def test_code_keeps_its_point_in_every_language() -> None:
    values = [figure.value for figure in verbatim_figures("y = 1.50  # 1,024 x 2.9e-08")]
    assert values == ["1.50", "1024", "2.9E-8"]


def test_digits_know_their_script() -> None:
    found = [*figures("12 १२ ١٢", Locale("hi"))]
    assert [figure.script for figure in found] == ["", "DEVANAGARI", "ARABIC-INDIC"]
    assert not any(figure.verbatim for figure in found)


# ---- a small chapter -----------------------------------------------------------------------------

TEXTS = {
    "en": "Five cats\n\nThey eat 1,500 grams in 2.5 hours.¹\n\ny = 0.50\n\n"
    "That is 60 % of 3 bowls.",
    "de": "Fünf Katzen\n\nSie fressen 1.500 Gramm in 2,5 Stunden.¹\n\ny = 0.50\n\n"
    "Das sind 60 % von 3 Näpfen.",
    "tr": "Beş kedi\n\nSaatte 2,5 ve 1.500 gram.¹\n\ny = 0.50\n\nBu, 3 kabın %60’ıdır.",
}
CHAPTER = Inventory(
    lines=7,
    blank=frozenset({2, 4, 6}),
    verbatim=frozenset({5}),
    no_claim={"footnote": "footnote mark"},
    words={"en": ("bowls",)},
    figures={
        3: (Printed("1500", "grams"), Printed("2.5", "hours"), Printed("¹", "footnote")),
        5: (Printed("0.50", "y"),),
        7: (Printed("60%", "share"), Printed("3", "bowls")),
    },
    orders={3: {"tr": ("2.5", "1500", "¹")}, 7: {"tr": ("3", "60%")}},
)


def translation(language: str, text: str) -> Translation:
    return Translation(language, f"{language}.txt", Locale(language), tuple(text.split("\n")))


def found_in(language: str, text: str) -> list[str]:
    paired = pair(translation(language, text), CHAPTER)
    return [*paired.lost, *missing(paired, CHAPTER), *unexplained(paired, CHAPTER)]


@pytest.mark.parametrize("language", TEXTS)
def test_a_sound_translation_raises_no_alarm(language: str) -> None:
    assert found_in(language, TEXTS[language]) == []


@pytest.mark.parametrize(
    ("was", "becomes", "findings"),
    [
        ("1.500", "1.50", ["l.3: 1500 (grams) is missing", "'1.50' is no number as de writes it"]),
        ("1.500", "150", ["l.3: 1500 (grams) is missing", "no claim accounts for '150' (read as"]),
        ("2,5", "2.5", ["l.3: 2.5 (hours) is missing", "'2.5' is no number as de writes it (1.1"]),
        ("1.500", "1,500", ["l.3: 1500 (grams) is missing", "for '1,500' (read as 1.500)"]),
        ("1.500", "१.५००", ["l.3: '१.५००' has DEVANAGARI digits, where the others have ASCII"]),
        ("60 %", "60", ["l.7: 60% (share) is missing", "l.7: no claim accounts for '60'"]),
        (".¹", ".²", ["l.3: ¹ (footnote mark) is missing", "for '²'"]),
        ("0.50", "0.5", ["l.5: 0.50 (y) is missing", "for '0.5'"]),
        ("60 % von 3", "3 % von 60", ["l.7: 60% (share), 3 (bowls) is missing", "'3 %'", "'60'"]),
        ("3 Näpfen", "3 Näpfen in 24 Stunden", ["l.7: no claim accounts for '24' (read as 24)"]),
        ("y = 0.50\n", "", ["l.5 is missing, and with it 0.50 (y)"]),
        ("y = 0.50", "", ["l.5 is empty, and with it 0.50 (y)"]),
        ("y = 0.50", "y = 0.50\nz = 4", ["line 6 of de.txt is one that the chapter lacks"]),
        ("Fünf Katzen", "", ["l.1 is empty"]),
    ],
)  # fmt: skip
def test_a_planted_error_is_found(was: str, becomes: str, findings: list[str]) -> None:
    text = TEXTS["de"].replace(was, becomes, 1)
    assert text != TEXTS["de"]
    found = found_in("de", text)
    assert len(found) == len(findings)
    for said, wanted in zip(found, findings, strict=True):
        assert wanted in said


@pytest.mark.parametrize(("language", "is_wrong"), [("en", True), ("tr", False)])
def test_an_order_is_right_in_its_own_language_alone(language: str, is_wrong: bool) -> None:
    decimals = "2.5 and 1,500 ¹" if language == "en" else "2,5 ve 1.500 ¹"
    lines = TEXTS[language].split("\n")
    found = found_in(language, "\n".join([*lines[:2], decimals, *lines[3:]]))
    assert bool(found) == is_wrong
    assert all("1500 and 2.5 have changed places" in finding for finding in found)


def test_a_translation_in_its_own_digits_is_sound() -> None:
    text = "पाँच बिल्लियाँ\n\n१,५०० ग्राम २.५ घंटे¹\n\ny = 0.50\n\n६० % और ३ कटोरे"
    assert found_in("hi", text) == []
    found = found_in("hi", text.replace("२.५", "2.5"))
    assert [f.partition(",")[0] for f in found] == ["l.3: '2.5' has ASCII digits"]


def differing(**texts: str) -> list[str]:
    paired = [pair(translation(name, text), CHAPTER) for name, text in texts.items()]
    return list(differences(paired, CHAPTER))


def test_translations_are_compared_with_each_other() -> None:
    assert differing(**TEXTS) == []
    assert differing(**{**TEXTS, "de": TEXTS["de"].replace("1.500", "1.200")}) == [
        "l.3: en, tr has 1500; de has 1200"
    ]
    assert differing(**{**TEXTS, "de": TEXTS["de"].replace("y =", "z =")}) == [
        "l.5: code or printed output that differs: en, tr | de"
    ]
    # Where all have another figure, the ledger is what differs.
    changed = {name: re.sub(r"\b3\b", "4", text) for name, text in TEXTS.items()}
    assert differing(**changed) == []
    assert found_in("en", changed["en"])[0] == "l.7: 3 (bowls) is missing"


def test_numbers_in_words_are_listed_side_by_side() -> None:
    translations = [translation(name, text) for name, text in TEXTS.items()]
    assert list(listed(translations, CHAPTER)) == [
        "l.1  en: five; de: fünf; tr: beş",
        "l.7  en: bowls; de: none; tr: none",  # as the chapter's own list of words has it
    ]


def test_a_turkish_suffix_is_no_word_for_a_number() -> None:
    (line,) = listed([translation("tr", "İki kedi 5’ten fazla, kedi’ten az")], CHAPTER)
    assert line == "l.1  tr: iki"


# ---- the folder, and the option ------------------------------------------------------------------


def test_the_language_is_named_by_the_file_or_recognised(tmp_path: Path) -> None:
    portuguese = "A média não consegue ver a ordem das palavras de uma frase. " * 3
    (tmp_path / "one.txt").write_text(portuguese, encoding="utf-8")
    (tmp_path / "chapter.es.txt").write_text(portuguese, encoding="utf-8")
    (tmp_path / "chapter.de-CH.txt").write_bytes(b"\xef\xbb\xbf1\r\n2\r\n")
    swiss, spanish, recognised = load_translations(tmp_path)
    assert (swiss.name, swiss.lines) == ("de_CH", ("1", "2"))
    assert (spanish.name, recognised.name) == ("es", "pt")
    (tmp_path / "two.txt").write_text(portuguese, encoding="utf-8")
    assert [t.name for t in load_translations(tmp_path)][2:] == ["one.txt", "two.txt"]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "holds no *.txt"),
        ({"a.txt": b"\xff\xfe"}, "is no text in UTF-8"),
        ({"a.txt": b" \n"}, "is empty"),
    ],
)
def test_what_cannot_be_read_is_said(
    tmp_path: Path, files: dict[str, bytes], says: str
) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(DocumentsError, match=re.escape(says)):
        load_translations(tmp_path)
    with pytest.raises(DocumentsError, match="is no folder"):
        load_translations(tmp_path / "missing")


def test_the_option_reports_each_translation(pytester: pytest.Pytester) -> None:
    folder = pytester.mkdir("texts")
    (folder / "en.txt").write_text(TEXTS["en"], encoding="utf-8")
    root = Path(__file__).parents[1]
    tests = str(root / "claims" / "documents")
    run = [tests, f"--rootdir={root}", "-c", str(root / "pytest.ini"), "-p", "no:cacheprovider"]
    result = pytester.runpytest_inprocess(*run, "--documents", str(folder))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["l.13 is missing, and with it 1115394 (corpus-characters)*"])
    result.stdout.fnmatch_lines(["en: * figures (en.txt)"])
    # Without the option they are no part of a run.
    assert pytester.runpytest_inprocess(*run).ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result = pytester.runpytest_inprocess(*run, "--documents", "nowhere")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--documents nowhere: * is no folder; give one that holds*"])


# ---- the chapter's own list ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    return load_ledger(LEDGER)


@pytest.fixture(scope="module")
def chapter(ledger: Ledger) -> Inventory:
    return load_inventory(INVENTORY, ledger)


def stated(value: Any) -> Iterator[Decimal]:
    """Every number in an entry's values or sentences, without its sign."""
    if isinstance(value, int | float):
        yield abs(Decimal(repr(value)))
    elif isinstance(value, str):
        values = [f.value.rstrip("%") for f in verbatim_figures(value) if f.value.isascii()]
        yield from (abs(Decimal(number)) for number in values)
    elif isinstance(value, dict):
        for each in (*value, *value.values()):
            yield from stated(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from stated(each)


def test_every_figure_is_stated_by_the_claim_that_it_belongs_to(
    ledger: Ledger, chapter: Inventory
) -> None:
    faults = []
    for line, row in chapter.figures.items():
        for printed in row:
            if printed.by in chapter.no_claim:
                continue
            entry = ledger[printed.by]
            own = {*stated(dict(entry.expected)), *stated([entry.statement, entry.reading])}
            number = abs(Decimal(printed.value.rstrip("%")))
            if not own & {number, number / (100 if printed.value.endswith("%") else 1)}:
                faults.append(f"l.{line}: {printed.by} says nothing of {printed.value}")
            if entry.line is None or not -10 <= line - entry.line <= 10:
                faults.append(f"l.{line}: {printed.by} is of line {entry.line}")
    assert not faults, "\n".join(faults)


def test_every_claim_with_a_printed_figure_is_within_the_chapter(chapter: Inventory) -> None:
    assert set(chapter.figures) <= set(range(1, chapter.lines + 1)) - chapter.blank
    assert not chapter.blank & chapter.verbatim


@pytest.mark.parametrize(
    ("was", "becomes", "says"),
    [
        ("1024 tokenizer-vocab-1024", "1024 tokenizer", "l.13: 'tokenizer' is neither a claim"),
        ("tr: 3 60%", "tr: 3 61%", "l.219: the order in tr has other figures than the line"),
    ],
)
def test_a_list_that_the_ledger_does_not_know_is_refused(
    tmp_path: Path, ledger: Ledger, was: str, becomes: str, says: str
) -> None:
    text = INVENTORY.read_text(encoding="utf-8")
    changed = text.replace(was, becomes)
    if changed == text:
        changed = text.replace("orders:\n", f"orders:\n  219: {{{becomes}}}\n")
    (tmp_path / "figures.yaml").write_text(changed, encoding="utf-8")
    with pytest.raises(InventoryError, match=re.escape(says)):
        load_inventory(tmp_path / "figures.yaml", ledger)
