"""The code under test is reached through one seam, and through nothing else."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

import transformer
from claims.harness.contract import CONTRACT
from claims.harness.implementation import Implementation, Missing
from conftest import Project, output


def test_the_reference_provides_every_name_and_no_other() -> None:
    assert Implementation("transformer").provided() == list(CONTRACT)
    assert sorted(transformer.__all__) == sorted(CONTRACT)


@pytest.mark.parametrize("name", CONTRACT)
def test_the_contract_has_the_parameters_of_the_reference(name: str) -> None:
    """Names, order and defaults, of the function or of the constructor, and of a call."""
    each, of_reference = CONTRACT[name], getattr(transformer, name)
    assert written(of_reference) == written(eval(f"lambda {each.takes}: None", {"torch": torch}))
    if each.forward:
        called = eval(f"lambda self, {each.forward}: None")
        assert written(of_reference.forward) == written(called)
    for method in each.methods:
        own, _, parameters = method.partition("(")
        shown = written(getattr(of_reference, own))
        wanted = parameters.removesuffix(")").removeprefix("cls, ")
        assert shown == written(eval(f"lambda {wanted}: None"))


def written(function: Any) -> list[str]:
    """The parameters as `name=default`, with the star before those by keyword."""
    return [
        f"{parameter.kind.name} {parameter.name}={parameter.default}"
        for parameter in inspect.signature(function).parameters.values()
    ]


@pytest.mark.parametrize(
    ("package", "sentence"),
    [
        ("no_such_package", "no such package on this Python's path"),
        ("no_such.package", "no such package on this Python's path"),
        ("my-package", "'my-package' is no package name"),
        ("../package", "is no package name"),
        ("", "'' is no package name"),
        ("json", "provides none of the names of the contract"),
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


IN_THE_TEST = """
@claim("a")
def test_a(implementation, check):
    check(implementation.Head, exact(None))
"""
AFTER_A_COMPARISON = """
@claim("a")
def test_a(implementation, check):
    check(1, exact(1))
    check(implementation.Head, exact(None))
"""
IN_A_FIXTURE = """
@pytest.fixture
def head(implementation):
    return implementation.Head

@claim("a")
def test_a(head, check):
    check(head, exact(None))
"""
IN_A_FIXTURE_OF_THE_MODULE = IN_A_FIXTURE.replace("fixture", 'fixture(scope="module")', 1)
IN_AN_EXAMPLE = """
@claim("a")
@given(n=st.integers(0, 9))
def test_a(implementation, check, n):
    check(implementation.Head, exact(n))
"""
IN_A_LATER_EXAMPLE = """
@claim("a")
@given(n=st.integers(0, 99))
def test_a(implementation, check, n):
    check(n and implementation.Head, exact(0))
"""


@pytest.mark.parametrize(
    ("source", "verdict"),
    [
        pytest.param(IN_THE_TEST, "exact", id="in the test"),
        pytest.param(AFTER_A_COMPARISON, "exact", id="after a comparison"),
        pytest.param(IN_A_FIXTURE, "exact", id="in a fixture"),
        pytest.param(IN_A_FIXTURE_OF_THE_MODULE, "exact", id="in a fixture of the module"),
        pytest.param(IN_AN_EXAMPLE, "exact", id="in an example"),
        pytest.param(IN_A_LATER_EXAMPLE, "exact", id="in a later example"),
        pytest.param(IN_THE_TEST, "refuted", id="of a refuted claim"),
    ],
)
def test_a_claim_that_needs_what_the_package_lacks_is_not_run_with_the_reason(
    project: Project, source: str, verdict: str
) -> None:
    project.entry("a", verdict).entry("b").test(source).test("""
@claim("b")
def test_b(implementation, check):
    check(implementation.causal_mask(1), exact(None))
