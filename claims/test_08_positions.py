"""Section 8: no score mentions the position of a token; four ways to inject it.

Without positions, attention without a mask is permutation-equivariant, and a causal layer sees only
which tokens came before. Four schemes are trained on 64 tokens and evaluated at up to 256. Learned
embeddings win at the trained length and fail beyond it, sinusoids do not extrapolate, rotary
positions degrade gradually, and ALiBi improves with the window.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from claims.experiments.positions import LONGEST, NEAR, POSITION_RUNS, PRINTED_RUNS, SCHEMES
from claims.harness import (
    Check,
    Draws,
    Expected,
    PerSeed,
    claim,
    digits,
    exact,
    printed_run,
    rounding,
    seed_mean_within,
    trains,
    ulps,
    within,
)
from claims.harness.implementation import Implementation
from claims.harness.strategies import lengths, tensors
from claims.instruments.attention.activations import passing_through
from claims.instruments.attention.influence import before_and_after_permutation
from claims.instruments.attention.rotation import angles, pair_lengths, rotated
from claims.instruments.text.unigram import unigram_perplexity
from claims.training.batches import batches
from claims.training.results import Runs

SAME_SUMS = "k = 2: the same sums in another order"

# ---- l.155: no positions -----------------------------------------------------------------------


def language_model(implementation: Implementation, **changes: Any) -> Any:
    """A small model; by default without positions."""
    shape = {"vocabulary": 64, "context": 16, "d_model": 32, "positions": "none"}
    return implementation.LanguageModel(**(shape | changes))


def read_by_block_1(implementation: Implementation, model: Any, tokens: Tensor) -> Tensor:
    """(B, T, d): what the first block of a model reads."""
    first = implementation.part(model, "blocks")[0]
    return passing_through(first, lambda: model(tokens))[0]


def in_both_precisions(model: Any, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Logits in float32 and in float64."""
    with torch.no_grad():
        return model(tokens), copy.deepcopy(model).double()(tokens)


@claim("no-positions-still-trains")
@trains(POSITION_RUNS, "none")
def test_without_positions_the_model_still_trains(
    runs: Runs, check: Check, expected: Expected, tokens: Tensor
) -> None:
    """Without position embeddings the model still trains.

    Its perplexity is far below that of the token frequencies.
    """
    level = unigram_perplexity(tokens)
    share = runs.perplexities("none").map(lambda perplexity: perplexity / level)
    check(share, seed_mean_within(expected["band"], "less than half of it"))


