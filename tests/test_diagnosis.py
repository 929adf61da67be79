"""Known mistakes: each can be made, breaks the claims of its fingerprint, and is recognised."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from claims.harness import diagnosis as known
from claims.harness.diagnosis import FOLDER, Mistake, fingerprints, looks_like, mistakes
from claims.harness.ledger import load_ledger
from claims.harness.paths import LEDGER
from claims.studies import fingerprints as study
from claims.studies.fingerprints import claims_on, copy, failed
from conftest import Project, output

ALL = mistakes(FOLDER)
PRINTS = fingerprints(FOLDER)


@pytest.mark.parametrize("mistake", ALL, ids=lambda mistake: mistake.name)
def test_every_mistake_can_be_made_in_todays_source(mistake: Mistake, tmp_path: Path) -> None:
    name = copy(mistake, tmp_path)
    assert name == "with_" + mistake.name.replace("-", "_")
    source = (tmp_path / name / mistake.file).read_text(encoding="utf-8")
    compile(source, mistake.file, "exec")
    assert mistake.new in source
    assert mistake.old not in source.replace(mistake.new, "")


def test_a_missing_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text("x = 1\n")
    mistake = Mistake("gone", "a line has gone", "block.py", "x = 2", "x = 3")
    with pytest.raises(ValueError, match=r"mistake gone: block\.py has 0 times: x = 2"):
        mistake.make(tmp_path)
    assert (tmp_path / "block.py").read_text() == "x = 1\n"


def test_each_has_a_name_a_sentence_and_claims_of_the_ledger() -> None:
    names = [mistake.name for mistake in ALL]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in names)
    # Text in brackets follows it.
    assert not [mistake.says for mistake in ALL if mistake.says.endswith(".")]
    assert list(PRINTS) == names
    claims = set(load_ledger(LEDGER).entries)
    assert all(broken <= claims for broken in PRINTS.values())


# ---- likeness ------------------------------------------------------------------------------------

CLAIMS = set().union(*PRINTS.values()) | {"another", "one-more"}


@pytest.mark.parametrize("mistake", ALL, ids=lambda mistake: mistake.name)
def test_the_claims_that_a_mistake_breaks_point_to_it(mistake: Mistake) -> None:
    """Also when one of several is left out and another claim is broken in addition."""
    broken = sorted(PRINTS[mistake.name])
    first = looks_like(broken, CLAIMS)[0]
    assert first.share == 1.0
    assert mistake in [each.mistake for each in looks_like(broken, CLAIMS)]
    if len(broken) > 3:
        found = looks_like({*broken[1:], "another"}, CLAIMS)
        assert mistake in [each.mistake for each in found]


def test_no_mistake_is_named_where_other_claims_or_none_fail() -> None:
    assert looks_like([], CLAIMS) == []
    assert looks_like(["another"], CLAIMS) == []
    broken = sorted(PRINTS["division-missing"])
    assert looks_like(broken[: len(broken) // 2 - 1], CLAIMS) == []


FOUR = """\
- {name: left, says: the left one is wrong, file: a.py, old: a, new: b}
- {name: right, says: the right one is wrong, file: a.py, old: a, new: b}
- {name: both, says: both are wrong, file: a.py, old: a, new: b}
- {name: also, says: another is wrong, file: a.py, old: a, new: b}
"""
OF_FOUR = """\
mistake,claim
left,one
left,two
left,three
right,one
right,two
right,four
both,one
both,two
also,one
also,two
"""


@pytest.fixture
def four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with four mistakes, and a text to run on."""
    (tmp_path / "text.txt").write_text("A line of a text.\n" * 1000)
    monkeypatch.setenv("CLAIMS_CORPUS", str(tmp_path / "text.txt"))
    (tmp_path / "mistakes.yaml").write_text(FOUR)
    (tmp_path / "fingerprints.csv").write_text(OF_FOUR)
    monkeypatch.setattr(known, "FOLDER", tmp_path)


@pytest.mark.usefixtures("four")
def test_only_claims_that_ran_count() -> None:
    ran = ["one", "two", "three", "four", "five"]
    found = looks_like(["one", "two", "three"], ran)
    assert [(str(each), each.share) for each in found] == [
        ("the left one is wrong (left: 3 of the 3 claims that it breaks)", 1.0),
        ("both are wrong (both: 2 of the 2 claims that it breaks, and 1 more)", 2 / 3),
        ("another is wrong (also: 2 of the 2 claims that it breaks, and 1 more)", 2 / 3),
    ]
    [first, *_] = looks_like(["one", "four"], ["one", "four", "five"])
    assert (first.mistake.name, first.of, first.others) == ("right", 2, 0)


