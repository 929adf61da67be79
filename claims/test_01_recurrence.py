"""Section 1: what came before attention, and why it was replaced.

A recurrence keeps a state of fixed size. Its gradient passes through one Jacobian per step, the
whole input must fit into one vector, and each update waits for the one before. In 2014 the decoder
got a weighted sum of all encoder states; the chapter applies that sum to one sequence, without the
recurrence.
"""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from torch import Tensor
from torch.nn import functional as F

from claims.harness import Check, Draws, Expected, claim, exact, rounding, ulps, within
from claims.harness.implementation import Implementation
from claims.harness.strategies import lengths
from claims.instruments.attention.recurrence import (
    Cell,
    gradient_through_time,
    operations_between,
    operations_in_a_row,
)

DOUBLE = torch.float64


@claim("rnn-fixed-size-state")
@settings(max_examples=30)
@given(T=lengths(40))
def test_a_recurrent_summary_has_one_size_whatever_the_length(check: Check, T: int) -> None:
    """A recurrent summary has a fixed size, whatever the length of the input.

    A tanh cell of width 8 reads 1 to 40 tokens of width 3; its last state has 8 numbers.
    """
    cell = Cell(torch.eye(8), torch.ones(8, 3))
    check(cell.states(torch.zeros(8), torch.ones(T, 3))[-1].shape, exact(torch.Size([8])))


