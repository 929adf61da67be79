"""Section 6: several heads, a network within each position, and where the parameters are.

One softmax row is one distribution, so several heads divide the width among them. Attention moves
information between positions and a small network computes within each; each piece lowers the
perplexity (the ladder). Two thirds of the parameters of the resulting block are in that network.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from fractions import Fraction
from itertools import pairwise

import torch
from hypothesis import given, settings
from torch import Tensor, nn

from claims.experiments import HALF
from claims.experiments.ladder import LADDER_RUNS
from claims.experiments.rungs import (
    AVERAGE_ADDED,
    AVERAGE_REPLACING,
    AVERAGE_WITH_POSITIONS,
    FOUR_HEADS,
    HEAD_ADDED,
    HEAD_REPLACING,
    LADDER,
    ONE_BLOCK,
    TWO_BLOCKS,
    WITH_MLP,
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
    rounding,
    seed_mean_within,
    trains,
    ulps,
    within,
)
from claims.harness.implementation import Implementation
from claims.harness.strategies import lengths, tensors
from claims.instruments.attention.influence import before_and_after_permutation, influence
from claims.instruments.attention.scores import weights_of
from claims.instruments.cost.parameters import parameters_of
from claims.training.results import Runs

# ---- l.120: heads -----------------------------------------------------------------------------


@claim("one-softmax-row-per-position")
@settings(max_examples=40)
@given(q=tensors(3, 4, magnitude=100.0), k=tensors(lengths(12), 4))
def test_a_head_has_one_distribution_per_position(
    implementation: Implementation, check: Check, q: Tensor, k: Tensor
) -> None:
    """A head is one softmax row per position: it cannot concentrate in three places at once.

    Whatever the scores, flat or in the hundreds, the magnitudes of the weights of each query sum to
    one. So the third largest of them is at most a third.
    """
    total = weights_of(implementation.attention, q, k).double().abs().sum(-1).float()
    # The errors of the m exponentials cancel in the sum. What remains are m - 1 additions, a
    # division, perhaps as a reciprocal and a product, and the rounding of the total to float32.
    because = "m + 2 roundings: the softmax's sum of m, its division, the total to float32"
    check(total, ulps(torch.ones(3), len(k) + 2, because))


@claim("multihead-partitions-width")
@settings(max_examples=40)
@given(n_heads=lengths(8), d_head=lengths(16))
def test_heads_partition_the_width(
    implementation: Implementation, check: Check, n_heads: int, d_head: int
) -> None:
    """Several heads of width d_model / h partition the width rather than add to it.

    For any number of heads, W_q, W_k and W_v together have 3 d^2 parameters, and W_o, which takes
    the concatenation, d^2 and its bias: the number depends on d alone.
    """
    d = n_heads * d_head
    with torch.device("meta"):
        heads = implementation.MultiHeadAttention(d, n_heads)
    check(implementation.count_parameters(heads), exact(3 * d * d + d * d + d))


@claim("wo-extra-matrix")
def test_heads_are_concatenated_and_mixed_by_one_more_matrix(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """The heads are concatenated and mixed by one more matrix, W_o.

    Four separate heads, each with its own rows of W_q, W_k and W_v, side by side and times W_o,
    give what one module of four heads gives. Both do the same arithmetic in another order: k = 2.
    """
    x, many = rng.normal(2, 12, 32), rng.build(lambda: implementation.MultiHeadAttention(32, 4))

    def separately(dtype: torch.dtype) -> Tensor:
        heads = [rng.build(lambda: implementation.Head(32, 8, 12)) for _ in range(4)]
        for i, head in enumerate(heads):
            rows = slice(8 * i, 8 * i + 8)
            of_head = {role: implementation.weight(many, role)[rows] for role in "qkv"}
            implementation.set_weights(head, **of_head)
        mixed = torch.cat([head.to(dtype)(x.to(dtype)) for head in heads], dim=-1)
        bias = implementation.bias(many, "o")
        bias = None if bias is None else bias.to(dtype)
        return nn.functional.linear(mixed, implementation.weight(many, "o").to(dtype), bias)

    with torch.no_grad():
        reference, simplest = separately(torch.float64), separately(torch.float32)
        because = "the same products, summed in another order"
        check(many(x), rounding(reference, simplest, 2, because))
    check(implementation.count_parameters(many) - 3 * 32 * 32, exact(32 * 32 + 32))


# ---- l.122: attention moves, the network computes ----------------------------------------------


@claim("attention-only-moves-information")
def test_attention_only_moves_information(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Attention does exactly one thing: it moves information between positions.

    A head on a single token can move nothing, and returns W_v x, bit for bit. On more tokens its
    output is the weights times the values, whatever the queries and keys are.
    """
    head = rng.build(lambda: implementation.Head(8, 4, 1))
    w_v, x = rng.integers(-8, 9, 4, 8, salt="W_v"), rng.integers(-8, 9, 3, 1, 8, salt="x")
    implementation.set_weights(head, v=w_v.float())
    with torch.no_grad():
        alone = head(x.float())
    because = "the softmax of one score is 1; integers this small multiply and add exactly"
    check(alone, exact((x @ w_v.T).float(), because))

    q, k, v = (rng.normal(16, 8, salt=name) for name in "qkv")
    moved, weights = implementation.attention(q, k, v, return_weights=True)
    w, values = weights.double(), v.double()
    check(moved, ulps(w @ values, 16, "a sum of 16 products: 16 roundings each", w @ values.abs()))


