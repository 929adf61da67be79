"""Counting memory on a GPU, and the claims that do, without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import transformer
from claims import test_10_quadratic_cost as section
from claims.beyond import test_memory_of_attention as memory
from claims.beyond import test_random_numbers_on_a_gpu as random_numbers
from claims.harness import Check, Draws, Refuted
from claims.harness.ledger import load_ledger
from claims.harness.paths import LEDGER
from claims.instruments.cost.attention_layer import layer_footprint
from claims.instruments.cost.fake_gpu import Bytes, CudaGpu, Gpu, count, fake_gpu, runs_out
from claims.instruments.cost.memory.allocator import WORKSPACE

CUDA = torch.device("cuda")
GIB = 2**30


class Driver:
    """Stands for torch.cuda: keeps the calls, and gives counters."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, total: int) -> None:
        self.shares: list[float] = []
        self.calls: list[str] = []
        self.counters: dict[str, int] = {}
        replaced = {
            "synchronize": lambda _: self.calls.append("synchronize"),
            "empty_cache": lambda: self.calls.append("empty_cache"),
            "reset_peak_memory_stats": lambda _: self.calls.append("reset"),
            "set_per_process_memory_fraction": lambda share, _: self.shares.append(share),
            "get_device_properties": lambda _: SimpleNamespace(total_memory=total),
            "memory_stats": lambda _: self.counters,
        }
        for name, function in replaced.items():
            monkeypatch.setattr(torch.cuda, name, function)


@pytest.mark.parametrize(("total", "share"), [(80 * GIB, 0.1), (8 * GIB, 1.0), (6 * GIB, 1.0)])
def test_cap_is_a_share_of_the_gpu_and_is_lifted_after_an_error(
    monkeypatch: pytest.MonkeyPatch, total: int, share: float
) -> None:
    driver = Driver(monkeypatch, total)

    def fails() -> None:
        with CudaGpu(CUDA).capped(8 * GIB):
            assert driver.shares == [share]
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert driver.shares == [share, 1.0]
    assert driver.calls == ["empty_cache", "empty_cache"]


def test_counters_are_read_when_the_gpu_has_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, gpu = Driver(monkeypatch, 8 * GIB), CudaGpu(CUDA)
    assert gpu.now() == Bytes(0, 0)  # there are none before the first allocation
    driver.counters = {
        "requested_bytes.all.current": 1,
        "allocated_bytes.all.current": 512,
        "requested_bytes.all.peak": 1000,
        "allocated_bytes.all.peak": 1024,
    }
    assert (gpu.now(), gpu.most()) == (Bytes(1, 512), Bytes(1000, 1024))
    gpu.forget()
    assert driver.calls == ["synchronize"] * 4 + ["reset"]
    documented = torch.cuda.memory.memory_stats.__doc__ or ""
    assert "``requested_bytes" in documented.replace('"', "")
    assert "``allocated_bytes" in documented.replace('"', "")


def test_only_lack_of_memory_counts_as_lack_of_memory() -> None:
    def fails(error: Exception) -> object:
        raise error

    assert runs_out(lambda: fails(torch.OutOfMemoryError()))
    assert not runs_out(lambda: None)
    with pytest.raises(RuntimeError, match="another"):
        runs_out(lambda: fails(RuntimeError("another")))


def test_fake_gpu_counts_a_sum_worked_out_by_hand() -> None:
    with fake_gpu(workspace=5000) as gpu:

        def place() -> object:
            x = torch.empty(10, 10, device=gpu.device)  # 400 bytes
            return lambda: (x @ x).relu().relu()  # two more at a time

        counted = count(place, gpu)  # type: ignore[arg-type]
        assert counted.workspace == 5000
        assert counted.peaks == (Bytes(400 * 3 + 5000, 512 * 3 + 5120),) * 3
        # A workspace that is there already is in neither sum.
        again = count(place, gpu)  # type: ignore[arg-type]
        assert (again.workspace, again.peaks[0]) == (0, Bytes(1200, 1536))
        assert gpu.now() == Bytes(5000, 5120)
        with gpu.capped(5120 + 1024):
            assert not runs_out(lambda: torch.empty(1024, dtype=torch.uint8, device="meta"))
            assert runs_out(lambda: torch.empty(1025, dtype=torch.uint8, device="meta"))
        assert not runs_out(lambda: torch.empty(1025, dtype=torch.uint8, device="meta"))


# ---- the GPU claims, without one -----------------------------------------------------------------


def run_out_of_memory(monkeypatch: pytest.MonkeyPatch, gpu: Gpu) -> None:
    """The body of oom-at-16384."""
    monkeypatch.setattr(section, "CudaGpu", lambda device: gpu)
    body: Any = section.test_16_384_tokens_run_out_of_memory_on_8_gb
    body(transformer, Check(load_ledger(LEDGER)["oom-at-16384"], ""), gpu.device)


def test_16_384_tokens_run_out_of_memory_and_give_all_of_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with fake_gpu(WORKSPACE) as gpu:
        run_out_of_memory(monkeypatch, gpu)
        assert gpu.now() == Bytes(WORKSPACE, WORKSPACE)


def test_memory_that_is_not_free_afterwards_refutes(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_gpu(WORKSPACE) as gpu:
        kept = torch.empty(GIB, dtype=torch.uint8, device=gpu.device)
        with pytest.raises(Refuted, match="90 % of 8 GiB"):
            run_out_of_memory(monkeypatch, gpu)
        assert kept.nbytes == GIB


def test_the_predicted_peaks_are_counted_with_the_workspace_that_is_seen() -> None:
    """That of a Hopper GPU, which is not the one assumed by default."""
    with fake_gpu(32 * 2**20) as gpu:
        rows = memory.counted_peaks(transformer, gpu)  # type: ignore[arg-type]
    check = Check(load_ledger(LEDGER)["peaks-on-the-gpu"], "")
    memory.check_peaks(transformer, check, rows, "meta")  # type: ignore[arg-type]
    assert [counted.workspace for counted in rows.values()] == [32 * 2**20, 0, 0, 0, 0, 0, 0]


def test_the_fused_layer_takes_memory_linear_in_n(monkeypatch: pytest.MonkeyPatch) -> None:
    body: Any = memory.test_the_fused_layer_takes_memory_linear_in_n_on_a_gpu
    with fake_gpu(WORKSPACE) as gpu:
        monkeypatch.setattr(memory, "CudaGpu", lambda device: gpu)
        check = Check(load_ledger(LEDGER)["fused-memory-linear-on-the-gpu"], "")
        body(transformer, check, gpu.device)
    assert [record.measured for record in check.records] == [6.0]


def test_draws_are_those_of_a_cpu_generator() -> None:
    """Without the way to the GPU and back."""
    check = Check(load_ledger(LEDGER)["draws-arrive-on-the-gpu"], "")
    body: Any = random_numbers.test_draws_arrive_on_the_gpu_bit_for_bit
    body(check, Draws(17, "draws-arrive-on-the-gpu"), torch.device("cpu"))
    assert len(check.records) == 3


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="no_grad, forward, training, got 'eval'"):
        layer_footprint(lambda: torch.nn.Identity(), 2, 2, mode="eval")
