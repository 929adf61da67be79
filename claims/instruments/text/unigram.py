"""How well tokens are predicted by their frequencies alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from claims.instruments.text.tokens import split


def unigram_perplexity(ids: Tensor, vocabulary: int = 1024) -> float:
    """The held-out perplexity of the training split's frequencies, each count one higher.

    Add-one smoothing (Laplace); the first held-out token is not scored, as it is not for a model.
    """
    training, held_out = split(ids)
    counts = torch.bincount(training, minlength=vocabulary).double() + 1
    logs = (counts / counts.sum()).log()
    return math.exp(-float(logs[held_out[1:]].mean()))
