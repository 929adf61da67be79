"""The memory instrument where CUDA does something in another way than the meta device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from claims.instruments.cost.memory import Footprint, measure

KIB = 2**10
X = 4 * KIB  # bytes of x, and of what is made of it number by number


def meta(
    *shape: int, dtype: torch.dtype = torch.float32, requires_grad: bool = False
) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta", requires_grad=requires_grad)


@pytest.fixture
def x() -> Tensor:
    return meta(KIB, requires_grad=True)


def above_baseline(step: Callable[[], object], **named: Any) -> int:
    """The peak in bytes, less what was there before and cuBLAS's workspaces."""
    footprint = measure(step, named=named)
    return footprint.peak - footprint.baseline - footprint.workspace


def test_dropout_keeps_a_mask_of_a_byte_per_number(x: Tensor) -> None:
    def step(p: float, training: bool = True) -> int:
        return above_baseline(lambda: F.dropout(x, p, training).sum(), x=x)

    assert step(0.1) == X + KIB + 512
    assert step(0.1, training=False) == 512
    assert step(0.0) == 512
    assert step(1.0) == X + 512 + 512
    with torch.inference_mode():
        assert step(0.1) == X + KIB  # nothing saves the mask


Q = (1, 8, 1024, 64)
E, S = 1024 * 512, 8 * 1024 * 1024  # numbers in an activation, and in the scores
SEEDS = 2 * 512


def attend(dtype: torch.dtype, grad: bool = False, **settings: Any) -> Footprint:
    q, k, v = (meta(*Q, dtype=dtype, requires_grad=grad) for _ in range(3))
    return measure(
        lambda: F.scaled_dot_product_attention(q, k, v, **settings),
        named={"q": q, "k": k, "v": v},
    )


@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention_has_no_tensor_of_n_by_n(causal: bool) -> None:
    fused = attend(torch.float32, is_causal=causal)
    assert fused.peak - fused.baseline == 4 * E + SEEDS
    assert fused.at == "_scaled_dot_product_efficient_attention"
    # With gradients also the logarithm of each query's sum.
    fused = attend(torch.float32, grad=True, is_causal=causal)
    assert fused.peak - fused.baseline == 4 * E + SEEDS + 8 * 1024 * 4
    with torch.no_grad():
        fused = attend(torch.float32, grad=True, is_causal=causal)
    assert fused.peak - fused.baseline == 4 * E + SEEDS
    for dtype in (torch.float16, torch.bfloat16):
        fused = attend(dtype, is_causal=causal)
        assert fused.at == "_scaled_dot_product_flash_attention"
        assert fused.peak - fused.baseline <= 2 * E + 2 * SEEDS + 8 * 1024 * 4
        assert not of_scores(fused)


def test_flash_attention_pads_heads_to_a_multiple_of_eight() -> None:
    q = meta(1, 8, 128, 20, dtype=torch.float16)
    footprint = measure(lambda: F.scaled_dot_product_attention(q, q, q), named={"q": q})
    padded = 8 * 128 * 24 * 2
    assert [a.bytes for a in footprint.alive if a.shape[-1:] == (24,)] == [padded] * 4


def test_mask_of_fused_attention_is_one_for_all_heads() -> None:
    for dtype in (torch.float32, torch.float16):
        mask = meta(1024, 1024, dtype=torch.bool)
        fused = attend(dtype, attn_mask=mask)
        assert fused.peak - fused.baseline == dtype.itemsize * (E + 1024 * 1024) + SEEDS
        assert of_scores(fused) == ["read by where", "where"]
    q, mask = meta(1, 2, 9, 8), meta(9, 9)
    footprint = measure(lambda: F.scaled_dot_product_attention(q, q, q, mask), named={"q": q})
    assert (9, 16) in {a.shape for a in footprint.alive}, "the rows of the mask are padded"


def of_scores(footprint: Footprint) -> list[str]:
    return [a.name for a in footprint.alive if a.shape[-2:] == (1024, 1024)]


def ruled_out() -> Footprint:
    with sdpa_kernel(SDPBackend.MATH):
        return attend(torch.float32)


@pytest.mark.parametrize(
    "plain", [lambda: attend(torch.float64), ruled_out], ids=["float64", "ruled out"]
)
def test_where_no_fused_kernel_fits_there_are_scores_and_weights(
    plain: Callable[[], Footprint]
) -> None:
    footprint = plain()
    assert footprint.peak - footprint.baseline > 2 * 4 * S
    assert len(of_scores(footprint)) >= 2


def test_softmax_of_half_precision_in_float32_makes_no_copy() -> None:
    for dtype, copy in ((torch.float16, 0), (torch.bfloat16, X)):
        x = meta(4, 256, dtype=dtype)
        assert above_baseline(lambda x=x: F.softmax(x, -1, dtype=torch.float32), x=x) == X + copy
        assert above_baseline(lambda x=x: x.log_softmax(-1, torch.float32), x=x) == X + copy


def test_optimizers_work_on_all_tensors_at_once() -> None:
    parameters = [meta(KIB, requires_grad=True) for _ in range(10)]
    for parameter in parameters:
        parameter.grad = meta(KIB)
    # One after the other: a square root, its quotient, and the quotient before it.
    for foreach, temporaries in ((None, 10), (True, 10), (False, 3)):
        optimizer = torch.optim.Adam(parameters, foreach=foreach)
        known: dict[str, Any] = {"optimizer": optimizer}
        measure(optimizer.step, named=known)
        footprint = measure(optimizer.step, named=known)
        assert footprint.baseline == 10 * 4 * X  # parameters, gradients, two moments
        assert footprint.peak - footprint.baseline == temporaries * X


