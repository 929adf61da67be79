"""--gpu-table: what a GPU measured is written whole, with provenance, and overwrites nothing."""

from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from claims.harness import files, gpu_table, machine, paths
from conftest import Project, output

TESTS = """
@claim("bytes")
def test_bytes(check, cuda):
    check([5, 5], exact([5, 5]), unit="bytes", device=cuda.type)
    check(0.25, within(0, 1, "a share, of all"), facts={"path": "MATH", "part": "dq"})

@claim("too-slow")
def test_too_slow(check, cuda):
    check(3, exact(3))
    check(7, exact(8), unit="s")

@claim("breaks")
def test_breaks(check, cuda):
    raise RuntimeError("CUDA error")

@claim("elsewhere")
def test_elsewhere(implementation, check, cuda):
    check(implementation.Head, exact(None))

@claim("on-cpu")
def test_on_cpu(check):
    check(1, exact(1))
"""
FACTS = {"gpu": "Fake GPU 8", "driver": "570.1", "cuda": "12.8"}


@pytest.fixture
def gpu(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr(machine, "gpu_fault", lambda: "")
    monkeypatch.setattr(machine, "gpu", lambda: FACTS)
    # In another order than the tests.
    for name in ("elsewhere", "bytes", "too-slow", "breaks"):
        project.entry(name, needs=["gpu"])
    return project.entry("on-cpu").test(TESTS)


def written(folder: Path, name: str = "gpu") -> tuple[list[dict[str, str]], dict[str, Any]]:
    with (folder / f"{name}.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    return rows, json.loads((folder / f"{name}.provenance.json").read_text())


def test_a_table_holds_every_comparison_of_the_gpu_claims(gpu: Project) -> None:
    result = gpu.run("-m", "gpu", "--gpu-table", "gpu.csv")
    rows, facts = written(gpu.folder)
    assert all(float(row.pop("seconds")) >= 0 for row in rows)
    whole: dict[str, str] = dict.fromkeys(("ok", "measured", "expected", "unit", "facts"), "")
    share = "0 <= measured <= 1, a share, of all"
    assert rows == [
        whole
        | {"claim": "elsewhere", "verdict": "not run", "allowed": ""}
        | {"facts": '{"reason": "package does not provide Head"}'},
        whole
        | {"claim": "bytes", "verdict": "exact", "ok": "true", "allowed": "equality"}
        | {"measured": "[5, 5]", "expected": "[5, 5]", "unit": "bytes"},
        whole
        | {"claim": "bytes", "verdict": "exact", "ok": "true", "allowed": share}
        | {"measured": "0.25", "expected": "[0, 1]", "facts": '{"part": "dq", "path": "MATH"}'},
        whole
        | {"claim": "too-slow", "verdict": "failed", "ok": "true", "allowed": "equality"}
        | {"measured": "3", "expected": "3"},
        whole
        | {"claim": "too-slow", "verdict": "failed", "ok": "false", "allowed": "equality"}
        | {"measured": "7", "expected": "8", "unit": "s"},
        whole | {"claim": "breaks", "verdict": "failed", "allowed": ""},
    ]
    assert FACTS.items() <= facts.items()
    assert facts["torch"] == torch.__version__
    assert facts["gpu_claims_run"] == "3 of 4"
    assert len(facts["source_sha256"]) == 64
    assert "-m gpu --gpu-table gpu.csv" in facts["command"]
    assert facts["implementation"] == "package"
    assert facts["base_seed"] == "17"
    assert {"commit", "date", "python", "seconds"} <= facts.keys()
    assert f"{gpu.folder / 'gpu.csv'} and gpu.provenance.json are written" in output(result)


def test_claims_that_need_no_gpu_are_left_out(gpu: Project) -> None:
    gpu.entry("drawn").test(
        '@claim("drawn")\ndef test_drawn(check, rng):\n    check(rng.base_seed, exact(17))\n'
    )
    gpu.run("-m", "gpu or statistical", "--gpu-table", "gpu.csv").assert_outcomes(
        passed=2, failed=2, skipped=1, deselected=1
    )
    rows, facts = written(gpu.folder)
    assert {row["claim"] for row in rows} == {"elsewhere", "bytes", "too-slow", "breaks"}
    assert facts["gpu_claims_run"] == "3 of 4"


def test_two_workers_write_the_same_table(gpu: Project) -> None:
    gpu.run("-m", "gpu", "--gpu-table", "alone.csv")
    # The workers need what the fixtures replace in this process.
    (gpu.folder / "replaced.py").write_text(
        "from pathlib import Path\n"
        "from claims.harness import machine, paths\n"
        f"paths.LEDGER = Path({str(paths.LEDGER)!r})\n"
        f"paths.EXPECTED = Path({str(paths.EXPECTED)!r})\n"
        f"paths.CLAIMS = Path({str(paths.CLAIMS)!r})\n"
        f"paths.REFERENCE = {paths.REFERENCE!r}\n"
        "machine.gpu_fault = lambda: ''\n"
        f"machine.gpu = lambda: {FACTS}\n"
    )
    options = ("-p", "replaced", "-p", "xdist", "-n", "2")
    result = gpu.run("-m", "gpu", "--gpu-table", "two.csv", *options)
    assert "2 workers" in output(result)
    (alone, facts), (two, _) = written(gpu.folder, "alone"), written(gpu.folder, "two")
    for row in (*alone, *two):
        row.pop("seconds")
    assert two == alone
    assert facts["gpu_claims_run"] == "3 of 4"


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("missing/gpu.csv", "the folder"),
        ("folder.csv", "it is a folder"),
        ("gpu.json", "give a file that ends in .csv"),
        ("", "give a file that ends in .csv"),
        ("old.csv", "no run replaces what another measured"),
        ("half.csv", "half.provenance.json exists"),
    ],
)
def test_a_table_that_cannot_be_written_is_refused_before_the_run(
    gpu: Project, target: str, sentence: str
) -> None:
    (gpu.folder / "folder.csv").mkdir()
    (gpu.folder / "old.csv").write_text("old")
    (gpu.folder / "half.provenance.json").write_text("old")
    before = sorted(gpu.folder.iterdir())
    result = gpu.run("-m", "gpu", "--gpu-table", target)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"--gpu-table {target}: " in output(result)
    assert sentence in output(result)
    assert (gpu.folder / "old.csv").read_text() == "old"
    assert {p.name for p in gpu.folder.iterdir()} - {p.name for p in before} <= {"fixtures"}


