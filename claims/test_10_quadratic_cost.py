"""Section 10: what a layer of attention costs, and the tensor that the cost comes from.

Scores and weights are n x n; everything else is linear in n, so that doubling n tends to four times
the cost, and one score matrix of 16,384 tokens is 8 GB. FlashAttention gives the same result in
tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise
from statistics import linear_regression
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from claims.harness import (
    Check,
    Draws,
    Expected,
    claim,
    digits,
    exact,
    proportion,
    trained,
    ulps,
    within,
)
from claims.harness.implementation import Implementation
from claims.instruments.invariance import influence
from claims.instruments.tiled import (
    Attention,
    forward_and_gradients,
    largest_tensor,
    plain_attention,
    share_of_allowed_error,
    tiled_attention,
    worst_error,
)
from claims.instruments.timing import HostStopwatch, Timing, exponents, measure
from claims.instruments.timing import ratios as ratios_by_round

MIB = 2**20
CPU_KERNELS = (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION)
GRADIENTS = ("dq", "dk", "dv")


# ---- operations and bytes ------------------------------------------------------------------------


@claim("everything-else-linear")
def test_everything_but_the_two_products_is_linear_in_n(
    implementation: Implementation, check: Check
) -> None:
    """Everything but scores and weights, every projection and the whole MLP, is linear in n.

    In floating-point operations, counted while a block of the width measured runs on the meta
    device: what the scores (2 n^2 d) and the mixing (2 n^2 d) leave is 24 d^2 n, twice the block's
    matrices per token.
    """
    d = 512
    with torch.device("meta"):
        block = implementation.Block(d, implementation.MultiHeadAttention(d, 8))

    def operations(n: int) -> int:
        with FlopCounterMode(display=False) as counter:
            block(torch.empty(1, n, d, device="meta"))
        return int(counter.get_total_flops())

    lengths = [128 * 2**i for i in range(8)]
    rest = {n: operations(n) - 4 * n * n * d for n in lengths}
    check(rest, exact({n: 24 * d * d * n for n in lengths}))


@claim("throttle-factor")
def test_a_card_under_300_mhz_is_seven_to_ten_times_slower(
    check: Check, document: Expected
) -> None:
    """From 1,785 MHz to under 300 MHz: a cold run is seven to ten times faster.

    As the ratio of the clocks: 300 itself would give 5.95, and what seven and ten ask for, 255 and
    178.5 MHz, are under 300, as the sentence has it.
    """
    cold, hot = document["MHz"]
    check(cold / hot, digits(document["at_least"], 2))
    asked = [cold / factor for factor in document["factors"]]
    check(asked, digits(document["hot_MHz"], 1))
    check(asked, within(0, hot, "the hot clock is under that", strict=True))


@claim("cost-table")
def test_the_columns_of_the_table_agree(
    implementation: Implementation, check: Check, document: Expected
) -> None:
    """The printed table: each column that follows from another follows from it.

    Lengths double; the matrix is counted; each x4 is the ratio of two rows, of peaks to within the
    0.05 that one decimal leaves; the projections, a part, take less than the whole.
    """
    table = dict(zip(document["columns"], zip(*document["rows"], strict=True), strict=True))
    check(table["tokens"], exact(tuple(128 * 2**i for i in range(8))))
    sizes = [implementation.attention_matrix_bytes(n, 8) / MIB for n in table["tokens"]]
    check(sizes, digits(table["attn_matrix_MB"], 1))
    ms, peaks = table["ms_total"][:-1], table["peak_MB"][:-1]
    check(ratios(ms), digits(table["ms_x4"][1:-1], 2))
    for (before, after), ratio in zip(pairwise(peaks), table["MB_x4"][1:-1], strict=True):
        low, high = (after - 0.05) / (before + 0.05), (after + 0.05) / (before - 0.05)
        check(ratio, within(low - 0.005, high + 0.005, "peaks and ratio are rounded"))
    shares = [part / whole for part, whole in zip(table["ms_projections"][:-1], ms, strict=True)]
    check(shares, within(0, 1, "a part of the layer", strict=True))


@claim("attn-matrix-bytes-per-row")
def test_bytes_of_the_attention_matrix(
    implementation: Implementation, check: Check, document: Expected
) -> None:
    """The attention matrix of 8 heads takes 0.5 MB at 128 tokens, and four times that per doubling.

    Eight n x n matrices of float32, in MiB: by arithmetic, and as the size of the weights that the
    layer returns on the meta device, where even the last row needs no memory.
    """
    printed = {n: int(mib * MIB) for n, mib in document["MiB"].items()}
    check({n: implementation.attention_matrix_bytes(n, 8) for n in printed}, exact(printed))
    with torch.device("meta"):
        layer = implementation.MultiHeadAttention(512, 8)
        weights = {n: layer(torch.empty(1, n, 512), return_weights=True)[1] for n in printed}
    check({n: w.nbytes for n, w in weights.items()}, exact(printed))


def peak_mib(implementation: Implementation, n: int) -> Fraction:
    """The layer's peak, derived: weights, workspace, and the larger of two moments of the pass.

    4 MiB are the four matrices, 8.125 MiB is the workspace that PyTorch gives cuBLAS by default.
    Two n x n tensors of float are alive throughout (S each); with them, at the end, six n x 512
    activations (E) and the boolean mask, and while the mask is applied four activations, the mask
    and its negation.
    """
    S = Fraction(implementation.attention_matrix_bytes(n, 8), MIB)
    E, mask = Fraction(n * 512 * 4, MIB), Fraction(n * n, MIB)
    return 4 + Fraction("8.125") + 2 * S + max(6 * E + mask, 4 * E + 2 * mask)


def ratios(column: Sequence[Any]) -> list[float]:
    """Each row over the row above."""
    return [float(after / before) for before, after in pairwise(column)]


def exponent(tokens: Sequence[int], column: Sequence[float]) -> float:
    """The least-squares slope of log(column) against log(tokens)."""
    return linear_regression(list(map(math.log, tokens)), list(map(math.log, column))).slope


@claim("mb-x4-ratios")
def test_memory_ratios(implementation: Implementation, check: Check, document: Expected) -> None:
    """The MB x4 column is each peak over the one above: 1.31, 1.79, 2.59, 3.32, 3.72, 3.91.

    The printed peaks are too coarse for the first of them, 19.2 / 14.6 = 1.32. They are first shown
    to be the rounding of a sum of what is alive, which then gives every digit.
    """
    peaks = [peak_mib(implementation, n) for n in document["tokens"]]
    check(list(map(float, peaks)), digits(document["peak_MiB"], 1))
    check(ratios(peaks), digits(document["ratios"], 2))
    check(ratios(document["peak_MiB"])[0], digits(document["first_from_printed"], 2))


@claim("ms-x4-ratios")
def test_time_ratios(check: Check, document: Expected) -> None:
    """The ms x4 column is each total time over the one above: 1.27, 2.02, 2.85, 3.14, 4.37, 3.69.

    From the times that the table prints.
    """
    check(ratios(document["ms"]), digits(document["ratios"], 2))


@claim("time-exponent-1.91")
def test_time_exponent(check: Check, document: Expected) -> None:
    """The log-log slope of time over the last four rows is 1.91.

    Least squares over the last four rows that ran, from the times that the table prints.
    """
    check(exponent(document["tokens"], document["ms"]), digits(document["value"], 2))


@claim("memory-exponent-1.87")
def test_memory_exponent(implementation: Implementation, check: Check, document: Expected) -> None:
    """The log-log slope of memory over the last four rows is 1.87.

    From the peaks that the table prints, and from the sum that they are the rounding of.
    """
    tokens = document["tokens"]
    derived = [float(peak_mib(implementation, n)) for n in tokens]
    check(exponent(tokens, document["peak_MiB"]), digits(document["value"], 2))
    check(exponent(tokens, derived), digits(document["value"], 2))


@claim("time-doubling-converges-to-4")
def test_doubling_converges_to_4_in_time(check: Check, document: Expected) -> None:
    """Doubling n converges exactly to 4 in time as in memory, with 3.91 at the last step.

    The last ratio of the printed times, against the 3.91 that the sentence gives for both.
    """
    check(ratios(document["ms"])[-1], digits(document["last"], 2))


@claim("projections-factor-of-ten")
def test_projections_take_ten_times_as_long_for_eight_times_the_tokens(
    check: Check, document: Expected
) -> None:
    """The projections go from 4.0 ms at 1,024 tokens to 40.1 ms at 8,192: ten times for eight.

    From the printed column, whose log-log slope between the two rows is 1.11.
    """
    first, last = document["ms"]
    check([first, last], digits(document["rounded"], 1))
    check(last / first, digits(document["factor"], 0))
    check(exponent(document["tokens"], document["ms"]), digits(document["slope"], 2))


@claim("projections-linear-in-print")
def test_projections_are_linear_in_the_printed_times(check: Check, document: Expected) -> None:
    """The projections' time is linear in n, as announced.

    As the cost of a product is, which has no part that stays: eight times the tokens, eight times
    the time.
    """
    first, last = document["ms"]
    check(last / first, digits(document["tokens"][1] / document["tokens"][0], 0))


@claim("score-matrix-8gb")
def test_the_score_matrix_of_16_384_tokens_is_8_gb(
    implementation: Implementation, check: Check, document: Expected
) -> None:
    """The score matrix alone would be 8 GB: 8 heads times 16,384 times 16,384 times 4 bytes.

    Exactly, where a GB is 2^30 bytes.
    """
    matrix = implementation.attention_matrix_bytes(16_384, 8)
    check(matrix, exact(8 * 16_384 * 16_384 * 4))
    check(Fraction(matrix, 2**30), exact(document["GiB"]))


# ---- time on a card ------------------------------------------------------------------------------

# The document's last four rows that ran.
ROWS = (1024, 2048, 4096, 8192)
# Its control, from where it ends: 1,024 rows of 512 do not fill a card of today.
LONGER = (8192, 16_384, 32_768, 65_536)


def projections(layer: nn.Module, x: Tensor) -> None:
    """The four matrices of attention, and nothing else, each applied to (..., n, d)."""
    for name in ("q", "k", "v", "o"):
        layer.get_submodule(name)(x)


def check_power(check: Check, grows: Sequence[float], power: int, device: str = "cpu") -> None:
    """Exponents are nearer to `power` than to any other whole number."""
    because = f"nearer to {power} than to {power - 1} or {power + 1}"
    check(grows, trained(power - 0.5, power + 0.5, because), device=device)


@claim("operations-exponents")
def test_operations_grow_like_n_squared(implementation: Implementation, check: Check) -> None:
    """Over the document's rows the layer's operations grow like n squared, its projections' like n.

    Counted on the meta device, and judged as times are on a GPU. Exponents: 1.72, and 1.
    """
    with torch.device("meta"):
        layer = implementation.MultiHeadAttention(512, 8)

    def counted(call: Callable[[Tensor], object], n: int) -> Timing:
        with FlopCounterMode(display=False) as counter:
            call(torch.empty(1, n, 512, device="meta"))
        return Timing((float(counter.get_total_flops()),) * 3, calls=1)

    check_power(check, exponents({n: counted(layer, n) for n in ROWS}), 2)
    control = partial(projections, layer)
    check_power(check, exponents({n: counted(control, n) for n in LONGER}), 1)


@torch.no_grad()
def timed(
    call: Callable[[Tensor], object], lengths: Sequence[int], rng: Draws, device: torch.device
) -> Mapping[int, Timing]:
    """`call` on one sequence of each length, width 512, against each other."""
    inputs = {n: rng.normal(1, n, 512, salt=f"{n}").to(device) for n in lengths}
    return measure({n: partial(call, x) for n, x in inputs.items()})


@claim("time-exponent-on-the-gpu")
def test_time_on_the_gpu_grows_like_n_squared(
    implementation: Implementation, check: Check, rng: Draws, cuda: torch.device
) -> None:
    """On a GPU the layer's time grows like n squared over the last four rows.

    The document's layer and lengths, explicit attention, in float32; one exponent a round.
    """
    layer = rng.build(lambda: implementation.MultiHeadAttention(512, 8)).to(cuda)
    check_power(check, exponents(timed(layer, ROWS, rng, cuda)), 2, device="cuda")


@claim("projections-linear-control")
def test_projections_on_the_gpu_are_linear_in_n(
    implementation: Implementation, check: Check, rng: Draws, cuda: torch.device
) -> None:
    """The projections' time is linear in n.

    The four matrices alone, where they fill the card; one exponent a round.
    """
    layer = rng.build(lambda: implementation.MultiHeadAttention(512, 8)).to(cuda)
    control = partial(projections, layer)
    check_power(check, exponents(timed(control, LONGER, rng, cuda)), 1, device="cuda")


def products(rng: Draws, device: torch.device) -> dict[int, Callable[[], Tensor]]:
    """(2048, k) by (k, 2048), under k = 4096 and twice that."""
    return {
        k: partial(
            torch.matmul,
            rng.normal(2048, k, salt=f"a{k}").to(device),
            rng.normal(k, 2048, salt=f"b{k}").to(device),
        )
        for k in (4096, 8192)
    }


@claim("timer-sees-the-gpu-work")
def test_twice_the_work_takes_twice_the_time(check: Check, rng: Draws, cuda: torch.device) -> None:
    """A matrix product with twice the inner dimension takes about twice as long on a GPU.

    A clock read without waiting for the card would show the same time for both.
    """
    measured = measure(products(rng, cuda))
    check_power(check, ratios_by_round(measured[8192], measured[4096]), 2, device="cuda")


@claim("events-agree-with-the-clock")
def test_events_and_a_clock_that_waits_agree(check: Check, rng: Draws, cuda: torch.device) -> None:
    """CUDA's events and the host's clock, read after waiting, time a long loop alike, to a fifth.

    The host waits once, after a loop of 20 ms or more.
    """
    work = products(rng, cuda)
    by_events, by_clock = measure(work), measure(work, stopwatch=HostStopwatch())
    agreement = ratios_by_round(by_events[8192], by_clock[8192])
    because = "both span the same loop; one wait and one launch are far under a fifth of it"
    check(agreement, trained(0.8, 1.2, because), device="cuda")


# ---- the same result without the matrix ----------------------------------------------------------

# The rule of FlashAttention's own tests: a kernel may err twice as much as the plain computation in
# the same precision, and by one unit in the last place of the largest value. The rule compares the
# worst of many errors with the worst of many others, so chance breaks it now and then (in float32
# one gradient of q in 25); it is asked of nine sequences in ten.
ONE_IN_TEN = proportion(0.0, 0.1, detects=0.2)


def over_the_rule(share: Tensor) -> tuple[int, int]:
    """How many sequences use up more than all of their allowed error, NaN included, of how many."""
    return int((~(share <= 1)).sum()), share.numel()


def draw_attention(rng: Draws, sequences: int, largest_score: float | None = None) -> list[Tensor]:
    """q, k, v and a gradient for the output, each (sequences, 1, 32, 16) standard normal.

    With `largest_score`, the queries of each sequence are scaled until its largest |score| is that.
    """
    q, k, v, upstream = (
        rng.normal(sequences, 1, 32, 16, salt=s) for s in ("q", "k", "v", "upstream")
    )
    if largest_score is not None:
        scores = q @ k.transpose(-2, -1) / math.sqrt(16)
        q = q * (largest_score / scores.abs().amax((-3, -2, -1), keepdim=True))
    return [q, k, v, upstream]


def fused(implementation: Implementation, kernel: SDPBackend) -> Attention:
    """The implementation's fused attention, causal, forced onto one of PyTorch's kernels."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = implementation.causal_mask(q.shape[-2], device=q.device)
        with sdpa_kernel(kernel):
            output: Tensor = implementation.attention(q, k, v, mask, fused=True)
        return output

    return attend


