"""The memory instrument against sums done by hand, and what it says where it cannot measure.

`test_memory_on_cpu` compares it with the CPU's allocator, `test_memory_of_attention` with the
chapter's table.
"""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from claims.instruments.memory import Footprint, following, measure, workspace_bytes
from claims.instruments.memory.allocator import block_bytes, largest_block_bytes

KIB, MIB = 2**10, 2**20
WORKSPACE = (2 * 4096 + 8 * 16) * KIB
settled = settings(max_examples=50, deadline=None, derandomize=True)


def meta(
    *shape: int, dtype: torch.dtype = torch.float32, requires_grad: bool = False
) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta", requires_grad=requires_grad)


def on_meta(make: Callable[[], Any]) -> Any:
    with torch.device("meta"):
        return make()


def above_baseline(step: Callable[[], object], **named: Any) -> int:
    """The peak in bytes, less what was there before and cuBLAS's workspaces."""
    footprint = measure(step, named=named)
    return footprint.peak - footprint.baseline - footprint.workspace


def names(footprint: Footprint) -> list[str]:
    return [allocation.name for allocation in footprint.alive]


# The lives of storages. x and whatever is made of it have 1,024 numbers, 4 KiB.

X = 4 * KIB


@pytest.fixture
def x() -> Tensor:
    return meta(KIB, requires_grad=True)


