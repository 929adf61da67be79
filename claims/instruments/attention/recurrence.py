"""Recurrent cells, the gradient through them, and how many operations depend on one another.

The chapter mentions recurrence only on its first page, so a package under test has no cells. These
are plain ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import Node


@dataclass(frozen=True)
class Cell:
    """h_t = activation(W h_{t-1} + U x_t), with W (w, w) and U (w, d)."""

    W: Tensor
    U: Tensor
    activation: Callable[[Tensor], Tensor] = torch.tanh

    def states(self, h: Tensor, tokens: Iterable[Tensor]) -> list[Tensor]:
        """[h_0, h_1, ..., h_T], each (w,), from h_0 (w,) and T tokens, each (d,)."""
        states = [h]
        for x in tokens:
            states.append(self.activation(self.W @ states[-1] + self.U @ x))
        return states


def gradient_through_time(cell: Cell, h: Tensor, tokens: Tensor) -> Tensor:
    """dh_T / dh_0, (w, w), by reverse-mode differentiation. h is h_0 (w,), tokens (T, d)."""

    def last(first: Tensor) -> Tensor:
        return cell.states(first, tokens)[-1]

    jacobian: Tensor = torch.autograd.functional.jacobian(last, h)  # type: ignore[no-untyped-call]
    return jacobian


def operations_between(later: Tensor, earlier: Tensor) -> int:
    """The number of recorded operations on the shortest path from `earlier` to `later`.

    Raises ValueError where there is no path: `later` does not depend on `earlier`.
    """

    def is_earlier(node: Node) -> bool:
        # A leaf has no operation of its own; autograd ends its paths in a node that holds it.
        if earlier.grad_fn is None:
            return getattr(node, "variable", None) is earlier
        return node is earlier.grad_fn

    for distance, nodes in enumerate(_nodes_by_distance(later)):
        if any(map(is_earlier, nodes)):
            return distance
    raise ValueError("no recorded operation leads from the earlier tensor to the later one")


def operations_in_a_row(output: Tensor) -> int:
    """The number of recorded operations on the longest path to `output`, one after the other."""
    return sum(1 for _ in _nodes_by_distance(output)) - 1  # the last is a leaf


def _nodes_by_distance(output: Tensor) -> Iterator[set[Node]]:
    """The nodes that autograd recorded 0, 1, 2, ... operations before `output`.

    A node appears once for every length of a path from it to `output`.
    """
    nodes = {output.grad_fn} if output.grad_fn else set()
    while nodes:
        yield nodes
        nodes = {before for node in nodes for before, _ in node.next_functions if before}
