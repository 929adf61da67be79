"""Section 5, the division by sqrt(d_k).

The section derives that a score, a sum of d_k products, has variance d_k. Softmax over the unscaled
scores of a wide head therefore puts nearly all weight on one token, and such a row passes back
almost no gradient. Trained without the division, a model loses nothing at a head width of 32, and
18 and 17 points of perplexity at 256 and 1024.

The random rows here are one query over 64 keys each, independent of one another (`draw_rows`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from fractions import Fraction
from functools import partial
from itertools import product

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard
from torch import Tensor, nn

from claims.experiments import HALF
from claims.experiments.division import (
    BY_WIDTH_AND_RATE,
    DIVISION_RUNS,
    FROZEN_RUNS,
    LASTING_RUNS,
)
from claims.experiments.ladder import LADDER_RUNS
from claims.experiments.rungs import ONE_BLOCK
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
    printed_run,
    recipe,
    seed_mean_within,
    share_within,
    trains,
    ulps,
    uniformly_distributed,
    variance_near,
    within,
)
from claims.harness.implementation import Implementation, Missing
from claims.harness.strategies import tensors
from claims.instruments.attention.activations import mixer_of, passing_through
from claims.instruments.attention.projections import projected
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
from claims.training.loop import build
from claims.training.results import Runs
from claims.training.spec import HeadScores, RunResult

# What the record calls W_q of a model of one block.
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
def test_doubling_the_input_of_a_linear_layer_doubles_its_output(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Doubling the input of a linear layer doubles its output.

    To the last bit where the layer has no bias, as W_q, W_k and W_v have none. A layer with a bias
    adds it only once.
    """
    x = rng.normal(4, 16)
    attention = rng.build(lambda: implementation.MultiHeadAttention(16, 2))
    layers: dict[str, Callable[[Tensor], Tensor]] = {
        "a layer without bias": partial(projected, implementation, attention, "q"),
        "a layer with bias": rng.build(lambda: nn.Linear(16, 16), salt="bias"),
    }
    for name, layer in layers.items():
        because = "a factor of two changes only exponents"
        check.under(name)(layer(2 * x), exact(2 * layer(x), because))


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

    64 fixed tokens, orthogonal and of one length, and 4,096 fresh heads, which are the heads of 16
    layers. The token to which the last one attends most is each of the 64 equally often.
    """
    tokens = torch.from_numpy(hadamard(KEYS)).float()[None]
    shape = {"n_heads": 256, "d_head": expected["d_k"], "scaled": False}
    winners = []
    for i in range(16):
        layer = rng.build(
            partial(implementation.MultiHeadAttention, KEYS, **shape), salt=f"layer {i}"
        )
        with torch.no_grad():
            weights = layer(tokens, return_weights=True)[1]
        winners.append(weights[0, :, -1].argmax(-1))
    check(counts(torch.cat(winners), KEYS), uniformly_distributed(detects=0.22))


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


@claim("backward-worse-than-forward")
def test_large_scores_are_worse_in_the_backward_pass_than_in_the_forward_pass(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Large scores are bad in the forward pass and worse in the backward pass.

    2,048 rows at d_k = 1024, unscaled over scaled: what is left of a row's effective tokens, and of
    the gradient that reaches its scores. In the mean, of the tokens and of the Jacobian's trace.
    """
    q, k = independent_rows(expected["d_k"], ROWS, KEYS, rng.generator())
    upstream = rng.normal(*q.shape[:-1], KEYS, salt="upstream", dtype=torch.float64)
    weights = [weights_of(implementation.attention, q, k, scale) for scale in (1.0, None)]
    unscaled, scaled = (
        score_gradients(implementation.attention, q, k, upstream, scale).norm(dim=-1)
        for scale in (1.0, None)
    )
    tokens = effective_tokens(weights[0]) / effective_tokens(weights[1])
    worse = successes(unscaled / scaled < tokens)
    check.under("of most rows")(worse, share_within(0.5, 1.0, detects=0.1))

    soft = softmax_of_normal_scores(1.0)
    of_trace = jacobian_trace(weights[0]) / soft.trace
    of_tokens = effective_tokens(weights[0]) / expected["scaled_tokens"]
    lower = mean_within(-1.0, 0.0, detects=0.03)
    check.under("in the mean")((of_trace - of_tokens).flatten(), lower)


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


