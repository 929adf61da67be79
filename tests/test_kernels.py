"""The claims about a GPU's kernels: their bodies on the CPU, which has two kernels of its own."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend
from torch.utils._python_dispatch import TorchDispatchMode

import transformer
from claims.beyond import test_fused_kernels as module
from claims.harness import Check, Draws, Refuted
from claims.harness.check import Record
from claims.harness.ledger import load_ledger
from claims.harness.paths import LEDGER
from claims.instruments.attention import kernels, tiled
from claims.instruments.attention.kernels import (
    attention_within,
    measure_kernels,
    products_in_tf32,
    reason,
)

CPU = torch.device("cpu")
BODIES = {
    "fused-error-on-the-gpu": module.test_fused_attention_on_the_gpu_errs_at_most_twice_the_plain,
    "fused-error-in-tf32-on-the-gpu": (
        module.test_fused_attention_on_the_gpu_errs_at_most_twice_the_plain_in_tf32
    ),
    "fused-error-in-float16-on-the-gpu": (
        module.test_fused_attention_on_the_gpu_errs_at_most_twice_the_plain_in_float16
    ),
    "fused-error-in-bfloat16-on-the-gpu": (
        module.test_fused_attention_on_the_gpu_errs_at_most_twice_the_plain_in_bfloat16
    ),
}
WAYS = ("with a mask", "told that it is causal")
SDPA = F.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GPU_SIZE", (32, 16))


class FakeTf32(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Products of float32 as a GPU makes them, where TF32 is on: of numbers with 10 bits."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        products = (torch.ops.aten.mm.default, torch.ops.aten.bmm.default)
        if func in products and torch.backends.cuda.matmul.allow_tf32:
            args = [self._rounded(x) for x in args]
        return func(*args, **(kwargs or {}))

    def _rounded(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            return x
        bits = x.contiguous().view(torch.int32) + (1 << 12)
        return (bits & ~((1 << 13) - 1)).view(torch.float32)


def run_body(claim: str) -> list[Record]:
    check = Check(load_ledger(LEDGER)[claim], "")
    with FakeTf32():
        BODIES[claim](transformer, check, Draws(17, claim), CPU)  # type: ignore[arg-type]
    return check.records


@pytest.mark.parametrize("claim", BODIES)
def test_a_claim_s_body_holds_on_the_cpu_and_says_what_was_not_offered(claim: str) -> None:
    first, *others = run_body(claim)
    assert first.measured == ["explicit", *(f"MATH, {way}" for way in WAYS)]
    refused = {f"{name}_ATTENTION, {way}" for name in ("EFFICIENT", "CUDNN") for way in WAYS}
    assert set(first.facts["not offered"]) == refused
    assert all("No viable backend" in why for why in first.facts["not offered"].values())
    compared = [(r.facts["path"], r.facts["part"]) for r in others if "path" in r.facts]
    ran = [f"{name}, {way}" for name in ("MATH", "FLASH_ATTENTION") for way in WAYS]
    parts = ("output", "dq", "dk", "dv")
    assert compared == [(path, part) for path in ("explicit", *ran) for part in parts]


def test_float32_and_tf32_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    single = run_body("fused-error-on-the-gpu")[-1].measured
    tf32 = run_body("fused-error-in-tf32-on-the-gpu")[-1].measured
    assert single < 10 < 1000 < tf32
    # A GPU that has no TF32, and a switch that stays on.
    monkeypatch.setattr(FakeTf32, "_rounded", lambda self, x: x)
    with pytest.raises(Refuted, match="in TF32"):
        run_body("fused-error-in-tf32-on-the-gpu")


def test_tf32_that_stays_on_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "products_in_tf32", lambda wanted: products_in_tf32(True))
    with pytest.raises(Refuted, match="in float32"):
        run_body("fused-error-on-the-gpu")


@pytest.mark.parametrize("claim", BODIES)
@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("part", ["output", "dv"])
def test_one_bad_kernel_in_one_way_refutes(
    monkeypatch: pytest.MonkeyPatch, claim: str, told: bool, part: str
) -> None:
    """Wrong by 5 % of the values, in the output or in a gradient."""

    def worse(q: Tensor, k: Tensor, v: Tensor, mask: Any = None, **options: Any) -> Tensor:
        output = SDPA(q, k, v, mask, **options)
        if not torch.backends.cuda.flash_sdp_enabled() or options.get("is_causal", False) != told:
            return output
        bad = 0.05 * v
        return output + (bad.detach() if part == "output" else bad - bad.detach())

    monkeypatch.setattr(F, "scaled_dot_product_attention", worse)
    way = WAYS[told]
    with pytest.raises(Refuted, match=f"path: FLASH_ATTENTION, {way}; part: {part}"):
        run_body(claim)


def test_bad_explicit_attention_refutes(monkeypatch: pytest.MonkeyPatch) -> None:
    explicit = transformer.attention

    def worse(*args: Any, **options: Any) -> Tensor:
        return explicit(*args, **options) * (1 if options["fused"] else 1.05)

    monkeypatch.setattr(transformer, "attention", worse)
    with pytest.raises(Refuted, match="path: explicit; part: output"):
        run_body("fused-error-in-float16-on-the-gpu")


def test_a_device_without_plain_operations_refutes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*args: Any, **options: Any) -> Tensor:
        raise RuntimeError("No available kernel. Aborting execution.")

    monkeypatch.setattr(F, "scaled_dot_product_attention", refuses)
    with pytest.raises(Refuted, match="No available kernel"):
        run_body("fused-error-in-float16-on-the-gpu")


def test_a_kernel_that_accepts_and_then_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **options: Any) -> Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(F, "scaled_dot_product_attention", fails)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        run_body("fused-error-in-float16-on-the-gpu")


# What torch says on CUDA when no kernel takes what it was given, in this order.
SAID = (
    "Memory efficient kernel not used because: (Triggered internally at x.cpp:1.)",
    "Memory Efficient attention has been runtime disabled. (Triggered internally at x.cpp:2.)",
    "Flash attention kernel not used because: (Triggered internally at x.cpp:3.)",
    "Flash Attention does not support non-null attn_mask. (Triggered internally at x.cpp:4.)",
    "Expected query, key and value to all be of dtype: {Half, BFloat16}.",
    "CuDNN attention kernel not used because: (Triggered internally at x.cpp:5.)",
    "cuDNN attention has been runtime disabled.",
)


def test_the_reasons_are_those_of_the_kernel_that_was_asked() -> None:
    assert reason(SDPBackend.FLASH_ATTENTION, SAID) == (
        "Flash Attention does not support non-null attn_mask.; "
        "Expected query, key and value to all be of dtype: {Half, BFloat16}."
    )
    assert "Memory Efficient" in reason(SDPBackend.EFFICIENT_ATTENTION, SAID)
    assert reason(SDPBackend.CUDNN_ATTENTION, SAID) == "cuDNN attention has been runtime disabled."
    assert reason(SDPBackend.FLASH_ATTENTION, []) == ""


def test_what_a_kernel_says_is_kept_whether_it_refuses_or_runs() -> None:
    def talks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        warnings.warn("slower than need be", stacklevel=1)
        if torch.backends.cuda.flash_sdp_enabled():
            for line in SAID:
                warnings.warn(line, stacklevel=1)
            raise RuntimeError("No available kernel. Aborting execution.")
        return plain(q, k, v)

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tiled.plain_attention(q, k, v, transformer.causal_mask(q.shape[-2]))

    draws = [torch.randn(2, 1, 4, 3, generator=torch.Generator()) for _ in range(4)]
    found = measure_kernels(plain, {"so": talks}, draws, torch.float32, CPU)
    assert "non-null attn_mask" in found.refused["FLASH_ATTENTION, so"]
    assert found.warned["MATH, so"] == ["slower than need be"]
    assert "MATH, so" in found.shares
    assert "FLASH_ATTENTION, so" not in found.shares


def test_every_kernel_of_torch_is_asked() -> None:
    """Those that are no kernel, or another device's, aside."""
    others = {"ERROR", "OVERRIDEABLE"}
    assert {k.name for k in kernels.KERNELS} == set(SDPBackend.__members__) - others


@pytest.fixture
def tf32_off() -> Iterator[None]:
    yield
    torch.backends.cuda.matmul.allow_tf32 = False


def test_tf32_is_set_back_after_an_error(tf32_off: None) -> None:
    def fails() -> None:
        with products_in_tf32(True):
            assert torch.backends.cuda.matmul.allow_tf32
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert not torch.backends.cuda.matmul.allow_tf32


def test_attention_within_a_layer_is_that_of_the_formula() -> None:
    layer = transformer.MultiHeadAttention(9, 1, d_head=3, fused=True)
    attend = attention_within(layer)
    q, k, v = (torch.randn(2, 1, 4, 3, dtype=torch.float64) for _ in range(3))
    scores = (q @ k.mT / math.sqrt(3)).masked_fill(~torch.ones(4, 4).tril().bool(), -math.inf)
    assert attend(q, k, v).shape == (2, 1, 4, 3)
    torch.testing.assert_close(attend(q, k, v), scores.softmax(-1) @ v)
