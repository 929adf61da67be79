"""Attention: an average whose weights are computed from the tokens themselves.

Score, mask, normalise, mix. ``attention`` is those four steps on queries, keys and values that are
given; ``Head`` is the chapter's listing, which makes them from one sequence; ``MultiHeadAttention``
runs several heads side by side and mixes their outputs with one more matrix.
"""

import math
from typing import Literal, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .position import alibi_bias, rotate
from .size import check_choice, check_dropout, check_even, check_positive, head_width


def causal_mask(
    n: int, m: int | None = None, device: torch.device | str | None = None
) -> Tensor:
    """(n, m) bool, True where query t may attend to key i: the lower triangle.

    With fewer queries than keys it is aligned to the LOWER RIGHT, so that the last query sees every
    key: the queries are then the newest tokens of the sequence, and the older ones keys only.
    Raises ValueError for more queries than keys.
    """
    m = n if m is None else m
    check_positive(n=n, m=m)
    if n > m:
        raise ValueError(f"{n} queries cannot be the last ones of {m} keys: n must not exceed m")
    return torch.ones(n, m, dtype=torch.bool, device=device).tril(m - n)


@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, scale: float | None = None,
    dropout: float = 0.0, fused: bool = False, return_weights: Literal[False] = False,
) -> Tensor: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, scale: float | None = None,
    dropout: float = 0.0, fused: bool = False, return_weights: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def attention(
    q: Tensor,                                                           # (..., n, d_k)
    k: Tensor,                                                           # (..., m, d_k)
    v: Tensor,                                                           # (..., m, d_v)
    mask: Tensor | None = None,                                          # fits (..., n, m)
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    fused: bool = False,
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(q k^T / sqrt(d_k) + M) v, (..., n, d_v) (Vaswani et al. 2017, section 3.2.1).

    mask            bool, True where a query may attend to a key, or floating, added to the scores.
                    A query that may attend to nothing gets weights 0 and output 0, and sends back
                    gradients of 0, where a bare softmax would make NaN of all three.
    scale           multiplies q k^T in place of the division by sqrt(d_k); 1.0 leaves it unscaled.
    dropout         the share of weights set to 0 after the softmax, at every call; what is left is
                    divided by 1 - dropout, but a row is not made to sum to one again.
    fused           one call of PyTorch's scaled_dot_product_attention: the same result, without
                    storing an n x m tensor where the device has a kernel for it.
    return_weights  gives (output, weights), the weights (..., n, m) being those that mixed v.

    Raises ValueError for shapes or dtypes that do not fit, and for fused with return_weights.
    """
    _check_qkv(q, k, v)
    check_dropout(dropout)
    _check_fused(fused, return_weights)
    if mask is not None:
        _check_mask(mask, (*q.shape[:-1], k.shape[-2]))
    if fused:
        return _fused_attention(q, k, v, mask, scale, dropout)

    scores = q @ k.transpose(-2, -1)                                     # (..., n, m)  score
    scores = scores / math.sqrt(q.shape[-1]) if scale is None else scores * scale
    if mask is not None:
        scores, fully_masked = _mask_scores(scores, mask)                # (..., n, m)  mask
    weights = F.softmax(scores, dim=-1)                                  # (..., n, m)  normalise
    if dropout > 0.0:
        weights = F.dropout(weights, dropout)
    mixed = weights @ v                                                  # (..., n, d_v)  mix

    if mask is not None:
        mixed = mixed.masked_fill(fully_masked, 0.0)
        weights = weights.masked_fill(fully_masked, 0.0) if return_weights else weights
    return (mixed, weights) if return_weights else mixed


def _mask_scores(scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The masked scores, and (..., n, 1) which queries are fully masked: may attend to nothing.

    A fully masked query would be a row of -inf, and its softmax 0/0. NaN cannot be undone
    afterwards, for the backward pass multiplies it by zero and gets NaN: such a row keeps finite
    scores here, and its output is set to zero in the end. That is done in place, on tensors of this
    function, so a mask allocates what it allocates in the chapter's listing: its negation, and the
    masked copy.
    """
    if mask.dtype == torch.bool:
        forbidden = ~mask
        fully_masked = forbidden.all(-1, keepdim=True)
        forbidden &= ~fully_masked
        return scores.masked_fill(forbidden, float("-inf")), fully_masked
    # Asked of the sum, not of the mask: in float16 a mask of -65504 plus a score may be -inf too.
    scores = scores + mask.to(scores.dtype)
    fully_masked = scores.detach().amax(-1, keepdim=True) == float("-inf")
    return scores.masked_fill_(fully_masked, 0.0), fully_masked


def _fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None, dropout: float
) -> Tensor:
    """The same in one call. Kernels differ in what a fully masked query gets, so they get none."""
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale)
    if mask.dim() < 2:  # kernels refuse what broadcasting allows
        mask = mask.view(1, -1)
    if mask.dtype == torch.bool:
        fully_masked = ~mask.any(-1, keepdim=True)
        mask = mask | fully_masked
    else:
        mask = mask.to(q.dtype)
        fully_masked = (mask == float("-inf")).all(-1, keepdim=True)
        mask = mask.masked_fill(fully_masked, 0.0)
    mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout, scale=scale)
    return mixed.masked_fill(fully_masked, 0.0)


