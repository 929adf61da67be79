"""Two modules whose output shows what dropout 1/2 dropped: a number is 0 or doubled, exactly."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

T = 16  # tokens


class Weights(nn.Module):
    """The weights with which an unmasked layer of two heads mixes 16 unit vectors.

    (B, 16, 32) -> (B, 2, 16, 16). The values are the tokens, for either head, and W_o is the
    identity, so that the output is the weights: those that a layer returns may be from before.
    """

    tokens = torch.eye(T, 2 * T)[None]  # (1, 16, 32)

    def __init__(self, implementation: Any) -> None:
        super().__init__()
        self.layer = implementation.MultiHeadAttention(2 * T, 2, causal=False, dropout=0.5)
        values = torch.eye(T, 2 * T).repeat(2, 1)
        implementation.set_weights(self.layer, v=values, o=torch.eye(2 * T))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x).detach()
        return output.view(*output.shape[:-1], 2, T).transpose(1, 2)


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
