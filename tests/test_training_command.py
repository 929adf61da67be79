"""`python -m claims.training`: what the store holds is listed, and what is chosen is removed."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

import transformer
from claims.training import __main__ as command
from claims.training import sealed
from claims.training.run import run
from claims.training.spec import RunResult, RunSpec
from claims.training.store import RESULT, listed
from small_runs import SCORED, SPEC, ids, store

TEXT = ids()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with a run that is done, one that is not, and one that is damaged."""
    monkeypatch.setenv("CLAIMS_CACHE", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    folder = tmp_path / "runs"
    kept = store(folder)
    run(transformer, SCORED, kept, TEXT)
    kept.keep_checkpoint(replace(SPEC, seed=1), {"step": 3})
    damaged = replace(SPEC, seed=2)
    kept.keep(damaged, RunResult(7, None, (), 1.0), {})
    path = kept.entry(damaged) / RESULT
    path.write_bytes(path.read_bytes()[:-9])
    return folder


def key(spec: RunSpec) -> str:
    return store(Path()).key(spec)[:12]


def test_list_shows_every_entry(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    by_key = {line.split()[0]: line for line in lines[1:-1]}
    assert " done " in by_key[key(SCORED)]
    assert "1 x heads, width 8, pre-norm, learned, seed 0" in by_key[key(SCORED)]
    assert " unfinished " in by_key[key(replace(SPEC, seed=1))]
    assert " damaged " in by_key[key(replace(SPEC, seed=2))]
    assert len(by_key) == 3
    assert lines[-1].startswith("3 entries, 0.0 MB, in ")
    assert lines[-1].endswith(str(runs))


def test_list_shows_the_runs_of_another_version(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store(runs).entry(SCORED) / RESULT
    facts = json.loads(path.read_bytes().partition(b"\n")[2])
    facts["spec"]["a field of tomorrow"] = 1
    sealed.write(path, json.dumps(facts).encode())
    command.main(["list"])
    assert "a run of another version of this project" in capsys.readouterr().out


@pytest.mark.parametrize("command_", [["list"], ["prune", "--all"]])
def test_an_empty_store_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    command_: list[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("CLAIMS_CACHE", str(tmp_path / "none"))
    assert command.main(command_) == 0
    assert capsys.readouterr().out.startswith("0 entries")


def test_prune_all_leaves_nothing_not_even_locks(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "0123456789.lock").touch()  # as a run that failed leaves it
    assert command.main(["prune", "--all"]) == 0
    assert "3 entries removed" in capsys.readouterr().out
    assert names(runs) == set()
    assert run(transformer, SCORED, store(runs), TEXT).scores


def test_prune_unfinished_keeps_what_is_done(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / ".half.1").mkdir()  # as a prune that was killed leaves it
    command.main(["prune", "--unfinished"])
    assert "3 entries removed" in capsys.readouterr().out
    done = store(runs).key(SCORED)
    assert names(runs) == {done, f"{done}.lock"}


def test_prune_by_age(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = store(runs).entry(SCORED)
    before = time.time() - 3 * 86_400
    for path in (*entry.iterdir(), entry):
        os.utime(path, (before, before))
    command.main(["prune", "--older-than", "4"])
    assert "0 entries removed" in capsys.readouterr().out
    command.main(["prune", "--older-than", "2.5"])
    assert "1 entries removed" in capsys.readouterr().out
    assert not entry.exists()
    assert len(listed(runs)) == 2


def test_prune_leaves_a_run_in_progress(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    in_progress, not_begun = replace(SPEC, seed=1), replace(SPEC, seed=9)
    with store(runs).lock(in_progress), store(runs).lock(not_begun):
        command.main(["prune", "--all"])
        said = capsys.readouterr().out
        assert f"{key(in_progress)} is being trained, and stays" in said
        assert "2 entries removed" in said
        kept = store(runs).key(in_progress)
        assert names(runs) == {kept, f"{kept}.lock", f"{store(runs).key(not_begun)}.lock"}
        assert store(runs).checkpoint(in_progress) == {"step": 3}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "the following arguments are required: command"),
        (["show"], "invalid choice: 'show'"),
        (["prune"], "one of the arguments --all --unfinished --older-than is required"),
        (["prune", "--older-than", "-1"], "a number of days, at least 0, not '-1'"),
        (["prune", "--older-than", "nan"], "a number of days, at least 0, not 'nan'"),
        (["prune", "--older-than", "old"], "a number of days, at least 0, not 'old'"),
        (["prune", "--all", "--unfinished"], "not allowed with argument"),
    ],
)
def test_bad_arguments_are_named(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
