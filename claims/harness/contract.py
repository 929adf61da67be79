"""What a package under test may offer: names, settings, sub-modules, weights, and what it declares.

All of it is optional. Checks, the template (`python -m claims.new`) and the documentation are made
from here. `transformer/`, whose docstrings give the details, is the reference.

Shapes: B batch, T tokens (n queries, m keys), d = d_model, h heads, V vocabulary, `...` any leading
dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GROUPS = ("average", "attention", "positions", "block", "model", "tokenizer", "size")


@dataclass(frozen=True)
class Name:
    """One name of the contract.

    group      what `--only` chooses it by
    says       parameters, shapes and result in one line
    weights    of a module: role -> shape, as nn.Linear stores it (outputs, inputs)
    parts      of a module: role -> what the sub-module is
    """

    group: str
    says: str
    weights: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)


QKV = {role: "(heads * d_head, d_model)" for role in ("q", "k", "v")}

CONTRACT: dict[str, Name] = {
    "average_loop": Name(
        "average", "(x (..., T, d)) -> (..., T, d): causal running mean, as a loop"
    ),
    "averaging_matrix": Name(
        "average", "(T, dtype, device) -> (T, T): row t holds 1/(t+1) up to the diagonal"
    ),
    "average_by_matrix": Name(
        "average", "(x (..., T, d)) -> (..., T, d): the same mean as one product"
    ),
    "uniform_scores": Name(
        "average",
        "(T, dtype, device) -> (T, T): zero on and below the diagonal, -inf above",
    ),
    "average_by_softmax": Name(
        "average", "(x (..., T, d)) -> (..., T, d): the same mean through a softmax"
    ),
    "causal_mask": Name(
        "attention",
        "(n, m=n, device) -> bool (n, m), True = may attend, lower-right aligned",
    ),
    "attention": Name(
        "attention",
        "(q (..., n, d_k), k (..., m, d_k), v (..., m, d_v), mask, *, scale, dropout, fused,"
        " return_weights) -> (..., n, d_v) [, weights (..., n, m)]",
    ),
    "Head": Name(
        "attention",
        "(d_model, d_head, block): Module, (B, T, d) -> (B, T, d_head), causal, no W_o",
        weights={role: "(d_head, d_model)" for role in ("q", "k", "v")},
    ),
    "MultiHeadAttention": Name(
        "attention",
        "(d_model, n_heads, *, d_head, qkv_bias, causal, scaled, positions, dropout, fused):"
        " Module, (x (B, n, d), context (B, m, d), mask, return_weights) -> (B, n, d)",
        weights=QKV | {"o": "(d_model, heads * d_head)"},
        parts={"o": "W_o, as a layer of its own"},
    ),
    "LearnedPositions": Name(
        "positions",
        "(n_positions, d_model): Module, (n) -> (n, d)",
        weights={"table": "(n_positions, d_model)"},
    ),
    "sinusoidal_positions": Name("positions", "(n, d_model, base, dtype, device) -> (n, d)"),
    "rotate": Name(
        "positions",
        "(x (..., T, d_head), positions (T,), base) -> (..., T, d_head): rotary, interleaved pairs",
    ),
    "alibi_slopes": Name("positions", "(n_heads) -> (h,)"),
    "alibi_bias": Name("positions", "(n_heads, n, m=n, device) -> (h, n, m)"),
    "FeedForward": Name(
        "block",
        "(d_model, expansion, dropout): Module, (B, T, d) -> (B, T, d)",
        weights={"expand": "(4 d_model, d_model)", "contract": "(d_model, 4 d_model)"},
    ),
    "Block": Name(
        "block",
        "(d_model, mixer, *, norm, feed_forward, residual, dropout): Module,"
        " (B, T, d) -> (B, T, d)",
        parts={
            "mixer": "what mixes positions, as given",
            "ff": "the feed-forward network",
            "ln1": "the LayerNorm of the mixer",
            "ln2": "the LayerNorm of the network",
        },
    ),
    "LanguageModel": Name(
        "model",
        "(**settings: those of MODEL_SETTINGS): Module, (tokens (B, T)) -> logits (B, T, V)",
        weights={
            "token": "(V, d_model)", "position": "(context, d_model)", "head": "(V, d_model)",
        },
        parts={
            "token": "the table of token embeddings",
            "position": "the table of learned positions",
            "blocks": "the list of blocks",
            "norm": "the LayerNorm after the last block",
            "head": "the output head",
        },
    ),
    "gpt2_small": Name("model", "(**changes) -> LanguageModel of GPT-2 small's shape"),
    "EncoderDecoder": Name(
        "model",
        "(*, source_vocabulary, target_vocabulary, context, d_model, n_heads, n_blocks, dropout):"
        " Module, (source (B, S), target (B, T)) -> logits (B, T, V)",
        parts={
            "encoder": "the list of encoder blocks",
            "decoder": "the list of decoder layers, each called with (target, encoded source)",
            "attention": "of a decoder layer: the attention to the target itself",
        },
    ),
    "attention_parameters": Name("size", "(d_model, n_heads, d_head, qkv_bias) -> int"),
    "feed_forward_parameters": Name("size", "(d_model, expansion) -> int"),
    "layer_norm_parameters": Name("size", "(d_model) -> int"),
    "block_parameters": Name("size", "(d_model, qkv_bias) -> int"),
    "model_parameters": Name(
        "size", "(LanguageModel's settings) -> dict of part -> int, with 'total'"
    ),
    "count_parameters": Name("size", "(module) -> int, a tied tensor counted once"),
    "attention_matrix_bytes": Name("size", "(n, n_heads, bytes_per_number) -> int"),
    "Tokenizer": Name(
        "tokenizer",
        ".train(text, vocabulary), .encode(text), .decode(ids), .decode_bytes(ids), .merges,"
        " .vocabulary, .save(path), .load(path)",
    ),
}

# Setting of LanguageModel -> what it may be; the first is the default.
MODEL_SETTINGS: dict[str, tuple[Any, ...]] = {
    "vocabulary": (1024,),
    "context": (128,),
    "d_model": (128,),
    "n_blocks": (1,),
    "mixer": ("heads", "head", "average", "none"),
    "n_heads": (4,),
    "d_head": (None,),
    "residual": (True, False),
    "feed_forward": (True, False),
    "norm": ("pre", "post", "none"),
    "positions": ("learned", "sinusoidal", "rotary", "alibi", "none"),
    "tied": (False, True),
    "qkv_bias": (False, True),
    "scaled": (True, False),
    "dropout": (0.0,),
    "fused": (False, True),
}

# Functions by which a package says where its weights and sub-modules are. Without them the usual
# names and layouts are recognised (`layout.py`).
HOOKS: dict[str, str] = {
    "weights_of": "(module) -> dict of role -> tensor, as nn.Linear stores it; a bias is q_bias",
    "set_weights": "(module, **weights): sets them; of a role that is set, a bias left out is zero",
    "parts_of": "(module) -> dict of role -> sub-module",
}

# What a package may declare, as a dictionary DECLARES at its top level.
DECLARATIONS: dict[str, tuple[Any, ...]] = {
    # "halves": features j and j + d_head/2 are a pair, as in GPT-NeoX and Llama.
    "rotary_pairs": ("interleaved", "halves"),
    # "float32": softmax, scores and rotary tables are float32 whatever the input is; rounding is
    # then judged in units of float32.
    "precision": ("input", "float32"),
    # True: attention runs through a kernel that stores no weights; there is no return_weights.
    "fused_only": (False, True),
}


def of_group(group: str) -> list[str]:
    """The names of a group, in the contract's order."""
    return [name for name, each in CONTRACT.items() if each.group == group]


def declared(given: Any, package: str) -> dict[str, Any]:
    """What a package declares, with the defaults for the rest.

    Raises ValueError for what is no dictionary, and for unknown names and values.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"{package}.DECLARES must be a dictionary; it is {given!r}")
    for name, value in given.items():
        if name not in DECLARATIONS:
            raise ValueError(
                f"{package}.DECLARES has '{name}'; it may have {', '.join(DECLARATIONS)}"
            )
        if value not in DECLARATIONS[name]:
            allowed = " or ".join(map(repr, DECLARATIONS[name]))
            raise ValueError(f"{package}.DECLARES['{name}'] is {value!r}; it may be {allowed}")
    return {name: given.get(name, allowed[0]) for name, allowed in DECLARATIONS.items()}
