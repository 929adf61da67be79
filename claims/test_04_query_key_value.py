"""Section 4: where the scores come from.

Scores that are parameters would be the same for every sentence, so they are computed from the
tokens. Plain dot products of tokens fail in two ways: each token attends mostly to itself, and the
relation is symmetric. So each token gets a query and a key, and a value, so that what is copied
need not be what is compared. A formula and a listing of four steps follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from claims.harness import (
    Check,
    Draws,
    Expected,
    claim,
    exact,
    recipe,
    rounding,
    share_within,
    ulps,
    within,
)
from claims.harness.implementation import Implementation
from claims.harness.strategies import lengths, tensors
from claims.instruments.attention.formula import formula
from claims.instruments.attention.projections import projected
from claims.instruments.attention.scores import scores_of, weights_of

FEW = settings(max_examples=20)  # each example is a whole matrix of cases
DOUBLE = torch.float64


def by_position(implementation: Implementation, scores: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """(output, weights) of mixing x (m, d) by given scores (n, m), whatever the tokens."""
    q, k = torch.zeros(len(scores), 1), torch.zeros(len(x), 1)
    output, weights = implementation.attention(q, k, x, scores, return_weights=True)
    return output, weights


def scores_read_twice(reference: Tensor, q: Tensor, k: Tensor) -> ulps:
    """How far two readings of one score by `scores_of` may be apart.

    With A the largest sum of magnitudes in a score: its d products and sums err by d u A; the two
    subtractions of the row's maximum, the two logarithms and their difference by 9 u A at most; the
    exponentials, divisions and log m by less than (d + 9) u where d is at least 6.
    """
    largest = float((q.abs() @ k.abs().transpose(-2, -1)).max())
    because = "products, sums, exponential and logarithm of one score, twice"
    return ulps(reference, 2 * (q.shape[-1] + 9), because, scale=largest + 1)


# ---- scores that are parameters ------------------------------------------------------------------


@claim("learned-TxT-is-input-independent")
def test_a_learned_score_matrix_is_the_same_for_every_sentence(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """A learned T x T matrix of scores would be identical for every sentence.

    The derivative of a mix of six tokens by the tokens, at two sentences: with scores that are
    parameters it has the same bits, with scores computed from the tokens it has others.
    """
    scores, sentences = rng.normal(6, 6, salt="scores"), rng.normal(2, 6, 4, salt="sentences")
    mixes: dict[str, Callable[[Tensor], Tensor]] = {
        "learned": lambda x: by_position(implementation, scores, x)[0],
        "computed": lambda x: implementation.attention(x, x, x),
    }
    derivative = torch.autograd.functional.jacobian
    found = {
        name: torch.equal(*(derivative(mix, x) for x in sentences))  # type: ignore[no-untyped-call]
        for name, mix in mixes.items()
    }
    check(found, exact({"learned": True, "computed": False}))


@claim("learned-TxT-can-encode-four-back")
def test_a_learned_score_matrix_can_look_four_tokens_back(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Such a matrix can encode "look four tokens back".

    Row t allows position t - 4 alone. The first four rows have no such position and look at the
    first token.
    """
    x = rng.normal(12, 8)
    wanted = (torch.arange(12) - expected["back"]).clamp(min=0)
    scores = torch.full((12, 12), -math.inf)
    scores[torch.arange(12), wanted] = 0.0
    output, _ = by_position(implementation, scores, x)
    check(output, exact(x[wanted], because="one weight is 1 and the others 0, both exactly"))


@claim("learned-TxT-cannot-encode-coreference")
@FEW
@given(row=tensors(1, 6))
def test_a_learned_score_matrix_cannot_look_at_what_a_pronoun_refers_to(
    implementation: Implementation, check: Check, row: Tensor
) -> None:
    """It can never encode "look at the noun this pronoun refers to", which needs both tokens.

    The noun is at position 1 in one sentence and at 4 in the other. Does the pronoun, at 5, have
    more than half of its weight on the noun in both? With no row of learned scores; with scores
    computed from the tokens it does.
    """
    noun, pronoun, other = torch.eye(3)
    sentences = other.repeat(2, 6, 1)
    sentences[0, 1] = sentences[1, 4] = noun
    sentences[:, 5] = pronoun
    queries = sentences @ (20 * torch.outer(pronoun, noun))
    weights = {
        "learned": torch.cat([by_position(implementation, row, x)[1] for x in sentences]),
        "computed": weights_of(implementation.attention, queries, sentences, scale=1.0)[:, 5],
    }
    found = {name: bool((w[[0, 1], [1, 4]] > 0.5).all()) for name, w in weights.items()}
    check(found, exact({"learned": False, "computed": True}, "the weights of a row sum to one"))


