"""Every way in which a package under test cannot be used is one sentence; its digest is whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from claims.harness.implementation import Implementation
from claims.harness.loading import load
from conftest import Project, output

NAME = "def causal_mask(n, m=None, device=None): ...\n"


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("raise SystemExit(3)\n", "ends the program when it is imported (SystemExit: 3)"),
        (
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('data')\n"
            "p.parse_args()\n",
            "ends the program when it is imported (SystemExit: 2)",
        ),
    ],
)
def test_code_that_exits_when_imported_is_refused(
    project: Project, source: str, sentence: str
) -> None:
    project.package("exits", source)
    result = project.entry("a").test("").run("--implementation", "exits")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert sentence in output(result)
    assert "Traceback" not in output(result)


def test_code_that_reads_the_command_line_sees_none(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(project.folder)
    project.package("reads", "import sys\nSEEN = list(sys.argv)\n" + NAME)
    module, _ = load("reads")
    assert module.SEEN == ["reads"]


def test_a_file_or_a_folder_for_a_package_is_told_what_to_write(project: Project) -> None:
    (project.folder / "mine.py").write_text(NAME)
    project.entry("a").test("")
    for given in ("mine.py", f"{project.folder}/mine.py", f"{project.folder}/package"):
        result = project.run("--implementation", given)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert f"--implementation '{given}' is a path" in output(result)
        assert f"--implementation {Path(given).name.removesuffix('.py')}, from" in output(result)


def test_a_module_of_nearly_that_name_is_proposed(project: Project) -> None:
    (project.folder / "my_attention.py").write_text(NAME)
    project.entry("a").test("")
    for given, sentence in (
        ("my_atention", "no such package on this Python's path; did you mean my_attention?"),
        ("./my_attention", "give the name by which Python imports it: --implementation my_attent"),
        ("elsewhere", "no such package on this Python's path; name an importable package"),
    ):
        result = project.run("--implementation", given)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert sentence in output(result)


def test_an_import_that_fails_says_in_which_line(project: Project) -> None:
    project.package("wraps", "x = 1\nfrom wraps.inner import y\n")
    (project.folder / "wraps" / "inner.py").write_text("\n\nimport no_such_library\n")
    result = project.entry("a").test("").run("--implementation", "wraps")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    sentence = "fails to import: ModuleNotFoundError: No module named 'no_such_library' ("
    assert sentence in output(result)
    assert "inner.py:3)" in output(result)


def test_global_state_that_an_import_changes_is_set_back_and_named(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(project.folder)
    project.package(
        "changes",
        "import torch\ntorch.set_default_dtype(torch.float64)\ntorch.manual_seed(3)\n" + NAME,
    )
    before = torch.get_rng_state()
    remarks = Implementation("changes").remarks
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.get_rng_state(), before)
    assert remarks == [
        "changes changes global state when it is imported, which was set back: torch's generator "
        "(drawn from), default dtype (torch.float32 -> torch.float64)"
    ]


def test_a_warning_at_the_import_is_no_error(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(project.folder)
    project.package(
        "warns", "import warnings\nwarnings.warn('old', DeprecationWarning)\n" + NAME
    )
    with pytest.warns(DeprecationWarning, match="old"):
        assert Implementation("warns").provided() == ["causal_mask"]


def test_another_package_called_transformer_is_refused_by_both_places(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.package("transformer", NAME)
    monkeypatch.undo()
    monkeypatch.chdir(project.folder)
    with pytest.raises(ValueError, match=r"two packages are called transformer: .*rename yours"):
        load("transformer")


# ---- the digest ----------------------------------------------------------------------------------


def test_the_digest_follows_what_the_package_imports_from_elsewhere(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A neighbour, what that imports in turn, and a module that is named by a string."""
    monkeypatch.syspath_prepend(project.folder)
    (project.folder / "deepest.py").write_text("VALUE = 1\n")
    (project.folder / "neighbour.py").write_text("from deepest import VALUE\n")
    (project.folder / "by_name.py").write_text("VALUE = 1\n")
    (project.folder / "unrelated.py").write_text("VALUE = 1\n")
    project.package(
        "mine",
        "import importlib\nfrom neighbour import VALUE\nimportlib.import_module('by_name')\n"
        + NAME,
    )
    implementation = Implementation("mine")
    seen = [implementation.source_digest()]
    for name in ("deepest", "neighbour", "by_name"):
        path = project.folder / f"{name}.py"
        path.write_text(path.read_text() + "x = 2\n")
        seen.append(implementation.source_digest())
    assert len(set(seen)) == 4
    (project.folder / "unrelated.py").write_text("VALUE = 2\n")
    assert implementation.source_digest() == seen[-1]


def test_the_digest_follows_the_version_of_what_is_installed(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(project.folder)
    project.package("mine", "import yaml\n" + NAME)
    implementation = Implementation("mine")
    before = implementation.source_digest()
    monkeypatch.setattr("claims.harness.source.metadata.version", lambda name: f"{name} 999")
    assert implementation.source_digest() != before


def test_the_digest_of_the_reference_does_not_follow_its_own_dependencies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch's version is part of every key; the record was made under this digest."""
    implementation = Implementation("transformer")
    before = implementation.source_digest()
    monkeypatch.setattr("claims.harness.source.metadata.version", lambda name: f"{name} 999")
    assert implementation.source_digest() == before