def fresh_model(
    implementation: Implementation, rng: Draws, d_k: int, *, scaled: bool, fused: bool = False
) -> nn.Module:
    """The chapter's model with one head of width d_k, no LayerNorm; the same draws either way."""
    shape = {"n_heads": 1, "d_head": d_k, "norm": "none", "scaled": scaled, "fused": fused}
    model: nn.Module = rng.build(partial(implementation.LanguageModel, **shape))
    return model


def scores_over_time(runs: Runs, label: str) -> PerSeed[list[HeadScores]]:
    """The scores of the head at each snapshot, by seed: before the first step, ..., at the end."""
    return runs.results(label).map(lambda result: [s.scores[0] for s in result.snapshots])


def least_gain_of_saturated_rows(runs: Runs, label: str) -> PerSeed[float]:
    """The smallest share of saturated rows at any later snapshot, less that at the start."""
    shares = scores_over_time(runs, label).map(lambda s: [each.saturated for each in s])
    return shares.map(lambda each: min(each[1:]) - each[0])


@claim("frozen-head-cannot-learn")
@trains(FROZEN_RUNS, *FROZEN_RUNS["ci"].runs)
def test_a_head_that_starts_frozen_cannot_learn_where_to_look(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """A head that starts frozen cannot learn where to look.

    What it learns is worth the points by which the perplexity is higher if W_q and W_k are held as
    they were drawn. At d_k = 1024 and the chapter's learning rate, unscaled and scaled. The
    unscaled head does not thaw: at no snapshot has it fewer saturated rows than at the start.
    """
    unscaled, scaled = (
        runs.perplexities(f"fixed, {which}") - runs.perplexities(f"trained, {which}")
        for which in ("unscaled", "scaled")
    )
    check(scaled, seed_mean_within(expected["scaled"], "a scaled head does learn it"))
    not_thawed = seed_mean_within(expected["not_thawed"], "no fewer saturated rows")
    check(least_gain_of_saturated_rows(runs, "trained, unscaled"), not_thawed)
    nothing = seed_mean_within(expected["nothing"], "learning gains nothing")
    check.under("nothing at all")(unscaled, nothing)
    little = seed_mean_within(expected["share"], "less than half of it")
    check.under("little of what a scaled head learns")(unscaled / scaled, little)


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
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """The ablation trains four head widths; two rows at 3000 steps, three in a shorter run.

    Read off the settings of the runs, and the widths off the models. The first two rows have the
    budget of the ladder.
    """
    runs = [
        run for label, run in DIVISION_RUNS["document"].runs.items() if label.endswith(", scaled")
    ]
    with torch.device("meta"):
        models = [implementation.LanguageModel(**asdict(run.model)) for run in runs]
    widths = [
        len(implementation.weight(mixer_of(model, 0, implementation), "q")) // run.model.n_heads
        for model, run in zip(models, runs, strict=True)
    ]
    check(widths, exact(expected["widths"]))
    ladder = LADDER_RUNS["document"].runs[ONE_BLOCK.label]
    long = [[run.steps, run.batch, run.learning_rate == ladder.learning_rate] for run in runs[:2]]
    check(long, exact([[ladder.steps, ladder.batch, True]] * 2))
    short = [
        {"steps": r.steps, "batch": r.batch, "heads": r.model.n_heads, "norm": r.model.norm}
        for r in runs[2:]
    ]
    check(short, exact([expected["shorter"]] * 3))


@claim("division-identical-settings")
def test_both_variants_of_a_pair_have_identical_settings(
    implementation: Implementation, check: Check
) -> None:
    """Both variants of each pair use identical settings.

    Each of the five pairs that are trained: all settings but the division are equal, with them the
    batches, and from one seed both models have the same parameters.
    """
    runs = DIVISION_RUNS["document"].runs
    for label in (each for each in runs if each.endswith(", scaled")):
        scaled, unscaled = runs[label], runs[label.replace("scaled", "unscaled")]
        divided = replace(unscaled, model=replace(unscaled.model, scaled=True))
        check(divided == scaled, exact(True), facts={"pair": label})
        one, other = (dict(build(implementation, s).named_parameters()) for s in (scaled, unscaled))
        check(other, exact(one, because="one seed; the switch draws no number"))


@claim("division-is-a-factor")
def test_a_scaled_model_with_larger_queries_is_the_unscaled_model(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """A scaled model with W_q multiplied by sqrt(d_k) is the unscaled model, to the bit.

    The logits of both, from one seed, at widths whose root is a power of two, step by step and in
    the fused call.
    """
    tokens = rng.integers(0, 1024, 2, 16, salt="tokens")
    for d, fused in product(expected["widths"], (False, True)):
        unscaled, scaled = (
            fresh_model(implementation, rng, d, scaled=choice, fused=fused)
            for choice in (False, True)
        )
        one, other = (mixer_of(model, 0, implementation) for model in (unscaled, scaled))
        q = implementation.weight(one, "q").clone()
        implementation.set_weights(one, q=q)  # and no bias
        implementation.set_weights(other, q=math.isqrt(d) * q)
        because = "a power of two changes only exponents, in W_q as in the division"
        check(scaled(tokens), exact(unscaled(tokens), because))


def points_lost(runs: Runs, width: str) -> PerSeed[float]:
    """By how many points the perplexity is higher without the division, by seed."""
    unscaled, scaled = (runs.perplexities(f"{width}, {which}") for which in ("unscaled", "scaled"))
    return unscaled - scaled


@claim("division-32-nothing")
@trains(DIVISION_RUNS, "32 of four heads, scaled", "32 of four heads, unscaled")
def test_at_32_the_division_is_worth_nothing(runs: Runs, check: Check, expected: Expected) -> None:
    """At d_k = 32 the division is worth nothing."""
    band = seed_mean_within(expected["band"], "nothing: points, 2 % of 38")
    check(points_lost(runs, "32 of four heads"), band)


@claim("division-32-unscaled-ahead")
@trains(DIVISION_RUNS, "32 of four heads, scaled", "32 of four heads, unscaled")
def test_at_32_the_unscaled_run_is_very_slightly_ahead(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """At d_k = 32 the run without the division is very slightly ahead."""
    band = seed_mean_within(expected["band"], "ahead, and by no more than nothing is read as")
    check(points_lost(runs, "32 of four heads"), band)


@claim("division-pays-at-256-and-1024")
@trains(DIVISION_RUNS, "256, scaled", "256, unscaled", "1024, scaled", "1024, unscaled")
def test_at_256_and_1024_the_model_without_the_division_is_worse(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """At d_k = 256 and at 1024 the model without the division is worse."""
    for width in ("256", "1024"):
        band = seed_mean_within(expected["band"], "a loss, in points, and no divergence")
        check(points_lost(runs, width), band, facts={"d_k": width})


@claim("division-256-18-points")
@trains(DIVISION_RUNS, "256, scaled", "256, unscaled", "1024, scaled", "1024, unscaled")
def test_at_256_the_division_is_worth_18_points(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """At d_k = 256 the division is worth 18 points of perplexity."""
    points, like = expected["points"], (points_lost(runs, "1024"),)
    check(points_lost(runs, "256"), printed_run(points, points / 2, HALF, like=like))


@claim("division-1024-17-points")
@trains(DIVISION_RUNS, "256, scaled", "256, unscaled", "1024, scaled", "1024, unscaled")
def test_at_1024_the_division_is_worth_17_points(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """At d_k = 1024 the division is worth 17 points of perplexity."""
    points, like = expected["points"], (points_lost(runs, "256"),)
    check(points_lost(runs, "1024"), printed_run(points, points / 2, HALF, like=like))


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
    mixer = mixer_of(model, 0, implementation)
    return mixer, passing_through(mixer, lambda: model(tokens))[0]


def at_the_end(runs: Runs, label: str, name: str) -> PerSeed[float]:
    """`name` of the scores of the head after the last step, by seed."""
    return scores_over_time(runs, label).map(lambda snapshots: float(getattr(snapshots[-1], name)))


# Of the runs whose learning rate is not printed: setting -> label.
BY_RATE = {
    "1e-3": "1024, unscaled",
    "3e-3": "1024 at 0.003, unscaled",
    "6e-3": "1024 at 0.006, unscaled",
    "1e-2": "1024 at 0.01, unscaled",
}


@claim("undivided-init-score-std-21")
def test_the_unscaled_score_std_is_21_at_initialisation(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """The unscaled head's score standard deviation is 21 at initialisation.

    The chapter's model, one head of d_k = 1024, token plus position, no LayerNorm; seed 0: 21.00.
    """
    mixer, x = fresh_unscaled_head(implementation, expected["d_k"])
    scores = raw_scores(implementation, mixer, x, n_heads=1)
    check(causal_std(scores), digits(expected["value"], decimals=0))


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


@claim("undivided-does-not-recover")
@trains(LASTING_RUNS, "1024, unscaled")
def test_the_unscaled_head_does_not_recover(runs: Runs, check: Check, expected: Expected) -> None:
    """The unscaled head does not recover: nothing pulls it back, so the collapse is stable.

    The share of saturated rows before the first step, against the smallest at any later snapshot.
    """
    least = least_gain_of_saturated_rows(runs, "1024, unscaled")
    check(least, seed_mean_within(expected["band"], "at no snapshot fewer than at the start"))


@claim("undivided-scores-run-away")
@trains(DIVISION_RUNS, "1024, unscaled")
def test_the_unscaled_scores_run_away(runs: Runs, check: Check, expected: Expected) -> None:
    """The unscaled head runs away: its scores spread ever further from one another.

    The natural logarithm of their standard deviation at the end over that at the start.
    """
    growth = scores_over_time(runs, "1024, unscaled").map(lambda s: math.log(s[-1].std / s[0].std))
    most = math.log(expected["printed"][1] / expected["printed"][0])
    check(growth, seed_mean_within((0.0, most), "a growth, by up to the printed factor"))


@claim("undivided-final-score-std-5147")
@trains(BY_WIDTH_AND_RATE, *BY_RATE.values())
def test_the_unscaled_scores_end_at_a_std_of_5147(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """After training, the standard deviation of the unscaled head's scores is 5147.

    At d_k = 1024, on held-out windows. In natural logarithms, because what grows without a bound
    spreads by factors.
    """
    ends = {rate: at_the_end(runs, label, "std").map(math.log) for rate, label in BY_RATE.items()}
    for rate, own in ends.items():
        others = tuple(each for other, each in ends.items() if other != rate)
        because = "a factor of four: less than the scores gain from 1e-3 to 3e-3"
        printed = printed_run(math.log(expected["value"]), math.log(4), because, like=others)
        check.under(rate)(own, printed)


@claim("undivided-entropy-zero")
@trains(DIVISION_RUNS, "1024, unscaled")
def test_the_unscaled_entropy_falls_to_zero(runs: Runs, check: Check, expected: Expected) -> None:
    """Its attention entropy falls to zero: to one decimal, in nats."""
    ends = at_the_end(runs, "1024, unscaled", "entropy")
    check(ends, seed_mean_within(expected["band"], "0.0 nats to a decimal"))


@claim("undivided-999-rows-hard")
@trains(BY_WIDTH_AND_RATE, *BY_RATE.values())
def test_999_rows_in_1000_of_the_unscaled_head_are_saturated(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """99.9 % of its rows put more than 0.99 of their weight on a single token.

    To the printed decimal, or more of them.
    """
    for rate, label in BY_RATE.items():
        band = every_seed_within(expected["band"], "99.9 % as it is rounded, up to all")
        check.under(rate)(at_the_end(runs, label, "saturated"), band)


def gradient_of_w_q(result: RunResult) -> float:
    """The norm of the gradient of W_q at the last snapshot that has gradients.

    Raises Missing for a run of the record that has none.
    """
    recorded = [s.gradients for s in result.snapshots if s.gradients is not None]
    if not recorded:
        raise Missing("the record has the run without its gradients")
    return recorded[-1][W_Q]


@claim("hard-head-gradient-near-zero")
@trains(DIVISION_RUNS, "1024, scaled", "1024, unscaled")
def test_the_gradient_of_a_hard_head_is_nearly_zero(
    implementation: Implementation, runs: Runs, check: Check, expected: Expected, rng: Draws
) -> None:
    """Once a head is a hard selector its gradient is nearly zero.

    The gradient of W_q after training, over that of the scaled head. And the derivative of the
    softmax in each saturated row, summed over the row, of which a soft row has 0.96.
    """
    unscaled, scaled = (
        runs.results(f"1024, {which}").map(gradient_of_w_q) for which in ("unscaled", "scaled")
    )
    small = every_seed_within((0.0, expected["most"]), "at most a tenth of the scaled head's")
    check.under("of its weights")(unscaled / scaled, small)
    rows = draw_rows(implementation.attention, 1024, rng.generator()).unscaled
    traces = jacobian_trace(rows[saturated(rows)])
    nearly_zero = within(0.0, expected["trace"], "1 - sum w^2 <= 1 - 0.99^2 = 0.0199")
    check.under("of its saturated rows")(traces, nearly_zero)


@claim("divided-stays-soft")
@trains(DIVISION_RUNS, "1024, scaled")
def test_the_scaled_head_stays_a_soft_blend(runs: Runs, check: Check, expected: Expected) -> None:
    """After the same training the scaled head is still a soft blend: few rows are saturated."""
    ends = at_the_end(runs, "1024, scaled", "saturated")
    check(ends, seed_mean_within(expected["band"], "fewer than half; below zero there is no share"))


@claim("divided-final-score-std-3.44")
@trains(BY_WIDTH_AND_RATE, *(label.replace("unscaled", "scaled") for label in BY_RATE.values()))
def test_the_scaled_scores_end_at_a_std_of_3_44(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """The scaled head has a score std of 3.44 after the same training.

    At the learning rate of l.13, beside the spread at the other rates.
    """
    ends, *others = (
        at_the_end(runs, label.replace("unscaled", "scaled"), "std") for label in BY_RATE.values()
    )
    because = "half of it: the unscaled scores are two hundred times as far apart"
    std = expected["value"]
    check(ends, printed_run(std, std / 2, because, like=tuple(others)))


@claim("large-starts-between-32-and-256")
@trains(
    DIVISION_RUNS, "32 of four heads, scaled", "32 of four heads, unscaled",
    "256, scaled", "256, unscaled", "1024, scaled", "1024, unscaled",
)
def test_large_starts_between_32_and_256(runs: Runs, check: Check, expected: Expected) -> None:
    """Large starts between 32 and 256: nothing at 32, everything by 256."""
    nothing = seed_mean_within(expected["at_32"], "nothing: points, 2 % of 38")
    check(points_lost(runs, "32 of four heads"), nothing)
    everything = seed_mean_within(expected["of_1024"], "of the order of what is lost at 1024")
    check(points_lost(runs, "256") / points_lost(runs, "1024"), everything)


@claim("large-at-128-is-a-matter-of-the-setting")
@trains(DIVISION_RUNS, "128, long, scaled", "128, long, unscaled", "128, scaled", "128, unscaled")
def test_whether_128_is_large_is_a_matter_of_the_setting(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """At d_k = 128 the division is worth nothing in one of the two settings, and much in the other.

    The row at 32 has LayerNorm before the projections and 3,000 steps; those at 256 and 1024 have
    neither.
    """
    nothing = seed_mean_within(expected["long"], "nothing: points, 2 % of 42")
    check(points_lost(runs, "128, long"), nothing)
    check(points_lost(runs, "128"), seed_mean_within(expected["short"], "clearly something"))
