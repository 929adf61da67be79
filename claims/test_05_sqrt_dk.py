"""Section 5, the division by sqrt(d_k).

A score is a sum of d_k products, so its variance is d_k. Softmax answers to the scale of its
scores: unscaled, a wide head puts most rows on one token, and such a row hands back next to no
gradient. Divided by sqrt(d_k), scores have variance one at every width. What that is worth after
training is for the training claims; here everything is measured at initialisation.

A row that is drawn is one query over 64 keys, independent of the others (`independent_rows`).
"""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from claims.experiments.division import DIVISION_RUNS, STEEPER_RUNS
from claims.harness import (
    Check,
    Draws,
    Expected,
    PerSeed,
    Table,
    claim,
    counts,
    digits,
    every_seed_within,
    exact,
    mean_within,
    recipe,
    rounding,
    seed_mean_within,
    share_within,
    trains,
    ulps,
    uniformly_distributed,
    variance_near,
    within,
)
from claims.harness.implementation import Implementation
from claims.harness.strategies import tensors
from claims.instruments.attention.scores import (
    attention_input,
    causal_std,
    effective_tokens,
    entropy,
    independent_rows,
    jacobian_diagonal,
    jacobian_trace,
    raw_scores,
    saturated,
    score_gradients,
    scores_of,
    softmax_of,
    variance_within_rows,
    weights_of,
)
from claims.training.results import Runs
from claims.training.spec import HeadScores, RunResult

ROWS, KEYS = 2048, 64
W_Q = "blocks.0.mixer.q.weight"
U = torch.finfo(torch.float64).eps / 2


class Rows(NamedTuple):
    """Weights (n_rows, KEYS) of the same rows of scores, without the division and with it."""

    unscaled: Tensor
    scaled: Tensor


def draw_rows(
    implementation: Implementation, d_k: int, generator: torch.Generator, n_rows: int = ROWS
) -> Rows:
    q, k = independent_rows(d_k, n_rows, KEYS, generator)
    attention = implementation.attention
    return Rows(*(weights_of(attention, q, k, scale).flatten(0, 1) for scale in (1.0, None)))


def rows_of_seed_0(implementation: Implementation, d_k: int) -> Rows:
    """The recipe behind printed digits: for each width anew, keys from torch.manual_seed(0)."""
    with recipe(0):
        return draw_rows(implementation, d_k, torch.default_generator)


def count(happened: Tensor) -> tuple[int, int]:
    """(k, n) for `proportion`."""
    return int(happened.sum()), happened.numel()


def share(happened: Tensor) -> float:
    return float(happened.double().mean())


class Softmax(NamedTuple):
    """Expected trace of the Jacobian, and expected entropy in nats."""

    trace: float
    entropy: float


def softmax_of_normal_scores(std: float, n: int = KEYS) -> Softmax:
    """What softmax over n independent N(0, std^2) scores has on average, by quadrature.

    Let S = sum_j e^s_j. Since 1/S^2 = int t e^-tS dt, 1/S = int e^-tS dt and
    ln S = int (e^-t - e^-tS)/t dt over t > 0, and e^-tS is a product over independent scores,
    E sum w^2 and the entropy E ln S - E sum w s are integrals over t = e^u of means over one score.
    All integrands are analytic and decay at both ends, where equal steps converge exponentially.
    """
    step = 0.25
    z = torch.arange(-9, 9, min(0.1, 0.3 / std), dtype=torch.float64)
    u = torch.arange(-9 * std - 30, 10, step, dtype=torch.float64)
    normal = (-z * z / 2).exp() / (-z * z / 2).exp().sum()
    t, s = u.exp(), std * z
    one = (-(u[:, None] + s).exp()).exp()  # e^(-t e^s), (t, s)
    others = (one @ normal) ** (n - 1)
    squares = n * t * t * (one @ (normal * (2 * s).exp())) * others
    scores = n * t * (one @ (normal * s * s.exp())) * others
    logarithm = (-t).exp() - (one @ normal) ** n
    return Softmax(1 - step * float(squares.sum()), step * float((logarithm - scores).sum()))


# ---- the variance of a score -------------------------------------------------------------------


@claim("product-variance-one")
def test_a_product_of_independent_unit_variance_entries_has_variance_one(
    check: Check, expected: Expected
) -> None:
    """If entries of q and k are independent, of mean zero and variance one, so is each product.

    For every pair of two-valued entries, in rational arithmetic: a with probability 1/(1 + a^2)
    and -1/a otherwise have mean zero and variance one.
    """

    def outcomes(a: Fraction) -> list[tuple[Fraction, Fraction]]:
        return [(a, 1 / (1 + a * a)), (-1 / a, a * a / (1 + a * a))]

    entries = st.fractions(Fraction(1, 8), 8, max_denominator=16)

    @settings(max_examples=30)
    @given(a=entries, b=entries)
    def every_pair_of_entries(a: Fraction, b: Fraction) -> None:
        joint = [(x * y, p * r) for x, p in outcomes(a) for y, r in outcomes(b)]
        expectation = sum((xy * p for xy, p in joint), Fraction(0))
        square = sum((xy * xy * p for xy, p in joint), Fraction(0))
        check(square - expectation**2, exact(expected["value"]))

    every_pair_of_entries()


