"""Where a run cannot be made as asked, or leaves something behind: a sentence, or nothing lost."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from conftest import ROOT, Project, output

HELD = """
import gc, weakref

SEEN = []

def numbers():
    held = torch.zeros(8)
    SEEN.append(weakref.ref(held))
    return held
"""
ENDS = {
    "refuted": ("refuted", "check(1, exact(2))"),
    "failed": ("exact", "check(1, exact(2))"),
    "skipped": ("exact", "pytest.skip('why')"),
    "crashed": ("exact", "1 / 0"),
    "caught": (
        "exact",
        "check(1, exact(1))\n"
        "    with pytest.raises(ZeroDivisionError) as caught:\n"
        "        1 / (held.sum() and 1 or 0)",
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_tensors_of_a_claim_are_gone_before_the_next(project: Project, end: str) -> None:
    """However it ended: a traceback would keep them, and a memory claim would count them."""
    verdict, line = ENDS[end]
    project.entry("a", verdict).entry("b").test(f"""{HELD}
@claim("a")
def test_a(check):
    held = numbers()
    {line}

@claim("b")
def test_b(check):
    check([ref() is None for ref in SEEN], exact([True]))
""")
    result = project.run("-p", "no:randomly")
    assert "test_b" not in "".join(line for line in result.outlines if line.startswith("FAILED"))
    assert result.parseoutcomes().get("passed", 0) >= 1


def command(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """pytest on the smallest module of claims, in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTEST_ADDOPTS"} | variables
    arguments = [*options, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q"]
    target = str(ROOT / "claims" / "beyond" / "test_layer_norm.py")
    return subprocess.run(
        [sys.executable, *arguments, target], capture_output=True, text=True, env=environment,
        check=False, cwd=ROOT,
    )


def test_python_without_assertions_is_refused() -> None:
    done = command("-O")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: python -O leaves out assertions" in done.stderr
    assert "Traceback" not in done.stderr


def test_plugins_that_are_not_loaded_are_named() -> None:
    done = command(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "the plugin pytest-benchmark is not loaded: unset" in done.stderr
    assert "-p pytest_benchmark.plugin -p pytest_regressions.plugin" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_cache_that_cannot_be_written_loses_no_result(project: Project) -> None:
    """As in a checkout that is read-only."""
    (project.folder / "a_file").write_text("")
    project.entry("a").test('@claim("a")\ndef test_a(check):\n    check(1, exact(2))\n')
    project.entry("b").test('@claim("b")\ndef test_b(check):\n    check(1, exact(1))\n')
    project.write_ledger()
    options = ("-p", "claims.harness.plugin", "-p", "no:randomly", "--implementation", "package")
    result = project.pytester.runpytest_inprocess(
        *options, "-o", "cache_dir=a_file/cache", "--claims-json", "out.json", "claims",
        syspathinsert=True,
    )
    result.assert_outcomes(passed=1, failed=1)
    assert (project.folder / "out.json").exists()
    assert "could not create cache path" in output(result)
