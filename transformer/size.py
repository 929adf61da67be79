"""How many parameters and bytes a model has, as arithmetic on its settings.

Nothing here builds a tensor: the counts are written down part by part, and hold exactly. The
checks of settings stand here as well, so that the arithmetic and the model refuse the same ones.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

MIXERS = ("none", "average", "head", "heads")
POSITIONS = ("none", "learned", "sinusoidal", "rotary", "alibi")
NORMS = ("pre", "post", "none")


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The settings of ``LanguageModel``, whose docstring says what they do.

    Raises ValueError for a size below one and for settings that do not go together.
    """

    vocabulary: int = 1024
    context: int = 128
    d_model: int = 128
    n_blocks: int = 1
    mixer: str = "heads"
    n_heads: int = 4
    d_head: int | None = None
    residual: bool = True
    feed_forward: bool = True
    norm: str = "pre"
    positions: str = "learned"
    tied: bool = False
    qkv_bias: bool = False
    scaled: bool = True
    dropout: float = 0.0
    fused: bool = False

    def __post_init__(self) -> None:
        check_positive(vocabulary=self.vocabulary, context=self.context, d_model=self.d_model)
        if self.n_blocks < 0:
            raise ValueError(f"n_blocks must be at least 0, got {self.n_blocks}")
        check_choice("mixer", self.mixer, MIXERS)
        check_choice("norm", self.norm, NORMS)
        check_choice("positions", self.positions, POSITIONS)
        check_dropout(self.dropout)
        if self.positions == "sinusoidal":
            check_even(self.positions, "d_model", self.d_model)
        if self.mixer == "heads":
            return
        asked_for = {
            f"positions={self.positions!r}": self.positions in ("rotary", "alibi"),
            f"d_head={self.d_head}": self.d_head is not None,
            "qkv_bias=True": self.qkv_bias,
            "scaled=False": not self.scaled,
        }
        for setting, asked in asked_for.items():
            if asked:
                raise ValueError(f"{setting} needs mixer='heads', got mixer={self.mixer!r}")


def attention_parameters(
    d_model: int, n_heads: int = 1, d_head: int | None = None, qkv_bias: bool = False
) -> int:
    """W_q, W_k, W_v and W_o; W_o always with its bias, the other three only with qkv_bias."""
    width = n_heads * head_width(d_model, n_heads, d_head)
    qkv = 3 * (d_model * width + (width if qkv_bias else 0))
    output = width * d_model + d_model
    return qkv + output


def feed_forward_parameters(d_model: int, expansion: int = 4) -> int:
    """Two matrices with their biases: 8 d^2 + 5 d at an expansion of four."""
    check_positive(d_model=d_model, expansion=expansion)
    inner = expansion * d_model
    return (d_model * inner + inner) + (inner * d_model + d_model)


def layer_norm_parameters(d_model: int) -> int:
    """A gain and a shift for every feature."""
    check_positive(d_model=d_model)
    return 2 * d_model


def block_parameters(d_model: int, qkv_bias: bool = False) -> int:
    """Attention, feed-forward network, two LayerNorms: 12 d^2 + 10 d, or 13 d with qkv_bias."""
    return (
        attention_parameters(d_model, qkv_bias=qkv_bias)
        + feed_forward_parameters(d_model)
        + 2 * layer_norm_parameters(d_model)
    )


def model_parameters(**settings: Any) -> dict[str, int]:
    """The parameters of ``LanguageModel(**settings)``, part by part.

    Settings that move no parameter (residual, scaled, dropout, fused) are taken, so that one set
    of settings serves both. Raises ValueError for the settings that LanguageModel refuses.
    """
    s = ModelSettings(**settings)
    normed = s.norm != "none"

    block = 0
    if s.mixer == "head":
        block += 3 * s.d_model * s.d_model                               # no biases and no W_o
    if s.mixer == "heads":
        block += attention_parameters(s.d_model, s.n_heads, s.d_head, s.qkv_bias)
    if s.mixer != "none" and normed:
        block += layer_norm_parameters(s.d_model)
    if s.feed_forward:
        block += feed_forward_parameters(s.d_model)
        block += layer_norm_parameters(s.d_model) if normed else 0

    parts = {
        "token embeddings": s.vocabulary * s.d_model,
        "position embeddings": s.context * s.d_model if s.positions == "learned" else 0,
        "blocks": s.n_blocks * block,
        "final LayerNorm": layer_norm_parameters(s.d_model) if normed else 0,
        "output head": 0 if s.tied else s.vocabulary * s.d_model,
    }
    return parts | {"one block": block, "total": sum(parts.values())}


def count_parameters(module: nn.Module) -> int:
    """The parameters of a built module; a tensor used in two places counts once."""
    return sum(parameter.numel() for parameter in module.parameters())


def attention_matrix_bytes(n: int, n_heads: int, bytes_per_number: int = 4) -> int:
    """One n x n tensor per head: the scores of one sequence of n tokens in one layer."""
    check_positive(n=n, n_heads=n_heads, bytes_per_number=bytes_per_number)
    return n_heads * n * n * bytes_per_number


def head_width(d_model: int, n_heads: int, d_head: int | None) -> int:
    """The width of one head: d_head where it is given, else d_model shared out evenly."""
    check_positive(d_model=d_model, n_heads=n_heads)
    if d_head is not None:
        check_positive(d_head=d_head)
        return d_head
    if d_model % n_heads:
        raise ValueError(
            f"d_model {d_model} cannot be shared out evenly among {n_heads} heads: "
            "choose a number of heads that divides it, or give d_head"
        )
    return d_model // n_heads


def check_positive(**sizes: int) -> None:
    """Raise ValueError, naming the size and its value, for the first that is below one."""
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise ValueError, naming the value and the allowed ones, for a value that is not allowed."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")


def check_even(positions: str, name: str, width: int) -> None:
    """Raise ValueError for an odd width, where positions act on pairs of features."""
    if width % 2:
        raise ValueError(f"{positions} positions need an even {name}, got {width}")


def check_dropout(dropout: float) -> None:
    """Raise ValueError for a dropout that is not a probability."""
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"dropout must be a probability between 0 and 1, got {dropout}")