def explicit(implementation: Implementation) -> Attention:
    """The implementation's explicit attention, causal."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = implementation.causal_mask(q.shape[-2], device=q.device)
        output: Tensor = implementation.attention(q, k, v, mask)
        return output

    return attend


@claim("flashattention-same-result")
def test_attention_in_tiles_gives_the_same_result(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """FlashAttention computes the same result in tiles.

    A tiled online softmax, written for this, and the implementation's two ways all keep to twice
    the plain error in float32, output and gradients. In float64 tiles and implementation agree to
    rounding.
    """
    draws = draw_attention(rng, 256)

    def tiled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tiled_attention(q, k, v, tile=12)

    whole = explicit(implementation)
    for attend in (tiled, whole, fused(implementation, SDPBackend.FLASH_ATTENTION)):
        for share in share_of_allowed_error(attend, draws).values():
            check(over_the_rule(share), ONE_IN_TEN)

    q, k, v, _ = (x.double() for x in draws)
    largest = float((q.abs() @ k.abs().transpose(-2, -1)).max()) / math.sqrt(16)
    # Of each weight, relatively: its score and the one that it is measured from, 16 products and a
    # division each; sums of 32 weights and of 32 products; two exponentials for each of 3 tiles.
    roundings = 2 * (16 + 2) * largest + 2 * 32 + 3 * (2 * largest + 4) + 8
    because = "the roundings of both, counted above"
    check(tiled(q, k, v), ulps(whole(q, k, v), 2 * roundings, because, whole(q, k, v.abs())))


@claim("flashattention-stores-no-matrix")
def test_tiles_never_store_the_matrix(check: Check, rng: Draws) -> None:
    """FlashAttention never stores the matrix.

    Forward and backward in tiles of 32 make no tensor larger than q; the plain computation makes
    one of n^2 numbers. At each length.
    """
    lengths = (64, 128, 256)

    def largest(attend: Attention, n: int) -> int:
        draws = [rng.normal(n, 16, salt=name) for name in ("q", "k", "v", "upstream")]
        return largest_tensor(lambda: forward_and_gradients(attend, *draws))

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return plain_attention(q, k, v, torch.ones(len(q), len(k), dtype=torch.bool).tril())

    def tiled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tiled_attention(q, k, v, tile=32)

    check({n: largest(tiled, n) for n in lengths}, exact({n: n * 16 for n in lengths}))
    check({n: largest(plain, n) for n in lengths}, exact({n: n * n for n in lengths}))


# ---- beyond the document: what kernels and cards have done to others -----------------------------


@claim("fused-output-error")
def test_fused_output_errs_at_most_twice_the_plain(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """The fused output errs at most twice as much as the plain computation in the same precision.

    Both of PyTorch's kernels for the CPU, in float32 and both half precisions, against float64.
    """
    draws = draw_attention(rng, 256)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for kernel in CPU_KERNELS:
            share = share_of_allowed_error(fused(implementation, kernel), draws, dtype)
            check(over_the_rule(share["output"]), ONE_IN_TEN)


@claim("fused-gradient-error")
def test_fused_gradients_err_at_most_twice_the_plain(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """The fused gradients err at most twice as much as the plain ones in the same precision.

    Those of q, k and v, by both of PyTorch's kernels for the CPU, in float32 and both half
    precisions.
    """
    draws = draw_attention(rng, 256)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for kernel in CPU_KERNELS:
            share = share_of_allowed_error(fused(implementation, kernel), draws, dtype)
            for part in GRADIENTS:
                check(over_the_rule(share[part]), ONE_IN_TEN)


@claim("fused-error-at-scores-of-60")
def test_fused_error_stays_small_when_scores_are_large(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """With scores up to +-60 the fused error is still at most twice the plain one's.

    The output in every precision, and the gradients in half precisions, where the kernels compute
    in float32 and round at the end. The gradients in float32 have their own claim.
    """
    draws = draw_attention(rng, 256, largest_score=60.0)
    for kernel in CPU_KERNELS:
        single = share_of_allowed_error(fused(implementation, kernel), draws)
        check(over_the_rule(single["output"]), ONE_IN_TEN)
        for dtype in (torch.float16, torch.bfloat16):
            half = share_of_allowed_error(fused(implementation, kernel), draws, dtype)
            for share in half.values():
                check(over_the_rule(share), ONE_IN_TEN)


@claim("fused-float32-gradient-error-at-scores-of-60")
def test_fused_float32_gradients_stay_good_when_scores_are_large(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """With scores up to +-60 the fused gradients err at most twice as much, in float32 too.

    Asked of the values' gradient, which is the weights' transpose times what comes back.
    """
    draws = draw_attention(rng, 256, largest_score=60.0)
    share = share_of_allowed_error(fused(implementation, SDPBackend.FLASH_ATTENTION), draws)
    check(over_the_rule(share["dv"]), ONE_IN_TEN)


@claim("fused-module-same-result")
def test_the_fused_module_gives_the_result_of_the_explicit_one(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Causal multi-head attention by the fused kernel errs at most twice as much as step by step.

    The same weights in two modules, one fused; the reference is the explicit one in float64.
    """
    explicitly = rng.build(lambda: implementation.MultiHeadAttention(32, 4))
    fusedly = rng.build(lambda: implementation.MultiHeadAttention(32, 4, fused=True))
    fusedly.load_state_dict(explicitly.state_dict())
    x = rng.normal(256, 32, 32)
    with torch.no_grad():
        measured, simplest = fusedly(x), explicitly(x)
        reference = explicitly.double()(x.double())
    allowed = 2 * worst_error(simplest, reference) + torch.finfo(
        x.dtype
    ).eps * reference.abs().amax((1, 2))
    check(over_the_rule(worst_error(measured, reference) / allowed), ONE_IN_TEN)