# ---- scores that are dot products of the tokens --------------------------------------------------


@claim("self-dot-is-squared-norm")
@FEW
@given(x=st.lists(st.integers(-9, 9), min_size=1, max_size=12))
def test_the_dot_product_of_a_vector_with_itself_is_its_squared_norm(
    implementation: Implementation, check: Check, x: list[int]
) -> None:
    """The dot product of a vector with itself is its squared norm.

    The query (x, 1) scores two keys, (x, 0) and (0, |x|^2), all of whole numbers. The first score
    is x.x, the second the squared norm, so both keys get the same weight.
    """
    squared_norm = sum(entry**2 for entry in x)
    query = torch.tensor([[*x, 1]]).double()
    keys = torch.tensor([[*x, 0], [*(0 for _ in x), squared_norm]]).double()
    weights = weights_of(implementation.attention, query, keys, scale=1.0)
    because = "two equal whole-number scores, of which nothing is rounded"
    check(weights[0], exact(torch.tensor([0.5, 0.5], dtype=DOUBLE), because))


@claim("raw-dot-self-attends-mostly")
def test_every_token_attends_mostly_to_itself(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """With raw x_t.x_i scores every token would attend mostly to itself.

    Mostly is more than half of a row's weight. At the chapter's width it is true of a window of
    random tokens. Of any vectors it is false at every width: the double of a token scores higher
    with it than the token itself.
    """
    x = rng.normal(expected["tokens"], expected["width"])
    for reading, tokens in {
        "tokens of the chapter's width": x,
        "any vectors": torch.stack([x[0], 2 * x[0]]),
    }.items():
        weights = weights_of(implementation.attention, tokens, tokens, scale=1.0)
        most = within(0.5, 1, "more than half of a sum of one")
        check.under(reading)(weights.diagonal(), most, unit="own weight")


@claim("raw-dot-self-by-width")
def test_how_many_tokens_attend_to_themselves_depends_on_the_width(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Of 64 random tokens 9 % attend most to themselves at d = 2, two thirds at 8, all at 32.

    For a token x_t of length r each other score is normal with standard deviation r, and stays
    below r^2 with probability Phi(r). So the share is E[Phi(r)^63], where r is chi-distributed with
    d degrees of freedom. Measured on one token in each of 4,000 sentences.
    """
    for d in expected["widths"]:
        x = rng.normal(4_000, 64, d, salt=str(d))
        largest = weights_of(implementation.attention, x[:, -1:], x, scale=1.0).argmax(-1)
        share = float(stats.chi(d).expect(lambda r: stats.norm.cdf(r) ** 63))
        check((int((largest == 63).sum()), 4_000), share_within(share, share, detects=0.06))


@claim("raw-dot-self-equal-norms")
@FEW
@given(
    tokens=st.lists(st.integers(-5, 5), min_size=4, max_size=4).flatmap(
        lambda entries: st.lists(st.permutations(entries), min_size=1, max_size=8)
    )
)
def test_tokens_of_equal_norm_attend_most_to_themselves(
    implementation: Implementation, check: Check, tokens: list[list[int]]
) -> None:
    """Among tokens of equal norm, each attends most to itself.

    By Cauchy-Schwarz. The tokens are rearrangements of the same whole numbers, so that their norms
    are equal and their scores exact.
    """
    x = torch.tensor(tokens).double()
    weights = weights_of(implementation.attention, x, x, scale=1.0)
    because = "x.y <= |x||y| = x.x, in whole numbers, and equal scores get equal weights"
    check(weights.diagonal(), exact(weights.amax(-1), because))


@claim("raw-dot-symmetric")
def test_a_token_attends_as_strongly_as_it_is_attended_to(
    implementation: Implementation, check: Check
) -> None:
    """With raw dot products, if one token attends strongly to another, so does that one to it.

    Two tokens, 1 and 2. The first has 73 % of its weight on the second, the second 12 % on the
    first, because each row of scores is normalised by itself.
    """
    x = torch.tensor([[1.0], [2.0]])
    weights = weights_of(implementation.attention, x, x, scale=1.0)
    because = "by the sentence, what is strong one way is strong the other way"
    check(torch.stack([weights[0, 1], weights[1, 0]]), within(0.5, 1.0, because))


@claim("raw-dot-scores-symmetric")
def test_raw_dot_product_scores_are_symmetric(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """The raw scores x_t.x_i are symmetric, before the softmax."""
    x = rng.normal(12, 8, dtype=DOUBLE)
    scores = scores_of(implementation.attention, x, x, scale=1.0)
    check(scores, scores_read_twice(scores.T, x, x))


@claim("raw-dot-causal-one-direction")
def test_under_the_causal_mask_only_one_direction_exists(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Under the causal mask only one of two tokens attends to the other.

    The pairs whose two weights are both not zero are those of each token with itself.
    """
    x = rng.normal(12, 8)
    mask = implementation.causal_mask(12)
    weights = implementation.attention(x, x, x, mask, scale=0.25, return_weights=True)[1]
    check((weights != 0) & (weights.T != 0), exact(torch.eye(12, dtype=torch.bool)))


# ---- queries, keys, values -----------------------------------------------------------------------


@claim("qk-breaks-symmetry")
def test_the_symmetry_disappears_because_the_two_maps_differ(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Scoring q_t.k_i with W_q != W_k removes the symmetry.

    Of the two maps of a head, which have nothing in common; and of any two that differ, such as
    W_k = 2 W_q. Counted are the pairs of tokens whose two scores differ by more than the rounding
    of reading them.
    """
    x = rng.normal(12, 8, salt="x", dtype=DOUBLE)
    head = rng.build(lambda: implementation.Head(8, 8, 12)).double()
    W_q, W_k = (implementation.weight(head, role).T for role in "qk")
    for reading, other in {"two maps of their own": W_k, "any two that differ": 2 * W_q}.items():
        q, k = x @ W_q, x @ other
        scores = scores_of(implementation.attention, q, k, scale=1.0)
        size = float((q.abs() @ k.abs().T).max() + 1)
        rounding_error = 2 * (8 + 9) * torch.finfo(DOUBLE).eps * size
        differ = ((scores - scores.T).abs() > rounding_error).sum()
        check.under(reading)(int(differ), exact(12 * 11), unit="ordered pairs of 12 tokens")


@claim("qk-independent-maps-break-symmetry")
def test_two_independent_maps_leave_no_symmetry(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """With W_q and W_k drawn independently, the two scores of a pair of tokens are independent.

    For tokens e_a and e_b the two scores of a fresh head are products of different columns: they
    have opposite signs in half of all pairs. 4,096 features give 2,048 pairs that share no column.
    """
    head = rng.build(lambda: implementation.Head(4096, 8, 1))
    x = torch.eye(4096)
    with torch.no_grad():
        q, k = (projected(implementation, head, r, x).reshape(2048, 2, 8) for r in "qk")
        scores = scores_of(implementation.attention, q, k, scale=1.0)
    opposite = int((scores[:, 0, 1] * scores[:, 1, 0] < 0).sum())
    check((opposite, 2048), share_within(0.5, 0.5, detects=0.1))


@claim("raw-sum-copies-what-it-matches")
def test_a_third_map_copies_other_features_than_are_compared(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Summing the x_i forces what is copied to be what is compared; a third map W_v decouples them.

    Half of each token's features are its name, half its content. A head looks for the name of the
    token before. Without W_v it copies that name with the content; with W_v the content alone.
    """
    names, content = torch.eye(6), rng.normal(6, 6)
    head, x = rng.build(lambda: implementation.Head(12, 6, 6)), torch.cat([names, content], dim=1)
    nothing = torch.zeros(6, 6)
    with torch.no_grad():
        implementation.set_weights(
            head,
            q=torch.cat([1000 * torch.diag(torch.ones(5), 1), nothing], dim=1),
            k=torch.cat([names, nothing], dim=1),
            v=torch.cat([nothing, names], dim=1),
        )
        q, k = (projected(implementation, head, role, x) for role in "qk")
        raw = implementation.attention(q, k, x, implementation.causal_mask(6))
        output = head(x[None])[0]
    before = [0, 0, 1, 2, 3, 4]
    because = "beside a score of 408, exp(-408) is zero in float32: one weight is exactly 1"
    check(raw, exact(x[before], because))
    check(output, exact(content[before], because))


@claim("attention-formula")
def test_attention_is_the_formula(implementation: Implementation, check: Check, rng: Draws) -> None:
    """Attention is softmax(Q K^T / sqrt(d_k) + M) V.

    Against the formula in float64; allowed is twice the error of the formula in float32. Keys and
    values differ in width.
    """
    q, k = (rng.normal(2, 32, 16, salt=salt) for salt in "qk")
    v = rng.normal(2, 32, 24, salt="v")
    M = torch.full((32, 32), -math.inf).triu(1)
    output = implementation.attention(q, k, v, implementation.causal_mask(32))
    reference = formula(q.double(), k.double(), v.double(), M.double())
    because = "the same roundings, perhaps in another order"
    check(output, rounding(reference, formula(q, k, v, M), 2, because))


@claim("mask-M-definition")
@FEW
@given(T=lengths(24))
def test_M_is_zero_up_to_the_diagonal_and_minus_infinity_above(
    implementation: Implementation, check: Check, T: int
) -> None:
    """M is zero on and below the diagonal and -inf above it, for every number of tokens."""
    M = torch.where(implementation.causal_mask(T), 0.0, -math.inf)
    expected = [[0.0 if i <= t else -math.inf for i in range(T)] for t in range(T)]
    check(M, exact(torch.tensor(expected), because="a definition"))


# ---- the listing ---------------------------------------------------------------------------------


@claim("head-listing-parameters")
def test_the_head_has_three_projections_without_biases_and_a_mask_that_is_a_buffer(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Head has three bias-free d_model x d_head projections; its mask is a buffer, no parameter."""
    with recipe(0):
        head = implementation.Head(128, 128, 5)
    measured = {
        "total": implementation.count_parameters(head),
        "parameters": [parameter.shape for parameter in head.parameters()],
        "buffers": [buffer.tolist() for buffer in head.buffers()],
    }
    triangle = [[i <= t for i in range(5)] for t in range(5)]
    projections = [[128, 128]] * expected["projections"]
    derived = {"total": expected["parameters"], "parameters": projections, "buffers": [triangle]}
    check(measured, exact(derived))


@claim("head-listing-shape")
def test_a_head_maps_B_T_d_model_to_B_T_d_head(
    implementation: Implementation, check: Check
) -> None:
    """Head maps (B, T, d_model) to (B, T, d_head), for every T up to the size of the block."""
    with recipe(0):
        head = implementation.Head(12, 8, 16)
    shapes = [head(torch.zeros(3, T, 12)).shape for T in range(1, 17)]
    check(shapes, exact([[3, T, 8] for T in range(1, 17)]))


@claim("score-mask-normalise-mix")
def test_a_head_is_score_mask_normalise_mix_and_projections(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Score, mask, normalise, mix; everything else is a projection.

    The head against the four steps on its own projections in float64; allowed is twice the error of
    the four steps in float32.
    """
    head, x = rng.build(lambda: implementation.Head(32, 16, 40)), rng.normal(2, 32, 32)

    def four_steps(head: torch.nn.Module, x: Tensor) -> Tensor:
        q, k, v = (projected(implementation, head, role, x) for role in "qkv")
        score = q @ k.mT / math.sqrt(16)
        masked = score.masked_fill(torch.ones(32, 32).triu(1) == 1, -math.inf)
        normalised = masked.softmax(-1)
        mixed: Tensor = normalised @ v
        return mixed

    with torch.no_grad():
        output, simplest = head(x), four_steps(head, x)
        reference = four_steps(head.double(), x.double())
    check(output, rounding(reference, simplest, 2, because="the same roundings, in any order"))
