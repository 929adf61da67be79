"""`python -m claims.compare`: implementations side by side."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from claims import compare
from claims.compare import Outcome, main, outcome_of, side_by_side, timed
from claims.harness.implementation import Implementation
from claims.instruments.cost.timing import Timing
from claims.report.stored import NoResults, Stored
from conftest import ROOT

SOUND = Outcome({"exact": 3, "holds": 2}, [])
BROKEN = Outcome({"exact": 3, "failed": 2}, ["the mask is off by one"])


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """The rows of the table, by their first cell."""
    rows = (line.strip().split("  ") for line in capsys.readouterr().out.splitlines())
    return {cells[0]: [cell.strip() for cell in cells[1:] if cell.strip()] for cells in rows}


def test_packages_stand_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "another.py").write_text("from transformer import causal_mask, attention\n")
    monkeypatch.syspath_prepend(tmp_path)
    outcomes = {"transformer": SOUND, "another": BROKEN}
    monkeypatch.setattr(compare, "outcome_of", outcomes.get)
    times = {
        ("transformer", "training step"): Timing((0.010, 0.012, 0.011), 1),
        ("transformer", "attention, forward"): Timing((0.001, 0.001, 0.001), 1),
        ("another", "attention, forward"): Timing((0.002, 0.002, 0.004), 1),
    }
    monkeypatch.setattr(compare, "timed", lambda implementations: times)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["transformer", "another", "another"]) == 0
    rows = printed(capsys)
    assert rows["exact"] == ["3", "3"]
    assert rows["holds"] == ["2", "0"]
    assert rows["failed"] == ["0", "2"]
    assert rows["looks like"] == ["-", "the mask is off by one"]
    assert rows["training step"] == ["11.00", "not provided"]
    assert rows["attention, forward"] == ["1.00", "2.00, 2.00 (2.00 to 3.00)"]
    assert "open" not in rows


def test_what_a_package_provides_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "attending.py").write_text("from transformer import causal_mask, attention\n")
    monkeypatch.syspath_prepend(tmp_path)
    called: list[set[Any]] = []

    def measure(calls: dict[Any, Any], rounds: int) -> dict[Any, Timing]:
        called.append(set(calls))
        return {key: Timing((call() is None or 1.0,), rounds) for key, call in calls.items()}

    monkeypatch.setattr(compare, "measure", measure)
    monkeypatch.setattr(compare, "settle_process", lambda: None)
    packages = {name: Implementation(name) for name in ("transformer", "attending")}
    assert len(timed(packages)) == 5
    assert called == [{
        ("transformer", "training step"), ("transformer", "attention, forward"),
        ("transformer", "attention, forward and backward"), ("attending", "attention, forward"),
        ("attending", "attention, forward and backward"),
    }]  # fmt: skip


def test_verdicts_are_those_of_the_claims_that_do_not_train(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        asked.append(command)
        Path(command[command.index("--claims-json") + 1]).write_text("{}")

    runs = [{"verdict": "exact"}, {"verdict": "exact"}, {"verdict": "failed"}]
    likely = [{"mistake": {"says": "the scores are not divided"}}]
    stored = Stored("", "", "", "", "", "", {}, "", {}, likely, runs)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(compare, "read", lambda path: stored)
    outcome = outcome_of("my_package")
    assert outcome == Outcome({"exact": 2, "failed": 1}, ["the scores are not divided"])
    (command,) = asked
    assert command[command.index("-m", 3) + 1] == "not gpu and not trains"
    assert command[command.index("--implementation") + 1] == "my_package"


def test_claims_that_did_not_run_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess([], 4, "", "ERROR: no corpus")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(NoResults, match=r"the claims of my_package did not run: ERROR: no corpus"):
        outcome_of("my_package")


@pytest.mark.parametrize(
    ("packages", "says"),
    [
        (["transformer"], "takes two packages or more, got transformer"),
        (["transformer", "transformer"], "takes two packages or more, got transformer"),
        (["transformer", "no_such_package"], "no_such_package"),
    ],
)
def test_what_cannot_be_compared_is_said(
    packages: list[str], says: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(compare, "outcome_of", lambda name: pytest.fail("nothing should run"))
    with pytest.raises(SystemExit) as end:
        main(packages)
    assert end.value.code == 2
    assert says in capsys.readouterr().err


def test_nothing_is_compared_to_a_package_without_the_time() -> None:
    times = {("b", "training step"): Timing((0.010, 0.012, 0.011), 1)}
    table = side_by_side({"a": SOUND, "b": SOUND}, times)
    cells = [list(column.cells)[-1] for column in table.columns]
    assert json.dumps(cells) == '["training step", "not provided", "11.00"]'


def test_it_is_a_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "claims.compare", "transformer"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert "two packages or more" in done.stderr