@claim("dot-variance-dk")
def test_the_variance_of_a_dot_product_is_its_width(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Variances of independent things add: Var(q.k) = d_k.

    The scores of all sign vectors q against all sign vectors k, each pair equally likely: their
    mean square is d_k exactly, but for the rounding of the log-odds that the scores are read from.
    """
    for d in expected["widths"]:
        entries = torch.tensor([-1.0, 1.0], dtype=torch.float64)
        signs = torch.cartesian_prod(*[entries] * d).view(-1, d)
        scores = scores_of(implementation.attention, signs, signs, scale=1.0)
        # The log-odds are two logarithms, 5 d + 2 at most together, of weights good to 4 u each.
        because = "log-odds are off by at most (10 + 6 d) u, and enter squared; mean |s| <= sqrt(d)"
        check(float(scores.square().mean()), ulps(float(d), 2 * (10 + 6 * d), because))


@claim("score-std-sqrt-dk")
def test_scores_have_standard_deviation_sqrt_dk(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """The scores have standard deviation sqrt(d_k).

    20,480 independent scores per width, as attention computes them with scale 1: of sign vectors
    and normal keys, so that each is N(0, d_k) exactly.
    """
    for d in expected["widths"]:
        q, k = independent_rows(d, 1024, 20, rng.generator(str(d)))
        scores = scores_of(implementation.attention, q, k, scale=1.0)
        check(scores, variance_near(d, detects=0.09))


@claim("divided-scores-have-unit-variance")
def test_scaled_scores_have_unit_variance(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Divided by sqrt(d_k), the scores have variance one at every width.

    As for `score-std-sqrt-dk`, with the scale that attention takes by default.
    """
    for d in expected["widths"]:
        q, k = independent_rows(d, 1024, 20, rng.generator(str(d)))
        scores = scores_of(implementation.attention, q, k)
        check(scores, variance_near(expected["value"], detects=0.09))


def scores_of_pairs(implementation: Implementation, q: Tensor, k: Tensor) -> Tensor:
    """q.k of n pairs, (n, d) and (n, d) -> (n,): the diagonals of blocks of 20 queries and keys.

    400 pairs at a time, which stay in the processor's cache.
    """
    d = q.shape[-1]
    scores = [
        scores_of(implementation.attention, a.double(), b.double(), scale=1.0)
        for a, b in zip(q.view(-1, 20, 20, d), k.view(-1, 20, 20, d), strict=True)
    ]
    return torch.stack(scores).diagonal(dim1=-2, dim2=-1).flatten()


@claim("variance-table")
def test_the_variance_over_twenty_thousand_pairs_tracks_d(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Measured over twenty thousand random pairs, the variance of q.k tracks d: the printed table.

    Seed 0, q and k in turn for each width; all five rows come out, to the third decimal.
    """
    rows = []
    with recipe(0):
        for d, *_ in expected["table"]["rows"]:
            q, k = torch.randn(expected["pairs"], d), torch.randn(expected["pairs"], d)
            scores = scores_of_pairs(implementation, q, k)
            rows.append([d, float(scores.var()), float(scores.std()), math.sqrt(d)])
    check(rows, digits(expected["table"]["rows"], decimals=3))


@claim("variance-table-std-consistent")
def test_the_printed_std_is_the_root_of_the_printed_variance(
    check: Check, expected: Expected
) -> None:
    """In each row std is the square root of the variance, and the last column that of d.

    From the printed variances, to the printed third decimal.
    """
    roots = [[math.sqrt(printed), math.sqrt(d)] for d, printed, _, _ in expected["rows"]]
    check(roots, digits([row[2:] for row in expected["rows"]], decimals=3))


@claim("variance-table-noise")
def test_no_printed_variance_is_further_from_d_than_chance_puts_it(
    check: Check, expected: Expected
) -> None:
    """Twenty thousand pairs fix the variance to about one percent, and the table stays within it.

    E (q.k)^4 = 3 d^2 + 6 d for normal entries, so the mean of n squares has a relative standard
    error of sqrt((2 + 6/d) / n). The largest printed deviation is 1.14 of them.
    """
    deviations = {
        d: (printed / d - 1) / math.sqrt((2 + 6 / d) / expected["pairs"])
        for d, printed in expected["variances"].items()
    }
    check(deviations, digits(expected["standard_errors"], decimals=2))


# ---- softmax and scale -------------------------------------------------------------------------


@claim("linear-layer-doubling")
def test_doubling_the_input_of_a_linear_layer_doubles_its_output(check: Check, rng: Draws) -> None:
    """Doubling the input of a linear layer doubles its output.

    Refuted by the framework's own linear layer: it adds a bias, once.
    """
    layer, x = rng.build(lambda: nn.Linear(16, 16)), rng.normal(4, 16)
    check(layer(2 * x), exact(2 * layer(x), because="the sentence says so of any linear layer"))


@claim("bias-free-layer-doubling")
def test_doubling_the_input_of_a_layer_without_bias_doubles_its_output(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Without a bias the output doubles to the last bit; W_q is such a layer.

    On the projection to queries of a multi-head layer.
    """
    layer = rng.build(lambda: implementation.MultiHeadAttention(16, 2)).q
    x = rng.normal(4, 16)
    check(layer(2 * x), exact(2 * layer(x), because="a factor of two moves exponents alone"))


@claim("softmax-scale-sensitive")
def test_ten_times_the_scores_turn_a_soft_blend_into_a_hard_choice(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Multiplying scores by ten before a softmax turns a soft blend into a hard choice.

    Of 64 scores of variance one, the winner outweighs all others together in almost no row; of ten
    times those scores it does in most. The mean entropies are those of the quadrature.
    """
    factor, d_k = expected["factor"], 64
    q, k = independent_rows(d_k, ROWS, KEYS, rng.generator())
    blend, choice = (
        weights_of(implementation.attention, q, k, scale / math.sqrt(d_k)) for scale in (1, factor)
    )
    derived = [softmax_of_normal_scores(std).entropy for std in (1, factor)]
    check([math.exp(nats) for nats in derived], digits(expected["effective_tokens"], decimals=1))
    check(entropy(blend), mean_within(derived[0], derived[0], detects=0.05))
    check(entropy(choice), mean_within(derived[1], derived[1], detects=0.1))
    check(count(saturated(blend, 0.5)), share_within(0.0, 0.5, detects=0.1))
    check(count(saturated(choice, 0.5)), share_within(0.5, 1.0, detects=0.1))


@claim("entropy-falls-with-scale")
def test_a_larger_factor_never_raises_the_entropy(
    implementation: Implementation, check: Check
) -> None:
    """Multiplying a row of scores by a larger factor never raises the entropy of its softmax.

    For rows of up to 16 scores and factors up to 10: at a factor f the slope is -f Var_w(s).
    """
    factors = st.floats(0, 5, width=32, allow_subnormal=False)

    @settings(max_examples=50)
    @given(tensors(st.integers(2, 16), dtype=torch.float64), factors, factors)
    def every_row(scores: Tensor, smaller: float, more: float) -> None:
        before, after = (
            float(entropy(softmax_of(implementation.attention, factor * scores)))
            for factor in (smaller, smaller + more)
        )
        # A weight is off by (2 |s| + 6) u of itself, |s| <= 80; sum w (|ln w| + 1) <= ln 16 + 1.
        because = "the slope is a negative variance; two entropies are rounded by 1024 u at most"
        check(after - before, within(-math.log(16), 2 * 1024 * U, because))

    every_row()


@claim("divided-effective-tokens")
def test_a_scaled_row_of_64_averages_over_about_40_tokens(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws, table: Table
) -> None:
    """With division a row of 64 scores averages over about 40 tokens at every width.

    The mean over rows rounds to 40. The stored table, of the rows of seed 0, stands for the one
    that the chapter lost: unscaled, the same rows fall from 15 tokens to one.
    """
    for d in expected["widths"]:
        rows = draw_rows(implementation, d, rng.generator(str(d)))
        about = (expected["value"] - 0.5, expected["value"] + 0.5)
        check(effective_tokens(rows.scaled), mean_within(*about, detects=1.0), unit="tokens")
    seed_0 = (rows_of_seed_0(implementation, d) for d in expected["widths"])
    stored = [Rows(*map(effective_tokens, rows)) for rows in seed_0]
    columns = {
        "d_k": expected["widths"],
        "unscaled mean": [float(rows.unscaled.mean()) for rows in stored],
        "unscaled median": [float(rows.unscaled.median()) for rows in stored],
        "scaled mean": [float(rows.scaled.mean()) for rows in stored],
        "scaled median": [float(rows.scaled.median()) for rows in stored],
    }
    table(columns, decimals=dict.fromkeys(list(columns)[1:], 2), seeds=[0])


# ---- effective tokens --------------------------------------------------------------------------


@claim("effective-tokens-definition")
def test_effective_tokens_are_the_exponential_of_the_entropy(
    implementation: Implementation, check: Check
) -> None:
    """Effective tokens is the exponential of the entropy.

    A row of the uniform causal average over t tokens has t of them, a lone token one. Weights of
    1/2, 1/4, 1/8, 1/8 have an entropy of 7/4 ln 2, which sets the definition apart from 1/sum w^2.
    """
    zeros = torch.zeros(KEYS, 8, dtype=torch.float64)
    mask = implementation.causal_mask(KEYS)
    _, average = implementation.attention(zeros, zeros, zeros, mask, return_weights=True)
    halves = softmax_of(
        implementation.attention, torch.tensor([4.0, 2.0, 1.0, 1.0], dtype=torch.float64).log()
    )
    tokens = torch.cat([effective_tokens(average), effective_tokens(halves)[None]])
    expected = torch.tensor([*range(1, KEYS + 1), 2**1.75], dtype=torch.float64)
    because = "64 terms, each rounded by 4 u of itself, and exp turns the entropy's error relative"
    check(tokens, ulps(expected, (64 + 4) * math.log(KEYS), because))


@claim("effective-tokens-between-1-and-n")
def test_a_row_of_n_weights_has_between_one_and_n_effective_tokens(
    implementation: Implementation, check: Check
) -> None:
    """A row of n weights has between one and n effective tokens.

    For rows of up to 16 scores, equal ones and far ones included.
    """

    @settings(max_examples=50)
    @given(tensors(st.integers(1, 16), dtype=torch.float64, magnitude=64.0))
    def every_row(scores: Tensor) -> None:
        n = len(scores)
        tokens = effective_tokens(softmax_of(implementation.attention, scores))
        because = "0 <= entropy <= ln n; exp and 16 rounded terms allow 128 u"
        check(tokens, within(1.0, n * (1 + 128 * U), because), unit="tokens")

    every_row()


@claim("undivided-256-exactly-one-token")
def test_unscaled_at_256_a_row_attends_to_exactly_one_token(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Unscaled at d_k = 256, a freshly initialised head attends to exactly one token of 64.

    Refuted even for every second row: effective tokens print 1.00 in 29 % of them.
    """
    rows = draw_rows(implementation, expected["d_k"], rng.generator())
    printed = effective_tokens(rows.unscaled).round(decimals=2)
    check(count(printed == expected["value"]), share_within(0.5, 1.0, detects=0.1))


@claim("undivided-256-median-row")
def test_unscaled_at_256_half_the_rows_have_fewer_than_1_2_tokens(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Unscaled at d_k = 256, half the rows have fewer than 1.2 effective tokens; scaled about 40.

    The same rows with and without the division. Six rows in ten are below 1.2.
    """
    rows = draw_rows(implementation, expected["d_k"], rng.generator())
    few = effective_tokens(rows.unscaled) < expected["unscaled"]
    check(count(few), share_within(0.5, 1.0, detects=0.1))
    many = effective_tokens(rows.scaled)
    check(many, mean_within(expected["scaled"] - 0.5, expected["scaled"] + 0.5, detects=1.0))


@claim("fresh-projections-variance-third")
def test_fresh_queries_and_keys_have_variance_one_third(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Queries and keys that a fresh head makes of unit-variance input have variance 1/3.

    Entries of q and k of one sign vector: each is a sum of 64 independent weights, uniform within
    1/8, of variance 1/192 each, and as good as normal.
    """
    width, x = 20_480, torch.where(rng.normal(64) > 0, 1.0, -1.0)
    head = rng.build(lambda: implementation.MultiHeadAttention(64, 1, d_head=width), salt="head")
    entries = torch.cat([head.q(x), head.k(x)]).detach()
    check(entries, variance_near(expected["numerator"] / expected["denominator"], detects=0.06))


@claim("fresh-head-256-two-to-three-tokens")
def test_a_fresh_unscaled_head_of_256_averages_over_two_to_three_tokens(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """A freshly initialised, unscaled head of d_k = 256 averages over two to three tokens.

    60 heads, each on 64 tokens of unit variance. Scores of standard deviation sqrt(256)/3 give 2.5
    effective tokens by quadrature; measured 2.56, for a head's queries differ in length.
    """
    d_k = expected["d_k"]
    switches = {"d_head": d_k, "causal": False, "scaled": False}
    build = partial(implementation.MultiHeadAttention, 128, 1, **switches)
    entropies = []
    for i in range(60):
        head = rng.build(build, salt=f"head {i}").double()
        x = rng.normal(1, KEYS, 128, salt=f"input {i}", dtype=torch.float64)
        entropies.append(entropy(head(x, return_weights=True)[1]).mean())
    derived = softmax_of_normal_scores(math.sqrt(d_k) / 3).entropy
    check(math.exp(derived), digits(expected["effective_tokens"], decimals=1), unit="tokens")
    few = mean_within(math.log(expected["low"]), math.log(expected["high"]), detects=0.15)
    check(torch.stack(entropies).detach(), few, unit="nats")


@claim("winner-is-random-draw")
def test_the_chosen_token_is_chosen_by_nothing_but_the_draw(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """The chosen token is chosen by nothing but the random draw.

    Which of 64 positions has the largest weight, over 8,192 rows: all equally often.
    """
    rows = draw_rows(implementation, expected["d_k"], rng.generator(), n_rows=8192)
    check(counts(rows.unscaled.argmax(-1), KEYS), uniformly_distributed(detects=0.15))


# ---- the derivative of a softmax ---------------------------------------------------------------


def diagonal_by_autograd(implementation: Implementation, scores: Tensor) -> Tensor:
    """dw_i/ds_i of a row of scores (m,), as the backward pass of attention gives them: (m,)."""
    scores = scores.clone().requires_grad_()
    weights = softmax_of(implementation.attention, scores)
    gradients = (torch.autograd.grad(w, scores, retain_graph=True)[0] for w in weights)
    return torch.stack(list(gradients)).diagonal()


@claim("softmax-jacobian-diagonal")
def test_the_diagonal_of_the_softmax_jacobian_is_w_1_minus_w(
    implementation: Implementation, check: Check
) -> None:
    """The diagonal of the softmax Jacobian is w_i (1 - w_i).

    By autograd through attention, against the weights it returned, for rows of up to 8 scores.
    """

    @settings(max_examples=50)
    @given(tensors(st.integers(1, 8), dtype=torch.float64))
    def every_row(scores: Tensor) -> None:
        weights = softmax_of(implementation.attention, scores)
        because = "1 - w_i is rounded by u at most, and so is each product with w_i"
        tolerance = ulps(jacobian_diagonal(weights), 4, because, scale=weights)
        check(diagonal_by_autograd(implementation, scores), tolerance)

    every_row()


@claim("softmax-jacobian-zero-at-ends")
def test_the_derivative_is_zero_at_both_ends(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """w_i (1 - w_i) is zero at both ends, and 1/4 half-way.

    By autograd, for two scores a thousand apart and for two equal ones.
    """
    rows = torch.tensor([[0.0, -1000.0], [0.0, 0.0]], dtype=torch.float64)
    measured = torch.stack([diagonal_by_autograd(implementation, row) for row in rows])
    derived = torch.tensor([expected["one_sided"], expected["even"]], dtype=torch.float64)
    because = "e^-1000 underflows, so the weights are 1 and 0; halves and quarters are exact"
    check(measured, exact(derived, because))


@claim("committed-row-has-no-derivative")
def test_a_softmax_committed_to_one_entry_has_almost_no_derivative(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """A softmax committed to one entry has almost no derivative.

    Where one entry has more than 0.99 of the weight, the derivatives dw_i/ds_i sum to less than
    0.02: the sum is 1 - sum w^2. By autograd, for rows in which the first entry leads by enough.
    """
    odds = expected["threshold"] / (1 - expected["threshold"])

    @settings(max_examples=50)
    @given(tensors(st.integers(2, 16), dtype=torch.float64), st.floats(1e-6, 8))
    def every_committed_row(scores: Tensor, margin: float) -> None:
        scores[0] = scores[1:].max() + math.log(odds * (len(scores) - 1)) + margin
        trace = diagonal_by_autograd(implementation, scores).sum()
        check(trace, within(0.0, expected["trace"], "1 - sum w^2 <= 1 - 0.99^2 = 0.0199"))

    every_committed_row()


# ---- frozen rows -------------------------------------------------------------------------------


@claim("undivided-trace-falls")
def test_unscaled_the_trace_falls_with_width(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Unscaled, the mean of sum_i w_i (1 - w_i) falls with width.

    At each width it is that of 64 independent scores of variance d_k, by quadrature; those fall.
    """
    derived = {d: softmax_of_normal_scores(math.sqrt(d)).trace for d in expected["values"]}
    check(derived, digits(expected["values"], decimals=2))
    for d, trace in derived.items():
        rows = draw_rows(implementation, d, rng.generator(str(d)))
        check(jacobian_trace(rows.unscaled), mean_within(trace, trace, detects=0.05))


@claim("frozen-rows-seven-in-ten")
def test_at_1024_seven_rows_in_ten_are_frozen(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """At d_k = 1024, seven rows in ten are frozen before training starts.

    The share of rows with more than 0.99 of their weight on one token, rows of seed 0: 0.697.
    """
    rows = rows_of_seed_0(implementation, expected["d_k"])
    check(share(saturated(rows.unscaled)), digits(expected["value"], decimals=1))


@claim("frozen-rows-any-seed")
def test_at_1024_the_share_of_frozen_rows_rounds_to_seven_in_ten_at_any_seed(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """At d_k = 1024, the share of frozen rows rounds to 0.7, whatever the seed.

    Over 6,144 independent rows, an exact binomial test.
    """
    rows = draw_rows(implementation, expected["d_k"], rng.generator(), n_rows=6144)
    seven_in_ten = share_within(expected["low"], expected["high"], detects=0.05)
    check(count(saturated(rows.unscaled)), seven_in_ten)


@claim("frozen-means-0.99")
def test_of_the_round_thresholds_0_99_alone_gives_seven_in_ten(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Of the thresholds 0.9, 0.95, 0.99 and 0.999, 0.99 alone gives seven in ten.

    The rows of `frozen-rows-seven-in-ten`, counted with each threshold, to one decimal.
    """
    rows = rows_of_seed_0(implementation, expected["d_k"])
    shares = {limit: share(saturated(rows.unscaled, limit)) for limit in expected["printed"]}
    check(shares, digits(expected["printed"], decimals=1))


@claim("divided-trace-0.96")
def test_scaled_the_trace_is_flat_at_0_96(
    implementation: Implementation, check: Check, expected: Expected, table: Table
) -> None:
    """With division the quantity is flat at 0.96 at every width.

    The mean trace over the rows of seed 0. The stored table stands for the one the chapter lost.
    """
    widths = list(expected["values"])
    stored = [rows_of_seed_0(implementation, d) for d in widths]
    traces = [[float(jacobian_trace(weights).mean()) for weights in rows] for rows in stored]
    scaled = dict(zip(widths, (trace for _, trace in traces), strict=True))
    check(scaled, digits(expected["values"], decimals=2))
    columns = {
        "d_k": widths,
        "unscaled trace": [trace for trace, _ in traces],
        "unscaled frozen": [share(saturated(rows.unscaled)) for rows in stored],
        "scaled trace": [trace for _, trace in traces],
        "scaled frozen": [share(saturated(rows.scaled)) for rows in stored],
    }
    table(columns, decimals=dict.fromkeys(list(columns)[1:], 3), seeds=[0])


@claim("divided-trace-any-seed")
def test_scaled_the_mean_trace_rounds_to_0_96_at_any_seed(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """With division the mean trace rounds to 0.96 at every width, whatever the seed.

    The mean over 2,048 rows at each width lies between 0.955 and 0.965.
    """
    for d in expected["widths"]:
        rows = draw_rows(implementation, d, rng.generator(str(d)))
        check(jacobian_trace(rows.scaled), mean_within(expected["low"], expected["high"], detects=0.005))


@claim("divided-trace-normal-queries")
def test_with_normal_queries_the_narrowest_width_still_gives_0_96(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Queries of unequal length do not move the 0.96, even where they differ most.

    At d_k = 4, one normal query and 64 normal keys of its own per row: 0.958.
    """
    d_k, double = expected["d_k"], torch.float64
    q = rng.normal(4096, 1, d_k, salt="q", dtype=double)
    k = rng.normal(4096, KEYS, d_k, salt="k", dtype=double)
    traces = jacobian_trace(weights_of(implementation.attention, q, k))
    check(traces, mean_within(expected["low"], expected["high"], detects=0.01))


@claim("divided-trace-derived")
def test_the_expected_trace_at_unit_variance_is_0_96(check: Check, expected: Expected) -> None:
    """The expected trace for 64 independent scores of variance one is 0.96.

    By quadrature, 0.9612.
    """
    check(softmax_of_normal_scores(1.0).trace, digits(expected["value"], decimals=2))


@claim("flat-quantity-is-the-trace")
def test_no_entry_of_the_diagonal_exceeds_one_quarter(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """No w_i (1 - w_i) exceeds 1/4, so what is flat at 0.96 can only be their sum.

    For rows of up to 8 scores, by autograd.
    """

    @settings(max_examples=30)
    @given(tensors(st.integers(1, 8), dtype=torch.float64, magnitude=2.0))
    def every_row(scores: Tensor) -> None:
        because = "w - w^2 = 1/4 - (w - 1/2)^2"
        entries = diagonal_by_autograd(implementation, scores)
        check(entries, within(0.0, expected["largest"], because))

    every_row()


@claim("divided-nothing-saturates")
def test_scaled_nothing_saturates(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """With division nothing saturates: no row has more than 0.99 of its weight on one token.

    One of 64 scores of variance one would have to lead the other 63 together by a factor of 99,
    at about nine standard deviations.
    """
    for d in expected["widths"]:
        rows = draw_rows(implementation, d, rng.generator(str(d)))
        none = share_within(expected["share"], expected["share"], detects=0.005)
        check(count(saturated(rows.scaled)), none)


def fresh_model(
    implementation: Implementation, rng: Draws, d_k: int, *, scaled: bool
) -> nn.Module:
    """The chapter's model with one head of width d_k, no LayerNorm; the same draws either way."""
    shape = {"n_heads": 1, "d_head": d_k, "norm": "none", "scaled": scaled}
    model: nn.Module = rng.build(partial(implementation.LanguageModel, **shape))
    return model


def gradient_to_queries(model: nn.Module, tokens: Tensor) -> float:
    """|dL/dW_q| for the prediction of each next token of tokens (B, T)."""
    loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    [gradient] = torch.autograd.grad(loss, model.get_parameter(W_Q))
    return float(gradient.norm())


@claim("frozen-head-cannot-learn")
def test_a_head_that_starts_frozen_cannot_learn_where_to_look(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """A head that starts frozen cannot learn where to look.

    Refuted: of two models from one seed, the unscaled one gets 17 to 35 times as much gradient to
    W_q as the scaled one, not less.
    """
    tokens = rng.integers(0, 1024, 2, 129, salt="tokens")
    unscaled, scaled = (
        gradient_to_queries(fresh_model(implementation, rng, expected["d_k"], scaled=d), tokens)
        for d in (False, True)
    )
    because = "what cannot learn is given less gradient than what can"
    check(unscaled / scaled, within(0.0, 1.0, because))


@claim("frozen-row-gradient")
def test_the_typical_unscaled_row_gets_less_than_a_hundredth_of_the_gradient(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Unscaled at d_k = 1024, the typical row's scores get less than a hundredth of the gradient.

    The same normal gradient arrives at the weights of each row, scaled and unscaled. At the
    median it is 1/1500 of the scaled row's that reaches the scores.
    """
    q, k = independent_rows(expected["d_k"], ROWS, KEYS, rng.generator())
    arriving = rng.normal(*q.shape[:-1], KEYS, salt="arriving", dtype=torch.float64)
    unscaled, scaled = (
        score_gradients(implementation.attention, q, k, arriving, scale).norm(dim=-1)
        for scale in (1.0, None)
    )
    check(count(unscaled < scaled / expected["ratio"]), share_within(0.5, 1.0, detects=0.1))


@claim("unfrozen-rows-carry-the-gradient")
def test_rows_that_are_not_frozen_send_the_scores_a_third_of_the_scaled_gradient(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Unscaled at d_k = 1024, scores get more than a third of the scaled mean-square gradient.

    In the mean over 16,384 rows two thirds, nearly all of it from the three rows in ten that are
    not frozen. Times the factor of 32 that the division keeps from W_q: a norm 26 times as large.
    Scaled rows have a mean square of 0.034, so that a fall to a tenth of it would be noticed.
    """
    q, k = independent_rows(expected["d_k"], 16_384, KEYS, rng.generator())
    arriving = rng.normal(*q.shape[:-1], KEYS, salt="arriving", dtype=torch.float64)
    unscaled, scaled = (
        score_gradients(implementation.attention, q, k, arriving, scale).square().sum(-1)
        for scale in (1.0, None)
    )
    check(unscaled - scaled / expected["ratio"], mean_within(0.0, 0.5, detects=0.008))


# ---- the ablation, before training -------------------------------------------------------------


@claim("division-ablation-layout")
def test_the_ablation_has_five_rows_of_four_head_widths(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """The ablation trains four head widths; two rows at 3000 steps, three in a shorter run.

    The rows as read, each built, the head's width taken from its W_q: one width stands twice.
    """
    rows = [dict(row) for row in expected["rows"]]
    steps = [row.pop("steps") for row in rows]
    models = [rng.build(partial(implementation.LanguageModel, **row)) for row in rows]
    heads = [row["n_heads"] for row in rows]
    outputs = [len(model.get_parameter(W_Q)) for model in models]
    widths = [width // n for width, n in zip(outputs, heads, strict=True)]
    repeated = [width for width, times in Counter(widths).items() if times > 1]
    check(len(set(widths)), exact(expected["widths"]))
    check(repeated, exact(expected["repeated"]))
    check(dict(Counter(steps)), exact(expected["steps"]))


@claim("division-identical-settings")
def test_both_variants_of_a_pair_start_from_the_same_parameters(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Both variants of each pair use identical settings.

    From one seed the scaled and the unscaled model have the same parameters, all of them.
    """
    for d in expected["widths"]:
        unscaled, scaled = (
            dict(fresh_model(implementation, rng, d, scaled=choice).named_parameters())
            for choice in (False, True)
        )
        check(unscaled, exact(scaled, because="one seed; the switch draws no number"))


@claim("division-is-a-factor")
def test_a_scaled_model_with_larger_queries_is_the_unscaled_model(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """A scaled model with W_q multiplied by sqrt(d_k) is the unscaled model, to the bit.

    The logits of both, from one seed, at widths whose root is a power of two.
    """
    tokens = rng.integers(0, 1024, 2, 16, salt="tokens")
    for d in expected["widths"]:
        unscaled, scaled = (
            fresh_model(implementation, rng, d, scaled=choice) for choice in (False, True)
        )
        scaled.get_parameter(W_Q).data *= math.isqrt(d)
        because = "a power of two moves exponents alone, in W_q as in the division"
        check(scaled(tokens), exact(unscaled(tokens), because))


@claim("division-gain-not-monotone")
def test_the_printed_worth_of_the_division_falls_from_256_to_1024(
    check: Check, expected: Expected
) -> None:
    """The printed worth of the division falls by one point from d_k = 256 to 1024."""
    points = expected["points"]
    check(points[1024] - points[256], exact(expected["change"]))


# ---- the scores at initialisation --------------------------------------------------------------


def fresh_unscaled_head(implementation: Implementation, d_k: int) -> tuple[nn.Module, Tensor]:
    """The mixer of the chapter's unscaled one-head model, and its input for 4 x 128 tokens."""
    tokens = torch.randint(0, 1024, (4, 128))
    model = implementation.LanguageModel(n_heads=1, d_head=d_k, norm="none", scaled=False)
    return model.blocks[0].mixer, attention_input(model, tokens).detach()


@claim("undivided-init-score-std-21")
def test_the_unscaled_score_std_is_21_at_initialisation(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """The unscaled head's score standard deviation is 21 at initialisation.

    The chapter's model, one head of d_k = 1024, token plus position, no LayerNorm; seed 0: 21.00.
    """
    with recipe(0):
        mixer, x = fresh_unscaled_head(implementation, expected["d_k"])
    check(causal_std(raw_scores(mixer, x, n_heads=1)), digits(expected["value"], decimals=0))


def variances_over_formula(
    implementation: Implementation, rng: Draws, std: float, **changes: Any
) -> Tensor:
    """Score variance over std^2, from the weights of 40 fresh one-head models on distinct tokens.

    d_model is 64, half the chapter's, for it cancels. One number per model, of 4,560 scores: the
    pairs of 96 tokens, whose vectors are independent.
    """
    shape = {"vocabulary": 96, "context": 96, "d_model": 64, "feed_forward": False}
    build = partial(implementation.LanguageModel, n_heads=1, **shape, **changes)
    ratios = []
    for i in range(40):
        model = rng.build(build, salt=f"model {i}").double()
        x = attention_input(model, rng.permutation(96, salt=f"tokens {i}")[None])
        _, weights = model.blocks[0].mixer(x, return_weights=True)
        ratios.append(variance_within_rows(weights) / std**2)
    return torch.tensor(ratios)


# A token's score with itself has 1 + 2/d times the variance of the others, at d = 64.
ABOUT_ONE = mean_within(1.0, 1.0 + 2 / 64, detects=0.15)

HEADS: dict[str, dict[str, Any]] = {
    "tokens-and-positions": {"d_head": 1024, "norm": "none"},
    "tokens-only": {"d_head": 1024, "norm": "none", "positions": "none"},
    "layer-norm": {"d_head": 1024, "norm": "pre"},
    "d_k-256": {"d_head": 256, "norm": "none"},
}


@claim("init-score-std-formula")
@pytest.mark.parametrize("head", HEADS)
def test_unscaled_scores_start_with_a_std_of_a_third_of_sqrt_dk_per_unit_variance(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws, head: str
) -> None:
    """Unscaled scores start with standard deviation s^2 sqrt(d_k) / 3.

    Weights of a fresh linear layer have variance 1/(3d), so entries of q and k have s^2/3 each, and
    a score d_k times the product. s^2 = 2 for token plus position; each other head halves the std.
    """
    variances = variances_over_formula(
        implementation, rng, expected["std"][head], scaled=False, **HEADS[head]
    )
    check(variances, ABOUT_ONE)


@claim("divided-init-score-std")
def test_the_scaled_head_starts_at_a_score_std_of_two_thirds(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """The scaled head starts at a score standard deviation of 0.667.

    2 sqrt(1024)/3 over sqrt(1024), and as much from the weights that fresh scaled heads return.
    """
    check(2 * math.sqrt(1024) / 3 / math.sqrt(1024), digits(expected["std"], decimals=3))
    variances = variances_over_formula(
        implementation, rng, expected["std"], scaled=True, d_head=1024, norm="none"
    )
    check(variances, ABOUT_ONE)


@claim("undivided-init-six-rows-in-ten-hard")
def test_six_rows_in_ten_of_the_unscaled_head_are_hard_at_initialisation(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Unscaled at d_k = 1024, six rows in ten are saturated at initialisation; mean entropy 0.2 nats.

    The head and the tokens of `undivided-init-score-std-21`.
    """
    with recipe(0):
        mixer, x = fresh_unscaled_head(implementation, expected["d_k"])
    weights = mixer(x, return_weights=True)[1].detach()
    measured = {"saturated": share(saturated(weights)), "entropy": float(entropy(weights).mean())}
    check(measured, digits({key: expected[key] for key in measured}, decimals=1))


# ---- rounding ----------------------------------------------------------------------------------


@claim("softmax-at-scores-of-60")
@pytest.mark.parametrize("fused", [False, True], ids=["explicit", "fused"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["float32", "bfloat16", "float16"]
)
def test_attention_is_accurate_at_scores_of_60(
    implementation: Implementation,
    check: Check,
    expected: Expected,
    rng: Draws,
    dtype: torch.dtype,
    fused: bool,
) -> None:
    """With scores up to +-60 attention is as accurate as the plain computation in its precision.

    Against float64 on the same rounded inputs; the plain computation keeps every step in `dtype`.
    2,048 rows, so that the largest error is not that of one unlucky row. In half precision the
    fused error is a twentieth of the plain one.
    """
    q, k, v = (rng.normal(32, 64, 64, salt=name).to(dtype) for name in "qkv")
    scores = q.double() @ k.double().transpose(-2, -1)
    scale = expected["largest_score"] / float(scores.abs().max())
    reference = (scale * scores).softmax(-1) @ v.double()
    simplest = (q @ k.transpose(-2, -1) * scale).softmax(-1) @ v
    measured = implementation.attention(q, k, v, scale=scale, fused=fused)
    because = "the steps may be rounded in another order"
    check(measured, rounding(reference, simplest, 2, because))


# ---- trained ------------------------------------------------------------------------------------


@claim("division-32-nothing")
@trains(DIVISION_RUNS, "32 of four heads, scaled", "32 of four heads, unscaled")
def test_at_32_the_division_is_worth_nothing(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """At d_k = 32 the division is worth nothing, and the unscaled run is very slightly ahead."""
    gained = _worth_of_dividing(runs, "32 of four heads")
    band = seed_mean_within(expected["band"], "nothing: points, 2 % of 38")
    check(gained, band)


@claim("division-256-18-points")
@trains(DIVISION_RUNS, "256, scaled", "256, unscaled")
def test_at_256_the_division_is_worth_18_points(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """At d_k = 256 the division is worth 18 points of perplexity."""
    band = seed_mean_within(expected["band"], "clearly something; the print +- a half")
    check(_worth_of_dividing(runs, "256"), band)


@claim("division-1024-17-points")
@trains(DIVISION_RUNS, "1024, scaled", "1024, unscaled")
def test_at_1024_the_division_is_worth_17_points(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """At d_k = 1024 the division is worth 17 points of perplexity."""
    band = seed_mean_within(expected["band"], "clearly something; the print +- a half")
    check(_worth_of_dividing(runs, "1024"), band)


@claim("large-starts-between-32-and-256")
@trains(
    DIVISION_RUNS, "32 of four heads, scaled", "32 of four heads, unscaled",
    "256, scaled", "256, unscaled",
)
def test_large_starts_between_32_and_256(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Large starts between 32 and 256: nothing at 32, everything by 256."""
    nothing = seed_mean_within(expected["at_32"], "nothing: points, 2 % of 38")
    check(_worth_of_dividing(runs, "32 of four heads"), nothing)
    everything = seed_mean_within(expected["at_256"], "of the order of the 17 points at 1024")
    check(_worth_of_dividing(runs, "256"), everything)


@claim("undivided-final-score-std-5147")
@trains(DIVISION_RUNS, "1024, unscaled")
def test_the_unscaled_scores_end_at_a_std_of_5147(
    runs: Runs, budget: str, check: Check, expected: Expected
) -> None:
    """The unscaled head's scores go from a standard deviation of 21 to 5147.

    At d_k = 1024, on held-out windows; the natural logarithm, since what grows without a bound
    spreads by factors. A smaller budget gets less far.
    """
    ends = _last_scores(runs, "1024, unscaled").map(lambda scores: scores.std)
    low, high = (math.log(side) for side in expected["band"])
    check(ends.map(math.log), seed_mean_within((low, high), "within a factor of two"))


@claim("final-score-std-is-a-matter-of-the-rate")
@trains(STEEPER_RUNS, "1024 at 0.003, unscaled", "1024 at 0.01, unscaled")
def test_where_the_unscaled_scores_end_is_a_matter_of_the_learning_rate(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Trained alike but at three and ten times the rate, the scores end below 5147 and above it.

    The natural logarithm of their standard deviation over the printed one.
    """
    below, above = (
        _last_scores(runs, label).map(lambda scores: math.log(scores.std / expected["value"]))
        for label in ("1024 at 0.003, unscaled", "1024 at 0.01, unscaled")
    )
    most = math.log(expected["most"])
    check(below, seed_mean_within((-most, 0.0), "below, by up to a factor of ten"))
    check(above, seed_mean_within((0.0, most), "above, by up to a factor of ten"))


@claim("undivided-entropy-zero")
@trains(DIVISION_RUNS, "1024, unscaled")
def test_the_unscaled_entropy_falls_to_zero(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Its attention entropy falls to zero: to one decimal, in nats."""
    ends = _last_scores(runs, "1024, unscaled").map(lambda scores: scores.entropy)
    check(ends, seed_mean_within(expected["band"], "0.0 nats to a decimal"))


@claim("undivided-999-rows-hard")
@trains(DIVISION_RUNS, "1024, unscaled")
def test_999_rows_in_1000_of_the_unscaled_head_are_hard(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """99.9 % of its rows put more than 0.99 of their weight on a single token."""
    ends = _last_scores(runs, "1024, unscaled").map(lambda scores: scores.saturated)
    check(ends, seed_mean_within(expected["band"], "nearly all of them"))


@claim("divided-final-score-std-3.44")
@trains(DIVISION_RUNS, "1024, scaled")
def test_the_scaled_scores_end_at_a_std_of_3_44(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """The scaled head sits at a score std of 3.44 after the same training: still a soft blend."""
    ends = _last_scores(runs, "1024, scaled").map(lambda scores: scores.std)
    check(ends, seed_mean_within(expected["band"], "a soft blend"))


@claim("hard-head-gradient-near-zero")
@trains(DIVISION_RUNS, "1024, scaled", "1024, unscaled")
def test_the_gradient_of_a_hard_head_is_nearly_zero(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Once a head is a hard selector its gradient is nearly zero.

    The gradient that reaches W_q, as a share of the scaled head's, at the last snapshot that has
    gradients. A seed in which it is not small is a counterexample.
    """
    unscaled, scaled = (
        runs.results(f"1024, {which}").map(_query_gradient)
        for which in ("unscaled", "scaled")
    )
    small = every_seed_within((0.0, expected["most"]), "at most a tenth of the scaled one's")
    check(unscaled / scaled, small)


def _last_scores(runs: Runs, label: str) -> PerSeed[HeadScores]:
    """The scores of the head after the last step, by seed."""
    return runs.results(label).map(lambda result: result.snapshots[-1].scores[0])


def _worth_of_dividing(runs: Runs, width: str) -> PerSeed[float]:
    """By how many points the unscaled perplexity is higher, by seed."""
    unscaled, scaled = (
        runs.perplexities(f"{width}, {which}") for which in ("unscaled", "scaled")
    )
    return unscaled - scaled


def _query_gradient(result: RunResult) -> float:
    recorded = [s.gradients for s in result.snapshots if s.gradients is not None]
    return recorded[-1]["blocks.0.mixer.q.weight"]
