"""Known mistakes: each can be made, breaks the claims of its fingerprint, and is recognised."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from claims.harness import diagnosis
from claims.harness.diagnosis import FOLDER, Known, Mistake, known, mistakes
from claims.harness.ledger import load_ledger
from claims.harness.paths import LEDGER
from claims.studies import diagnoses, known_mistakes
from claims.studies.fingerprints import made_in_a_copy
from conftest import Project, output

KNOWN = known(FOLDER)
OUTSIDE = mistakes(FOLDER / "outside.yaml")
PRINTS = KNOWN.fingerprints
ENTRIES = load_ledger(LEDGER).entries


@pytest.mark.parametrize("mistake", [*KNOWN.mistakes, *OUTSIDE], ids=lambda mistake: mistake.name)
def test_every_mistake_can_be_made_in_todays_source(mistake: Mistake, tmp_path: Path) -> None:
    variant = made_in_a_copy(mistake)
    variant.write(tmp_path)
    source = (tmp_path / variant.name / mistake.file).read_text(encoding="utf-8")
    compile(source, mistake.file, "exec")
    assert mistake.new in source
    assert mistake.old not in source.replace(mistake.new, "")
    assert variant.changed()


def test_a_missing_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text("x = 1\n")
    mistake = Mistake("gone", "a line has gone", "block.py", "x = 2", "x = 3")
    with pytest.raises(ValueError, match=r"mistake gone: block\.py has 0 times: x = 2"):
        mistake.made_in(tmp_path)


def test_each_has_a_name_a_sentence_and_claims_of_the_ledger() -> None:
    names = [mistake.name for mistake in KNOWN.mistakes]
    assert len({*names, *(mistake.name for mistake in OUTSIDE)}) == len(names) + len(OUTSIDE)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in names)
    # Text in brackets follows it.
    assert not [mistake.says for mistake in KNOWN.mistakes if mistake.says.endswith(".")]
    assert list(PRINTS) == names
    assert all(broken <= set(ENTRIES) for broken in PRINTS.values())


# ---- likeness ------------------------------------------------------------------------------------

LEFT, RIGHT = frozenset("abcd"), frozenset("efgh")
EVERY = set("abcdefghijklmnopqrstuvwxyz")


def those(**fingerprints: str) -> Known:
    """Mistakes with fingerprints of one-letter claims, among two hundred others that break `z`."""
    every = {name: frozenset(claims) for name, claims in fingerprints.items()}
    every |= {f"other-{n}": frozenset("z") for n in range(200)}
    return Known([Mistake(name, f"{name} is wrong", "a.py", "a", "b") for name in every], every)


def named(of: Known, failed: str, ran: set[str] = EVERY) -> list[str]:
    return [each.mistake.name for each in of.looks_like(set(failed), ran)]


TWO = those(left="abcd", right="efgh")


def test_a_mistake_is_recognised_by_what_it_breaks() -> None:
    assert named(TWO, "abcd") == ["left"]
    assert named(TWO, "efgh") == ["right"]


def test_what_a_mistake_does_not_explain_says_nothing_against_it() -> None:
    [first] = TWO.looks_like(set("abcd") | set("ijklmnopqrstuvwxyz"), EVERY)
    [alone] = TWO.looks_like(set("abcd"), EVERY)
    assert (first.mistake.name, first.odds, first.others) == ("left", alone.odds, 18)


def test_two_mistakes_at_once_are_both_named() -> None:
    assert named(TWO, "abcdefgh") == ["left", "right"]


def test_a_claim_that_did_not_run_does_not_count() -> None:
    [found] = TWO.looks_like({"a", "b"}, EVERY - {"c", "d"})
    assert (found.broken, found.of, found.known) == (2, 2, 4)
    assert str(found) == (
        "left is wrong (left: 2 of the 4 claims that it breaks ran, and all of them failed)"
    )
    assert named(TWO, "ab") == []  # half of what ran did not fail


def test_most_of_the_fingerprint_suffices() -> None:
    [found] = TWO.looks_like({"a", "b", "c"}, EVERY)
    assert str(found).endswith("4 of the 4 claims that it breaks ran, and 3 of them failed)")


def test_one_claim_names_no_mistake() -> None:
    assert named(those(left="a", right="efgh"), "a") == []
    assert named(TWO, "a", EVERY - {"b", "c", "d"}) == []


def test_claims_that_many_mistakes_break_name_none() -> None:
    many = {f"m{n}": "ab" for n in range(30)}
    assert named(those(**many), "ab") == []


def test_few_that_are_equally_likely_are_all_named_and_many_are_not() -> None:
    both = those(one="abc", two="abc")
    assert named(both, "abc") == ["one", "two"]
    assert [str(each)[:6] for each in both.looks_like(set("abc"), EVERY)] == ["one is", "or two"]
    four = {name: "abc" for name in ("one", "two", "three", "four")}
    assert named(those(**four), "abc") == list(four)
    assert named(those(**four, five="abc"), "abc") == []


def test_of_equally_likely_ones_that_of_which_more_ran_comes_first() -> None:
    both = those(longer="abcd", whole="abc")
    assert named(both, "abc", EVERY - {"d"}) == ["whole", "longer"]


def test_less_evidence_suffices_where_all_of_it_failed() -> None:
    """Odds of 7.7 each: two claims of two, or three of four."""
    two = those(one="a", two="a", three="b", four="b", whole="ab")
    [found] = two.looks_like(set("ab"), EVERY)
    three = those(whole="abcd", **{f"{claim}{n}": claim for claim in "abc" for n in range(5)})
    most = three._likeness(three.mistakes[0], set("abc"), EVERY)
    assert [round(each.odds, 1) for each in (found, most)] == [7.7, 7.7]
    assert named(three, "abc") == []


def test_what_is_too_many_mistakes_to_tell_hides_no_other() -> None:
    many = {f"m{n}": "abcd" for n in range(5)}
    assert named(those(**many, right="efg"), "abcdefg") == ["right"]


def test_three_are_named_with_those_that_are_as_likely() -> None:
    alike = {f"m{n}": "abc" for n in range(3)}
    both = those(**alike, left="efg", right="hij", last="klm")
    assert named(both, "abcefghijklm") == ["left", "right", "last"]
    assert named(both, "abcefghij") == ["left", "right", *alike]


def test_of_two_that_fit_the_one_that_explains_more_is_named() -> None:
    assert named(those(part="abc", whole="abcdef"), "abcdef") == ["whole"]
    assert named(those(part="abc", whole="abcdef"), "abc") == ["part"]


def test_nothing_is_named_where_nothing_failed() -> None:
    assert named(TWO, "") == []


FAILING = """
@claim("{name}")
def test_{name}(check):
    check(1, exact({value}))
