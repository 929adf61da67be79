"""Two modules whose output shows what dropout 1/2 dropped: a number is 0 or doubled, exactly."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Weights(nn.Module):
    """The weights of an unmasked layer of two heads: (B, T, 16) -> (B, 2, T, T)."""

    def __init__(self, implementation: Any) -> None:
        super().__init__()
        self.layer = implementation.MultiHeadAttention(16, 2, causal=False, dropout=0.5)

    def forward(self, x: Tensor) -> Tensor:
        weights: Tensor = self.layer(x, return_weights=True)[1].detach()
        return weights


class EmbeddingSum(nn.Module):
    """The sum of embeddings, as the logits of a language model: (B, T) -> (B, T, 32).

    Attention, MLP and LayerNorm are off, and the output head is the identity.
    """

    def __init__(self, implementation: Any) -> None:
        super().__init__()
        self.model = implementation.LanguageModel(
            vocabulary=32, d_model=32, mixer="none", feed_forward=False, norm="none", dropout=0.5
        )
        implementation.set_weights(self.model, head=torch.eye(32))

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens).detach()
        return logits
