"""The memory instrument against sums done by hand: the lives of storages, names, blocks.

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
from torch.utils.checkpoint import checkpoint

from claims.instruments.cost.memory import Footprint, following, measure, workspace_bytes
from claims.instruments.cost.memory.allocator import block_bytes, largest_block_bytes

KIB, MIB = 2**10, 2**20
WORKSPACE = (2 * 4096 + 8 * 16) * KIB
settled = settings(max_examples=50, deadline=None, derandomize=True)


def meta(
    *shape: int, dtype: torch.dtype = torch.float32, requires_grad: bool = False
) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta", requires_grad=requires_grad)


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
    footprint = measure(lambda: (step(x), x.zero_()), named={"x": x})
    assert (footprint.peak, footprint.baseline, footprint.at) == (X, X, "start")


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

        def many() -> None:
            for _ in range(2_000):  # Python's collector would have come by
                Node()

        assert above_baseline(many, x=x) == 2_000 * X
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


def test_sum_that_a_backward_pass_computes_is_a_tensor(x: Tensor) -> None:
    """The gradient of atan2(a, b) has the sum of squares of a and b in its denominator."""
    with following({"x": x}) as trace:
        torch.atan2(x.sin(), x.cos()).sum().backward()
    assert [s.name for s in trace.storages].count("add") == 1
    x.grad = None
    with following({"x": x}) as trace:
        (x.sin() + x.cos()).sum().backward()  # the two gradients of x are added in place
    assert [s.name for s in trace.storages].count("add") == 1, "that of the forward pass"


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
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8)).to("meta")
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


def test_gradients_are_named_though_they_are_dropped(x: Tensor) -> None:
    def step() -> None:
        (x * 2).backward(meta(KIB))
        meta(KIB)
        x.grad = None

    footprint = measure(step, named={"x": x})
    assert "x.grad" in names(footprint)


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
    # One row with a stride of zero is contiguous, and read as it is, but not in a batch.
    line = meta(32).as_strided((1, 1, 32), (0, 0, 1))
    assert above_baseline(lambda: torch.mm(line[0], a), a=a, line=line) == 512
    assert above_baseline(lambda: torch.bmm(line, a[None]), a=a, line=line) == 2 * 512
    batch = meta(2, 32, 32)
    assert above_baseline(lambda: batch.mT @ a.expand(2, 32, 32), b=batch) == 2 * product
    assert above_baseline(lambda: batch @ row.expand(2, 32, 32), b=batch, row=row) == 4 * product
    x = meta(8, 32, 32)
    assert above_baseline(lambda: x.mT.softmax(-1), x=x) == 16 * product