"""


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the two mistakes and the two hundred others."""
    facts = [vars(mistake) for mistake in TWO.mistakes]
    (tmp_path / "mistakes.yaml").write_text(json.dumps(facts))
    rows = [f"{name},{claim}\n" for name, claims in TWO.fingerprints.items() for claim in claims]
    (tmp_path / "fingerprints.csv").write_text("mistake,claim\n" + "".join(rows))
    monkeypatch.setattr(diagnosis, "FOLDER", tmp_path)


@pytest.mark.usefixtures("listed")
def test_a_failing_run_names_the_likely_mistake(project: Project, tmp_path: Path) -> None:
    for name in "abcde":
        project.entry(name).test(FAILING.format(name=name, value=1 if name == "e" else 2))
    result = project.run("--claims-json", str(tmp_path / "red.json"))
    assert "what failed looks like a known mistake:" in output(result)
    assert "  left is wrong (left: 4 of the 4 claims that it breaks ran, and all" in output(result)
    [found] = json.loads((tmp_path / "red.json").read_text())["looks_like"]
    assert (found["mistake"]["name"], found["broken"], found["others"]) == ("left", 4, 0)


@pytest.mark.usefixtures("listed")
def test_a_crash_and_a_passing_run_name_no_mistake(project: Project, tmp_path: Path) -> None:
    for name in "abcd":
        project.entry(name).test(FAILING.format(name=name, value=1))
    result = project.run("--claims-json", str(tmp_path / "green.json"))
    assert "known mistake" not in output(result)
    assert json.loads((tmp_path / "green.json").read_text())["looks_like"] == []


