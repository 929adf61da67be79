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
    takes      the parameters, as Python writes them; those of the constructor for a module
    says       what it gives, with shapes
    forward    of a module: the parameters of a call
    methods    of a class that is no module
    weights    of a module: role -> shape, as nn.Linear stores it (outputs, inputs)
    parts      of a module: role -> what the sub-module is
    """

    group: str
    takes: str
    says: str
    forward: str = ""
    methods: tuple[str, ...] = ()
    weights: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)


AVERAGE = "(..., T, d) -> (..., T, d): row t is the mean of rows 0..t"
QKV = {role: "(n_heads * d_head, d_model)" for role in ("q", "k", "v")}

CONTRACT: dict[str, Name] = {
    "average_loop": Name("average", "x", f"{AVERAGE}, as a loop"),
    "averaging_matrix": Name(
        "average", "T, dtype=torch.float32, device=None",
        "(T, T): row t holds 1/(t+1) on columns 0..t, and zero after them",
    ),
    "average_by_matrix": Name("average", "x", f"{AVERAGE}, as one product"),
    "uniform_scores": Name(
        "average", "T, dtype=torch.float32, device=None",
        "(T, T): zero on and below the diagonal, -inf above",
    ),
    "average_by_softmax": Name("average", "x", f"{AVERAGE}, through a softmax"),
    "causal_mask": Name(
        "attention", "n, m=None, device=None",
        "bool (n, m), True = may attend; m = n by default; the last query sees every key",
    ),
    "attention": Name(
        "attention",
        "q, k, v, mask=None, *, scale=None, dropout=0.0, fused=False, return_weights=False",
        "q (..., n, d_k), k (..., m, d_k), v (..., m, d_v) -> (..., n, d_v), or with return_weights"
        " that and the weights (..., n, m). The mask is bool, True = may attend, or floating and"
        " added to the scores. scale replaces 1/sqrt(d_k). dropout is applied at every call. fused"
        " may use PyTorch's kernel",
    ),
    "Head": Name(
        "attention", "d_model, d_head, block",
        "(B, T, d_model) -> (B, T, d_head): one causal head, no biases, no W_o; T <= block",
        forward="x",
        weights={role: "(d_head, d_model)" for role in ("q", "k", "v")},
    ),
    "MultiHeadAttention": Name(
        "attention",
        "d_model, n_heads, *, d_head=None, qkv_bias=False, causal=True, scaled=True, "
        "positions='none', dropout=0.0, fused=False",
        "x (B, n, d) -> (B, n, d), or with return_weights that and the weights (B, h, n, m). Keys"
        " and values are of context (B, m, d), x by default. The mask fits (B, h, n, m) and joins"
        " the causal one. positions: 'none', 'rotary' or 'alibi'; with these two x is the last n"
        " tokens of the context",
        forward="x, context=None, mask=None, return_weights=False",
        weights=QKV | {"o": "(d_model, n_heads * d_head)"},
        parts={"o": "W_o, as a layer of its own"},
    ),
    "LearnedPositions": Name(
        "positions", "n_positions, d_model",
        "the vectors of positions 0..n-1, (n, d)",
        forward="n",
        weights={"table": "(n_positions, d_model)"},
    ),
    "sinusoidal_positions": Name(
        "positions", "n, d_model, base=10000.0, dtype=torch.float32, device=None",
        "(n, d): sines on the even features, cosines on the odd ones",
    ),
    "rotate": Name(
        "positions", "x, positions=None, base=10000.0",
        "(..., T, d_head) -> the same shape: rotary; positions (T,), 0..T-1 by default; features"
        " 2j and 2j + 1 are a pair, unless declared otherwise",
    ),
    "alibi_slopes": Name("positions", "n_heads", "(h,) float32"),
    "alibi_bias": Name(
        "positions", "n_heads, n, m=None, device=None",
        "(h, n, m) float32: -slope * distance; the last query stands at the last key",
    ),
    "FeedForward": Name(
        "block", "d_model, expansion=4, dropout=0.0",
        "(..., d) -> (..., d)",
        forward="x",
        weights={
            "expand": "(expansion * d_model, d_model)", "contract": "(d_model, expansion * d_model)"
        },
    ),
    "Block": Name(
        "block",
        "d_model, mixer, *, norm='pre', feed_forward=True, residual=True, dropout=0.0",
        "(B, T, d) -> (B, T, d). The mixer is a module (B, T, d) -> (B, T, d), or None. norm:"
        " 'pre', 'post' or 'none'. residual=False lets the mixer's output replace the token",
        forward="x",
        parts={
            "mixer": "what mixes positions, as given",
            "ff": "the feed-forward network",
            "ln1": "the LayerNorm of the mixer",
            "ln2": "the LayerNorm of the network",
        },
    ),
    "LanguageModel": Name(
        "model", "**settings",
        "tokens (B, T) -> logits (B, T, V), for every position, and nothing else",
        forward="tokens",
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
    "gpt2_small": Name("model", "**changes", "a LanguageModel of GPT-2 small's shape"),
    "EncoderDecoder": Name(
        "model",
        "*, source_vocabulary, target_vocabulary, context, d_model, n_heads, n_blocks, dropout=0.0",
        "source (B, S), target (B, T) -> logits (B, T, V)",
        forward="source, target",
        parts={
            "encoder": "the list of encoder blocks",
            "decoder": "the list of decoder layers, each called with (target, encoded source)",
            "attention": "of a decoder layer: the attention to the target itself",
            "cross": "of a decoder layer: the attention to the source",
            "ff": "of a decoder layer: the feed-forward network",
            "ln1": "of a decoder layer: the LayerNorm of the attention to the target",
            "ln2": "of a decoder layer: the LayerNorm of the attention to the source",
            "ln3": "of a decoder layer: the LayerNorm of the network",
        },
    ),
    "Tokenizer": Name(
        "tokenizer", "merges",
        "byte-pair encoding. merges is the list of pairs in the order in which they were learnt,"
        " vocabulary the number of ids",
        methods=(
            "train(cls, text, vocabulary=1024)", "encode(self, text)", "decode(self, ids)",
            "decode_bytes(self, ids)", "save(self, path)", "load(cls, path)",
        ),
    ),
    "attention_parameters": Name(
        "size", "d_model, n_heads=1, d_head=None, qkv_bias=False", "int"
    ),
    "feed_forward_parameters": Name("size", "d_model, expansion=4", "int"),
    "layer_norm_parameters": Name("size", "d_model", "int"),
    "block_parameters": Name("size", "d_model, qkv_bias=False", "int"),
    "model_parameters": Name(
        "size", "**settings", "dict of part -> int, with 'total'; LanguageModel's settings"
    ),
    "count_parameters": Name("size", "module", "int: a tied tensor is counted once"),
    "attention_matrix_bytes": Name("size", "n, n_heads, bytes_per_number=4", "int"),
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
HOOKS: dict[str, tuple[str, str]] = {
    "weights_of": ("module", "dict of role -> tensor, as nn.Linear stores it; a bias is q_bias"),
    "set_weights": ("module, **weights", "sets them; of a role that is set, the bias is zero where"
                    " none is given"),
    "parts_of": ("module", "dict of role -> sub-module"),
}

# What a package may declare, as a dictionary DECLARES at its top level.
DECLARATIONS: dict[str, tuple[Any, ...]] = {
    # "halves": features j and j + d_head/2 are a pair, as in GPT-NeoX and Llama.
    "rotary_pairs": ("interleaved", "halves"),
    # "float32": softmax, scores and rotary tables are float32 whatever the input is; rounding is
    # then judged in units of float32.
    "precision": ("input", "float32"),
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
