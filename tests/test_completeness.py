"""Ledger, tests and stored tables agree both ways, or collection fails with the id named."""

from __future__ import annotations

import pytest

from conftest import Project, output

GOOD = '@claim("{0}")\ndef test_{0}(check):\n    check(1, exact(1))\n'


def refused(project: Project, *options: str) -> str:
    result = project.run(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    return output(result)


def test_an_entry_without_a_test(project: Project) -> None:
    project.entry("a").entry("b").test(GOOD.format("a"))
    sentence = "claim b: the ledger's verdict is 'exact', but no test of test_02_average decides it"
    assert sentence in refused(project)
    for narrowed in (
        ["-k", "test_a"],
        ["claims/test_02_average.py"],
        ["claims/test_02_average.py::test_a"],
    ):
        assert sentence in refused(project, *narrowed)


def test_a_test_without_an_entry(project: Project) -> None:
    project.entry("a").test(GOOD.format("a") + GOOD.format("b"))
    assert (
        "claim b: test_02_average.test_b decides it, but the ledger has no such entry"
        in refused(project)
    )


def test_two_tests_of_one_entry(project: Project) -> None:
    project.entry("a").test(GOOD.format("a") + GOOD.format("a").replace("test_a", "test_again"))
    assert "claim a: 2 tests of test_02_average decide it" in refused(project)


def test_a_test_in_the_wrong_section(project: Project) -> None:
    project.entry("a").test(GOOD.format("a"), module="test_03_average_as_softmax")
    assert "claim a: belongs to test_02_average" in refused(project)


def test_a_subject_has_a_module_of_its_own(project: Project) -> None:
    """Complete both ways, tables too, like the modules of the chapter."""
    (project.claims / "beyond").mkdir()
    project.entry("a").test(GOOD.format("a"))
    project.entry("b", beyond="a fault", subject="odd-ends")
    assert "no test of test_odd_ends decides it" in refused(
        project.test(GOOD.format("c"), module="beyond/test_odd_ends")
    )
    (project.claims / "beyond" / "test_odd_ends.py").unlink()
    project.test(GOOD.format("b"), module="beyond/test_odd_ends")
    project.run().assert_outcomes(passed=2)
    project.test(GOOD.format("b"))
    assert "claim b: belongs to test_odd_ends, but test_02_average.test_b" in refused(project)


def test_a_companion_belongs_to_the_module_of_its_section(project: Project) -> None:
    project.entry("a").entry("b", beyond="what is true in its place").test(GOOD.format("a"))
    assert "no test of test_02_average decides it" in refused(project)
    project.test(GOOD.format("b")).run().assert_outcomes(passed=2)


@pytest.mark.parametrize(("verdict", "more"), [("background", {}), ("not run", {"awaits": "x"})])
def test_a_test_of_an_entry_that_should_have_none(
    project: Project, verdict: str, more: dict[str, str]
) -> None:
    project.entry("a", verdict, **more).test(GOOD.format("a"))
    assert f"but the ledger's verdict is '{verdict}'" in refused(project)


@pytest.mark.parametrize("mark", ["@claim", "@claim()", '@claim("a", "b")', "@claim(3)"])
def test_a_malformed_mark(project: Project, mark: str) -> None:
    project.entry("a").test(f"{mark}\ndef test_a(check):\n    check(1, exact(1))\n")
    assert "one id" in refused(project)


def test_a_stored_table_without_a_claim(project: Project) -> None:
    project.entry("a").test(GOOD.format("a"))
    folder = project.expected / "test_02_average"
    folder.mkdir()
    (folder / "lost.csv").write_text("n\n1\n")
    assert "stored table test_02_average/lost.csv: no claim 'lost'" in refused(project)
    (folder / "lost.csv").rename(folder / "a.csv")
    assert "the test of claim 'a' compares no table" in refused(project)


def test_needs_and_fixtures_agree(project: Project) -> None:
    project.entry("a", needs=["gpu"]).entry("b").test(
        GOOD.format("a") + GOOD.format("b").replace("(check)", "(check, cuda)")
    )
    text = refused(project)
    assert "claim a: the ledger says it needs gpu, its test uses no `cuda`" in text
    assert "claim b: its test uses `cuda`, the ledger says nothing of gpu" in text


def test_claims_lost_between_collection_and_report_turn_a_whole_run_red(project: Project) -> None:
    """A plugin that shuffles, shards or filters must not leave a green run of nothing."""
    project.entry("a").entry("b").test(GOOD.format("a") + GOOD.format("b"))
    (project.folder / "loser.py").write_text(
        "import pytest\n@pytest.hookimpl(trylast=True)\n"
        "def pytest_collection_modifyitems(items): del items[1:]\n"
    )
    result = project.run("-p", "loser")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "1 claims were never collected, though nothing deselected them: b" in output(result)
    assert project.run("-p", "loser", "-k", "test_a").ret == pytest.ExitCode.OK


def test_a_selection_is_no_loss(project: Project) -> None:
    project.entry("a").entry("b").test(GOOD.format("a") + GOOD.format("b"))
    for narrowed in (
        ["-k", "test_a"],
        ["claims/test_02_average.py::test_b"],
        ["--deselect", "claims/test_02_average.py::test_a"],
        ["claims/test_02_average.py"],
    ):
        assert project.run(*narrowed).ret == pytest.ExitCode.OK
