"""The memory that a layer of attention takes, as its sequence grows.

The caller makes the layer. The instrument `memory` predicts its bytes on the meta device, where no
length is too long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from claims.instruments.cost.fake_gpu import Gpu
from claims.instruments.cost.memory import Allocation, Footprint, measure
from claims.instruments.cost.memory.allocator import GRANULE, WORKSPACE

MODES = ("no_grad", "forward", "training")


def layer_footprint(
    make: Callable[[], nn.Module],
    n: int,
    d: int,
    *,
    mode: str = "no_grad",
    workspace: int = WORKSPACE,
    granule: int = GRANULE,
) -> Footprint:
    """The footprint of one pass of the layer that `make` makes, for x (1, n, d) in float32.

    Args:
        mode: "no_grad"; "forward", which records for a backward pass; or "training", which makes
            the backward pass too, from a gradient of the output that exists before.
        workspace: cuBLAS's, in bytes.
        granule: bytes to round blocks up to; 1 counts the bytes asked for.

    Raises ValueError for another mode.
    """
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got '{mode}'")
    with torch.device("meta"):
        layer, x = make(), torch.empty(1, n, d)
        upstream = torch.empty(1, n, d)
    named: dict[str, nn.Module | Tensor] = {"layer": layer, "x": x}
    if mode == "training":
        named["upstream"] = upstream

    def one_pass() -> None:
        with torch.set_grad_enabled(mode != "no_grad"):
            out = layer(x)
        if mode == "training":
            out.backward(upstream)

    return measure(one_pass, named=named, workspace=workspace, granule=granule)


def pass_on(gpu: Gpu, make: Callable[[], nn.Module], n: int, d: int) -> Callable[[], object]:
    """A pass without gradients of the layer, for x (1, n, d), both on the GPU.

    x is zero and the weights are uninitialised: no value changes the bytes.
    """
    with torch.device("meta"):
        layer = make()
    layer.to_empty(device=gpu.device)
    x = torch.zeros(1, n, d, device=gpu.device)

    def one_pass() -> None:
        with torch.no_grad():
            layer(x)

    return one_pass


def of_pairs(allocations: Iterable[Allocation], n: int) -> list[Allocation]:
    """Those with an entry for each pair of n tokens: (..., n, n)."""
    return [made for made in allocations if made.shape[-2:] == (n, n)]


class AllAtOnce(nn.Module):
    """A head that is given all h heads at once, as (B, h, n, d_head), and W_o after it.

    The head, of width d / h, has submodules q, k and v, (B, n, d) -> (B, n, d_head), and computes
    with any leading dimensions. x (B, n, d) -> (B, n, d).
    """

    def __init__(self, head: nn.Module, d: int, h: int) -> None:
        super().__init__()
        self.head = head
        for name in ("q", "k", "v"):
            setattr(head, name, _Split(d, h))
        self.o = nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.o(self.head(x).transpose(1, 2).flatten(-2))
        return out


class OneByOne(nn.Module):
    """Heads that run one after the other, side by side in the width, and W_o after them.

    Each head maps (B, n, d) -> (B, n, d / h). x (B, n, d) -> (B, n, d).
    """

    def __init__(self, heads: Iterable[nn.Module], d: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)
        self.o = nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.o(torch.cat([head(x) for head in self.heads], dim=-1))
        return out


class _Split(nn.Module):
    """A projection without bias, split into heads: (B, n, d) -> (B, h, n, d / h)."""

    def __init__(self, d: int, h: int) -> None:
        super().__init__()
        self.all = nn.Linear(d, d, bias=False)
        self.h = h

    def forward(self, x: Tensor) -> Tensor:
        heads: Tensor = self.all(x).unflatten(-1, (self.h, -1)).transpose(1, 2)
        return heads
