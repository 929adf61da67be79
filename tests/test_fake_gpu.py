"""Counting memory on a GPU: what needs no gpu."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

import transformer
from claims import test_10_quadratic_cost as section
from claims.harness import Check, Refuted
from claims.harness.ledger import load_ledger
from claims.harness.paths import LEDGER
from claims.instruments.cost.attention_layer import layer_footprint
from claims.instruments.cost.fake_gpu import Bytes, CudaGpu, count, fake_gpu, runs_out
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
def test_cap_is_a_share_of_the_card_and_is_lifted_after_an_error(
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


def test_counters_are_read_when_the_card_has_finished(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_pretended_card_counts_a_sum_worked_out_by_hand() -> None:
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


def test_a_claim_that_follows_can_have_most_of_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one gpu, one claim after the other; not where the first held on to what it took."""

    def run(claim: str, body: Callable[[Check], None]) -> None:
        body(Check(load_ledger(LEDGER)[claim], ""))

    def one_after_the_other() -> None:
        with fake_gpu(WORKSPACE) as gpu:
            monkeypatch.setattr(section, "CudaGpu", lambda device: gpu)
            out = section.test_16_384_tokens_run_out_of_memory_on_8_gb
            most = section.test_most_of_8_gib_can_be_had_after_running_out
            run("oom-at-16384", lambda check: out(transformer, check, gpu.device))  # type: ignore[arg-type]
            kept.append(torch.empty(size, dtype=torch.uint8, device=gpu.device))
            run("most-of-the-cap-on-the-gpu", lambda check: most(check, gpu.device))

    kept: list[torch.Tensor] = []
    size = 0
    one_after_the_other()
    size = GIB
    with pytest.raises(Refuted, match="90 % of them"):
        one_after_the_other()


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="no_grad, forward, training, got 'eval'"):
        layer_footprint(lambda: torch.nn.Identity(), 2, 2, mode="eval")
