"""The size of the gradient in the first and in the last block of a stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from claims.harness.implementation import Implementation
from claims.harness.layout import Layout
from claims.harness.seeds import recipe


@dataclass(frozen=True)
class BlockGradient:
    """L2 norms of the gradient of the mean cross-entropy (nats per token) in one block."""

    attention_output: float  # the weight of W_o alone
    network_output: float  # the weight of the feed-forward network's second layer alone
    all_parameters: float  # every parameter of the block as one vector


# In the first block and in the last.
Ends = tuple[BlockGradient, BlockGradient]


def of_twelve_blocks(implementation: Implementation, tokens: Tensor, norm: str, seed: int) -> Ends:
    """Before the first step, on 6 windows of 128 tokens: the chapter's widths, PyTorch's initial
    values.

    One seed gives both norms the same parameters and the same windows. The fused kernel computes
    the same and takes a quarter less time.
    """
    with recipe(seed):
        windows = windows_of(tokens, 128, 6, torch.default_generator)
        model = implementation.LanguageModel(n_blocks=12, norm=norm, fused=True)
    return end_gradients(implementation, model, windows)


def of_last_block(implementation: Implementation, norm: str, depth: int, seed: int) -> float:
    """The gradient's norm in the network of the last block, with Xavier's initial values.

    Before the first step, on 8 windows of 32 random tokens; width 64.
    """
    with recipe(seed):
        tokens = torch.randint(256, (8, 33))
        model = implementation.LanguageModel(
            vocabulary=256, context=32, d_model=64, n_blocks=depth, norm=norm, fused=True
        )
        blocks = implementation.part(model, "blocks")
        for matrix in (p for p in blocks.parameters() if p.dim() == 2):
            nn.init.xavier_uniform_(matrix)
    return end_gradients(implementation, model, tokens)[1].network_output


def end_gradients(layout: Layout, model: Any, windows: Tensor) -> Ends:
    """The gradients in the first and in the last block, for next-token prediction on one batch.

    Args:
        layout: where the model has its blocks and their weights.
        model: a language model, tokens (B, T) -> logits (B, T, V). Each of its blocks has several
            heads, and a feed-forward network.
        windows: (B, T + 1) token ids; each is predicted from those before it in its row.
    """
    logits = model(windows[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    blocks = layout.part(model, "blocks")
    first, last = blocks[0], blocks[-1]
    # The weight gradients of the blocks in between are not computed.
    chosen = list({id(p): p for block in (first, last) for p in block.parameters()}.values())
    gradients = torch.autograd.grad(loss, chosen)
    by_parameter = dict(zip(chosen, gradients, strict=True))
    return _of_block(layout, first, by_parameter), _of_block(layout, last, by_parameter)


def windows_of(tokens: Tensor, length: int, count: int, generator: torch.Generator) -> Tensor:
    """(count, length + 1) windows of `tokens` (N,), their starts drawn uniformly."""
    starts = torch.randint(0, len(tokens) - length, (count,), generator=generator)
    return torch.stack([tokens[start : start + length + 1] for start in starts.tolist()])


def _of_block(layout: Layout, block: Any, gradients: dict[Any, Tensor]) -> BlockGradient:
    mixer, network = (layout.part(block, role) for role in ("mixer", "ff"))
    return BlockGradient(
        attention_output=_norm([layout.gradient(mixer, "o", gradients)]),
        network_output=_norm([layout.gradient(network, "contract", gradients)]),
        all_parameters=_norm([gradients[p] for p in block.parameters()]),
    )


def _norm(parts: Sequence[Tensor]) -> float:
    return float(torch.cat([part.flatten() for part in parts]).norm())
