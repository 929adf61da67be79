"""Stored tables: the holes of the bare pytest-regressions fixtures, and rules of `--regen-all`."""

from __future__ import annotations

import json

import pytest

from conftest import Project, output


def table_test(columns: str, decimals: str = '{"x": 2}') -> str:
    return f"""
@claim("a")
def test_a(check, table):
    check(1, exact(1))
    table({columns}, decimals={decimals})
"""


@pytest.fixture
def stored(project: Project) -> Project:
    """A project whose claim `a` has the stored table n,x = 1,0.50 / 2,3.00."""
    project.entry("a")
    folder = project.expected / "test_02_average"
    folder.mkdir()
    (folder / "a.csv").write_text("n,x\n1,0.50\n2,3.00\n")
    return project


@pytest.mark.parametrize(
    ("columns", "passes"),
    [
        ('{"n": [1, 2], "x": [0.5, 3.0]}', True),
        ('{"n": [1, 2], "x": [0.5, 3.0099]}', True),  # one unit of the last stored decimal
        ('{"n": [1, 2], "x": [0.5, 3.0151]}', False),
        ('{"n": [1, 2], "x": [0.5, 2.9901]}', True),
        ('{"n": [1, 2], "x": [0.5, 2.9849]}', False),
        ('{"n": [1, 3], "x": [0.5, 3.0]}', False),
        ('{"x": [0.5, 3.0], "n": [1, 2]}', False),
        ('{"n": [1], "x": [0.5]}', False),
        ('{"n": [1, 2, 3], "x": [0.5, 3.0, 1.0]}', False),
        ('{"n": [1, 2], "x": [0.5, 3.0], "y": [1, 2]}', False),
        ('{"n": ["1", "2"], "x": [0.5, 3.0]}', True),
    ],
)
def test_values_columns_and_rows_are_compared_both_ways(
    stored: Project, columns: str, passes: bool
) -> None:
    result = stored.test(table_test(columns)).run()
    result.assert_outcomes(passed=int(passes), failed=int(not passes))


def test_a_column_that_vanishes_fails(stored: Project) -> None:
    result = stored.test(table_test('{"n": [1, 2]}', "{}")).run()
    result.assert_outcomes(failed=1)
    assert "columns ['n'] against stored ['n', 'x']" in output(result)


def test_a_row_that_vanishes_fails(stored: Project) -> None:
    result = stored.test(table_test('{"n": [1], "x": [0.5]}')).run()
    result.assert_outcomes(failed=1)
    assert "1 rows against 2 stored in" in output(result)


def test_whole_number_floats_stay_floats_both_ways(stored: Project) -> None:
    """3.0 against 3.0000001, stored and measured, and an integer in a float column is refused."""
    path = stored.expected / "test_02_average" / "a.csv"
    for old, new in (("3.0000000", "3.0000001"), ("3.0000001", "3.0")):
        path.write_text(f"x\n{old}\n")
        stored.test(table_test(f'{{"x": [{new}]}}', '{"x": 7}'))
        stored.run().assert_outcomes(passed=1)
        (stored.claims / "test_02_average.py").unlink()
    result = stored.test(table_test('{"x": [3]}')).run()
    assert "decimals must name the float columns []" in output(result)


@pytest.mark.parametrize("value", ["math.nan", "math.inf", "-math.inf"])
def test_nan_and_infinity_are_refused_when_measured(stored: Project, value: str) -> None:
    result = stored.test(table_test(f'{{"n": [1, 2], "x": [0.5, {value}]}}')).run()
    result.assert_outcomes(failed=1)
    assert "column 'x' holds NaN or infinity" in output(result)


@pytest.mark.parametrize("cell", ["nan", "inf", "x"])
def test_nan_and_infinity_are_refused_when_stored(stored: Project, cell: str) -> None:
    (stored.expected / "test_02_average" / "a.csv").write_text(f"n,x\n1,0.50\n2,{cell}\n")
    result = stored.test(table_test('{"n": [1, 2], "x": [0.5, 3.0]}')).run()
    result.assert_outcomes(failed=1)
    assert f"stored 'x', row 1: '{cell}' is no finite number" in output(result)


@pytest.mark.parametrize(
    ("value", "cell", "passes"),
    [("None", "", True), ("None", "3.00", False), ("3.0", "", False)],
    ids=["empty in both", "empty when measured", "empty when stored"],
)
def test_an_empty_cell_equals_an_empty_cell_alone(
    stored: Project, value: str, cell: str, passes: bool
) -> None:
    (stored.expected / "test_02_average" / "a.csv").write_text(f"n,x\n1,0.50\n2,{cell}\n")
    result = stored.test(table_test(f'{{"n": [1, 2], "x": [0.5, {value}]}}')).run()
    result.assert_outcomes(passed=int(passes), failed=int(not passes))
    assert ("against stored" in output(result)) is not passes


