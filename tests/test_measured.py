"""README shows what was measured at the document's budget, value by value."""

from __future__ import annotations

import csv
import json
import re
import statistics
from pathlib import Path

import pytest

from claims.studies.document import EXPERIMENTS, main
from conftest import ROOT

MEASURED = ROOT / "fixtures" / "studies" / "document" / "runs.csv"
README = (ROOT / "README.md").read_text(encoding="utf-8")
with MEASURED.open(encoding="utf-8") as file:
    ROWS = list(csv.DictReader(file))


def shown(row: dict[str, str]) -> str:
    """Mean, spread and number of seeds, as README shows a perplexity."""
    values = [float(value) for value in row["values"].split()]
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread} (n = {len(values)})"


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row["quantity"].startswith("perplexity, held out")],
    ids=lambda row: f"{row['experiment']}: {row['run']}, {row['quantity']}",
)
def test_readme_shows_every_measured_perplexity(row: dict[str, str]) -> None:
    value = re.escape(shown(row))
    name = re.escape(row["run"].removesuffix(", divided").removesuffix(", undivided"))
    assert re.search(rf"^\| {name} \|(.*\|)? {value} \|", README, re.MULTILINE), shown(row)


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
