"""Section 2: the mean of the tokens seen so far, and the two things that are wrong with it.

The mean takes any number of vectors, costs no parameters and makes a complete language model in
fifteen lines, which is four times worse than one without context. It cannot see order, and it
drowns the current token; adding the mean to the token repairs the second fault and gains nothing.
The section also introduces the corpus, the tokenizer and the budget of the later ones.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies
from torch import Tensor

from claims.experiments.ladder import LADDER_RUNS
from claims.experiments.rungs import (
    AVERAGE_ADDED,
    AVERAGE_REPLACING,
    AVERAGE_WITH_POSITIONS,
    LADDER,
    NO_CONTEXT,
    Rung,
)
from claims.harness import (
    Check,
    Draws,
    Expected,
    claim,
    digits,
    exact,
    printed_run,
    recipe,
    seed_mean_within,
    trains,
    ulps,
    within,
)
from claims.harness.implementation import Implementation
from claims.harness.strategies import lengths, permutations, tensors
from claims.instruments.text import average_model
from claims.instruments.text.corpus import Corpus
from claims.instruments.text.tokens import split
from claims.training.results import Runs
from claims.training.spec import Evaluation, RunSpec

DOUBLE = torch.float64
LABELS = tuple(rung.label for rung in LADDER)
# The rows of the chapter's first table that average: no MLP, no LayerNorm, no positions.
BARE = {"mixer": "average", "feed_forward": False, "norm": "none", "positions": "none"}

FEW = settings(max_examples=30)  # each example is a whole matrix of cases

# Eight tokens of width 3, whose sums need no rounding.
whole_numbers = numpy_strategies.arrays(np.int16, (8, 3), elements=st.integers(-1000, 1000)).map(
    lambda array: torch.from_numpy(array).float()
)


# ---- the mean ------------------------------------------------------------------------------------


@claim("average-any-number-of-inputs")
@FEW
@given(x=tensors(lengths(40), 3))
def test_the_mean_takes_any_number_of_vectors(
    implementation: Implementation, check: Check, x: Tensor
) -> None:
    """The mean takes any number of vectors and returns one of fixed size.

    The mean of a window is the last row of the loop; windows have 1 to 40 vectors of width 3.
    """
    check(implementation.average_loop(x)[-1].shape, exact(torch.Size([3])))


@claim("average-differentiable")
@FEW
@given(x=tensors(lengths(12), 2, dtype=DOUBLE))
def test_the_mean_is_differentiable(
    implementation: Implementation, check: Check, x: Tensor
) -> None:
    """The mean is differentiable: its derivative by each of n vectors is I / n.

    The Jacobian (d, n, d) of the loop's last row, by autograd, for n from 1 to 12.
    """

    def mean(rows: Tensor) -> Tensor:
        last: Tensor = implementation.average_loop(rows)[-1]
        return last

    jacobian = torch.autograd.functional.jacobian(mean, x)  # type: ignore[no-untyped-call]
    expected = (torch.eye(2, dtype=DOUBLE) / len(x))[:, None].expand(2, len(x), 2)
    check(jacobian, exact(expected, because="1 and 0 divided by n, each rounded once"))


@claim("average-is-free")
def test_the_mean_costs_no_parameters(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """The mean is free: a model that averages has no more parameters than one that does not."""
    with torch.device("meta"):
        averaging = implementation.LanguageModel(**BARE)
        without = implementation.LanguageModel(**BARE | {"mixer": "none"})
    count = implementation.count_parameters
    check(count(averaging) - count(without), exact(expected["params"]))


@claim("average-lm-fifteen-lines")
def test_embedding_mean_and_linear_layer_are_a_language_model_in_fifteen_lines(
    check: Check, expected: Expected, rng: Draws
) -> None:
    """Embedding table, mean and one linear layer are a complete language model in fifteen lines.

    Counted are the statements of an instrument that holds the model, its loss and its imports:
    fifteen are enough. It is complete: one step of gradient descent lowers its loss.
    """
    enough = within(1, expected["lines"], "fifteen lines are enough")
    check(_statements(inspect.getsource(average_model)), enough, unit="statements")
    model = rng.build(lambda: average_model.AverageLanguageModel(vocabulary=50, d_model=16))
    tokens = rng.integers(0, 50, 4, 32, salt="tokens")
    before = model.loss(tokens)
    before.backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    fall = before - model.loss(tokens)
    because = "a small step against the gradient"
    check(fall.item(), within(0, math.inf, because, strict=True), unit="nats")


def _statements(source: str) -> int:
    """Statements without docstrings; of a definition the first line counts as one."""
    statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    return sum(
        not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in statements
    )


@claim("average-lm-is-the-models-average")
def test_the_fifteen_lines_are_the_language_model_with_the_average_alone(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """The fifteen lines compute the same as the language model with the average alone switched on.

    Logits in float64 from the same two tensors. Each side rounds a term T + 1 times in the mean and
    d + 1 times in the product; m is the logit computed from magnitudes.
    """
    T, d, V = 20, 16, 50
    model = rng.build(lambda: average_model.AverageLanguageModel(V, d)).double()
    other = rng.build(
        lambda: implementation.LanguageModel(
            vocabulary=V, context=T, d_model=d, residual=False, **BARE
        )
    ).double()
    implementation.set_weights(other, token=model.token.weight, head=model.head.weight)
    tokens = rng.integers(0, V, 2, T, salt="tokens")
    sizes = model.token.weight[tokens].abs().cumsum(1) @ model.head.weight.abs().T
    m = sizes / torch.arange(1, T + 1)[:, None]
    because = "T + 1 roundings in a mean, d + 1 in a product, on either side"
    reference = other(tokens).detach()
    check(model(tokens).detach(), ulps(reference, 2 * (T + d + 2), because, scale=m.detach()))


# ---- the corpus, its tokens and the budget -------------------------------------------------------


@claim("corpus-characters")
def test_the_corpus_has_1_115_394_characters(
    exact_corpus: Corpus, check: Check, expected: Expected
) -> None:
    """The corpus has 1,115,394 characters of Shakespeare."""
    check(len(exact_corpus.text), exact(expected["value"]), unit="characters")


@claim("corpus-one-megabyte")
def test_the_corpus_is_one_megabyte(
    exact_corpus: Corpus, check: Check, expected: Expected
) -> None:
    """The corpus is one megabyte: its bytes round to 1, in units of 10^6 and of 2^20 alike."""
    size = len(exact_corpus.text.encode())
    check([size / 10**6, size / 2**20], digits([expected["value"]] * 2, 0), unit="MB, MiB")


@claim("tokenizer-vocab-1024")
def test_the_tokenizer_is_a_byte_level_bpe_of_1024(
    tokenizer: Any, check: Check, expected: Expected
) -> None:
    """The tokenizer is a byte-level BPE with a vocabulary of 1024.

    Byte-level: each of the 256 bytes is a token, and a merge made each of the other 768.
    """
    tokens = [tokenizer.decode_bytes([i]) for i in range(tokenizer.vocabulary)]
    single = {token for token in tokens if len(token) == 1}
    measured = [len(tokens), len(single), len(tokenizer.merges)]
    check(measured, exact([expected["vocabulary"], expected["bytes"], expected["merges"]]))


@claim("token-count")
def test_the_corpus_has_459_760_tokens(
    exact_corpus: Corpus, tokens: Tensor, check: Check, expected: Expected
) -> None:
    """The tokenised corpus has 459,760 tokens."""
    check(len(tokens), exact(expected["value"]), unit="tokens")


@claim("chars-per-token")
def test_a_token_has_2_43_characters(
    exact_corpus: Corpus, tokens: Tensor, check: Check, expected: Expected
) -> None:
    """There are 2.43 characters per token, on average over the corpus."""
    check(len(exact_corpus.text) / len(tokens), digits(expected["value"], 2))


@claim("split-90-10")
def test_the_tokens_are_split_90_10(
    exact_corpus: Corpus, tokens: Tensor, check: Check, expected: Expected
) -> None:
    """The tokens are split 90/10: nine tenths to train on, the last tenth held out."""
    train, held_out = split(tokens)
    derived = [expected["train"], expected["held_out"]]
    check([len(train), len(held_out)], exact(derived), unit="tokens")


@claim("main-budget")
def test_every_model_of_the_ladder_takes_the_main_budget(check: Check, expected: Expected) -> None:
    """Every model has width 128, sees 128 tokens and is trained 3000 steps at 1e-3 with batch 64.

    Read off the specifications of the ladder's ten models, whose perplexity is that of the held-out
    split.
    """
    runs = LADDER_RUNS["document"].runs
    budgets = {label: _budget(run) for label, run in runs.items()}
    check(budgets, exact(dict.fromkeys(LABELS, expected["budget"]), "settings, as printed"))
    scored = {label: run.evaluations[0] for label, run in runs.items()}
    check(scored == dict.fromkeys(LABELS, Evaluation(128, "held out")), exact(True))


def _budget(run: RunSpec) -> dict[str, float]:
    """What line 13 says of every model."""
    return {
        "d_model": run.model.d_model,
        "context": run.model.context,
        "steps": run.steps,
        "lr": run.learning_rate,
        "batch": run.batch,
    }


@claim("main-budget-epochs")
def test_the_main_budget_reads_the_training_split_59_times(
    exact_corpus: Corpus, tokens: Tensor, check: Check, expected: Expected
) -> None:
    """The budget reads 24,576,000 tokens: 59.4 passes over the training split.

    3000 steps of 64 windows of 128 tokens, over nine tenths of the corpus.
    """
    read = expected["steps"] * expected["batch"] * expected["context"]
    check(read, exact(expected["tokens"]), unit="tokens")
    check(read / len(split(tokens)[0]), digits(expected["epochs"], 2), unit="epochs")


# ---- the mean as a model -------------------------------------------------------------------------


@claim("average-replacing-perplexity")
@trains(LADDER_RUNS, *LABELS)
def test_the_average_in_place_of_the_token_has_perplexity_248(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """The uniform average used instead of the token has a perplexity of about 248.

    248.45 is what the printed 60.45 and 188 add up to.
    """
    measured = runs.perplexities(AVERAGE_REPLACING.label)
    check(measured, as_printed(runs, AVERAGE_REPLACING, expected["value"]))


def as_printed(runs: Runs, rung: Rung, printed: float) -> printed_run:
    """The judgement of a perplexity that the ladder prints; its ten rows spread alike."""
    others = tuple(runs.perplexities(label) for label in LABELS if label != rung.label)
    because = "a twentieth, less than a head or an MLP gains"
    return printed_run(printed, 0.05, because, relative=True, like=others)


@claim("averaging-is-worse-than-ignoring")
@trains(LADDER_RUNS, NO_CONTEXT.label, AVERAGE_REPLACING.label)
def test_averaging_is_worse_than_ignoring_the_context(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Averaging the context does not help a little; the model is worse than without any context.

    The ratio of the perplexities. A model that guesses among 1024 tokens would be 1024 / 59.71 = 17
    times worse.
    """
    none, average = (runs.perplexities(r.label) for r in (NO_CONTEXT, AVERAGE_REPLACING))
    band = seed_mean_within(expected["band"], "above 1, and better than a guess")
    check(average / none, band)


