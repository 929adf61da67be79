"""Section 7: where the normalisation stands.

LayerNorm normalises each token by itself, so unlike BatchNorm it suits models that generate one
token at a time. The chapter's block has it at the entrance of each sub-layer (pre-norm); the paper
of 2017 has it on the residual path (post-norm). There, says the chapter, gradients are badly scaled
with depth at initialisation, and training needs warmup.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from claims.experiments.ladder import CLOSE_RUNS, LADDER_RUNS
from claims.experiments.norms import NORM_RUNS
from claims.experiments.rungs import (
    AVERAGE_ADDED,
    AVERAGE_REPLACING,
    AVERAGE_WITH_POSITIONS,
    FOUR_HEADS,
    HEAD_ADDED,
    HEAD_REPLACING,
    ONE_BLOCK,
    WITH_MLP,
)
from claims.harness import (
    Check,
    Draws,
    Expected,
    PerSeed,
    claim,
    digits,
    exact,
    printed_run,
    recipe,
    rounding,
    seed_mean_within,
    trains,
    ulps,
)
from claims.harness.implementation import Implementation
from claims.instruments.attention.block_gradients import Ends
from claims.instruments.text.unigram import unigram_perplexity
from claims.training.results import Runs

IN_ANOTHER_ORDER = "k = 2: the same operations, each of which may be done in another order"

# Rows of the ladder that gain a few points each, no two pairs of which share a run.
PAIRS = (
    (AVERAGE_REPLACING, AVERAGE_WITH_POSITIONS), (AVERAGE_ADDED, HEAD_REPLACING),
    (HEAD_ADDED, FOUR_HEADS), (WITH_MLP, ONE_BLOCK),
)

# ---- l.132: residual connections and LayerNorm -------------------------------------------------


@claim("residual-repairs-the-average")
@trains(LADDER_RUNS, AVERAGE_REPLACING.label, AVERAGE_ADDED.label)
def test_the_residual_connection_repairs_the_average(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """The residual connection lowers the perplexity of the average."""
    replacing, added = (runs.perplexities(r.label) for r in (AVERAGE_REPLACING, AVERAGE_ADDED))
    band = seed_mean_within(expected["band"], "a gain, by up to twice the printed one")
    check(replacing - added, band)


@claim("residual-188-for-average")
@trains(LADDER_RUNS, AVERAGE_REPLACING.label, AVERAGE_ADDED.label)
def test_the_residual_connection_is_worth_188_points_for_the_average(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """The residual connection is worth 188 points of perplexity for the average."""
    points = expected["points"]
    replacing, added = (runs.perplexities(r.label) for r in (AVERAGE_REPLACING, AVERAGE_ADDED))
    because = "5 %: the rows beside it are as far apart"
    check(replacing - added, printed_run(points, points / 20, because))


class Nothing(nn.Module):
    """A sub-layer that contributes nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


