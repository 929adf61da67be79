"""The page for the chapter's author: its evidence is stored, and shown with what holds instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from claims.harness import paths
from claims.harness.ledger import Ledger
from claims.report.merging import Merged, merge
from claims.report.stored import of_data, read
from claims.studies import author
from claims.studies.author import MOST, evidence, main, parts
from small_results import entry, ledger, record, results, run

KNOWN = ledger(
    entry("false-one", "refuted", line=60, reading="True of true-one alone.",
          readings={"the first": "so", "the second": "or so"}),
    entry("true-one", "exact"),
    entry("an-open-one", "open", turns_on="the weight decay",
          settings={"none": "of 0", "some": "of 0.01"}),
    entry("read-otherwise", "holds", readings={"one": "all of it", "other": "a part of it"},
          holds_under="other"),
    entry("silent-one", "exact", reading="Counted in tokens."),
    entry("waiting", "not run", awaits="the listing"),
    entry("for-a-budget", "not run", awaits="the document's budget",
          at_document={"verdict": "holds"}, kind="training"),
)  # fmt: skip
FALSE = run(
    "false-one", "refuted", reason="True of true-one alone.",
    records=[record(1, 1, reading="the first"), record(3, 4, ok=False, reading="the second")],
)
OPEN = run(
    "an-open-one", "open", reason="the weight decay", budget="document",
    records=[record(1.5, reading="none"),
             record("x" * 500, ok=False, reading="some", source="the record of a day")],
)  # fmt: skip
OTHERWISE = run(
    "read-otherwise", "holds", read_as="other",
    records=[record(5, ok=False, reading="one"), record(6, reading="other"), record(7)],
)
RUNS = [FALSE, OPEN, OTHERWISE, run("true-one"), run("silent-one"),
        run("for-a-budget", "not run", records=[])]  # fmt: skip
PART = results(*RUNS[:3], command="pytest claims --shard 1/2 --claims-json /home/me/1.json")
OTHER = results(*RUNS[3:], made="2026-01-30T23:59:00+00:00")


def merged(*data: dict[str, Any], known: Ledger = KNOWN) -> Merged:
    return merge([of_data(each, "file") for each in data], known)


@pytest.fixture
def page(tmp_path: Path) -> dict[str, str]:
    stored = tmp_path / "author.json"
    stored.write_text(json.dumps(evidence(merged(PART, OTHER))))
    return parts(KNOWN, stored)


def test_what_is_wrong_stands_with_what_was_measured_and_what_holds(page: dict[str, str]) -> None:
    assert page["wrong"] == (
        "**l.60: The sentence of false-one.** True of true-one alone.\n\n"
        "- *the first*: measured 1, expected 1\n"
        "- *the second*: measured 3, expected 4\n"
        "- `true-one` (`exact`): The sentence of true-one.\n"
        "- the test: [`false-one`](../claims/test_02_average.py)\n"
    )


def test_what_is_open_stands_with_its_settings(page: dict[str, str]) -> None:
    assert "It turns on the weight decay: *none*, of 0 (holds); *some*, of 0.01 (fails).\n" in (
        page["open"]
    )
    assert "- *none*: measured 1.5, expected 2.5 (the chapter's budget)\n" in page["open"]
    cut = f"measured {'x' * 120} ..., expected 2.5 (the chapter's budget; the record of a day)"
    assert cut in page["open"]


def test_what_is_true_otherwise_stands_with_both_readings(page: dict[str, str]) -> None:
    said = page["read otherwise"]
    assert "False as it reads first: all of it. True where it says: a part of it.\n" in said
    assert "- *one*: measured 5" in said
    assert "- *other*: measured 6" in said
    assert "measured 7" not in said  # it tells the readings apart no further


def test_what_is_left_out_is_listed(page: dict[str, str]) -> None:
    assert page["asked"] == "- the listing, for l.11: The sentence of waiting.\n"
    assert page["readings"] == "- l.11: The sentence of silent-one. *Counted in tokens.*\n"


def test_the_page_says_where_its_values_are_from(page: dict[str, str]) -> None:
    commands = "`pytest claims --shard 1/2 --claims-json FILE; pytest claims`"
    assert page["made"].endswith(f"commit abc123, base seed 17, torch 2.13.0; cpu: {commands}.\n")


def test_a_sentence_shows_a_few_comparisons() -> None:
    many = FALSE | {"records": [record(n, ok=False, reading="the first") for n in range(100)]}
    said = [*author._measured({"verdict": "refuted", "runs": [shown(many)]})]
    assert len(said) == MOST


def shown(data: dict[str, Any]) -> dict[str, Any]:
    texts = {"expected": "4", "measured": "3"}
    return data | {"records": [each | texts for each in data["records"]]}


def test_only_the_runs_that_are_shown_are_stored() -> None:
    data = evidence(merged(PART, OTHER))
    assert [each["claim"] for each in data["runs"]] == [
        "false-one", "an-open-one", "read-otherwise"
    ]  # fmt: skip
    assert data["verdicts"]["silent-one"] == "exact"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (results(run("true-one", "failed")), "the runs are red: true-one"),
        (results(run("true-one"), implementation="mine"), "about transformer alone"),
    ],
)
def test_what_says_nothing_about_the_chapter_is_refused(
    data: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(author, "load_ledger", lambda path: KNOWN)
    monkeypatch.setattr(author, "write_whole", lambda path, text: pytest.fail("written"))
    (tmp_path / "file.json").write_text(json.dumps(data))
    with pytest.raises(SystemExit) as left:
        main([str(tmp_path / "file.json")])
    assert left.value.code == 2
    assert sentence in capsys.readouterr().err


def test_the_command_stores_what_it_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "studies").mkdir()
    monkeypatch.setattr(paths, "FIXTURES", tmp_path / "studies")
    monkeypatch.setattr(author, "load_ledger", lambda path: KNOWN)
    monkeypatch.setattr(author, "STORED", tmp_path / "studies" / "author.json")
    for name, data in (("1", PART), ("2", OTHER)):
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    assert main([str(tmp_path / "1.json"), str(tmp_path / "2.json")]) == 0
    [stored] = read(tmp_path / "studies" / "author.json")
    assert len(stored.runs) == 3
    assert "/home/me" not in stored.command
