"""From somebody's own folder: the plugin that waits to be asked, the template, --only, --fill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from claims import new
from claims.harness.contract import CONTRACT, GROUPS, of_group
from claims.harness.implementation import Implementation
from claims.installed import asks_for_claims
from conftest import ROOT, Project, output

MASK = """
import torch
def causal_mask(n, m=None, device=None):
    return torch.ones(n, m or n, dtype=torch.bool).tril((m or n) - n)
"""
SMALL = ["-p", "no:cacheprovider", "-p", "no:randomly", "--pyargs"]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest in another folder than the checkout, with this Python's packages."""
    start = "import sys; sys.path.remove(''); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTEST_ADDOPTS", "PYTHONPATH")}
    return subprocess.run(
        [sys.executable, "-c", start, *arguments], cwd=folder, env=environment, check=False,
        capture_output=True, text=True,
    )


@pytest.fixture(scope="session")
def installed() -> None:
    """The distribution as it is installed here must have the plugin."""
    from importlib.metadata import entry_points

    if not any(each.value == "transformer_claims" for each in entry_points(group="pytest11")):
        pytest.skip("needs the distribution, installed anew: pip install -e .")


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ("--pyargs claims", True),
        ("--pyargs claims.test_04_query_key_value -q", True),
        ("claims --pyargs", True),
        ("--pyargs claims/test_04_query_key_value.py", True),
        ("claims", False),
        ("--pyargs claimsmith", False),
        ("--pyargs my_package", False),
        ("", False),
    ],
)
def test_the_plugin_knows_when_it_is_asked(arguments: str, asked: bool) -> None:
    assert asks_for_claims(arguments.split()) is asked


@pytest.mark.usefixtures("installed")
def test_a_package_is_judged_from_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MASK)
    done = run(
        tmp_path, *SMALL, "claims.beyond.test_causal_mask", "claims.test_04_query_key_value",
        "--implementation", "mine", "--only", "attention", "--claims-json", "out.json",
        "-k", "mask",
    )
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
    verdicts = json.loads((tmp_path / "out.json").read_text())["verdicts"]
    assert verdicts["last-query-sees-every-key"] == "exact"
    assert f"implementation mine ({tmp_path / 'mine.py'})" in done.stdout.replace("\n", "")


@pytest.mark.usefixtures("installed")
def test_the_plugin_does_nothing_where_it_is_not_asked(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "import sys\ndef test_mine():\n    assert 'torch' not in sys.modules\n"
    )
    done = run(tmp_path, "-q", "-p", "no:randomly", "-p", "no:cacheprovider")
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert run(tmp_path, "--implementation", "mine").returncode == pytest.ExitCode.USAGE_ERROR


def test_the_distribution_has_every_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {path.parent for path in (ROOT / "claims").rglob("__init__.py")}
    there = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    moved = {".".join(Path(folder).parts) for folder in settings["package-dir"].values()}
    wanted = (there - moved) | {"transformer"} | set(settings["package-dir"])
    assert set(settings["packages"]) == wanted
    assert (ROOT / "fixtures" / "ledger.yaml").exists()


# ---- the template --------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [None, *GROUPS])
def test_the_template_offers_the_names_and_lacks_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    file = tmp_path / f"mine_{group}.py"
    assert new.main([str(file), *(["--only", group] if group else [])]) == 0
    monkeypatch.syspath_prepend(tmp_path)
    mine = Implementation(file.stem)
    assert mine.provided() == (of_group(group) if group else list(CONTRACT))
    for name in mine.provided():
        with pytest.raises((NotImplementedError, TypeError)):
            getattr(mine, name)()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["there.py"], "there.py exists, and is not replaced"),
        (["my-attention.py"], "give a name that Python can import"),
        (["class.py"], "give a name that Python can import"),
        (["torch.py"], "there is a module torch already; choose another name"),
        (["transformer.py"], "there is a module transformer already; choose another name"),
        (["new.py", "--only", "heads"], "--only takes average, attention, positions"),
        (["absent/new.py"], None),
    ],
)
def test_a_template_that_cannot_be_written_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: list[str], sentence: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").write_text("mine")
    if sentence is None:
        assert new.main(arguments) == 0, "a folder is made"
        return
    with pytest.raises(SystemExit) as ended:
        new.main(arguments)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
    assert (tmp_path / "there.py").read_text() == "mine"


def test_the_command_of_a_template_trains_nothing_and_says_from_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert new.main(["sub/mine.py", "--only", "attention, block"]) == 0
    command = (
        "pytest --pyargs claims --implementation mine --only attention,block "
        '-m "not gpu and not trains"'
    )
    assert f"Judge it in the folder sub by\n  {command}" in capsys.readouterr().out
    assert command in (tmp_path / "sub" / "mine.py").read_text()


# ---- --only and --fill-from-reference ------------------------------------------------------------

TWO = """
@claim("a")
def test_a(implementation, check):
    check(implementation.causal_mask(2).shape, exact(torch.Size([2, 2])))

@claim("b")
def test_b(implementation, check):
    check(implementation.alibi_slopes(2), exact(3))

@claim("c")
def test_c(implementation, check):
    check([implementation.causal_mask(2).numel(), implementation.alibi_slopes(2)], exact([4, 3]))
"""


def judged(project: Project, *options: str) -> dict[str, str]:
    project.package("theirs", MASK + "rotate = alibi_bias = None\n")
    (project.folder / "package" / "__init__.py").write_text(
        MASK + "def alibi_slopes(n_heads): return 3\n"
    )
    for name in "abc":
        project.entry(name)
    project.test(TWO).run("--implementation", "theirs", "--claims-json", "out.json", *options)
    verdicts: dict[str, str] = json.loads((project.folder / "out.json").read_text())["verdicts"]
    return verdicts


def test_what_is_missing_is_filled_from_the_reference_when_asked(project: Project) -> None:
    """A claim that asks for filled names alone says nothing about the package."""
    filled = judged(project, "--fill-from-reference")
    assert filled == {"a": "exact", "b": "not run", "c": "exact"}


def test_what_is_missing_is_not_filled_by_itself(project: Project) -> None:
    assert judged(project) == {"a": "exact", "b": "not run", "c": "not run"}


def test_only_some_groups_are_asked_of_the_package(project: Project) -> None:
    (project.folder / "package" / "__init__.py").write_text(MASK)
    source = MASK + "def alibi_slopes(n_heads): return 3\n"
    project.package("both", source)
    for name in "abc":
        project.entry(name)
    result = project.test(TWO).run("--implementation", "both", "--only", " attention")
    result.assert_outcomes(passed=1, skipped=2)
    assert "2 x --only leaves out what needs names of other groups" in output(result)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--implementation", "package", "--only", "attention"), "belong to --implementation my_"),
        (("--implementation", "theirs", "--only", "heads"), "--only takes average, attention"),
        (("--implementation", "theirs", "--only", "size"), "provides none of the names"),
    ],
)
def test_options_that_ask_for_nothing_are_refused(
    project: Project, options: tuple[str, ...], sentence: str
) -> None:
    project.package("theirs", MASK)
    result = project.entry("a").test("").run(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert sentence in output(result)