def check_draws_arrive(check: Check, rng: Draws, device: torch.device) -> None:
    """The draws on `device`, and their casts there, are those of a CPU generator, bit for bit."""
    for dtype in (torch.float32, torch.float64):
        drawn = torch.randn(1024, generator=rng.generator("x"), dtype=dtype)
        arrived = rng.normal(1024, salt="x", dtype=dtype).to(device).cpu()
        check(arrived, exact(drawn, "a copy rounds nothing"), device=device.type)
    drawn = torch.randn(1024, generator=rng.generator("x")).half()
    cast = rng.normal(1024, salt="x").to(device).half().cpu()
    check(cast, exact(drawn, "float32 is cast to the nearest everywhere"), device=device.type)


@claim("draws-are-made-on-the-cpu")
def test_draws_are_those_of_a_cpu_generator(check: Check, rng: Draws) -> None:
    """A claim's draws are those of a CPU generator, whatever runs on them.

    Drawn a second time, straight from the generator.
    """
    check_draws_arrive(check, rng, torch.device("cpu"))


@claim("draws-arrive-on-the-gpu")
def test_draws_arrive_on_the_gpu_bit_for_bit(check: Check, rng: Draws, cuda: torch.device) -> None:
    """On a GPU a claim sees the draws that it sees on a CPU, bit for bit.

    By the comparison of `draws-are-made-on-the-cpu`, after the way to the card and back.
    """
    check_draws_arrive(check, rng, cuda)


