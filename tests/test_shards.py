"""`--shard I/N`: parts of a run that cover it once, keep shared runs together, and are balanced."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from claims.harness.files import cache_dir
from claims.plugins import shards
from claims.plugins.shards import Group, balanced
from claims.studies import durations
from claims.training.experiment import whatever_the_seed
from claims.training.spec import Schemas
from claims.training.store import Listed
from conftest import Project
from small_runs import SPEC

CLAIMS = """
from dataclasses import replace
from claims.training.experiment import Experiment
from small_runs import SPEC

LONGER = {"b": replace(SPEC, steps=5), "c": replace(SPEC, steps=9)}
RUNS = {"ci": Experiment({"a": SPEC, **LONGER}, seeds=5, earlier=(3,))}

@claim("first")
@trains(RUNS, "a")
def test_first(runs, check): ...

@claim("second")
@trains(RUNS, "a", "b")
def test_second(runs, check): ...

@claim("third")
@trains(RUNS, "b")
def test_third(runs, check): ...

@claim("alone")
@trains(RUNS, "c")
def test_alone(runs, check): ...
"""
PLAIN = """
@claim("plain{0}")
def test_plain{0}(check): check(1, exact(1))
"""


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/2/3", "-1/2", "a/b", "1/0", ""])
def test_a_part_that_does_not_exist_is_refused(project: Project, text: str) -> None:
    result = project.entry("a").run("-p", "claims.plugins.shards", f"--shard={text}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--shard takes I/N with I from 1 to N, *, not '{text}'"])


def test_the_longest_go_first_and_to_the_part_with_the_least() -> None:
    groups = [Group((name,), s) for name, s in zip("abcde", (4, 9, 3, 5, 2), strict=True)]
    names = [[group.tests[0] for group in part] for part in balanced(groups, 2)]
    assert names == [["b", "c"], ["d", "a", "e"]]
    assert balanced(groups, 2) == balanced(groups[::-1], 2)
    assert [len(part) for part in balanced(groups[:1], 3)] == [1, 0, 0]


def test_seeds_and_texts_do_not_tell_runs_apart() -> None:
    schemas = replace(SPEC, data=Schemas("pool", held_out=3, draw=0))
    other = replace(schemas, seed=4, data=replace(schemas.data, draw=4))
    assert whatever_the_seed(schemas) == whatever_the_seed(other)
    assert whatever_the_seed(replace(SPEC, seed=1).on("text")) == whatever_the_seed(SPEC)
    assert whatever_the_seed(SPEC) != whatever_the_seed(replace(SPEC, steps=SPEC.steps + 1))


def test_parts_cover_the_selection_once_and_keep_shared_runs_together(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("first", "second", "third", "alone"):
        project.entry(name, kind="training", verdict="holds")
    project.test(CLAIMS)
    for n in range(8):
        project.entry(f"plain{n}").test(PLAIN.format(n))
    stored = tmp_path / "durations.json"
    tests = {f"claims/test_02_average.py::test_plain{n}": 1.0 for n in range(8)}
    stored.write_text(json.dumps({"tests": tests, "runs": {whatever_the_seed(SPEC): 2.0}}))
    monkeypatch.setattr(shards, "DURATIONS", stored)
    options = ["-p", "claims.plugins.corpus", "-p", "claims.plugins.training"]
    options += ["-p", "claims.plugins.shards", "--collect-only", "-q"]
    parts = []
    for part in (1, 2):
        lines = project.run(*options, "--shard", f"{part}/2").outlines
        parts.append({line.rpartition("::")[2] for line in lines if "::" in line})
    # Two runs of two seconds over the three seeds of the first look are together; a third one, and
    # eight seconds, beside.
    assert parts == [
        {"test_first[ci]", "test_second[ci]", "test_third[ci]", "test_plain7"},
        {"test_alone[ci]", *(f"test_plain{n}" for n in range(7))},
    ]


def test_a_part_does_not_demand_every_claim(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stored = tmp_path / "durations.json"
    stored.write_text(json.dumps({"tests": {}, "runs": {"a run": 1.0}}))
    monkeypatch.setattr(shards, "DURATIONS", stored)
    for n in range(2):
        project.entry(f"plain{n}").test(PLAIN.format(n))
    result = project.run("-p", "claims.plugins.shards", "--shard", "1/2")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=1, deselected=1)


def test_durations_are_those_of_a_results_file_and_of_the_run_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLAIMS_CACHE", str(tmp_path))
    monkeypatch.setattr(durations, "DURATIONS", tmp_path / "durations.json")
    experiment = durations.EXPERIMENTS["ladder"]["ci"]
    spec = experiment.of("no context", first=1700)[1].on("text")
    entries = [
        Listed("a", "done", spec.to_json(), "", seconds, 1, 1.0) for seconds in (7.04, 5.06)
    ]
    entries.append(Listed("b", "done", SPEC.to_json(), "", 3.0, 1, 1.0))  # of no experiment
    entries.append(Listed("c", "done", {"of": "another version"}, "", 3.0, 1, 1.0))
    monkeypatch.setattr(durations, "listed", lambda folder: entries)
    results = tmp_path / "results.json"
    runs = [{"test": "x::slow", "seconds": 2.04}, {"test": "x::fast", "seconds": 0.01}]
    results.write_text(json.dumps({"runs": runs, "machine": {"torch": "2"}, "made": "today"}))
    with pytest.raises(SystemExit):
        durations.main([str(results)])
    assert "holds no finished run" in capsys.readouterr().err
    (cache_dir() / "runs").mkdir()
    assert durations.main([str(results)]) == 0
    stored = json.loads((tmp_path / "durations.json").read_text())
    assert stored["tests"] == {"x::slow": 2.0}
    assert stored["runs"] == {whatever_the_seed(experiment.runs["no context"]): 5.1}
    with pytest.raises(SystemExit):
        durations.main([str(tmp_path / "missing.json")])
    assert "is no file of --claims-json" in capsys.readouterr().err
