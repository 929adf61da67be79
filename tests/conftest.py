"""A small project under the real harness, with its own ledger and tests, run in this process."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# pytester forgets what a run imports, and these can be imported but once.
import pandas  # noqa: F401
import pytest
import scipy.stats  # noqa: F401
import yaml

from claims.harness import paths
from claims.instruments.text.corpus import Corpus, find_corpus
from claims.training.dask_executor import versions
from dask_machines import Machines

ROOT = Path(__file__).resolve().parents[1]
HEADER = """\
from __future__ import annotations
import math, random
import hypothesis
import numpy
import pytest
import torch
from hypothesis import given, strategies as st
from claims.harness import *
"""


# The modules that take longest begin first: otherwise one worker waits at the end for the other.
LONGEST = ("test_readme", "test_whole")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in LONGEST)


class Project:
    """A folder with `claims/test_02_average.py`, a ledger and stored tables."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester = pytester
        self.folder = pytester.path
        self.claims = self.folder / "claims"
        self.claims.mkdir()
        self.expected = self.folder / "fixtures" / "expected"
        self.expected.mkdir(parents=True)
        shutil.copy(ROOT / "pytest.ini", self.folder)
        self.entries: list[dict[str, Any]] = []
        self._patch = monkeypatch
        self.package("package", "def causal_mask(n, m=None, device=None): ...\n")
        monkeypatch.setattr(paths, "LEDGER", self.folder / "fixtures" / "ledger.yaml")
        monkeypatch.setattr(paths, "EXPECTED", self.expected)
        monkeypatch.setattr(paths, "EVIDENCE", self.folder / "fixtures" / "evidence")
        monkeypatch.setattr(paths, "CLAIMS", self.claims)
        # What the harness demands of its own claims, it demands on the reference.
        monkeypatch.setattr(paths, "REFERENCE", "package")
        for variable in ("CI", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
            monkeypatch.delenv(variable, raising=False)

    def package(self, name: str, source: str) -> None:
        """An importable implementation, whatever another test imported by that name."""
        self._patch.delitem(sys.modules, name, raising=False)
        (self.folder / name).mkdir()
        (self.folder / name / "__init__.py").write_text(source)

    def entry(self, name: str, verdict: str = "exact", **more: Any) -> Project:
        """Add a ledger entry of section 2-average."""
        facts = {
            "id": name,
            "section": "2-average",
            "line": 11,
            "statement": f"The sentence of {name}.",
            "kind": "exact",
            "verdict": verdict,
        }
        self.entries.append(facts | more)
        return self

    def test(self, source: str, module: str = "test_02_average") -> Project:
        """Append to a test module."""
        path = self.claims / f"{module}.py"
        path.write_text((path.read_text() if path.exists() else HEADER) + source)
        return self

    def write_ledger(self) -> None:
        sections = ["2-average", "3-average-as-softmax"]
        own = sum("beyond" not in entry for entry in self.entries)
        document = {"document": {"claims": own}, "sections": sections, "claims": self.entries}
        paths.LEDGER.write_text(yaml.safe_dump(document))

    def run(self, *options: str) -> pytest.RunResult:
        """pytest in this process, under the project's own pytest.ini and plugin."""
        self.write_ledger()
        self._patch.syspath_prepend(self.folder)
        arguments = ["-p", "claims.harness.plugin", "-p", "no:cacheprovider", "-p", "no:randomly"]
        if "--implementation" not in options:
            arguments += ["--implementation", "package"]
        if not any(option.startswith("claims") for option in options):
            arguments.append("claims")
        return self.pytester.runpytest_inprocess(*arguments, *options)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(pytester, monkeypatch)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """For schedulers and workers of Dask in processes of their own."""
    versions()  # while the code is as the processes will import it
    started = Machines(tmp_path_factory.mktemp("machines"))
    yield started
    started.close()


@pytest.fixture(scope="session")
def tiny_shakespeare(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The exact text, for what is known of it alone; its path is in CLAIMS_CORPUS."""
    if not (path := os.environ.get("CLAIMS_CORPUS")):
        pytest.skip("needs Tiny Shakespeare: its path in the environment variable CLAIMS_CORPUS")
    found = find_corpus(Path(path), tmp_path_factory.mktemp("no-cache"))
    if not found.exact:
        pytest.skip(f"needs Tiny Shakespeare: CLAIMS_CORPUS is {found.describe()}")
    return found


def output(result: pytest.RunResult) -> str:
    """What pytest printed, on both streams."""
    return "\n".join([*result.outlines, *result.errlines])
