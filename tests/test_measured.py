"""README's tables of the document's budget are those of `fixtures/measured/`, value by value."""

from __future__ import annotations

import csv
import json
import re
import statistics

import pytest

from claims.experiments.__main__ import EXPERIMENTS, main
from conftest import ROOT

MEASURED = ROOT / "fixtures" / "measured" / "document.csv"
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
    assert re.search(rf"^\| {name} \|.*\| {value} \|", README, re.MULTILINE), shown(row)


def test_every_row_belongs_to_an_experiment() -> None:
    known = {
        (name, label) for name, budgets in EXPERIMENTS.items() for label in budgets["document"].runs
    }
    assert {(row["experiment"], row["run"]) for row in ROWS} <= known


def test_the_table_says_where_it_comes_from() -> None:
    facts = json.loads(MEASURED.with_suffix(".provenance.json").read_text(encoding="utf-8"))
    assert set(facts) == {
        "torch", "device", "machine", "threads", "finished", "commit", "command",
    }  # fmt: skip
    assert all(facts.values())


@pytest.mark.parametrize("name", ["table.txt", "missing/table.csv"])
def test_a_bad_file_is_refused_before_anything_is_written(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    with pytest.raises(SystemExit):
        main([f"{tmp_path}/{name}"])
    assert "give the name of a .csv file in an existing folder" in capsys.readouterr().err