def test_a_cell_that_differs_is_named_by_its_column_and_its_row(stored: Project) -> None:
    result = stored.test(table_test('{"n": [1, 2], "x": [0.5, None]}')).run()
    assert "x, row 1 (2): nothing against stored 3.00" in output(result)


def test_an_empty_cell_is_written_and_read_again(project: Project) -> None:
    project.entry("a").test(table_test('{"n": [1, 2], "x": [None, 3.0]}'))
    project.run("--regen-all").assert_outcomes(failed=1)
    path = project.expected / "test_02_average" / "a.csv"
    assert path.read_text() == "n,x\n1,\n2,3.00\n"
    project.run().assert_outcomes(passed=1)


@pytest.mark.parametrize("columns", ['{"n": [], "x": []}', '{"n": [1], "x": [0.5, 3.0]}'])
def test_ragged_and_empty_tables_are_refused(stored: Project, columns: str) -> None:
    result = stored.test(table_test(columns, "{}" if "[]" in columns else '{"x": 2}')).run()
    assert "equally long and not empty" in output(result)


@pytest.mark.parametrize("ci", [False, True])
def test_a_missing_table_is_red_and_writes_nothing_however_often(
    project: Project, monkeypatch: pytest.MonkeyPatch, ci: bool
) -> None:
    if ci:
        monkeypatch.setenv("CI", "true")
    project.entry("a").test(table_test('{"n": [1, 2], "x": [0.5, 3.0]}'))
    for _ in range(2):
        result = project.run()
        result.assert_outcomes(failed=1)
        assert "no stored table" in output(result)
        assert not list(project.expected.rglob("*"))


def test_regenerating_writes_everything_asked_for_with_provenance_and_ends_red(
    stored: Project,
) -> None:
    stored.test(table_test('{"n": [1, 2], "x": [0.25, 3.0]}'))
    stored.run("--regen-all").assert_outcomes(failed=1)
    path = stored.expected / "test_02_average" / "a.csv"
    assert path.read_text() == "n,x\n1,0.25\n2,3.00\n"
    facts = json.loads(path.with_suffix(".provenance.json").read_text())
    assert set(facts) == {
        "torch", "python", "device", "threads", "dtype", "seeds", "commit", "date", "command",
    }  # fmt: skip
    assert facts["command"] == "pytest claims/test_02_average.py::test_a --regen-all"
    assert not list(path.parent.glob("*.part"))
    stored.run().assert_outcomes(passed=1)


def test_values_over_seeds_are_stored_with_spread_seeds_and_source(project: Project) -> None:
    """Of fewer than three seeds no spread is told, and no mean."""
    project.entry("a").test("""
@claim("a")
def test_a(check, table):
    check(1, exact(1))
    three, two = PerSeed([3, 4, 5], [1.0, 2.0, 3.0], "runs.json"), PerSeed([7, 8], [1.0, 2.0])
    table.over_seeds({"rate": ["low", "high"]}, [three, two], 2)
""")
    project.run("--regen-all").assert_outcomes(failed=1)
    path = project.expected / "test_02_average" / "a.csv"
    assert path.read_text() == "rate,mean,sd,n\nlow,2.00,1.00,3\nhigh,,,2\n"
    facts = json.loads(path.with_suffix(".provenance.json").read_text())
    assert (facts["seeds"], facts["source"]) == ([3, 4, 5, 7, 8], "runs.json")
    project.run().assert_outcomes(passed=1)


def test_regenerating_rewrites_a_table_that_agrees_as_well(stored: Project) -> None:
    result = stored.test(table_test('{"n": [1, 2], "x": [0.5, 3.0]}')).run("--regen-all")
    result.assert_outcomes(failed=1)
    assert "read it, commit it, run again" in output(result)


@pytest.mark.parametrize("option", ["--regen-all", "--force-regen"])
def test_ci_never_regenerates(
    stored: Project, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setenv("CI", "true")
    result = stored.test(table_test('{"n": [1, 2], "x": [0.25, 3.0]}')).run(option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "CI is set" in output(result)
    assert "0.50" in (stored.expected / "test_02_average" / "a.csv").read_text()


def test_force_regen_is_refused_in_favour_of_regen_all(stored: Project) -> None:
    result = stored.test(table_test('{"n": [1, 2], "x": [0.5, 3.0]}')).run("--force-regen")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "use --regen-all" in output(result)
