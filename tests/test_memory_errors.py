"""What the memory instrument says where it cannot measure, and that it leaves nothing behind."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import transformer as tf
from claims.instruments.cost.memory import following, measure

KIB = 2**10
X = 4 * KIB  # bytes of x, and of what is made of it number by number


def meta(
    *shape: int, dtype: torch.dtype = torch.float32, requires_grad: bool = False
) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta", requires_grad=requires_grad)


@pytest.fixture
def x() -> Tensor:
    return meta(KIB, requires_grad=True)


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
        x.copy_(torch.ones(KIB))
        torch.arange(5) + torch.arange(5)

    with torch.no_grad():
        footprint = measure(step, named={"x": x})
    assert footprint.peak == 2 * X


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


def test_more_tokens_than_the_block_of_a_head_are_its_own_error() -> None:
    with torch.device("meta"):
        head, tokens = tf.Head(8, 8, block=16), torch.empty(1, 17, 8)
    with pytest.raises(ValueError, match="17 tokens do not fit in a head with a block of 16"):
        measure(lambda: head(tokens), named={"head": head, "tokens": tokens})


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
        adam = torch.optim.Adam(nn.Linear(2, 2, device="meta").parameters())
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