class BatchNorm(nn.Module):
    """BatchNorm of (B, T, d), the control: the sentences about LayerNorm are false of it."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(d)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return normed


def both_norms(implementation: Implementation, d: int) -> dict[str, nn.Module]:
    """LayerNorm, as a post-norm block around a sub-layer that adds nothing, and BatchNorm."""
    block = implementation.Block(d, Nothing(), norm="post", feed_forward=False)
    return {"LayerNorm": block, "BatchNorm": BatchNorm(d)}


def same_bits(
    implementation: Implementation,
    first: Callable[[nn.Module], Tensor],
    second: Callable[[nn.Module], Tensor],
) -> dict[str, bool]:
    """Whether both calls give the same bits, for each norm of width 16, fresh for each call."""
    one, other = both_norms(implementation, 16), both_norms(implementation, 16)
    return {name: torch.equal(first(one[name]), second(other[name])) for name in one}


@claim("layernorm-over-features")
def test_layer_norm_normalises_each_example_along_its_features(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """LayerNorm normalises each example along its features: to mean 0 and variance 1.

    Features of the order of a million make any usual epsilon negligible. With d features of size a
    and standard deviation s the mean is off by at most (d + 3) u a / s, the variance by 2 d u and
    the rounding of each feature.
    """
    d, x = 64, 1e6 * (2 + rng.normal(4, 8, 64, dtype=torch.float64))
    y = both_norms(implementation, d)["LayerNorm"].double()(x).detach()
    size = x.abs().mean(-1) / x.std(-1, correction=0)
    check(y.mean(-1), ulps(torch.zeros(4, 8), d + 3, "one sum of d features", scale=size + 1))
    check(y.var(-1, correction=0), ulps(torch.ones(4, 8), 2 * d + 10, "two sums of d squares"))


@claim("layernorm-no-batch-dependence")
def test_layer_norm_has_no_dependence_on_the_batch(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """No dependence on the batch: an example has the same bits whatever else is in its batch."""
    x, others = rng.normal(1, 8, 16), rng.normal(2, 3, 8, 16, salt="others")
    same = same_bits(
        implementation,
        lambda norm: norm(torch.cat([x, others[0]]))[0],
        lambda norm: norm(torch.cat([x, others[1]]))[0],
    )
    check(same, exact(expected["same"]))


@claim("layernorm-no-running-stats")
def test_layer_norm_keeps_no_running_statistics(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """No running statistics: a forward pass in training changes no entry of its state."""
    x = rng.normal(4, 8, 16)
    changed = {}
    for name, norm in both_norms(implementation, 16).items():
        before = {key: value.clone() for key, value in norm.state_dict().items()}
        norm.train()(x)
        changed[name] = sum(not torch.equal(before[key], v) for key, v in norm.state_dict().items())
    check(changed, exact(expected["changed"]), unit="entries")


@claim("layernorm-train-equals-eval")
def test_layer_norm_is_identical_in_training_and_inference(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """LayerNorm is identical in training and inference, bit for bit."""
    x = rng.normal(4, 8, 16)
    same = same_bits(implementation, lambda norm: norm.train()(x), lambda norm: norm.eval()(x))
    check(same, exact(expected["same"]))


@claim("layernorm-length-indifferent")
def test_layer_norm_is_indifferent_to_the_length_of_the_sequence(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Indifferent to sequence length: a prefix has the same bits alone and in the sequence."""
    x = rng.normal(4, 8, 16)
    same = same_bits(implementation, lambda norm: norm(x)[:, :3], lambda norm: norm(x[:, :3]))
    check(same, exact(expected["same"]))


