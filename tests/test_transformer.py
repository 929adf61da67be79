"""What no claim covers of the package: errors, all forms of masks, padding, chunks, dropout, ties.

The references are written out here, a query or a number at a time, and share no code with it.
"""

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import transformer as tf

# Fewer than this many additions and products lie between an input and an output of these tests,
# each off by at most half a unit in the last place of the largest number on the way: 2e-13 of it in
# float64. A mistake is off by something like the number itself.
OPERATIONS = 1_000
INF = float("inf")
FUSED = pytest.mark.parametrize("fused", [False, True], ids=["explicit", "fused"])
SCORE_POSITIONS = pytest.mark.parametrize("positions", ["none", "rotary", "alibi"])
MIXERS = pytest.mark.parametrize("mixer", ["none", "average", "head", "heads"])
DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
AVERAGES = ["loop", "matrix", "softmax"]
# Each example computes small tensors, but the first calls of a kernel are slow: no deadline.
settled = settings(max_examples=60, deadline=None, derandomize=True)


def assert_rounding(got: Tensor, want: Tensor, largest: float | None = None) -> None:
    """``largest``: the largest number on the way, by default that of the result."""
    assert (got.shape, got.dtype) == (want.shape, torch.float64)
    largest = want.abs().max().item() if largest is None else largest
    allowed = OPERATIONS * torch.finfo(torch.float64).eps * largest
    worst = (got - want).abs().max().item()
    assert worst <= allowed, f"off by {worst}, allowed {allowed}"


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def draw_tokens(*shape: int, vocabulary: int = 32) -> Tensor:
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(0))


