"""The documents show what was measured, and what the ledger says."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from claims.harness import paths
from claims.harness.ledger import Entry, Expected, Ledger, load_ledger
from claims.report.pictures import all_pictures
from claims.report.pictures.picture import Picture
from claims.studies import docs, document
from claims.studies.document import EXPERIMENTS
from claims.studies.document_tables import shown
from claims.studies.markdown import COMMAND, table, with_parts
from claims.studies.verdicts import STORED, sentences, stored
from claims.studies.verdicts import main as write_verdicts
from conftest import ROOT

MEASURED = ROOT / "fixtures" / "studies" / "document" / "runs.csv"
RESULTS = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
with MEASURED.open(encoding="utf-8") as file:
    ROWS = list(csv.DictReader(file))


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return all_pictures(load_ledger(paths.LEDGER))


@pytest.fixture(scope="module")
def generated(pictures: list[Picture]) -> dict[str, dict[str, str]]:
    return docs.generated(load_ledger(paths.LEDGER), pictures)


def test_the_generated_parts_of_the_documents_are_current(
    generated: dict[str, dict[str, str]]
) -> None:
    for name, parts in generated.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert with_parts(text, parts) == text, f"{name}: run {COMMAND}"


def test_the_pictures_of_the_documents_are_current(pictures: list[Picture]) -> None:
    """What they show; how Matplotlib draws it differs between its versions."""
    drawn = {f"{picture.name}.svg": picture for picture in pictures if picture.svg}
    files = {path.name: path for path in (ROOT / "docs" / "pictures").iterdir()}
    assert files.keys() == drawn.keys()
    for name, path in files.items():
        assert f"<!-- {drawn[name].digest} -->" in path.read_text(), f"{name}: run {COMMAND}"


def test_the_command_writes_the_parts_that_are_out_of_date(
    generated: dict[str, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    for name in generated:
        text = (ROOT / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(re.sub(r"^\|.*\n", "", text, flags=re.MULTILINE))
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    assert docs.main([]) == 0
    assert (tmp_path / "docs" / "pictures" / "ladder.svg").is_file()
    for name, parts in generated.items():
        assert all(part in (tmp_path / name).read_text(encoding="utf-8") for part in parts.values())


MARKED = f"Before.\n<!-- a, made by: {COMMAND} -->\nold\n<!-- end of a -->\nAfter.\n"


def test_a_part_is_replaced_and_all_else_is_kept() -> None:
    written = with_parts(MARKED, {"a": "new\n"})
    assert written == MARKED.replace("old\n", "\nnew\n\n")
    assert with_parts(written, {"a": "new\n"}) == written


@pytest.mark.parametrize(
    ("text", "parts", "fault"),
    [
        (MARKED, {}, r"marks the parts \['a'\]; there are \[\]"),
        (MARKED * 2, {"a": ""}, r"marks the parts \['a', 'a'\]"),
        ("", {"a": ""}, r"marks the parts \[\]; there are \['a'\]"),
        (MARKED.replace("end of a", "end of b"), {"a": ""}, "'a' has no end"),
    ],
)
def test_a_document_with_other_parts_is_refused(
    text: str, parts: dict[str, str], fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        with_parts(text, parts)


def test_a_table_in_markdown() -> None:
    assert table(["a", ""], [["1", ""]]) == "| a | |\n| --- | --- |\n| 1 | |\n"


def test_every_refuted_sentence_is_listed_with_its_line() -> None:
    for entry in load_ledger(paths.LEDGER).entries.values():
        listed = f"- {entry.place}: **{entry.statement}**" in RESULTS
        verdicts = {entry.verdict_at(budget) for budget in ("ci", "document")}
        decided = stored()[entry.id] != "not run"
        assert listed == (decided and bool(verdicts & {"refuted", "open"})), entry.id


def test_the_stored_verdicts_are_those_of_the_ledger() -> None:
    entries = load_ledger(paths.LEDGER).entries
    assert set(stored()) == set(entries)
    for name, verdict in stored().items():
        expected = {entries[name].verdict_at(budget) for budget in ("ci", "document")}
        assert verdict in expected | {"not run"}, name


@pytest.mark.parametrize("text", ["{", "{}", '{"verdicts": {}}'])
def test_a_file_of_no_run_is_refused_and_nothing_is_written(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = STORED.read_text()
    (tmp_path / "claims.json").write_text(text)
    with pytest.raises(SystemExit):
        write_verdicts([str(tmp_path / "claims.json")])
    assert "is no file that --claims-json wrote" in capsys.readouterr().err
    assert STORED.read_text() == before


def test_the_verdicts_of_a_run_are_written_down_without_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr("claims.studies.verdicts.STORED", tmp_path / "stored.json")
    monkeypatch.setattr("claims.studies.verdicts.load_ledger", lambda path: Ledger((), {}))
    facts = {"made": "today", "base_seed": "17", "machine": {}, "verdicts": {}}
    command = "pytest claims --claims-json {} -q"
    file = tmp_path / "claims.json"
    file.write_text(json.dumps({**facts, "command": command.format("/a/b.json"), "runs": []}))
    assert write_verdicts([str(file)]) == 0
    written = json.loads((tmp_path / "stored.json").read_text())
    assert written == facts | {"command": command.format("FILE")}


def test_a_sentence_that_is_refuted_at_one_budget_has_the_other_verdict_beside_it() -> None:
    entry = Entry(
        "a", "2-average", "The sentence.", "training", "holds", line=11, reading="The small one.",
        expected=Expected("a", {}), at_document={"verdict": "refuted", "reading": "The reason."},
    )  # fmt: skip
    assert sentences(Ledger(("2-average",), {"a": entry}), "refuted", {"a": "refuted"}) == (
        "1 sentences of the chapter, and 0 beyond it.\n\n### 2-average\n\n"
        "- l.11: **The sentence.** The reason. At the small budget the verdict is `holds`.\n"
        "  [`a`](../claims/test_02_average.py)\n"
    )


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row["quantity"].startswith("perplexity, held out")],
    ids=lambda row: f"{row['experiment']}: {row['run']}, {row['quantity']}",
)
def test_the_results_show_every_measured_perplexity(row: dict[str, str]) -> None:
    text = re.escape(shown([float(value) for value in row["values"].split()]))
    name = re.escape(row["run"].removesuffix(", scaled").removesuffix(", unscaled"))
    assert re.search(rf"^\| {name} \|(.*\|)? {text} \|", RESULTS, re.MULTILINE)


def test_a_mean_is_shown_with_its_spread_and_number() -> None:
    assert shown([2.0, 4.0]) == "3.00 ± 1.41 (n = 2)"
    assert shown([2.0], 1) == "2.0 (n = 1)"
    assert shown([]) == "—"


def test_every_row_belongs_to_an_experiment() -> None:
    known = {
        (name, label) for name, budgets in EXPERIMENTS.items() for label in budgets["document"].runs
    }
    assert {(row["experiment"], row["run"]) for row in ROWS} <= known


def test_the_table_says_where_it_comes_from() -> None:
    facts = json.loads(MEASURED.with_name("provenance.json").read_text(encoding="utf-8"))
    assert set(facts) == {
        "torch", "device", "machine", "threads", "made", "commit", "command",
    }  # fmt: skip
    assert all(facts.values())


def test_a_missing_folder_is_refused_before_anything_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit):
        document.main([str(tmp_path / "missing")])
    assert "is no folder; give one that exists" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_record_without_such_runs_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "EVIDENCE", tmp_path / "evidence")
    with pytest.raises(SystemExit):
        document.main([str(tmp_path)])
    assert "holds no run of these experiments" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_of_the_record_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "EVIDENCE", tmp_path)
    (tmp_path / "damaged.json").write_text("{}")
    with pytest.raises(SystemExit):
        document.main([str(tmp_path)])
    assert "damaged.json is no file of the record" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["damaged.json"]
