"""Who influences whom: how the outputs of a sequence map depend on its input positions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

SequenceMap = Callable[[Tensor], Tensor]


def influence(f: SequenceMap, x: Tensor) -> Tensor:
    """How strongly each output position depends on each input position.

    Args:
        f: maps (1, T, d) to (1, T, d_out), differentiably.
        x: (1, T, d).

    Returns:
        (T, T); entry [t, i] is max |d f(x)_t / d x_i|, by reverse-mode differentiation. Exactly
        zero where no path leads from x_i to output t.
    """
    # (1, T, d_out, 1, T, d)
    jacobian: Tensor = torch.autograd.functional.jacobian(f, x)  # type: ignore[no-untyped-call]
    return jacobian[0, :, :, 0].abs().amax(dim=(1, 3))


def with_other_rows(x: Tensor, start: int, other: Tensor) -> Tensor:
    """x (..., T, d) with the rows from `start` on replaced by those of `other`, of x's shape."""
    return torch.cat([x[..., :start, :], other[..., start:, :]], dim=-2)


def before_and_after_permutation(
    f: SequenceMap, x: Tensor, permutation: Tensor
) -> tuple[Tensor, Tensor]:
    """f(P x) and P f(x), equal for an equivariant f. x is (..., T, d), `permutation` (T,)."""
    return f(x[..., permutation, :]), f(x)[..., permutation, :]
