"""Section 5, the division by sqrt(d_k).

The section derives that a score, a sum of d_k products, has variance d_k. Softmax over the unscaled
scores of a wide head therefore puts nearly all weight on one token, and such a row passes back
almost no gradient. Trained without the division, a model loses nothing at a head width of 32, and
18 and 17 points of perplexity at 256 and 1024.

The random rows here are one query over 64 keys each, independent of one another (`draw_rows`).
"""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from functools import partial

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
    claim,
    counts,
    digits,
    every_seed_within,
    exact,
    mean_within,
    recipe,
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
from claims.instruments.attention.activations import passing_through
from claims.instruments.attention.random_rows import (
    KEYS,
    ROWS,
    draw_rows,
    independent_rows,
    rows_of_seed_0,
    share,
    softmax_of_normal_scores,
    spread_of_pairs,
    successes,
)
from claims.instruments.attention.scores import (
    causal_std,
    effective_tokens,
    entropy,
    jacobian_diagonal,
    jacobian_diagonal_by_autograd,
    jacobian_trace,
    raw_scores,
    saturated,
    score_gradients,
    scores_of,
    softmax_of,
    weights_of,
)
from claims.training.results import Runs
from claims.training.spec import HeadScores, RunResult

W_Q = "blocks.0.mixer.q.weight"

# ---- l.91 to l.95: the variance of a score -----------------------------------------------------

ENTRIES = st.fractions(Fraction(1, 8), 8, max_denominator=16)


def two_values(a: Fraction) -> list[tuple[Fraction, Fraction]]:
    """(value, probability) of a distribution on two values, with mean zero and variance one."""
    return [(a, 1 / (1 + a * a)), (-1 / a, a * a / (1 + a * a))]


@claim("product-variance-one")
@settings(max_examples=30)
@given(a=ENTRIES, b=ENTRIES)
def test_a_product_of_independent_unit_variance_entries_has_variance_one(
    check: Check, expected: Expected, a: Fraction, b: Fraction
) -> None:
    """If entries of q and k are independent, of mean zero and variance one, so is each product.

    For pairs of entries with two values each, in rational arithmetic.
    """
    joint = [(x * y, p * r) for x, p in two_values(a) for y, r in two_values(b)]
    expectation = sum((xy * p for xy, p in joint), Fraction(0))
    square = sum((xy * xy * p for xy, p in joint), Fraction(0))
    check(square - expectation**2, exact(expected["value"]))


