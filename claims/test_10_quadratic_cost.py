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
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from claims.harness import (
    Check,
    Draws,
    Expected,
    PerSeed,
    claim,
    digits,
    exact,
    seed_mean_within,
    share_within,
    ulps,
    within,
)
from claims.harness.implementation import Implementation
from claims.instruments.attention.influence import influence
from claims.instruments.attention.kernels import attention_within, measure_kernels, products_in_tf32
from claims.instruments.attention.tiled import (
    Attention,
    forward_and_gradients,
    largest_tensor,
    plain_attention,
    share_of_allowed_error,
    tiled_attention,
    worst_error,
)
from claims.instruments.cost.attention_layer import (
    AllAtOnce,
    OneByOne,
    layer_footprint,
    of_pairs,
    pass_on,
)
from claims.instruments.cost.fake_gpu import (
    Counted,
    CudaGpu,
    Gpu,
    count,
    fake_gpu,
    runs_out,
)
from claims.instruments.cost.memory import Footprint
from claims.instruments.cost.memory.allocator import GRANULE, WORKSPACE, block_bytes
from claims.instruments.cost.timing import HostStopwatch, Timing, exponents, measure
from claims.instruments.cost.timing import ratios as ratios_by_round

MIB = 2**20
D, HEADS = 512, 8
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
LONGER = LENGTHS[3:]  # the last four, at none of which the width is the number of tokens
NEXT = 16_384
CAP = 8 * 2**30
CPU_KERNELS = (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION)
GRADIENTS = ("dq", "dk", "dv")


# ---- operations and bytes ------------------------------------------------------------------------


def table_footprint(
    implementation: Implementation, n: int, *, mode: str = "no_grad", workspace: int = WORKSPACE
) -> Footprint:
    """What the layer of the table takes for n tokens, by the instrument `memory`."""

    def make() -> nn.Module:
        layer: nn.Module = implementation.MultiHeadAttention(D, HEADS)
        return layer

    return layer_footprint(make, n, D, mode=mode, workspace=workspace)


def in_mib(peaks: dict[int, int]) -> dict[int, Fraction]:
    return {n: Fraction(peak, MIB) for n, peak in peaks.items()}


