"""How many parameters built models and their parts have, counted on the meta device."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from claims.harness.implementation import Implementation


def parameters_of(implementation: Implementation, **settings: Any) -> int:
    """Those of the language model with these settings."""
    with torch.device("meta"):
        return int(implementation.count_parameters(implementation.LanguageModel(**settings)))


def parts_of_block(implementation: Implementation, d: int) -> dict[str, int]:
    """Those of a block of width d and its parts, with the LayerNorms of a model of one block."""
    count = implementation.count_parameters
    with torch.device("meta"):
        block = implementation.Block(d, implementation.MultiHeadAttention(d, 4))
        mixer, ff = (implementation.part(block, role) for role in ("mixer", "ff"))
    attention, network, w_o = count(mixer), count(ff), count(implementation.part(mixer, "o"))
    norms = count(block) - attention - network
    return {
        "W_q, W_k and W_v": attention - w_o,
        "W_o": w_o,
        "MLP": network,
        "two LayerNorms": norms,
        "block": count(block),
        "three LayerNorms": norms * 3 // 2,
    }


def parts_of_gpt2(implementation: Implementation) -> dict[str, int]:
    """Those of GPT-2 small, part by part, as l.193 to l.198 list them."""
    with torch.device("meta"):
        model = implementation.gpt2_small()
    part, blocks = partial(implementation.part, model), implementation.part(model, "blocks")
    parts = {
        "token embeddings": part("token"),
        "position embeddings": part("position"),
        "one block": blocks[0],
        "12 blocks": blocks,
        "final LayerNorm": part("norm"),
        "total": model,
    }
    return {name: implementation.count_parameters(part) for name, part in parts.items()}
