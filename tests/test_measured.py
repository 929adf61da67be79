"""README shows what was measured at the document's budget, value by value."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from claims.studies.document import EXPERIMENTS, main, values_of
from claims.studies.document_tables import shown, tables
from conftest import ROOT

MEASURED = ROOT / "fixtures" / "studies" / "document" / "runs.csv"
README = (ROOT / "README.md").read_text(encoding="utf-8")
with MEASURED.open(encoding="utf-8") as file:
    ROWS = list(csv.DictReader(file))


def test_readme_has_the_tables_that_were_written() -> None:
    written = MEASURED.with_name("tables.md").read_text(encoding="utf-8")
    assert f"<!-- document tables -->\n\n{written}\n<!-- end" in README


def test_the_tables_are_those_of_the_values() -> None:
    assert MEASURED.with_name("tables.md").read_text(encoding="utf-8") == tables(values_of(ROWS))


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row["quantity"].startswith("perplexity, held out")],
    ids=lambda row: f"{row['experiment']}: {row['run']}, {row['quantity']}",
)
def test_readme_shows_every_measured_perplexity(row: dict[str, str]) -> None:
    text = re.escape(shown([float(value) for value in row["values"].split()]))
    name = re.escape(row["run"].removesuffix(", scaled").removesuffix(", unscaled"))
    assert re.search(rf"^\| {name} \|(.*\|)? {text} \|", README, re.MULTILINE)


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
        "torch", "device", "machine", "threads", "finished", "commit", "command",
    }  # fmt: skip
    assert all(facts.values())


def test_a_missing_folder_is_refused_before_anything_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path / "missing")])
    assert "is no folder; give one that exists" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_store_without_such_runs_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAIMS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "holds no run at the document's budget" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
