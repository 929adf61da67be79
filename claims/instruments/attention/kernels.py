"""The error of every fused kernel that a device offers, by the same rule as explicit attention's.

PyTorch has up to four kernels: plain operations in one call (MATH), and three that accept only some
devices, precisions and masks. Which ones they accept is not known in advance, so each is tried.
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

# Each kernel, with the name that PyTorch uses to say why it was not used.
KERNELS = {
    SDPBackend.MATH: "",
    SDPBackend.EFFICIENT_ATTENTION: "Memory efficient",
    SDPBackend.FLASH_ATTENTION: "Flash attention",
    SDPBackend.CUDNN_ATTENTION: "cuDNN attention",
}
# How PyTorch's message begins when no kernel accepts the input: on CUDA, and on the CPU.
_REFUSALS = ("No available kernel", "No viable backend")


@dataclass(frozen=True)
class ByKernel:
    """The result of each kernel, called each way; the keys are "MATH, with a mask" and the like.

    shares      its share of the allowed error, as in `PlainRule.share`; first that of explicit
                attention.
    refused     why a kernel does not accept the input.
    warned      the warnings of a kernel that ran.
    plain_ulps  the plain computation's own error, as in `PlainRule.plain_ulps`.
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
    """Explicit attention, and each kernel called in each way, on `device` in `dtype`.

    Args:
        explicit: causal attention without a fused kernel.
        ways: causal attention through scaled_dot_product_attention, each under a name.
        draws: q (B, 1, n, d), k and v of the same shape, and the gradient of the output.

    Raises what a kernel raises after it has accepted the input.
    """
    rule = PlainRule(draws, dtype, device)
    found = ByKernel(rule.plain_ulps(), {"explicit": rule.share(explicit)})
    for kernel in KERNELS:
        for way, attend in ways.items():
            name = f"{kernel.name}, {way}"
            with warnings.catch_warnings(record=True) as caught:
                # The reasons are warnings: keep them, and do not turn them into errors.
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
    """Why this kernel refused; the warnings name each kernel, then its reasons."""
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
    """Whether float32 products on CUDA may round their factors to TF32, inside the `with`."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = wanted
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def attention_within(layer: nn.Module) -> Attention:
    """The attention of a layer with one head, as a function of q, k and v, each (B, 1, n, d).

    The layer has submodules q, k and v, from width 3 d to d, and o. All four are replaced: the
    input is q, k and v side by side, of which each takes its third, and o is the identity.
    """
    for place, name in enumerate(("q", "k", "v")):
        setattr(layer, name, _Third(place))
    layer.o = nn.Identity()
    call: Callable[[Tensor], Tensor] = layer

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return call(torch.cat([q, k, v], dim=-1).squeeze(1)).unsqueeze(1)

    return attend


class _Third(nn.Module):
    """(..., 3 d) -> (..., d): the first, second or third part."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self._place = place

    def forward(self, x: Tensor) -> Tensor:
        return x.chunk(3, dim=-1)[self._place]