def test_inputs_and_output_of_an_operation_are_there_at_once() -> None:
    x = meta(4, KIB // 4)
    footprint = measure(lambda: x + 1, named={"x": x})
    assert (footprint.baseline, footprint.peak, footprint.at) == (X, 2 * X, "add")
    assert names(footprint) == ["x", "add"]
    assert {(a.shape, a.dtype, a.bytes) for a in footprint.alive} == {
        ((4, KIB // 4), torch.float32, X)
    }


def keeps(x: Tensor) -> object:
    return x + 1, x + 2, x + 3


def deletes(x: Tensor) -> None:
    a = x + 1
    del a
    b = x + 2
    del b
    x + 3


def rebinds(x: Tensor) -> None:
    a = x + 1
    for i in (2, 3):
        a = x + i  # the old one is dropped when the new one is there
    del a


def returns(x: Tensor) -> None:
    def f() -> None:
        held = x + 1
        assert held.shape == x.shape

    f(), f(), f()


def clears(x: Tensor) -> None:
    a = [x + 1, x + 2]
    a.clear()
    a.append(x + 3)


def views(x: Tensor) -> None:
    a = x + 1
    view = a[:1]
    del a
    b = x + 2  # the view keeps all of a
    del view, b
    x + 3


def chains(x: Tensor) -> None:
    ((x + 1) + 2) + 3


@pytest.mark.parametrize(
    ("step", "at_once"),
    [(keeps, 3), (deletes, 1), (rebinds, 2), (returns, 1), (clears, 2), (views, 2), (chains, 2)],
)
def test_memory_is_freed_when_python_drops_it(
    step: Callable[[Tensor], object], at_once: int, x: Tensor
) -> None:
    with torch.no_grad():
        assert above_baseline(lambda: step(x), x=x) == at_once * X


ACTIONS = st.tuples(st.sampled_from(["make", "view", "drop"]), st.integers(0, 3))


@given(st.lists(ACTIONS, max_size=20))
@settled
def test_memory_of_any_program_is_that_of_what_its_variables_hold(
    program: list[tuple[str, int]]
) -> None:
    """Four variables, bound in turn to new tensors of 1, 2, 3... KiB, views of others, and None."""
    x = meta(256)

    def step() -> None:
        x + 1
        bound: list[Tensor | None] = [None] * 4
        for size, (action, i) in enumerate(program, start=1):
            if action == "make":
                bound[i] = x.new_empty(256 * size)
            else:
                other = bound[i - 1] if action == "view" else None
                bound[i] = None if other is None else other[:1]
                del other

    most, held = KIB, [0] * 4  # the KiB of a tensor tell it from the others
    for size, (action, i) in enumerate(program, start=1):
        if action == "make":
            most = max(most, KIB * sum({*held, size}))
        held[i] = {"make": size, "view": held[i - 1], "drop": 0}[action]
    assert above_baseline(step, x=x) == most


def out_is_given(x: Tensor) -> None:
    torch.add(x, 1, out=x)


@pytest.mark.parametrize(
    "step",
    [
        lambda x: x[1:].view(-1, 1).t().expand(5, -1).detach(),
        lambda x: x.add_(1).mul_(2).clamp_(0),
        lambda x: F.relu(x, inplace=True),
        lambda x: x.untyped_storage(),
        out_is_given,
    ],
)
def test_views_and_operations_in_place_allocate_nothing(step: Callable[[Tensor], object]) -> None:
    x = meta(KIB)
    assert above_baseline(lambda: (step(x), x.zero_()), x=x) == 0


def test_resizing_needs_the_old_block_and_the_new_one() -> None:
    out = meta(KIB)

    def step() -> None:
        out.resize_(3 * KIB)
        torch.empty(KIB, device="meta")

    footprint = measure(step, named={"out": out})
    assert (footprint.peak, footprint.at) == (X + 3 * X, "resize_")
    out = meta(0)
    assert above_baseline(lambda: torch.add(meta(KIB), 1, out=out)) == 2 * X


def test_tensors_in_cycles_count_to_the_end(x: Tensor) -> None:
    class Node:
        def __init__(self) -> None:
            self.me, self.tensor = self, x + 1

    def step() -> None:
        for _ in range(3):
            Node()
        gc.collect(0)  # stands for a collection that comes by itself
        x + 1

    assert gc.isenabled()
    with torch.no_grad():
        expected = 3 * X  # without the collection 4 * X
        assert above_baseline(step, x=x) == expected
        assert above_baseline(lambda: [Node() for _ in range(2_000)], x=x) == 2_000 * X
    assert gc.isenabled()


def test_saved_tensors_stay_until_the_backward_pass_frees_them(x: Tensor) -> None:
    def forward() -> Tensor:
        y = x
        for _ in range(5):
            y = y.exp()  # saves its result
        return y

    with torch.no_grad():
        assert above_baseline(forward, x=x) == 2 * X
    assert above_baseline(forward, x=x) == 5 * X
    g = meta(KIB)
    # On the second step back: the five results, of which the caller holds the last; the gradient of
    # the last one but one; and the one before it, that is being made.
    assert above_baseline(lambda: forward().backward(g), x=x, g=g) == 7 * X

    def twice() -> None:
        forward().backward(g)
        forward().backward(g)

    x.grad = None
    assert above_baseline(twice, x=x, g=g) == 8 * X  # and the first gradient of x
    x.grad = None
    y = forward()
    footprint = measure(lambda: y.backward(g), named={"x": x, "g": g, "y": y})
    assert footprint.baseline == 7 * X, "what was saved before counts from the start"
    assert footprint.peak == 9 * X


def test_checkpoint_saves_its_input_and_computes_again(x: Tensor) -> None:
    def block(y: Tensor) -> Tensor:
        for _ in range(5):
            y = y.exp()
        return y

    g = meta(KIB)

    def step(run: Callable[..., Tensor]) -> None:
        y = x
        for _ in range(4):
            y = run(block, y)
        y.backward(g)

    plain = above_baseline(lambda: step(lambda f, y: f(y)), x=x, g=g)
    x.grad = None
    assert plain == (4 * 5 + 2) * X
    for reentrant in (False, True):

        def run(f: Callable[[Tensor], Tensor], y: Tensor, reentrant: bool = reentrant) -> Tensor:
            result: Tensor = checkpoint(f, y, use_reentrant=reentrant)
            return result

        # The outputs of four blocks, the five results of the last one, and a gradient; then a
        # gradient more and a result less, unless the output is held meanwhile.
        assert above_baseline(lambda: step(run), x=x, g=g) == (10 + reentrant) * X
        x.grad = None


# Names


def test_everything_named_is_reported_by_its_name() -> None:
    model = on_meta(lambda: nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8)))
    tied = model[0].weight
    optimizer = torch.optim.AdamW([*model.parameters(), unnamed := meta(3, requires_grad=True)])
    x = meta(4, 8, requires_grad=True)
    known: dict[str, Any] = {"net": model, "opt": optimizer, "x": x, "tied": tied}

    def step() -> None:
        model(x).sum().add(unnamed.sum()).backward()
        optimizer.step()

    first = measure(step, named=known)
    weights = ["net.0.weight", "net.1.weight", "net.1.bias"]
    buffers = ["net.1.running_mean", "net.1.running_var", "net.1.num_batches_tracked"]
    gradients = [f"{name}.grad" for name in [*weights, "x"]]
    moments = [
        f"opt.state[{name}].{key}" for name in [*weights, "3"] for key in ("exp_avg", "exp_avg_sq")
    ]
    assert first.at == "_foreach_sqrt"
    assert set(names(first)) == {
        *weights, *buffers, *gradients, *moments, "x", "read by sum", "_foreach_sqrt",
        "new_empty_strided",  # the gradient of the unnamed parameter
        "cuBLAS workspace", "cuBLAS workspace of autograd's thread",
    }  # fmt: skip
    second = measure(lambda: x + 1, named=known)
    assert set(names(second)) == {*weights, *buffers, *gradients, *moments, "x", "add"}
    assert second.baseline == second.peak - block_bytes(4 * 8 * 4)


def test_what_is_read_was_there_before(x: Tensor) -> None:
    unnamed, never_read = meta(2 * KIB), meta(4 * KIB)

    def step() -> None:
        x + 1
        unnamed + 1

    with torch.no_grad():
        footprint = measure(step, named={"x": x})
    assert (footprint.baseline, footprint.peak) == (X + 2 * X, X + 2 * X + 2 * X)
    assert names(footprint) == ["x", "read by add", "add"]
    assert never_read.numel()


def test_inputs_may_be_dropped_on_the_way() -> None:
    xs = [meta(KIB), meta(KIB)]

    def step() -> None:
        xs.pop()
        xs[0] + 1

    footprint = measure(step, named={"a": xs[0], "b": xs[1]})
    assert footprint.peak == 3 * X, "the caller's mapping holds both"


# Rounding, blocks, cuBLAS


@pytest.mark.parametrize(
    ("requested", "block"), [(0, 0), (1, 512), (512, 512), (513, 1024), (MIB - 1, MIB)]
)
def test_blocks_are_multiples_of_512_bytes(requested: int, block: int) -> None:
    assert block_bytes(requested) == block
    assert block_bytes(requested, granule=1) == requested


def test_every_storage_is_rounded_up_by_itself() -> None:
    def step() -> list[Tensor]:
        return [torch.empty(1, device="meta") for _ in range(10)]

    assert above_baseline(step) == 10 * 512
    assert measure(step, named={}, granule=1).peak == 10 * 4


@pytest.mark.parametrize(
    ("requested", "largest"),
    [(0, 0), (1, 512), (MIB, MIB), (MIB + 1, 2 * MIB + 512), (64 * MIB, 65 * MIB)],
)
def test_blocks_above_a_mebibyte_may_be_a_mebibyte_larger(requested: int, largest: int) -> None:
    assert largest_block_bytes(requested) == largest


def test_ceiling_bounds_what_is_not_split() -> None:
    x = meta(3 * MIB // 4)
    footprint = measure(lambda: x + 1, named={"x": x})
    assert (footprint.peak, footprint.ceiling) == (6 * MIB, 8 * MIB)


@pytest.mark.parametrize(
    ("config", "size"),
    [(":4096:2:16:8", WORKSPACE), (":4096:8", 32 * MIB), (":16:8", 128 * KIB), (":0:0", 0)],
)
def test_workspace_configurations(config: str, size: int) -> None:
    assert workspace_bytes(config) == size


@pytest.mark.parametrize(
    "config", ["", "4096:2", ":4096", ":4096:2:16", ":4096:-2", ":4096:2 ", "8 MiB", ":٤:٢"]
)
def test_other_workspace_configurations_are_refused(config: str) -> None:
    said = rf"^'{config}' is no CUBLAS_WORKSPACE_CONFIG: .*':4096:2:16:8'$"
    with pytest.raises(ValueError, match=said):
        workspace_bytes(config)


def test_workspace_is_there_once_a_product_has_been_computed() -> None:
    a = meta(32, 32, requires_grad=True)

    def step(products: int, backward: bool = False) -> Callable[[], None]:
        def run() -> None:
            y = a + 1
            for _ in range(products):
                y = y @ y
            if backward:
                y.backward(y.detach())

        return run

    assert measure(step(0), named={"a": a}).workspace == 0
    for products in (1, 3):
        footprint = measure(step(products), named={"a": a})
        assert footprint.workspace == WORKSPACE == 8_519_680
        assert names(footprint).count("cuBLAS workspace") == 1
        assert footprint.peak == sum(block.bytes for block in footprint.alive)
    assert measure(step(1, backward=True), named={"a": a}).workspace == 2 * WORKSPACE
    assert measure(step(1), named={"a": a}, workspace=1000).workspace == 1024
    assert measure(step(1), named={"a": a}, workspace=0).workspace == 0


def test_operands_that_blas_cannot_read_are_copied() -> None:
    """A matrix that is one row, repeated, or has gaps in both directions."""
    a, row = meta(32, 32), meta(1, 32)

    def peak(left: Tensor) -> int:
        return above_baseline(lambda: left @ a, a=a, row=row)

    product = 32 * 32 * 4
    assert peak(a.t()) == peak(a[:, :32]) == product
    assert peak(row.expand(32, 32)) == 2 * product
    gaps = meta(64, 64)[::2, ::2]
    assert above_baseline(lambda: gaps @ a, a=a) == 2 * product
    batch = meta(2, 32, 32)
    assert above_baseline(lambda: batch.mT @ a.expand(2, 32, 32), b=batch) == 2 * product
    assert above_baseline(lambda: batch @ row.expand(2, 32, 32), b=batch, row=row) == 4 * product
    x = meta(8, 32, 32)
    assert above_baseline(lambda: x.mT.softmax(-1), x=x) == 16 * product


# What CUDA does in another way


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
    assert "_foreach_norm" in names(footprint)
    assert 0 < footprint.peak - footprint.baseline <= 2 * norms + 4 * 512


def test_inference_mode_measures_what_no_grad_does() -> None:
    layer = on_meta(lambda: nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)).train()
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
            "float64": x.double() @ x.double().t(),
        }  # fmt: skip
        seen.update({name: result.dtype for name, result in results.items()})

    in_autocast(step, weight)
    half, single = torch.bfloat16, torch.float32
    assert seen == {
        "linear": half, "matmul": half, "einsum": half, "attention": half, "softmax": single,
        "layer norm": single, "loss": single, "sum": single, "exp": single, "gelu": half,
        "add": single, "widest": single, "float64": torch.float64,
    }  # fmt: skip


