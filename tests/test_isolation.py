"""Global state does not leak from one test into the next, and a claim may not depend on it."""

from __future__ import annotations

import pytest

from conftest import Project, output

POLLUTIONS = {
    "torch's generator (drawn from)": "torch.rand(1)",
    "numpy's generator (drawn from)": "numpy.random.rand()",
    "Python's generator (drawn from)": "random.random()",
    "default dtype (torch.float32 -> torch.float16)": "torch.set_default_dtype(torch.float16)",
    "gradient mode (True -> False)": "torch.set_grad_enabled(False)",
    "threads (1 -> 2)": "torch.set_num_threads(2)",
    "float32 matmul precision (highest -> high)": "torch.set_float32_matmul_precision('high')",
    "TF32 in cuDNN (False -> True)": "torch.backends.cudnn.allow_tf32 = True",
    "cuDNN determinism (False -> True)": "torch.backends.cudnn.deterministic = True",
    "cuDNN benchmarking (False -> True)": "torch.backends.cudnn.benchmark = True",
}


@pytest.mark.parametrize("change", POLLUTIONS)
def test_a_claim_that_changes_global_state_fails_and_the_next_sees_the_defaults(
    project: Project, change: str
) -> None:
    project.entry("a").entry("b").test(f"""
before = (torch.get_rng_state(), numpy.random.get_state()[2], random.getstate())

@claim("a")
def test_a(check):
    {POLLUTIONS[change]}
    check(1, exact(1))

@claim("b")
def test_b(check):
    check(
        [torch.get_default_dtype() is torch.float32, torch.is_grad_enabled(),
        torch.get_num_threads(),
         torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32,
         torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark],
        exact([True, True, 1, "highest", False, False, False]),
    )
    check(torch.equal(torch.get_rng_state(), before[0]), exact(True))
    check(numpy.random.get_state()[2] == before[1], exact(True))
    check(random.getstate() == before[2], exact(True))
""")
    result = project.run()
    result.assert_outcomes(failed=1, passed=1)
    assert f"claim a left global state changed: {change}" in output(result)


def test_state_is_restored_after_a_failure_too(project: Project) -> None:
    project.entry("a").test("""
def test_pollutes():
    torch.set_default_dtype(torch.float64)
    assert False

@claim("a")
def test_a(check):
    check(torch.get_default_dtype() is torch.float32, exact(True))
""")
    project.run().assert_outcomes(failed=1, passed=1)


def test_building_a_module_through_rng_leaves_the_global_generator_alone(project: Project) -> None:
    project.entry("a").test("""
@claim("a")
def test_a(check, rng):
    one, two = (rng.build(lambda: torch.nn.Linear(3, 3)).weight for _ in range(2))
    other = rng.build(lambda: torch.nn.Linear(3, 3), salt="other").weight
    check([torch.equal(one, two), torch.equal(one, other)], exact([True, False]))
    with recipe(0):
        first = torch.randn(2)
    check(first, exact(torch.randn(2, generator=torch.Generator().manual_seed(0)), "the same seed"))
""")
    project.run().assert_outcomes(passed=1)


def test_hypothesis_manages_torch_and_replays_it(project: Project) -> None:
    """Inside @given, torch.rand is the same for each replay of an example; nothing leaks out."""
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


def test_the_hypothesis_profile(project: Project) -> None:
    """No deadline, derandomised, only `too_slow` suppressed; with CI set as well."""
    project.entry("a").test("""
@claim("a")
def test_a(check):
    now = hypothesis.settings()
    check([now.deadline is None, now.derandomize], exact([True, True]))
    check([str(c) for c in now.suppress_health_check], exact(["HealthCheck.too_slow"]))
""")
    project.run().assert_outcomes(passed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CI", "true")
        project.run().assert_outcomes(passed=1)
