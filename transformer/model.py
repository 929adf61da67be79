"""The language model with the switches of the chapter's experiments, and two shapes of the field.

Every tensor starts as PyTorch's layers start by default: embeddings from N(0, 1), matrices uniform.
"""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from .attention import Head, MultiHeadAttention
from .average import Average
from .block import Block, FeedForward
from .position import LearnedPositions, sinusoidal_positions
from .size import ModelSettings, check_dropout, check_even, check_positive


class LanguageModel(nn.Module):
    """Token embeddings, positions, blocks, a final LayerNorm, and one score per vocabulary entry.

    mixer         what moves information between positions in each block:
                  "none"     nothing: the model sees one token at a time
                  "average"  the uniform causal average
                  "head"     the chapter's Head, of width d_model, without W_o; n_heads is not used
                  "heads"    MultiHeadAttention
    positions     "learned" and "sinusoidal" are added to the tokens, "rotary" and "alibi" act in
                  the heads, "none" leaves them out.
    norm          "pre", "post" or "none", as in ``Block``; with the first two a LayerNorm ends the
                  stack.
    tied          the output head uses the table of token embeddings.
    dropout       on the embedding sum, on each sub-layer's output, and on the weights of "heads".

    The settings stand with their defaults in ``ModelSettings`` (size.py); those that are not told
    here are ``Block``'s and ``MultiHeadAttention``'s. Raises ValueError for settings that do not go
    together: only "heads" has rotary or ALiBi positions, d_head, qkv_bias and scaled=False.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        s = ModelSettings(**settings)

        def new_mixer() -> nn.Module | None:
            if s.mixer == "average":
                return Average()
            if s.mixer == "head":
                return Head(s.d_model, s.d_model, s.context)
            if s.mixer == "heads":
                return MultiHeadAttention(
                    s.d_model, s.n_heads, d_head=s.d_head, qkv_bias=s.qkv_bias, scaled=s.scaled,
                    positions=s.positions if s.positions in ("rotary", "alibi") else "none",
                    dropout=s.dropout, fused=s.fused,
                )
            return None

        def new_block() -> Block:
            return Block(
                s.d_model, new_mixer(), norm=s.norm, feed_forward=s.feed_forward,
                residual=s.residual, dropout=s.dropout,
            )

        self.context, self.tied, self.sinusoidal = s.context, s.tied, s.positions == "sinusoidal"
        self.bounded = s.positions == "learned" or s.mixer == "head"
        self.token = nn.Embedding(s.vocabulary, s.d_model)
        self.position = LearnedPositions(s.context, s.d_model) if s.positions == "learned" else None
        self.dropout = nn.Dropout(s.dropout)
        self.blocks = nn.ModuleList(new_block() for _ in range(s.n_blocks))
        self.norm = nn.LayerNorm(s.d_model) if s.norm != "none" else None
        self.head = nn.Linear(s.d_model, s.vocabulary, bias=False)
        _tie(self)
        self.register_load_state_dict_post_hook(_tie)  # type: ignore[no-untyped-call]

    def forward(self, tokens: Tensor) -> Tensor:                         # (B, T) int64
        """Logits (B, T, V): row t scores what follows token t.

        Raises ValueError for more than ``context`` tokens where the model has nothing for them
        (learned positions, the chapter's head), and for token ids outside the vocabulary. Those are
        looked for on the CPU alone: on a GPU the check would make the host wait for the device.
        """
        _check_tokens("tokens", tokens, self.context if self.bounded else None)
        x = _embed(self.token, tokens)                                   # (B, T, d)
        T, d = x.shape[1:]
        if self.position is not None:
            x = x + self.position(T)                                     # (B, T, d) + (T, d)
        if self.sinusoidal:
            x = x + sinusoidal_positions(T, d, dtype=x.dtype, device=x.device)
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)                                                 # (B, T, d)
        if self.norm is not None:
            x = self.norm(x)
        logits: Tensor = self.head(x)                                    # (B, T, V)
        return logits

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What .to(), .half() and .to_empty() call; some of it makes new tensors, one per use."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        _tie(self)
        return self


def _tie(model: LanguageModel, _: object = None) -> None:
    """Make the output head use the token table, where the model is tied."""
    if model.tied:
        model.head.weight = model.token.weight


def _check_tokens(name: str, tokens: Tensor, context: int | None) -> None:
    """Raise ValueError for what is not (B, T) token ids, or has more tokens than the context."""
    if tokens.dim() != 2 or tokens.shape[1] == 0 or tokens.dtype != torch.int64:
        raise ValueError(
            f"{name} must be int64 of shape (B, T) with T of at least 1, "
            f"got {tokens.dtype} of shape {tuple(tokens.shape)}"
        )
    if context is not None and tokens.shape[1] > context:
        raise ValueError(f"{tokens.shape[1]} {name} do not fit in a context of {context}")


def _embed(table: nn.Embedding, tokens: Tensor) -> Tensor:
    """(B, T) -> (B, T, d). The CPU's own look-up refuses ids out of range; here it says which."""
    try:
        vectors: Tensor = table(tokens)
    except IndexError:
        raise ValueError(
            f"token ids must lie between 0 and {table.num_embeddings - 1}, "
            f"got {int(tokens.min())} to {int(tokens.max())}"
        ) from None
    return vectors


def gpt2_small(**changes: Any) -> LanguageModel:
    """The shape of GPT-2 small (Radford et al. 2019): 124,439,808 parameters.

    Shape only, for counting and for memory: the GELU stays exact where GPT-2 has its tanh
    approximation, and the tensors start as everywhere in this file. Not for training as it is: the
    tied table starts from N(0, 1), so that logits have a standard deviation near sqrt(768) = 28 and
    the loss starts at hundreds of nats, where an even guess has ln 50,257 = 10.8. GPT-2 starts its
    matrices and tables from N(0, 0.02^2). ``changes`` are settings of ``LanguageModel``.
    """
    shape: dict[str, Any] = {
        "vocabulary": 50_257, "context": 1_024, "d_model": 768, "n_blocks": 12, "n_heads": 12,
        "tied": True, "qkv_bias": True,
    }
    return LanguageModel(**(shape | changes))


class DecoderLayer(nn.Module):
    """Causal attention to the target, attention to the source, network: each LN(x + f(x))."""

    def __init__(self, d_model: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(d_model, n_heads, dropout=dropout)
        self.cross = MultiHeadAttention(d_model, n_heads, causal=False, dropout=dropout)
        self.ff = FeedForward(d_model, dropout=dropout)
        self.ln1, self.ln2, self.ln3 = (nn.LayerNorm(d_model) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:              # (B, T, d), (B, S, d)
        x = self.ln1(x + self.dropout(self.attention(x)))
        x = self.ln2(x + self.dropout(self.cross(x, context=source)))
        x = self.ln3(x + self.ff(x))
        return x                                                         # (B, T, d)


class EncoderDecoder(nn.Module):
    """The model of 2017 (Vaswani et al., section 3): one stack reads, another writes.

    The encoder attends to all of the source, the decoder causally to the target and, by its third
    kind of attention, from the target to the encoder's output. Post-norm, sinusoidal positions.
    Unlike the paper's: GELU for ReLU, N(0, 1) embeddings (which need no factor sqrt(d)), and an
    output head of its own. Raises ValueError for a source or target longer than ``context``.
    """

    def __init__(
        self,
        *,
        source_vocabulary: int,
        target_vocabulary: int,
        context: int,
        d_model: int,
        n_heads: int,
        n_blocks: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(
            source_vocabulary=source_vocabulary, target_vocabulary=target_vocabulary,
            context=context, n_blocks=n_blocks,
        )
        check_even("sinusoidal", "d_model", d_model)
        check_dropout(dropout)
        self.context = context
        self.source_token = nn.Embedding(source_vocabulary, d_model)
        self.target_token = nn.Embedding(target_vocabulary, d_model)
        self.dropout = nn.Dropout(dropout)
        self.encoder = nn.ModuleList(
            Block(
                d_model, MultiHeadAttention(d_model, n_heads, causal=False, dropout=dropout),
                norm="post", dropout=dropout,
            )
            for _ in range(n_blocks)
        )
        self.decoder = nn.ModuleList(
            DecoderLayer(d_model, n_heads, dropout) for _ in range(n_blocks)
        )
        self.head = nn.Linear(d_model, target_vocabulary, bias=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:         # (B, S), (B, T) int64
        """Logits (B, T, V_target): row t scores what follows target token t, given the source."""
        _check_tokens("source tokens", source, self.context)
        _check_tokens("target tokens", target, self.context)
        if len(source) != len(target):
            raise ValueError(f"{len(source)} sources cannot be paired with {len(target)} targets")
        memory = self._start(self.source_token, source)                  # (B, S, d)
        for layer in self.encoder:
            memory = layer(memory)
        x = self._start(self.target_token, target)                       # (B, T, d)
        for layer in self.decoder:
            x = layer(x, memory)
        logits: Tensor = self.head(x)                                    # (B, T, V_target)
        return logits

    def _start(self, table: nn.Embedding, tokens: Tensor) -> Tensor:
        x = _embed(table, tokens)                                        # (B, T, d)
        T, d = x.shape[1:]
        x = x + sinusoidal_positions(T, d, dtype=x.dtype, device=x.device)
        started: Tensor = self.dropout(x)
        return started