@claim("layernorm-768-params")
def test_layer_norm_costs_768_parameters(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """LayerNorm costs 768 parameters: the difference it makes to a model of one block.

    3 x 2 x 128: two in the block and, though the text does not say so, a third after it.
    """
    with recipe(0):
        models = [implementation.LanguageModel(norm=norm) for norm in ("pre", "none")]
    with_norm, without = (implementation.count_parameters(model) for model in models)
    check(with_norm - without, exact(expected["value"]))


@claim("layernorm-buys-points")
@trains(CLOSE_RUNS, WITH_MLP.label, ONE_BLOCK.label)
def test_layer_norm_lowers_the_perplexity(runs: Runs, check: Check, expected: Expected) -> None:
    """LayerNorm lowers the perplexity."""
    without, normed = (runs.perplexities(r.label) for r in (WITH_MLP, ONE_BLOCK))
    band = seed_mean_within(expected["band"], "a gain, in points, of no more than a fifth")
    check(without - normed, band)


@claim("layernorm-1.8-points")
@trains(LADDER_RUNS, *(rung.label for pair in PAIRS for rung in pair))
def test_layer_norm_buys_1_8_points(runs: Runs, check: Check, expected: Expected) -> None:
    """LayerNorm buys 1.8 points of perplexity.

    Beside the spread of the gains of other rows of the ladder.
    """
    *others, gain = (
        runs.perplexities(above.label) - runs.perplexities(below.label) for above, below in PAIRS
    )
    points, because = expected["points"], "no gain, or twice as much, would be another result"
    check(gain, printed_run(points, points, because, like=tuple(others)))


# ---- l.136 and l.140: pre-norm and post-norm ---------------------------------------------------


def block_of(implementation: Implementation, norm: str) -> nn.Module:
    """A block of two heads, d = 16."""
    mixer = implementation.MultiHeadAttention(16, 2)
    block: nn.Module = implementation.Block(16, mixer, norm=norm)
    return block


def parts_of(implementation: Implementation, block: nn.Module) -> list[Any]:
    """Mixer, network and the two LayerNorms of a block."""
    return [implementation.part(block, role) for role in ("mixer", "ff", "ln1", "ln2")]


def idle_stack(implementation: Implementation, norm: str) -> nn.Module:
    """Twelve blocks, d = 16, whose mixers and feed-forward networks contribute zeros."""
    blocks = [implementation.Block(16, Nothing(), norm=norm) for _ in range(12)]
    networks = [implementation.part(block, "ff") for block in blocks]
    for parameter in (p for network in networks for p in network.parameters()):
        nn.init.zeros_(parameter)
    return nn.Sequential(*blocks)


@claim("prenorm-block-code")
def test_the_block_is_two_residual_lines(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """The block is x + att(ln1(x)), then x + ff(ln2(x)), computed here from its own parts."""
    block = rng.build(lambda: block_of(implementation, "pre"))
    x = rng.normal(2, 8, 16)

    @torch.no_grad()
    def written_out(x: Tensor) -> Tensor:
        att, ff, ln1, ln2 = parts_of(implementation, block)
        middle = x + att(ln1(x))
        total: Tensor = middle + ff(ln2(middle))
        return total

    measured, simplest = block(x).detach(), written_out(x)
    block.double()
    check(measured, rounding(written_out(x.double()), simplest, 2, IN_ANOTHER_ORDER))


@claim("prenorm-residual-never-normalised")
def test_the_residual_path_of_pre_norm_is_never_normalised(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """With pre-norm the path from input to output is never normalised; with post-norm it is.

    Twelve blocks whose sub-layers contribute nothing: is the output the input, bit for bit?
    """
    x = rng.normal(2, 8, 16)
    stacks = {n: rng.build(partial(idle_stack, implementation, n)) for n in ("pre", "post")}
    untouched = {norm: torch.equal(stack(x), x) for norm, stack in stacks.items()}
    check(untouched, exact(expected["untouched"]))


@claim("postnorm-formula")
def test_post_norm_normalises_the_sum(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """The 2017 paper: x = LayerNorm(x + Att(x)), and the same for the feed-forward network."""
    block = rng.build(lambda: block_of(implementation, "post"))
    x = rng.normal(2, 8, 16)

    @torch.no_grad()
    def written_out(x: Tensor) -> Tensor:
        att, ff, ln1, ln2 = parts_of(implementation, block)
        middle = ln1(x + att(x))
        total: Tensor = ln2(middle + ff(middle))
        return total

    measured, simplest = block(x).detach(), written_out(x)
    block.double()
    check(measured, rounding(written_out(x.double()), simplest, 2, IN_ANOTHER_ORDER))


# ---- l.142 to l.146: gradients before the first step -------------------------------------------


def first(gradients: PerSeed[Ends]) -> PerSeed[float]:
    return gradients.map(lambda ends: ends[0].attention_output)


def last(gradients: PerSeed[Ends]) -> PerSeed[float]:
    return gradients.map(lambda ends: ends[1].attention_output)


@claim("twelve-blocks-setting")
def test_twelve_blocks_are_trained_for_1000_steps_at_3e_3(check: Check, expected: Expected) -> None:
    """Twelve blocks, 1000 steps, learning rate 3e-3: the settings of the four runs that follow."""
    for label, warmup in expected["warmup"].items():
        run = NORM_RUNS["document"].runs[label]
        given = [run.model.n_blocks, run.steps, run.warmup, run.learning_rate]
        because = "settings are compared as they are"
        printed = [expected["blocks"], expected["steps"], warmup, expected["learning_rate"]]
        check(given, exact(printed, because), facts={"run": label})


@claim("postnorm-gradient-badly-scaled")
def test_the_post_norm_gradient_is_badly_scaled_with_depth(
    check: Check, ends: dict[str, PerSeed[Ends]], last_by_depth: dict[str, list[PerSeed[float]]]
) -> None:
    """At initialisation the gradient of a post-norm network is badly scaled with depth.

    From 1 block to 16, with Xavier's initial values, the last block's gradient falls in pre-norm,
    in the limit by 1 / sqrt(16), and keeps its size in post-norm (Xiong et al. 2020, theorem 1).
    Within twelve blocks, it grows more from the first to the last in post-norm.
    """
    growth = {norm: deep / shallow for norm, (shallow, deep) in last_by_depth.items()}
    grows = check.under("as the stack grows")
    grows(growth["pre"], seed_mean_within((1 / 4, 3 / 4), "falls, by 1 / sqrt(16) at most"))
    grows(growth["post"], seed_mean_within((3 / 4, 4 / 3), "stays the same"))

    pre, post = (last(ends[norm]) / first(ends[norm]) for norm in ("pre", "post"))
    more = seed_mean_within((1.0, 1.5), "more, and about as much more as printed")
    check.under("from block to block")(post / pre, more)


def around(printed: float) -> printed_run:
    because = "half of it: one run is some 15 % from another"
    return printed_run(printed, 0.5, because, relative=True)


@claim("gradnorm-pre")
def test_pre_norm_gradients_are_0_0498_and_0_0657(
    check: Check, expected: Expected, ends: dict[str, PerSeed[Ends]]
) -> None:
    """Pre-norm: 0.0498 in block 1, 0.0657 in block 12, ratio 1.32."""
    one, twelve = expected["block1"], expected["block12"]
    check(twelve / one, digits(expected["ratio"], 2))
    check(first(ends["pre"]), around(one))
    check(last(ends["pre"]), around(twelve))
    check(last(ends["pre"]) / first(ends["pre"]), around(expected["ratio"]))


@claim("gradnorm-ordering")
def test_post_norm_has_the_larger_ratio_and_the_larger_norms(
    check: Check, expected: Expected, ends: dict[str, PerSeed[Ends]]
) -> None:
    """Post-norm has the larger ratio of last to first, and the larger norms.

    Compared seed by seed, because a seed gives both the same parameters and windows. The bands are
    twice as wide as the printed excess.
    """
    pre, post = ends["pre"], ends["post"]
    of_ratios = (last(post) / first(post)) / (last(pre) / first(pre))
    of_norms = {"block1": first(post) / first(pre), "block12": last(post) / last(pre)}
    measured = {"ratio": of_ratios, **of_norms}
    for name, printed in expected["post_over_pre"].items():
        because = "larger in post-norm, about as much as printed"
        larger = seed_mean_within((1, 1 + 2 * (printed - 1)), because)
        check(measured[name], larger, unit=f"{name}, post / pre")


@claim("gradnorm-over-all-parameters")
def test_over_all_parameters_of_a_block_the_ratios_are_about_0_9_and_1(
    check: Check, ends: dict[str, PerSeed[Ends]]
) -> None:
    """Over all parameters of a block, last to first is about 0.9 in pre-norm and 1.0 in post-norm.

    So the printed norms "per block" are not those of whole blocks: 1.32 and 1.65 lie outside.
    """
    ratio = {
        norm: ends[norm].map(lambda each: each[1].all_parameters / each[0].all_parameters)
        for norm in ends
    }
    check(ratio["pre"], seed_mean_within((0.7, 1.1), "about 0.9, far from 1.32"))
    check(ratio["post"], seed_mean_within((0.8, 1.3), "about 1.0, far from 1.65"))


@claim("gradnorm-post")
def test_post_norm_gradients_are_0_0977_and_0_1613(
    check: Check, expected: Expected, ends: dict[str, PerSeed[Ends]]
) -> None:
    """Post-norm: 0.0977 in block 1, 0.1613 in block 12, ratio 1.65."""
    one, twelve = expected["block1"], expected["block12"]
    check(twelve / one, digits(expected["ratio"], 2))
    check(first(ends["post"]), around(one))
    check(last(ends["post"]), around(twelve))
    check(last(ends["post"]) / first(ends["post"]), around(expected["ratio"]))


# ---- l.148 to l.153: twelve blocks, trained ----------------------------------------------------


# The three runs that l.148 to l.151 print with nearly one perplexity.
CONVERGED = ("pre-norm", "pre-norm, warmup", "post-norm, warmup")


def one_of_three(printed: float, like: tuple[PerSeed[float], ...]) -> printed_run:
    because = "a tenth: the run that fails is eight times as high"
    return printed_run(printed, 0.1, because, relative=True, like=like)


@claim("prenorm-nowarmup-37.82")
@trains(NORM_RUNS, *CONVERGED)
def test_pre_norm_without_warmup_reaches_37_82(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Pre-norm without warmup reaches a perplexity of 37.82."""
    like = tuple(runs.perplexities(label) for label in CONVERGED if label != "pre-norm")
    check(runs.perplexities("pre-norm"), one_of_three(expected["value"], like))


@claim("prenorm-warmup-37.62")
@trains(NORM_RUNS, *CONVERGED)
def test_pre_norm_with_warmup_reaches_37_62(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Pre-norm with a warmup of 200 steps reaches 37.62."""
    like = tuple(runs.perplexities(label) for label in CONVERGED if label != "pre-norm, warmup")
    check(runs.perplexities("pre-norm, warmup"), one_of_three(expected["value"], like))


@claim("postnorm-nowarmup-308")
@trains(NORM_RUNS, "post-norm")
def test_post_norm_without_warmup_ends_at_308(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Post-norm without warmup ends at 308.05."""
    because = "5 %: not even that much is learnt beyond the frequencies of tokens"
    printed = printed_run(expected["value"], 0.05, because, relative=True)
    check(runs.perplexities("post-norm"), printed)


@claim("postnorm-warmup-37.88")
@trains(NORM_RUNS, *CONVERGED)
def test_post_norm_with_warmup_reaches_37_88(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Post-norm with a warmup of 200 steps reaches 37.88."""
    like = tuple(runs.perplexities(label) for label in CONVERGED if label != "post-norm, warmup")
    check(runs.perplexities("post-norm, warmup"), one_of_three(expected["value"], like))


@claim("postnorm-nowarmup-eight-times")
def test_post_norm_without_warmup_is_eight_times_worse_in_print(
    check: Check, expected: Expected
) -> None:
    """By the printed figures, post-norm without warmup is eight times worse than the others."""
    times = [expected["perplexity"] / other for other in expected["others"]]
    check(times, digits([expected["times"]] * 3, 0))


@claim("postnorm-nowarmup-eight-times-in-our-runs")
@trains(NORM_RUNS, "post-norm", *CONVERGED)
def test_post_norm_without_warmup_is_eight_times_worse(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Post-norm without warmup is eight times worse, whichever of the three others is meant."""
    for label in CONVERGED:
        times = runs.perplexities("post-norm") / runs.perplexities(label)
        check(times, seed_mean_within(expected["band"], "what rounds to eight"), unit=label)


@claim("postnorm-nowarmup-learns-frequencies")
@trains(NORM_RUNS, "post-norm", "pre-norm", "post-norm, two blocks")
def test_post_norm_without_warmup_learns_no_more_than_frequencies(
    runs: Runs, check: Check, expected: Expected, tokens: Tensor
) -> None:
    """Without warmup post-norm is far worse: it learns how frequent tokens are, and nothing else.

    Each perplexity over that of the training split's token frequencies. Twelve post-norm blocks end
    no better than the frequencies. The controls, pre-norm and two post-norm blocks, end below.
    """
    level = unigram_perplexity(tokens)
    labels = ("post-norm", "pre-norm", "post-norm, two blocks")
    deep, pre, shallow = (
        runs.perplexities(label).map(lambda perplexity: perplexity / level) for label in labels
    )
    check(deep, seed_mean_within(expected["diverged"], "like the frequencies"))
    for control in (pre, shallow):
        check(control, seed_mean_within(expected["learnt"], "clearly below it"))


@claim("postnorm-warmup-matches-prenorm")
def test_post_norm_with_warmup_matches_pre_norm_exactly(check: Check, expected: Expected) -> None:
    """By the printed figures, post-norm with warmup matches pre-norm exactly."""
    check([expected["postnorm"]] * 2, digits(expected["prenorm"], 2))


@claim("postnorm-warmup-close-to-prenorm")
@trains(NORM_RUNS, "post-norm, warmup", "pre-norm, warmup")
def test_post_norm_with_warmup_comes_close_to_pre_norm(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Post-norm with warmup differs from pre-norm by no more than one seed does from another."""
    post, pre = (runs.perplexities(f"{norm}-norm, warmup") for norm in ("post", "pre"))
    band = seed_mean_within(expected["band"], "5 %, not the factor without warmup")
    check(post / pre, band)


@claim("prenorm-does-not-need-warmup")
@trains(NORM_RUNS, "pre-norm", "pre-norm, warmup")
def test_pre_norm_does_not_need_warmup(runs: Runs, check: Check, expected: Expected) -> None:
    """Moving the LayerNorm removes the need for warmup."""
    without, with_it = (runs.perplexities(label) for label in ("pre-norm", "pre-norm, warmup"))
    band = seed_mean_within(expected["band"], "5 %, and not a factor")
    check(without / with_it, band)