""")
    result = project.run("--claims-json", "out.json")
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.OK
    assert "1 x package does not provide Head" in output(result)
    runs = json.loads((project.folder / "out.json").read_text())["runs"]
    [missing] = [run for run in runs if run["claim"] == "a"]
    assert (missing["verdict"], missing["reason"]) == ("not run", "package does not provide Head")


def test_missing_names_the_package_and_the_name(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(project.folder)
    with pytest.raises(Missing, match=r"^package does not provide Head$"):
        Implementation("package").Head  # noqa: B018  it is looked up, and nothing else


def test_a_name_outside_the_seam_is_a_defect_of_the_claim(project: Project) -> None:
    project.package("larger", "def causal_mask(n): ...\ndef secret(): ...\n")
    project.entry("a").test(
        '@claim("a")\ndef test_a(implementation, check):\n'
        "    check(implementation.secret(), exact(None))\n"
    )
    result = project.run("--implementation", "larger")
    result.assert_outcomes(failed=1)
    assert "'secret' is no name of the contract" in output(result)


def test_a_single_module_is_a_package_too(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(project.folder)
    (project.folder / "one_file.py").write_text("def causal_mask(n): ...\n")
    assert Implementation("one_file").provided() == ["causal_mask"]
    assert len(Implementation("one_file").source_digest()) == 64


# ---- the digest of the source, by which runs and tokens are kept ---------------------------------

SOURCE = '''
"""The module."""

import math

LIMIT = 8  # a comment


def causal_mask(n, m=None, device=None):
    """The function."""
    return math.pi * n


class Head:
    """The class."""

    def forward(self, x):
        """The method."""
        return x + 1
'''
UNCHANGED = {
    "a comment": ("# a comment", "# another, and longer"),
    "no comment": ("  # a comment", ""),
    "the docstring of the module": ("The module.", "Another module."),
    "the docstring of a function": ("The function.", "Another\n    function."),
    "the docstring of a class": ("The class.", "Another class."),
    "the docstring of a method": ("The method.", "Another method."),
    "blank lines": ("\n\n\nclass", "\n\n\n\n\nclass"),
    "line breaks": ("(n, m=None, device=None)", "(\n    n, m=None, device=None\n)"),
    "parentheses": ("math.pi * n", "(math.pi * n)"),
    "the quotes of a docstring": ('"""The function."""', "'The function, in other quotes.'"),
}
CHANGED = {
    "a number": ("x + 1", "x + 2"),
    "an operator": ("x + 1", "x - 1"),
    "a default": ("m=None", "m=0"),
    "a name": ("math.pi", "math.e"),
    "a constant": ("LIMIT = 8", "LIMIT = 9"),
    "the order of operations": ("math.pi * n", "n * math.pi"),
    "a decorator": ("    def forward", "    @staticmethod\n    def forward"),
    "a string that is no docstring": ("LIMIT = 8", "LIMIT = '8'"),
    "the first statement": ('"""The function."""', "n += 1"),
}


@pytest.fixture
def digest(project: Project, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """The digest of a package with that source."""
    monkeypatch.syspath_prepend(project.folder)
    project.package("coded", SOURCE)
    implementation = Implementation("coded")

    def of(source: str) -> str:
        (project.folder / "coded" / "__init__.py").write_text(source)
        return implementation.source_digest()

    return of


@pytest.mark.parametrize("change", UNCHANGED)
def test_words_and_layout_do_not_change_the_digest(
    digest: Callable[[str], str], change: str
) -> None:
    changed = SOURCE.replace(*UNCHANGED[change], 1)
    assert changed != SOURCE
    assert digest(changed) == digest(SOURCE)


@pytest.mark.parametrize("change", CHANGED)
def test_code_changes_the_digest(digest: Callable[[str], str], change: str) -> None:
    changed = SOURCE.replace(*CHANGED[change], 1)
    assert changed != SOURCE
    assert digest(changed) != digest(SOURCE)


def test_the_digest_follows_every_file_and_its_name(
    digest: Callable[[str], str], project: Project
) -> None:
    folder = project.folder / "coded"
    seen = [digest(SOURCE)]
    (folder / "more.py").write_text("x = 1\n")
    seen.append(digest(SOURCE))
    (folder / "more.py").rename(folder / "other.py")
    seen.append(digest(SOURCE))
    (folder / "deep").mkdir()
    (folder / "deep" / "last.py").write_text("x = 1\n")
    seen.append(digest(SOURCE))
    assert len(set(seen)) == 4
    (folder / "notes.txt").write_text("no code")
    assert digest(SOURCE) == seen[-1]


def test_a_file_with_a_syntax_error_counts_by_its_bytes(
    digest: Callable[[str], str], project: Project
) -> None:
    """As a package may have one that it never imports, such as a template."""
    template = project.folder / "coded" / "template.py"
    seen = [digest(SOURCE)]
    for source in ("def {{name}}:\n", "def {{name}}:  # a comment\n"):
        template.write_text(source)
        seen.append(digest(SOURCE))
        assert digest(SOURCE) == seen[-1]
    assert len(set(seen)) == 3
