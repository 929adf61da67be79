"""What only a GPU can show of the harness: that its timer waits, and that memory is given back.

Without a usable GPU these tests are skipped, with the reason; `pytest -m gpu` selects them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from claims.instruments.cost.fake_gpu import CudaGpu, runs_out
from claims.instruments.cost.timing import HostStopwatch, measure, ratios, summary

pytestmark = pytest.mark.gpu

CAP = 8 * 2**30


def products(device: torch.device) -> dict[int, Callable[[], Tensor]]:
    """(2048, k) by (k, 2048), for k = 4096 and twice that."""
    drawn = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    return {
        k: partial(torch.matmul, drawn(2048, k).to(device), drawn(k, 2048).to(device))
        for k in (4096, 8192)
    }


def test_twice_the_work_takes_twice_the_time(cuda: torch.device) -> None:
    """A clock read without waiting for the GPU would show the same time for both products.

    Users reported times that were implausibly short, and alike, because nothing had waited.
    """
    measured = measure(products(cuda))
    assert 1.5 < summary(ratios(measured[8192], measured[4096])).median < 2.5


def test_events_and_a_clock_that_waits_agree(cuda: torch.device) -> None:
    """CUDA's events and the host's clock, read after waiting, time a loop of 20 ms alike.

    To a fifth: one wait and one launch take far less. Users reported short kernels that seemed
    twelve times slower, because the timer waited within its loop.
    """
    work = products(cuda)
    by_events, by_clock = measure(work), measure(work, stopwatch=HostStopwatch())
    assert 0.8 < summary(ratios(by_events[8192], by_clock[8192])).median < 1.2


def test_most_of_8_gib_can_be_had_whatever_ran_before(cuda: torch.device) -> None:
    """On a GPU limited to 8 GiB, 90 % of them in one piece.

    The claim that runs out of memory checks this while it runs. Here it has ended, and nothing that
    pytest keeps of it may hold any memory.
    """
    gpu = CudaGpu(cuda)
    with gpu.capped(CAP):
        assert not runs_out(partial(torch.empty, CAP * 9 // 10, dtype=torch.uint8, device=cuda))