@pytest.mark.parametrize("options", [(), ("-m", "not gpu")])
def test_without_asking_for_the_gpu_there_is_no_table(
    gpu: Project, options: tuple[str, ...]
) -> None:
    result = gpu.run(*options, "--gpu-table", "gpu.csv")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--gpu-table gpu.csv: it holds what a GPU measured; add -m gpu" in output(result)


def test_without_a_gpu_the_error_names_the_gpu(
    gpu: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked() -> dict[str, str]:
        raise AssertionError("the facts of a missing GPU were asked for")

    monkeypatch.setattr(machine, "gpu_fault", lambda: "no GPU in this test")
    monkeypatch.setattr(machine, "gpu", asked)
    result = gpu.run("-m", "gpu", "--gpu-table", "gpu.csv")
    assert "-m 'gpu' needs a CUDA GPU: no GPU in this test" in output(result)


def test_no_selected_claim_writes_no_table_and_says_so(gpu: Project) -> None:
    result = gpu.run("-m", "gpu", "--gpu-table", "gpu.csv", "-k", "nothing_of_that_name")
    assert "GPU table: not written, no GPU claim was selected." in output(result)
    assert not (gpu.folder / "gpu.csv").exists()
    assert not (gpu.folder / "gpu.provenance.json").exists()


def test_a_table_that_cannot_be_finished_leaves_none(
    gpu: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        if path.suffix == ".csv":
            raise OSError("no space left")
        files.write_whole(path, text)

    monkeypatch.setattr(gpu_table, "write_whole", full)
    result = gpu.run("-m", "gpu", "--gpu-table", "gpu.csv")
    assert result.ret != pytest.ExitCode.OK
    assert not (gpu.folder / "gpu.csv").exists()


def test_the_facts_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="Fake GPU 8", major=8, minor=6, total_memory=2**33)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    said = SimpleNamespace(stdout="570.86.10\n570.86.10\n")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: said)
    facts = machine.gpu()
    assert (facts["gpu"], facts["capability"]) == ("Fake GPU 8", "8.6")
    assert (facts["memory"], facts["driver"]) == ("8589934592 bytes", "570.86.10")

    def absent(*args: object, **options: object) -> object:
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", absent)
    assert machine.gpu()["driver"] == "unknown"