def build(make: Callable[..., nn.Module], *args: Any, seed: int = 0, **kwargs: Any) -> Any:
    """The module in float64, drawn from the seed without touching the global generator."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make(*args, **kwargs).double()


def small_model(seed: int = 0, **changes: Any) -> Any:
    shape = {"vocabulary": 32, "context": 8, "d_model": 16, "n_blocks": 2, "n_heads": 2}
    return build(tf.LanguageModel, seed=seed, **(shape | changes))


def small_translator(**changes: Any) -> Any:
    shape = {"source_vocabulary": 32, "target_vocabulary": 24, "context": 8, "d_model": 16}
    return build(tf.EncoderDecoder, **(shape | {"n_heads": 2, "n_blocks": 2} | changes))


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def tokens(*shape: int) -> Tensor:
    return zeros(*shape, dtype=torch.int64)


def attend(n: int = 5, m: int = 7, **options: Any) -> Any:
    return tf.attention(zeros(2, n, 4), zeros(2, m, 4), zeros(2, m, 4), **options)


def heads(**options: Any) -> tf.MultiHeadAttention:
    return tf.MultiHeadAttention(12, 3, **options)


# ---------------------------------------------------------------- errors name the numbers

BAD_INPUT: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "average of a vector": (lambda: tf.average_loop(zeros(37)), ["(37,)", "(..., T, d)"]),
    "average of no rows": (lambda: tf.average_by_matrix(zeros(0, 37)), ["(0, 37)", "at least 1"]),
    "average of integers": (lambda: tf.average_by_softmax(tokens(3, 2)), ["int64", "floating"]),
    "averaging matrix of 0": (lambda: tf.averaging_matrix(0), ["T must", "at least 1", "0"]),
    "uniform scores of -3": (lambda: tf.uniform_scores(-3), ["T must", "at least 1", "-3"]),
    "mask, n > m": (lambda: tf.causal_mask(41, 37), ["41 queries", "37 keys"]),
    "mask of 0": (lambda: tf.causal_mask(0), ["n must", "at least 1", "0"]),
    "q and k of two widths": (
        lambda: tf.attention(zeros(5, 13), zeros(7, 17), zeros(7, 3)),
        ["(5, 13)", "(7, 17)", "same width"],
    ),
    "keys without values": (
        lambda: tf.attention(zeros(5, 4), zeros(31, 4), zeros(37, 4)),
        ["(31, 4)", "(37, 4)", "as many values as keys"],
    ),
    "two batches": (
        lambda: tf.attention(zeros(23, 5, 4), zeros(29, 5, 4), zeros(29, 5, 4)),
        ["(23, 5, 4)", "(29, 5, 4)"],
    ),
    "a vector as query": (
        lambda: tf.attention(zeros(37), zeros(37), zeros(37)),
        ["(37,)", "(..., n or m, width)"],
    ),
    "no keys": (lambda: attend(m=0), ["(2, 0, 4)", "at least one key"]),
    "two dtypes": (
        lambda: tf.attention(zeros(5, 4).double(), zeros(5, 4), zeros(5, 4)),
        ["torch.float64", "torch.float32", "one floating dtype"],
    ),
    "integer queries": (
        lambda: tf.attention(tokens(5, 4), tokens(5, 4), tokens(5, 4)),
        ["torch.int64", "floating"],
    ),
    "integer mask": (lambda: attend(mask=tokens(5, 7)), ["torch.int64", "bool", "floating"]),
    "mask of another size": (lambda: attend(mask=zeros(5, 11)), ["(5, 11)", "(2, 5, 7)"]),
    "mask of more dimensions": (lambda: attend(mask=zeros(1, 2, 5, 7)), ["(1, 2, 5, 7)"]),
    "weights of a fused call": (
        lambda: attend(fused=True, return_weights=True),
        ["return_weights", "fused=False"],
    ),
    "dropout above 1": (lambda: attend(dropout=1.5), ["dropout", "between 0 and 1", "1.5"]),
    "dropout below 0": (lambda: heads(dropout=-0.25), ["dropout", "between 0 and 1", "-0.25"]),
    "dropout not a number": (lambda: tf.FeedForward(4, dropout=math.nan), ["dropout", "nan"]),
    "head, T > block": (lambda: tf.Head(4, 4, 37)(zeros(2, 41, 4)), ["41 tokens", "block of 37"]),
    "head of no width": (lambda: tf.Head(4, 0, 8), ["d_head", "at least 1", "0"]),
    "heads that do not divide": (lambda: tf.MultiHeadAttention(130, 7), ["130", "7 heads"]),
    "no heads": (lambda: tf.MultiHeadAttention(12, 0), ["n_heads", "at least 1", "0"]),
    "heads of no width": (lambda: heads(d_head=0), ["d_head", "at least 1", "0"]),
    "positions of no head": (
        lambda: heads(positions="learned"),
        ["none, rotary, alibi", "'learned'"],
    ),
    "odd rotary heads": (lambda: heads(positions="rotary", d_head=15), ["even d_head", "15"]),
    "x of another width": (lambda: heads()(zeros(2, 5, 37)), ["(2, 5, 37)", "(B, n, 12)"]),
    "x without a batch": (lambda: heads()(zeros(5, 12)), ["(5, 12)", "(B, n, 12)"]),
    "causal cross attention": (
        lambda: heads()(zeros(2, 5, 12), context=zeros(2, 7, 12)),
        ["causal=False", "causal=True"],
    ),
    "context of another batch": (
        lambda: heads(causal=False)(zeros(2, 5, 12), context=zeros(3, 7, 12)),
        ["(2, m, 12)", "(3, 7, 12)"],
    ),
    "context of another width": (
        lambda: heads(causal=False)(zeros(2, 5, 12), context=zeros(2, 7, 37)),
        ["(2, m, 12)", "(2, 7, 37)"],
    ),
    "padding mask as it is": (
        lambda: heads()(zeros(2, 5, 12), mask=zeros(2, 5).bool()),
        ["(2, 5)", "(2, 3, 5, 5)"],
    ),
    "weights of fused heads": (
        lambda: heads(fused=True)(zeros(2, 5, 12), return_weights=True),
        ["return_weights", "fused=False"],
    ),
    "rotary, n > m": (
        lambda: heads(positions="rotary", causal=False)(zeros(1, 41, 12), context=zeros(1, 37, 12)),
        ["41 queries", "37 keys"],
    ),
    "alibi, n > m": (lambda: tf.alibi_bias(2, 41, 37), ["41 queries", "37 keys"]),
    "slopes of no heads": (lambda: tf.alibi_slopes(0), ["n_heads", "at least 1", "0"]),
    "past the table": (lambda: tf.LearnedPositions(37, 4)(41), ["41 positions", "37"]),
    "no positions": (lambda: tf.LearnedPositions(37, 4)(0), ["n must", "at least 1", "0"]),
    "empty table": (lambda: tf.LearnedPositions(0, 4), ["n_positions", "at least 1", "0"]),
    "odd sinusoids": (lambda: tf.sinusoidal_positions(4, 15), ["even d_model", "15"]),
    "odd rotation": (lambda: tf.rotate(zeros(4, 15)), ["(4, 15)", "even d_head"]),
    "rotation of a vector": (lambda: tf.rotate(zeros(38)), ["(38,)", "(..., T, d_head)"]),
    "rotation by other positions": (
        lambda: tf.rotate(zeros(2, 37, 4), torch.arange(41)),
        ["(37,)", "(41,)"],
    ),
    "no expansion": (lambda: tf.FeedForward(4, expansion=0), ["expansion", "at least 1", "0"]),
    "unknown norm": (lambda: tf.Block(4, None, norm="rms"), ["pre, post, none", "'rms'"]),
    "more tokens than positions": (
        lambda: tf.LanguageModel(context=37)(tokens(2, 41)),
        ["41 tokens", "context of 37"],
    ),
    "more tokens than the head's block": (
        lambda: tf.LanguageModel(context=37, mixer="head", positions="none")(tokens(2, 41)),
        ["41 tokens", "context of 37"],
    ),
    "token past the vocabulary": (
        lambda: tf.LanguageModel(vocabulary=37)(torch.tensor([[3, 37]])),
        ["between 0 and 36", "3 to 37"],
    ),
    "negative token": (
        lambda: tf.LanguageModel(vocabulary=37)(torch.tensor([[3, -1]])),
        ["between 0 and 36", "-1 to 3"],
    ),
    "int32 tokens": (lambda: tf.LanguageModel()(tokens(2, 5).int()), ["int64", "torch.int32"]),
    "tokens without a batch": (lambda: tf.LanguageModel()(tokens(37)), ["(B, T)", "(37,)"]),
    "no tokens": (lambda: tf.LanguageModel()(tokens(2, 0)), ["at least 1", "(2, 0)"]),
    "source past the context": (
        lambda: small_translator(context=37)(tokens(2, 41), tokens(2, 5)),
        ["41 source tokens", "context of 37"],
    ),
    "target past the context": (
        lambda: small_translator(context=37)(tokens(2, 5), tokens(2, 41)),
        ["41 target tokens", "context of 37"],
    ),
    "sources without targets": (
        lambda: small_translator()(tokens(5, 4), tokens(3, 4)),
        ["5 sources", "3 targets"],
    ),
    "translator of an odd width": (lambda: small_translator(d_model=37), ["even d_model", "37"]),
    "translator without blocks": (lambda: small_translator(n_blocks=0), ["n_blocks", "0"]),
    "size of heads that do not divide": (
        lambda: tf.attention_parameters(130, 7),
        ["130", "7 heads"],
    ),
    "size of a block of no width": (lambda: tf.block_parameters(0), ["d_model", "at least 1", "0"]),
    "size of no LayerNorm": (lambda: tf.layer_norm_parameters(-3), ["d_model", "-3"]),
    "size of no network": (lambda: tf.feed_forward_parameters(4, 0), ["expansion", "0"]),
    "size of no scores": (lambda: tf.attention_matrix_bytes(0, 8), ["n must", "at least 1", "0"]),
}

BAD_SETTINGS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "mixer": ({"mixer": "conv"}, ["none, average, head, heads", "'conv'"]),
    "norm": ({"norm": "rms"}, ["pre, post, none", "'rms'"]),
    "positions": ({"positions": "axial"}, ["none, learned, sinusoidal, rotary, alibi", "'axial'"]),
    "rotary head": ({"mixer": "head", "positions": "rotary"}, ["'rotary'", "'heads'", "'head'"]),
    "alibi average": ({"mixer": "average", "positions": "alibi"}, ["'alibi'", "'average'"]),
    "width of the head": ({"mixer": "head", "d_head": 37}, ["d_head=37", "'heads'"]),
    "bias of no heads": ({"mixer": "none", "qkv_bias": True}, ["qkv_bias=True", "'none'"]),
    "unscaled head": ({"mixer": "head", "scaled": False}, ["scaled=False", "'head'"]),
    "odd sinusoids": ({"positions": "sinusoidal", "d_model": 37, "n_heads": 1}, ["even", "37"]),
    "negative blocks": ({"n_blocks": -3}, ["n_blocks", "at least 0", "-3"]),
    "no vocabulary": ({"vocabulary": 0}, ["vocabulary", "at least 1", "0"]),
    "no context": ({"context": 0}, ["context", "at least 1", "0"]),
    "heads that do not divide": ({"d_model": 130, "n_heads": 7}, ["130", "7 heads"]),
    "dropout": ({"dropout": 1.5}, ["dropout", "between 0 and 1", "1.5"]),
}


def assert_refused(call: Callable[[], Any], words: list[str]) -> None:
    with torch.random.fork_rng(), pytest.raises(ValueError) as error:  # noqa: PT011 (words follow)
        call()
    assert [word for word in words if word not in str(error.value)] == []


@pytest.mark.parametrize(("call", "words"), BAD_INPUT.values(), ids=BAD_INPUT.keys())
def test_errors_name_the_numbers(call: Callable[[], Any], words: list[str]) -> None:
    assert_refused(call, words)


@pytest.mark.parametrize("count", [tf.LanguageModel, tf.model_parameters], ids=["model", "size"])
@pytest.mark.parametrize(("bad", "words"), BAD_SETTINGS.values(), ids=BAD_SETTINGS.keys())
def test_model_and_arithmetic_refuse_the_same_settings(
    bad: dict[str, Any], words: list[str], count: Callable[..., Any]
) -> None:
    assert_refused(lambda: count(**bad), words)


@pytest.mark.parametrize(
    ("module", "argument"),
    [
        (build(tf.Head, 4, 4, block=8), zeros(1, 9, 4).double()),
        (small_model(), tokens(1, 9)),
        (small_model(mixer="head", positions="none"), tokens(1, 9)),
        (build(tf.MultiHeadAttention, 12, 3), zeros(1, 9, 37).double()),
    ],
    ids=["head", "learned positions", "model of the head", "heads"],
)
def test_bad_input_is_refused_before_any_work(module: nn.Module, argument: Tensor) -> None:
    work: list[nn.Module] = []
    for part in module.modules():
        if part is not module:
            part.register_forward_pre_hook(lambda part, _: work.append(part))
    with pytest.raises(ValueError, match="9"):
        module(argument)
    assert work == []


# ---------------------------------------------------------------- attention under every mask


def plain_attention(q: Tensor, k: Tensor, v: Tensor, added: Tensor, scale: float) -> Tensor:
    """(n, d_v): one query at a time, over the keys alone that it may attend to, by exp."""
    rows = []
    for query, bias in zip(q, added, strict=True):
        seen = [i for i in range(len(k)) if bias[i] > -INF]
        weights = [(scale * (query * k[i]).sum() + bias[i]).exp() for i in seen]
        mixed = [weight / sum(weights) * v[i] for weight, i in zip(weights, seen, strict=True)]
        rows.append(torch.stack(mixed).sum(0) if seen else torch.zeros_like(v[0]))
    return torch.stack(rows)


def added_by(mask: Tensor) -> Tensor:
    """What a mask adds to the scores."""
    return zeros(*mask.shape).masked_fill(~mask, -INF) if mask.dtype == torch.bool else mask


@st.composite
def masks(draw_from: st.DrawFn) -> Tensor:
    """Bool or floating masks (1 or 2, n, m), from none to all masked: some queries fully."""
    heads, n, m = (draw_from(st.integers(1, top)) for top in (2, 5, 5))
    cells = st.lists(st.booleans(), min_size=heads * n * m, max_size=heads * n * m)
    mask = torch.tensor(draw_from(cells)).reshape(heads, n, m)
    if draw_from(st.booleans()):
        return mask
    bias = draw(heads, n, m, seed=draw_from(st.integers(0, 99)))
    return bias.masked_fill(~mask, -INF)


@settled
@given(mask=masks(), seed=st.integers(0, 99), scale=st.sampled_from([None, 1.0, 0.3]))
@FUSED
def test_attention_is_the_sum_over_allowed_keys_forward_and_backward(
    mask: Tensor, seed: int, scale: float | None, fused: bool
) -> None:
    (_, n, m), d_k, d_v = mask.shape, 3, 2
    q, k, v, slope = (
        draw(2, *shape, seed=seed + salt)
        for salt, shape in enumerate([(n, d_k), (m, d_k), (m, d_v), (n, d_v)])
    )
    # Every term of a gradient is at most a product of three: slope, value, and key or query.
    largest = max(1.0, *(tensor.abs().max().item() for tensor in (q, k, v, slope))) ** 3
    inputs = [tensor.requires_grad_() for tensor in (q, k, v)]
    added = added_by(mask).double().expand(2, n, m)
    factor = 1 / math.sqrt(d_k) if scale is None else scale
    want = torch.stack([plain_attention(q[b], k[b], v[b], added[b], factor) for b in range(2)])
    want = want + 0.0 * (q.sum() + k.sum() + v.sum())  # gradients exist in any case
    got = tf.attention(q, k, v, mask, scale=scale, fused=fused)

    assert_rounding(got, want, largest)
    got_gradients = torch.autograd.grad((got * slope).sum(), inputs)
    want_gradients = torch.autograd.grad((want * slope).sum(), inputs)
    for got_gradient, want_gradient in zip(got_gradients, want_gradients, strict=True):
        assert_rounding(got_gradient, want_gradient, largest)


@FUSED
@pytest.mark.parametrize("kind", ["bool", "minus infinity"])
@DTYPES
def test_a_fully_masked_query_gives_zero_and_gets_no_gradient(
    dtype: torch.dtype, kind: str, fused: bool
) -> None:
    q, k, v = (draw(2, 3, 4, 8, seed=seed).to(dtype).requires_grad_() for seed in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    mask[2] = False
    mask = mask if kind == "bool" else added_by(mask).to(dtype)
    out = tf.attention(q, k, v, mask, fused=fused)
    out.sum().backward()
    others = [0, 1, 3]
    assert (out[..., 2, :] == 0).all()
    assert (out[..., others, :] != 0).all()
    assert (q.grad[..., 2, :] == 0).all()
    assert all(tensor.grad.isfinite().all() for tensor in (q, k, v))
    if not fused:
        _, weights = tf.attention(q, k, v, mask, return_weights=True)
        assert (weights[..., 2, :] == 0).all()
        # Four weights, each off by at most eps: half for its rounding, half for the softmax's sum.
        gap = (weights[..., others, :].double().sum(-1) - 1).abs().max().item()
        assert gap <= 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("kind", ["bool", "minus infinity"])
def test_no_kernel_is_given_a_fully_masked_query(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels of this machine may return zero for it; the plain softmax here returns NaN."""

    def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **_: Any) -> Tensor:
        added = added_by(mask).double()
        return F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + added, dim=-1) @ v

    mask = torch.tensor([[True, False], [False, False]])
    mask = mask if kind == "bool" else added_by(mask).double()
    q, k, v = (draw(2, 4, seed=seed).requires_grad_() for seed in range(3))
    assert plain(q, k, v, mask)[1].isnan().all()
    monkeypatch.setattr(F, "scaled_dot_product_attention", plain)
    out = tf.attention(q, k, v, mask, fused=True)
    assert torch.equal(out, torch.stack([v[0], torch.zeros(4)]))
    gradients = torch.autograd.grad(out.sum(), (q, k, v))
    assert all(gradient.isfinite().all() for gradient in gradients)


