"""`python -m claims.compare`: implementations side by side."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from claims import compare
from claims.compare import as_data, main, results_of, timed
from claims.harness import paths
from claims.harness.implementation import Implementation
from claims.instruments.cost.timing import Timing
from claims.report.merging import merge
from claims.report.side_by_side import side_by_side
from claims.report.stored import NoResults, Stored, of_comparison, of_data, read
from conftest import ROOT
from small_results import entry, ledger, results, run

LIKELY = [{"mistake": {"name": "mask", "says": "the mask is off by one"}}
          | {"broken": 2, "of": 2, "others": 0}]  # fmt: skip
SOUND = results(run("a"), run("b"), run("c", "holds"), run("of nobody"))
BROKEN = results(
    run("a"), run("b", "failed"), run("c", "failed"), implementation="another", looks_like=LIKELY
)
TIMES = {
    ("transformer", "training step"): Timing((0.010, 0.012, 0.011), 1),
    ("transformer", "attention, forward"): Timing((0.001, 0.001, 0.001), 1),
    ("another", "attention, forward"): Timing((0.002, 0.002, 0.004), 1),
}
KNOWN = ledger(*map(entry, ("a", "b", "c", "of nobody")))


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """The rows of the table, by their first cell."""
    rows = (line.strip().split("  ") for line in capsys.readouterr().out.splitlines())
    return {cells[0]: [cell.strip() for cell in cells[1:] if cell.strip()] for cells in rows}


@pytest.fixture
def another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package `another`, and what became of the claims of it and of the reference."""
    (tmp_path / "another.py").write_text("from transformer import causal_mask, attention\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(compare, "results_of", {"transformer": SOUND, "another": BROKEN}.get)
    monkeypatch.setattr(compare, "timed", lambda implementations: TIMES)
    monkeypatch.setattr(compare, "load_ledger", lambda path: KNOWN)


@pytest.mark.usefixtures("another")
def test_packages_stand_side_by_side(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["transformer", "another", "another"]) == 0
    rows = printed(capsys)
    assert rows["exact"] == ["2", "1"]
    assert rows["holds"] == ["1", "0"]
    assert rows["failed"] == ["0", "2"]
    assert rows["looks like"] == ["-", "the mask is off by one"]
    assert rows["training step, ms"] == ["11.00", "not provided"]
    assert rows["attention, forward, ms"] == ["1.00", "2.00, 2.00 (2.00 to 3.00)"]
    assert "open" not in rows


@pytest.mark.usefixtures("another")
def test_what_was_compared_is_written_for_the_report(tmp_path: Path) -> None:
    target = tmp_path / "comparison.json"
    assert main(["transformer", "another", "-o", str(target)]) == 0
    sound, broken = read(target)
    assert (sound.implementation, broken.implementation) == ("transformer", "another")
    assert sound.command == "python -m claims.compare transformer another"
    assert broken.comparison is not None
    assert broken.comparison.times == {key: [*each.seconds] for key, each in TIMES.items()}
    assert "torch" in broken.comparison.note


def test_another_file_beside_a_comparison_is_not_timed_and_counts_the_same_claims() -> None:
    third = results(run("b", "not run"), implementation="third", made="2027-01-01T00:00:00+00:00")
    data = as_data([SOUND, BROKEN], TIMES)
    files = [*of_comparison(data, "comparison.json"), *read_of(third)]
    found = side_by_side(merge(files, KNOWN))
    cells = {row[0]: dict(zip(found.header, row, strict=True)) for row in found.rows}
    assert cells["third"] == {
        "implementation": "third", "exact": "0", "not run": "1", "failed": "0", "looks like": "-",
        "training step, ms": "not timed", "attention, forward, ms": "not timed",
    }  # fmt: skip
    assert cells["transformer"]["exact"] == "1"  # of b alone: third was not asked about the others
    assert found.note.startswith("Verdicts of the 1 claims that every one of them was asked about.")


def read_of(data: dict[str, Any]) -> list[Stored]:
    return [of_data(data, "file.json")]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"comparison": 2}, "is of version 2 of the file that claims.compare writes"),
        ({"times": [{}]}, "is no file that claims.compare wrote"),
        ({"times": [{"implementation": "a", "what": f"{n}", "calls": 1, "seconds": [1.0] * n}
                    for n in (3, 4)]}, "has the same number of rounds"),
        ({"results": [{"runs": []}]}, "is of version 1 of the file that --claims-json writes"),
    ],
)
def test_a_comparison_of_another_kind_is_refused_in_a_sentence(
    change: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps(as_data([SOUND, BROKEN], TIMES) | change))
    with pytest.raises(NoResults, match=r"file\.json") as refused:
        read(path)
    assert sentence in str(refused.value)


def test_the_published_schema_is_one() -> None:
    schema = json.loads((paths.FIXTURES / "comparison.schema.json").read_text())
    Draft202012Validator.check_schema(schema)


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

    monkeypatch.setattr(subprocess, "run", run)
    assert results_of("my_package") == {}
    (command,) = asked
    assert command[command.index("-m", 3) + 1] == "not gpu and not trains"
    assert command[command.index("--implementation") + 1] == "my_package"


def test_claims_that_did_not_run_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess([], 4, "", "ERROR: no corpus")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(NoResults, match=r"the claims of my_package did not run: ERROR: no corpus"):
        results_of("my_package")


@pytest.mark.parametrize(
    ("packages", "says"),
    [
        (["transformer"], "takes two packages or more, got transformer"),
        (["transformer", "transformer"], "takes two packages or more, got transformer"),
        (["transformer", "no_such_package"],
         "error: no_such_package: no such package on this Python's path; name an importable "
         "package, e.g. my_package"),
        (["transformer", "my.py"], "error: 'my.py' is a path; give the name"),
        (["transformer", "x", "-o", "missing/x.json"], "--output missing/x.json: the folder"),
    ],
)
def test_what_cannot_be_compared_is_said(
    packages: list[str], says: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(compare, "results_of", lambda name: pytest.fail("nothing should run"))
    with pytest.raises(SystemExit) as end:
        main(packages)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert says in said
    assert "--implementation" not in said


def test_nothing_is_compared_to_a_package_without_the_time() -> None:
    times = {("another", "training step"): Timing((0.010, 0.012, 0.011), 1)}
    found = side_by_side(merge(of_comparison(as_data([SOUND, BROKEN], times), "x"), KNOWN))
    assert [row[-1] for row in found.rows] == ["not provided", "11.00"]


def test_it_is_a_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "claims.compare", "transformer"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert "two packages or more" in done.stderr