@claim("dot-variance-dk")
def test_the_variance_of_a_dot_product_is_its_width(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Variances of independent things add: Var(q.k) = d_k.

    The scores of all sign vectors q against all sign vectors k, each pair equally likely: their
    mean square is d_k exactly, except for the rounding of the log-odds that give the scores.
    """
    for d in expected["widths"]:
        entries = torch.tensor([-1.0, 1.0], dtype=torch.float64)
        signs = torch.cartesian_prod(*[entries] * d).view(-1, d)
        scores = scores_of(implementation.attention, signs, signs, scale=1.0)
        # Two logarithms, together at most 5 d + 2, of weights with an error of 4 u each.
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


@claim("variance-table")
def test_the_variance_over_twenty_thousand_pairs_tracks_d(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Measured over twenty thousand random pairs, the variance of q.k tracks d: the printed table.

    Seed 0, q and k in turn for each width; all five rows come out, to the third decimal.
    """
    widths = [d for d, *_ in expected["table"]["rows"]]
    spread = spread_of_pairs(implementation.attention, widths, expected["pairs"])
    rows = [[d, *spread[d], math.sqrt(d)] for d in widths]
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


# ---- l.102 and l.103: softmax and scale --------------------------------------------------------


@claim("linear-layer-doubling")
def test_doubling_the_input_of_a_linear_layer_doubles_its_output(check: Check, rng: Draws) -> None:
    """Doubling the input of a linear layer doubles its output.

    Refuted by the framework's own linear layer, which adds its bias only once.
    """
    layer, x = rng.build(lambda: nn.Linear(16, 16)), rng.normal(4, 16)
    check(layer(2 * x), exact(2 * layer(x), because="the sentence is about any linear layer"))


@claim("bias-free-layer-doubling")
def test_doubling_the_input_of_a_layer_without_bias_doubles_its_output(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Without a bias the output doubles to the last bit; W_q is such a layer.

    On the projection to queries of a multi-head layer.
    """
    layer = rng.build(lambda: implementation.MultiHeadAttention(16, 2)).q
    x = rng.normal(4, 16)
    check(layer(2 * x), exact(2 * layer(x), because="a factor of two changes only exponents"))


@claim("softmax-scale-sensitive")
def test_ten_times_the_scores_turn_a_soft_blend_into_a_hard_choice(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Multiplying scores by ten before a softmax turns a soft blend into a hard choice.

    Of 64 scores of variance one, the largest outweighs all others together in almost no row; of ten
    times those scores it does so in most rows. The mean entropies are those of the quadrature.
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
    check(successes(saturated(blend, 0.5)), share_within(0.0, 0.5, detects=0.1))
    check(successes(saturated(choice, 0.5)), share_within(0.5, 1.0, detects=0.1))


@claim("divided-effective-tokens")
def test_a_scaled_row_of_64_averages_over_about_40_tokens(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """With division a row of 64 scores averages over about 40 tokens at every width.

    The mean over rows rounds to 40.
    """
    for d in expected["widths"]:
        rows = draw_rows(implementation.attention, d, rng.generator(str(d)))
        about = (expected["value"] - 0.5, expected["value"] + 0.5)
        check(effective_tokens(rows.scaled), mean_within(*about, detects=1.0), unit="tokens")


# ---- l.104: effective tokens -------------------------------------------------------------------


@claim("effective-tokens-definition")
def test_effective_tokens_are_the_exponential_of_the_entropy(
    implementation: Implementation, check: Check
) -> None:
    """Effective tokens is the exponential of the entropy.

    Row t of the uniform causal average has t of them. Weights of 1/2, 1/4, 1/8, 1/8 have an entropy
    of 7/4 ln 2, which tells this definition from 1/sum w^2.
    """
    zeros = torch.zeros(KEYS, 8, dtype=torch.float64)
    mask = implementation.causal_mask(KEYS)
    _, average = implementation.attention(zeros, zeros, zeros, mask, return_weights=True)
    halves = softmax_of(
        implementation.attention, torch.tensor([4.0, 2.0, 1.0, 1.0], dtype=torch.float64).log()
    )
    tokens = torch.cat([effective_tokens(average), effective_tokens(halves)[None]])
    derived = torch.tensor([*range(1, KEYS + 1), 2**1.75], dtype=torch.float64)
    because = "64 terms, each with a relative error of 4 u; exp makes the entropy's error relative"
    check(tokens, ulps(derived, (64 + 4) * math.log(KEYS), because))


@claim("undivided-256-exactly-one-token")
def test_unscaled_at_256_a_row_attends_to_exactly_one_token(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Unscaled at d_k = 256, a freshly initialised head attends to exactly one token of 64.

    Refuted even for every second row: effective tokens print as 1.00 in 29 % of them.
    """
    rows = draw_rows(implementation.attention, expected["d_k"], rng.generator())
    printed = effective_tokens(rows.unscaled).round(decimals=2)
    check(successes(printed == expected["value"]), share_within(0.5, 1.0, detects=0.1))


@claim("undivided-256-median-row")
def test_unscaled_at_256_half_the_rows_have_fewer_than_1_2_tokens(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Unscaled at d_k = 256, half the rows have fewer than 1.2 effective tokens; scaled about 40.

    The same rows unscaled and scaled. Unscaled, six rows in ten are below 1.2.
    """
    rows = draw_rows(implementation.attention, expected["d_k"], rng.generator())
    few = effective_tokens(rows.unscaled) < expected["unscaled"]
    check(successes(few), share_within(0.5, 1.0, detects=0.1))
    many = effective_tokens(rows.scaled)
    check(many, mean_within(expected["scaled"] - 0.5, expected["scaled"] + 0.5, detects=1.0))


@claim("winner-is-random-draw")
def test_the_chosen_token_is_chosen_by_nothing_but_the_draw(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """The chosen token is chosen by nothing but the random draw.

    Over 8,192 rows, each of the 64 positions has the largest weight equally often.
    """
    rows = draw_rows(implementation.attention, expected["d_k"], rng.generator(), n_rows=8192)
    check(counts(rows.unscaled.argmax(-1), KEYS), uniformly_distributed(detects=0.15))


# ---- l.106: the derivative of a softmax --------------------------------------------------------


@claim("softmax-jacobian-diagonal")
@settings(max_examples=50)
@given(scores=tensors(st.integers(1, 8), dtype=torch.float64))
def test_the_diagonal_of_the_softmax_jacobian_is_w_1_minus_w(
    implementation: Implementation, check: Check, scores: Tensor
) -> None:
    """The diagonal of the softmax Jacobian is w_i (1 - w_i).

    By autograd through attention, against the weights that it returns, for rows of up to 8 scores.
    """
    weights = softmax_of(implementation.attention, scores)
    because = "1 - w_i is rounded by at most u, and so is each product with w_i"
    derived = ulps(jacobian_diagonal(weights), 4, because, scale=weights)
    check(jacobian_diagonal_by_autograd(implementation.attention, scores), derived)


@claim("softmax-jacobian-zero-at-ends")
def test_the_derivative_is_zero_at_both_ends(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """w_i (1 - w_i) is zero at both ends, and 1/4 half-way.

    By autograd, for two scores a thousand apart and for two equal ones.
    """
    rows = torch.tensor([[0.0, -1000.0], [0.0, 0.0]], dtype=torch.float64)
    measured = [jacobian_diagonal_by_autograd(implementation.attention, row) for row in rows]
    derived = torch.tensor([expected["one_sided"], expected["even"]], dtype=torch.float64)
    because = "e^-1000 underflows, so the weights are 1 and 0; halves and quarters are exact"
    check(torch.stack(measured), exact(derived, because))


@claim("committed-row-has-no-derivative")
@settings(max_examples=50)
@given(others=tensors(st.integers(1, 15), dtype=torch.float64), margin=st.floats(1e-6, 8))
def test_a_softmax_committed_to_one_entry_has_almost_no_derivative(
    implementation: Implementation, check: Check, expected: Expected, others: Tensor, margin: float
) -> None:
    """A softmax committed to one entry has almost no derivative.

    Where one entry has more than 0.99 of the weight, the derivatives dw_i/ds_i sum to less than
    0.02: the sum is 1 - sum w^2. By autograd, for rows whose first entry leads by enough.
    """
    odds = expected["threshold"] / (1 - expected["threshold"])
    first = others.max() + math.log(odds * len(others)) + margin
    scores = torch.cat([first[None], others])
    trace = jacobian_diagonal_by_autograd(implementation.attention, scores).sum()
    check(trace, within(0.0, expected["trace"], "1 - sum w^2 <= 1 - 0.99^2 = 0.0199"))


# ---- l.107 and l.108: frozen rows --------------------------------------------------------------


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
        rows = draw_rows(implementation.attention, d, rng.generator(str(d)))
        check(jacobian_trace(rows.unscaled), mean_within(trace, trace, detects=0.05))


@claim("frozen-rows-seven-in-ten")
def test_at_1024_seven_rows_in_ten_are_frozen(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """At d_k = 1024, seven rows in ten are frozen before training starts.

    The share of rows with more than 0.99 of their weight on one token, rows of seed 0: 0.697.
    """
    rows = rows_of_seed_0(implementation.attention, expected["d_k"])
    check(share(saturated(rows.unscaled)), digits(expected["value"], decimals=1))


@claim("divided-trace-0.96")
def test_scaled_the_trace_is_flat_at_0_96(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """With division the quantity is flat at 0.96 at every width: the mean trace, rows of seed 0."""
    rows = {d: rows_of_seed_0(implementation.attention, d) for d in expected["values"]}
    traces = {d: float(jacobian_trace(of_width.scaled).mean()) for d, of_width in rows.items()}
    check(traces, digits(expected["values"], decimals=2))


@claim("divided-nothing-saturates")
def test_scaled_nothing_saturates(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """With division nothing saturates: no row has more than 0.99 of its weight on one token.

    For that, one of 64 scores of variance one would have to outweigh the other 63 together by a
    factor of 99, at about nine standard deviations.
    """
    for d in expected["widths"]:
        rows = draw_rows(implementation.attention, d, rng.generator(str(d)))
        none = share_within(expected["share"], expected["share"], detects=0.005)
        check(successes(saturated(rows.scaled)), none)


def fresh_model(implementation: Implementation, rng: Draws, d_k: int, *, scaled: bool) -> nn.Module:
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
    because = "a head that cannot learn gets less gradient than one that can"
    check(unscaled / scaled, within(0.0, 1.0, because))


@claim("frozen-row-gradient")
def test_the_typical_unscaled_row_gets_less_than_a_hundredth_of_the_gradient(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Unscaled at d_k = 1024, the typical row's scores get less than a hundredth of the gradient.

    The weights of each row get the same normal gradient, scaled and unscaled. At the median, 1/1500
    of what reaches the scaled row's scores reaches the unscaled row's.
    """
    q, k = independent_rows(expected["d_k"], ROWS, KEYS, rng.generator())
    upstream = rng.normal(*q.shape[:-1], KEYS, salt="upstream", dtype=torch.float64)
    unscaled, scaled = (
        score_gradients(implementation.attention, q, k, upstream, scale).norm(dim=-1)
        for scale in (1.0, None)
    )
    few = unscaled < scaled / expected["ratio"]
    check(successes(few), share_within(0.5, 1.0, detects=0.1))


@claim("unfrozen-rows-carry-the-gradient")
def test_rows_that_are_not_frozen_send_the_scores_a_third_of_the_scaled_gradient(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Unscaled at d_k = 1024, scores get more than a third of the scaled mean-square gradient.

    It is two thirds in the mean over 16,384 rows, nearly all of it from the three rows in ten that
    are not frozen. The division would reduce what reaches W_q by a factor of 32; without it the
    norm there is 26 times as large. Scaled rows have a mean square of 0.034, so the test would
    notice a fall to a tenth of it.
    """
    q, k = independent_rows(expected["d_k"], 16_384, KEYS, rng.generator())
    upstream = rng.normal(*q.shape[:-1], KEYS, salt="upstream", dtype=torch.float64)
    unscaled, scaled = (
        score_gradients(implementation.attention, q, k, upstream, scale).square().sum(-1)
        for scale in (1.0, None)
    )
    check(unscaled - scaled / expected["ratio"], mean_within(0.0, 0.5, detects=0.008))


# ---- l.112 and l.114: the ablation -------------------------------------------------------------


@claim("division-ablation-layout")
def test_the_ablation_has_five_rows_of_four_head_widths(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """The ablation trains four head widths; two rows at 3000 steps, three in a shorter run.

    Each row is built as the ledger reads it, and its head width is that of its W_q. One width
    appears in both budgets.
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
        because = "a power of two changes only exponents, in W_q as in the division"
        check(scaled(tokens), exact(unscaled(tokens), because))


def points_lost(runs: Runs, width: str) -> PerSeed[float]:
    """By how many points the perplexity is higher without the division, by seed."""
    unscaled, scaled = (runs.perplexities(f"{width}, {which}") for which in ("unscaled", "scaled"))
    return unscaled - scaled


@claim("division-32-nothing")
@trains(DIVISION_RUNS, "32 of four heads, scaled", "32 of four heads, unscaled")
def test_at_32_the_division_is_worth_nothing(runs: Runs, check: Check, expected: Expected) -> None:
    """At d_k = 32 the division is worth nothing, and the unscaled run is very slightly ahead."""
    band = seed_mean_within(expected["band"], "nothing: points, 2 % of 38")
    check(points_lost(runs, "32 of four heads"), band)


@claim("division-256-18-points")
@trains(DIVISION_RUNS, "256, scaled", "256, unscaled")
def test_at_256_the_division_is_worth_18_points(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """At d_k = 256 the division is worth 18 points of perplexity."""
    band = seed_mean_within(expected["band"], "clearly something; the print +- a half")
    check(points_lost(runs, "256"), band)


@claim("division-1024-17-points")
@trains(DIVISION_RUNS, "1024, scaled", "1024, unscaled")
def test_at_1024_the_division_is_worth_17_points(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """At d_k = 1024 the division is worth 17 points of perplexity."""
    band = seed_mean_within(expected["band"], "clearly something; the print +- a half")
    check(points_lost(runs, "1024"), band)


@claim("division-gain-not-monotone")
def test_the_printed_worth_of_the_division_falls_from_256_to_1024(
    check: Check, expected: Expected
) -> None:
    """The printed worth of the division falls by one point from d_k = 256 to 1024."""
    points = expected["points"]
    check(points[1024] - points[256], exact(expected["change"]))


# ---- l.116 and l.118: the scores, from initialisation to the end of training -------------------


def fresh_unscaled_head(implementation: Implementation, d_k: int) -> tuple[nn.Module, Tensor]:
    """The mixer of the chapter's unscaled one-head model, and its input for 4 x 128 tokens.

    From seed 0: the tokens, then the model.
    """
    with recipe(0):
        tokens = torch.randint(0, 1024, (4, 128))
        model = implementation.LanguageModel(n_heads=1, d_head=d_k, norm="none", scaled=False)
    mixer = model.blocks[0].mixer
    return mixer, passing_through(mixer, lambda: model(tokens))[0]


def final_scores(runs: Runs, label: str) -> PerSeed[HeadScores]:
    """The scores of the head after the last step, by seed."""
    return runs.results(label).map(lambda result: result.snapshots[-1].scores[0])


@claim("undivided-init-score-std-21")
def test_the_unscaled_score_std_is_21_at_initialisation(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """The unscaled head's score standard deviation is 21 at initialisation.

    The chapter's model, one head of d_k = 1024, token plus position, no LayerNorm; seed 0: 21.00.
    """
    mixer, x = fresh_unscaled_head(implementation, expected["d_k"])
    check(causal_std(raw_scores(mixer, x, n_heads=1)), digits(expected["value"], decimals=0))


@claim("undivided-init-six-rows-in-ten-hard")
def test_six_rows_in_ten_of_the_unscaled_head_are_saturated_at_initialisation(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Unscaled at d_k = 1024, six rows in ten start saturated; the mean entropy is 0.2 nats.

    The head and the tokens of `undivided-init-score-std-21`.
    """
    mixer, x = fresh_unscaled_head(implementation, expected["d_k"])
    weights = mixer(x, return_weights=True)[1].detach()
    measured = {"saturated": share(saturated(weights)), "entropy": float(entropy(weights).mean())}
    check(measured, digits({key: expected[key] for key in measured}, decimals=1))


@claim("undivided-final-score-std-5147")
@trains(DIVISION_RUNS, "1024, unscaled")
def test_the_unscaled_scores_end_at_a_std_of_5147(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """The unscaled head's scores go from a standard deviation of 21 to 5147.

    At d_k = 1024, on held-out windows. In natural logarithms, because what grows without a bound
    spreads by factors. The small budget does not get as far.
    """
    ends = final_scores(runs, "1024, unscaled").map(lambda scores: math.log(scores.std))
    low, high = (math.log(side) for side in expected["band"])
    check(ends, seed_mean_within((low, high), "within a factor of two"))


@claim("final-score-std-is-a-matter-of-the-rate")
@trains(STEEPER_RUNS, "1024 at 0.003, unscaled", "1024 at 0.01, unscaled")
def test_where_the_unscaled_scores_end_is_a_matter_of_the_learning_rate(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Trained alike but at three and ten times the rate, the scores end below 5147 and above it.

    The natural logarithm of their standard deviation over the printed one.
    """
    below, above = (
        final_scores(runs, label).map(lambda scores: math.log(scores.std / expected["value"]))
        for label in ("1024 at 0.003, unscaled", "1024 at 0.01, unscaled")
    )
    most = math.log(expected["most"])
    check(below, seed_mean_within((-most, 0.0), "below, by up to a factor of ten"))
    check(above, seed_mean_within((0.0, most), "above, by up to a factor of ten"))


@claim("undivided-entropy-zero")
@trains(DIVISION_RUNS, "1024, unscaled")
def test_the_unscaled_entropy_falls_to_zero(runs: Runs, check: Check, expected: Expected) -> None:
    """Its attention entropy falls to zero: to one decimal, in nats."""
    ends = final_scores(runs, "1024, unscaled").map(lambda scores: scores.entropy)
    check(ends, seed_mean_within(expected["band"], "0.0 nats to a decimal"))


@claim("undivided-999-rows-hard")
@trains(DIVISION_RUNS, "1024, unscaled")
def test_999_rows_in_1000_of_the_unscaled_head_are_saturated(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """99.9 % of its rows put more than 0.99 of their weight on a single token."""
    ends = final_scores(runs, "1024, unscaled").map(lambda scores: scores.saturated)
    check(ends, seed_mean_within(expected["band"], "nearly all of them"))


def gradient_of_w_q(result: RunResult) -> float:
    """The norm of the gradient of W_q at the last snapshot that has gradients."""
    recorded = [s.gradients for s in result.snapshots if s.gradients is not None]
    return recorded[-1][W_Q]


@claim("hard-head-gradient-near-zero")
@trains(DIVISION_RUNS, "1024, scaled", "1024, unscaled")
def test_the_gradient_of_a_hard_head_is_nearly_zero(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Once a head is a hard selector its gradient is nearly zero.

    The gradient of W_q over that of the scaled head. A seed in which it is not small is a
    counterexample.
    """
    unscaled, scaled = (
        runs.results(f"1024, {which}").map(gradient_of_w_q) for which in ("unscaled", "scaled")
    )
    small = every_seed_within((0.0, expected["most"]), "at most a tenth of the scaled head's")
    check(unscaled / scaled, small)


@claim("divided-final-score-std-3.44")
@trains(DIVISION_RUNS, "1024, scaled")
def test_the_scaled_scores_end_at_a_std_of_3_44(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """The scaled head has a score std of 3.44 after the same training: still a soft blend."""
    ends = final_scores(runs, "1024, scaled").map(lambda scores: scores.std)
    check(ends, seed_mean_within(expected["band"], "a soft blend"))


@claim("large-starts-between-32-and-256")
@trains(
    DIVISION_RUNS, "32 of four heads, scaled", "32 of four heads, unscaled",
    "256, scaled", "256, unscaled",
)
def test_large_starts_between_32_and_256(runs: Runs, check: Check, expected: Expected) -> None:
    """Large starts between 32 and 256: nothing at 32, everything by 256."""
    nothing = seed_mean_within(expected["at_32"], "nothing: points, 2 % of 38")
    check(points_lost(runs, "32 of four heads"), nothing)
    everything = seed_mean_within(expected["at_256"], "of the order of the 17 points at 1024")
    check(points_lost(runs, "256"), everything)
