"""-m gpu without a GPU is an error; a CPU run touches no CUDA; both collect the same claims."""

from __future__ import annotations

import pytest
import torch

from claims.harness import machine
from conftest import Project, output

TESTS = """
@claim("on-gpu")
def test_on_gpu(check, cuda):
    check(cuda.type, exact("cuda"))

@claim("on-cpu")
def test_on_cpu(check):
    check(1, exact(1))
"""


@pytest.fixture
def both(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr(machine, "gpu_fault", lambda: "no GPU in this test")
    project.entry("on-gpu", needs=["gpu"]).entry("on-cpu")
    return project.test(TESTS)


@pytest.mark.parametrize(
    "expression", ["gpu", "gpu and statistical", "gpu or statistical", "(gpu)"]
)
def test_asking_for_the_gpu_without_one_is_an_error_that_says_why(
    both: Project, expression: str
) -> None:
    result = both.run("-m", expression)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"-m '{expression}' needs a CUDA GPU: no GPU in this test" in output(result)


@pytest.mark.parametrize(
    "expression",
    ["not gpu", "not (gpu or statistical)", "not gpu and not statistical", "(not gpu)"],
)
def test_leaving_the_gpu_out_runs_the_rest_and_reports_what_was_left(
    both: Project, expression: str
) -> None:
    result = both.run("-m", expression)
    result.assert_outcomes(passed=1, deselected=1)
    if expression == "not gpu":
        assert "1 x needs a CUDA GPU: run pytest -m gpu" in output(result)


def test_without_a_selection_the_gpu_claim_is_not_run_with_the_reason(both: Project) -> None:
    result = both.run()
    result.assert_outcomes(passed=1, skipped=1)
    assert "1 x needs a CUDA GPU: no GPU in this test" in output(result)


def test_collected_ids_do_not_depend_on_the_machine(
    both: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ids() -> list[str]:
        lines = both.run("--collect-only", "-q").outlines
        return sorted(line for line in lines if "::" in line)

    without = ids()
    monkeypatch.setattr(machine, "gpu_fault", lambda: "")
    assert (
        ids()
        == without
        == [
            "claims/test_02_average.py::test_on_cpu",
            "claims/test_02_average.py::test_on_gpu",
        ]
    )


def test_a_cpu_run_asks_nothing_of_cuda(both: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> str:
        raise AssertionError("a run without GPU claims asked for the GPU")

    monkeypatch.setattr(machine, "gpu_fault", asked)
    both.run("-m", "not gpu").assert_outcomes(passed=1, deselected=1)
    assert not torch.cuda.is_initialized()


@pytest.mark.parametrize(
    ("built", "available", "launch", "sentence"),
    [
        (False, False, None, "is built without CUDA"),
        (True, False, None, "finds no CUDA device"),
        (
            True,
            True,
            RuntimeError("no kernel image is available\nmore"),
            "first kernel: no kernel image",
        ),
        (True, True, None, ""),
    ],
)
def test_why_a_gpu_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch,
    built: bool,
    available: bool,
    launch: Exception | None,
    sentence: str,
) -> None:
    """On any machine: the answers of torch are replaced."""

    def ones(*size: int, device: str) -> torch.Tensor:
        if launch is not None:
            raise launch
        return torch.zeros(1)

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch, "ones", ones)
    fault = machine.gpu_fault.__wrapped__()
    assert sentence in fault if sentence else fault == ""