@pytest.mark.usefixtures("four")
def test_a_claim_that_many_mistakes_break_points_to_none() -> None:
    assert looks_like(["one"], ["one"]) == []


RED = """
@claim("one")
def test_one(check):
    check(1, exact(2))

@claim("two")
def test_two(check):
    check(1, exact(2))

@claim("three")
def test_three(check):
    check(2, exact(2))

@claim("four")
def test_four(check):
    check(2, exact(2))
"""


@pytest.mark.usefixtures("four")
def test_a_failing_run_names_the_likely_mistake(project: Project, tmp_path: Path) -> None:
    for name in ("one", "two", "three", "four"):
        project.entry(name)
    project.test(RED)
    result = project.run("--claims-json", str(tmp_path / "red.json"))
    assert "what failed looks like a known mistake:" in output(result)
    assert "  both are wrong (both: 2 of the 2 claims that it breaks)" in output(result)
    [first, *_] = json.loads((tmp_path / "red.json").read_text())["looks_like"]
    assert (first["mistake"]["name"], first["broken"], first["others"]) == ("both", 2, 0)


@pytest.mark.usefixtures("four")
def test_a_passing_run_names_no_mistake(project: Project, tmp_path: Path) -> None:
    project.entry("four").test(RED[RED.index('@claim("four")') :])
    result = project.run("--claims-json", str(tmp_path / "green.json"))
    assert "known mistake" not in output(result)
    assert json.loads((tmp_path / "green.json").read_text())["looks_like"] == []


# ---- the command that measures -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "module"),
    [("division-missing", "test_13_implementation"), ("rotary-by-halves", "test_08_positions")],
)
def test_a_mistake_breaks_what_its_fingerprint_says(
    name: str, module: str, tmp_path: Path
) -> None:
    """Each on one module; the command runs all modules."""
    text = "".join(f"The {n}th line, with {n * n} in it.\n" for n in range(4000))
    (tmp_path / study.CORPUS).write_text(text, encoding="utf-8")
    [mistake] = [each for each in ALL if each.name == name]
    data = claims_on(copy(mistake, tmp_path), tmp_path, (f"claims/{module}.py",))
    ran = {run["claim"] for run in data["runs"] if run["verdict"] != "not run"}
    assert set(failed(data)) == PRINTS[name] & ran
    assert failed(data)


def of(*claims: str) -> dict[str, Any]:
    verdicts = dict.fromkeys(claims, "failed") | {"fine": "exact", "left-out": "not run"}
    machine = {"torch": "2"}
    return {"verdicts": verdicts, "made": "now", "base_seed": "17", "machine": machine,
            "corpus": "Tiny Shakespeare, from /a/place"}


@pytest.fixture
def measured(four: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with four mistakes; which claims each breaks is given here."""
    breaks = {"left": ("one", "two"), "right": ("two",), "both": (), "also": ("one",)}
    monkeypatch.setattr(study, "copy", lambda mistake, folder: mistake.name)
    monkeypatch.setattr(study, "claims_on", lambda package, folder: of(*breaks[package]))
    return tmp_path


def test_the_command_writes_what_broke_and_names_what_no_claim_notices(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study.main([str(measured)]) == 1
    assert "no claim notices both" in capsys.readouterr().err
    with (measured / "fingerprints.csv").open() as file:
        rows = [(row["mistake"], row["claim"]) for row in csv.DictReader(file)]
    assert rows == [("left", "one"), ("left", "two"), ("right", "two"), ("also", "one")]
    facts = json.loads((measured / "provenance.json").read_text())
    assert facts["corpus"] == "Tiny Shakespeare"
    assert facts["machine"] == {"torch": "2"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (FOUR, "mistake left: a.py does not exist"),
        ("- {name: left}\n", "must be a list, with name, says, file, old, new in each entry"),
        ("left: {\n", "must be a list, with name, says, file, old, new in each entry"),
    ],
    ids=["a missing file", "half an entry", "no YAML"],
)
@pytest.mark.usefixtures("four")
def test_a_mistake_that_cannot_be_made_is_one_sentence_and_keeps_the_old_table(
    text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mistakes.yaml").write_text(text)
    with pytest.raises(SystemExit):
        study.main([str(tmp_path)])
    assert sentence in capsys.readouterr().err
    assert (tmp_path / "fingerprints.csv").read_text() == OF_FOUR


def test_a_folder_without_mistakes_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        study.main([str(tmp_path)])
    assert "has no mistakes.yaml; give fixtures/implementations" in capsys.readouterr().err