def test_recomputation_is_under_the_same_autocast(weight: Tensor) -> None:
    def block(y: Tensor, weight: Tensor) -> Tensor:
        return F.linear(y, weight).relu()

    for reentrant in (False, True):

        def step(x: Tensor, weight: Tensor, reentrant: bool = reentrant) -> None:
            checkpoint(block, x, weight, use_reentrant=reentrant).sum().backward()

        footprint = in_autocast(step, weight)
        assert any(a.dtype == torch.bfloat16 for a in footprint.alive)


# What cannot be measured


READERS: dict[str, tuple[str, Callable[[Tensor], object]]] = {
    "item": ("Tensor.item", lambda x: x.sum().item()),
    "bool": ("Tensor.item", lambda x: bool(x.sum())),
    "float": ("Tensor.item", lambda x: float(x.detach().sum())),
    "allclose": ("Tensor.item", lambda x: torch.allclose(x, x)),
    "tolist": ("x.tolist", lambda x: x.tolist()),
    "numpy": ("numpy", lambda x: x.detach().numpy()),
    "cpu": ("_to_copy", lambda x: x.cpu()),
    "nonzero": ("nonzero", lambda x: (x > 0).nonzero()),
    "indexing": ("index", lambda x: x[x > 0]),
    "unique": ("_unique2", lambda x: x.unique()),
    "equal": ("equal", lambda x: torch.equal(x, x)),
}  # fmt: skip


