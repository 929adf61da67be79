"""Section 8: nothing in the score says where a token stands; four ways to tell it.

Without positions, attention without a mask is blind to order, and one causal layer sees only which
tokens came before. A learned table has nothing for a position that no batch ever reached; sines and
cosines are defined there; rotary positions make the score depend on a difference; ALiBi takes a
multiple of the distance off it. What the four are worth beyond the trained length needs training.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from claims.experiments.positions import LONGEST, NEAR, POSITION_RUNS, SCHEMES
from claims.harness import (
    Check,
    Draws,
    Expected,
    PerSeed,
    claim,
    digits,
    every_seed_within,
    exact,
    rounding,
    seed_mean_within,
    trains,
    ulps,
    within,
)
from claims.harness.implementation import Implementation
from claims.harness.strategies import lengths, tensors
from claims.instruments.attention.activations import passing_through
from claims.instruments.attention.influence import before_and_after_permutation, influence
from claims.instruments.text.unigram import unigram_perplexity
from claims.training.results import Runs

SAME_SUMS = "k = 2: the same sums in another order"
POSITIONS = st.integers(0, 1000)
VECTOR = tensors(1, 8, dtype=torch.float64)
FEW = settings(max_examples=30)  # every example decides alone; the bounds leave no luck


# ---- no positions ------------------------------------------------------------------------------


@claim("attention-permutation-equivariant")
def test_self_attention_without_mask_is_permutation_equivariant(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Self-attention without positions is permutation-equivariant.

    A whole layer of four heads, unmasked: what it makes of shuffled tokens is, shuffled, what it
    makes of the tokens. Reference: the layer in float64.
    """
    layer = rng.build(lambda: implementation.MultiHeadAttention(32, 4, causal=False))
    x, order = rng.normal(16, 32, 32, salt="x"), rng.permutation(32)
    of_shuffled, plain = before_and_after_permutation(layer, x, order)
    _, reference = before_and_after_permutation(_double(layer), x.double(), order)
    check(of_shuffled.detach(), rounding(reference.detach(), plain.detach(), 2, SAME_SUMS))


