"""Every command of the README as a new user runs it: fresh clone, new environment, empty cache."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    re.sub(r"\s+# .*", "", line)
    for block in re.findall(r"^```bash\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
INSTALLING = [command for command in COMMANDS if command.startswith("pip ")]
RUNNING = [command for command in COMMANDS if not command.startswith("pip ")]


# Of what make runs, this much: `make test` would run this test again, and all claims run by the
# plain command that `make claims` stands for.
FEW = {"make test": "-k test_base_seeds", "make claims": "-k gpt2"}


class Clone:
    """A clone of the checkout as committed, with a virtual environment of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "clone"
        self._venv = folder / "venv"
        self._cache = folder / "cache"
        # Trained runs are taken from the outer cache, where there are any: the commands would
        # otherwise wait minutes for what `make claims` has just shown to work from nothing.
        if runs := os.environ.get("CLAIMS_CACHE"):
            self._cache.mkdir()
            (self._cache / "runs").symlink_to(Path(runs).absolute() / "runs")
        self._run("git", "clone", "--quiet", str(ROOT), str(self.folder), cwd=folder)
        self._run(sys.executable, "-m", "venv", str(self._venv), cwd=folder)
        text = "".join(f"The {n}th line, with {n * n} in it.\n" for n in range(4000))
        (self.folder / "my_text.txt").write_text(text)

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return self._run("bash", "-c", command, cwd=self.folder, check=False)

    def _run(
        self, *command: str, cwd: Path, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "CI"))}
        environment = kept | {
            "PATH": f"{self._venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "VENV": str(self._venv),  # make works in this environment too
            "CLAIMS_CACHE": str(self._cache),
            "ARGS": next((few for made, few in FEW.items() if made in " ".join(command)), ""),
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


def test_the_readme_has_the_commands_that_it_promises() -> None:
    assert RUNNING[:2] == ["make claims", "make test"]
    for command in ('pytest claims -m "not gpu"', "pytest -m gpu"):
        assert command in RUNNING


@pytest.mark.parametrize("command", sorted(set(RUNNING), key=lambda c: c.startswith("make")))
def test_each_command_works_in_a_fresh_clone(clone: Clone, command: str) -> None:
    done = clone.run(command)
    said = done.stdout[-3000:] + done.stderr[-3000:]
    if shlex.split(command)[:3] == ["pytest", "-m", "gpu"] and done.returncode != 0:
        assert re.search(r"ERROR: -m 'gpu' needs a CUDA GPU: .+", done.stderr), said
    else:
        assert done.returncode == 0, said
        if "lint" not in command:
            assert " passed" in done.stdout, said


def test_what_the_readme_links_to_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_readme_lists_every_option() -> None:
    sources = (ROOT / "claims").rglob("plugin.py")
    options = {o for path in sources for o in re.findall(r'"(--[a-z-]+)"', path.read_text())}
    assert options
    assert all(f"`{option}" in README for option in options)
