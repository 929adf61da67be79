"""Section 3: the running mean is a matrix, and the matrix is a softmax.

The loop over prefixes is one product with a lower-triangular matrix whose rows sum to one, and that
matrix is exactly the softmax of zeros under a causal mask. The mask hides the future by -inf, which
also normalises what is left. The scores are the free parameter: softmax turns any numbers into
valid weights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies
from torch import Tensor

from claims.experiments.leak import LEAK_RUNS
from claims.harness import (
    Check,
    Draws,
    Expected,
    claim,
    digits,
    exact,
    recipe,
    seed_mean_within,
    trains,
    ulps,
)
from claims.harness.implementation import Implementation
from claims.harness.strategies import lengths, tensors
from claims.instruments.attention.influence import influence
from claims.training.results import Runs

DOUBLE = torch.float64
MINUS_INF = float("-inf")

FEW = settings(max_examples=30)  # each example is a whole matrix of cases

# Multiples of 2^-20: divided by a number of tokens, none of them becomes subnormal.
windows = tensors(lengths(), 3).map(lambda x: (x * 2**20).round() / 2**20)


bits = numpy_strategies.arrays(np.float32, (6, 3), elements=st.sampled_from([0.0, 1.0])).map(
    torch.from_numpy
)


@st.composite
def masked_scores(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Scores (T, T) and a mask (T, T), True = may attend, of any pattern with the diagonal."""
    T = draw(lengths(8))
    allowed = torch.from_numpy(draw(numpy_strategies.arrays(np.bool_, (T, T))))
    return draw(tensors(T, T, dtype=DOUBLE)), allowed | torch.eye(T, dtype=torch.bool)


def weights_for(
    implementation: Implementation, scores: Tensor, mask: Tensor | None = None
) -> Tensor:
    """The weights (n, m) that attention gives for finite scores (n, m).

    Queries and values are unit vectors, so q k^T is exactly the scores, and the output exactly the
    weights.
    """
    n, m = scores.shape
    queries, values = torch.eye(n, dtype=scores.dtype), torch.eye(m, dtype=scores.dtype)
    weights: Tensor = implementation.attention(queries, scores.T, values, mask, scale=1.0)
    return weights


# ---- loop, matrix, softmax -----------------------------------------------------------------------


@claim("averaging-matrix-row-sums")
def test_the_averaging_matrix_is_lower_triangular_with_rows_that_sum_to_one(
    implementation: Implementation, check: Check
) -> None:
    """Averaging is one product with a lower-triangular matrix whose rows sum to one.

    In float32 for 200 tokens. A sum of t terms, each rounded once, is off by at most t roundings.
    """
    T = 200
    A = implementation.averaging_matrix(T)
    check(A != 0, exact(torch.ones(T, T, dtype=torch.bool).tril()))
    because = "t entries rounded once, and t - 1 additions"
    check(A.sum(1), ulps(torch.ones(T), 1, because, scale=torch.arange(1, T + 1)))


@claim("average-is-exactly-softmax")
def test_the_averaging_matrix_is_exactly_a_softmax(
    implementation: Implementation, check: Check
) -> None:
    """The averaging matrix is exactly a softmax: of zeros, with -inf above the diagonal.

    Bit for bit, for 1 to 512 tokens and some lengths up to 4096. exp(0) is 1, the sum of t ones is
    exact, and 1/t is rounded once either way.
    """
    sizes = [*range(1, 513), 1000, 1024, 2048, 4096]
    unequal = [
        T
        for T in sizes
        if not torch.equal(
            torch.softmax(implementation.uniform_scores(T), dim=-1),
            implementation.averaging_matrix(T),
        )
    ]
    check(unequal, exact([]), unit="lengths with another bit")