@claim("permuting-the-input-permutes-the-output")
def test_permuting_the_input_of_the_model_permutes_its_output(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Take the position embeddings away, and permuting the input permutes the output.

    The same comparison on the chapter's model, whose attention is causal.
    """
    model = rng.build(lambda: _language_model(implementation, n_blocks=1))
    tokens, order = rng.integers(0, 64, 64, 16, salt="tokens"), rng.permutation(16)
    plain, reference = _in_both_precisions(model, tokens)
    of_shuffled, _ = _in_both_precisions(model, tokens[:, order])
    check(of_shuffled, rounding(reference[:, order], plain[:, order], 2, SAME_SUMS))


@claim("score-does-not-mention-positions")
def test_equal_contents_at_different_positions_get_equal_scores(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Nothing in the score mentions t or i themselves.

    Twelve tokens of four kinds: a token's row and column of weights are those of the first token of
    its kind. Inputs and matrices are multiples of 1/64, of which float64 sums are exact, so that
    equal contents have equal scores whatever the order of summation.
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
def test_the_causal_mask_shows_each_position_another_prefix(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """The causal mask restores some order: each position sees a different prefix.

    Entry [t, i] says whether token i moves output t: exactly the triangle, no two rows alike.
    """
    layer = rng.build(lambda: implementation.MultiHeadAttention(8, 2))
    moved = influence(layer, rng.normal(1, 6, 8, salt="x")) > 0
    check(moved, exact(torch.ones(6, 6).tril().bool()))


@claim("within-prefix-orderings-alike")
def test_within_a_prefix_all_orderings_are_alike(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Within a prefix all orderings are alike.

    The last token stays, those before it are shuffled, in a model of two blocks.
    """
    shuffled, plain, reference = _last_logits_of_shuffled_prefix(implementation, rng, n_blocks=2)
    check(shuffled, rounding(reference, plain, 2, SAME_SUMS))


@claim("within-prefix-orderings-alike-in-one-layer")
def test_within_a_prefix_all_orderings_are_alike_for_one_layer(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """One causal layer sees which tokens came before, and not in which order.

    As above with one block. In a second, the keys are already what the first made of prefixes.
    """
    shuffled, plain, reference = _last_logits_of_shuffled_prefix(implementation, rng, n_blocks=1)
    check(shuffled, rounding(reference, plain, 2, SAME_SUMS))


@claim("evaluated-beyond-any-length-seen")
def test_the_four_are_evaluated_beyond_any_length_that_they_saw(
    check: Check, expected: Expected
) -> None:
    """Trained on 64 tokens, evaluated at 64, 128 and 256: beyond any length that they have seen."""
    longer = [length > expected["trained"] for length in expected["evaluated"]]
    check(longer, exact([True, True, True]))


# ---- a learned table ---------------------------------------------------------------------------


@claim("position-100-never-trained")
def test_position_100_is_still_the_random_vector_it_started_with(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Position 100 was never in a batch, and its embedding is still the vector it started with.

    Twenty steps of AdamW as PyTorch has it by default, on windows of 64 tokens.
    """
    model = rng.build(lambda: _table_of_256(implementation))
    row = model.position.table.weight[expected["position"]]
    before = row.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    _train(model, optimizer, rng.integers(0, 16, 4, 65), steps=20)
    check(row.detach(), exact(before, because="a vector that nothing touched"))


@claim("position-100-unchanged-without-decay")
def test_position_100_is_unchanged_without_weight_decay(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Without weight decay, position 100 keeps every bit: its gradient is exactly zero.

    Every row from 64 on, after the same steps; a zero gradient moves nothing in Adam.
    """
    model = rng.build(lambda: _table_of_256(implementation))
    table, window = model.position.table.weight, expected["window"]
    before = table.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    _train(model, optimizer, rng.integers(0, 16, 4, window + 1), steps=20)
    zero = torch.zeros(256 - window, 8)
    check(table.grad[window:], exact(zero, because="no path leads from these rows to the loss"))
    check(table[window:].detach(), exact(before[window:], because="x - lr * 0 is x"))


@claim("position-100-shrinks-by-the-decay")
def test_position_100_shrinks_by_the_decay_alone(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """By default AdamW shrinks position 100 by 1 - lr * decay a step: to 0.970 in 3000 steps.

    Twenty steps on the model; a step rounds the factor and the product, each by at most u. The
    factor's digits are arithmetic.
    """
    model = rng.build(lambda: _table_of_256(implementation))
    row = model.position.table.weight[expected["position"]]
    before = row.detach().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    _train(model, optimizer, rng.integers(0, 16, 4, 65), steps=20)
    factor = 1 - 1e-3 * optimizer.defaults["weight_decay"]
    check(row.detach(), ulps(before * factor**20, 2 * 20, "two roundings in each of 20 steps"))
    check(factor ** expected["steps"], digits(expected["left"], 3))


@claim("positions-past-the-table")
def test_a_position_past_the_table_is_refused_with_both_lengths(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """65 tokens for a table of 64: a ValueError that names both, before anything is looked up.

    The tokens are not in the vocabulary either, so that a look-up would complain about them.
    """
    model = rng.build(lambda: _language_model(implementation, positions="learned", context=64))
    table = rng.build(lambda: implementation.LearnedPositions(64, 8))
    with pytest.raises(ValueError, match=r"\d") as of_the_model:
        model(torch.full((1, 65), 999))
    with pytest.raises(ValueError, match=r"\d") as of_the_table:
        table(65)
    said = [str(fault.value) for fault in (of_the_model, of_the_table)]
    check([number in text for text in said for number in ("64", "65")], exact([True] * 4))


# ---- sinusoids ---------------------------------------------------------------------------------


@claim("sinusoids-computed")
def test_sinusoids_are_computed_at_geometrically_spaced_frequencies(
    implementation: Implementation, check: Check
) -> None:
    """Sinusoids are computed, not learned, from sines and cosines at geometric frequencies.

    The model has no more parameters than one without positions. Row 1 holds the frequencies, each
    10,000^(-2/d) times the one before. Rounding: 13 u of a frequency (base to a rounded power:
    ln(10,000) + 2 + 2), 2 u of sine or cosine, on both sides; twice that in a quotient.
    """
    check(*_parameters(implementation, "sinusoidal"))
    table = implementation.sinusoidal_positions(201, 16)
    t = torch.arange(201, dtype=torch.float64)[:, None]
    angles = t * 10_000.0 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    formula = torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)
    check(table, ulps(formula, 30, "Vaswani et al. 2017, section 3.5", scale=1 + t))
    frequencies = torch.atan2(table[1, 0::2], table[1, 1::2])
    quotients = frequencies[1:] / frequencies[:-1]
    constant = torch.full((7,), 10_000.0 ** (-2 / 16), dtype=torch.float64)
    check(quotients, ulps(constant, 60, "two frequencies of 30 u each"))


@claim("sinusoids-defined-at-200")
def test_the_sinusoid_is_defined_at_position_200(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """The sinusoid is defined at position 200, and a model with a context of 64 runs that far."""
    position = expected["position"]
    row = implementation.sinusoidal_positions(position + 1, 32)[position]
    check(row, within(-1, 1, "sines and cosines"))
    model = rng.build(lambda: _language_model(implementation, positions="sinusoidal", context=64))
    logits = model(rng.integers(0, 64, 1, position + 1, salt="tokens"))
    check(bool(logits.isfinite().all()), exact(True))


# ---- rotary ------------------------------------------------------------------------------------
# Bounds in float64. An angle is the product of a position t and a frequency of at most 1: t u in
# error; where the frequency itself is computed twice, 13 u t more on either side (see sinusoids).
# Sine and cosine are 2 u off, a rotated number 6 u of its pair's length. Sums of d products: d u.


@claim("rope-adds-nothing")
def test_rotary_positions_add_nothing_and_have_no_table(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """RoPE adds nothing to the input and has no table to run out of.

    The first block reads the token embeddings themselves, no parameter is added, and a model with a
    context of 16 runs on 48 tokens.
    """
    model = rng.build(lambda: _language_model(implementation, positions="rotary", context=16))
    tokens = rng.integers(0, 64, 2, 48, salt="tokens")
    read, _ = passing_through(model.blocks[0], lambda: model(tokens))
    check(read, exact(model.token(tokens).detach(), because="nothing is added"))
    check(*_parameters(implementation, "rotary"))


@claim("rope-rotates-2d-slices")
def test_rotary_positions_turn_two_dimensional_slices(
    implementation: Implementation, check: Check
) -> None:
    """RoPE turns slices of two dimensions by an angle proportional to the position.

    Features 2j and 2j+1 as one complex number, times e^(i t theta_j): the rotation as Su et al.
    define it.
    """

    @FEW
    @given(x=tensors(lengths(4), 8, dtype=torch.float64), start=POSITIONS)
    def every_vector(x: Tensor, start: int) -> None:
        t = start + torch.arange(len(x))
        turned = _pairs(x) * torch.polar(torch.ones(len(x), 4, dtype=torch.float64), _angles(t))
        scale = (1 + t[:, None]) * _pair_lengths(x)
        expected = torch.view_as_real(turned).flatten(-2)
        check(implementation.rotate(x, t), ulps(expected, 40, "2 * (14 t + 6) u", scale=scale))

    every_vector()


@claim("rope-keeps-norms")
def test_rotary_positions_keep_the_norm(implementation: Implementation, check: Check) -> None:
    """A rotation keeps the length of a vector, at any position."""

    @FEW
    @given(x=tensors(lengths(4), 8, dtype=torch.float64), start=POSITIONS)
    def every_vector(x: Tensor, start: int) -> None:
        turned = implementation.rotate(x, start + torch.arange(len(x)))
        because = "cos^2 + sin^2 is 4 u off, a pair 6 u; two norms of 8 numbers, 8 u each"
        check(turned.norm(dim=-1), ulps(x.norm(dim=-1), 32, because))

    every_vector()


@claim("rope-rotations-compose")
def test_rotations_compose(implementation: Implementation, check: Check) -> None:
    """Turned to position a and then by b more is turned to a + b: the angle is proportional."""

    @FEW
    @given(x=VECTOR, a=POSITIONS, b=POSITIONS)
    def every_vector(x: Tensor, a: int, b: int) -> None:
        twice = implementation.rotate(implementation.rotate(x, _at(a)), _at(b))
        once = implementation.rotate(x, _at(a + b))
        scale = (1 + a + b) * _pair_lengths(x)
        check(twice, ulps(once, 20, "angles 2 (a + b) u, three rotations 6 u each", scale=scale))

    every_vector()


@claim("rope-equal-rotation-invariance")
def test_turning_both_sides_alike_leaves_the_product(
    implementation: Implementation, check: Check
) -> None:
    """Turning both sides of a dot product equally leaves it unchanged."""

    @FEW
    @given(q=VECTOR, k=VECTOR, t=POSITIONS)
    def every_pair(q: Tensor, k: Tensor, t: int) -> None:
        because = "one angle on both sides; rotations 2 * 6 u and 4 u, two sums of 8 u"
        turned = _score(implementation, q, k, t, t)
        check(turned, ulps(q[0] @ k[0], 32, because, scale=q.norm() * k.norm()))

    every_pair()


@claim("rope-relative")
def test_the_rotary_score_depends_on_the_difference_alone(
    implementation: Implementation, check: Check
) -> None:
    """With RoPE the score depends only on t - i: moving both by s changes nothing."""

    @FEW
    @given(q=VECTOR, k=VECTOR, t=POSITIONS, i=POSITIONS, s=POSITIONS)
    def every_pair(q: Tensor, k: Tensor, t: int, i: int, s: int) -> None:
        here, there = (_score(implementation, q, k, t + by, i + by) for by in (0, s))
        scale = (1 + max(t, i) + s) * q.norm() * k.norm()
        because = "four angles, at most the last position's u each; four rotations, two sums"
        check(there, ulps(here, 48, because, scale=scale))

    every_pair()


@claim("rope-relative-in-the-layer")
def test_the_layers_scores_name_only_the_difference(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """The layer's score is Re sum q_j conj(k_j) e^(i (t - i) theta_j): only t - i occurs in it.

    The weights of two heads against that formula, with the layer's own queries and keys. The plain
    computation is the formula in float32.
    """
    layer = rng.build(lambda: implementation.MultiHeadAttention(16, 2, positions="rotary"))
    x = rng.normal(16, 24, 16, salt="x")
    _, weights = layer(x, return_weights=True)
    plain, reference = (_rotary_weights(each, x.to(each.q.weight.dtype)) for each in _both(layer))
    because = "k = 4: twice for another order, twice because it turns both sides, the formula once"
    check(weights.detach(), rounding(reference, plain, 4, because))


@claim("rope-pairings-agree")
def test_the_two_pairings_agree_under_one_permutation(
    implementation: Implementation, check: Check
) -> None:
    """Pairs (2j, 2j+1) and pairs (j, j + d/2) are the same rotation of reordered features."""

    @FEW
    @given(x=tensors(lengths(4), 8, dtype=torch.float64))
    def every_vector(x: Tensor) -> None:
        halves = torch.cat([torch.arange(0, 8, 2), torch.arange(1, 8, 2)])
        t = torch.arange(len(x))
        scale = ((1 + t[:, None]) * _pair_lengths(x))[:, halves]
        reordered = implementation.rotate(x)[:, halves]
        expected = _rotate_halves(x[:, halves], t)
        check(reordered, ulps(expected, 40, "2 * (14 t + 6) u", scale=scale))

    every_vector()


@claim("rope-mixed-pairings-show")
def test_mixed_pairings_break_the_relative_score(
    implementation: Implementation, check: Check
) -> None:
    """A query turned in one pairing and a key in the other: the score is not relative any more.

    Two equal unit vectors at the same place t should score 1. Mixed, both keep cos(t) of the first
    feature and lose the rest to different features: cos(t)^2, so 0.29 at t = 1.
    """
    unit = torch.eye(4, dtype=torch.float64)[:1]
    mixed = implementation.rotate(unit, _at(1))[0] @ _rotate_halves(unit, _at(1))[0]
    check(mixed, ulps(math.cos(1) ** 2, 24, "two cosines 2 u each, four products and sums"))


@claim("position-interpolation")
def test_dividing_positions_is_dividing_frequencies(
    implementation: Implementation, check: Check
) -> None:
    """Positions divided by s are positions under frequencies divided by s: no new rotation.

    256 positions squeezed into the angles of 64, against the rotation with slower frequencies.
    """

    @FEW
    @given(x=tensors(lengths(4), 8, dtype=torch.float64), start=st.integers(0, 252))
    def every_window(x: Tensor, start: int) -> None:
        t = start + torch.arange(len(x))
        slower = torch.polar(torch.ones(len(x), 4, dtype=torch.float64), _angles(t) / 4)
        expected = torch.view_as_real(_pairs(x) * slower).flatten(-2)
        scale = (1 + t[:, None]) * _pair_lengths(x)
        squeezed = implementation.rotate(x, t / 4.0)
        check(squeezed, ulps(expected, 40, "2 * (14 t + 6) u", scale=scale))

    every_window()


# ---- ALiBi -------------------------------------------------------------------------------------


@claim("alibi-linear-penalty")
def test_alibi_is_a_linear_penalty_on_the_distance(
    implementation: Implementation, check: Check
) -> None:
    """ALiBi is a linear penalty on the score, proportional to the distance.

    Eight heads, every past key of the last n of m tokens: -2^-h (t - i), and along the keys the
    second difference is zero.
    """

    @FEW
    @given(n=lengths(12), older=st.integers(0, 12))
    def every_window(n: int, older: int) -> None:
        bias = implementation.alibi_bias(8, n, n + older)
        distance = torch.arange(n)[:, None] + older - torch.arange(n + older)
        slopes = torch.tensor([2.0**-h for h in range(1, 9)])[:, None, None]
        because = "powers of two times whole numbers, and their differences, are floats"
        expected = torch.where(distance >= 0, -slopes * distance, 0.0)
        check(torch.where(distance >= 0, bias, 0.0), exact(expected, because=because))
        check(bool((bias[:, -1].diff(n=2) == 0).all()), exact(True))

    every_window()


@claim("alibi-slope-per-head")
def test_each_head_has_its_own_slope(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Each head has a different slope, for any number of heads up to 32; four have 1/4 to 1/256."""
    distinct = [len(set(implementation.alibi_slopes(h).tolist())) for h in range(1, 33)]
    check(distinct, exact(list(range(1, 33))))
    four = [1 / slope for slope in implementation.alibi_slopes(4).tolist()]
    check(four, exact([float(s) for s in expected["one_over"]], because="powers of two"))


@claim("alibi-eight-heads")
def test_eight_heads_have_slopes_one_half_to_one_256th(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Eight heads: 2^-1 to 2^-8, to the bit; the first is a half, not one."""
    derived = [2.0**-exponent for exponent in expected["exponents"]]
    slopes = implementation.alibi_slopes(8).tolist()
    check(slopes, exact(derived, because="powers of two"))


@claim("alibi-other-numbers-of-heads")
def test_other_numbers_of_heads_interleave_the_next_power_of_two(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """12 heads: the eight slopes of 8, then the 1st, 3rd, 5th and 7th of 16.

    With h a power of two the exponents are 8/h, 16/h, ..., 8. Otherwise those of the power of two
    below come first, and every second one of the power above fills up: 12 = 8 + 4, 6 = 4 + 2,
    3 = 2 + 1. The exponents are halves, so that their digits decide.
    """
    exponents = {
        heads: (-implementation.alibi_slopes(int(heads)).double().log2()).tolist()
        for heads in expected["exponents"]
    }
    check(exponents, digits(expected["exponents"], 4))


@claim("alibi-bias-shape")
def test_the_bias_has_one_plane_per_head(implementation: Implementation, check: Check) -> None:
    """The bias is (heads, n, m), whatever the number of heads and of tokens."""

    @FEW
    @given(heads=lengths(20), n=lengths(12), older=st.integers(0, 12))
    def every_shape(heads: int, n: int, older: int) -> None:
        bias = implementation.alibi_bias(heads, n, n + older)
        check(list(bias.shape), exact([heads, n, n + older]))

    every_shape()


@claim("alibi-in-the-layer")
def test_the_layer_takes_each_heads_penalty_off_its_scores(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """With queries of zero only the penalty is left: weights fall geometrically with distance.

    Head h gives distance n the weight r^n (1 - r) / (1 - r^(t+1)), r = e^(-2^-h). Rounding: a
    softmax of exact scores (exp 2 u, a sum of 12, a quotient) against that closed form (three
    exponentials 2 u each, a product, a quotient).
    """
    layer = rng.build(lambda: implementation.MultiHeadAttention(32, 8, positions="alibi")).double()
    torch.nn.init.zeros_(layer.q.weight)
    _, weights = layer(rng.normal(2, 12, 32, salt="x", dtype=torch.float64), return_weights=True)
    t = torch.arange(12, dtype=torch.float64)
    slopes = 2.0 ** -torch.arange(1, 9, dtype=torch.float64)[:, None, None]
    falling = (-slopes * (t[:, None] - t)).exp() * torch.expm1(-slopes)
    expected = (falling / torch.expm1(-slopes * (t[:, None] + 1))).tril().expand(2, 8, 12, 12)
    check(weights.detach(), ulps(expected, (2 + 12 + 1) + (6 + 2), "15 u and 8 u"))


# ---- what several claims need ------------------------------------------------------------------


def _language_model(implementation: Implementation, **changes: Any) -> Any:
    settings = {"vocabulary": 64, "context": 16, "d_model": 32, "positions": "none"}
    return implementation.LanguageModel(**(settings | changes))


def _parameters(implementation: Implementation, positions: str) -> tuple[int, exact]:
    """The parameters of a model with these positions, and those of one without, to compare."""
    with torch.device("meta"):
        counts = [
            implementation.count_parameters(_language_model(implementation, positions=each))
            for each in (positions, "none")
        ]
    return counts[0], exact(counts[1])


def _table_of_256(implementation: Implementation) -> Any:
    """A small model with a table as long as the longest window that the document evaluates."""
    return implementation.LanguageModel(vocabulary=16, context=256, d_model=8, n_heads=2)


def _double(module: Any) -> Any:
    return copy.deepcopy(module).double()


def _both(module: Any) -> tuple[Any, Any]:
    return module, _double(module)


def _in_both_precisions(model: Any, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Logits in float32 and in float64."""
    with torch.no_grad():
        return model(tokens), _double(model)(tokens)


def _last_logits_of_shuffled_prefix(
    implementation: Implementation, rng: Draws, n_blocks: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits after the last token: prefix shuffled, as it was, as it was in float64; (64, 64)."""
    model = rng.build(lambda: _language_model(implementation, n_blocks=n_blocks))
    tokens, order = rng.integers(0, 64, 64, 16, salt="tokens"), rng.permutation(15)
    plain, reference = _in_both_precisions(model, tokens)
    shuffled, _ = _in_both_precisions(model, torch.cat([tokens[:, order], tokens[:, -1:]], 1))
    return shuffled[:, -1], plain[:, -1], reference[:, -1]


def _train(model: Any, optimizer: torch.optim.Optimizer, tokens: Tensor, steps: int) -> None:
    """Next-token steps on one batch (B, T + 1); the last step's gradients are left in place."""
    for _ in range(steps):
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        torch.autograd.backward(loss)
        optimizer.step()


def _at(position: int) -> Tensor:
    return torch.tensor([position])


def _angles(t: Tensor) -> Tensor:
    """(T,) -> (T, 4): t * 10,000^(-2j/8), float64."""
    return t[:, None] * 10_000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)


def _pairs(x: Tensor) -> Tensor:
    """(..., 2n) -> (..., n): features 2j and 2j+1 as real and imaginary part."""
    return torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))


def _pair_lengths(x: Tensor) -> Tensor:
    """(..., 2n) -> (..., 2n): for every feature the length of its pair."""
    return _pairs(x).abs().repeat_interleave(2, dim=-1)


def _score(implementation: Implementation, q: Tensor, k: Tensor, t: int, i: int) -> Tensor:
    """The product of q (1, d) turned to position t and k (1, d) turned to position i."""
    turned: Tensor = implementation.rotate(q, _at(t))[0] @ implementation.rotate(k, _at(i))[0]
    return turned


def _rotate_halves(x: Tensor, t: Tensor) -> Tensor:
    """Rotary positions in the other convention: feature j is paired with j + d/2; (T, d)."""
    first, second = x.chunk(2, dim=-1)
    frequencies = 10_000.0 ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
    cos, sin = (t[:, None] * frequencies).cos(), (t[:, None] * frequencies).sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def _rotary_weights(layer: Any, x: Tensor) -> Tensor:
    """(B, T, 16) -> (B, 2, T, T): causal weights by the formula in t - i, for two heads of 8."""
    with torch.no_grad():
        q, k = (_pairs(w(x)).view(*x.shape[:2], 2, 4) for w in (layer.q, layer.k))
    T = x.shape[1]
    difference = torch.arange(T)[:, None] - torch.arange(T)
    angles = _angles(difference.flatten()).view(T, T, 4)
    turns = torch.polar(torch.ones_like(angles), angles).to(q.dtype)
    scores = torch.einsum("bthj,bihj,tij->bhti", q, k.conj(), turns).real / math.sqrt(8)
    return F.softmax(scores.masked_fill(difference < 0, float("-inf")), dim=-1)


# ---- trained ------------------------------------------------------------------------------------


@claim("no-positions-still-trains")
@trains(POSITION_RUNS, "none")
def test_without_positions_the_model_still_trains(
    runs: Runs, check: Check, expected: Expected, tokens: Tensor
) -> None:
    """Without position embeddings the model still trains: far below the frequencies' perplexity."""
    level = unigram_perplexity(tokens)
    share = runs.perplexities("none").map(lambda perplexity: perplexity / level)
    check(share, seed_mean_within(expected["band"], "less than half of it"))


@claim("learned-wins-at-64")
@trains(POSITION_RUNS, *SCHEMES)
def test_learned_positions_win_at_the_trained_length(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Learned absolute embeddings win at the trained length.

    In every seed: the best of the other three over them.
    """
    learned, *others = (runs.perplexities(scheme) for scheme in SCHEMES)
    best = PerSeed(runs.seeds, map(min, zip(*others, strict=True)))
    band = every_seed_within(expected["band"], "above 1 where the learned ones win")
    check(best / learned, band)


@claim("learned-falls-off-cliff")
@trains(POSITION_RUNS, "learned")
def test_learned_positions_fall_off_a_cliff(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Beyond the trained length learned embeddings fall off a cliff: at twice the length."""
    band = seed_mean_within(expected["band"], "a cliff: a fifth worse at the least")
    check(_growth(runs, "learned", 1), band)


@claim("sinusoids-do-not-extrapolate")
@trains(POSITION_RUNS, "sinusoidal")
def test_sinusoids_do_not_extrapolate(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Sinusoids do not extrapolate: at four times the length they are clearly worse."""
    band = seed_mean_within(expected["band"], "clearly worse: a tenth at the least")
    check(_growth(runs, "sinusoidal", 2), band)


@claim("rope-degrades")
@trains(POSITION_RUNS, "rotary", "learned")
def test_rotary_positions_degrade_gracefully(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Rotary positions degrade beyond the trained length, but gracefully.

    At four times the length they are worse than at the trained one, by less than the learned ones.
    Logarithms of ratios.
    """
    rotary, learned = (_growth(runs, scheme, 2) for scheme in ("rotary", "learned"))
    worse = _factor(expected["worse"], "worse, and not by a factor")
    check(rotary.map(math.log), worse)
    gentler = _factor(expected["gentler"], "less than the cliff's")
    check((rotary / learned).map(math.log), gentler)


@claim("alibi-improves-44.95-42.49")
@trains(POSITION_RUNS, "alibi")
def test_alibi_improves_with_the_window(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """ALiBi improves as the window grows beyond the training length, from 44.95 to 42.49.

    The perplexity at four times the length over that at the trained one; 42.49 / 44.95 is 0.945.
    """
    band = seed_mean_within(expected["band"], "an improvement, and one of a few per cent")
    check(_growth(runs, "alibi", 2), band)


@claim("alibi-gain-is-context-per-token")
@trains(POSITION_RUNS, "alibi")
def test_what_alibi_gains_is_context_per_scored_token(
    runs: Runs, budget: str, check: Check, expected: Expected
) -> None:
    """Most of that gain is that scored tokens have more context, no distance that was not trained.

    Within windows of the trained length, scoring only the last quarter of each gives every scored
    token nearly all of it as context: the share of the gain that this has, and what the last tokens
    of windows four times as long gain on top.
    """
    at_trained, near = runs.perplexities("alibi"), runs.perplexities("alibi", NEAR[budget])
    longest, last = (runs.perplexities("alibi", evaluation) for evaluation in LONGEST[budget])
    share = (at_trained - near) / (at_trained - longest)
    check(share, seed_mean_within(expected["share"], "more than half"))
    on_top = seed_mean_within(expected["on_top"], "no more than 2 %, either way")
    check(last / near, on_top)


@claim("alibi-best-beyond-length")
@trains(POSITION_RUNS, *SCHEMES)
def test_alibi_is_the_best_of_the_four_at_256(
    runs: Runs, budget: str, check: Check, expected: Expected
) -> None:
    """ALiBi is the best of the four at four times the trained length.

    By seed, the logarithm of the best of the other three over it.
    """
    longest = LONGEST[budget][0]
    *others, alibi = (runs.perplexities(scheme, longest) for scheme in SCHEMES)
    best = PerSeed(runs.seeds, map(min, zip(*others, strict=True)))
    band = _factor(expected["band"], "above 1 where ALiBi is best")
    check((best / alibi).map(math.log), band)


def _growth(runs: Runs, scheme: str, doublings: int) -> PerSeed[float]:
    """The perplexity at so many doublings of the trained length over that at it, by seed."""
    evaluation = runs.specs(scheme)[0].evaluations[doublings]
    return runs.perplexities(scheme, evaluation) / runs.perplexities(scheme)


def _factor(band: Sequence[float], because: str) -> seed_mean_within:
    """A band of ratios, for their logarithms."""
    low, high = (math.log(side) for side in band)
    return seed_mean_within((low, high), because)