@FUSED
@pytest.mark.parametrize(
    "shape", [(), (7,), (1, 7), (5, 1), (5, 7), (3, 1, 1, 7), (2, 5, 7), (3, 2, 5, 7)], ids=str
)
@pytest.mark.parametrize("kind", ["bool", "added"])
def test_a_mask_stretches_to_all_scores(shape: tuple[int, ...], kind: str, fused: bool) -> None:
    q, k, v = draw(3, 2, 5, 4), draw(3, 2, 7, 4, seed=1), draw(3, 2, 7, 6, seed=2)
    mask = draw(*shape, seed=3)
    mask = mask > -0.5 if kind == "bool" else mask
    added = added_by(mask).double().expand(3, 2, 5, 7)
    each = zip(*(tensor.flatten(0, 1) for tensor in (q, k, v, added)), strict=True)
    want = torch.stack([plain_attention(*of_one_head, scale=0.5) for of_one_head in each])
    got = tf.attention(q, k, v, mask, fused=fused)
    assert_rounding(got, want.view(3, 2, 5, 6), v.abs().max().item())


@FUSED
@pytest.mark.parametrize("leading", [(), (6,), (2, 3), (2, 1, 3)], ids=str)
def test_leading_dimensions_are_so_many_separate_attentions(
    leading: tuple[int, ...], fused: bool
) -> None:
    q, k, v = (draw(*leading, size, 4, seed=size) for size in (5, 7, 7))
    flat = [tensor.reshape(-1, *tensor.shape[-2:]) for tensor in (q, k, v)]
    mask = tf.causal_mask(5, 7)
    added = added_by(mask).double()
    each = zip(*flat, strict=True)
    want = torch.stack([plain_attention(*of_one, added, scale=0.5) for of_one in each])
    got = tf.attention(q, k, v, mask, fused=fused)
    assert_rounding(got, want.view(*leading, 5, 4), v.abs().max().item())


