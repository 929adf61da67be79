"""Whole runs of the real claims, as users start them, in processes of their own.

The reference run and the run of a renamed copy (shuffled, on two workers, the original blocked)
must agree in every outcome and every recorded value.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from claims.harness.ledger import load_ledger
from claims.harness.paths import LEDGER
from claims.studies.verdicts import by_section
from conftest import ROOT

BLOCKER = """
import importlib.abc, sys

class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "transformer":
            raise ImportError(f"{name} is blocked: only the seam may be used")

sys.meta_path.insert(0, Block())
"""


def pytest_run(
    *options: str, folder: Path = ROOT, check: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if check:
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return done


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The README's command, and what it recorded."""
    target = tmp_path_factory.mktemp("reference") / "claims.json"
    done = pytest_run("claims", "-m", "not gpu", "--claims-json", str(target))
    return {"stdout": done.stdout, **json.loads(target.read_text())}


def recorded(data: dict[str, Any]) -> dict[str, Any]:
    return {run["test"]: (run["verdict"], run["reason"], run["records"]) for run in data["runs"]}


def test_claims_run_on_one_thread_in_full_precision(reference: dict[str, Any]) -> None:
    assert (reference["machine"]["threads"], reference["machine"]["tf32"]) == ("1", "off")


def test_every_claim_turns_out_as_the_ledger_says(reference: dict[str, Any]) -> None:
    assert "failed" not in reference["verdicts"].values()
    other = {
        run["claim"]: (run["expected_verdict"], run["verdict"])
        for run in reference["runs"]
        if run["verdict"] not in (run["expected_verdict"], "not run")
    }
    assert not other


def test_the_readme_shows_what_this_run_gives(reference: dict[str, Any]) -> None:
    """Its table of verdicts by section."""
    if not reference["corpus"].startswith("Tiny Shakespeare"):
        pytest.skip(f"the table is that of the exact corpus; this is {reference['corpus']}")
    found = by_section(load_ledger(LEDGER), reference["verdicts"])
    assert found in (ROOT / "README.md").read_text(encoding="utf-8"), found


def test_a_renamed_copy_shuffled_on_two_workers_gives_the_same_values(
    reference: dict[str, Any], tmp_path: Path
) -> None:
    """One seam, and no dependence on order, process or an earlier run."""
    shutil.copytree(ROOT / "transformer", tmp_path / "other_name")
    (tmp_path / "blocker.py").write_text(BLOCKER)
    target = tmp_path / "claims.json"
    pytest_run(
        "claims", "-m", "not gpu", "-n", "2", "-p", "blocker", "-p", "randomly",
        "--implementation", "other_name", "--claims-json", str(target),
        PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    there, here = recorded(json.loads(target.read_text())), recorded(reference)
    # What is no claim about an implementation is left out for a package that is not the reference,
    # and what is refuted of the reference departs from the chapter.
    assert there.keys() < here.keys()
    assert len(there) > 300
    for test, (verdict, _, records) in there.items():
        expected, _, as_recorded = here[test]
        assert verdict.replace("departs", "refuted") == expected, test
        assert records == as_recorded, test


def test_the_blocker_blocks(tmp_path: Path) -> None:
    (tmp_path / "blocker.py").write_text(BLOCKER)
    done = pytest_run("claims", "-p", "blocker", PYTHONPATH=str(tmp_path), check=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "transformer is blocked" in done.stderr


def test_one_file_a_keyword_and_another_directory(tmp_path: Path) -> None:
    file = ROOT / "claims" / "test_11_parameter_arithmetic.py"
    done = pytest_run(str(file), "-k", "124_439_808", folder=tmp_path)
    assert "1 passed" in done.stdout


def test_collection_needs_no_corpus_no_cache_and_no_network(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the cache folder should be")
    done = pytest_run(
        "claims", "--collect-only", "-q",
        CLAIMS_CORPUS="", CLAIMS_CACHE=str(tmp_path / "cache"), **NO_NETWORK,
    )  # fmt: skip
    assert "tests collected" in done.stdout
    assert "corpus:" not in done.stdout


WHOM_IT_BINDS = """
from claims.harness.plugin import OF_THE_PACKAGE
from claims.harness.stash import entry_of

def pytest_collection_finish(session):
    for item in session.items:
        entry = entry_of(item)
        if not OF_THE_PACKAGE & {*item.fixturenames} and entry and entry.bound != "nobody":
            print("FAULT:", entry.id, "takes nothing of a package, yet it binds", entry.bound)
"""


def test_a_claim_that_takes_nothing_of_a_package_binds_nobody(tmp_path: Path) -> None:
    (tmp_path / "whom_it_binds.py").write_text(WHOM_IT_BINDS)
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    done = pytest_run("claims", "--collect-only", "-q", "-p", "whom_it_binds", PYTHONPATH=path)
    assert "tests collected" in done.stdout
    assert "FAULT" not in done.stdout, done.stdout


# An address that refuses at once, in place of any network.
NO_NETWORK = {
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "",
}


def test_another_corpus_decides_all_but_the_exact_counts(tmp_path: Path) -> None:
    text = "".join(f"The {n}th line, with {n * n} in it: naïve café.\n" for n in range(4000))
    (tmp_path / "other.txt").write_text(text, encoding="utf-8")
    done = pytest_run(
        "claims/test_02_average.py", "-m", "not gpu", "--corpus", str(tmp_path / "other.txt"),
        CLAIMS_CACHE=str(tmp_path / "cache"),
    )  # fmt: skip
    assert "corpus: another corpus, " in done.stdout
    assert " x needs the exact corpus" in done.stdout


@pytest.mark.parametrize("variable", [False, True])
def test_a_corpus_that_is_not_there_is_one_sentence(tmp_path: Path, variable: bool) -> None:
    missing = str(tmp_path / "missing.txt")
    options = () if variable else ("--corpus", missing)
    environment = {"CLAIMS_CORPUS": missing} if variable else {}
    done = pytest_run("claims", *options, check=False, **environment)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert done.stderr.strip() == f"ERROR: the corpus {missing} does not exist"


def test_m_gpu_on_this_machine_answers() -> None:
    """With a GPU the GPU claims pass; without one the run is an error that says why."""
    done = pytest_run("-m", "gpu", check=False)
    if done.returncode != 0:
        assert done.returncode == pytest.ExitCode.USAGE_ERROR
        assert "needs a CUDA GPU: " in done.stderr
    else:
        assert " passed" in done.stdout
