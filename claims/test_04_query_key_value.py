"""Section 4: where the scores come from.

Scores that are parameters would be the same for every sentence, so they must be computed from the
tokens. Plain dot products of tokens fall short twice: a token finds itself, and what holds one way
holds the other way. So each token gets a query and a key, and a value besides, so that what is
copied need not be what is compared; the rest is a formula and a listing of four steps.

The claims after the listing go beyond the chapter: what follows from the formula for every input,
and the faults that users of such code have reported: masks, padding, half precision, cached keys.
"""

import itertools
import math
from functools import partial

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
from claims.harness.strategies import lengths, permutations, tensors
from claims.instruments.attention.influence import influence, with_other_rows

few_examples = settings(max_examples=20)
f64 = torch.float64


def by_position(implementation: Implementation, scores: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """(output, weights) of mixing x (m, d) by scores (n, m) that are given, whatever the tokens."""
    q, k = torch.zeros(len(scores), 1), torch.zeros(len(x), 1)
    output, weights = implementation.attention(q, k, x, scores, return_weights=True)
    return output, weights


def raw_weights(implementation: Implementation, q: Tensor, k: Tensor) -> Tensor:
    """(..., n, m): the weights that unscaled scores give, q (..., n, d), k (..., m, d)."""
    weights: Tensor = implementation.attention(q, k, k, scale=1.0, return_weights=True)[1]
    return weights


def scores_behind(implementation: Implementation, q: Tensor, k: Tensor) -> Tensor:
    """(..., n, m): the unscaled scores, read off the weights.

    Logarithms of a row of weights are its scores up to one number, which a key of zeros fixes.
    """
    zero = torch.zeros_like(k[..., :1, :])
    logarithms = raw_weights(implementation, q, torch.cat([zero, k], dim=-2)).log()
    return logarithms[..., 1:] - logarithms[..., :1]


def scores_read_twice(reference: Tensor, q: Tensor, k: Tensor) -> ulps:
    """How far two readings of one score by `scores_behind` may be apart.

    With A the largest sum of magnitudes in a score: its d products and sums err by d u A; the two
    subtractions of the row's maximum, the two logarithms and their difference by 9 u A at most; the
    exponentials, divisions and log m by less than (d + 9) u where d is at least 6.
    """
    largest = float((q.abs() @ k.abs().transpose(-2, -1)).max())
    because = "products, sums, exponential and logarithm of one score, twice"
    return ulps(reference, 2 * (q.shape[-1] + 9), because, scale=largest + 1)


def same_attention(reference: Tensor, q: Tensor, k: Tensor, v: Tensor, depth: int = 0) -> ulps:
    """How far two computations of one attention may be apart, in u x the largest value.

    To first order, with A the largest sum of magnitudes in a score, divided by sqrt(d_k): a score
    errs by (d_k + 2) u A, its distance to the row's maximum by 2 u A more. A weight has the errors
    of its own score and of the others', m u from the sum of the row, 5 u from exponential and
    division; the mixture adds m u, and 3 u are left for a sum around it. Where q, k and v are
    themselves products of `depth` terms, given here as sums of magnitudes, each adds `depth` u.
    """
    d_k, m = q.shape[-1], k.shape[-2]
    largest = float((q.abs() @ k.abs().transpose(-2, -1)).max()) / math.sqrt(d_k)
    one = 2 * (2 * depth + d_k + 4) * largest + 2 * m + depth + 8
    because = f"two roundings of one attention over {m} keys of width {d_k}"
    return ulps(reference, 2 * one, because, scale=v.abs().max())


def formula(q: Tensor, k: Tensor, v: Tensor, M: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d_k) + M) v, as it stands on paper."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + M
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True) @ v


# ---- scores that are parameters ------------------------------------------------------------------


