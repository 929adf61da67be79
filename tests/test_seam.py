"""The code under test is reached through one seam, and through nothing else."""

from __future__ import annotations

import inspect

import pytest

import transformer
from claims.harness.implementation import NAMES, Implementation
from conftest import Project, output


def test_the_reference_provides_every_name_and_no_other() -> None:
    assert Implementation("transformer").provided() == list(NAMES)
    assert sorted(transformer.__all__) == sorted(NAMES)


# Described by their methods, or by the settings of LanguageModel.
OTHERWISE = {"Tokenizer", "model_parameters", "gpt2_small"}


@pytest.mark.parametrize("name", sorted(NAMES.keys() - OTHERWISE))
def test_the_seam_names_the_parameters_as_the_reference_has_them(name: str) -> None:
    """Every parameter of the reference stands in the seam's one-line signature."""
    parameters = inspect.signature(getattr(transformer, name)).parameters
    missing = [p for p in parameters if p not in NAMES[name] and p not in ("dtype", "device")]
    assert not missing


@pytest.mark.parametrize(
    ("package", "sentence"),
    [
        ("no_such_package", "no such package on this Python's path"),
        ("no_such.package", "no such package on this Python's path"),
        ("my-package", "'my-package' is no package name"),
        ("../package", "is no package name"),
        ("", "'' is no package name"),
        ("json", "provides none of the names of the seam"),
        ("broken", "fails to import: ModuleNotFoundError: No module named 'absent'"),
        ("crashes", "fails to import: ZeroDivisionError"),
        ("empty_folder", "is a folder without __init__.py"),
    ],
)
def test_an_implementation_that_cannot_be_used_is_named(
    project: Project, package: str, sentence: str
) -> None:
    project.package("broken", "import absent\n")
    project.package("crashes", "1 / 0\n")
    (project.folder / "empty_folder").mkdir()
    result = project.entry("a").test("").run("--implementation", package)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert sentence in output(result)
    assert "Traceback" not in output(result)


def test_a_name_that_the_package_lacks_is_not_run_with_the_reason(project: Project) -> None:
    project.entry("a").entry("b").test("""
@claim("a")
def test_a(implementation, check):
    check(implementation.causal_mask(1), exact(None))

@claim("b")
def test_b(implementation, check):
    check(implementation.Head, exact(None))
""")
    result = project.run()
    result.assert_outcomes(passed=1, skipped=1)
    assert "1 x package does not provide Head" in output(result)


def test_a_name_outside_the_seam_is_a_defect_of_the_claim(project: Project) -> None:
    project.package("larger", "def causal_mask(n): ...\ndef secret(): ...\n")
    project.entry("a").test(
        '@claim("a")\ndef test_a(implementation, check):\n'
        "    check(implementation.secret(), exact(None))\n"
    )
    result = project.run("--implementation", "larger")
    result.assert_outcomes(failed=1)
    assert "'secret' is no name of the seam" in output(result)


def test_the_source_digest_follows_every_file(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(project.folder)
    before = Implementation("package").source_digest()
    assert before == Implementation("package").source_digest()
    (project.folder / "package" / "more.py").write_text("x = 1\n")
    assert Implementation("package").source_digest() != before


def test_a_single_module_is_a_package_too(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(project.folder)
    (project.folder / "one_file.py").write_text("def causal_mask(n): ...\n")
    assert Implementation("one_file").provided() == ["causal_mask"]
    assert len(Implementation("one_file").source_digest()) == 64
