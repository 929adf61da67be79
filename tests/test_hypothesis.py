"""Claims under Hypothesis: one record for all examples, draws that can be replayed, one profile."""

from __future__ import annotations

import json

import pytest

from conftest import Project, output

FLAT = """
@claim("{name}")
@given(n=st.integers(0, {largest}))
def test_{name}(check, n):
    check(n, within(0, {allowed}, "the range drawn from, or less"))
"""
NESTED = """
@claim("{name}")
def test_{name}(check):
    @given(st.integers(0, {largest}))
    def every(n):
        check(n, within(0, {allowed}, "the range drawn from, or less"))
    every()
"""


@pytest.mark.parametrize("form", [FLAT, NESTED], ids=["on the test", "inside the test"])
def test_examples_share_one_record_and_a_failure_names_the_smallest_example(
    project: Project, form: str
) -> None:
    project.entry("a").entry("b")
    project.test(form.format(name="a", largest=5, allowed=5))
    project.test(form.format(name="b", largest=500, allowed=99))
    result = project.run("--claims-json", "out.json")
    result.assert_outcomes(passed=1, failed=1)
    text = output(result)
    assert "n=100" in text
    assert "2 checks were recorded" in text
    runs = json.loads((project.folder / "out.json").read_text())["runs"]
    # All six numbers from 0 to 5, and no more.
    assert [run["records"][0]["cases"] for run in runs if run["claim"] == "a"] == [6]


def test_a_refuted_claim_may_find_its_counterexample_with_hypothesis(project: Project) -> None:
    """Also where the examples fail in two ways, which Hypothesis would report as a group."""
    project.entry("a", "refuted").test("""
@claim("a")
@given(n=st.integers(-500, 500))
def test_a(check, n):
    check(n, within(-99, math.inf, "fails below"))
    check(n, within(-math.inf, 99, "fails above"))
""")
    project.run().assert_outcomes(xfailed=1)


def test_examples_draw_from_torch_with_the_same_seeds_each_time(project: Project) -> None:
    """The global generator is seeded for each example, and afterwards as it was before."""
    project.entry("a").test("""
seen = []

@claim("a")
def test_a(check):
    @given(st.integers(0, 3))
    def every(n):
        seen.append(float(torch.rand(())))
        check(n, within(0, 3, "drawn from there"))
    every()
    every()
    half = len(seen) // 2
    check(seen[:half], exact(seen[half:], "the same examples with the same seeds"))
""")
    project.run().assert_outcomes(passed=1)


@pytest.mark.parametrize("ci", [False, True], ids=["elsewhere", "in CI"])
def test_the_profile_is_the_same_everywhere(
    project: Project, monkeypatch: pytest.MonkeyPatch, ci: bool
) -> None:
    """No deadline, derandomised, two health checks suppressed; Hypothesis has another for CI."""
    if ci:
        monkeypatch.setenv("CI", "true")
    project.entry("a").test("""
@claim("a")
def test_a(check):
    now = hypothesis.settings()
    check([now.deadline is None, now.derandomize], exact([True, True]))
    suppressed = [check.name for check in now.suppress_health_check]
    check(suppressed, exact(["too_slow", "function_scoped_fixture"]))
""")
    project.run().assert_outcomes(passed=1)