@claim("attention-feature-linear")
def test_every_operation_of_a_head_is_linear_along_the_features(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Every operation in a head is linear along the feature axis.

    With the weights held fixed, as the same queries and keys give them, f(a v + b w) is
    a f(v) + b f(w), in float64. As a function of its input a head is not: f(x + y) is not
    f(x) + f(y), because a score is a product of features with features.
    """
    q, k, v, w = (rng.normal(12, 8, salt=name, dtype=torch.float64) for name in "qkvw")
    a, b = rng.normal(2, dtype=torch.float64)

    def mix(values: Tensor) -> Tensor:
        mixed: Tensor = implementation.attention(q, k, values)
        return mixed

    magnitudes = mix(a.abs() * v.abs() + b.abs() * w.abs())
    because = "on each side two roundings, and a sum of 12 products"
    linear = ulps(a * mix(v) + b * mix(w), 2 * (12 + 3), because, magnitudes)
    check.under("in what is moved")(mix(a * v + b * w), linear)

    head = rng.build(lambda: implementation.Head(8, 8, 6))
    x, y = rng.normal(1, 6, 8, salt="x"), rng.normal(1, 6, 8, salt="y")
    with torch.no_grad():
        separately, at_once = head(x) + head(y), head(x + y)
        head.double()
        reference = head(x.double()) + head(y.double())
    linear_too = rounding(reference, separately, 2, "a linear map rounds both sides alike")
    check.under("in the input of the head")(at_once, linear_too)


@claim("stack-of-linear-is-linear")
def test_a_stack_of_linear_maps_is_one_linear_map(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """A stack of linear maps is a linear map.

    Two attention layers with their weights fixed, A_2 (A_1 v), are one matrix, (A_2 A_1) v: one
    layer could do the same, unless something nonlinear stands between the two.
    """
    T = 12
    q1, k1, q2, k2, v = (
        rng.normal(T, 8, salt=name, dtype=torch.float64) for name in ("q1", "k1", "q2", "k2", "v")
    )
    first, a1 = implementation.attention(q1, k1, v, return_weights=True)
    second, a2 = implementation.attention(q2, k2, first, return_weights=True)
    because = "on each side two sums of 12 products"
    check(second, ulps((a2 @ a1) @ v, 2 * (2 * T + 1), because, a2 @ a1 @ v.abs()))


@claim("mlp-per-position")
def test_the_network_is_applied_to_each_position_independently(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """The feed-forward network is applied to each position independently.

    Each position is changed in turn: only its own output changes by a bit. And the same tokens at
    other positions give the same outputs, so it is one network for all positions.
    """
    ff = rng.build(lambda: implementation.FeedForward(8)).requires_grad_(False)
    x, other, order = rng.normal(1, 64, 8), rng.normal(8, salt="other"), rng.permutation(64)
    at = torch.eye(64).bool()
    changes = [ff(torch.where(one[:, None], other, x)) != ff(x) for one in at]
    check(torch.cat(changes).any(-1), exact(at))

    moved, simplest = before_and_after_permutation(ff, x, order)
    reference = ff.double()(x.double())[:, order]
    because = "the same products, at another place in the kernel"
    check(moved, rounding(reference, simplest, 2, because))


@claim("mlp-four-times-gelu")
def test_the_network_widens_by_four_with_a_gelu_in_the_middle(
    implementation: Implementation, check: Check, rng: Draws, expected: Expected
) -> None:
    """The network expands the width by four and comes back, with a GELU in the middle.

    By the shapes of its matrices. With both matrices replaced by identities the network gives
    GELU(x), expected to be x Phi(x), with Phi by the complementary error function.
    """
    d, ff = 64, rng.build(lambda: implementation.FeedForward(64)).double()
    matrices = {role: implementation.weight(ff, role) for role in ("expand", "contract")}
    shapes = [[Fraction(n, d) for n in matrix.shape] for matrix in matrices.values()]
    check(shapes, exact(expected["widths_in_d"]))

    x = torch.linspace(-8, 8, d, dtype=torch.float64)
    identities = {role: torch.eye(*matrix.shape) for role, matrix in matrices.items()}
    implementation.set_weights(ff, **identities)
    with torch.no_grad():
        passed = ff(x)
    gelu = x * torch.special.erfc(-x / math.sqrt(2)) / 2
    because = "on each side an argument, an error function within 2 u, a sum and a product"
    check(passed, ulps(gelu, 8, because, scale=x))


@claim("division-of-labour")
def test_attention_mixes_across_positions_and_the_network_computes_within_one(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Attention mixes across positions; the feed-forward network computes within a position.

    By the derivative of every output position by every input position. For attention it is above
    zero for every earlier position, for the network only for its own.
    """
    x = rng.normal(1, 6, 16, dtype=torch.float64)
    attention = rng.build(lambda: implementation.MultiHeadAttention(16, 4)).double()
    network = rng.build(lambda: implementation.FeedForward(16)).double()
    earlier = torch.ones(6, 6, dtype=torch.bool).tril(-1)
    across, own = influence(attention, x), influence(network, x)
    check(across[earlier], within(0, math.inf, "no weight of a softmax is zero", strict=True))
    check(own.diagonal(), within(0, math.inf, "the network depends on its token", strict=True))
    none = exact(torch.zeros(6, 6).double(), "no path leads from another position")
    check(own - own.diag().diag(), none)


# ---- l.124 to l.126: the ladder ----------------------------------------------------------------



def changed(one: Rung, other: Rung) -> list[str]:
    """The settings in which two rows differ. Where one has no block, how its block is set is no
    difference.
    """
    first, second = asdict(one.model), asdict(other.model)
    counted = first if first["n_blocks"] and second["n_blocks"] else ("n_blocks", "positions")
    return [name for name in counted if first[name] != second[name]]


@claim("ladder-each-row-adds-one-piece")
def test_each_row_of_the_ladder_adds_one_piece(check: Check) -> None:
    """Each row adds one piece to the row above.

    In how many settings each of the rows after the first differs from the row just above it, and
    from that of all rows above which is most like it.
    """
    rows = LADDER[1:]
    one = exact([1] * len(rows))
    just_above = [len(changed(row, above)) for above, row in pairwise(LADDER)]
    check.under("to the row just above it")(just_above, one)
    least = [min(len(changed(row, other)) for other in LADDER[:i]) for i, row in enumerate(rows, 1)]
    check.under("to one of the rows above it")(least, one)


@claim("ladder-rows-in-between")
@trains(LADDER_RUNS, *(rung.label for rung in LADDER))
def test_the_rows_that_the_text_leaves_open_are_as_its_differences_say(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """One head replacing has a perplexity of about 55.5, one head added 46.5, the MLP 39.87.

    Each row beside the relative spread of all ten rows over their seeds.
    """
    rows = {rung.label: runs.perplexities(rung.label) for rung in LADDER}
    for label, perplexity in expected["perplexity"].items():
        others = tuple(each for other, each in rows.items() if other != label)
        because = "5 %: less than most pieces of the ladder are worth"
        printed = printed_run(perplexity, 0.05, because, relative=True, like=others)
        check(rows[label], printed, facts={"row": label})


@claim("ladder-param-counts")
def test_parameters_of_the_ladder(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """The rows of the ladder have from 262,144 to 674,560 parameters.

    Counted on the ten models of the ladder's settings, and computed from the settings. Then how
    many parameters each piece adds to a row.
    """
    counted = {r.label: parameters_of(implementation, **asdict(r.model)) for r in LADDER}
    computed = [implementation.model_parameters(**asdict(rung.model))["total"] for rung in LADDER]
    check(list(counted.values()), exact(expected["parameters"]))
    check(computed, exact(expected["parameters"]))
    added = {
        "positions": (AVERAGE_REPLACING, AVERAGE_WITH_POSITIONS),
        "one head": (AVERAGE_WITH_POSITIONS, HEAD_REPLACING),
        "W_o": (HEAD_ADDED, FOUR_HEADS),
        "MLP": (FOUR_HEADS, WITH_MLP),
        "LayerNorm": (WITH_MLP, ONE_BLOCK),
        "second block": (ONE_BLOCK, TWO_BLOCKS),
    }
    pieces = {name: counted[b.label] - counted[a.label] for name, (a, b) in added.items()}
    check(pieces, exact(expected["pieces"]))


@claim("learned-beats-uniform")
@trains(LADDER_RUNS, AVERAGE_ADDED.label, HEAD_ADDED.label)
def test_learned_weights_beat_uniform_ones(runs: Runs, check: Check, expected: Expected) -> None:
    """Learned weights beat uniform ones, both added."""
    uniform, learned = (runs.perplexities(r.label) for r in (AVERAGE_ADDED, HEAD_ADDED))
    band = seed_mean_within(expected["band"], "a gain, by up to twice the printed one")
    check(uniform - learned, band)


@claim("learned-beats-uniform-14")
@trains(LADDER_RUNS, AVERAGE_ADDED.label, HEAD_ADDED.label)
def test_learned_weights_beat_uniform_ones_by_14_points(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Learned weights beat uniform ones by 14 points of perplexity, both added."""
    points = expected["points"]
    uniform, learned = (runs.perplexities(r.label) for r in (AVERAGE_ADDED, HEAD_ADDED))
    check(uniform - learned, printed_run(points, points / 2, HALF))


@claim("four-heads-3-points")
@trains(LADDER_RUNS, HEAD_ADDED.label, FOUR_HEADS.label)
def test_four_heads_buy_another_3_points(runs: Runs, check: Check, expected: Expected) -> None:
    """Four heads buy another 3 points over the one."""
    points = expected["points"]
    one, four = (runs.perplexities(r.label) for r in (HEAD_ADDED, FOUR_HEADS))
    check(one - four, printed_run(points, points / 2, HALF))


@claim("four-heads-16512-params")
def test_four_heads_cost_16_512_parameters(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Four heads in place of one cost 16,512 more parameters.

    128 x 128 + 128: the matrix W_o with its bias, and nothing else, because the four heads divide
    the width of the single head among them.
    """
    four, one = (
        parameters_of(implementation, **asdict(rung.model)) for rung in (FOUR_HEADS, HEAD_ADDED)
    )
    more = four - one
    check(more, exact(expected["value"]))
    check(more, exact(128 * 128 + 128))


@claim("added-beats-replacing")
@trains(LADDER_RUNS, HEAD_REPLACING.label, HEAD_ADDED.label)
def test_the_same_head_is_worth_more_added_than_replacing(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """The same head is worth more added than replacing."""
    replacing, added = (runs.perplexities(r.label) for r in (HEAD_REPLACING, HEAD_ADDED))
    band = seed_mean_within(expected["band"], "a gain, by up to twice the printed one")
    check(replacing - added, band)


@claim("added-beats-replacing-9")
@trains(LADDER_RUNS, HEAD_REPLACING.label, HEAD_ADDED.label)
def test_the_same_head_is_worth_9_points_more_added_than_replacing(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """The same head is worth 9 points more added than replacing."""
    points = expected["points"]
    replacing, added = (runs.perplexities(r.label) for r in (HEAD_REPLACING, HEAD_ADDED))
    check(replacing - added, printed_run(points, points / 2, HALF))


# ---- l.129 and l.130: where the parameters are -------------------------------------------------


@claim("param-table-768-row")
def test_parameters_of_the_parts_of_a_block(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """At d = 768 attention has 2,360,064 parameters, the MLP 4,722,432, the LayerNorms 3,072.

    Counted on the parts, at the chapter's own d = 128 as well; W_q, W_k and W_v have no biases.
    """
    count = implementation.count_parameters

    def parts(d: int) -> dict[str, int]:
        with torch.device("meta"):
            attention = implementation.MultiHeadAttention(d, 4)
            network = implementation.FeedForward(d)
            block = implementation.Block(d, attention)
        own = {"attention": count(attention), "mlp": count(network)}
        return own | {"layernorms": count(block) - sum(own.values()), "block": count(block)}

    check({d: parts(d) for d in (768, 128)}, exact(expected["at"]))


@claim("two-thirds-of-block-is-ffn")
def test_two_thirds_of_a_block_is_its_network(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Two thirds of every transformer block is the feed-forward network, at any scale.

    Of its matrices, exactly. With biases and LayerNorms the share is below two thirds, by
    5 / (3 (12 d + 10)), or 11 / (3 (12 d + 13)) with biases on all of attention: less than half a
    percent at these widths.
    """
    widths = list(expected["share"])

    def share(d: int, *, qkv_bias: bool = False, matrices_alone: bool = False) -> Fraction:
        with torch.device("meta"):
            mixer = implementation.MultiHeadAttention(d, 4, qkv_bias=qkv_bias)
            block = implementation.Block(d, mixer)
        network, whole = (
            sum(p.numel() for p in part.parameters() if p.dim() == 2 or not matrices_alone)
            for part in (implementation.part(block, "ff"), block)
        )
        return Fraction(network, whole)

    two_thirds, whole = Fraction(2, 3), {d: share(d) for d in widths}
    matrices = [share(d, matrices_alone=True) for d in widths]
    check(matrices, exact([two_thirds] * len(widths)))
    check(whole, exact({d: two_thirds - Fraction(5, 3 * (12 * d + 10)) for d in widths}))
    with_biases = share(768, qkv_bias=True)
    check(with_biases, exact(two_thirds - Fraction(11, 3 * (12 * 768 + 13))))
    check(whole, digits(expected["share"], 5))
    almost = within(2 / 3 * 0.995, 2 / 3, "5 / (2 (12 d + 10)) < 0.005 from d = 41")
    check(list(map(float, whole.values())), almost)


@claim("attention-four-mlp-eight")
def test_attention_has_four_matrices_and_the_network_eight(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Attention has four d x d matrices, and the network the equivalent of eight.

    Counting the parameters that are matrices, at three widths.
    """

    def matrices(d: int) -> dict[str, Fraction]:
        with torch.device("meta"):
            parts = {
                "attention": implementation.MultiHeadAttention(d, 4),
                "mlp": implementation.FeedForward(d),
            }
        return {
            name: Fraction(sum(p.numel() for p in part.parameters() if p.dim() == 2), d * d)
            for name, part in parts.items()
        }

    widths = (64, 128, 768)
    derived = expected["matrices_of_d_by_d"]
    check({d: matrices(d) for d in widths}, exact(dict.fromkeys(widths, derived)))


def networks_share(implementation: Implementation, model: nn.Module, whole: str) -> Fraction:
    """The share that the model's feed-forward networks have of its parameters.

    Of all of them, or of those of a part, such as its blocks.
    """
    blocks = implementation.part(model, "blocks")
    networks = [implementation.part(block, "ff") for block in blocks]
    counted = model if whole == "model" else implementation.part(model, whole)
    in_networks = sum(p.numel() for network in networks for p in network.parameters())
    return Fraction(in_networks, sum(p.numel() for p in counted.parameters()))


@claim("most-parameters-in-mlp")
def test_most_parameters_are_in_the_per_position_networks(
    implementation: Implementation, check: Check
) -> None:
    """Most of the parameters are in the per-position network.

    Of a block, as in the sentence before, in the chapter's model of one block; and of all its
    parameters, of which its tables and its output head have more than half.
    """
    with torch.device("meta"):
        model = implementation.LanguageModel(**asdict(ONE_BLOCK.model))
    most = within(0.5, 1.0, "most is more than half", strict=True)
    of_blocks, of_model = (networks_share(implementation, model, w) for w in ("blocks", "model"))
    check.under("of a block")(float(of_blocks), most)
    check.under("of a whole model")(float(of_model), most)


@claim("networks-of-whole-models")
def test_networks_hold_less_than_half_of_small_models(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """The MLPs hold 27.6 % of the chapter's model, 45.5 % of GPT-2, two thirds of their blocks.

    The rest are in the embedding tables and the output head. Counted on the models.
    """
    with torch.device("meta"):
        models = {
            "chapter": implementation.LanguageModel(**asdict(ONE_BLOCK.model)),
            "gpt2_small": implementation.gpt2_small(),
        }
    of_models, of_blocks = (
        {name: float(100 * networks_share(implementation, m, whole)) for name, m in models.items()}
        for whole in ("model", "blocks")
    )
    check(of_models, digits(expected["percent_of_model"], 1))
    check(of_blocks, digits(expected["percent_of_blocks"], 1))
