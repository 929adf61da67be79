"""Readings of a sentence, and open claims: judged under each, decided at the end."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import Project, output

READINGS = {"as it reads": "the first", "by the row": "the second"}
SETTINGS = {"low rate": "1e-3", "high rate": "1e-2"}


def two(first: str, second: str, names: dict[str, str] = READINGS) -> str:
    """A claim that compares 1 with `first` under the first name, with `second` under the second."""
    one, other = names
    return (
        '@claim("a")\n'
        "def test_a(check):\n"
        f'    check.under("{one}")(1, {first})\n'
        f'    check.under("{other}")(1, {second})\n'
    )


RIGHT, WRONG, CLOSE = "exact(1)", "exact(2)", 'within(0, 1, "a bound")'


def verdict(project: Project, source: str, expected: str, **entry: Any) -> str:
    """What a claim with this entry turns out as: passed, refuted, or the message of its failure."""
    result = project.entry("a", expected, **entry).test(source).run()
    if result.ret == pytest.ExitCode.USAGE_ERROR:
        return output(result)
    outcomes = result.parseoutcomes()
    if outcomes.get("passed"):
        return "passed"
    return "refuted" if outcomes.get("xfailed") else output(result)


def test_a_sentence_holds_when_it_holds_as_it_reads(project: Project) -> None:
    assert verdict(project, two(RIGHT, WRONG), "exact", readings=READINGS) == "passed"


def test_a_sentence_that_holds_under_another_reading_names_it(project: Project) -> None:
    entry = {"readings": READINGS, "holds_under": "by the row"}
    assert verdict(project, two(WRONG, RIGHT), "exact", **entry) == "passed"


def test_a_reading_that_the_ledger_does_not_name_is_a_change_of_verdict(project: Project) -> None:
    said = verdict(project, two(WRONG, RIGHT), "exact", readings=READINGS)
    assert "the checks say 'exact' when read as 'by the row'" in said


def test_a_sentence_is_refuted_only_when_it_fails_under_every_reading(project: Project) -> None:
    assert verdict(project, two(WRONG, WRONG), "refuted", readings=READINGS) == "refuted"


def test_a_refutation_turns_red_when_one_reading_holds(project: Project) -> None:
    said = verdict(project, two(WRONG, RIGHT), "refuted", readings=READINGS)
    assert "XPASS(strict)" in said


def test_every_reading_must_be_judged(project: Project) -> None:
    source = '@claim("a")\ndef test_a(check):\n    check.under("as it reads")(1, exact(1))\n'
    said = verdict(project, source, "exact", readings=READINGS)
    assert "was not judged under by the row" in said


def test_a_reading_that_the_ledger_lacks_is_refused(project: Project) -> None:
    source = '@claim("a")\ndef test_a(check):\n    check.under("upside down")(1, exact(1))\n'
    said = verdict(project, source, "exact", readings=READINGS)
    assert "no reading or setting 'upside down'; it has as it reads, by the row" in said


OPEN = {"turns_on": "the learning rate", "settings": SETTINGS}


def test_a_claim_is_open_when_its_settings_give_two_answers(project: Project) -> None:
    assert verdict(project, two(RIGHT, WRONG, SETTINGS), "open", **OPEN) == "passed"


def test_the_summary_says_what_an_open_claim_turns_on(project: Project) -> None:
    result = project.entry("a", "open", **OPEN).test(two(RIGHT, WRONG, SETTINGS)).run()
    assert "a (l.11): the learning rate" in output(result)
    assert "open" in output(result)


@pytest.mark.parametrize(("first", "answer"), [(RIGHT, "holds"), (WRONG, "fails")])
def test_an_open_claim_turns_red_when_one_answer_goes_away(
    project: Project, first: str, answer: str
) -> None:
    said = verdict(project, two(first, first, SETTINGS), "open", **OPEN)
    assert f"open in the ledger, yet it {answer} under every setting" in said


def test_the_tolerance_of_another_reading_does_not_change_the_verdict(project: Project) -> None:
    assert verdict(project, two(RIGHT, CLOSE), "exact", readings=READINGS) == "passed"


@pytest.mark.parametrize(
    ("verdict_", "entry", "sentence"),
    [
        ("open", {}, "an open claim says what its answer `turns_on`"),
        ("holds", {"turns_on": "the rate", "settings": SETTINGS}, "no other claim does"),
        ("holds", {"readings": READINGS, "holds_under": "x"}, "holds under 'x'"),
        ("holds", {"readings": READINGS, "holds_under": "as it reads"}, "after the first"),
    ],
)
def test_the_ledger_refuses_what_does_not_fit(
    project: Project, verdict_: str, entry: dict[str, Any], sentence: str
) -> None:
    assert sentence in verdict(project, two(RIGHT, RIGHT), verdict_, **entry)
