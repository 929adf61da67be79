"""README.md and docs/: their commands, as a new user runs them, their code and their links."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import pytest

from claims.harness.ledger import load_ledger
from claims.harness.paths import LEDGER
from conftest import ROOT

README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {path: path.read_text(encoding="utf-8") for path in DOCUMENTS}


def blocks(language: str) -> list[str]:
    """The code blocks of all documents that are marked with a language."""
    pattern = rf"^( *)```{language}\n(.*?)^\1```"
    return [
        re.sub(f"^{indent}", "", body, flags=re.MULTILINE)
        for text in TEXTS.values()
        for indent, body in re.findall(pattern, text, re.MULTILINE | re.DOTALL)
    ]


def commands(language: str) -> list[str]:
    lines = [line for block in blocks(language) for line in block.splitlines()]
    return list(dict.fromkeys(re.sub(r"\s+# .*", "", line) for line in lines))


# What is marked `bash` is run in a fresh clone. What is marked `sh` trains for long or needs files.
INSTALLING = [command for command in commands("bash") if command.startswith("pip ")]
RUNNING = [command for command in commands("bash") if not command.startswith("pip ")]
LONG = commands("sh")
# Of what runs all claims or all tests, this much: tests/test_whole.py runs all claims, and
# `make test` would run this test again.
FEW = {"make test": "test_base_seeds", "make claims": "gpt2", "pytest claims -m": "variance"}
(MY_PACKAGE,) = (block for block in blocks("python") if block.startswith("# my_package"))


class Clone:
    """A clone of the checkout as committed, with a virtual environment of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "clone"
        self._venv = folder / "venv"
        self._cache = folder / "cache"
        self._run("git", "clone", "--quiet", str(ROOT), str(self.folder), cwd=folder)
        self._run(sys.executable, "-m", "venv", str(self._venv), cwd=folder)
        text = "".join(f"The {n}th line, with {n * n} in it.\n" for n in range(4000))
        (self.folder / "my_text.txt").write_text(text)
        (self.folder / "my_code.py").write_text("from transformer import *\n")
        (self.folder / "my_package").mkdir()
        (self.folder / "my_package" / "__init__.py").write_text(MY_PACKAGE)

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return self._run("bash", "-c", command, cwd=self.folder, check=False)

    def _run(
        self, *command: str, cwd: Path, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "CI"))}
        few = next((few for whole, few in FEW.items() if command[-1].startswith(whole)), None)
        environment = kept | {
            "PATH": f"{self._venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "VENV": str(self._venv),  # make works in this environment too
            "CLAIMS_CACHE": str(self._cache),
            "PYTEST_ADDOPTS": f"-k {few}" if few else "",
            # mypy knows a module by its content, and does not read again what it knows.
            "MYPY_CACHE_DIR": str(ROOT / ".mypy_cache"),
        }
        environment.pop("VIRTUAL_ENV", None)
        return subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, check=check
        )


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone with what the README installs."""
    fresh = Clone(tmp_path_factory.mktemp("fresh"))
    for command in INSTALLING:
        done = fresh.run(command)
        if "No matching distribution" in done.stderr or "ConnectionError" in done.stderr:
            pytest.skip("needs a package registry")
        assert done.returncode == 0, done.stdout + done.stderr
    return fresh


def test_the_readme_is_short_and_has_the_commands_that_it_promises() -> None:
    assert len(TEXTS[README].splitlines()) <= 120
    for command in ("make claims", "make test", 'pytest claims -m "not gpu"'):
        assert f"\n{command}" in TEXTS[README]
        assert command in RUNNING


@pytest.mark.parametrize("command", sorted(RUNNING, key=lambda c: c.startswith("make")))
def test_each_command_works_in_a_fresh_clone(clone: Clone, command: str) -> None:
    done = clone.run(command)
    said = done.stdout[-3000:] + done.stderr[-3000:]
    if shlex.split(command)[:3] == ["pytest", "-m", "gpu"] and done.returncode != 0:
        assert re.search(r"ERROR: -m 'gpu' needs a CUDA GPU: .+", done.stderr), said
    else:
        assert done.returncode == 0, said
        if "pytest" in command or command in ("make claims", "make test"):
            assert " passed" in done.stdout, said


def _of_an_extra(name: str) -> bool:
    """Whether a command needs a library that is not installed here."""
    return name == "claims.studies.mutation" and not importlib.util.find_spec("mutmut")


@pytest.mark.parametrize("command", LONG)
def test_each_long_command_exists(command: str) -> None:
    """Its module has a `main`, or its claims can be collected; its files and folders exist."""
    program, *arguments = shlex.split(command)
    for argument in arguments:
        assert not re.search(r"[a-z]/|/[a-z]", argument) or (ROOT / argument).exists(), argument
    if program == "pytest":
        for module in modules(command):
            assert f"\n{module}::" in collected(), collected()
    else:
        assert (program, arguments[0]) == ("python", "-m")
        name = arguments[1]
        package = importlib.util.find_spec(name).submodule_search_locations  # type: ignore[union-attr]
        needed = pytest.raises(SystemExit, match="pip install")
        with needed if _of_an_extra(name) else nullcontext():
            module = importlib.import_module(f"{name}.__main__" if package else name)
            assert callable(module.main)


def modules(command: str) -> list[str]:
    """The test modules that a command of pytest names."""
    program, *arguments = shlex.split(command)
    return [a for a in arguments if program == "pytest" and a.endswith(".py")]


@cache
def collected() -> str:
    """The tests in all modules that long commands name, collected at once."""
    named = dict.fromkeys(module for command in LONG for module in modules(command))
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", *named]
    done = subprocess.run(collect, cwd=ROOT, capture_output=True, text=True)
    return f"\n{done.stdout}{done.stderr}"


def test_the_claim_on_the_first_screen_prints_what_is_shown() -> None:
    shown = re.search(r"^`(pytest .+?)` runs .*?\n\n```text\n(.*?)```", TEXTS[README], re.M | re.S)
    assert shown is not None
    command, printed = shown.groups()
    environment = os.environ | {"COLUMNS": "80", "PYTEST_ADDOPTS": ""}
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert printed in done.stdout, done.stdout[-3000:] + done.stderr[-2000:]


def test_claims_are_shown_as_they_are() -> None:
    claims = [path.read_text(encoding="utf-8") for path in (ROOT / "claims").rglob("test_*.py")]
    # What begins with an import is a reader's own code.
    shown = [
        block for block in blocks("python") if block != MY_PACKAGE and block[:7] != "import "
    ]
    assert len(shown) == 2
    for block in shown:
        assert any(block in source for source in claims), block


def test_what_is_printed_against_measured_has_the_line_and_verdict_of_the_ledger() -> None:
    ledger = load_ledger(LEDGER)
    row = r"^\| (\d+) \|.*\| `([a-z ]+)` \| `(\S+)` \|$"
    rows = re.findall(row, TEXTS[ROOT / "docs" / "results.md"], re.MULTILINE)
    assert rows
    for line, verdict, name in rows:
        entry = ledger[name]
        assert (entry.line, entry.verdict) == (int(line), verdict), name


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", TEXTS[document]):
        path = (document.parent / target).resolve() if target else document
        assert path.exists(), target
        assert not anchor or anchor in anchors(TEXTS[path]), f"{target}#{anchor}"


def test_the_readme_leads_to_every_document() -> None:
    for path in DOCUMENTS[1:]:
        assert f"](docs/{path.name})" in TEXTS[README]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_path_that_is_named_exists(document: Path) -> None:
    """In code spans, from the root of the project; NAME in capitals stands for any."""
    rooms = "claims|docs|fixtures|tests|transformer"
    for path in re.findall(rf"`((?:{rooms})/[\w./]*)`", TEXTS[document]):
        assert (ROOT / path).exists() or "NAME" in path, path


def test_every_option_is_listed() -> None:
    sources = [*(ROOT / "claims").rglob("options.py"), *(ROOT / "claims" / "plugins").glob("*.py")]
    options = {o for path in sources for o in re.findall(r'"(--[a-z-]+)"', path.read_text())}
    listed = TEXTS[ROOT / "docs" / "how-verdicts-are-made.md"]
    assert {"--corpus", "--base-seed"} <= options
    assert all(f"`{option}" in listed for option in options), options
