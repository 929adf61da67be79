"""A claim fails when it compares nothing, crashes, or has another verdict than the ledger's."""

from __future__ import annotations

import pytest

from conftest import Project, output


def test_a_claim_that_compares_and_agrees_passes(project: Project) -> None:
    project.entry("a", expected={"value": 3}).test(
        '@claim("a")\ndef test_a(check, expected):\n    check(3, exact(expected["value"]))\n'
    )
    project.run().assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "body",
    ["pass", "return", "assert True", "if not torch.cuda.is_available(): return"],
)
def test_a_claim_that_recorded_nothing_fails(project: Project, body: str) -> None:
    project.entry("a").test(f'@claim("a")\ndef test_a(check):\n    {body}\n')
    result = project.run()
    result.assert_outcomes(failed=1)
    assert "claim a recorded no check" in output(result)


def test_a_stored_table_alone_is_no_evidence(project: Project) -> None:
    project.entry("a").test(
        '@claim("a")\ndef test_a(check, table):\n    table({"n": [1]}, decimals={})\n'
    )
    folder = project.expected / "test_02_average"
    folder.mkdir()
    (folder / "a.csv").write_text("n\n1\n")
    result = project.run()
    assert "claim a recorded no check" in output(result)


@pytest.mark.parametrize(
    ("ledger_says", "tolerance", "found"),
    [("exact", "ulps(1.0, 2, 'two roundings')", "holds"), ("holds", "digits(1.0, 1)", "exact")],
)
def test_a_verdict_other_than_the_ledgers_fails(
    project: Project, ledger_says: str, tolerance: str, found: str
) -> None:
    project.entry("a", ledger_says).test(
        f'@claim("a")\ndef test_a(check):\n    check(1.0, {tolerance})\n'
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    assert f"the ledger's verdict is '{ledger_says}', the checks say '{found}'" in output(result)


def test_a_refuted_claim_is_an_expected_failure_with_its_reason(project: Project) -> None:
    project.entry("a", "refuted", reading="false in two layers").test(
        '@claim("a")\ndef test_a(check):\n    check(1, exact(2))\n'
    )
    result = project.run()
    result.assert_outcomes(xfailed=1)
    assert "a (l.11): false in two layers" in output(result)


def test_a_refuted_claim_that_starts_to_hold_is_red(project: Project) -> None:
    project.entry("a", "refuted").test('@claim("a")\ndef test_a(check):\n    check(2, exact(2))\n')
    result = project.run()
    result.assert_outcomes(failed=1)
    assert "XPASS(strict)" in output(result)


@pytest.mark.parametrize(
    "body", ["raise RuntimeError('shape')", "assert False", "check(1.0, exact(2.0))", "pass"]
)
def test_a_refuted_claim_is_not_excused_by_another_failure(project: Project, body: str) -> None:
    project.entry("a", "refuted").test(f'@claim("a")\ndef test_a(check):\n    {body}\n')
    project.run().assert_outcomes(failed=1)


@pytest.mark.parametrize("verdict", ["holds", "refuted"])
def test_seeds_that_do_not_decide_are_neither_verdict(project: Project, verdict: str) -> None:
    project.entry("a", verdict).test(
        '@claim("a")\ndef test_a(check):\n'
        '    values = PerSeed([0, 1, 2], [0.1, 0.9, 0.5])\n'
        '    check(values, seed_mean_within((0.4, 1), "half"))\n'
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    text = output(result)
    assert "undecided: more seeds would tell" in text
    assert "margin: 0." in text


def test_a_failure_says_which_claim_what_was_measured_and_how_to_rerun(project: Project) -> None:
    project.entry("a").test(
        '@claim("a")\ndef test_a(check):\n    check([1, 5], exact([1, 2]), unit="tokens")\n'
    )
    text = output(project.run("--base-seed", "3"))
    for part in (
        "a (2-average, l.11)",
        "The sentence of a.",
        "[1, 5] tokens",
        "[1, 2] tokens",
        "equality [exact]",
        "5 against 2 at [1]",
        'pytest "claims/test_02_average.py::test_a" --base-seed 3 --implementation package',
    ):
        assert part in text


def test_nan_never_passes(project: Project) -> None:
    project.entry("a").test(
        '@claim("a")\ndef test_a(check):\n'
        '    check(torch.tensor([1.0, math.nan]), exact(torch.tensor([1.0, math.nan]), "same"))\n'
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    assert "NaN was measured" in output(result)


@pytest.mark.parametrize("fixture", ["check", "expected", "rng", "table"])
def test_the_fixtures_of_claims_belong_to_claims(project: Project, fixture: str) -> None:
    project.entry("a").test(
        '@claim("a")\ndef test_a(check):\n    check(1, exact(1))\n'
        f"def test_b({fixture}):\n    pass\n"
    )
    result = project.run()
    result.assert_outcomes(passed=1, errors=1)
    assert f'test_b: `{fixture}` belongs to a test marked @claim("id")' in output(result)