@claim("architecture-answers-all-three")
def test_the_architecture_answers_all_three_failures(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """A recurrence fails in three ways, and the architecture of the chapter answers all three.

    From token 5 to token T of a head, the shortest path of operations is as short at T = 500 as at
    T = 10; so is the longest chain, which is what cannot run in parallel. No single vector holds
    the source: n queries copy any n of m states, at any two lengths, also where m exceeds d.
    """
    d = 16
    head = rng.build(lambda: implementation.Head(d, d, 500))
    tokens = [torch.ones(d, requires_grad=True) for _ in range(500)]
    outputs = [head(torch.stack(tokens[:T])[None])[0, T - 1] for T in (10, 50, 500)]
    paths = [operations_between(output, tokens[5 - 1]) for output in outputs]
    chains = [operations_in_a_row(output) for output in outputs]
    check([paths, chains], exact([paths[:1] * 3, chains[:1] * 3]), unit="operations")
    for n, m in ((1, 400), (40, 7), (60, 400)):
        states = rng.normal(m, d, salt=f"{n}, {m}")
        keys, chosen = F.normalize(states), rng.integers(0, m, n, salt=f"of {m}, {n}")
        copied = implementation.attention(1e6 * keys[chosen], keys, states, scale=1.0)
        check(copied, exact(states[chosen], "the other scores are lower by more than 104"))


@claim("bptt-product-of-jacobians")
def test_backpropagation_through_t_steps_multiplies_t_jacobians(check: Check, rng: Draws) -> None:
    """Backpropagation through T steps multiplies T Jacobians.

    The gradient through 12 steps of a tanh cell of width w = 8, against the product of the
    Jacobians diag(1 - h_t^2) W. Either way rounds an entry at most w + 3 times per factor.
    """
    T, w = 12, 8
    cell = Cell(rng.normal(w, w, salt="W", dtype=DOUBLE) / w**0.5, torch.eye(w, dtype=DOUBLE))
    h, tokens = rng.normal(w, salt="h", dtype=DOUBLE), rng.normal(T, w, salt="x", dtype=DOUBLE)
    jacobians = [(1 - h_t**2)[:, None] * cell.W for h_t in cell.states(h, tokens)[1:]]
    product, sizes = torch.eye(w, dtype=DOUBLE), torch.eye(w, dtype=DOUBLE)
    for J in jacobians:
        product, sizes = J @ product, J.abs() @ sizes
    because = "T factors in two associations, w products and sums and 3 more roundings in each"
    check(gradient_through_time(cell, h, tokens), ulps(product, 2 * T * (w + 3), because, sizes))


@claim("bptt-vanish-or-explode")
def test_the_gradient_vanishes_or_explodes_with_t(check: Check, rng: Draws) -> None:
    """Because of that product the gradient vanishes or explodes with T.

    Two tanh cells with random weights. If W has spectral norm 0.9, so have all Jacobians at most,
    and the gradient shrinks to 0.9^T or less, whatever the tokens. If W has spectral radius 1.1,
    the gradient at the zero state is the T-th power of W, whose norm is at least 1.1^T.
    """
    w, steps = 16, [10, 20, 40, 80]
    W, eye = rng.normal(w, w, salt="W", dtype=DOUBLE), torch.eye(w, dtype=DOUBLE)
    tokens, zeros = rng.normal(80, w, salt="x", dtype=DOUBLE), torch.zeros(80, w, dtype=DOUBLE)
    start = torch.zeros(w, dtype=DOUBLE)
    shrinking = Cell(0.9 * W / torch.linalg.matrix_norm(W, 2), eye)
    growing = Cell(1.1 * W / torch.linalg.eigvals(W).abs().max(), eye)
    shrunk = [gradient_through_time(shrinking, start, tokens[:T]) for T in steps]
    grown = [gradient_through_time(growing, start, zeros[:T]) for T in steps]
    check(_growth_per_step(shrunk, steps), within(0, 0.9, "norms multiply, and |tanh'| <= 1"))
    check(_growth_per_step(grown, steps), within(1.1, math.inf, "no norm is below the radius"))


def _growth_per_step(gradients: list[Tensor], steps: list[int]) -> Tensor:
    """The T-th root of the spectral norm of each gradient through T steps."""
    norms = torch.linalg.matrix_norm(torch.stack(gradients), 2)
    growth: Tensor = norms ** (1 / torch.tensor(steps))
    return growth


@claim("bptt-exactly-one")
def test_an_orthogonal_linear_recurrence_neither_vanishes_nor_explodes(
    check: Check, rng: Draws
) -> None:
    """The exception: with an orthogonal W a linear recurrence neither vanishes nor explodes.

    W is a random signed permutation. The gradient J through 100 steps is orthogonal, exactly.
    """
    w = 16
    signs = rng.integers(0, 2, w, 1, salt="signs").double() * 2 - 1
    W = signs * torch.eye(w, dtype=DOUBLE)[rng.permutation(w)]
    cell = Cell(W, torch.eye(w, dtype=DOUBLE), activation=lambda x: x)
    J = gradient_through_time(cell, torch.zeros(w, dtype=DOUBLE), torch.zeros(100, w, dtype=DOUBLE))
    because = "products of signed permutations have no entries but 0, 1 and -1"
    check(J @ J.T, exact(torch.eye(w, dtype=DOUBLE), because))


@claim("sequential-updates-495")
def test_token_5_reaches_token_500_through_495_updates(check: Check, expected: Expected) -> None:
    """Information from token 5 reaches token 500 only through 495 sequential updates.

    Counted on the graph that autograd records: the fewest operations on a path from the state
    after token 5 to the state after token 500, against those of one update.
    """
    cell = Cell(torch.eye(2, requires_grad=True), torch.ones(2, 1))
    states = cell.states(torch.zeros(2), torch.ones(500, 1))
    update = operations_between(states[6], states[5])
    check(operations_between(states[500], states[5]), exact(expected["value"] * update))


@claim("bahdanau-three-years")
def test_2014_is_three_years_before_the_transformer(check: Check, expected: Expected) -> None:
    """The bottleneck was repaired in 2014, three years before the transformer.

    The difference of the two years that the chapter names.
    """
    check(expected["transformer"] - expected["bahdanau"], exact(expected["value"]))


@claim("weighted-sum-of-encoder-states")
def test_the_decoder_takes_a_weighted_sum_of_all_encoder_states(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """The repair of 2014: a weighted sum of all encoder states, with weights it computes itself.

    Three decoder queries over 20 encoder states; then a sequence's 20 tokens over themselves. Each
    output is the sum, in float64, within twice the error of the plain float32 sum. Every state has
    a part in it, and every query has weights of its own.
    """
    decoder, states = rng.normal(3, 64, salt="queries"), rng.normal(20, 64, salt="states")
    because = "as many roundings, in another order"
    for queries in (decoder, states):
        sums, weights = implementation.attention(queries, states, states, return_weights=True)
        reference = _weighted_sums(queries.double(), states.double())
        check(sums, rounding(reference, _weighted_sums(queries, states), k=2, because=because))
        check(weights, within(0, 1, "a part of each state", strict=True))
        check(len(weights.unique(dim=0)), exact(len(queries)), unit="different rows of weights")


def _weighted_sums(queries: Tensor, states: Tensor) -> Tensor:
    """For each query sum_i w_i h_i, (n, d), with w = softmax(q . h_i / sqrt(d))."""
    weights = (queries @ states.T / math.sqrt(states.shape[1])).exp()
    return (weights / weights.sum(1, keepdim=True)) @ states


@claim("recurrence-is-sequential")
def test_a_recurrence_takes_as_many_steps_as_tokens_and_attention_does_not(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """h_t needs h_{t-1}, so the update is sequential; attention is a product of matrices.

    Counted is the longest chain of operations that each need the result of the one before. A
    recurrence has 3 per token (product, addition, tanh); a head has the same number at any length.
    """
    cell, head = Cell(torch.eye(4), torch.eye(4)), rng.build(lambda: implementation.Head(4, 4, 64))
    first = torch.zeros(4, requires_grad=True)
    inputs = [torch.ones(T, 4) for T in (8, 16, 32, 64)]
    recurrence = [operations_in_a_row(cell.states(first, x)[-1]) for x in inputs]
    attention = [operations_in_a_row(head(x[None])) for x in inputs]
    check([recurrence, attention], exact([[3 * len(x) for x in inputs], [attention[0]] * 4]))


@claim("linear-recurrence-is-one-product")
def test_a_linear_recurrence_is_one_product(check: Check, rng: Draws) -> None:
    """The exception: a linear recurrence is one multiplication by a lower-triangular matrix.

    h_t = h_{t-1} / 2 + x_t for 16 tokens of whole numbers, against the matrix of powers of 1/2.
    """
    T, d = 16, 4
    eye = torch.eye(d, dtype=DOUBLE)
    x = rng.integers(-1000, 1000, T, d).double()
    states = Cell(eye / 2, eye, activation=lambda h: h).states(torch.zeros(d, dtype=DOUBLE), x)
    distance = torch.arange(T)[:, None] - torch.arange(T)
    powers = torch.tril(0.5**distance.double())
    because = "multiples of 2^-15 below 2^11: no sum needs more than 26 of the 53 bits"
    check(torch.stack(states[1:]), exact(powers @ x, because))


@claim("convolution-translation")
def test_a_feature_detected_anywhere_is_detected_everywhere(check: Check, rng: Draws) -> None:
    """A convolution slides one small filter: what it detects anywhere, it detects everywhere.

    A random image and filter of whole numbers. If the image moves by 3 rows and 5 columns, so does
    the output; the rows and columns that enter at the border are left out.
    """
    image = rng.integers(-9, 10, 1, 1, 24, 24, salt="image").double()
    kernel = rng.integers(-9, 10, 1, 1, 3, 3, salt="filter").double()
    moved = F.conv2d(image.roll((3, 5), (2, 3)), kernel)
    because = "sums of nine products of whole numbers are exact"
    check(moved[..., 3:, 5:], exact(F.conv2d(image, kernel)[..., :-3, :-5], because))