class Head(nn.Module):
    """One head of causal self-attention, as the chapter prints it: x (B, T, d) -> (B, T, d_head).

    Raises ValueError for a sequence longer than ``block``, the size of its mask.
    """

    mask: Tensor

    def __init__(self, d_model: int, d_head: int, block: int) -> None:
        super().__init__()
        check_positive(d_model=d_model, d_head=d_head, block=block)
        self.q = nn.Linear(d_model, d_head, bias=False)                  # what a token looks for
        self.k = nn.Linear(d_model, d_head, bias=False)                  # what it is found by
        self.v = nn.Linear(d_model, d_head, bias=False)                  # what is copied from it
        self.d_head = d_head
        self.register_buffer("mask", torch.tril(torch.ones(block, block)).bool())

    def forward(self, x: Tensor) -> Tensor:
        T = x.shape[1]
        if len(self.mask) < T:
            raise ValueError(f"{T} tokens do not fit in a head with a block of {len(self.mask)}")
        q, k, v = self.q(x), self.k(x), self.v(x)                        # (B, T, d_head) each
        s = q @ k.transpose(-2, -1) / math.sqrt(self.d_head)             # (B, T, T)  score
        s = s.masked_fill(~self.mask[:T, :T], float("-inf"))             # (B, T, T)  mask
        w = F.softmax(s, dim=-1)                                         # (B, T, T)  normalise
        mixed: Tensor = w @ v                                            # (B, T, d_head)  mix
        return mixed


