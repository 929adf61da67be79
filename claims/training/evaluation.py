"""Perplexity of a text: the same whatever the batch size and the order of windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from claims.instruments.text.tokens import split as split_tokens
from claims.training.spec import Evaluation, Score

TOKENS_AT_ONCE = 8192
# Raise it when an evaluation comes to measure something else.
EVALUATION_FORMAT = 1


def evaluate(model: Callable[[Tensor], Tensor], ids: Tensor, evaluation: Evaluation) -> Score:
    """Score the model on its split of the text `ids` (N,), in float32.

    Windows of equal length are run in batches; the last, shorter one is run by itself. Every token
    but the first is scored exactly once when the windows do not overlap.

    Raises:
        ValueError: the split is too short for one window.
    """
    return score(model, _split(ids, evaluation), evaluation.length, evaluation.stride)


def demand_fit(ids: Tensor, evaluation: Evaluation) -> None:
    """Raise ValueError when the split of the text is too short for one window."""
    _demand_window(_split(ids, evaluation), evaluation.length)


def _split(ids: Tensor, evaluation: Evaluation) -> Tensor:
    training, held_out = split_tokens(ids)
    return training if evaluation.split == "training" else held_out


def _demand_window(text: Tensor, length: int) -> None:
    if len(text) <= length:
        raise ValueError(f"{len(text)} tokens hold no window of {length} and the next one")


@torch.no_grad()
def score(
    model: Callable[[Tensor], Tensor], text: Tensor, length: int, stride: int | None = None
) -> Score:
    """The negative log-likelihoods of `text` (N,), in windows of `length`, one every `stride`."""
    stride = length if stride is None else stride
    if not 1 <= stride <= length:
        raise ValueError(f"the stride must lie between 1 and the length {length}, got {stride}")
    _demand_window(text, length)
    nll, tokens = 0.0, 0
    for inputs, targets in _batches(text, length, stride):
        logits = model(inputs)[:, -stride:]
        wanted = targets[:, -stride:]
        each = F.cross_entropy(
            logits.flatten(0, 1).float(), wanted.flatten(), reduction="none"
        )
        # In float64, so that the sum does not depend on how the windows are batched.
        nll += float(each.double().sum())
        tokens += wanted.numel()
    return Score(nll, tokens)


def _batches(text: Tensor, length: int, stride: int) -> Iterator[tuple[Tensor, Tensor]]:
    windows = text.unfold(0, length + 1, stride)                         # (W, length + 1)
    at_once = max(1, TOKENS_AT_ONCE // length)
    for part in torch.split(windows, at_once):
        yield part[:, :-1], part[:, 1:]
    rest = text[len(windows) * stride :] if stride == length else text[:0]
    if len(rest) > 1:
        yield rest[None, :-1], rest[None, 1:]
