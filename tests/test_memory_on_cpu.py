"""The memory instrument against what the CPU's allocator does, to the byte and at every moment.

Each step runs twice: on the meta device, followed by the instrument, and on the CPU without it,
watched by PyTorch's profiler, which sees each allocation and release. Compared are the bytes
allocated after each allocation. Blocks are not rounded on the CPU, so neither are they here; what
has 8 bytes or less is left out, for on the CPU Python's numbers and an optimizer's step counts are
there too, and on a CUDA device they are on the host.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C._profiler import _EventType
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint

import transformer as tf
from claims.instruments.cost.memory import Named, following, measure

NUMBER = 8  # bytes
Step = Callable[[], object]
Make = Callable[[str], tuple[Named, Step]]  # (device) -> what there is, and the step


def predicted(make: Make, earlier: int = 0) -> tuple[list[int], int]:
    """The bytes allocated after each operation that allocates, in the step after `earlier` ones;
    and the bytes of all allocations in the step."""
    named, step = make("meta")
    for _ in range(earlier):
        measure(step, named=named)
    with following(named, workspace=0, granule=1) as trace:
        step()
    storages = [s for s in trace.storages if s.bytes > NUMBER]
    made = [s for s in storages if s.made > 0]
    moments = sorted({s.made for s in made})
    totals = [sum(s.bytes for s in storages if s.made <= m <= s.last) for m in moments]
    return totals, sum(s.bytes for s in made)


def seen(make: Make, earlier: int = 0) -> tuple[list[int], int]:
    """The same on the CPU, the first after each allocation."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        _, step = make("cpu")
        for _ in range(earlier):
            step()
        with record_function("the step"):
            step()
    assert profiled.profiler is not None
    tree = profiled.profiler.kineto_results.experimental_event_tree()
    events = sorted(flat(tree), key=lambda event: event.start_time_ns)
    (the_step,) = (event for event in events if event.name == "the step")
    allocated, after, made = 0, [], 0
    for event in events:
        if event.typed[0] == _EventType.Allocation and abs(event.typed[1].alloc_size) > NUMBER:
            size = event.typed[1].alloc_size
            allocated += size
            if the_step.start_time_ns <= event.start_time_ns <= the_step.end_time_ns and size > 0:
                after.append(allocated)
                made += size
    return after, made


def flat(events: list[Any]) -> Iterator[Any]:
    for event in events:
        yield event
        yield from flat(event.children)


def summits(bytes_after: list[int]) -> list[int]:
    """Those that no allocation follows before a release: in which order one operation allocates
    several tensors does not matter."""
    following = [*bytes_after[1:], 0]
    return [here for here, then in zip(bytes_after, following, strict=True) if then <= here]


# Functions of one tensor, forward and backward


class AddsToItsGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] + gradients[0].neg()


