"""The loss and its gradient in one pass over the logits."""

from __future__ import annotations

import torch
from torch import Tensor

# So many rows of 1,024 float32 logits stay in a core's cache between the four operations on them.
ROWS = 256


def loss_and_gradient(logits: Tensor, targets: Tensor) -> tuple[float, Tensor]:
    """The mean negative log-likelihood in nats, and its gradient by the logits.

    Args:
        logits: (..., V), float32 or bfloat16.
        targets: (...) int64.

    Returns:
        The loss, and what `logits.backward` is to be given: shape and dtype of the logits.
        Autograd's way keeps three copies of the logits in memory; this one keeps one, and computes
        softmax and logarithm in float32 whatever the logits are.
    """
    flat, wanted = logits.detach().flatten(0, -2), targets.flatten()
    n = len(wanted)
    rows = ROWS if logits.device.type == "cpu" else n
    gradient = torch.empty_like(flat)
    total = torch.zeros((), dtype=torch.float64, device=logits.device)
    for start in range(0, n, rows):
        part = slice(start, start + rows)
        index = wanted[part, None]
        logs = flat[part].float().log_softmax(-1)
        total -= logs.gather(1, index).sum()
        of_part = logs.exp_()
        of_part.scatter_add_(1, index, of_part.new_full((1, 1), -1.0).expand_as(index))
        gradient[part] = of_part.mul_(1 / n)
    return float(total) / n, gradient.view_as(logits)
