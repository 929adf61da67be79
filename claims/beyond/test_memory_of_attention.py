"""The memory of a layer of attention, to the byte: at any size, built otherwise, fused, on a GPU.

The chapter's table (l.170) has seven peaks of one layer. Its closed form is checked in section 10;
here are the sizes, layers and passes that the table does not have.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from claims.harness import Check, Expected, claim, digits, exact, within
from claims.harness.implementation import Implementation
from claims.instruments.cost.attention_layer import (
    AllAtOnce,
    OneByOne,
    layer_footprint,
    of_pairs,
    pass_on,
)
from claims.instruments.cost.cost_table import (
    HEADS,
    LAST_ROWS,
    LENGTHS,
    MIB,
    D,
    derived_peak,
    fitted_exponent,
    in_mib,
    parts,
    row_ratios,
    table_footprint,
)
from claims.instruments.cost.fake_gpu import Counted, CudaGpu, Gpu, count
from claims.instruments.cost.memory import Footprint
from claims.instruments.cost.memory.allocator import GRANULE, WORKSPACE, block_bytes

TOKENS, HEAD_COUNTS, HEAD_WIDTHS = st.integers(2, 300), st.integers(1, 12), st.integers(1, 40)
FUSED_LENGTHS = tuple(1024 * 2**i for i in range(8))  # to 131,072
# The fused layer's four matrices and the bias of W_o.
FUSED_WEIGHTS = 4 * 4 * D * D + 4 * D


# ---- the layer of the table ----------------------------------------------------------------------


@claim("peak-memory-at-any-size")
@settings(max_examples=25)
@given(n=TOKENS, h=HEAD_COUNTS, width=HEAD_WIDTHS)
def test_the_closed_form_gives_the_bytes_at_any_size(
    implementation: Implementation, check: Check, n: int, h: int, width: int
) -> None:
    """For any length, width and number of heads the peak is, to the byte, what is alive.

    On top of the closed form come the bias of W_o and one byte per query, which says whether it may
    attend to anything. Where scores are small the peak is at the end, without them: seven
    activations (six with one head, whose values need no copy) and the mask.
    """
    d = h * width
    activation, _, mask = parts(n, d, h)
    at_the_end = 4 * block_bytes(4 * d * d) + WORKSPACE + (7 - (h == 1)) * activation + mask
    derived = max(at_the_end, derived_peak(n, d, h) + block_bytes(n)) + block_bytes(4 * d)
    peak = layer_footprint(lambda: implementation.MultiHeadAttention(d, h), n, d).peak
    check(peak, exact(derived), unit="bytes")


@claim("more-tokens-no-less-memory")
@settings(max_examples=10)
@given(n=TOKENS, h=HEAD_COUNTS, width=HEAD_WIDTHS, fused=st.booleans())
def test_more_tokens_never_take_less_memory(
    implementation: Implementation, check: Check, n: int, h: int, width: int, fused: bool
) -> None:
    """The peak never falls when tokens are added, step by step or fused.

    One token more, and twice as many, at any length, width and number of heads.
    """
    d = h * width

    def make() -> nn.Module:
        layer: nn.Module = implementation.MultiHeadAttention(d, h, fused=fused)
        return layer

    peaks = torch.tensor([layer_footprint(make, m, d).peak for m in (n, n + 1, 2 * n)])
    check(peaks.diff(), within(0, math.inf, "no tensor shrinks when tokens are added"))


@claim("masks-overtake-activations")
def test_masks_overtake_the_activations_in_the_row_of_8192_tokens(
    implementation: Implementation, check: Check
) -> None:
    """Above 4,096 tokens the peak is where the mask is applied: masks outweigh the activations.

    Up to 2,048 tokens six activations and one mask are alive at the peak, at 8,192 four and two.
    That is 32 MiB more than the end of the pass takes; at 4,096, where n is 8 d, both take the
    same.
    """

    def alive(n: int) -> tuple[int, int]:
        found = table_footprint(implementation, n).alive
        masks = [a for a in of_pairs(found, n) if a.dtype == torch.bool]
        activations = [a for a in found if a.dtype == torch.float32 and a.bytes == 4 * n * D]
        return len(activations), len(masks)

    check(
        {n: alive(n) for n in (1024, 2048, 8192)}, exact({1024: (6, 1), 2048: (6, 1), 8192: (4, 2)})
    )
    activation, scores, mask = parts(8192, D, HEADS)
    at_the_end = 4 * 4 * D * D + WORKSPACE + 2 * scores + 6 * activation + mask
    check(derived_peak(8192) - at_the_end, exact(32 * MIB), unit="bytes")
    activation, _, mask = parts(8 * D, D, HEADS)
    check(6 * activation + mask, exact(4 * activation + 2 * mask), unit="bytes")


@claim("memory-with-gradients")
def test_gradients_take_a_third_tensor_of_pairs(
    implementation: Implementation, check: Check
) -> None:
    """A forward pass that is recorded keeps a mask; the backward pass has a third n x n tensor.

    Recorded, the pass keeps the negated mask and misses every printed peak: it takes the smaller of
    a mask and two activations more. In the backward pass the weights, their gradient and that of
    the scores are alive at once.
    """
    recorded = {n: table_footprint(implementation, n, mode="forward").peak for n in LENGTHS}
    more = {n: peak - table_footprint(implementation, n).peak for n, peak in recorded.items()}
    check(more, exact({n: min(n * n, 2 * 4 * n * D) for n in LENGTHS}), unit="bytes")
    for n in LAST_ROWS:
        alive = of_pairs(table_footprint(implementation, n, mode="training").alive, n)
        numbers = [a for a in alive if a.dtype.is_floating_point]
        check([a.bytes for a in numbers], exact([4 * HEADS * n * n] * 3), unit="bytes")


@claim("peaks-on-the-gpu")
def test_a_gpu_counts_the_predicted_peaks(
    implementation: Implementation, check: Check, cuda: torch.device
) -> None:
    """On a GPU each row of the table takes the bytes that are predicted, at every repeat.

    With the workspace that cuBLAS is seen to take. The bytes asked for are equal; those allocated
    may be more, where the allocator leaves a block larger than asked for.
    """
    check_peaks(implementation, check, counted_peaks(implementation, CudaGpu(cuda)), "cuda")


def counted_peaks(implementation: Implementation, gpu: Gpu) -> dict[int, Counted]:
    """What the GPU counts for each row of the table."""

    def make() -> nn.Module:
        layer: nn.Module = implementation.MultiHeadAttention(D, HEADS)
        return layer

    return {n: count(partial(pass_on, gpu, make, n, D), gpu) for n in LENGTHS}


def check_peaks(
    implementation: Implementation, check: Check, rows: dict[int, Counted], device: str
) -> None:
    """Compare what was counted with what is predicted for the workspace that was seen."""

    def predicted(n: int, granule: int) -> Footprint:
        return layer_footprint(
            lambda: implementation.MultiHeadAttention(D, HEADS),
            n,
            D,
            workspace=rows[n].workspace,
            granule=granule,
        )

    for n, counted in rows.items():
        same = exact([predicted(n, 1).peak] * len(counted.peaks))
        check([peak.asked for peak in counted.peaks], same, unit="bytes", device=device)
        blocks = predicted(n, GRANULE)
        unsplit = "blocks are whole, and up to 1 MiB of a large one is left unsplit"
        allocated = torch.tensor([peak.allocated for peak in counted.peaks])
        check(allocated, within(blocks.peak, blocks.ceiling, unsplit), unit="bytes", device=device)


# ---- other layers from the chapter's listing -----------------------------------------------------


@claim("listing-on-all-heads-takes-an-activation-less")
def test_the_listing_on_all_heads_takes_an_activation_less(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """The chapter's Head, given all eight heads at once, with W_o after it, misses five rows.

    Its scores and weights are freed before the values are copied for W_o, so that five activations
    take the place of six. In the rows of 4,096 and 8,192 the masks decide, and nothing changes.
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
    """Eight heads that run one after the other hold the scores of one head at a time.

    At 8,192 tokens 1,136.1 MiB, or 688.1 if they share a mask, where the table prints 4,300.1: its
    layer computes all heads in one product.
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


# ---- the fused layer -----------------------------------------------------------------------------


@claim("fused-memory-linear")
def test_the_fused_layer_takes_memory_linear_in_n(
    implementation: Implementation, check: Check
) -> None:
    """The fused layer makes no n x n tensor, and its memory grows linearly: the exponent is 1.

    To the byte, six activations at the peak: x, q, k, v, the mixed values and the output. In
    training, too, doubling n doubles all memory that depends on n.
    """

    def peaks(mode: str) -> list[int]:
        def make() -> nn.Module:
            layer: nn.Module = implementation.MultiHeadAttention(D, HEADS, fused=True)
            return layer

        footprints = [layer_footprint(make, n, D, mode=mode) for n in FUSED_LENGTHS]
        pairs = zip(footprints, FUSED_LENGTHS, strict=True)
        check([len(of_pairs(footprint.alive, n)) for footprint, n in pairs], exact([0] * 8))
        return [footprint.peak for footprint in footprints]

    grows = [peak - FUSED_WEIGHTS - WORKSPACE for peak in peaks("no_grad")]
    check(grows, exact([6 * 4 * n * D for n in FUSED_LENGTHS]), unit="bytes")
    check(fitted_exponent(FUSED_LENGTHS, grows), digits(1, 2))
    steps = [after - before for before, after in pairwise(peaks("training"))]
    check(row_ratios(steps), digits([2] * 6, 2))


@claim("fused-memory-linear-on-the-gpu")
def test_the_fused_layer_takes_memory_linear_in_n_on_a_gpu(
    implementation: Implementation, check: Check, cuda: torch.device
) -> None:
    """On a GPU the fused layer's memory grows linearly in n, up to 131,072 tokens.

    On top of weights and workspace each length takes the same few activations per token. A single
    mask of 131,072 tokens would be 16 GiB.
    """
    gpu = CudaGpu(cuda)

    def make() -> nn.Module:
        layer: nn.Module = implementation.MultiHeadAttention(D, HEADS, fused=True)
        return layer

    def activations(n: int) -> float:
        counted = count(partial(pass_on, gpu, make, n, D), gpu)
        peak = max(peak.asked for peak in counted.peaks)
        return (peak - FUSED_WEIGHTS - counted.workspace) / (4 * n * D)

    alive = "x, q, k, v, the mixed values and the output, and at most one more within the kernel"
    counts = torch.tensor([activations(n) for n in FUSED_LENGTHS])
    check(counts, within(6, 7, alive), device=gpu.device.type)
