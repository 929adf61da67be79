"""The uniform causal average, three times: as a loop, as a matrix, as a softmax.

The chapter starts here. A running mean over a growing prefix looks like a loop, is one matrix
product, and is exactly a softmax whose allowed scores are all the same number. What is left to
find after this file is better numbers than zero for the scores.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .size import check_positive


def average_loop(x: Tensor) -> Tensor:
    """(..., T, d) -> (..., T, d): row t is the mean of rows 0..t, one row at a time."""
    T = _rows(x)
    return torch.stack([x[..., : t + 1, :].mean(-2) for t in range(T)], dim=-2)


def averaging_matrix(
    T: int, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
) -> Tensor:
    """(T, T): row t holds 1/(t+1) on columns 0..t and zero after them; every row sums to one."""
    check_positive(T=T)
    A = torch.tril(torch.ones(T, T, dtype=dtype, device=device))
    return A / A.sum(1, keepdim=True)


def average_by_matrix(x: Tensor) -> Tensor:
    """(..., T, d) -> (..., T, d): the loop's result as one matrix product."""
    return averaging_matrix(_rows(x), x.dtype, x.device) @ x             # (T, T) @ (..., T, d)


def uniform_scores(
    T: int, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
) -> Tensor:
    """(T, T): zero on and below the diagonal, -inf above; its softmax is the averaging matrix."""
    check_positive(T=T)
    future = torch.tril(torch.ones(T, T, dtype=dtype, device=device)) == 0
    return torch.zeros(T, T, dtype=dtype, device=device).masked_fill(future, float("-inf"))


def average_by_softmax(x: Tensor) -> Tensor:
    """(..., T, d) -> (..., T, d): the loop's result as a softmax over equal scores."""
    scores = uniform_scores(_rows(x), x.dtype, x.device)
    return F.softmax(scores, dim=-1) @ x                                 # (T, T) @ (..., T, d)


class Average(nn.Module):
    """The average as a layer without parameters, to stand where a head will stand."""

    def forward(self, x: Tensor) -> Tensor:
        return average_by_matrix(x)


def _rows(x: Tensor) -> int:
    """The number of rows T of x, once x is known to be something that can be averaged."""
    if x.dim() < 2 or x.shape[-2] == 0:
        raise ValueError(f"x must be (..., T, d) with T of at least 1, got {tuple(x.shape)}")
    if not x.is_floating_point():
        raise ValueError(f"x must have a floating dtype to be averaged, got {x.dtype}")
    return x.shape[-2]
