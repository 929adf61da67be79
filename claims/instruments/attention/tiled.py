"""Plain and tiled attention, and the error of any attention and its gradients against float64.

Tiled attention is FlashAttention's algorithm (Dao et al. 2022, algorithms 1 and 4) without its
kernels. The softmax is online, with a running maximum and sum per query, and the backward pass
computes the weights again. So neither pass holds more scores than one tile of queries by one tile
of keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
CPU = torch.device("cpu")


def plain_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d_k)) v by the formula; every query must have a key.

    Args:
        q, k: (..., n, d_k), (..., m, d_k).
        v: (..., m, d_v).
        mask: bool (n, m), True where a query may attend to a key.

    Returns:
        (..., n, d_v).
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(~mask, -math.inf).softmax(-1)
    return weights @ v


def tiled_attention(q: Tensor, k: Tensor, v: Tensor, tile: int) -> Tensor:
    """Causal attention, `tile` queries by `tile` keys at a time; differentiable once.

    Args:
        q, k, v: (..., n, d_k), (..., n, d_k), (..., n, d_v).
        tile: the number of queries and of keys in a tile; need not divide n.

    Returns:
        (..., n, d_v).
    """
    output: Tensor = _Tiled.apply(q, k, v, tile)  # type: ignore[no-untyped-call]
    return output


def forward_and_gradients(
    attend: Attention, q: Tensor, k: Tensor, v: Tensor, upstream: Tensor
) -> dict[str, Tensor]:
    """The output of `attend`, and the gradients of q, k and v for `upstream`, the output's.

    Returns:
        "output" (..., n, d_v), and "dq", "dk", "dv" of the shapes of q, k and v.
    """
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    output = attend(*leaves)
    gradients = torch.autograd.grad(output, leaves, upstream)
    return {"output": output.detach(), **dict(zip(("dq", "dk", "dv"), gradients, strict=True))}


def worst_error(value: Tensor, reference: Tensor) -> Tensor:
    """The largest |value - reference| of each sequence: (B, ...) -> (B,), in float64."""
    return (value.double() - reference.double()).abs().flatten(1).amax(1)


class PlainRule:
    """The rule that a causal computation may have twice the plain one's error, plus one ulp.

    An error is the largest of each sequence against float64 on the CPU. The plain computation and
    the judged one both run on `device` in `dtype`. The ulp is that of the sequence's largest value.
    """

    def __init__(
        self,
        draws: Sequence[Tensor],
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
    ) -> None:
        """`draws` are q (B, ..., n, d), k and v of its shape, and the gradient of the output."""
        inputs = [x.to(dtype) for x in draws]
        n = inputs[0].shape[-2]
        triangle = torch.ones(n, n, dtype=torch.bool).tril()

        def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return plain_attention(q, k, v, triangle.to(q.device))

        self._inputs = [x.to(device) for x in inputs]
        self._reference = forward_and_gradients(plain, *(x.double() for x in inputs))
        self._one_ulp = {
            part: torch.finfo(dtype).eps * exact.abs().flatten(1).amax(1)
            for part, exact in self._reference.items()
        }
        self._plain_error = self._errors(plain)

    def share(self, attend: Attention) -> dict[str, Tensor]:
        """The error of `attend`, from q, k and v to the output, over the allowed error.

        Returns:
            (B,) for each of "output", "dq", "dk" and "dv".
        """
        return {
            part: error / (2 * self._plain_error[part] + self._one_ulp[part])
            for part, error in self._errors(attend).items()
        }

    def plain_ulps(self) -> dict[str, Tensor]:
        """The plain computation's own error in ulps: (B,) for each part."""
        return {part: error / self._one_ulp[part] for part, error in self._plain_error.items()}

    def _errors(self, attend: Attention) -> dict[str, Tensor]:
        made = forward_and_gradients(attend, *self._inputs)
        return {part: worst_error(made[part].cpu(), self._reference[part]) for part in made}


def share_of_allowed_error(
    attend: Attention, draws: Sequence[Tensor], dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """The error of `attend` over the error that `PlainRule` allows, on the CPU."""
    return PlainRule(draws, dtype).share(attend)


def largest_tensor(run: Callable[[], object]) -> int:
    """The number of elements of the largest tensor that any operation inside `run()` returns."""
    seen = _Largest()  # type: ignore[no-untyped-call]
    with seen:
        run()
    return seen.numbers


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, tile: int) -> Tensor:
        output = q.new_empty(*q.shape[:-1], v.shape[-1])
        log_sums = q.new_empty(*q.shape[:-1], 1)  # log sum_j exp(score_ij), for backward
        for rows in _tiles(q.shape[-2], tile):
            highest = q.new_full((*q.shape[:-2], _size(rows), 1), -math.inf)
            total, mixed = torch.zeros_like(highest), torch.zeros_like(output[..., rows, :])
            for columns in _tiles(rows.stop, tile):
                scores = _scores(q, k, rows, columns)
                new_highest = torch.maximum(highest, scores.amax(-1, keepdim=True))
                weights = (scores - new_highest).exp()
                # The sums so far are relative to the old maximum.
                shrink = (highest - new_highest).exp()
                total = total * shrink + weights.sum(-1, keepdim=True)
                mixed = mixed * shrink + weights @ v[..., columns, :]
                highest = new_highest
            output[..., rows, :] = mixed / total
            log_sums[..., rows, :] = highest + total.log()
        ctx.save_for_backward(q, k, v, output, log_sums)
        ctx.tile = tile
        return output

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, output, log_sums = ctx.saved_tensors
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        # sum_j w_ij dw_ij, which the softmax's derivative subtracts from every dw_ij of its row.
        row_sums = (upstream * output).sum(-1, keepdim=True)
        for rows in _tiles(q.shape[-2], ctx.tile):
            up = upstream[..., rows, :]
            for columns in _tiles(rows.stop, ctx.tile):
                weights = (_scores(q, k, rows, columns) - log_sums[..., rows, :]).exp()
                d_weights = up @ v[..., columns, :].transpose(-2, -1)
                d_scores = weights * (d_weights - row_sums[..., rows, :]) / math.sqrt(q.shape[-1])
                dq[..., rows, :] += d_scores @ k[..., columns, :]
                dk[..., columns, :] += d_scores.transpose(-2, -1) @ q[..., rows, :]
                dv[..., columns, :] += weights.transpose(-2, -1) @ up
        return dq, dk, dv, None


def _tiles(n: int, tile: int) -> Iterator[slice]:
    """0..n in slices of `tile`, the last one shorter where it does not divide n."""
    return (slice(start, min(start + tile, n)) for start in range(0, n, tile))


def _size(part: slice) -> int:
    return int(part.stop - part.start)


def _scores(q: Tensor, k: Tensor, rows: slice, columns: slice) -> Tensor:
    """One tile of scores, -inf where the key comes after the query."""
    scores = q[..., rows, :] @ k[..., columns, :].transpose(-2, -1) / math.sqrt(q.shape[-1])
    query = torch.arange(rows.start, rows.stop, device=q.device)
    key = torch.arange(columns.start, columns.stop, device=q.device)
    return scores.masked_fill(key > query[:, None], -math.inf)


class _Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    numbers: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor):
                self.numbers = max(self.numbers, value.numel())
        return result