@claim("no-positions-cannot-know-where")
def test_without_positions_a_model_cannot_know_where_anything_is(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Without positions a model cannot know where anything is.

    Twelve tokens, all the same but for the first. If positions cannot be known, the last eleven
    have one output. Of a head that gives every token it sees the same weight, and passes on the
    first alone, they have eleven under the causal mask: 1/2 to 1/12, from which t can be read off.
    """
    x = F.one_hot(torch.tensor([0, *[1] * 11]), 8).float()[None]
    outputs = {}
    for causal in (True, False):
        layer = rng.build(partial(implementation.MultiHeadAttention, 8, 1, causal=causal))
        layer.requires_grad_(False)
        nothing, identity = torch.zeros(8, 8), torch.eye(8)
        implementation.set_weights(layer, q=nothing, k=nothing, v=identity, o=identity)
        outputs[causal] = layer(x)[0, 1:, 0]
    check((1 / outputs[True]).round().int().tolist(), exact(list(range(2, 13))))
    check.under("of a causal model")(len(outputs[True].unique()), exact(1))
    check.under("of attention without a mask")(len(outputs[False].unique()), exact(1))


@claim("attention-permutation-equivariant")
def test_self_attention_without_mask_is_permutation_equivariant(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Permuting the input permutes the output: self-attention is permutation-equivariant.

    A whole layer of four heads, unmasked: shuffled tokens give the shuffled outputs of the tokens.
    The reference is the layer in float64.
    """
    layer = rng.build(lambda: implementation.MultiHeadAttention(32, 4, causal=False))
    x, order = rng.normal(16, 32, 32, salt="x"), rng.permutation(32)
    of_shuffled, plain = before_and_after_permutation(layer, x, order)
    _, reference = before_and_after_permutation(layer.double(), x.double(), order)
    check(of_shuffled.detach(), rounding(reference.detach(), plain.detach(), 2, SAME_SUMS))


@claim("score-does-not-mention-positions")
def test_equal_contents_at_different_positions_get_equal_scores(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Nothing in the score mentions t or i themselves.

    Twelve tokens of four kinds: a token's row and column of weights are those of the first token of
    its kind. Inputs and matrices are multiples of 1/64, which float64 adds exactly, so that equal
    contents have equal scores in any order of summation.
    """
    layer = rng.build(lambda: implementation.MultiHeadAttention(16, 4, causal=False)).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_((8 * parameter).round() / 64)
    kinds = torch.tensor([0, 1, 2, 3, 1, 1, 0, 3, 2, 0, 3, 2])
    contents = rng.integers(-4, 5, 4, 16).double()
    _, weights = layer(contents[kinds][None], return_weights=True)
    as_the_first = weights[..., kinds, :][..., kinds]  # tokens 0 to 3 are the first of their kinds
    because = "equal scores in a row have one maximum and one sum"
    check(weights, exact(as_the_first.detach(), because=because))


@claim("causal-mask-restores-some-order")
def test_the_causal_mask_restores_some_order(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """The causal mask restores some order: each position sees a different prefix.

    Eight tokens forwards and backwards: has each the same output both times, to a thousandth? That
    is far more than rounding, and a hundredth of the least that the mask changes. Without the mask
    all have. With it none has, not even the two at the ends: one sees only itself first, and the
    other then.
    """
    x = rng.normal(1, 8, 16, dtype=torch.float64)
    backwards = torch.arange(8).flip(0)
    same = {}
    for causal in (True, False):
        layer = rng.build(partial(implementation.MultiHeadAttention, 16, 2, causal=causal)).double()
        there, back = before_and_after_permutation(layer, x, backwards)
        same[causal] = ((there - back).abs().amax(-1) < 1e-3).flatten().tolist()
    check(same, exact({True: [False] * 8, False: [True] * 8}))


def last_logits_of_shuffled_prefix(
    implementation: Implementation, rng: Draws, n_blocks: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits after the last token: prefix shuffled, in order, in order in float64; (64, 64)."""
    model = rng.build(lambda: language_model(implementation, n_blocks=n_blocks))
    tokens, order = rng.integers(0, 64, 64, 16, salt="tokens"), rng.permutation(15)
    plain, reference = in_both_precisions(model, tokens)
    shuffled, _ = in_both_precisions(model, torch.cat([tokens[:, order], tokens[:, -1:]], 1))
    return shuffled[:, -1], plain[:, -1], reference[:, -1]


@claim("within-prefix-orderings-alike")
def test_within_a_prefix_all_orderings_are_alike(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Within a prefix all orderings are alike.

    The last token stays and those before it are shuffled. Refuted by a model of two blocks.
    """
    shuffled, plain, reference = last_logits_of_shuffled_prefix(implementation, rng, n_blocks=2)
    check(shuffled, rounding(reference, plain, 2, SAME_SUMS))


@claim("within-prefix-orderings-alike-in-one-layer")
def test_within_a_prefix_all_orderings_are_alike_for_one_layer(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """One causal layer sees which tokens came before, and not in which order.

    As above, with one block. The keys of a second block already depend on the prefixes.
    """
    shuffled, plain, reference = last_logits_of_shuffled_prefix(implementation, rng, n_blocks=1)
    check(shuffled, rounding(reference, plain, 2, SAME_SUMS))


# ---- l.157 and l.159: learned positions --------------------------------------------------------


@claim("positions-setting")
def test_four_schemes_are_trained_on_64_tokens_and_evaluated_beyond(
    check: Check, expected: Expected
) -> None:
    """Four ways, trained on windows of 64 tokens and evaluated at 64, 128 and 256.

    By the batches that the runs are given, and the evaluations that they ask for. 128 and 256 are
    beyond any length seen.
    """
    runs = {scheme: POSITION_RUNS["document"].runs[scheme] for scheme in expected["schemes"]}
    seen = [batches(run, torch.arange(1000))(0).shape[1] - 1 for run in runs.values()]
    scored = [[e.length for e in run.evaluations if e.stride is None] for run in runs.values()]
    check(seen, exact([expected["trained"]] * 4))
    check(scored, exact([expected["evaluated"]] * 4))
    check([n for n in expected["evaluated"] if n > max(seen)], exact(expected["beyond"]))


@claim("learned-positions-are-added")
def test_learned_positions_are_one_vector_each_added_to_the_token(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Learned absolute embeddings: one vector for each position, added to the token.

    What the first block reads is the token's row of one table plus the position's row of another.
    """
    model = rng.build(lambda: language_model(implementation, positions="learned"))
    tokens = rng.integers(0, 64, 2, 16, salt="tokens")
    read = read_by_block_1(implementation, model, tokens)
    table = implementation.weight(model, "position")
    check(list(table.shape), exact([16, 32]))
    embedded = implementation.weight(model, "token")[tokens]
    check(read, exact(embedded + table, because="one addition"))


@claim("learned-wins-at-64")
@trains(POSITION_RUNS, *SCHEMES)
def test_learned_positions_win_at_the_trained_length(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Learned absolute embeddings win at the trained length.

    By seed, the perplexity of the best of the other three over theirs.
    """
    learned, *others = (runs.perplexities(scheme) for scheme in SCHEMES)
    best = PerSeed(runs.seeds, map(min, zip(*others, strict=True)))
    check(best / learned, seed_mean_within(expected["band"], "above 1 where the learned ones win"))


def growth(runs: Runs, scheme: str, doublings: int) -> PerSeed[float]:
    """The perplexity at 2^doublings times the trained length over that at it, by seed."""
    evaluation = runs.specs(scheme)[0].evaluations[doublings]
    return runs.perplexities(scheme, evaluation) / runs.perplexities(scheme)


@claim("learned-falls-off-cliff")
@trains(POSITION_RUNS, "learned")
def test_learned_positions_fall_off_a_cliff(runs: Runs, check: Check, expected: Expected) -> None:
    """Beyond the trained length learned embeddings fall off a cliff: at twice the length."""
    band = seed_mean_within(expected["band"], "a cliff: at least a fifth worse")
    check(growth(runs, "learned", 1), band)


def table_of_256(implementation: Implementation) -> Any:
    """A small model with a table as long as the longest window that the document evaluates."""
    return implementation.LanguageModel(vocabulary=16, context=256, d_model=8, n_heads=2)


def train(model: Any, optimizer: torch.optim.Optimizer, tokens: Tensor, steps: int) -> None:
    """Next-token steps on one batch (B, T + 1); the last step's gradients remain."""
    for _ in range(steps):
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        torch.autograd.backward(loss)
        optimizer.step()


@claim("position-100-never-trained")
def test_position_100_is_still_the_random_vector_it_started_with(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Position 100 was never in a batch, and its embedding is still the vector it started with.

    Twenty steps of AdamW on windows of 64 tokens. The rows from 64 on get a gradient of exactly
    zero, so that what changes them is the weight decay alone.
    """
    default = torch.optim.AdamW([torch.zeros(1)]).defaults["weight_decay"]
    for setting, decay in {"none": 0.0, "PyTorch's default": default}.items():
        model = rng.build(lambda: table_of_256(implementation))
        before = implementation.weight(model, "position").clone()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=decay)
        train(model, optimizer, rng.integers(0, 16, 4, 65), steps=20)
        gradients = {parameter: parameter.grad for parameter in model.parameters()}
        gradient = implementation.gradient(model, "position", gradients)
        check(gradient[64:], exact(torch.zeros(192, 8), because="no path leads to the loss"))
        row = expected["position"]
        same = exact(before[row], because="a vector that nothing changed")
        check.under(setting)(implementation.weight(model, "position")[row], same)


@claim("position-100-shrinks-by-the-decay")
def test_position_100_shrinks_by_the_decay_alone(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """By default AdamW shrinks position 100 by 1 - lr * decay a step: to 0.970 in 3000 steps.

    Measured after twenty steps, each of which rounds the factor and the product by at most u. The
    0.970 is arithmetic.
    """
    model = rng.build(lambda: table_of_256(implementation))
    before = implementation.weight(model, "position")[expected["position"]].double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(model, optimizer, rng.integers(0, 16, 4, 65), steps=20)
    factor = 1 - 1e-3 * optimizer.defaults["weight_decay"]
    row = implementation.weight(model, "position")[expected["position"]]
    check(row, ulps(before * factor**20, 2 * 20, "two roundings in each of 20 steps"))
    check(factor ** expected["steps"], digits(expected["left"], 3))


@claim("positions-past-the-table")
def test_a_position_past_the_table_is_refused_with_both_lengths(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """65 tokens for a table of 64: a ValueError that names both, before anything is looked up.

    The tokens are not in the vocabulary either, so that a look-up would fail in another way.
    """
    model = rng.build(lambda: language_model(implementation, positions="learned", context=64))
    table = rng.build(lambda: implementation.LearnedPositions(64, 8))
    refusals = (ValueError, IndexError, RuntimeError, AssertionError)
    with pytest.raises(refusals) as of_the_model:
        model(torch.full((1, 65), 999))
    with pytest.raises(refusals) as of_the_table:
        table(65)
    faults = (of_the_model, of_the_table)
    check([isinstance(fault.value, ValueError) for fault in faults], exact([True] * 2))
    said = [str(fault.value) for fault in faults]
    check([number in text for text in said for number in ("64", "65")], exact([True] * 4))


# ---- l.159: sinusoids --------------------------------------------------------------------------


def parameters_with(implementation: Implementation, positions: str) -> int:
    with torch.device("meta"):
        model = language_model(implementation, positions=positions)
    return int(implementation.count_parameters(model))


@claim("sinusoids-computed")
def test_sinusoids_are_computed_at_geometrically_spaced_frequencies(
    implementation: Implementation, check: Check
) -> None:
    """Sinusoids are computed, not learned, from sines and cosines at geometric frequencies.

    The model has as many parameters as one without positions. Row 1 gives the frequencies, each
    10,000^(-2/d) times the one before. Rounding: 13 u in a frequency (base to a rounded power:
    ln(10,000) + 2 + 2), 2 u in a sine or cosine, on both sides; twice that in a quotient.
    """
    without = exact(parameters_with(implementation, "none"))
    check(parameters_with(implementation, "sinusoidal"), without)
    table = implementation.sinusoidal_positions(201, 16)
    t = torch.arange(201)
    formula = torch.stack([angles(t, 16).sin(), angles(t, 16).cos()], -1).flatten(-2)
    check(table, ulps(formula, 30, "Vaswani et al. 2017, section 3.5", scale=1 + t[:, None]))
    frequencies = torch.atan2(table[1, 0::2], table[1, 1::2])
    quotients = frequencies[1:] / frequencies[:-1]
    constant = torch.full((7,), 10_000.0 ** (-2 / 16), dtype=torch.float64)
    check(quotients, ulps(constant, 60, "two frequencies of 30 u each"))


@claim("sinusoids-defined-at-200")
def test_the_sinusoid_is_defined_at_position_200(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """The sinusoid is defined at position 200, and a model with a context of 64 adds it there."""
    position = expected["position"]
    sinusoids = implementation.sinusoidal_positions(position + 1, 32)
    check(sinusoids[position], within(-1, 1, "sines and cosines"))
    model = rng.build(lambda: language_model(implementation, positions="sinusoidal", context=64))
    tokens = rng.integers(0, 64, 1, position + 1, salt="tokens")
    embedded = implementation.weight(model, "token")[tokens]
    read = read_by_block_1(implementation, model, tokens)
    check(read, exact(embedded + sinusoids, because="one addition"))
    check(bool(model(tokens).isfinite().all()), exact(True))


@claim("sinusoids-do-not-extrapolate")
@trains(POSITION_RUNS, "sinusoidal")
def test_sinusoids_do_not_extrapolate(runs: Runs, check: Check, expected: Expected) -> None:
    """Sinusoids do not extrapolate: at four times the length they are clearly worse."""
    band = seed_mean_within(expected["band"], "clearly worse: by at least a tenth")
    check(growth(runs, "sinusoidal", 2), band)


# ---- l.159: rotary positions -------------------------------------------------------------------
#
# Bounds in float64. An angle is the product of a position t and a frequency of at most 1, with an
# error of t u; where the frequency itself is computed twice, 13 u t more on either side (see
# sinusoids). Sine and cosine are 2 u off, a rotated number 6 u of its pair's length. A sum of d
# products is d u off.

POSITIONS = st.integers(0, 1000)
VECTOR = tensors(1, 8, dtype=torch.float64)
VECTORS = tensors(lengths(4), 8, dtype=torch.float64)


@claim("rope-adds-nothing")
def test_rotary_positions_add_nothing_and_have_no_table(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """RoPE adds nothing to the input and has no table to run out of.

    The first block reads the token embeddings themselves, no parameter is added, and a model with a
    context of 16 runs on 48 tokens.
    """
    model = rng.build(lambda: language_model(implementation, positions="rotary", context=16))
    tokens = rng.integers(0, 64, 2, 48, salt="tokens")
    read = read_by_block_1(implementation, model, tokens)
    embedded = implementation.weight(model, "token")[tokens]
    check(read, exact(embedded, because="nothing is added"))
    without = exact(parameters_with(implementation, "none"))
    check(parameters_with(implementation, "rotary"), without)


@claim("rope-rotates-2d-slices")
@settings(max_examples=30)
@given(x=VECTORS, start=POSITIONS)
def test_rotary_positions_turn_two_dimensional_slices(
    implementation: Implementation, check: Check, x: Tensor, start: int
) -> None:
    """RoPE turns slices of two dimensions by an angle proportional to the position.

    Features 2j and 2j+1 as one complex number, times e^(i t theta_j): the rotation as Su et al.
    define it.
    """
    t = start + torch.arange(len(x))
    scale = (1 + t[:, None]) * pair_lengths(x)
    derived = ulps(rotated(x, angles(t, 8)), 40, "2 * (14 t + 6) u", scale=scale)
    check(implementation.rotate(x, t), derived)


def rotary_score(implementation: Implementation, q: Tensor, k: Tensor, t: int, i: int) -> Tensor:
    """The product of q (1, d) turned to position t and k (1, d) turned to position i."""
    (at_t,), (at_i,) = (
        implementation.rotate(x, torch.tensor([position])) for x, position in ((q, t), (k, i))
    )
    product: Tensor = at_t @ at_i
    return product


@claim("rope-equal-rotation-invariance")
@settings(max_examples=30)
@given(q=VECTOR, k=VECTOR, t=POSITIONS)
def test_turning_both_sides_alike_leaves_the_product(
    implementation: Implementation, check: Check, q: Tensor, k: Tensor, t: int
) -> None:
    """Turning both sides of a dot product equally leaves it unchanged."""
    because = "one angle on both sides; rotations 2 * 6 u and 4 u, two sums of 8 u"
    turned = rotary_score(implementation, q, k, t, t)
    check(turned, ulps(q[0] @ k[0], 32, because, scale=q.norm() * k.norm()))


@claim("rope-relative")
@settings(max_examples=30)
@given(q=VECTOR, k=VECTOR, t=POSITIONS, i=POSITIONS, s=POSITIONS)
def test_the_rotary_score_depends_on_the_difference_alone(
    implementation: Implementation, check: Check, q: Tensor, k: Tensor, t: int, i: int, s: int
) -> None:
    """With RoPE the score depends only on t - i: moving both by s changes nothing."""
    here, there = (rotary_score(implementation, q, k, t + by, i + by) for by in (0, s))
    scale = (1 + max(t, i) + s) * q.norm() * k.norm()
    because = "four angles, at most the last position's u each; four rotations, two sums"
    check(there, ulps(here, 48, because, scale=scale))


def log_band(band: Sequence[float], because: str) -> seed_mean_within:
    """For the logarithms of ratios: the band is that of the ratios."""
    low, high = (math.log(side) for side in band)
    return seed_mean_within((low, high), because)


@claim("rope-degrades")
@trains(POSITION_RUNS, "rotary", "learned")
def test_rotary_positions_degrade_gradually(runs: Runs, check: Check, expected: Expected) -> None:
    """Rotary positions degrade beyond the trained length, but gradually.

    At four times the length they are worse than at the trained one, but less so than the learned
    ones. In logarithms of ratios.
    """
    rotary, learned = (growth(runs, scheme, 2) for scheme in ("rotary", "learned"))
    worse = log_band(expected["worse"], "worse, by no more than the length grows")
    check(rotary.map(math.log), worse)
    gentler = log_band(expected["gentler"], "less than the cliff's")
    check((rotary / learned).map(math.log), gentler)


# ---- l.159: ALiBi ------------------------------------------------------------------------------


@claim("alibi-linear-penalty")
@settings(max_examples=30)
@given(n=lengths(12), older=st.integers(0, 12))
def test_alibi_is_a_linear_penalty_on_the_distance(
    implementation: Implementation, check: Check, n: int, older: int
) -> None:
    """ALiBi is a linear penalty on the score, proportional to the distance.

    Eight heads, every past key of the last n of n + older tokens: -2^-h (t - i).
    """
    bias = implementation.alibi_bias(8, n, n + older)
    distance = torch.arange(n)[:, None] + older - torch.arange(n + older)
    slopes = torch.tensor([2.0**-h for h in range(1, 9)])[:, None, None]
    penalty = torch.where(distance >= 0, -slopes * distance, 0.0)
    because = "powers of two times whole numbers are floats"
    check(torch.where(distance >= 0, bias, 0.0), exact(penalty, because=because))


@claim("alibi-slope-per-head")
def test_each_head_has_its_own_slope(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Each head has a different slope, for any number of heads up to 32; four have 1/4 to 1/256."""
    distinct = [len(set(implementation.alibi_slopes(h).tolist())) for h in range(1, 33)]
    check(distinct, exact(list(range(1, 33))))
    four = [1 / slope for slope in implementation.alibi_slopes(4).tolist()]
    check(four, exact([float(s) for s in expected["one_over"]], because="powers of two"))


def alibi_as_printed(runs: Runs, perplexity: float) -> printed_run:
    """Beside the relative spread of the other schemes at the trained length."""
    like = tuple(runs.perplexities(scheme) for scheme in (*SCHEMES[:3], "none"))
    return printed_run(perplexity, 0.05, "5 %: the gain from 64 to 256", relative=True, like=like)


@claim("alibi-improves-with-the-window")
@trains(POSITION_RUNS, "alibi")
def test_alibi_improves_with_the_window(runs: Runs, check: Check, expected: Expected) -> None:
    """ALiBi improves as the window grows beyond the training length.

    The perplexity at twice the trained length over that at it, and that at four times over twice.
    """
    once, twice = growth(runs, "alibi", 1), growth(runs, "alibi", 2)
    band = seed_mean_within(expected["band"], "an improvement, and one of a few per cent")
    check(once, band, unit="twice over once")
    check(twice / once, band, unit="four times over twice")


@claim("alibi-44.95-at-64")
@trains(PRINTED_RUNS, *SCHEMES, "none")
def test_alibi_has_a_perplexity_of_44_95_at_64(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """At 64 tokens ALiBi has a perplexity of 44.95."""
    check(runs.perplexities("alibi"), alibi_as_printed(runs, expected["value"]))


@claim("alibi-42.49-at-256")
@trains(PRINTED_RUNS, *SCHEMES, "none")
def test_alibi_has_a_perplexity_of_42_49_at_256(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """At 256 tokens ALiBi has a perplexity of 42.49."""
    at_256 = runs.perplexities("alibi", LONGEST["document"][0])
    check(at_256, alibi_as_printed(runs, expected["value"]))


@claim("alibi-improves-because-defined-at-any-distance")
@trains(POSITION_RUNS, "alibi")
def test_alibi_improves_because_its_penalty_is_defined_at_any_distance(
    runs: Runs, budget: str, check: Check, expected: Expected
) -> None:
    """It improves because the penalty is defined at any distance, and each head goes on as trained.

    In windows of the trained length, the last quarter of the tokens has nearly all of the window as
    context. Scoring these alone gives most of the gain, at distances that were trained. The last
    tokens of windows four times as long, at distances that were not, are predicted as well.
    """
    at_trained, near = runs.perplexities("alibi"), runs.perplexities("alibi", NEAR[budget])
    longest, last = (runs.perplexities("alibi", evaluation) for evaluation in LONGEST[budget])
    beyond = (near - longest) / (at_trained - longest)
    most = seed_mean_within(expected["share"], "most of the gain is of other distances")
    check.under("where the gain comes from")(beyond, most)
    as_well = seed_mean_within(expected["last"], "no more than 2 %, either way")
    check.under("why nothing is lost")(last / near, as_well)


@claim("alibi-best-beyond-length")
@trains(POSITION_RUNS, *SCHEMES)
def test_alibi_is_the_best_of_the_four_at_256(
    runs: Runs, budget: str, check: Check, expected: Expected
) -> None:
    """ALiBi is the best of the four at four times the trained length.

    By seed, the logarithm of the best of the other three perplexities over its own.
    """
    longest = LONGEST[budget][0]
    *others, alibi = (runs.perplexities(scheme, longest) for scheme in SCHEMES)
    best = PerSeed(runs.seeds, map(min, zip(*others, strict=True)))
    band = log_band(expected["band"], "above 1 where ALiBi is best")
    check((best / alibi).map(math.log), band)


# ---- l.161: longer contexts --------------------------------------------------------------------


@claim("position-interpolation")
@settings(max_examples=30)
@given(x=VECTORS, start=st.integers(0, 252))
def test_dividing_positions_is_dividing_frequencies(
    implementation: Implementation, check: Check, x: Tensor, start: int
) -> None:
    """Positions divided by s are positions under frequencies divided by s: no new rotation.

    256 positions within the angles of 64, against the rotation with frequencies four times lower.
    """
    t = start + torch.arange(len(x))
    scale = (1 + t[:, None]) * pair_lengths(x)
    slower = ulps(rotated(x, angles(t, 8) / 4), 40, "2 * (14 t + 6) u", scale=scale)
    check(implementation.rotate(x, t / 4.0), slower)