@claim("fused-error-on-the-gpu")
def test_fused_attention_on_the_gpu_errs_at_most_twice_the_plain(
    implementation: Implementation, check: Check, rng: Draws, cuda: torch.device
) -> None:
    """On a GPU fused output and gradients err at most twice as much as the plain ones.

    By the comparison of `fused-output-error`, with TF32 off, for the kernels that take float32 and
    a mask.
    """
    draws = draw_attention(rng, 256)
    for kernel in (SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION):
        shares = share_of_allowed_error(fused(implementation, kernel), draws, device=cuda)
        for share in shares.values():
            check(over_the_rule(share), ONE_IN_TEN, device="cuda")


# ---- encoder, decoder ----------------------------------------------------------------------------


def one_after_another(layers: nn.Module) -> Callable[[Tensor], Tensor]:
    """A stack of layers as one map."""
    return nn.Sequential(*layers.children())


@claim("encoder-decoder-three-attentions")
def test_the_model_of_2017_has_three_attentions(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """The model of 2017 has three attentions: unmasked, causal, and from decoder to encoder.

    By influence: of every source position on every other through the encoder, of earlier target
    positions alone through the decoder's own attention, of every source position on every target
    position in between.
    """
    model = rng.build(
        lambda: implementation.EncoderDecoder(
            source_vocabulary=16, target_vocabulary=16, context=8, d_model=16, n_heads=2, n_blocks=2
        )
    ).double()
    source, target = (rng.normal(1, n, 16, salt=f"{n}", dtype=torch.float64) for n in (6, 4))
    decoder = model.decoder[0]
    felt = "no weight of a softmax is zero"
    reads = influence(one_after_another(model.encoder), source)
    check(reads, within(0, math.inf, felt, strict=True))
    writes = influence(decoder.attention, target)
    check(
        writes.triu(1), exact(torch.zeros(4, 4).double(), "no path leads back from a later token")
    )
    check(writes[torch.ones(4, 4).tril().bool()], within(0, math.inf, felt, strict=True))
    between = influence(lambda keys: decoder.cross(target, context=keys), source)
    check(tuple(between.shape), exact((4, 6)))
    check(between, within(0, math.inf, felt, strict=True))


@claim("decoder-only-same-sequence")
def test_the_decoder_is_one_causal_stack_over_one_sequence(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """The decoder-only half is one stack, causal throughout, input and output in the same sequence.

    There is one row of logits per token of the input. Changing token i changes the logits of token
    i and of all later ones, and no bit of an earlier one.
    """
    model = rng.build(
        lambda: implementation.LanguageModel(vocabulary=16, context=8, d_model=16, n_blocks=3)
    ).requires_grad_(False)
    tokens = rng.integers(0, 16, 1, 8)
    logits = model(tokens)
    check(tuple(logits.shape), exact((1, 8, 16)))

    def changed_rows(i: int) -> Tensor:
        other = tokens.clone()
        other[0, i] = (other[0, i] + 1) % 16
        rows: Tensor = (model(other) != logits).any(-1)[0]
        return rows

    changed = torch.stack([changed_rows(i) for i in range(8)], dim=1)
    check(changed, exact(torch.ones(8, 8).tril().bool()))
