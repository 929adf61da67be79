"""The chapter's first language model, complete: a table of embeddings, a mean, one linear layer.

A claim counts the statements of this file, so everything that the model needs stands in it, and no
part is borrowed from the package under test.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class AverageLanguageModel(nn.Module):
    """tokens (B, T) int64 -> logits (B, T, V): row t scores what follows, from the mean of 0..t."""

    def __init__(self, vocabulary: int, d_model: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, d_model)
        self.head = nn.Linear(d_model, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        seen = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)[:, None]      # (T, 1)
        logits: Tensor = self.head(self.token(tokens).cumsum(1) / seen)
        return logits

    def loss(self, tokens: Tensor) -> Tensor:
        """The mean negative log-likelihood, in nats, of every token that follows another."""
        return F.cross_entropy(self(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
