"""Every fused kernel that a device offers, each by the same rule as explicit attention.

PyTorch has up to four: plain operations under one call (MATH), and three that need a device, a
precision or a mask to their liking. Which they accept is not known beforehand, so each is asked.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from claims.instruments.attention.tiled import Attention, PlainRule

KERNELS = {
    SDPBackend.MATH: "",
    SDPBackend.EFFICIENT_ATTENTION: "Memory efficient",
    SDPBackend.FLASH_ATTENTION: "Flash attention",
    SDPBackend.CUDNN_ATTENTION: "cuDNN attention",
}  # and by what name PyTorch says why it was not used
# How PyTorch begins to say that no kernel takes what it was given: on CUDA, and on the CPU.
_REFUSALS = ("No available kernel", "No viable backend")


@dataclass(frozen=True)
class ByKernel:
    """What became of each kernel, asked each way; the keys are "MATH, with a mask" and the like.

    shares      what it uses up of the allowed error, as `PlainRule.share` gives it; of explicit
                attention too, which is the first.
    refused     why a kernel is not offered for this.
    warned      what was said of one that ran.
    plain_ulps  the plain computation's own error, as `PlainRule.plain_ulps` gives it.
    """

    plain_ulps: dict[str, Tensor]
    shares: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    warned: dict[str, list[str]] = field(default_factory=dict)


def measure_kernels(
    explicit: Attention,
    ways: Mapping[str, Attention],
    draws: Sequence[Tensor],
    dtype: torch.dtype,
    device: torch.device,
) -> ByKernel:
    """Explicit attention, and each kernel reached in each way, on `device` in `dtype`.

    Args:
        explicit: causal attention without a fused kernel.
        ways: causal attention through scaled_dot_product_attention, by what is to be called.
        draws: q (B, 1, n, d), k and v of the same shape, and the gradient of the output.

    Raises what a kernel raises once it has accepted.
    """
    rule = PlainRule(draws, dtype, device)
    found = ByKernel(rule.plain_ulps(), {"explicit": rule.share(explicit)})
    for kernel in KERNELS:
        for way, attend in ways.items():
            name = f"{kernel.name}, {way}"
            with warnings.catch_warnings(record=True) as caught:
                # Reasons are warnings; they must neither be lost nor end the run.
                warnings.simplefilter("always")
                try:
                    with sdpa_kernel(kernel):
                        found.shares[name] = rule.share(attend)
                except RuntimeError as error:
                    if not str(error).startswith(_REFUSALS):
                        raise
                    said = [str(warning.message) for warning in caught]
                    found.refused[name] = reason(kernel, said) or str(error).partition(".")[0]
                    continue
            if caught:
                found.warned[name] = [str(warning.message) for warning in caught]
    return found


def reason(kernel: SDPBackend, said: Sequence[str]) -> str:
    """Why this kernel refused, out of warnings that name each kernel and then its reasons."""
    reasons, of_this = [], False
    for line in said:
        text = line.partition(" (Triggered internally")[0]
        if "not used because" in text:
            of_this = text.lower().startswith(KERNELS[kernel].lower())
        elif of_this:
            reasons.append(text)
    return "; ".join(reasons)


@contextmanager
def products_in_tf32(wanted: bool) -> Iterator[None]:
    """Within, float32 products on CUDA may, or must not, round what they read to TF32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = wanted
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def attention_within(layer: nn.Module) -> Attention:
    """The attention of a layer with one head, as a map of q, k and v, each (B, 1, n, d).

    The layer maps (B, n, 3 d) to (B, n, 3 d) by submodules q, k and v to width d, attention, and o.
    Its four matrices are left out: x is q, k and v side by side, and the output is not mixed.
    """
    for place, name in enumerate(("q", "k", "v")):
        setattr(layer, name, _Third(place))
    layer.o = nn.Identity()
    call: Callable[[Tensor], Tensor] = layer

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return call(torch.cat([q, k, v], dim=-1).squeeze(1)).unsqueeze(1)

    return attend


class _Third(nn.Module):
    """(..., 3 d) -> (..., d): the part at one place."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self._place = place

    def forward(self, x: Tensor) -> Tensor:
        return x.chunk(3, dim=-1)[self._place]
