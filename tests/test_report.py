"""The summary, the JSON file and the JUnit properties say the same."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from jsonschema import Draft202012Validator

from claims.harness.report import LONGEST_MESSAGE, SCHEMA, VERSION
from conftest import Project, output

TESTS = """
@claim("printed")
def test_printed(check):
    check(2.4260, digits(2.43, 2), unit="characters")

@claim("close")
def test_close(check):
    check(1.0 + 2**-52, ulps(1.0, 2, "two roundings"))

@claim("false")
def test_false(check):
    check(1, exact(2))

@claim("elsewhere")
def test_elsewhere(implementation, check):
    check(implementation.Head, exact(None))

@claim("wrong")
def test_wrong(check):
    check(3, exact(4))

@claim("broken")
def test_broken(check, no_such_fixture):
    check(3, exact(4))

@claim("ends-badly")
def test_ends_badly(check, request):
    request.addfinalizer(lambda: 1 / 0)
    check(1, exact(1))
"""


@pytest.fixture
def mixed(project: Project) -> Project:
    for name, verdict in (
        ("printed", "exact"),
        ("close", "holds"),
        ("false", "refuted"),
        ("elsewhere", "exact"),
        ("wrong", "exact"),
        ("broken", "exact"),
        ("ends-badly", "exact"),
        ("history", "background"),
    ):
        project.entry(name, verdict)
    project.entry("later", "not run", awaits="trained runs")
    return project.test(TESTS)


def test_the_summary_counts_every_verdict_by_section_with_reasons(mixed: Project) -> None:
    lines = [line.split() for line in mixed.run().outlines]
    assert ["2-average", "1", "1", ".", "1", "2", "3", "1"] in lines
    assert ["3-average-as-softmax", *"......."] in lines
    text = " ".join(" ".join(line) for line in lines)
    for part in (
        "false (l.11): The sentence of false.",
        "1 x awaits trained runs",
        "1 x package does not provide Head",
        "wrong: claims/test_02_average.py::test_wrong",
        "5 checks were recorded",
    ):
        assert part in text


def test_json_and_junit_say_the_same(mixed: Project, tmp_path: Path) -> None:
    mixed.run("--claims-json", "out.json", "--junitxml", "out.xml", "--base-seed", "5")
    data = json.loads((mixed.folder / "out.json").read_text())
    assert data["verdicts"] == {
        "printed": "exact", "close": "holds", "false": "refuted", "elsewhere": "not run",
        "wrong": "failed", "broken": "failed", "ends-badly": "failed", "history": "background",
        "later": "not run",
    }  # fmt: skip
    assert (data["base_seed"], data["implementation"]) == ("5", "package")
    assert data["machine"]["threads"] == "1"
    runs = {run["claim"]: run for run in data["runs"]}
    record = runs["printed"]["records"][0]
    assert (record["measured"], record["expected"], record["unit"]) == (2.426, "2.43", "characters")
    assert runs["elsewhere"]["reason"] == "package does not provide Head"

    cases = ElementTree.parse(mixed.folder / "out.xml").iter("testcase")
    properties = [{p.get("name"): p.get("value") for p in case.iter("property")} for case in cases]
    said = {p["claim"]: p["verdict"] for p in properties if "claim" in p}
    assert {**said, "ends-badly": "failed"} == {
        k: v for k, v in data["verdicts"].items() if k in said
    }
    printed = next(p for p in properties if p.get("claim") == "printed")
    assert json.loads(printed["check 1"] or "")["expected"] == "2.43"


def test_the_json_file_keeps_its_schema(mixed: Project) -> None:
    mixed.run("--claims-json", "out.json")
    data = json.loads((mixed.folder / "out.json").read_text())
    schema = json.loads(SCHEMA.read_text())
    Draft202012Validator.check_schema(schema)
    assert [*Draft202012Validator(schema).iter_errors(data)] == []
    assert data["version"] == VERSION
    for path in (["version"], ["runs", 0, "records", 0, "ok"], ["runs", 0, "message"]):
        broken = json.loads(json.dumps(data))
        *outer, last = path
        place = broken
        for key in outer:
            place = place[key]
        del place[last]
        assert [*Draft202012Validator(schema).iter_errors(broken)], path


def test_the_json_file_has_the_place_of_each_test_and_what_a_failure_says(mixed: Project) -> None:
    mixed.run("--claims-json", "out.json")
    text = (mixed.folder / "out.json").read_text()
    runs = {run["claim"]: run for run in json.loads(text)["runs"]}
    lines = (mixed.claims / "test_02_average.py").read_text().splitlines()
    for run in runs.values():
        file, _, line = run["source"].partition(":")
        assert file == "claims/test_02_average.py"
        assert lines[int(line) - 1] == f'@claim("{run["claim"]}")'
        assert bool(run["message"]) == (run["verdict"] == "failed")
    assert "equality" in runs["wrong"]["message"]
    assert "no_such_fixture" in runs["broken"]["message"]
    # A line for each run: what differs between two files can be read.
    assert sum(line.startswith('  {"claim"') for line in text.splitlines()) == len(runs)


def test_infinity_is_text_and_a_huge_message_is_shortened(project: Project) -> None:
    project.entry("huge").test(
        '@claim("huge")\n'
        "def test_huge(check):\n"
        "    check(math.inf, within(0, 1, 'x'))\n"
    ).entry("long").test(
        '@claim("long")\n'
        "def test_long(check):\n"
        "    raise ValueError('first' + 'x' * 10**6 + 'last')\n"
    )
    project.run("--claims-json", "out.json")
    text = (project.folder / "out.json").read_text()
    assert "Infinity" not in text
    runs = {run["claim"]: run for run in json.loads(text)["runs"]}
    assert runs["huge"]["records"][0]["measured"] == "inf"
    message = runs["long"]["message"]
    assert len(message) < LONGEST_MESSAGE + 100
    assert "characters left out" in message
    assert "last" in message


def test_a_claim_over_several_seeds_has_its_worst_verdict(project: Project) -> None:
    project.entry("a").test(
        '@claim("a")\ndef test_a(check, rng):\n    check(rng.base_seed, within(0, 1, "x"))\n'
    )
    project.run("--base-seed", "0..2", "--claims-json", "out.json")
    data = json.loads((project.folder / "out.json").read_text())
    assert data["verdicts"] == {"a": "failed"}
    assert [run["verdict"] for run in data["runs"]] == ["exact", "exact", "failed"]


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("missing/out.json", "the folder"),
        (".", "it is a folder"),
    ],
)
def test_a_json_file_that_cannot_be_written_is_refused_before_the_run(
    mixed: Project, target: str, sentence: str
) -> None:
    result = mixed.run("--claims-json", target)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert sentence in output(result)


def test_an_old_json_file_survives_a_run_without_claims(mixed: Project) -> None:
    target = mixed.folder / "out.json"
    target.write_text("old")
    mixed.run("--claims-json", "out.json", "-k", "nothing_of_that_name")
    assert target.read_text() == "old"


def test_the_header_names_what_a_result_depends_on(mixed: Project) -> None:
    text = output(mixed.run())
    for part in (
        "implementation package",
        "base seed 17",
        "budget",
        "torch ",
        "device cpu",
        "threads 1",
        "tf32 off",
    ):
        assert part in text


def test_without_claims_there_is_no_summary(project: Project) -> None:
    project.entry("a").test("def test_plain():\n    pass\n")
    result = project.run("-k", "plain")
    result.assert_outcomes(passed=1)
    assert "section " not in output(result)