@pytest.mark.parametrize(("operation", "step"), READERS.values(), ids=READERS)
def test_operations_that_need_data_are_named(
    operation: str, step: Callable[[Tensor], object], x: Tensor
) -> None:
    with pytest.raises(ValueError, match="cannot run on the meta device, which has") as error:
        measure(lambda: step(x), named={"x": x})
    message = str(error.value)
    assert operation in message
    assert f"({__file__}, line " in message
    assert "lambda x: " in message, "the line of code is quoted"


def test_failures_in_the_backward_pass_are_named(x: Tensor) -> None:
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0] * gradients[0].max().item()

    with pytest.raises(ValueError, match=r"`return gradients.0. .*item.*cannot run on the meta"):
        measure(lambda: Reads.apply(x).sum().backward(), named={"x": x})


@pytest.mark.parametrize(
    "step",
    [
        lambda x: x + torch.ones(KIB),
        lambda x: torch.where(torch.ones(KIB) > 0, x, 0.0),
        lambda x: x[torch.tensor([1, 2])],
        lambda x: torch.cat([x, torch.ones(3)]),
    ],
    ids=["add", "where", "index", "cat"],
)
def test_mixing_devices_is_an_error(step: Callable[[Tensor], object], x: Tensor) -> None:
    said = r"^\w+ mixes tensors on the meta device with one on cpu of shape \(\d+,\)$"
    with pytest.raises(ValueError, match=said):
        measure(lambda: step(x), named={"x": x})