@claim("loop-equals-matmul")
@FEW
@given(x=windows)
def test_loop_matrix_and_softmax_are_the_same_mean(
    implementation: Implementation, check: Check, x: Tensor
) -> None:
    """The loop over prefixes, the matrix product and the softmax are the same thing.

    Each against the running mean in float64, for windows of any length and content. Each of the
    three rounds a term of row t at most t + 1 times.
    """
    ways = (
        implementation.average_loop,
        implementation.average_by_matrix,
        implementation.average_by_softmax,
    )
    means = torch.stack([average(x) for average in ways])
    t = torch.arange(1, len(x) + 1)[:, None]
    mean, m = x.double().cumsum(0) / t, x.double().abs().cumsum(0) / t
    because = "t + 1 roundings of each term, one of the reference"
    check(means, ulps(mean.expand(3, *x.shape), 1, because, scale=(t + 2) * m))


@claim("loop-vs-matmul-value")
def test_loop_and_matmul_differ_by_rounding_as_printed(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Loop and matrix product differ by at most 5.96e-08.

    T, d and the seed are not printed. Windows of 8 by 8 with the seeds 0 to 99 give few different
    numbers, and the printed one, to its last digit, is one of the two that come most often. Each is
    rounding, of at most t in row t of the loop and t + 1 of the product.
    """
    x = _windows()
    loop = _means(implementation.average_loop, x)
    product = _means(implementation.average_by_matrix, x)
    check(loop, _rounded(product, x))
    often = dict(Counter(_largest(loop - product)).most_common(2))
    check(expected["printed"] in often, exact(True), facts={"of 100 windows": often})


@claim("loop-vs-softmax-value")
def test_loop_and_softmax_differ_as_loop_and_matmul_do(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Loop and softmax differ by at most 5.96e-08, the same as for the matrix product.

    As for the product; and in each of the 100 windows the difference is the same to the bit.
    """
    x = _windows()
    loop, product, soft = (
        _means(average, x)
        for average in (
            implementation.average_loop,
            implementation.average_by_matrix,
            implementation.average_by_softmax,
        )
    )
    check(loop, _rounded(soft, x))
    found = _largest(loop - soft)
    check(found, exact(_largest(loop - product), because="both matrices have the same bits"))
    often = dict(Counter(found).most_common(2))
    check(expected["printed"] in often, exact(True), facts={"of 100 windows": often})


def _windows() -> Tensor:
    """Windows of 8 by 8, (100, 8, 8), of the seeds 0 to 99."""
    windows = []
    for seed in range(100):
        with recipe(seed):
            windows.append(torch.randn(8, 8))
    return torch.stack(windows)


def _means(average: Callable[[Tensor], Tensor], windows: Tensor) -> Tensor:
    return torch.stack([average(x) for x in windows])


def _rounded(product: Tensor, x: Tensor) -> ulps:
    """How far the loop may be from the product: a mean of t terms rounds each t or t + 1 times."""
    t = torch.arange(1, x.shape[1] + 1)[:, None]
    m = x.double().abs().cumsum(1) / t
    because = "t roundings in the loop, t + 1 in the product"
    return ulps(product.double(), 1, because, scale=(2 * t + 1) * m)


def _largest(difference: Tensor) -> list[float]:
    largest: list[float] = difference.abs().amax((1, 2)).tolist()
    return largest


@claim("averaging-matrix-printed")
def test_the_averaging_matrix_is_the_one_printed(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Row t of the printed 6 x 6 matrix is 1/t in its first t cells, and zero after them."""
    check(implementation.averaging_matrix(6), digits(expected["table"], expected["decimals"]))


# ---- the causal mask -----------------------------------------------------------------------------


@claim("causal-mask-no-future")
def test_position_t_cannot_see_the_next_one(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """The triangle is the causal mask: position t does not see t + 1 or anything after it.

    For the three averages and a head: where the derivative of output t by input i is not 0.
    """
    T = 7
    x = rng.normal(1, T, 4, salt="x", dtype=DOUBLE)
    maps = {
        "loop": implementation.average_loop,
        "matrix": implementation.average_by_matrix,
        "softmax": implementation.average_by_softmax,
        "head": rng.build(lambda: implementation.Head(4, 4, T)).double(),
    }
    seen = {name: influence(f, x) != 0 for name, f in maps.items()}
    check(seen, exact(dict.fromkeys(maps, torch.ones(T, T, dtype=torch.bool).tril())))


@claim("without-mask-answer-leaks")
@trains(LEAK_RUNS, "with the mask", "without the mask")
def test_without_the_mask_the_answer_leaks(
    implementation: Implementation, runs: Runs, check: Check, expected: Expected, rng: Draws
) -> None:
    """If position t could see t + 1, the answer would be inside the input.

    Without its mask a layer's output depends on the next token, at every position; with it, at
    none. One block is trained either way: without the mask the loss on held-out text is less than a
    tenth of the loss with it, so that a model does find the answer there.
    """
    x = rng.normal(1, 7, 16, salt="x", dtype=DOUBLE)
    for causal in (False, True):
        layer = rng.build(partial(implementation.MultiHeadAttention, 16, 2, causal=causal))
        next_token = influence(layer.double(), x).diagonal(1)
        check(next_token != 0, exact(torch.full((6,), not causal)))
    without, masked = (
        runs.perplexities(f"{word} the mask").map(math.log) for word in ("without", "with")
    )
    check(without / masked, seed_mean_within(expected["band"], "nine tenths are known"))


@claim("without-mask-next-token-is-copied")
def test_without_the_mask_the_next_token_is_copied(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Without the mask there are scores for which every position puts out the next token itself.

    Scores are 1000 for the next token and 0 for all others. The output at every position but the
    last is the next token, to the bit, whatever the tokens.
    """
    T = 12
    x = rng.normal(T, 8, salt="x")
    next_token = 1000 * torch.eye(T).roll(1, dims=1)
    copied = implementation.attention(torch.eye(T), next_token.T, x, scale=1.0)
    check(copied[:-1], exact(x[1:], because="exp(-1000) is 0, which leaves a weight of 1"))


@claim("minus-inf-exact-zero")
@FEW
@given(drawn=masked_scores())
def test_minus_inf_becomes_a_weight_of_exactly_zero(
    implementation: Implementation, check: Check, drawn: tuple[Tensor, Tensor]
) -> None:
    """Setting forbidden entries to -inf sends them to exactly zero.

    The forbidden weights under masks of any pattern, given as a boolean mask and as -inf added.
    """
    scores, mask = drawn
    added = torch.zeros_like(scores).masked_fill(~mask, MINUS_INF)
    weights = torch.stack([weights_for(implementation, scores, m) for m in (mask, added)])
    forbidden = weights.masked_fill(mask, 0.0)
    check(forbidden, exact(torch.zeros_like(weights), because="exp(-inf) is 0"))


@claim("mask-and-normalise-one-operation")
@FEW
@given(drawn=masked_scores())
def test_masking_and_normalising_are_one_operation(
    implementation: Implementation, check: Check, drawn: tuple[Tensor, Tensor]
) -> None:
    """Masking and normalising are one operation: the rest is renormalised.

    The masked weights, against the allowed ones of the unmasked weights divided by their sum.
    Scores differ by at most 16: less the maximum, an exponential is off by 16 roundings.
    """
    scores, mask = drawn
    kept = weights_for(implementation, scores) * mask
    because = "twice 16 + 2 for an exponential and its sum on either side, and 3 sums of T"
    renormalised = ulps(kept / kept.sum(1, keepdim=True), 4 * (16 + 2) + 3 * len(mask), because)
    check(weights_for(implementation, scores, mask), renormalised)


# ---- -inf, and not -1e9 --------------------------------------------------------------------------


@claim("minus-inf-survives-float16")
def test_minus_inf_survives_a_cast_to_float16(
    implementation: Implementation, check: Check
) -> None:
    """-inf survives a cast to float16 as -inf.

    The mask of 9 tokens after the cast, and the weights that attention in float16 gives under it.
    """
    T = 9
    mask = implementation.uniform_scores(T).half()
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    check(mask.isneginf(), exact(future))
    check(weights_for(implementation, torch.zeros(T, T).half(), mask) == 0, exact(future))


@claim("cast-separates-minus-inf-from-1e9")
def test_only_minus_inf_is_minus_inf_after_a_cast_to_float16(check: Check) -> None:
    """Surviving the cast to float16 as -inf is something that -inf has over -1e9.

    If so, -1e9 would not be -inf after the same cast.
    """
    check(bool(torch.tensor(-1e9).half().isneginf()), exact(False))


@claim("minus-1e9-in-three-dtypes")
def test_minus_1e9_is_another_number_in_every_dtype(check: Check, expected: Expected) -> None:
    """-1e9 stays finite in float32 and bfloat16; float16 casts it to -inf and refuses it as a fill.

    The number after a cast, and whether masked_fill refuses it.
    """
    dtypes = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    cast = {name: float(torch.tensor(-1e9).to(dtype)) for name, dtype in dtypes.items()}
    refused = {name: _refuses_to_fill(dtype) for name, dtype in dtypes.items()}
    check(cast, exact(expected["cast"], because="-1e9 rounded to nearest"))
    check(refused, exact(expected["fill_refused"]))


def _refuses_to_fill(dtype: torch.dtype) -> bool:
    """Whether masked_fill raises when it is to put -1e9 into a tensor of `dtype`."""
    try:
        torch.zeros(2, dtype=dtype).masked_fill(torch.tensor([False, True]), -1e9)
    except RuntimeError:
        return True
    return False


@claim("minus-1e9-needs-range-thought")
def test_minus_1e9_masks_only_as_long_as_the_scores_are_small(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """With -1e9 one must decide whether it is large enough for the range; with -inf one need not.

    The weight, in float32, of the second of two keys, which the mask forbids: for scores of order
    one, for scores down to -2e9, and with -1e9 where the first key is forbidden as well.
    """

    def forbidden_weight(first: float, second: float, mask: list[float]) -> float:
        scores = torch.tensor([[first, second]])
        return float(weights_for(implementation, scores, torch.tensor([mask]))[0, 1])

    measured = {
        "small, -1e9": forbidden_weight(0.5, -0.5, [0.0, -1e9]),
        "small, -inf": forbidden_weight(0.5, -0.5, [0.0, MINUS_INF]),
        "large, -1e9": forbidden_weight(-2e9, 0.0, [0.0, -1e9]),
        "large, -inf": forbidden_weight(-2e9, 0.0, [0.0, MINUS_INF]),
        "all forbidden, -1e9": forbidden_weight(0.5, -0.5, [-1e9, -1e9]),
    }
    because = "exp(0) is 1, exp(-1e8) is 0, and float32 has steps of 64 at 1e9"
    check(measured, exact(dict(expected), because))


# ---- the scores are free -------------------------------------------------------------------------


@claim("uniform-iff-equal-scores")
@FEW
@given(c=st.floats(width=32, allow_nan=False, allow_infinity=False), T=lengths(), scores=bits)
def test_equal_scores_give_the_uniform_average(
    implementation: Implementation, check: Check, c: float, T: int, scores: Tensor
) -> None:
    """The uniform average is what results when every allowed score is the same number.

    Any float32 number as the score, under the causal mask, against the averaging matrix. And no
    other scores give it: of scores that are 0 or 1, those rows are uniform that have one number.
    """
    weights = weights_for(implementation, torch.full((T, T), c), implementation.causal_mask(T))
    A = implementation.averaging_matrix(T)
    check(weights, exact(A, because="c - c is 0, exp(0) is 1, and 1/t is rounded once"))
    mixed = weights_for(implementation, scores)
    check(mixed.amin(1) == mixed.amax(1), exact(scores.amin(1) == scores.amax(1)))


@claim("any-scores-give-valid-weights")
@FEW
@given(scores=tensors(3, lengths(), magnitude=2.0**127))
def test_softmax_turns_any_numbers_into_valid_weights(
    implementation: Implementation, check: Check, scores: Tensor
) -> None:
    """Any numbers placed there are turned by softmax into valid weights: not negative, of sum 1.

    Scores from the whole range of float32. The sum of the weights and the sum of their magnitudes
    are both 1, within rounding.
    """
    weights = weights_for(implementation, scores)
    sums = torch.stack([weights.sum(1), weights.abs().sum(1)])
    because = "m - 1 roundings in either sum, 2 in a weight"
    check(sums, ulps(torch.ones(2, 3), 2 * scores.shape[1], because))