DEPARTING = """
@claim("{name}")
def test_{name}(implementation, check):
    check(implementation.causal_mask(2).sum().item(), exact(0))
"""


@pytest.mark.usefixtures("listed")
def test_departures_from_the_chapters_choices_speak_for_no_mistake(project: Project) -> None:
    """Of another package; on the reference they are mistakes as all others are."""
    project.package("theirs", "from transformer import causal_mask\n")
    (project.folder / "package" / "__init__.py").write_text("from transformer import causal_mask\n")
    for name in "abcdefgh":
        choice = {"binds": "chapter"} if name in "abcd" else {}
        project.entry(name, **choice).test(DEPARTING.format(name=name))
    said = output(project.run("--implementation", "theirs"))
    assert "departs from the chapter in:" in said
    assert "right is wrong (right: 4 of the 4" in said
    assert "left is wrong" not in said
    assert "left is wrong" in output(project.run())


# ---- how often it is right -----------------------------------------------------------------------


def test_the_stored_rates_are_those_of_todays_fingerprints() -> None:
    """But for all pairs, which take long: of these, the number of cases."""
    with (FOLDER / "diagnoses.csv").open() as file:
        stored = {row["kind"]: {k: int(row[k]) for k in row if k != "kind"}
                  for row in csv.DictReader(file)}
    outside = diagnosis.fingerprints(FOLDER / "outside.csv")
    kinds = diagnoses.kinds(KNOWN, outside, load_ledger(LEDGER))
    assert list(kinds) == list(stored)
    pairs = len(PRINTS) * (len(PRINTS) - 1) // 2
    assert stored["two known mistakes at once"]["cases"] == pairs
    for kind, cases in kinds.items():
        if kind.startswith("two known mistakes at once"):
            assert stored[kind]["cases"] == len(list(cases))
        else:
            row = vars(diagnoses.row(kind, cases))
            assert {key: row[key] for key in stored[kind]} == stored[kind]


def test_the_ends_of_a_case_are_told_apart() -> None:
    every = list(EVERY)
    cases = {
        "right": diagnoses.Case({"left"}, LEFT, every, TWO),
        "both": diagnoses.Case({"left", "right"}, LEFT | RIGHT, every, TWO),
        "one of two": diagnoses.Case({"left", "other-1"}, LEFT, every, TWO),
        "silent": diagnoses.Case({"left"}, {"a"}, every, TWO),
        "another": diagnoses.Case((), LEFT, every, TWO),
        "equally likely": diagnoses.Case({"two"}, LEFT, every, those(one="abcd", two="abcd")),
    }
    ends = {kind: diagnoses.row(kind, [case]) for kind, case in cases.items()}
    counts = {
        kind: (end.first, end.every, end.silent, end.another) for kind, end in ends.items()
    }
    assert counts == {
        "right": (1, 1, 0, 0), "both": (1, 1, 0, 0), "one of two": (1, 0, 0, 0),
        "silent": (0, 0, 1, 0), "another": (0, 0, 0, 1),
        "equally likely": (1, 1, 0, 0),
    }


def test_a_folder_without_fingerprints_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        diagnoses.main([str(tmp_path)])
    assert "run python -m claims.studies.fingerprints" in capsys.readouterr().err


# ---- every claim can fail ------------------------------------------------------------------------


def test_every_claim_is_broken_by_a_mistake_or_stands_in_a_list_with_a_reason() -> None:
    listed = [claim for each in known_mistakes.unbroken() for claim in each["claims"]]
    assert all(each["reason"] for each in known_mistakes.unbroken())
    tried = known_mistakes.testable(load_ledger(LEDGER))
    broken = known_mistakes.broken()
    assert sorted(listed) == sorted(set(tried) - broken)


def test_whatever_breaks_a_claim_breaks_what_rests_on_it() -> None:
    for entry in ENTRIES.values():
        for below in entry.requires:
            breaking = [name for name, broken in PRINTS.items() if below in broken]
            assert breaking, f"no known mistake tells whether {entry.id} rests on {below}"
            sound = [name for name in breaking if entry.id not in PRINTS[name]]
            assert not sound, f"{entry.id} rests on {below}, yet {sound} break {below} alone"