@claim("learned-TxT-is-input-independent")
def test_a_learned_score_matrix_is_the_same_for_every_sentence(
    implementation: Implementation, check: Check
) -> None:
    """A learned T x T matrix of scores would be identical for every sentence.

    Any scores, any two sentences: the weights that mix them are the same bits.
    """

    @few_examples
    @given(scores=tensors(6, 6), x=tensors(6, 4), y=tensors(6, 4))
    def any_two_sentences(scores: Tensor, x: Tensor, y: Tensor) -> None:
        other = by_position(implementation, scores, y)[1]
        because = "both are the softmax of the same scores"
        check(by_position(implementation, scores, x)[1], exact(other, because))

    any_two_sentences()


@claim("learned-TxT-can-encode-four-back")
def test_a_learned_score_matrix_can_look_four_tokens_back(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Such a matrix can say "look four tokens back".

    Row t allows position t - 4 alone; the first four rows, where there is none, look at the start.
    """
    x = rng.normal(12, 8)
    wanted = (torch.arange(12) - expected["back"]).clamp(min=0)
    scores = torch.full((12, 12), -math.inf)
    scores[torch.arange(12), wanted] = 0.0
    output, _ = by_position(implementation, scores, x)
    check(output, exact(x[wanted], because="one weight is 1 and the others 0, both exactly"))


@claim("learned-TxT-cannot-encode-coreference")
def test_a_learned_score_matrix_cannot_look_at_what_a_pronoun_refers_to(
    implementation: Implementation, check: Check
) -> None:
    """Never "look at the noun this pronoun refers to": a weight must depend on both tokens.

    The noun stands at 1 in one sentence, at 4 in another. No row of scores puts more than half of
    its weight on it in both; scores computed from what the tokens are put nearly all there.
    """

    @few_examples
    @given(row=tensors(1, 6))
    def any_row(row: Tensor) -> None:
        weights = by_position(implementation, row, torch.zeros(6, 1))[1]
        because = "the two weights are parts of the same sum of one"
        check(weights[0, [1, 4]].min(), within(0.0, 0.5, because))

    any_row()
    noun, pronoun, other = torch.eye(3)
    sentences = torch.stack([other] * 12).reshape(2, 6, 3)
    sentences[0, 1] = sentences[1, 4] = noun
    sentences[:, 5] = pronoun
    looked_for = 20 * torch.outer(pronoun, noun)
    weights = raw_weights(implementation, sentences @ looked_for, sentences)[:, 5]
    because = "one score of 20 against five of 0 leaves the noun 1 / (1 + 5 exp(-20))"
    check(torch.stack([weights[0, 1], weights[1, 4]]), within(0.999, 1.0, because))


# ---- scores that are dot products of the tokens --------------------------------------------------


@claim("self-dot-is-squared-norm")
def test_the_dot_product_of_a_vector_with_itself_is_its_squared_norm(
    implementation: Implementation, check: Check
) -> None:
    """The dot product of a vector with itself is its squared norm.

    A query (x, 1) meets the keys (x, 0) and (0, |x|^2), all of whole numbers. The first scores x.x,
    the second the squared norm, so that both keys get the same weight.
    """

    @few_examples
    @given(x=st.lists(st.integers(-9, 9), min_size=1, max_size=12))
    def every_vector(x: list[int]) -> None:
        squared_norm = sum(entry**2 for entry in x)
        keys = torch.tensor([[*x, 0], [*(0 for _ in x), squared_norm]]).double()
        weights = raw_weights(implementation, torch.tensor([[*x, 1]]).double(), keys)
        because = "two equal whole-number scores, of which nothing is rounded"
        check(weights[0], exact(torch.tensor([0.5, 0.5], dtype=f64), because))

    every_vector()


@claim("raw-dot-self-attends-mostly")
def test_every_token_attends_mostly_to_itself(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """With x_t.x_i for a score every token would attend mostly to itself.

    64 tokens of independent normal entries, at three widths: for how many is their own weight the
    largest of the row, the least that "mostly" can mean?
    """
    widths = expected["widths"]
    x = {d: rng.normal(64, d, salt=str(d)) for d in widths}
    weights = {d: raw_weights(implementation, x[d], x[d]) for d in widths}
    own = {d: int((weights[d].argmax(-1) == torch.arange(64)).sum()) for d in widths}
    check(own, exact(dict.fromkeys(widths, 64)), unit="tokens of 64")


@claim("raw-dot-self-by-width")
def test_how_many_tokens_attend_to_themselves_depends_on_the_width(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Of 64 tokens at d = 2 one in eleven attends most to itself, at d = 8 two in three, at 32 all.

    Given x_t of length r, each other score is normal with standard deviation r, and stays below r^2
    with probability Phi(r): the share is E[Phi(r)^63], r being chi-distributed with d degrees of
    freedom. One token is looked at in each of 4,000 sentences.
    """
    for d in expected["widths"]:
        x = rng.normal(4_000, 64, d, salt=str(d))
        largest = raw_weights(implementation, x[:, -1:], x).argmax(-1)
        share = float(stats.chi(d).expect(lambda r: stats.norm.cdf(r) ** 63))
        check((int((largest == 63).sum()), 4_000), share_within(share, share, detects=0.06))


@claim("raw-dot-self-equal-norms")
def test_tokens_of_equal_norm_attend_most_to_themselves(
    implementation: Implementation, check: Check
) -> None:
    """Among tokens of one norm, each one's largest weight is on itself.

    Cauchy-Schwarz. The tokens are rearrangements of the same whole numbers, so that norms are equal
    and scores exact.
    """
    tokens = st.lists(st.integers(-5, 5), min_size=4, max_size=4).flatmap(
        lambda entries: st.lists(st.permutations(entries), min_size=1, max_size=8)
    )

    @few_examples
    @given(tokens=tokens)
    def every_set(tokens: list[list[int]]) -> None:
        x = torch.tensor(tokens).double()
        weights = raw_weights(implementation, x, x)
        because = "x.y <= |x||y| = x.x, in whole numbers, and equal scores get equal weights"
        check(weights.diagonal(), exact(weights.amax(-1), because))

    every_set()


@claim("raw-dot-symmetric")
def test_a_token_attends_as_strongly_as_it_is_attended_to(
    implementation: Implementation, check: Check
) -> None:
    """With raw dot products, if one token attends strongly to another, so does that one to it.

    Two tokens, 1 and 2: the first gives the second 73 % of its weight, and gets 12 % back, for each
    row of scores is normalised by itself.
    """
    x = torch.tensor([[1.0], [2.0]])
    weights = raw_weights(implementation, x, x)
    because = "as the document has it, what is strong one way is strong the other way"
    check(torch.stack([weights[0, 1], weights[1, 0]]), within(0.5, 1.0, because))


@claim("raw-dot-scores-symmetric")
def test_raw_dot_product_scores_are_symmetric(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """The scores x_t.x_i, before any normalisation, are the same both ways."""
    x = rng.normal(12, 8, dtype=f64)
    scores = scores_behind(implementation, x, x)
    check(scores, scores_read_twice(scores.T, x, x))


@claim("raw-dot-causal-one-direction")
def test_under_the_causal_mask_only_one_direction_exists(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Of the weights t on i and i on t the causal mask leaves one: only a token's own is mutual."""
    x = rng.normal(12, 8)
    mask = implementation.causal_mask(12)
    weights = implementation.attention(x, x, x, mask, scale=0.25, return_weights=True)[1]
    check((weights != 0) & (weights.T != 0), exact(torch.eye(12, dtype=torch.bool)))


# ---- queries, keys, values -----------------------------------------------------------------------


@claim("qk-breaks-symmetry")
def test_the_symmetry_disappears_because_the_two_maps_differ(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Scored as q_t.k_i, the symmetry disappears because W_q is not W_k.

    Here W_k is twice W_q. Counted are the pairs of tokens whose two scores differ by more than the
    rounding of reading them.
    """
    x, W_q = rng.normal(12, 8, salt="x", dtype=f64), rng.normal(8, 8, salt="W_q", dtype=f64)
    q, k = x @ W_q, x @ (2 * W_q)
    scores = scores_behind(implementation, q, k)
    apart = 2 * (8 + 9) * torch.finfo(f64).eps * float((q.abs() @ k.abs().T).max() + 1)
    differ = ((scores - scores.T).abs() > apart).sum()
    check(int(differ), exact(12 * 11), unit="ordered pairs of 12 tokens")


@claim("qk-independent-maps-break-symmetry")
def test_two_independent_maps_leave_no_symmetry(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """A fresh head, its W_q and W_k drawn independently, scores the two ways independently.

    For tokens e_a and e_b the two scores are products of different columns: they have opposite
    signs in half of all pairs. A head over 4,096 features gives 2,048 pairs that share no column.
    """
    head = rng.build(lambda: implementation.Head(4096, 8, 1))
    x = torch.eye(4096)
    with torch.no_grad():
        q, k = (part(x).reshape(2048, 2, 8) for part in (head.q, head.k))
        scores = scores_behind(implementation, q, k)
    opposite = int((scores[:, 0, 1] * scores[:, 1, 0] < 0).sum())
    check((opposite, 2048), share_within(0.5, 0.5, detects=0.1))


@claim("raw-sum-copies-what-it-matches")
def test_a_third_map_copies_other_features_than_are_compared(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Summing the x_i forces what is copied to be what is compared; a third map W_v parts the two.

    Half of each token's features name it, half are content. A head that looks for the name of the
    token before copies that one's content, and nothing of the name.
    """
    names, content = torch.eye(6), rng.normal(6, 6)
    head = rng.build(lambda: implementation.Head(12, 6, 6))
    nothing = torch.zeros(6, 6)
    with torch.no_grad():
        head.q.weight.copy_(torch.cat([1000 * torch.diag(torch.ones(5), 1), nothing], dim=1))
        head.k.weight.copy_(torch.cat([names, nothing], dim=1))
        head.v.weight.copy_(torch.cat([nothing, names], dim=1))
        output = head(torch.cat([names, content], dim=1)[None])[0]
    because = "beside a score of 408, exp(-408) is zero in float32: one weight is exactly 1"
    check(output, exact(content[[0, 0, 1, 2, 3, 4]], because))


@claim("attention-formula")
def test_attention_is_the_formula(implementation: Implementation, check: Check, rng: Draws) -> None:
    """Attention is softmax(Q K^T / sqrt(d_k) + M) V.

    Against the formula in float64, next to the formula in float32; keys and values differ in width.
    """
    q, k = (rng.normal(2, 32, 16, salt=salt) for salt in "qk")
    v = rng.normal(2, 32, 24, salt="v")
    M = torch.full((32, 32), -math.inf).triu(1)
    output = implementation.attention(q, k, v, implementation.causal_mask(32))
    reference = formula(q.double(), k.double(), v.double(), M.double())
    because = "the same roundings, perhaps in another order"
    check(output, rounding(reference, formula(q, k, v, M), 2, because))


@claim("mask-M-definition")
def test_M_is_zero_up_to_the_diagonal_and_minus_infinity_above(
    implementation: Implementation, check: Check
) -> None:
    """M is zero on and below the diagonal and -inf above it, for every number of tokens."""

    @few_examples
    @given(T=lengths(24))
    def every_length(T: int) -> None:
        M = torch.where(implementation.causal_mask(T), 0.0, -math.inf)
        expected = [[0.0 if i <= t else -math.inf for i in range(T)] for t in range(T)]
        check(M, exact(torch.tensor(expected), because="a definition"))

    every_length()


# ---- the listing ---------------------------------------------------------------------------------


@claim("head-thirty-lines-twenty-shapes")
def test_the_head_is_thirty_lines_twenty_of_them_shapes(check: Check, expected: Expected) -> None:
    """In code the head is thirty lines, twenty of which are shapes.

    Counted on the listing that the document prints: 18 lines, two of them empty.
    """
    check(expected["listing"]["lines"], exact(expected["said"]["lines"]), unit="lines")


@claim("head-listing-parameters")
def test_the_head_has_three_projections_without_biases_and_a_mask_that_is_a_buffer(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Three d_model x d_head projections without biases; the mask is a buffer, no parameter."""
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
    """(B, T, d_model) becomes (B, T, d_head), for every T up to the size of the block."""
    with recipe(0):
        head = implementation.Head(12, 8, 16)
    shapes = [head(torch.zeros(3, T, 12)).shape for T in range(1, 17)]
    check(shapes, exact([[3, T, 8] for T in range(1, 17)]))


@claim("score-mask-normalise-mix")
def test_a_head_is_score_mask_normalise_mix_and_projections(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Score, mask, normalise, mix; everything else is a projection.

    The four steps on the head's own projections, in float64 and in float32, next to the head.
    """
    head, x = rng.build(lambda: implementation.Head(32, 16, 40)), rng.normal(2, 32, 32)

    def four_steps(head: torch.nn.Module, x: Tensor) -> Tensor:
        q, k, v = head.get_submodule("q")(x), head.get_submodule("k")(x), head.get_submodule("v")(x)
        score = q @ k.mT / math.sqrt(16)
        masked = score.masked_fill(torch.ones(32, 32).triu(1) == 1, -math.inf)
        normalised = masked.softmax(-1)
        mixed: Tensor = normalised @ v
        return mixed

    with torch.no_grad():
        output, simplest = head(x), four_steps(head, x)
        reference = four_steps(head.double(), x.double())
    check(output, rounding(reference, simplest, 2, because="the same roundings, in any order"))


# ---- beyond the chapter: for every input ---------------------------------------------------------


@claim("head-prefix-consistent")
def test_a_prefix_gives_the_same_rows_as_the_whole(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """What a head says of the first t tokens does not depend on whether more follow."""
    head = rng.build(lambda: implementation.Head(6, 4, 9)).double()
    size = [part.weight.detach().abs().T for part in (head.q, head.k, head.v)]

    @few_examples
    @given(x=tensors(2, 9, 6, dtype=f64), t=lengths(9))
    def every_prefix(x: Tensor, t: int) -> None:
        q, k, v = (x.abs() @ part for part in size)
        check(head(x[:, :t]).detach(), same_attention(head(x).detach()[:, :t], q, k, v, depth=6))

    every_prefix()


@claim("future-values-change-nothing")
def test_other_tokens_in_the_future_change_nothing_in_the_past(
    implementation: Implementation, check: Check
) -> None:
    """Whatever keys and values come later, the earlier outputs are the same bits."""
    mask = implementation.causal_mask(7)

    @few_examples
    @given(x=tensors(3, 7, 3, dtype=f64), other=tensors(2, 7, 3, dtype=f64), start=lengths(7))
    def every_future(x: Tensor, other: Tensor, start: int) -> None:
        q, k, v = x
        changed = (with_other_rows(k, start, other[0]), with_other_rows(v, start, other[1]))
        before = implementation.attention(q, k, v, mask)[:start]
        after = implementation.attention(q, *changed, mask)[:start]
        because = "a masked weight is 0, and adds 0 times a finite number"
        check(after, exact(before, because))

    every_future()


@claim("future-sends-no-gradient")
def test_an_output_has_gradients_from_its_past_alone(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """d output_t / d x_i is exactly zero for i > t, and is not for i <= t."""
    head = rng.build(lambda: implementation.Head(4, 3, 7)).double()
    reached = influence(head, rng.normal(1, 7, 4, dtype=f64)) != 0
    check(reached, exact(torch.ones(7, 7, dtype=torch.bool).tril()))


@claim("attention-linear-in-values")
def test_attention_is_linear_in_its_values(implementation: Implementation, check: Check) -> None:
    """With queries and keys held, attention is linear in its values.

    Attention to a v + b w against a times that to v plus b times that to w; a and b are powers of
    two, so that the scaling itself rounds nothing.
    """

    factors = st.sampled_from([-2.0, 0.5, 1.0, 4.0])

    @few_examples
    @given(x=tensors(4, 6, 3, dtype=f64), a=factors, b=factors)
    def every_sum(x: Tensor, a: float, b: float) -> None:
        q, k, v, w = x
        apart = a * implementation.attention(q, k, v) + b * implementation.attention(q, k, w)
        size = abs(a) * v.abs().max() + abs(b) * w.abs().max()
        check(implementation.attention(q, k, a * v + b * w), same_attention(apart, q, k, size))

    every_sum()


@claim("batch-members-ignore-each-other")
def test_a_sequence_is_blind_to_the_others_of_its_batch(
    implementation: Implementation, check: Check
) -> None:
    """Other sequences in the batch change nothing of the first one, bit for bit."""
    mask = implementation.causal_mask(5)

    @few_examples
    @given(x=tensors(3, 3, 5, 3, dtype=f64), other=tensors(3, 2, 5, 3, dtype=f64))
    def every_batch(x: Tensor, other: Tensor) -> None:
        alone = implementation.attention(*x, mask)[0]
        q, k, v = torch.cat([x[:, :1], other], dim=1)
        because = "a product in a batch is many products, none of which reads another's operands"
        check(implementation.attention(q, k, v, mask)[0], exact(alone, because))

    every_batch()


@claim("unmasked-attention-equivariant")
def test_unmasked_attention_has_no_order_of_its_own(
    implementation: Implementation, check: Check
) -> None:
    """Reordered queries give reordered outputs; keys reordered with their values change nothing."""

    @few_examples
    @given(x=tensors(3, 6, 3, dtype=f64), order=permutations(6), of_keys=permutations(6))
    def every_order(x: Tensor, order: Tensor, of_keys: Tensor) -> None:
        q, k, v = x
        reordered = implementation.attention(q[order], k[of_keys], v[of_keys])
        check(reordered, same_attention(implementation.attention(q, k, v)[order], q, k, v))

    every_order()


# ---- beyond the chapter: masks -------------------------------------------------------------------


@st.composite
def masks(draw: st.DrawFn) -> dict[str, Tensor]:
    """One mask of 6 queries and keys, said in three ways; each query may attend to some key."""
    allowed = (draw(tensors(6, 6)) > 0) | torch.eye(6, dtype=torch.bool)
    nothing = torch.zeros(6, 6, dtype=f64)
    return {
        "boolean": allowed,
        "-inf": nothing.masked_fill(~allowed, -math.inf),
        "lowest": nothing.masked_fill(~allowed, torch.finfo(f64).min),
    }


@claim("masks-of-all-kinds-agree")
def test_boolean_and_additive_masks_say_the_same(
    implementation: Implementation, check: Check
) -> None:
    """A boolean mask, -inf added and the most negative finite number added: the same bits.

    Beside that number no score is seen, and its exponential is 0.
    """

    @few_examples
    @given(x=tensors(3, 6, 3, dtype=f64), mask=masks())
    def every_mask(x: Tensor, mask: dict[str, Tensor]) -> None:
        boolean, infinite, lowest = (implementation.attention(*x, mask[kind]) for kind in mask)
        because = "exp of what is left of a hidden score is exactly 0"
        check(torch.stack([infinite, lowest]), exact(torch.stack([boolean, boolean]), because))

    every_mask()


@claim("masks-of-all-kinds-agree-when-fused")
def test_a_fused_kernel_understands_every_kind_of_mask(
    implementation: Implementation, check: Check
) -> None:
    """The fused kernel gives what the explicit steps give, for every kind of mask."""

    @few_examples
    @given(x=tensors(3, 6, 3, dtype=f64), mask=masks())
    def every_mask(x: Tensor, mask: dict[str, Tensor]) -> None:
        fused = [implementation.attention(*x, mask[kind], fused=True) for kind in mask]
        explicit = implementation.attention(*x, mask["boolean"])
        check(torch.stack(fused), same_attention(torch.stack([explicit] * 3), *x))

    every_mask()


@claim("last-query-sees-every-key")
def test_the_last_query_sees_every_key(implementation: Implementation, check: Check) -> None:
    """With fewer queries than keys, the queries are the last tokens: the last one sees all keys.

    Aligned to the other corner, one query with a cache of keys would see the first key alone.
    """

    @few_examples
    @given(m=lengths(12), data=st.data())
    def every_shape(m: int, data: st.DataObject) -> None:
        n = data.draw(st.integers(1, m))
        whole = [[i <= t for i in range(m)] for t in range(m)]
        check(implementation.causal_mask(n, m).tolist(), exact(whole[m - n :]))

    every_shape()


@claim("chunked-prefill-equals-full-pass")
def test_reading_in_two_chunks_equals_reading_at_once(
    implementation: Implementation, check: Check
) -> None:
    """The later queries against all keys so far give the rows of one pass over everything."""

    @few_examples
    @given(x=tensors(3, 9, 3, dtype=f64), start=st.integers(0, 8), fused=st.booleans())
    def every_split(x: Tensor, start: int, fused: bool) -> None:
        q, k, v = x
        mask = implementation.causal_mask(9 - start, 9)
        chunk = implementation.attention(q[start:], k, v, mask, fused=fused)
        whole = implementation.attention(q, k, v, implementation.causal_mask(9))
        check(chunk, same_attention(whole[start:], q, k, v))

    every_split()


def masks_with_a_blind_query(implementation: Implementation) -> dict[str, Tensor]:
    """The causal mask of 6 tokens, whose query 2 may attend to nothing: boolean and added."""
    allowed = implementation.causal_mask(6)
    allowed[2] = False
    return {"boolean": allowed, "-inf": torch.zeros(6, 6).masked_fill(~allowed, -math.inf)}


@claim("blind-query-gets-zero")
def test_a_query_that_may_attend_to_nothing_gets_zero(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """A query that may attend to nothing gets zeros, not NaN, and the others what is theirs."""
    x = rng.normal(3, 6, 4)
    expected = implementation.attention(*x, implementation.causal_mask(6))
    expected[2] = 0.0
    for mask in masks_with_a_blind_query(implementation).values():
        output, weights = implementation.attention(*x, mask, return_weights=True)
        because = "a row of the output is computed from its own row of scores, or defined as 0"
        check(output, exact(expected, because))
        check(weights[2], exact(torch.zeros(6), because="a definition"))
        fused = implementation.attention(*x, mask, fused=True)
        check(fused[2], exact(torch.zeros(4), because="a definition"))


@claim("blind-query-gradients-finite")
def test_a_query_that_may_attend_to_nothing_poisons_no_gradient(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Gradients of q, k and v stay finite, and the query that saw nothing sends back nothing.

    Setting its output to zero after the softmax is too late: backwards, 0 times NaN is NaN.
    """
    draws, probe = rng.normal(3, 6, 4), rng.normal(6, 4, salt="probe")
    bad = {}
    for kind, mask in masks_with_a_blind_query(implementation).items():
        for fused in (False, True):
            q, k, v = (part.clone().requires_grad_() for part in draws)
            (implementation.attention(q, k, v, mask, fused=fused) * probe).sum().backward()
            bad[kind, fused] = [int((~part.grad.isfinite()).sum()) for part in (q, k, v)]
            bad[kind, fused] += [int((q.grad[2] != 0).sum())]
    check(bad, exact({path: [0, 0, 0, 0] for path in bad}), unit="entries")


@claim("padding-alone-poisons-no-parameter")
def test_a_sequence_of_padding_alone_poisons_no_parameter(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """A sequence of nothing but padding leaves every parameter's gradient finite.

    Explicit and fused, masked by truth values and by adding -inf; the other sequence of the batch
    is left whole.
    """
    x, real = rng.normal(2, 6, 8), torch.tensor([[True] * 6, [False] * 6])[:, None, None, :]
    bad = {}
    for fused, mask in itertools.product((False, True), (real, real.float().log())):
        layer = rng.build(partial(implementation.MultiHeadAttention, 8, 2, fused=fused))
        layer(x, mask=mask).square().sum().backward()
        gradients = [parameter.grad for parameter in layer.parameters()]
        bad[fused, mask.dtype] = sum(int((~g.isfinite()).sum()) for g in gradients)
    check(bad, exact(dict.fromkeys(bad, 0)), unit="entries")


@claim("padding-and-causal-mask-at-once")
def test_padding_and_the_causal_mask_at_once_stay_finite(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Padding and future hidden at once by the most negative finite number: all stays finite.

    The sum of two such masks is -inf where both hide. The rows of real tokens are, bit for bit,
    those of the boolean mask.
    """
    x, lowest = rng.normal(3, 7, 4), torch.finfo(torch.float32).min
    causal, real = implementation.causal_mask(7), torch.arange(7) >= 3
    planes = torch.zeros(7, 7).masked_fill(~causal, lowest)
    planes = planes + torch.zeros(7).masked_fill(~real, lowest)
    output = implementation.attention(*x, planes)
    fused = implementation.attention(*x, planes, fused=True)
    expected = implementation.attention(*x, causal & real)
    check(int((~torch.cat([output, fused]).isfinite()).sum()), exact(0), unit="entries not finite")
    because = "a weight is 0 whether its score is hidden once or twice"
    check(output[real], exact(expected[real], because))


@claim("padded-equals-unpadded")
def test_padding_changes_nothing_for_real_tokens(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Padded on the left or on the right, real tokens get what they get without padding.

    Batches of one and of three, whose sequences are of different lengths and padded with noise.
    """
    layer = rng.build(lambda: implementation.MultiHeadAttention(32, 4)).requires_grad_(False)
    precise = rng.build(lambda: implementation.MultiHeadAttention(32, 4)).double()
    sequences = [rng.normal(1, T, 32, salt=str(T)) for T in (16, 11, 13)]
    reference = torch.cat([precise(x.double()).detach() for x in sequences], dim=1)[0]
    simplest = torch.cat([layer(x) for x in sequences], dim=1)[0]
    on_the_right = torch.arange(20) < torch.tensor([[16], [11], [13]])
    for real, batches in itertools.product((on_the_right, on_the_right.flip(1)), (3, 1)):
        padded = rng.normal(3, 20, 32, salt="padding")
        padded[real] = torch.cat(sequences, dim=1)[0]
        parts = zip(padded.chunk(batches), real.chunk(batches), strict=True)
        output = torch.cat([layer(x, mask=m[:, None, None, :])[m] for x, m in parts])
        because = "the same sums, with zeros among the terms"
        check(output, rounding(reference, simplest, 2, because))


@claim("half-precision-masks-are-representable")
def test_attention_runs_in_half_precision_with_every_mask(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """In float16 and bfloat16 attention runs, with boolean, -inf and lowest-number masks.

    Against float64 on the same rounded inputs, next to the formula in the same half precision.
    """
    causal = implementation.causal_mask(32)
    for dtype in (torch.float16, torch.bfloat16):
        q, k, v = rng.normal(3, 4, 32, 16).to(dtype)
        M = torch.full((32, 32), -math.inf, dtype=dtype).triu(1)
        reference = formula(q.double(), k.double(), v.double(), M.double())
        simplest = formula(q, k, v, M)
        for mask in (causal, M, M.clamp(min=torch.finfo(dtype).min)):
            output = implementation.attention(q, k, v, mask)
            because = "the same roundings, perhaps in another order"
            check(output, rounding(reference, simplest, 2, because))