class MultiHeadAttention(nn.Module):
    """Several heads side by side, concatenated and mixed by W_o (Vaswani et al. 2017, 3.2.2).

    d_head      width of one head; by default d_model is shared out evenly among the heads.
    qkv_bias    gives W_q, W_k and W_v biases, as GPT-2 has them; W_o always has one.
    causal      no query sees a later key. Cross attention needs causal=False.
    scaled     False leaves out the division of the scores by sqrt(d_head).
    positions   "none"; "rotary" turns queries and keys; "alibi" takes a distance off the scores.
    dropout     on the weights, in training mode only.
    fused       PyTorch's own kernels in place of the explicit steps.

    Raises ValueError for a d_model that the heads do not divide, and for unknown positions.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        d_head: int | None = None,
        qkv_bias: bool = False,
        causal: bool = True,
        scaled: bool = True,
        positions: str = "none",
        dropout: float = 0.0,
        fused: bool = False,
    ) -> None:
        super().__init__()
        self.d_head = head_width(d_model, n_heads, d_head)
        check_choice("positions", positions, ("none", "rotary", "alibi"))
        check_dropout(dropout)
        if positions == "rotary":
            check_even(positions, "d_head", self.d_head)
        self.d_model, self.n_heads = d_model, n_heads
        self.causal, self.positions, self.dropout, self.fused = causal, positions, dropout, fused
        self.scale = None if scaled else 1.0
        width = n_heads * self.d_head
        self.q = nn.Linear(d_model, width, bias=qkv_bias)
        self.k = nn.Linear(d_model, width, bias=qkv_bias)
        self.v = nn.Linear(d_model, width, bias=qkv_bias)
        self.o = nn.Linear(width, d_model)

    def forward(
        self,
        x: Tensor,                                                       # (B, n, d)
        context: Tensor | None = None,                                   # (B, m, d)
        mask: Tensor | None = None,                                      # fits (B, h, n, m)
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """(B, n, d), or with return_weights that and the weights (B, h, n, m).

        Keys and values come from ``context``, by default x itself; with rotary or ALiBi positions x
        counts as the last n of the m tokens of the context. ``mask`` is as in ``attention`` and
        joins the causal one. A padding mask (B, m) is not recognised by its shape: pass
        ``mask[:, None, None, :]``. Raises ValueError for shapes that do not fit, for a context
        where causal=True, and for return_weights where fused=True.
        """
        context = self._check_input(x, context, mask, return_weights)
        n, m = x.shape[1], context.shape[1]
        q, k, v = self._split(self.q(x)), self._split(self.k(context)), self._split(self.v(context))
        if self.positions == "rotary":
            q = rotate(q, torch.arange(m - n, m, device=x.device))       # (B, h, n, d_head)
            k = rotate(k)                                                # (B, h, m, d_head)

        dropout = self.dropout if self.training else 0.0
        weights = None
        if self.fused and self.causal and mask is None and self.positions != "alibi":
            # Told that the mask is the triangle, the kernel needs no n x n tensor at all.
            mixed = F.scaled_dot_product_attention(
                q, k, v, dropout_p=dropout, is_causal=True, scale=self.scale
            )
        elif return_weights:
            mask = self._full_mask(n, m, mask, x)
            mixed, weights = attention(
                q, k, v, mask, scale=self.scale, dropout=dropout, return_weights=True
            )
        else:
            mask = self._full_mask(n, m, mask, x)
            mixed = attention(q, k, v, mask, scale=self.scale, dropout=dropout, fused=self.fused)
        out: Tensor = self.o(_join(mixed))                               # (B, n, d)
        return out if weights is None else (out, weights)

    def _split(self, x: Tensor) -> Tensor:
        """(B, T, h * d_head) -> (B, h, T, d_head): each head its own slice of the width."""
        return x.view(*x.shape[:2], self.n_heads, self.d_head).transpose(1, 2)

    def _full_mask(self, n: int, m: int, mask: Tensor | None, x: Tensor) -> Tensor | None:
        """The caller's mask, the distances of ALiBi and the causal triangle, as one mask."""
        if self.positions == "alibi":
            mask = _both(mask, alibi_bias(self.n_heads, n, m, x.device).to(x.dtype))
        if self.causal:
            mask = _both(mask, causal_mask(n, m, x.device))
        return mask

    def _check_input(
        self, x: Tensor, context: Tensor | None, mask: Tensor | None, return_weights: bool
    ) -> Tensor:
        """The context to attend to, once everything that forward was given is known to fit."""
        if x.dim() != 3 or x.shape[-1] != self.d_model:
            raise ValueError(f"x must be (B, n, {self.d_model}), got {tuple(x.shape)}")
        if context is None:
            context = x
        elif self.causal:
            raise ValueError("a context to attend to needs causal=False, got causal=True")
        B, n, d = x.shape
        if context.dim() != 3 or (context.shape[0], context.shape[2]) != (B, d):
            raise ValueError(f"context must be ({B}, m, {d}), got {tuple(context.shape)}")
        m = context.shape[1]
        if self.positions != "none" and n > m:
            raise ValueError(f"{n} queries cannot be the last ones of {m} keys in the context")
        if mask is not None:
            _check_mask(mask, (B, self.n_heads, n, m))
        _check_fused(self.fused, return_weights)
        return context


def _join(heads: Tensor) -> Tensor:
    """(B, h, T, d_head) -> (B, T, h * d_head): the heads side by side."""
    return heads.transpose(1, 2).flatten(-2)


def _both(mask: Tensor | None, other: Tensor) -> Tensor:
    """One mask that forbids what either forbids and adds what either adds."""
    if mask is None:
        return other
    if mask.dtype == other.dtype == torch.bool:
        return mask & other
    if other.dtype == torch.bool:
        return mask.masked_fill(~other, float("-inf"))
    if mask.dtype == torch.bool:
        return other.masked_fill(~mask, float("-inf"))
    return mask + other


def _check_qkv(q: Tensor, k: Tensor, v: Tensor) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if min(q.dim(), k.dim(), v.dim()) < 2 or not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        raise ValueError(f"q, k and v must be (..., n or m, width) with the same ...; got {shapes}")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"queries and keys must have the same width d_k, got {shapes}")
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(f"there must be as many values as keys, got {shapes}")
    if 0 in (q.shape[-1], k.shape[-2]):
        raise ValueError(f"there must be at least one key, of width at least 1; got {shapes}")
    if not q.is_floating_point() or not q.dtype == k.dtype == v.dtype:
        raise ValueError(
            f"q, k and v must have one floating dtype, got {q.dtype}, {k.dtype}, {v.dtype}"
        )


def _check_mask(mask: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless the mask is bool or floating and stretches to ``shape``."""
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(f"a mask must be bool (True = may attend) or floating, got {mask.dtype}")
    sizes = zip(reversed(mask.shape), reversed(shape), strict=False)
    if mask.dim() > len(shape) or any(size not in (1, full) for size, full in sizes):
        raise ValueError(f"a mask must stretch to {shape}, got {tuple(mask.shape)}")


def _check_fused(fused: bool, return_weights: bool) -> None:
    if fused and return_weights:
        raise ValueError("return_weights needs fused=False: a fused kernel stores no weights")
