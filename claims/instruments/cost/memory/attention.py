"""scaled_dot_product_attention on the meta device, as on CUDA.

The kernel that CUDA would choose (sdp_utils.cpp, for compute capability 8.0 and above) is called by
name, and its meta version makes the same tensors: flash attention for half precision without a
mask, else the memory-efficient one. Where neither fits, or both are ruled out
(torch.nn.attention.sdpa_kernel), the plain path is taken. A Hopper GPU may take cuDNN's kernel
where this takes flash attention.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

aten = torch.ops.aten

HALF = (torch.float16, torch.bfloat16)


def attention(
    query: Tensor,                                                       # (B, h, n, d_k)
    key: Tensor,                                                         # (B, h, m, d_k)
    value: Tensor,                                                       # (B, h, m, d_v)
    attn_mask: Tensor | None = None,                                     # fits (B, h, n, m)
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:                                                             # (B, h, n, d_v)
    """at::scaled_dot_product_attention (aten/src/ATen/native/transformers/attention.cpp)."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if attn_mask is None and _flash_fits(query, key, value, is_causal):
        width = query.shape[-1]
        padded = [F.pad(x, (0, -width % 8)) if width % 8 else x for x in (query, key, value)]
        output: Tensor = aten._scaled_dot_product_flash_attention(
            *padded, dropout_p, is_causal, scale=scale
        )[0]
        return output[..., :width] if width % 8 else output
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = _additive(attn_mask, query.dtype)
    if _efficient_fits(query, key, value):
        if attn_mask is not None:
            attn_mask = _aligned(attn_mask).expand(*query.shape[:-1], key.shape[-2])
        needs_grad = torch.is_grad_enabled() and any(
            x.requires_grad for x in (query, key, value)
        )
        output = aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, needs_grad, dropout_p, is_causal, scale=scale
        )[0]
        return output
    return _plain(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _alike(query: Tensor, key: Tensor, value: Tensor) -> bool:
    heads = query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    return query.dim() == 4 and heads and query.shape[-1] == key.shape[-1]


def _flash_fits(query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> bool:
    return (
        torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
        and _alike(query, key, value)
        and query.dtype in HALF
        and query.shape[-1] == value.shape[-1] <= 256
        and (not is_causal or query.shape[-2] == key.shape[-2])
    )


def _efficient_fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    unit = 8 if query.dtype in HALF else 4  # numbers in 16 bytes
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()  # type: ignore[no-untyped-call]
        and _alike(query, key, value)
        and query.dtype in (torch.float32, *HALF)
        and query.shape[-1] % unit == 0 == value.shape[-1] % unit
    )


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a query may attend to a key, -inf elsewhere."""
    return torch.where(mask, 0.0, torch.full((), float("-inf"), dtype=dtype, device=mask.device))


def _aligned(mask: Tensor) -> Tensor:
    """The mask with rows that begin at multiples of eight numbers."""
    if mask.stride(-1) == 1 and all(stride % 8 == 0 for stride in mask.stride()[:-1]):
        return mask
    m = mask.shape[-1]
    return F.pad(mask, (0, 8 - m % 8))[..., :m]


def _plain(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float,
    is_causal: bool, scale: float, share_heads: bool,
) -> Tensor:  # fmt: skip
    """_scaled_dot_product_attention_math, which on the meta device adds its mask out of place."""
    dtype = query.dtype
    in_half = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()  # type: ignore[no-untyped-call]
    if dtype in HALF and not in_half:
        query, key, value = query.float(), key.float(), value.float()
    query = query * scale**0.5
    if is_causal:
        n, m = query.shape[-2], key.shape[-2]
        mask = torch.ones(n, m, dtype=torch.bool, device=query.device).tril()
        mask = _additive(mask, query.dtype)
    if share_heads and query.shape[-3] != key.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    weights = query @ (key.transpose(-2, -1) * scale**0.5)               # (B, h, n, m)
    if mask is not None:
        weights.add_(mask)
    weights = aten._safe_softmax(weights, -1)
    if dropout > 0:
        weights = torch.dropout(weights, dropout, True)
    output: Tensor = (weights @ value).to(dtype)
    return output