@FUSED
@DTYPES
def test_the_least_number_masks_as_minus_infinity_does(dtype: torch.dtype, fused: bool) -> None:
    q, k, v = (draw(2, 6, 8, seed=seed).to(dtype) for seed in range(3))
    mask = tf.causal_mask(6)
    want = tf.attention(q, k, v, mask, fused=fused)
    for masked in (-INF, torch.finfo(dtype).min):
        added = torch.zeros(6, 6, dtype=dtype).masked_fill(~mask, masked)
        got = tf.attention(q, k, v, added, fused=fused)
        # Two kernels may sum in two orders: six products of a weight of at most one and a value,
        # and a weight that came from eight products more.
        allowed = (6 + 8) * torch.finfo(dtype).eps * v.abs().max()
        assert (got - want).abs().max() <= allowed


def test_float16_scores_that_a_mask_sends_to_minus_infinity_stay_finite() -> None:
    """-65504 is float16's least number and -65504 - 40 is -inf: the sum masks, not the mask."""
    q = torch.full((1, 3, 4), 20.0, dtype=torch.float16).requires_grad_()
    k = torch.full((1, 3, 4), -1.0, dtype=torch.float16)  # every score is 4 * -20 / sqrt(4) = -40
    mask = torch.zeros(3, 3, dtype=torch.float16)
    mask[1] = torch.finfo(torch.float16).min
    assert (mask[1] - 40 == -INF).all()
    out = tf.attention(q, k, k, mask)
    out.sum().backward()
    assert out[0, :, 0].tolist() == [-1.0, 0.0, -1.0]
    assert q.grad is not None
    assert q.grad.isfinite().all()


def test_a_learned_mask_gets_its_gradient() -> None:
    q, k, v = draw(5, 4), draw(5, 4, seed=1), draw(5, 4, seed=2)
    bias = draw(5, 5, seed=3).requires_grad_()
    masked = torch.tensor([[False], [True], [False], [False], [False]])

    def gradient(fused: bool) -> Tensor:
        out = tf.attention(q, k, v, bias.masked_fill(masked, -INF), fused=fused)
        return torch.autograd.grad(out.pow(2).sum(), bias)[0]

    explicit, fused = gradient(False), gradient(True)
    assert_rounding(explicit, fused)
    assert (explicit[1] == 0).all()
    assert (explicit[[0, 2, 3, 4]] != 0).all()