@claim("two-nxn-tensors")
def test_two_tensors_in_the_layer_are_n_by_n(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Two tensors in the layer have shape n x n: the scores and the weights after the softmax.

    All that are there at the layer's peak, at each length of the table's last four rows.
    """
    alive = {n: of_pairs(table_footprint(implementation, n).alive, n) for n in LONGER}
    check(
        {n: len(found) for n, found in alive.items()},
        exact(dict.fromkeys(LONGER, expected["count"])),
    )


@claim("two-nxn-tensors-of-numbers")
def test_two_tensors_of_numbers_are_n_by_n_and_masks_beside_them(
    implementation: Implementation, check: Check
) -> None:
    """Two tensors of floating-point numbers have shape (1, 8, n, n); beside them is a mask or two.

    The masks are n x n truth values of one byte, for all heads together: 1/32 of the scores each.
    """
    for n in LONGER:
        found = of_pairs(table_footprint(implementation, n).alive, n)
        numbers = [a for a in found if a.dtype.is_floating_point]
        masks = [a for a in found if a.dtype == torch.bool]
        check([a.shape for a in numbers], exact([(1, HEADS, n, n)] * 2))
        check({a.shape for a in masks} == {(n, n)}, exact(True))
        check({a.bytes * 32 for a in masks} == {a.bytes for a in numbers}, exact(True))
        check(len(found), within(3, 4, "scores, weights, mask, and its negation in between"))


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
    check: Check, expected: Expected
) -> None:
    """From 1,785 MHz to under 300 MHz: a cold run is seven to ten times faster.

    As the ratio of the clocks: 300 itself would give 5.95, and what seven and ten ask for, 255 and
    178.5 MHz, are under 300, as the sentence has it.
    """
    cold, hot = expected["MHz"]
    check(cold / hot, digits(expected["at_least"], 2))
    asked = [cold / factor for factor in expected["factors"]]
    check(asked, digits(expected["hot_MHz"], 1))
    check(asked, within(0, hot, "the hot clock is under that", strict=True))


@claim("cost-table")
def test_the_columns_of_the_table_agree(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """The printed table: each column that follows from another follows from it.

    Lengths double; the matrix is counted; each x4 is the ratio of two rows, of peaks to within the
    0.05 that one decimal leaves; the projections, a part, take less than the whole.
    """
    table = dict(zip(expected["columns"], zip(*expected["rows"], strict=True), strict=True))
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
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """The attention matrix of 8 heads takes 0.5 MB at 128 tokens, and four times that per doubling.

    Eight n x n matrices of float32, in MiB: by arithmetic, and as the size of the weights that the
    layer returns on the meta device, where even the last row needs no memory.
    """
    printed = {n: int(mib * MIB) for n, mib in expected["MiB"].items()}
    check({n: implementation.attention_matrix_bytes(n, 8) for n in printed}, exact(printed))
    with torch.device("meta"):
        layer = implementation.MultiHeadAttention(512, 8)
        weights = {n: layer(torch.empty(1, n, 512), return_weights=True)[1] for n in printed}
    check({n: w.nbytes for n, w in weights.items()}, exact(printed))


@claim("mb-are-allocator-counts")
def test_megabytes_are_counts_of_bytes_and_do_not_change(
    implementation: Implementation, check: Check
) -> None:
    """The megabytes are byte counts of the allocator and do not change.

    Repeated, each row takes the same bytes, which are whole blocks of 512. With the 32 MiB that
    PyTorch gives cuBLAS on a Hopper GPU each row moves by the difference and by nothing else.
    """
    for n in LENGTHS:
        peaks = [table_footprint(implementation, n).peak for _ in range(3)]
        check(peaks, exact(peaks[:1] * 3), unit="bytes")
        check(peaks[0] % 512, exact(0))
        hopper = table_footprint(implementation, n, workspace=32 * MIB).peak
        check(hopper - peaks[0], exact(32 * MIB - (2 * 4096 + 8 * 16) * 1024), unit="bytes")


def parts(n: int, d: int, h: int) -> tuple[int, int, int]:
    """Bytes of (n, d) numbers, of (h, n, n) scores and of an (n, n) mask, in whole blocks."""
    return block_bytes(4 * n * d), block_bytes(4 * h * n * n), block_bytes(n * n)


def derived_peak(n: int, d: int = D, h: int = HEADS, *, activations: int = 6) -> int:
    """The layer's peak in bytes: its matrices, a workspace, and the larger of two moments.

    Two n x n tensors of numbers are alive throughout (S each). With them are, at the end, six
    n x d activations (E: x, q, k, v, the mixed values and a copy of them) and the mask, and while
    the mask is applied four activations, the mask and its negation.
    """
    E, S, mask = parts(n, d, h)
    return (
        4 * block_bytes(4 * d * d)
        + WORKSPACE
        + 2 * S
        + max(activations * E + mask, 4 * E + 2 * mask)
    )


@claim("peak-memory-closed-form")
def test_peaks_are_the_sum_of_what_is_alive(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """The peak column is 12.125 + 2A + max(m + 6L, 2m + 4L) MiB, and the layer takes that.

    The formula gives the seven printed peaks; so does the layer, followed on the meta device. At
    16,384 tokens both ask for 17,036 MiB.
    """
    predicted = expected["predicted"]
    check(in_mib({n: derived_peak(n) for n in predicted}), digits(predicted, 3), unit="MiB")
    check(in_mib({n: derived_peak(n) for n in LENGTHS}), digits(expected["printed"], 1), unit="MiB")
    peaks = {n: table_footprint(implementation, n).peak for n in (*LENGTHS, NEXT)}
    check(Fraction(peaks.pop(NEXT), MIB), digits(expected["next"], 0), unit="MiB")
    check(in_mib(peaks), digits(expected["printed"], 1), unit="MiB")


widths = st.integers(1, 40)  # of one head


@claim("peak-memory-at-any-size")
def test_the_closed_form_gives_the_bytes_at_any_size(
    implementation: Implementation, check: Check
) -> None:
    """For any length, width and number of heads the peak is, to the byte, what is alive.

    Beside the closed form the bias of W_o and a flag per query, which says whether it may attend to
    anything. Where scores are small the peak is at the end, with the scores gone: seven activations
    (six with one head, whose values need no copy) and the mask.
    """

    @given(n=st.integers(2, 300), h=st.integers(1, 12), width=widths)
    @settings(max_examples=25, deadline=None)
    def any_size(n: int, h: int, width: int) -> None:
        d = h * width
        E, _, mask = parts(n, d, h)
        stays = 4 * block_bytes(4 * d * d) + WORKSPACE
        at_the_end = stays + (7 - (h == 1)) * E + mask
        derived = max(at_the_end, derived_peak(n, d, h) + block_bytes(n)) + block_bytes(4 * d)
        peak = layer_footprint(lambda: implementation.MultiHeadAttention(d, h), n, d).peak
        check(peak, exact(derived), unit="bytes")

    any_size()


@claim("more-tokens-no-less-memory")
def test_more_tokens_never_take_less_memory(implementation: Implementation, check: Check) -> None:
    """The peak never falls when tokens are added, step by step or fused.

    One token more, and twice as many, at any length, width and number of heads.
    """

    @given(n=st.integers(2, 300), h=st.integers(1, 12), width=widths, fused=st.booleans())
    @settings(max_examples=10, deadline=None)
    def any_size(n: int, h: int, width: int, fused: bool) -> None:
        d = h * width

        def make() -> nn.Module:
            layer: nn.Module = implementation.MultiHeadAttention(d, h, fused=fused)
            return layer

        peaks = torch.tensor([layer_footprint(make, m, d).peak for m in (n, n + 1, 2 * n)])
        check(peaks.diff(), within(0, math.inf, "no tensor shrinks when tokens are added"))

    any_size()


@claim("masks-overtake-activations")
def test_masks_overtake_the_activations_in_the_row_of_8192_tokens(
    implementation: Implementation, check: Check
) -> None:
    """The last peak is another moment's: from 4,096 tokens on, masks weigh more than activations.

    Up to 2,048 tokens six activations and one mask are alive at the peak, at 8,192 four and two.
    That is 32 MiB more than the moment of the rows above would take; at 4,096, where n is 8 d, the
    two moments take the same.
    """

    def alive(n: int) -> tuple[int, int]:
        found = table_footprint(implementation, n).alive
        masks = [a for a in of_pairs(found, n) if a.dtype == torch.bool]
        activations = [a for a in found if a.dtype == torch.float32 and a.bytes == 4 * n * D]
        return len(activations), len(masks)

    check(
        {n: alive(n) for n in (1024, 2048, 8192)}, exact({1024: (6, 1), 2048: (6, 1), 8192: (4, 2)})
    )
    E, S, mask = parts(8192, D, HEADS)
    rows_above = 4 * 4 * D * D + WORKSPACE + 2 * S + 6 * E + mask
    check(derived_peak(8192) - rows_above, exact(32 * MIB), unit="bytes")
    E, _, mask = parts(8 * D, D, HEADS)
    check(6 * E + mask, exact(4 * E + 2 * mask), unit="bytes")


@claim("listing-on-all-heads-takes-an-activation-less")
def test_the_listing_on_all_heads_takes_an_activation_less(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """The chapter's Head, handed all eight heads at once, with W_o after it, misses five rows.

    It lets go of scores and weights before the values are copied for W_o, so that five activations
    take the place of six; where the masks decide, in the rows of 4,096 and 8,192, nothing changes.
    """

    def make(n: int) -> nn.Module:
        return AllAtOnce(implementation.Head(D, D // HEADS, n), D, HEADS)

    peaks = {n: layer_footprint(partial(make, n), n, D).peak for n in LENGTHS}
    bias = block_bytes(4 * D)
    check(peaks, exact({n: derived_peak(n, activations=5) + bias for n in LENGTHS}), unit="bytes")
    check(in_mib(peaks), digits(expected["MiB"], 1), unit="MiB")


@claim("heads-one-by-one-take-less")
def test_heads_one_after_the_other_hold_the_scores_of_one(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Eight heads that run one after the other hold the scores of a single one at a time.

    At 8,192 tokens 1,136.1 MiB, or 688.1 with one mask among them, in place of 4,300.1: the table's
    layer is one product for all heads.
    """
    n = 8192

    def make(one_mask: bool) -> nn.Module:
        heads = [implementation.Head(D, D // HEADS, n) for _ in range(HEADS)]
        for head in heads if one_mask else ():
            head.mask = heads[0].mask
        return OneByOne(heads, D)

    footprints = {
        "own masks": layer_footprint(partial(make, False), n, D),
        "one mask": layer_footprint(partial(make, True), n, D),
    }
    for footprint in footprints.values():
        numbers = [a for a in of_pairs(footprint.alive, n) if a.dtype.is_floating_point]
        check([a.shape for a in numbers], exact([(1, n, n)] * 2))
    peaks = {which: Fraction(footprint.peak, MIB) for which, footprint in footprints.items()}
    check(peaks, digits(expected["MiB"], 1), unit="MiB")


@claim("memory-with-gradients")
def test_gradients_take_a_third_tensor_of_pairs(
    implementation: Implementation, check: Check
) -> None:
    """With gradients a mask is kept in the forward pass, and the backward has a third n x n tensor.

    A forward pass that is recorded keeps the negated mask, and misses every printed peak: it takes
    the smaller of a mask and two activations more. In the backward pass the weights, their gradient
    and that of the scores are there at once.
    """
    recorded = {n: table_footprint(implementation, n, mode="forward").peak for n in LENGTHS}
    more = {n: peak - table_footprint(implementation, n).peak for n, peak in recorded.items()}
    check(more, exact({n: min(n * n, 2 * 4 * n * D) for n in LENGTHS}), unit="bytes")
    for n in LONGER:
        alive = of_pairs(table_footprint(implementation, n, mode="training").alive, n)
        numbers = [a for a in alive if a.dtype.is_floating_point]
        check([a.bytes for a in numbers], exact([4 * HEADS * n * n] * 3), unit="bytes")


def ratios(column: Sequence[Any]) -> list[float]:
    """Each row over the row above."""
    return [float(after / before) for before, after in pairwise(column)]


def exponent(tokens: Sequence[int], column: Sequence[float]) -> float:
    """The least-squares slope of log(column) against log(tokens)."""
    return linear_regression(list(map(math.log, tokens)), list(map(math.log, column))).slope


@claim("mb-x4-ratios")
def test_memory_ratios(implementation: Implementation, check: Check, expected: Expected) -> None:
    """The MB x4 column is each peak over the one above: 1.31, 1.79, 2.59, 3.32, 3.72, 3.91.

    The printed peaks are too coarse for the first of them, 19.2 / 14.6 = 1.32. The layer's own
    bytes, of which they are the rounding, give every digit.
    """
    peaks = [Fraction(table_footprint(implementation, n).peak, MIB) for n in expected["tokens"]]
    check(peaks, digits(expected["peak_MiB"], 1), unit="MiB")
    check(ratios(peaks), digits(expected["ratios"], 2))
    check(ratios(expected["peak_MiB"])[0], digits(expected["first_from_printed"], 2))


@claim("ms-x4-ratios")
def test_time_ratios(check: Check, expected: Expected) -> None:
    """The ms x4 column is each total time over the one above: 1.27, 2.02, 2.85, 3.14, 4.37, 3.69.

    From the times that the table prints.
    """
    check(ratios(expected["ms"]), digits(expected["ratios"], 2))


@claim("oom-at-16384")
def test_16_384_tokens_run_out_of_memory_on_8_gb(
    implementation: Implementation, check: Check, cuda: torch.device
) -> None:
    """At 16,384 tokens the layer runs out of memory on a GPU of 8 GB; at 8,192 it does not.

    On the GPU at hand, kept to 8 GiB. All of it is given back: afterwards 90 % of the cap can be
    had in one piece.
    """
    check_out_of_memory(implementation, check, CudaGpu(cuda))


@claim("oom-on-a-pretended-card")
def test_16_384_tokens_run_out_of_memory_on_a_pretended_card(
    implementation: Implementation, check: Check
) -> None:
    """At 16,384 tokens the layer runs out of 8 GiB on a fake GPU; at 8,192 it does not.

    By the comparison of `oom-at-16384`, on the meta device.
    """
    with fake_gpu(WORKSPACE) as gpu:
        check_out_of_memory(implementation, check, gpu)


def check_out_of_memory(implementation: Implementation, check: Check, gpu: Gpu) -> None:
    """What runs out of memory under the cap, and that nothing of it is left behind."""

    def out_of_memory_at(n: int) -> bool:
        return runs_out(pass_on(gpu, lambda: implementation.MultiHeadAttention(D, HEADS), n, D))

    device = gpu.device.type
    check(out_of_memory_at(LENGTHS[0]), exact(False), device=device)  # cuBLAS has its workspace
    before = gpu.now().asked
    with gpu.capped(CAP):
        check(out_of_memory_at(LENGTHS[-1]), exact(False), device=device)
        check(out_of_memory_at(NEXT), exact(True), device=device)
        check(gpu.now().asked, exact(before), unit="bytes", device=device)
        check_most_of_the_cap(check, gpu)


@claim("most-of-the-cap-on-the-gpu")
def test_most_of_8_gib_can_be_had_after_running_out(check: Check, cuda: torch.device) -> None:
    """On a GPU kept to 8 GiB, 90 % of them can be had in one piece, whatever ran before.

    A claim of its own, after the one that runs out of memory: not even what pytest keeps of that
    one holds on to any.
    """
    gpu = CudaGpu(cuda)
    with gpu.capped(CAP):
        check_most_of_the_cap(check, gpu)


def check_most_of_the_cap(check: Check, gpu: Gpu) -> None:
    """That 90 % of a cap which is in force can be had in one piece."""

    def take() -> Tensor:
        return torch.empty(CAP * 9 // 10, dtype=torch.uint8, device=gpu.device)

    check(runs_out(take), exact(False), device=gpu.device.type)


@claim("need-at-16384-exceeds-8-gib")
def test_16_384_tokens_need_more_than_8_gib(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """At 16,384 tokens the layer needs 17,036 MiB, twice what a GPU of 8 GB has; at 8,192 it fits.

    The bytes that it takes on the meta device. The scores alone, 8 GiB, leave no room for x.
    """
    peak = table_footprint(implementation, NEXT).peak
    check(Fraction(peak, MIB), digits(expected["MiB"], 0), unit="MiB")
    check(peak, within(CAP, math.inf, "more than there is", strict=True), unit="bytes")
    check(implementation.attention_matrix_bytes(NEXT, HEADS), exact(CAP), unit="bytes")
    fits = table_footprint(implementation, LENGTHS[-1]).peak
    check(fits, within(0, CAP, "the row above has a peak"), unit="bytes")


@claim("peaks-on-the-gpu")
def test_a_gpu_counts_the_predicted_peaks(
    implementation: Implementation, check: Check, cuda: torch.device
) -> None:
    """On a GPU each row of the table takes the bytes that are predicted, at every repeat.

    With the workspace that cuBLAS is seen to take. To the byte as asked for; as allocated, up to
    what the allocator leaves of blocks without splitting them.
    """
    counted = counted_rows(implementation, CudaGpu(cuda))
    check_rows(implementation, check, counted, "cuda")


@claim("peaks-on-a-pretended-card")
def test_a_pretended_card_counts_the_predicted_peaks(
    implementation: Implementation, check: Check
) -> None:
    """On a fake GPU each row of the table takes the bytes that are predicted.

    By the comparison of `peaks-on-the-gpu`, on the meta device with books of its own, and with the
    workspace of a Hopper GPU, so that it is read off and not assumed.
    """
    with fake_gpu(32 * MIB) as gpu:
        counted = counted_rows(implementation, gpu)
    check_rows(implementation, check, counted, "meta")


def counted_rows(implementation: Implementation, gpu: Gpu) -> dict[int, Counted]:
    """What the GPU counts for each row of the table."""

    def place(n: int) -> Callable[[], object]:
        return pass_on(gpu, lambda: implementation.MultiHeadAttention(D, HEADS), n, D)

    return {n: count(partial(place, n), gpu) for n in LENGTHS}


def check_rows(
    implementation: Implementation, check: Check, rows: dict[int, Counted], device: str
) -> None:
    """Counted peaks against predicted ones, with the workspace that was seen."""

    def predicted(n: int, workspace: int, granule: int) -> Footprint:
        return layer_footprint(
            lambda: implementation.MultiHeadAttention(D, HEADS),
            n,
            D,
            workspace=workspace,
            granule=granule,
        )

    for n, counted in rows.items():
        asked = predicted(n, counted.workspace, 1).peak
        same = exact([asked] * len(counted.peaks))
        check([peak.asked for peak in counted.peaks], same, unit="bytes", device=device)
        blocks = predicted(n, counted.workspace, GRANULE)
        unsplit = "blocks are whole, and up to 1 MiB of a large one is left unsplit"
        allocated = torch.tensor([peak.allocated for peak in counted.peaks])
        check(allocated, within(blocks.peak, blocks.ceiling, unsplit), unit="bytes", device=device)


@claim("time-exponent-1.91")
def test_time_exponent(check: Check, expected: Expected) -> None:
    """The log-log slope of time over the last four rows is 1.91.

    Least squares over the last four rows that ran, from the times that the table prints.
    """
    check(exponent(expected["tokens"], expected["ms"]), digits(expected["value"], 2))


@claim("memory-exponent-1.87")
def test_memory_exponent(implementation: Implementation, check: Check, expected: Expected) -> None:
    """The log-log slope of memory over the last four rows is 1.87.

    From the peaks that the table prints, and from the bytes that the layer takes.
    """
    tokens = expected["tokens"]
    peaks = [table_footprint(implementation, n).peak for n in tokens]
    check(exponent(tokens, expected["peak_MiB"]), digits(expected["value"], 2))
    check(exponent(tokens, peaks), digits(expected["value"], 2))


@claim("memory-doubling-converges-to-4")
def test_doubling_converges_to_4_in_memory(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Doubling n converges to 4 in memory, with 3.91 at the last step.

    From the layer's bytes, followed beyond the table to 1,048,576 tokens: each ratio is larger than
    the one before it and below 4, and the last is 4.000.
    """
    lengths = [128 * 2**i for i in range(14)]
    steps = ratios([table_footprint(implementation, n).peak for n in lengths])
    check(steps[lengths.index(8192) - 1], digits(expected["last"], 2))
    check(torch.tensor(steps).double().diff(), within(0, math.inf, "they grow", strict=True))
    check(torch.tensor(steps), within(0, expected["limit"], "linear parts remain", strict=True))
    check(steps[-1], digits(expected["limit"], 3))


@claim("time-doubling-converges-to-4")
def test_doubling_converges_to_4_in_time(check: Check, expected: Expected) -> None:
    """Doubling n converges exactly to 4 in time as in memory, with 3.91 at the last step.

    The last ratio of the printed times, against the 3.91 that the sentence gives for both.
    """
    check(ratios(expected["ms"])[-1], digits(expected["last"], 2))


@claim("projections-factor-of-ten")
def test_projections_take_ten_times_as_long_for_eight_times_the_tokens(
    check: Check, expected: Expected
) -> None:
    """The projections go from 4.0 ms at 1,024 tokens to 40.1 ms at 8,192: ten times for eight.

    From the printed column, whose log-log slope between the two rows is 1.11.
    """
    first, last = expected["ms"]
    check([first, last], digits(expected["rounded"], 1))
    check(last / first, digits(expected["factor"], 0))
    check(exponent(expected["tokens"], expected["ms"]), digits(expected["slope"], 2))


@claim("projections-linear-in-print")
def test_projections_are_linear_in_the_printed_times(check: Check, expected: Expected) -> None:
    """The projections' time is linear in n, as announced.

    As the cost of a product is, which has no part that stays: eight times the tokens, eight times
    the time.
    """
    first, last = expected["ms"]
    check(last / first, digits(expected["tokens"][1] / expected["tokens"][0], 0))


@claim("score-matrix-8gb")
def test_the_score_matrix_of_16_384_tokens_is_8_gb(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """The score matrix alone would be 8 GB: 8 heads times 16,384 times 16,384 times 4 bytes.

    Exactly, where a GB is 2^30 bytes.
    """
    matrix = implementation.attention_matrix_bytes(16_384, 8)
    check(matrix, exact(8 * 16_384 * 16_384 * 4))
    check(Fraction(matrix, 2**30), exact(expected["GiB"]))


# ---- time on a GPU ------------------------------------------------------------------------------

# The document's last four rows that ran.
ROWS = (1024, 2048, 4096, 8192)
# Its control, from where it ends: 1,024 rows of 512 do not fill a GPU of today.
LONGER = (8192, 16_384, 32_768, 65_536)


def projections(layer: nn.Module, x: Tensor) -> None:
    """The four matrices of attention, and nothing else, each applied to (..., n, d)."""
    for name in ("q", "k", "v", "o"):
        layer.get_submodule(name)(x)


def check_power(check: Check, grows: Sequence[float], power: int, device: str = "cpu") -> None:
    """Exponents are nearer to `power` than to any other whole number."""
    because = f"nearer to {power} than to {power - 1} or {power + 1}"
    check(PerSeed(range(len(grows)), grows), seed_mean_within((power - 0.5, power + 0.5), because), device=device)


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

    The four matrices alone, where they fill the GPU; one exponent a round.
    """
    layer = rng.build(lambda: implementation.MultiHeadAttention(512, 8)).to(cuda)
    control = partial(projections, layer)
    check_power(check, exponents(timed(control, LONGER, rng, cuda)), 1, device="cuda")


def raw_scores(rng: Draws, device: torch.device) -> dict[int, Callable[[], Tensor]]:
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

    A clock read without waiting for the GPU would show the same time for both.
    """
    measured = measure(raw_scores(rng, cuda))
    check_power(check, ratios_by_round(measured[8192], measured[4096]), 2, device="cuda")


@claim("events-agree-with-the-clock")
def test_events_and_a_clock_that_waits_agree(check: Check, rng: Draws, cuda: torch.device) -> None:
    """CUDA's events and the host's clock, read after waiting, time a long loop alike, to a fifth.

    The host waits once, after a loop of 20 ms or more.
    """
    work = raw_scores(rng, cuda)
    by_events, by_clock = measure(work), measure(work, stopwatch=HostStopwatch())
    agreement = ratios_by_round(by_events[8192], by_clock[8192])
    because = "both span the same loop; one wait and one launch are far under a fifth of it"
    check(PerSeed(range(len(agreement)), agreement), seed_mean_within((0.8, 1.2), because), device="cuda")


# ---- the same result without the matrix ----------------------------------------------------------

# The rule of FlashAttention's own tests: a kernel may err twice as much as the plain computation in
# the same precision, and by one unit in the last place of the largest value. The rule compares the
# worst of many errors with the worst of many others, so chance breaks it now and then (in float32
# one gradient of q in 25); it is asked of nine sequences in ten.
ONE_IN_TEN = share_within(0.0, 0.1, detects=0.2)


def over_the_rule(share: Tensor) -> tuple[int, int]:
    """How many sequences use up more than all of their allowed error, NaN included, of how many."""
    return int((~(share <= 1)).sum()), share.numel()


def draw_attention(
    rng: Draws, sequences: int, n: int = 32, d: int = 16, *, largest_score: float | None = None
) -> list[Tensor]:
    """q, k, v and a gradient for the output, each (sequences, 1, n, d) standard normal.

    With `largest_score`, the queries of each sequence are scaled until its largest |score| is that.
    """
    q, k, v, upstream = (
        rng.normal(sequences, 1, n, d, salt=s) for s in ("q", "k", "v", "upstream")
    )
    if largest_score is not None:
        scores = q @ k.transpose(-2, -1) / math.sqrt(d)
        q = q * (largest_score / scores.abs().amax((-3, -2, -1), keepdim=True))
    return [q, k, v, upstream]


def with_a_mask(implementation: Implementation, fused: bool) -> Attention:
    """The implementation's attention, explicit or fused, causal by a mask."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = implementation.causal_mask(q.shape[-2], device=q.device)
        output: Tensor = implementation.attention(q, k, v, mask, fused=fused)
        return output

    return attend


def fused(implementation: Implementation, kernel: SDPBackend) -> Attention:
    """The implementation's fused attention, causal, forced onto one of PyTorch's kernels."""
    attend = with_a_mask(implementation, fused=True)

    def forced(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(kernel):
            return attend(q, k, v)

    return forced


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

    whole = with_a_mask(implementation, fused=False)
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


FUSED_LENGTHS = tuple(1024 * 2**i for i in range(8))  # to 131,072


@claim("fused-memory-linear")
def test_the_fused_layer_takes_memory_linear_in_n(
    implementation: Implementation, check: Check
) -> None:
    """The fused layer makes no n x n tensor, and its memory grows linearly: the exponent is 1.

    Six activations at the peak, x, q, k, v, the mixed values and the output, to the byte and up to
    131,072 tokens; in training, too, doubling n doubles what is not there at any length.
    """

    def peaks(mode: str) -> list[int]:
        def make() -> nn.Module:
            layer: nn.Module = implementation.MultiHeadAttention(D, HEADS, fused=True)
            return layer

        footprints = [layer_footprint(make, n, D, mode=mode) for n in FUSED_LENGTHS]
        pairs = zip(footprints, FUSED_LENGTHS, strict=True)
        check([len(of_pairs(footprint.alive, n)) for footprint, n in pairs], exact([0] * 8))
        return [footprint.peak for footprint in footprints]

    stays = 4 * 4 * D * D + 4 * D + WORKSPACE
    grows = [peak - stays for peak in peaks("no_grad")]
    check(grows, exact([6 * 4 * n * D for n in FUSED_LENGTHS]), unit="bytes")
    check(exponent(FUSED_LENGTHS, grows), digits(1, 2))
    steps = [after - before for before, after in pairwise(peaks("training"))]
    check(ratios(steps), digits([2] * 6, 2))


@claim("fused-memory-linear-on-the-gpu")
def test_the_fused_layer_takes_memory_linear_in_n_on_a_gpu(
    implementation: Implementation, check: Check, cuda: torch.device
) -> None:
    """On a GPU the fused layer's memory grows linearly in n, up to 131,072 tokens.

    What comes on top of weights and workspace is, per token, the same few activations at each
    length. A single mask of 131,072 tokens would be 16 GiB.
    """
    check_fused_memory(implementation, check, CudaGpu(cuda))


@claim("fused-memory-linear-on-a-pretended-card")
def test_the_fused_layer_takes_memory_linear_in_n_on_a_pretended_card(
    implementation: Implementation, check: Check
) -> None:
    """On a fake GPU the fused layer's memory grows linearly in n, up to 131,072 tokens.

    By the comparison of `fused-memory-linear-on-the-gpu`, on the meta device.
    """
    with fake_gpu(WORKSPACE) as gpu:
        check_fused_memory(implementation, check, gpu)


def check_fused_memory(implementation: Implementation, check: Check, gpu: Gpu) -> None:
    """The fused layer's bytes per token, in activations of d numbers, at each length."""

    def make() -> nn.Module:
        layer: nn.Module = implementation.MultiHeadAttention(D, HEADS, fused=True)
        return layer

    def activations(n: int) -> float:
        counted = count(lambda: pass_on(gpu, make, n, D), gpu)
        stays = 4 * 4 * D * D + 4 * D + counted.workspace
        return (max(peak.asked for peak in counted.peaks) - stays) / (4 * n * D)

    alive = "x, q, k, v, the mixed values and the output, and at most one more within the kernel"
    counts = torch.tensor([activations(n) for n in FUSED_LENGTHS])
    check(counts, within(6, 7, alive), device=gpu.device.type)


# ---- beyond the document: what kernels and GPUs have done to others -----------------------------


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

    By the comparison of `draws-are-made-on-the-cpu`, after the way to the GPU and back.
    """
    check_draws_arrive(check, rng, cuda)


# Tokens and width for a GPU's kernels. 320 tokens are several of their tiles and a part of one,
# and their sums err more than the numbers in them: the kernel for float32 may split each number in
# two of TF32, which keep about 22 bits of 24. Imitated on the CPU, that breaks the rule in one
# sequence of five at 32 tokens of width 16, and in one of thirty here.
ON_A_CARD = (320, 64)


@claim("fused-error-on-the-gpu")
def test_fused_attention_on_the_gpu_errs_at_most_twice_the_plain(
    implementation: Implementation, check: Check, rng: Draws, cuda: torch.device
) -> None:
    """On a GPU, in float32 and with TF32 off, fused attention errs at most twice the plain.

    Output and gradients of q, k and v, by each kernel that the GPU offers; so does explicit
    attention.
    """
    plain_ulps = check_kernels(implementation, check, rng, cuda, torch.float32)
    check(plain_ulps, within(0, 100, f"in float32, and {TF32_IN_ULPS}"), device=cuda.type)


@claim("fused-error-in-tf32-on-the-gpu")
def test_fused_attention_on_the_gpu_errs_at_most_twice_the_plain_in_tf32(
    implementation: Implementation, check: Check, rng: Draws, cuda: torch.device
) -> None:
    """On a GPU, with TF32 on, fused attention errs at most twice as much as the plain.

    As for float32. The plain computation's products are in TF32, too, and its error shows it.
    """
    plain_ulps = check_kernels(implementation, check, rng, cuda, torch.float32, tf32=True)
    check(plain_ulps, within(100, math.inf, f"in TF32, and {TF32_IN_ULPS}"), device=cuda.type)


@claim("fused-error-in-float16-on-the-gpu")
def test_fused_attention_on_the_gpu_errs_at_most_twice_the_plain_in_float16(
    implementation: Implementation, check: Check, rng: Draws, cuda: torch.device
) -> None:
    """On a GPU, in float16, fused attention errs at most twice as much as the plain.

    Output and gradients, by each kernel that the GPU offers.
    """
    check_kernels(implementation, check, rng, cuda, torch.float16)


@claim("fused-error-in-bfloat16-on-the-gpu")
def test_fused_attention_on_the_gpu_errs_at_most_twice_the_plain_in_bfloat16(
    implementation: Implementation, check: Check, rng: Draws, cuda: torch.device
) -> None:
    """On a GPU, in bfloat16, fused attention errs at most twice as much as the plain.

    Output and gradients, by each kernel that the GPU offers.
    """
    check_kernels(implementation, check, rng, cuda, torch.bfloat16)


TF32_IN_ULPS = "one rounding to TF32's 10 bits is 2^12 of float32's ulps"


def check_kernels(
    implementation: Implementation,
    check: Check,
    rng: Draws,
    device: torch.device,
    dtype: torch.dtype,
    tf32: bool = False,
) -> Tensor:
    """Explicit attention and each kernel offered, causal by a mask and by being told so.

    Plain operations must be among them. Returns the plain computation's largest error, in ulps.
    """
    n, d = ON_A_CARD
    layer = rng.build(lambda: implementation.MultiHeadAttention(3 * d, 1, d_head=d, fused=True))
    ways = {
        "with a mask": with_a_mask(implementation, fused=True),
        "told that it is causal": attention_within(layer.to(device)),
    }
    with products_in_tf32(tf32):
        found = measure_kernels(
            with_a_mask(implementation, fused=False),
            ways,
            draw_attention(rng, 256, n, d),
            dtype,
            device,
        )
    always = ["explicit", *(f"MATH, {way}" for way in ways)]
    facts = {"not offered": found.refused, "warned": found.warned}
    check([p for p in always if p in found.shares], exact(always), facts=facts, device=device.type)
    for path, shares in found.shares.items():
        for part, share in shares.items():
            facts = {"path": path, "part": part}
            check(over_the_rule(share), ONE_IN_TEN, facts=facts, device=device.type)
    return torch.stack([ulps.max() for ulps in found.plain_ulps.values()]).max()


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
    # Through the decoder's layer, which could hand its cross attention something else.
    between = influence(lambda memory: decoder(target, memory), source)
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