def test_gradients_are_clipped_all_at_once() -> None:
    parameters = [meta(KIB, requires_grad=True) for _ in range(10)]
    for parameter in parameters:
        parameter.grad = meta(KIB)
    known = {str(i): parameter for i, parameter in enumerate(parameters)}
    clip = nn.utils.clip_grad_norm_
    norms = 10 * 512
    footprint = measure(lambda: clip(parameters, 1.0), named=known)
    assert "_foreach_norm" in {allocation.name for allocation in footprint.alive}
    assert 0 < footprint.peak - footprint.baseline <= 2 * norms + 4 * 512


def test_inference_mode_measures_what_no_grad_does() -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, device="meta").train()
    x = meta(2, 16, 64)

    def measured(mode: Any) -> Footprint:
        with mode:
            return measure(lambda: layer(x), named={"layer": layer, "x": x})

    assert measured(torch.inference_mode()) == measured(torch.no_grad())


# Autocast. The matrix of weights has 64 KiB, in half precision 32; x 4 and 2; a product 2.


@pytest.fixture
def weight() -> Tensor:
    return meta(128, 128, requires_grad=True)


def in_autocast(
    step: Callable[[Tensor, Tensor], object], weight: Tensor, **settings: Any
) -> Footprint:
    x = meta(8, 128, requires_grad=True)

    def run() -> object:
        with torch.autocast("cuda", dtype=torch.bfloat16, **settings):
            return step(x, weight)

    return measure(run, named={"x": x, "weight": weight}, workspace=0)


def twice(x: Tensor, weight: Tensor) -> object:
    return F.linear(x, weight), F.linear(x, weight)


def test_autocast_casts_a_weight_once(weight: Tensor) -> None:
    # x is a leaf that requires a gradient, as weights are, and so is cast once as well.
    kept = in_autocast(twice, weight)
    assert kept.peak - kept.baseline == (32 + 2 + 2 * 2) * KIB
    uncached = in_autocast(twice, weight, cache_enabled=False)
    assert uncached.peak - uncached.baseline == 2 * (32 + 2 + 2) * KIB
    off = in_autocast(twice, weight, enabled=False)
    assert off.peak - off.baseline == 2 * 4 * KIB


def test_autocast_drops_its_casts_at_the_end_of_the_outermost_block(weight: Tensor) -> None:
    x = meta(8, 128)

    def step() -> None:
        with torch.no_grad(), torch.autocast("cuda"):
            with torch.autocast("cuda"):
                F.linear(x, weight)
            y = F.linear(x, weight)  # uses the same cast
        y.new_empty(1_000 * KIB, dtype=torch.uint8)

    assert above_baseline(step, x=x, weight=weight) == (1_000 + 2) * KIB


def test_autocast_takes_float32_where_cuda_does(weight: Tensor) -> None:
    seen: dict[str, torch.dtype] = {}

    def step(x: Tensor, weight: Tensor) -> None:
        half = F.linear(x, weight)
        target = torch.zeros(8, dtype=torch.int64, device="meta")
        results = {
            "linear": half, "matmul": x @ x.t(), "einsum": torch.einsum("ij,kj->ik", x, x),
            "attention": F.scaled_dot_product_attention(*[x[None, None]] * 3),
            "softmax": half.softmax(-1), "layer norm": F.layer_norm(half, (128,)),
            "loss": F.cross_entropy(half, target), "sum": half.sum(), "exp": half.exp(),
            "gelu": F.gelu(half), "add": half + x, "widest": torch.addcmul(x, half, half),
            "narrow": torch.addcmul(half, half, half), "float64": x.double() @ x.double().t(),
        }  # fmt: skip
        seen.update({name: result.dtype for name, result in results.items()})

    in_autocast(step, weight)
    half, single = torch.bfloat16, torch.float32
    assert seen == {
        "linear": half, "matmul": half, "einsum": half, "attention": half, "softmax": single,
        "layer norm": single, "loss": single, "sum": single, "exp": single, "gelu": half,
        "add": single, "widest": single, "narrow": half, "float64": torch.float64,
    }  # fmt: skip


def test_autocast_tells_weights_apart() -> None:
    x = meta(8, 128)

    def step() -> None:
        with torch.no_grad(), torch.autocast("cuda"):
            for width in range(1, 100):  # each may lie where an earlier one lay
                weight = meta(width, 128, requires_grad=True)
                assert F.linear(x, weight).shape == (8, width)
                del weight

    measure(step, named={"x": x})


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_under_the_same_autocast(reentrant: bool, weight: Tensor) -> None:
    x = meta(8, 128, requires_grad=True)
    seen: list[torch.dtype] = []

    def block(y: Tensor, weight: Tensor) -> Tensor:
        y = F.linear(y, weight)
        seen.append(y.dtype)
        return y.exp()

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = checkpoint(block, x, weight, use_reentrant=reentrant)
        y.sum().backward()

    measure(step, named={"x": x, "weight": weight})
    assert seen == [torch.bfloat16] * 2


def test_autocast_may_be_on_already(weight: Tensor) -> None:
    x = meta(8, 128)
    torch.set_autocast_enabled("cuda", True)
    try:
        footprint = measure(lambda: F.linear(x, weight), named={"x": x, "weight": weight})
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert torch.float16 in {a.dtype for a in footprint.alive}
    assert not torch.is_autocast_enabled("privateuseone")
