"""The workflow of CI: its parts cover the claims once, and its commands are this project's."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from claims.report.__main__ import main
from claims.report.merging import merge
from claims.report.stored import read
from conftest import ROOT, Project
from small_results import entry, ledger

WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "claims.yml").read_text())
JOBS: dict[str, Any] = WORKFLOW["jobs"]
RUNS = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in JOBS.items()}


def test_the_shards_of_the_matrix_are_all_parts() -> None:
    [command] = [run for run in RUNS["claims"] if run.startswith("pytest ")]
    [parts] = re.findall(r"--shard \$\{\{ matrix\.shard \}\}/(\d+)", command)
    assert JOBS["claims"]["strategy"]["matrix"]["shard"] == [*range(1, int(parts) + 1)]
    assert "--claims-json claims-${{ matrix.shard }}.json" in command
    # A part that is lost, or red, does not keep the others from the report.
    assert JOBS["claims"]["strategy"]["fail-fast"] is False
    assert JOBS["report"]["if"] == "always()"


def test_the_report_takes_the_files_that_the_parts_leave() -> None:
    [left] = [step["with"] for step in JOBS["claims"]["steps"] if "upload" in step.get("uses", "")]
    [taken] = [
        step["with"] for step in JOBS["report"]["steps"] if "download" in step.get("uses", "")
    ]
    assert taken["pattern"].removesuffix("*") == left["name"].removesuffix("${{ matrix.shard }}")
    assert "claims-*.json" in left["path"].split()
    commands = [
        line for run in RUNS["report"] for line in run.splitlines() if line.startswith("python")
    ]
    assert len(commands) == 3
    assert all(f"{taken['path']}/claims-*.json" in line for line in commands)


def test_each_job_installs_what_its_commands_need() -> None:
    for name, runs in RUNS.items():
        [extras] = re.findall(r'pip install .*-e "\.\[([a-z,]+)\]"', "\n".join(runs))
        needed = "dev" if re.search(r"ruff|pytest tests|-n auto", "\n".join(runs)) else "claims"
        assert needed in extras.split(","), name
        assert ("--site" in "\n".join(runs)) == ("site" in extras.split(",")), name


@pytest.mark.parametrize(
    "line", [line for runs in RUNS.values() for run in runs for line in run.splitlines()]
)
def test_each_path_of_a_command_exists(line: str) -> None:
    for word in shlex.split(line):
        if word in ("claims", "tests", "transformer", "conftest.py", "constraints.txt"):
            assert (ROOT / word).exists()
        if word.startswith("claims.") and not word.endswith(".json"):
            assert (ROOT / word.replace(".", "/")).exists() or (
                ROOT / f"{word.replace('.', '/')}.py"
            ).exists()


def test_the_parts_of_a_run_make_the_report_of_the_whole(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = [f"claim-{n}" for n in range(7)]
    for n, name in enumerate(names):
        expected = 2 if n == 3 else 1
        project.entry(name).test(
            f'@claim("{name}")\ndef test_{n}(check):\n    check(1, exact({expected}))\n'
        )
    files = []
    for part in (1, 2, 3):
        options = ("-p", "claims.plugins.shards", "--shard", f"{part}/3")
        project.run(*options, "--claims-json", f"claims-{part}.json")
        files.append(project.folder / f"claims-{part}.json")
    known = ledger(*map(entry, names))
    merged = merge((each for file in files for each in read(file)), known)
    assert merged.count("package") == {"exact": 6, "failed": 1}
    assert [claim.entry.id for claim in merged.claims] == names
    monkeypatch.setattr("claims.report.__main__.load_ledger", lambda path: known)
    assert main([*map(str, files), "--format", "markdown"]) == 0
    said = capsys.readouterr().out
    assert "package: 6 exact, 0 holds, 0 open, 0 refuted, 0 not run, 1 failed" in said
    assert "**claim-3** (l.11)" in said
    assert json.loads(files[0].read_text())["command"].endswith("--claims-json claims-1.json")