class Allocations(TorchDispatchMode):
    """Notes the dtype and size of every tensor made that is no view of an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, int]] = []

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = call(*args, **(kwargs or {}))
        old = {arg.untyped_storage()._cdata for arg in args if isinstance(arg, Tensor)}
        if isinstance(out, Tensor) and out.untyped_storage()._cdata not in old:
            self.made.append((str(out.dtype), out.numel()))
        return out


def test_a_mask_allocates_what_it_allocates_in_the_printed_listing() -> None:
    """Fully masked queries cost no n x n tensor: four of floats, one of bools, in this order."""
    n, d = 64, 4
    q, k, v, mask = draw(1, 2, n, d), draw(1, 2, n, d), draw(1, 2, n, d), tf.causal_mask(n)
    with torch.no_grad(), Allocations() as listing:
        s = q @ k.transpose(-2, -1) / math.sqrt(d)
        s = s.masked_fill(~mask, -INF)
        F.softmax(s, dim=-1) @ v
    with torch.no_grad(), Allocations() as package:
        tf.attention(q, k, v, mask)
    scores, negation = ("torch.float64", 2 * n * n), ("torch.bool", n * n)
    for run in (listing, package):
        squares = [made for made in run.made if made[1] >= n * n]
        assert squares == [scores, scores, negation, scores, scores]


# ---------------------------------------------------------------- padding, chunks, dropout


@FUSED
@SCORE_POSITIONS
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("lengths", [[4], [4, 7, 1]], ids=["batch of 1", "batch of 3"])
@pytest.mark.parametrize("kind", ["bool", "least number", "minus infinity"])
def test_padding_changes_nothing_for_the_real_tokens(
    lengths: list[int], side: str, positions: str, kind: str, fused: bool
) -> None:
    layer = build(
        tf.MultiHeadAttention, 16, 4, positions=positions, qkv_bias=True, fused=fused
    )
    x = draw(len(lengths), 7, 16)
    real = torch.stack([torch.arange(7) < length for length in lengths])
    real = real.flip(1) if side == "left" else real
    x[~real] *= 100.0  # the content of the padding must not matter
    mask = real[:, None, None, :]
    if kind != "bool":
        least = torch.finfo(torch.float64).min if kind == "least number" else -INF
        mask = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, least)
    out = layer(x, mask=mask)
    for row, keep, y in zip(x, real, out, strict=True):
        assert_rounding(y[keep], layer(row[keep][None])[0])
    if side == "left" and kind != "least number":  # padding is fully masked: W_o's bias is left
        assert torch.equal(out[~real], layer.o.bias.expand_as(out[~real]))
    out[real].sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@FUSED
@pytest.mark.parametrize("positions", ["none", "alibi"])
def test_padding_and_the_triangle_at_once_stay_finite_in_half_precision(
    positions: str, fused: bool, dtype: torch.dtype
) -> None:
    layer = build(tf.MultiHeadAttention, 16, 4, positions=positions, fused=fused).to(dtype)
    real = torch.tensor([[False, False, True, True, True]])
    mask = torch.zeros(1, 1, 1, 5, dtype=dtype).masked_fill(~real, torch.finfo(dtype).min)
    out = layer(draw(1, 5, 16).to(dtype), mask=mask)
    out.sum().backward()
    assert out.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@FUSED
@SCORE_POSITIONS
@pytest.mark.parametrize("cuts", [(3, 5), (1, 1, 1, 5), (7, 1), (8,)], ids=str)
def test_a_prompt_in_chunks_equals_the_prompt_at_once(
    cuts: tuple[int, ...], positions: str, fused: bool
) -> None:
    """Each chunk attends to all that came before it, under a lower-right aligned triangle."""
    options = {"positions": positions, "fused": fused}
    whole = build(tf.MultiHeadAttention, 16, 4, **options)
    chunked = build(tf.MultiHeadAttention, 16, 4, causal=False, **options)
    chunked.load_state_dict(whole.state_dict())
    x, end, parts = draw(2, 8, 16), 0, []
    for cut in cuts:
        end += cut
        chunk, prefix = x[:, end - cut : end], x[:, :end]
        parts.append(chunked(chunk, context=prefix, mask=tf.causal_mask(cut, end)))
    assert_rounding(torch.cat(parts, dim=1), whole(x))


def test_dropout_comes_back_after_an_evaluation() -> None:
    """At p = 1/2 a weight that is kept is doubled, exactly; of 216 weights some go, some stay."""
    layer = build(tf.MultiHeadAttention, 16, 2, dropout=0.5)
    x = draw(3, 8, 16)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first, plain, second = (
            layer.train(mode)(x, return_weights=True)[1] for mode in (True, False, True)
        )
    assert torch.equal(plain, layer.eval()(x, return_weights=True)[1])
    seen = tf.causal_mask(8).expand_as(plain)
    for weights in (first, second):
        kept = weights != 0
        assert torch.equal(weights[kept], 2 * plain[kept])
        assert kept[seen].any()
        assert (~kept[seen]).any()


@FUSED
@MIXERS
def test_dropout_of_everything_leaves_evaluation_unchanged(mixer: str, fused: bool) -> None:
    """Nothing is left of the embedding sum and the sub-layers, and LayerNorm(0) is its shift, 0."""
    model, plain = (small_model(mixer=mixer, fused=fused, dropout=p) for p in (1.0, 0.0))
    batch = draw_tokens(2, 8)
    assert (model.train()(batch) == 0).all()
    assert torch.equal(model.eval()(batch), plain(batch))
    assert (model.train()(batch) == 0).all()


@FUSED
def test_dropout_acts_in_the_three_places_of_the_chapter(fused: bool) -> None:
    x = draw(2, 8, 16)
    layer = build(tf.MultiHeadAttention, 16, 2, dropout=1.0, fused=fused)
    assert torch.equal(layer(x), layer.o.bias.expand_as(x))  # the weights: W_o's bias is left
    assert (build(tf.FeedForward, 16, dropout=1.0)(x) == 0).all()
    plain = build(tf.MultiHeadAttention, 16, 2)
    for norm in ("pre", "none"):  # a sub-layer's output, before the addition: the token is left
        assert torch.equal(build(tf.Block, 16, plain, norm=norm, dropout=1.0)(x), x)
    model = small_model(n_blocks=0, dropout=1.0)  # the embedding sum
    assert (model(draw_tokens(2, 8)) == 0).all()
    translator = small_translator(dropout=1.0)
    assert (translator(draw_tokens(2, 8), draw_tokens(2, 8, vocabulary=24)) == 0).all()


def test_every_attention_of_a_model_drops_weights() -> None:
    for model, layers in ((small_model(dropout=0.1), 2), (small_translator(dropout=0.1), 6)):
        found = [part for part in model.modules() if isinstance(part, tf.MultiHeadAttention)]
        assert [layer.dropout for layer in found] == [0.1] * layers


# ---------------------------------------------------------------- ties, dtypes, devices


def saved_and_loaded(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def loaded(model: Any, assign: bool) -> Any:
    other = small_model(seed=1, tied=model.tied)
    other.load_state_dict(model.state_dict(), assign=assign)
    return other


MOVES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "half": lambda model: model.half(),
    "to bfloat16": lambda model: model.to(torch.bfloat16),
    "to cpu": lambda model: model.to("cpu"),
    "to meta": lambda model: model.to("meta"),
    "inside another module": lambda model: nn.Sequential(model).to("meta")[0],
    "meta and back": lambda model: model.to("meta").to_empty(device="cpu"),
    "load_state_dict": lambda model: loaded(model, assign=False),
    "load_state_dict by assignment": lambda model: loaded(model, assign=True),
    "save and load": saved_and_loaded,
    "load into a copy": lambda model: loaded(copy.deepcopy(model), assign=True),
}


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", MOVES)
def test_tied_weights_stay_tied_and_untied_ones_apart(name: str, tied: bool) -> None:
    model = small_model(tied=tied)
    table, size = model.token.weight.detach().clone(), tf.count_parameters(model)
    moved = MOVES[name](model)
    assert (moved.head.weight is moved.token.weight) is tied
    assert tf.count_parameters(moved) == size
    if "meta" not in name and name != "inside another module":  # those have no values
        assert torch.equal(moved.token.weight, table.to(moved.token.weight.dtype))


def test_a_tied_table_learns_from_both_of_its_uses() -> None:
    model, apart = small_model(tied=True), small_model(tied=False)
    apart.load_state_dict(model.state_dict())
    for each in (model, apart):
        each(draw_tokens(2, 8)).pow(2).sum().backward()
    assert_rounding(model.token.weight.grad, apart.token.weight.grad + apart.head.weight.grad)


def test_a_copy_shares_nothing_with_its_original() -> None:
    model = small_model(tied=True)
    owned = {parameter.data_ptr() for parameter in model.parameters()}
    assert owned.isdisjoint(tensor.data_ptr() for tensor in copy.deepcopy(model).parameters())


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "average_loop": tf.average_loop,
    "average_by_matrix": tf.average_by_matrix,
    "average_by_softmax": tf.average_by_softmax,
    "rotate": tf.rotate,
    "attention": lambda x: tf.attention(x, x, x, tf.causal_mask(8, device=x.device)),
    "attention, fused": lambda x: tf.attention(x, x, x, fused=True),
    "attention, added mask": lambda x: tf.attention(x, x, x, tf.alibi_bias(1, 8, device=x.device)),
}
MODULES: dict[str, Callable[[], nn.Module]] = {
    "head": lambda: tf.Head(16, 16, 8),
    "heads": lambda: tf.MultiHeadAttention(16, 2),
    "heads, fused": lambda: tf.MultiHeadAttention(16, 2, fused=True),
    "heads, rotary": lambda: tf.MultiHeadAttention(16, 2, positions="rotary"),
    "heads, alibi": lambda: tf.MultiHeadAttention(16, 2, positions="alibi"),
    "heads, alibi, fused": lambda: tf.MultiHeadAttention(16, 2, positions="alibi", fused=True),
    "feed-forward": lambda: tf.FeedForward(16),
    "block, post": lambda: tf.Block(16, tf.MultiHeadAttention(16, 2), norm="post"),
}
MODELS: dict[str, dict[str, Any]] = {
    "average, sinusoidal": {"mixer": "average", "positions": "sinusoidal"},
    "head, learned": {"mixer": "head"},
    "heads, alibi": {"positions": "alibi"},
    "heads, rotary, fused": {"positions": "rotary", "fused": True},
    "heads, tied, post": {"tied": True, "norm": "post"},
    "no mixer": {"mixer": "none", "positions": "none", "norm": "none", "feed_forward": False},
}


@DTYPES
@pytest.mark.parametrize("name", [*FUNCTIONS, *MODULES])
def test_dtype_is_kept_and_the_result_is_that_of_float64(name: str, dtype: torch.dtype) -> None:
    exact = FUNCTIONS[name] if name in FUNCTIONS else build(MODULES[name])
    rounded = exact if name in FUNCTIONS else copy.deepcopy(exact).to(dtype)
    x = draw(2, 8, 16)
    got, want = rounded(x.to(dtype)), exact(x)
    assert got.dtype == dtype
    # At most five products follow one another, of at most 64 terms: 320 roundings of half an eps.
    # Taken as a random walk, as they are not all to the same side, 6 sd are 6 * sqrt(320) / 2 = 54.
    assert (got - want).abs().max() <= 54 * torch.finfo(dtype).eps * want.abs().max()


@DTYPES
@pytest.mark.parametrize("name", MODELS)
def test_a_model_runs_and_learns_in_every_dtype(name: str, dtype: torch.dtype) -> None:
    model = small_model(**MODELS[name]).to(dtype)
    logits = model(draw_tokens(2, 8))
    logits.sum().backward()
    assert logits.dtype == dtype
    assert logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("name", [*FUNCTIONS, *MODULES])
def test_everything_runs_on_the_meta_device(name: str) -> None:
    """Without data no branch can depend on values, so nothing waits for a GPU."""
    with torch.device("meta"):
        call = FUNCTIONS[name] if name in FUNCTIONS else MODULES[name]()
    out = call(torch.empty(2, 8, 16, device="meta", requires_grad=True))
    out.sum().backward()
    assert (out.device.type, out.shape) == ("meta", (2, 8, 16))


@FUSED
def test_masks_of_the_caller_run_on_the_meta_device(fused: bool) -> None:
    with torch.device("meta"):
        layer = tf.MultiHeadAttention(16, 2, causal=False, fused=fused)
        for mask in (torch.empty(2, 1, 1, 8, dtype=torch.bool), torch.empty(2, 1, 4, 8)):
            assert layer(torch.empty(2, 4, 16), torch.empty(2, 8, 16), mask).shape == (2, 4, 16)


@pytest.mark.parametrize("name", MODELS)
def test_models_run_on_the_meta_device(name: str) -> None:
    with torch.device("meta"):
        logits = tf.LanguageModel(context=8, **MODELS[name])(tokens(2, 8))
        shape = {"source_vocabulary": 9, "target_vocabulary": 7, "context": 8}
        translator = tf.EncoderDecoder(**shape, d_model=16, n_heads=2, n_blocks=1)
        assert translator(tokens(2, 8), tokens(2, 5)).shape == (2, 5, 7)
    assert (logits.device.type, logits.shape) == ("meta", (2, 8, 1024))


@pytest.mark.parametrize("name", MODELS)
def test_several_models_run_as_one(name: str) -> None:
    """One vmap over the stacked tensors of three models, each with its own tokens."""
    models = [small_model(seed=seed, **(MODELS[name] | {"fused": False})) for seed in range(3)]
    skeleton = copy.deepcopy(models[0]).to("meta")
    batches = draw_tokens(3, 2, 8)

    def run(parameters: Any, buffers: Any, batch: Tensor) -> Tensor:
        logits: Tensor = functional_call(skeleton, (parameters, buffers), (batch,))
        return logits

    together = vmap(run)(*stack_module_state(models), batches)
    for model, batch, logits in zip(models, batches, together, strict=True):
        assert_rounding(logits, model(batch))


# ---------------------------------------------------------------- size, positions, models


@st.composite
def model_settings(draw_from: st.DrawFn) -> dict[str, Any]:
    """Settings that LanguageModel accepts."""

    def pick(*choices: Any) -> Any:
        return draw_from(st.sampled_from(choices))

    mixer, n_heads = pick("none", "average", "head", "heads"), pick(1, 2, 3)
    chosen = {
        "vocabulary": pick(1, 7, 32),
        "context": pick(1, 8),
        "d_model": n_heads * pick(2, 4, 10),
        "n_blocks": pick(0, 1, 3),
        "mixer": mixer,
        "n_heads": n_heads,
        "residual": pick(True, False),
        "feed_forward": pick(True, False),
        "norm": pick("pre", "post", "none"),
        "positions": pick("none", "learned", "sinusoidal"),
        "tied": pick(True, False),
        "dropout": pick(0.0, 0.1),
        "fused": pick(True, False),
    }
    if mixer == "heads":
        chosen |= {"qkv_bias": pick(True, False), "scaled": pick(True, False)}
        chosen |= {"d_head": pick(None, 6)}
        chosen |= {"positions": pick("none", "learned", "sinusoidal", "rotary", "alibi")}
    return chosen


def parts_of(model: Any) -> dict[str, int]:
    """The parameters of a built model by the parts that model_parameters names."""

    def size(part: nn.Module | None) -> int:
        return 0 if part is None else sum(tensor.numel() for tensor in part.parameters())

    return {
        "token embeddings": size(model.token),
        "position embeddings": size(model.position),
        "blocks": size(model.blocks),
        "final LayerNorm": size(model.norm),
        "output head": 0 if model.tied else size(model.head),
        "one block": size(model.blocks[0]) if len(model.blocks) else 0,
        "total": size(model),
    }


@settled
@given(chosen=model_settings())
def test_size_is_that_of_the_built_model(chosen: dict[str, Any]) -> None:
    with torch.device("meta"):
        model = tf.LanguageModel(**chosen)
    counted = tf.model_parameters(**chosen)
    if chosen["n_blocks"] == 0:
        counted["one block"] = 0  # nothing is built to compare it with
    assert counted == parts_of(model)
    assert tf.count_parameters(model) == counted["total"]


def test_size_of_gpt2_part_by_part() -> None:
    with torch.device("meta"):
        model = tf.gpt2_small()
        logits = model(tokens(1, 1_024))
    d, V, T = 768, 50_257, 1_024
    block = (4 * d * d + 4 * d) + (8 * d * d + 5 * d) + 4 * d
    want = {
        "token embeddings": V * d,
        "position embeddings": T * d,
        "blocks": 12 * block,
        "final LayerNorm": 2 * d,
        "output head": 0,
        "one block": block,
        "total": 124_439_808,
    }
    shape = {"vocabulary": V, "context": T, "d_model": d, "n_blocks": 12, "n_heads": 12}
    assert parts_of(model) == want
    assert tf.model_parameters(**shape, tied=True, qkv_bias=True) == want
    assert tf.block_parameters(d, qkv_bias=True) == block
    assert logits.shape == (1, T, V)


def test_gpt2_takes_changes() -> None:
    with torch.device("meta"):
        model = tf.gpt2_small(context=2_048, tied=False)
    assert parts_of(model)["position embeddings"] == 2_048 * 768
    assert model.head.weight is not model.token.weight


@settled
@given(heads=st.integers(1, 4), width=st.integers(1, 5), d_head=st.sampled_from([None, 1, 9]))
@pytest.mark.parametrize("bias", [True, False], ids=["biases", "no biases"])
def test_size_of_single_parts(heads: int, width: int, d_head: int | None, bias: bool) -> None:
    d = heads * width
    with torch.device("meta"):
        layer = tf.MultiHeadAttention(d, heads, d_head=d_head, qkv_bias=bias)
        network, norm = tf.FeedForward(d, expansion=width), nn.LayerNorm(d)
        block = tf.Block(d, tf.MultiHeadAttention(d, heads, qkv_bias=bias))
    assert tf.attention_parameters(d, heads, d_head, bias) == tf.count_parameters(layer)
    assert tf.feed_forward_parameters(d, width) == tf.count_parameters(network)
    assert tf.layer_norm_parameters(d) == tf.count_parameters(norm)
    assert tf.block_parameters(d, bias) == tf.count_parameters(block)


def test_score_matrix_bytes() -> None:
    assert tf.attention_matrix_bytes(16_384, 8) == 8 * 2**30  # 8 GiB, as the chapter says
    assert tf.attention_matrix_bytes(3, 5, bytes_per_number=2) == 5 * 9 * 2


def test_rotation_is_complex_multiplication() -> None:
    """Features 2j and 2j+1 are one complex number, turned by exp(i t base^(-2j/d))."""
    x, positions, base = draw(2, 3, 6), [0, 7, 4_096], 100.0
    frequencies = [base ** (-2 * j / 6) for j in range(3)]
    turns = [[complex(math.cos(t * w), math.sin(t * w)) for w in frequencies] for t in positions]
    pairs = torch.view_as_complex(x.view(2, 3, 3, 2))
    want = torch.view_as_real(pairs * torch.tensor(turns, dtype=torch.complex128)).flatten(-2)
    # An angle of 4,096 is known to half a unit in its last place, and so is its sine.
    largest = 4_096.0 * x.abs().max().item()
    assert_rounding(tf.rotate(x, torch.tensor(positions), base), want, largest)
    assert torch.equal(tf.rotate(x), tf.rotate(x, torch.arange(3)))


def test_sinusoids_are_the_papers() -> None:
    got = tf.sinusoidal_positions(50, 6, base=100.0, dtype=torch.float64)
    angles = [[t / 100.0 ** (2 * j / 6) for j in range(3)] for t in range(50)]
    for feature, wave in ((0, math.sin), (1, math.cos)):
        want = torch.tensor([[wave(a) for a in row] for row in angles], dtype=torch.float64)
        assert_rounding(got[:, feature::2], want)


@pytest.mark.parametrize(
    ("n_heads", "exponents"),
    [
        (1, [8]),
        (4, [2, 4, 6, 8]),
        (6, [2, 4, 6, 8, 1, 3]),  # four heads' slopes, then the 1st and 3rd of eight heads'
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),  # eight heads', then sixteen heads'
    ],
)
def test_alibi_slopes_for_any_number_of_heads(n_heads: int, exponents: list[float]) -> None:
    want = torch.tensor([2.0**-exponent for exponent in exponents], dtype=torch.float32)
    assert torch.equal(tf.alibi_slopes(n_heads), want)


def test_masks_and_distances_are_aligned_to_the_last_key() -> None:
    bias = tf.alibi_bias(3, 2, 5)
    distances = torch.tensor([[3, 2, 1, 0, 1], [4, 3, 2, 1, 0]])
    assert torch.equal(bias, -tf.alibi_slopes(3)[:, None, None] * distances)
    assert torch.equal(bias, tf.alibi_bias(3, 5)[:, -2:])
    seen = [[True, True, True, True, False], [True, True, True, True, True]]
    assert tf.causal_mask(2, 5).tolist() == seen


@pytest.mark.parametrize(
    "changes",
    [
        {"mixer": "none", "positions": "none"},
        {"mixer": "average", "positions": "sinusoidal"},
        {"positions": "none"},
        {"positions": "sinusoidal"},
        {"positions": "rotary"},
        {"positions": "alibi"},
    ],
    ids=str,
)
def test_models_without_a_table_take_any_length(changes: dict[str, str]) -> None:
    model, batch = small_model(**changes), draw_tokens(2, 20)
    assert_rounding(model(batch)[:, :8], model(batch[:, :8]))


@pytest.mark.parametrize(
    "changes", [{"scaled": False}, {"d_head": 6}, {"positions": "alibi"}], ids=str
)
def test_a_setting_of_the_heads_reaches_them(changes: dict[str, Any]) -> None:
    """The model computes what one with blocks made by hand computes, explicit or fused."""
    batch = draw_tokens(2, 8)
    for fused in (False, True):
        model = small_model(n_blocks=1, fused=fused, **changes)
        by_hand = copy.deepcopy(model)
        options = {"positions": "none", "fused": fused} | changes
        by_hand.blocks[0].mixer = build(tf.MultiHeadAttention, 16, 2, **options)
        by_hand.blocks[0].mixer.load_state_dict(model.blocks[0].mixer.state_dict())
        assert torch.equal(model(batch), by_hand(batch))
        assert model.blocks[0].mixer.fused is fused


@FUSED
def test_unscaled_heads_are_heads_with_longer_queries(fused: bool) -> None:
    """q k^T without the division is (sqrt(d_head) q) k^T with it."""
    unscaled = build(tf.MultiHeadAttention, 16, 2, scaled=False, fused=fused)
    longer = build(tf.MultiHeadAttention, 16, 2, fused=fused)
    with torch.no_grad():
        longer.q.weight *= math.sqrt(8)
    x = draw(2, 8, 16)
    assert_rounding(unscaled(x), longer(x))


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize(
    "average", [tf.average_loop, tf.average_by_matrix, tf.average_by_softmax], ids=AVERAGES
)
def test_averages_are_running_sums_over_their_lengths(
    average: Callable[[Tensor], Tensor], leading: tuple[int, ...]
) -> None:
    x = draw(*leading, 5, 4)
    assert_rounding(average(x), x.cumsum(-2) / torch.arange(1, 6)[:, None])


def test_an_average_that_replaces_the_token_is_the_mean_of_the_embeddings() -> None:
    switches = {"mixer": "average", "positions": "none", "norm": "none", "feed_forward": False}
    model = small_model(**switches, residual=False, n_blocks=1)
    batch, table = draw_tokens(2, 8), model.token.weight
    means = [torch.stack([table[row[: t + 1]].mean(0) for t in range(8)]) for row in batch]
    assert_rounding(model(batch), torch.stack(means) @ model.head.weight.T)
    assert tf.count_parameters(model.blocks) == 0


def test_the_encoder_sees_everything_and_the_decoder_no_later_target() -> None:
    """Each row depends on all of the source, but only on earlier targets."""
    model = small_translator()
    seen: dict[str, Tensor] = {}
    parts = {"source": model.source_token, "target": model.target_token, "read": model.encoder[-1]}
    for name, part in parts.items():
        part.register_forward_hook(lambda _, __, out, name=name: seen.update({name: out}))
    logits = model(draw_tokens(1, 5), torch.tensor([[1, 2, 3, 4]]))

    def used(row: Tensor, of: Tensor) -> list[bool]:
        (gradient,) = torch.autograd.grad(row.pow(3).sum(), of, retain_graph=True)
        return (gradient[0].abs().sum(-1) > 0).tolist()

    for i in range(5):
        assert used(seen["read"][0, i], of=seen["source"]) == [True] * 5
    for t in range(4):
        assert used(logits[0, t], of=seen["source"]) == [True] * 5
        assert used(logits[0, t], of=seen["target"]) == [i <= t for i in range(4)]