class SpreadsItsGradient(torch.autograd.Function):
    """Sends back a gradient with gaps between its rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        rows, columns = gradients[0].shape
        return torch.empty_strided(
            (rows, columns), (2 * columns, 1), device=gradients[0].device
        ).zero_()


def hooked(h: Tensor) -> Tensor:
    h.register_hook(lambda gradient: gradient + gradient.neg())
    return h * 2 + h * 3


def gradient(h: Tensor) -> Tensor:
    (g,) = torch.autograd.grad((h.sin() + h.cos()).sum(), h, create_graph=True)
    return g


def plain_attention(h: Tensor, **settings: Any) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(h, h * 2, h * 3, **settings)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    # One gradient from each use of h; autograd adds them up, where it may, in place.
    "used twice": lambda h: h * 2 + h * 3,
    "used thrice": lambda h: h.sin() + h.cos() + h.exp(),
    "used at once": lambda h: h * h,
    "used by a sum": lambda h: h + h * 3,
    "used as a view": lambda h: h * 2 + h.t() * 3 + h * 4,
    "first gradient is expanded": lambda h: (h * 2).sum() + h.sum(),
    "second gradient is expanded": lambda h: h.sum() + (h * 2).sum(),
    "first gradient has gaps": lambda h: h * 2 + SpreadsItsGradient.apply(h),  # type: ignore[no-untyped-call]
    "gradient is added to": lambda h: AddsToItsGradient.apply(h) * 3,  # type: ignore[no-untyped-call]
    "gradient is hooked": hooked,
    "gradient of a gradient": gradient,
    # Other ways of sharing and freeing.
    "in place": lambda h: h.sin().add_(2).mul_(3).add_(h).exp(),
    "pieces": lambda h: torch.cat([h.sin(), h.cos()], 1).split(64, 1)[1].contiguous(),
    "rows": lambda h: h[3].expand(64, 64) * h.cos(),
    "masks": lambda h: h.masked_fill(h > 0, 0).tril().clamp(0, 1).where(h > 0, h.exp()),
    "norms": lambda h: h.std(0) + h.norm(dim=-1) + h.var(1),
    "softmax": lambda h: h.softmax(-1).log_softmax(-1),
    "activations": lambda h: F.silu(h) * F.softplus(h) + F.gelu(h),
    "products": lambda h: torch.einsum("ij,jk->ik", h.sin(), h) @ h.t(),
    "linear, not contiguous": lambda h: F.linear(h.view(4, 16, 64).mT, h[:3, :16], h[0, :3]),
    "plain attention": lambda h: plain_attention(h.view(1, 4, 64, 16)),
    "plain attention, causal": lambda h: plain_attention(h.view(1, 4, 64, 16), is_causal=True),
    "plain attention, masked": lambda h: plain_attention(h.view(1, 4, 64, 16), attn_mask=h > 0),
    "three factors": lambda h: torch.addcmul(h.sin(), h.cos(), h.exp()),
}  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_bytes_at_every_moment(function: str) -> None:
    def make(device: str) -> tuple[Named, Step]:
        x = torch.full((64, 64), 0.5, device=device, requires_grad=True)

        def step() -> None:
            y = FUNCTIONS[function](x * 1)
            y.backward(torch.ones_like(y))  # type: ignore[no-untyped-call]

        return {"x": x}, step

    (expected, expected_sum), (totals, in_all) = predicted(make), seen(make)
    assert summits(expected) == summits(totals)
    assert expected_sum == in_all


# Models. Some kernels of the CPU have temporaries of their own (the backward pass of layer norm has
# half a KiB), so here every total that is predicted must be among those seen, in order.


def assert_seen(make: Make, earlier: int = 0) -> None:
    (expected, _), (totals, _) = predicted(make, earlier), seen(make, earlier)
    assert max(expected) == max(totals)
    remaining = iter(totals)
    for number, total in enumerate(expected):
        assert total in remaining, f"after allocation {number} of {len(expected)}"


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, -2), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def mlp(device: str) -> tuple[Named, Step]:
    model = nn.Sequential(
        nn.Embedding(97, 64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 97)
    ).to(device)
    tokens = torch.zeros(2, 25, dtype=torch.int64, device=device)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, foreach=True)
    named: Named = {"model": model, "optimizer": optimizer, "tokens": tokens}
    return named, trained(model, optimizer, tokens)


def block(norm: str, no_grad: bool = False) -> Make:
    def make(device: str) -> tuple[Named, Step]:
        module = tf.Block(64, tf.MultiHeadAttention(64, 4), norm=norm).to(device)
        x = torch.full((2, 24, 64), 0.5, device=device, requires_grad=not no_grad)
        g = torch.full((2, 24, 64), 0.5, device=device)

        def step() -> None:
            with torch.set_grad_enabled(not no_grad):
                y = module(x)
                if not no_grad:
                    y.backward(g)

        return {"block": module, "x": x, "g": g}, step

    return make


def language_model(**settings: Any) -> Make:
    def make(device: str) -> tuple[Named, Step]:
        model = tf.LanguageModel(
            vocabulary=97, context=24, d_model=48, n_blocks=2, n_heads=4, **settings
        ).to(device)
        tokens = torch.zeros(3, 25, dtype=torch.int64, device=device)
        # The CPU's default is one tensor after the other; CUDA's, which is predicted, foreach.
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        named: Named = {"model": model, "optimizer": optimizer, "tokens": tokens}
        return named, trained(model, optimizer, tokens)

    return make


def checkpointed(device: str) -> tuple[Named, Step]:
    blocks = [tf.Block(48, tf.MultiHeadAttention(48, 4)).to(device) for _ in range(3)]
    x = torch.full((3, 24, 48), 0.5, device=device, requires_grad=True)
    g = torch.full((3, 24, 48), 0.5, device=device)

    def step() -> None:
        y = x
        for module in blocks:
            y = checkpoint(module, y, use_reentrant=False, preserve_rng_state=False)
        y.backward(g)  # type: ignore[no-untyped-call]

    return {"blocks": nn.ModuleList(blocks), "x": x, "g": g}, step


MODELS: dict[str, Make] = {
    "MLP": mlp,
    "block": block("pre"),
    "block without gradients": block("pre", no_grad=True),
    "block, post-norm": block("post"),
    "checkpointed blocks": checkpointed,
    "language model": language_model(),
    "language model, tied": language_model(tied=True),
    "language model, rotary": language_model(positions="rotary"),
    "language model, chapter's head": language_model(mixer="head"),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("earlier", [0, 1], ids=["first step", "second step"])
def test_totals_of_models_are_those_seen(model: str, earlier: int) -> None:
    assert_seen(MODELS[model], earlier)
