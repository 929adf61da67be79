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