@claim("average-four-times-worse")
@trains(LADDER_RUNS, NO_CONTEXT.label, AVERAGE_REPLACING.label)
def test_averaging_makes_the_model_four_times_worse(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Averaging the context makes the model four times worse than ignoring it.

    The ratio of the perplexities, against 248.45 / 59.71 = 4.16.
    """
    none, average = (runs.perplexities(r.label) for r in (NO_CONTEXT, AVERAGE_REPLACING))
    because = "another whole number of times"
    check(average / none, printed_run(expected["ratio"], notice=0.5, because=because))


# ---- the mean cannot see order -------------------------------------------------------------------


@claim("mean-permutation-invariant")
@FEW
@given(x=whole_numbers, order=permutations(8))
def test_shuffling_the_window_leaves_the_mean_exactly_unchanged(
    implementation: Implementation, check: Check, x: Tensor, order: Tensor
) -> None:
    """Shuffling the window leaves the mean unchanged, exactly rather than approximately.

    Eight tokens of whole numbers up to 1000, so that float32 computes with them as with real
    numbers: all three ways to average give the same bits for every order.
    """
    ways = (
        implementation.average_loop,
        implementation.average_by_matrix,
        implementation.average_by_softmax,
    )
    shuffled, plain = ([average(rows)[-1] for average in ways] for rows in (x[order], x))
    check(shuffled, exact(plain, because="multiples of 1/8 below 2^13: every sum is exact"))


@claim("shuffled-mean-has-other-bits")
def test_a_shuffled_mean_has_other_bits_where_sums_round(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """In float32 the mean of a shuffled window of normal numbers has other bits in some feature.

    The chapter's three lines, on 128 tokens of width 64.
    """
    T = 128
    x = rng.normal(T, 64, salt="x")
    y = x[rng.permutation(T, salt="order")]
    A = implementation.averaging_matrix(T)
    bound = 2 * (T + 1) * 2**-24 * float(x.double().abs().mean(0).max())
    difference = float((A[-1] @ x - A[-1] @ y).abs().max())
    check(difference, within(0, bound, "2 (T + 1) u m, and above 0", strict=True))


@claim("shuffle-diff-value")
def test_the_printed_shuffle_differs_by_rounding(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """The chapter's shuffle of a window moves its mean by 2.98e-08.

    T, d and the seed are not printed. Windows of 8 by 8 with the seeds 0 to 99 give few different
    numbers, and the printed one, to its last digit, is one of the two that come most often. Each
    is rounding: a mean rounds each of its T terms at most T + 1 times.
    """
    T, windows, shuffled = 8, [], []
    for seed in range(100):
        with recipe(seed):
            windows.append(torch.randn(T, T))
            shuffled.append(windows[-1][torch.randperm(T)])
    A = implementation.averaging_matrix(T)
    means, others = (torch.stack([A[-1] @ x for x in xs]) for xs in (windows, shuffled))
    m = torch.stack(windows).double().abs().mean(1)
    because = "T + 1 roundings of each term in either mean"
    check(means, ulps(others.double(), 2 * (T + 1), because, scale=m))
    found = (means - others).abs().amax(1).tolist()
    often = dict(Counter(found).most_common(2))
    check(expected["printed"] in often, exact(True), facts={"of 100 windows": often})


@claim("shuffle-is-fp-noise")
def test_the_difference_is_the_noise_of_a_reordered_sum(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """The difference is floating-point noise in a reordered sum: both means are the same vector.

    The mean of the window, in float32 and in float64, against the mean of the shuffled window in
    fractions, without rounding. Each lies within the rounding of its own precision.
    """
    T, d = 100, 8  # no power of two, whose mean of float32 numbers would be exact in float64
    x = rng.normal(T, d, salt="x")
    shuffled = x[rng.permutation(T, salt="order")].T.tolist()
    sums = [sum(map(Fraction, column)) for column in shuffled]
    mean = torch.tensor([float(s / T) for s in sums], dtype=DOUBLE)
    m, because = x.double().abs().mean(0), "T + 1 roundings of each term, one of the reference"
    check(implementation.average_by_matrix(x)[-1], ulps(mean, T + 2, because, scale=m))
    check(implementation.average_by_matrix(x.double())[-1], ulps(mean, T + 2, because, scale=m))


@claim("bag-model-cannot-tell-dog-man")
def test_a_mean_cannot_tell_who_bit_whom(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """A model that sees its context as a mean cannot tell the dog bit the man from its reverse.

    Logits after the last word. The model has the average alone, without the residual, which would
    show it the last word. Both sentences sum the same products in another order, which makes
    2 (T + d + 2) roundings.
    """
    ids = _word_ids(expected["sentences"])
    T, d = ids.shape[1], 16
    model = rng.build(
        lambda: implementation.LanguageModel(
            vocabulary=8, context=T, d_model=d, residual=False, **BARE
        )
    ).double()
    one, other = model(ids)[:, -1].detach()
    token, head = (implementation.weight(model, role).abs() for role in ("token", "head"))
    m = token[ids[0]].mean(0) @ head.T
    because = "T + 1 roundings in a mean, d + 1 in a product, on either side"
    check(one, ulps(other, 2 * (T + d + 2), because, scale=m.detach()))


def _word_ids(sentences: list[str]) -> Tensor:
    """(sentences, words) int64: the place of each word in the alphabetical list of all words."""
    words = sorted({word for sentence in sentences for word in sentence.split()})
    return torch.tensor([[words.index(word) for word in s.split()] for s in sentences])


@claim("positions-forgotten-by-sum")
@FEW
@given(x=whole_numbers, positions=whole_numbers, order=permutations(8))
def test_positions_go_into_the_sum_and_the_sum_forgets_them(
    implementation: Implementation, check: Check, x: Tensor, positions: Tensor, order: Tensor
) -> None:
    """Positions go into the sum, and the sum forgets them.

    A position is added to each of eight tokens before the mean. The mean is the same whichever
    token gets which position. Whole numbers, so that every sum is exact.
    """
    shuffled, plain = (
        implementation.average_by_matrix(rows + positions)[-1] for rows in (x[order], x)
    )
    check(shuffled, exact(plain, because="multiples of 1/8 below 2^14: every sum is exact"))


@claim("average-plus-positions-2.14")
@trains(LADDER_RUNS, AVERAGE_REPLACING.label, AVERAGE_WITH_POSITIONS.label)
def test_positions_before_the_average_buy_2_14_points(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """A learned position embedding on every token before the averaging bought 2.14 points of 188.

    The difference of the two rows, seed by seed.
    """
    plain, placed = (
        runs.perplexities(r.label) for r in (AVERAGE_REPLACING, AVERAGE_WITH_POSITIONS)
    )
    because = "at 0 positions would buy nothing"
    check(plain - placed, printed_run(expected["delta"], expected["delta"], because), unit="points")


@claim("row3-proves-positions-do-not-fix")
@trains(LADDER_RUNS, NO_CONTEXT.label, AVERAGE_REPLACING.label, AVERAGE_WITH_POSITIONS.label)
def test_positions_do_not_repair_the_average(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Row three proves that adding positions to the inputs does not repair the average.

    How much of what averaging loses do positions bring back? A repair would bring back all of it.
    """
    none, plain, placed = (
        runs.perplexities(r.label) for r in (NO_CONTEXT, AVERAGE_REPLACING, AVERAGE_WITH_POSITIONS)
    )
    repaired = (plain - placed) / (plain - none)
    check(repaired, seed_mean_within(expected["band"], "less than a tenth, gained or lost"))


# ---- the mean drowns the present -----------------------------------------------------------------


@claim("baseline-perplexity")
@trains(LADDER_RUNS, *LABELS)
def test_the_baseline_without_context_has_perplexity_59_71(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """The baseline, which sees only the current token, has a held-out perplexity of 59.71."""
    measured = runs.perplexities(NO_CONTEXT.label)
    check(measured, as_printed(runs, NO_CONTEXT, expected["value"]))


@claim("position-100-one-hundredth")
def test_at_position_100_the_current_token_is_one_hundredth(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """At position 100 the current token is one hundredth of the summary.

    The matrix entry of the hundredth token in its own mean, in float64.
    """
    A = implementation.averaging_matrix(128, dtype=DOUBLE)
    because = "1/100 is rounded once, to the number that 0.01 denotes"
    check(float(A[100 - 1, 100 - 1]), exact(expected["value"], because))


@claim("average-residual-perplexity")
@trains(LADDER_RUNS, *LABELS)
def test_the_average_added_to_the_token_has_perplexity_60_45(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Keeping the token and adding the average gives a perplexity of 60.45."""
    measured = runs.perplexities(AVERAGE_ADDED.label)
    check(measured, as_printed(runs, AVERAGE_ADDED, expected["value"]))


@claim("uniform-average-contributes-nothing")
@trains(LADDER_RUNS, NO_CONTEXT.label, AVERAGE_ADDED.label)
def test_the_uniform_average_contributes_nothing(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """With the dilution repaired, the uniform average contributes nothing.

    What it loses, as a share of the perplexity without it; in print 60.45 against 59.71, 1.2 %.
    """
    none, added = (runs.perplexities(r.label) for r in (NO_CONTEXT, AVERAGE_ADDED))
    because = "no gain of 2 %, and a loss far below the 300 % of the average alone"
    check((added - none) / none, seed_mean_within(expected["band"], because))


@claim("equal-weights-no-information")
def test_equal_weights_carry_no_information(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Equal weights are the same as absence of information.

    The weights, as the derivative of the average: the same for any tokens, and the largest of a row
    belongs to each of its tokens. The sum: two contexts that differ in one word and end alike. If
    the average held no information, a model that adds it to the last token would give both the same
    logits.
    """
    T, d = 12, 4
    weights, others = (_weights_of_the_average(implementation, x) for x in rng.normal(2, T, d))
    check.under("the weights")(weights, exact(others, because="no token enters them"))
    largest = (weights == weights.amax(1, keepdim=True)).sum(1)
    check.under("the weights")(largest, exact(torch.arange(1, T + 1)), unit="tokens")
    ids = _word_ids(expected["sentences"])
    model = rng.build(
        lambda: implementation.LanguageModel(vocabulary=8, context=ids.shape[1], d_model=16, **BARE)
    )
    one, other = model(ids)[:, -1].detach()
    because = "without information about the context no logit depends on it"
    check.under("the sum")(float((one - other).abs().max()), exact(0.0, because))


def _weights_of_the_average(implementation: Implementation, x: Tensor) -> Tensor:
    """(T, T): the derivative of each mean by each token, in one feature of x (T, d)."""
    derivative: Tensor = torch.autograd.functional.jacobian(  # type: ignore[no-untyped-call]
        implementation.average_by_softmax, x
    )
    return derivative[:, 0, :, 0]
