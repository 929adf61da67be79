"""What a package returns in another form than the contract's, found once before any claim runs.

A tuple with a loss or with weights, the logits of the last position alone, and attention that takes
four dimensions only, or that takes a mask (n, m) for one (batch, m), would each be met by dozens of
claims, in as many ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from claims.harness.implementation import Implementation
from claims.harness.isolation import GlobalState

B, T, D, V = 2, 3, 8, 16
W = TypeVar("W")
# What is called, and the shape or shapes that are wanted.
Probe = tuple[Callable[[Implementation], Any], W]


def findings(implementation: Implementation) -> Mapping[str, str]:
    """Name -> a sentence with the shapes given and wanted. What raises is left to the claims."""
    state = GlobalState()
    found = {}
    for name, result, wanted in _results(implementation, PROBES):
        if (shown := _shown(result)) != f"the shape {wanted}":
            more = _in_words(result, wanted)
            found[name] = f"{name} returns {shown} where the shape {wanted} is wanted{more}"
    for name, (count, words, least) in LEADING.items():
        if name in implementation.provided() and _takes_four_alone(implementation, name, count):
            found[name] = (
                f"{name} takes {words} of four dimensions only; the contract has any number of "
                f"leading dimensions, also none: {least}"
            )
    state.restore()
    return found


def without_weights(implementation: Implementation) -> Mapping[str, str]:
    """Name -> why what it returns with return_weights=True are no weights, in a sentence.

    A call that ignores the argument gives one tensor, whose parts would be taken for output and
    weights.
    """
    state = GlobalState()
    found = {}
    for name, result, wanted in _results(implementation, WITH_WEIGHTS):
        shown, parts = _shown(result), ", ".join(map(str, wanted))
        if shown not in (f"a tuple of {parts}", f"a list of {parts}"):
            found[name] = (
                f"{name} with return_weights=True returns {shown} "
                f"where output and weights of {' and '.join(map(str, wanted))} are wanted; "
                "where there are no weights, raise NotImplementedError"
            )
    state.restore()
    return found


def _results(
    implementation: Implementation, probes: Mapping[str, Probe[W]]
) -> Iterator[tuple[str, Any, W]]:
    """(name, what its probe returns, what is wanted) of the names that the package provides."""
    for name, (run, wanted) in probes.items():
        if name not in implementation.provided():
            continue
        try:
            result = run(implementation)
        except Exception:
            continue
        yield name, result, wanted


def _shown(result: Any) -> str:
    if isinstance(result, Tensor):
        return f"the shape {tuple(result.shape)}"
    if isinstance(result, tuple | list):
        parts = (_shown(each).removeprefix("the shape ") for each in result)
        return f"a {type(result).__name__} of {', '.join(parts)}"
    return type(result).__name__


def _in_words(result: Any, wanted: tuple[int, ...]) -> str:
    if isinstance(result, tuple | list) and result and isinstance(result[0], Tensor):
        return ": return its first part alone" if tuple(result[0].shape) == wanted else ""
    if isinstance(result, Tensor) and result.numel() * T == torch.Size(wanted).numel():
        return ": those of every position, not of the last alone"
    return ""


def _takes_four_alone(implementation: Implementation, name: str, count: int) -> bool:
    def runs(*shape: int) -> bool:
        try:
            getattr(implementation, name)(*torch.ones(count, *shape))
        except Exception:
            return False
        return True

    return runs(1, 1, T, D) and not runs(T, D)


def _on_x(name: str, *arguments: Any) -> Callable[[Implementation], Any]:
    return lambda package: getattr(package, name)(*arguments)(torch.ones(B, T, D))


def _language_model(package: Implementation) -> Any:
    model = package.LanguageModel(vocabulary=V, context=T, d_model=D, n_heads=2)
    return model(torch.zeros(B, T, dtype=torch.int64))


# Name -> how many tensors with leading dimensions it takes, which, and their shape without any.
LEADING = {"attention": (3, "q, k and v", "(n, d_k)"), "rotate": (1, "x", "(T, d_head)")}
PROBES: dict[str, Probe[tuple[int, ...]]] = {
    "causal_mask": (lambda package: package.causal_mask(T), (T, T)),
    "attention": (
        lambda package: package.attention(
            *torch.ones(3, B, T, D), torch.ones(T, T, dtype=torch.bool).tril()
        ),
        (B, T, D),
    ),
    "Head": (_on_x("Head", D, D, T), (B, T, D)),
    "MultiHeadAttention": (_on_x("MultiHeadAttention", D, 2), (B, T, D)),
    "FeedForward": (_on_x("FeedForward", D), (B, T, D)),
    "LanguageModel": (_language_model, (B, T, V)),
}
WITH_WEIGHTS: dict[str, Probe[tuple[tuple[int, ...], ...]]] = {
    "attention": (
        lambda package: package.attention(*torch.ones(3, B, 1, T, D), return_weights=True),
        ((B, 1, T, D), (B, 1, T, T)),
    ),
    "MultiHeadAttention": (
        lambda package: package.MultiHeadAttention(D, 2)(torch.ones(B, T, D), return_weights=True),
        ((B, T, D), (B, 2, T, T)),
    ),
}
