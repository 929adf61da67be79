"""Queries, keys and values of a layer, from its weights, whatever it calls its sub-modules."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from claims.harness.layout import Layout


def projected(layout: Layout, layer: nn.Module, role: str, x: Tensor) -> Tensor:
    """x (..., d) through the matrix of a role ("q", "k", "v" or "o"), with its bias if it has one.

    Without gradient.
    """
    weight, bias = layout.weight(layer, role), layout.bias(layer, role)
    return F.linear(x.detach(), weight, bias)