def test_numbers_and_copies_from_the_host_are_allowed(x: Tensor) -> None:
    def step() -> None:
        x + torch.tensor(1.0)
        torch.ones(KIB).to("meta")
        torch.arange(5) + torch.arange(5)

    with torch.no_grad():
        assert above_baseline(step, x=x) == X


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"x": torch.ones(3)}, "^x is on the device cpu: .*meta"),
        ({"net": nn.Linear(2, 2)}, "^net.weight is on the device cpu"),
        ({"x": meta(1, 0, 512)}, r"^x has no elements: its shape is \(1, 0, 512\)"),
        ({"x": 3}, "^x must be a tensor, a module or an optimizer, got int$"),
        ({"x": [meta(1)]}, "^x must be a tensor, a module or an optimizer, got list$"),
    ],
)
def test_what_cannot_be_followed_is_refused_before_anything_runs(named: Any, said: str) -> None:
    ran: list[int] = []
    with pytest.raises(ValueError, match=said):
        measure(lambda: ran.append(1), named=named)
    assert not ran


@pytest.mark.parametrize(("workspace", "granule"), [(-1, 512), (0, 0), (0, -512)])
def test_impossible_sizes_are_refused(workspace: int, granule: int) -> None:
    with pytest.raises(ValueError, match=rf"at least 1, got {workspace} and {granule}$"):
        measure(lambda: meta(1), named={}, workspace=workspace, granule=granule)


@pytest.mark.parametrize("step", [lambda: None, lambda: torch.ones(3) + 1])
def test_computing_on_the_host_is_an_error(step: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="nothing ran on the meta device"):
        measure(step, named={})


def test_sparse_tensors_are_refused() -> None:
    def sparse() -> Tensor:
        return torch.empty(3, 3, layout=torch.sparse_coo, device="meta")

    with pytest.raises(ValueError, match=r"^empty: .* torch.sparse_coo cannot be followed"):
        measure(sparse, named={})
    with pytest.raises(ValueError, match=r"^x: tensors of layout torch.sparse_coo cannot be"):
        measure(lambda: meta(1), named={"x": sparse()})


def test_footprint_needs_the_end_of_the_block(x: Tensor) -> None:
    with following({"x": x}) as trace:
        x + 1
        with pytest.raises(ValueError, match="when the block of `following` has ended"):
            trace.footprint()
    assert trace.footprint() == measure(lambda: x + 1, named={"x": x})


def test_errors_of_the_computation_pass(x: Tensor) -> None:
    class Own(RuntimeError): ...

    def fails(error: Exception) -> None:
        raise error

    for error in (Own("metadata"), NotImplementedError("forward"), KeyError("meta")):
        with pytest.raises(type(error)) as raised:
            measure(lambda error=error: fails(error), named={"x": x})
        assert raised.value is error
    with pytest.raises(RuntimeError, match="broadcast"):
        measure(lambda: x + meta(3), named={"x": x})


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_behind(fails: bool, x: Tensor) -> None:
    def state() -> list[object]:
        mlp = nn.Linear(2, 2)
        adam = torch.optim.Adam(on_meta(lambda: nn.Linear(2, 2)).parameters())
        return [
            gc.isenabled(), torch.is_autocast_enabled("cuda"), torch.get_rng_state().tolist(),
            torch.is_autocast_enabled("privateuseone"), torch.is_grad_enabled(),
            torch._C._dispatch_has_kernel_for_dispatch_key("aten::dropout", "AutogradMeta"),
            torch._C._dispatch_has_kernel_for_dispatch_key("aten::mm", "AutocastPrivateUse1"),
            torch.cuda.is_bf16_supported, torch.set_autocast_enabled, mlp(torch.ones(2)).dtype,
            torch._C._len_torch_dispatch_stack(), adam.defaults["foreach"],
            torch.utils._foreach_utils._get_foreach_kernels_supported_devices(),
        ]  # fmt: skip

    torch.manual_seed(0)
    before = state()

    def step() -> None:
        with torch.autocast("cuda"):
            F.dropout(x.view(32, 32) @ x.view(32, 32), 0.5).sum().backward()
            if fails:
                raise KeyError

    if fails:
        with pytest.raises(KeyError):
            measure(step, named={"x": x})
    else:
        measure(step, named={"x": x})
    torch.manual_seed(0)
    assert state() == before
