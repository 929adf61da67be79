"""Random numbers on a GPU: a seed must not give other numbers there than on a CPU."""

from __future__ import annotations

import torch

from claims.harness import Check, Draws, claim, exact


@claim("draws-arrive-on-the-gpu")
def test_draws_arrive_on_the_gpu_bit_for_bit(check: Check, rng: Draws, cuda: torch.device) -> None:
    """On a GPU a claim sees the random numbers that it sees on a CPU, bit for bit.

    They are drawn by a CPU generator and copied to the GPU; casts there are those of the CPU.
    """
    for dtype in (torch.float32, torch.float64):
        drawn = torch.randn(1024, generator=rng.generator("x"), dtype=dtype)
        arrived = rng.normal(1024, salt="x", dtype=dtype).to(cuda).cpu()
        check(arrived, exact(drawn, "a copy rounds nothing"), device=cuda.type)
    drawn = torch.randn(1024, generator=rng.generator("x")).half()
    cast = rng.normal(1024, salt="x").to(cuda).half().cpu()
    check(cast, exact(drawn, "float32 is cast to the nearest everywhere"), device=cuda.type)
