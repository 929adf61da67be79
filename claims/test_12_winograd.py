"""Section 12: a language in which what a head does has a right answer.

One adjective decides what a pronoun means. With an animal and a place the words alone give the
answer; with two nouns out of one pool only their order does, and a model that does not see order
cannot tell the two apart. Some claims are about the language, about models whatever their weights,
and about printed numbers. The others are about trained models: what they answer, where they look,
and, by cutting edges and exchanging outputs, what their answers depend on.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from functools import partial
from statistics import fmean, median
from typing import Any

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from claims.experiments.winograd import (
    AVERAGE,
    CATEGORIES,
    LONGER,
    MAPS,
    ORDER_BLIND,
    TEN_SEEDS,
    WINOGRAD,
)
from claims.experiments.winograd_map import WINOGRAD_STEPS
from claims.harness import (
    Check,
    Draws,
    Expected,
    PerSeed,
    claim,
    digits,
    every_seed_within,
    exact,
    printed_run,
    rounding,
    seed_mean_within,
    trains,
    ulps,
    within,
)
from claims.harness.implementation import Implementation
from claims.instruments.attention.activations import attention_weights, mixer_of, passing_through
from claims.instruments.attention.projections import projected
from claims.instruments.languages.schemas import (
    ADJECTIVE,
    ANSWER,
    CATEGORY,
    CROSSED,
    CROSSER,
    FIRST,
    POOL,
    SCORED,
    SECOND,
    Sentence,
    count_answers,
    parse,
    split,
)
from claims.training.measurements import (
    ATTENTION,
    CIRCUIT,
    FIRST_NOUN_AHEAD,
    FIRST_NOUN_READ,
    ONE_PREFERENCE,
    SHARES,
    TIRED,
    WET,
    Attention,
    right,
    solved,
)
from claims.training.results import Runs

OFF_THE_ADJECTIVE = [i for i in range(SCORED + 1) if i != ADJECTIVE]


# ---- the language --------------------------------------------------------------------------------


@claim("winograd-one-word")
@given(
    pair=st.sampled_from(POOL.pairs),
    one=st.sampled_from(CROSSER),
    other=st.sampled_from(CROSSED),
)
def test_the_sentences_of_a_schema_differ_in_one_word(
    check: Check, pair: tuple[str, str], one: str, other: str
) -> None:
    """Winograd pairs are identical except for one word, and that word decides the referent.

    Any two nouns, an adjective of either role: of the words before the answer one differs, the
    adjective; and so does the answer.
    """
    words = zip(Sentence(*pair, one).words, Sentence(*pair, other).words, strict=True)
    check([i for i, (a, b) in enumerate(words) if a != b], exact([ADJECTIVE, ANSWER]))


@claim("cheat-category-solvable")
def test_categories_are_solved_by_a_bag_of_words(check: Check) -> None:
    """With an animal and a place the adjective tells the category: a bag of words is enough.

    A look-up is given the words before the answer, without their order.
    """

    def look_up(bag: Counter[str]) -> str:
        kind = CATEGORY.firsts if any(bag[word] for word in CROSSER) else CATEGORY.seconds
        return next(noun for noun in kind if bag[noun])

    sentences = CATEGORY.sentences()
    answered = count_answers(sentences, [look_up(Counter(s.prompt)) for s in sentences])
    check(answered.right, exact(len(sentences)))


@claim("cheat-uniform-100")
@trains(CATEGORIES, "average")
def test_the_average_solves_the_category_version(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """On the category version the uniform causal average names the right noun, 100.0 %.

    Of twelve pairs held out, 96 sentences, the share whose greatest logit is the referent's: in
    every seed.
    """
    measured = right(runs, "average")
    check(measured, digits([expected["value"]] * len(measured), 3))


@claim("average-learns-the-category-version")
@trains(CATEGORIES, "average, 1e-2")
def test_the_average_learns_the_category_version(runs: Runs, check: Check) -> None:
    """A trained bag of words, too, names the right noun nearly always on the category version."""
    near = every_seed_within((0.9, 1.0), "nine of ten sentences or more")
    check(right(runs, "average, 1e-2"), near)


@claim("cheat-one-block-91.7")
@trains(CATEGORIES, "one block", "one block, 1e-2")
def test_one_block_on_the_category_version(runs: Runs, check: Check, expected: Expected) -> None:
    """On the category version one transformer block names the right noun, 91.7 %: in a seed."""
    for name, label in (("at 1e-2", "one block, 1e-2"), ("at 1e-3", "one block")):
        nearest = _nearest(right(runs, label), expected["value"])
        check.under(name)(nearest, digits(expected["value"], 3))


@claim("bag-beats-transformer")
@trains(CATEGORIES, "average", "one block", "average, 1e-2", "one block, 1e-2")
def test_the_bag_of_words_beats_the_transformer(runs: Runs, check: Check) -> None:
    """On the category version the bag of words beats the transformer.

    The average's accuracy minus one block's, seed by seed, on the same held-out pairs.
    """
    for name, rate in (("at 1e-2", ", 1e-2"), ("at 1e-3", "")):
        average, block = (right(runs, f"{model}{rate}") for model in ("average", "one block"))
        check.under(name)(average - block, seed_mean_within((0.001, 1.0), "ahead"))


@claim("pool-16-nouns")
def test_both_candidates_come_from_one_pool_of_sixteen_nouns(
    check: Check, expected: Expected
) -> None:
    """Both candidates come from a set of sixteen nouns, any of which may stand in either slot.

    So 16 * 15 ordered pairs of two different nouns, 120 unordered, and 8 sentences for each.
    """
    counts = {
        "first nouns": len({x for x, _ in POOL.pairs}),
        "second nouns": len({y for _, y in POOL.pairs}),
        "ordered pairs": len(POOL.pairs),
        "unordered pairs": len({frozenset(pair) for pair in POOL.pairs}),
        "sentences": len({s.text for s in POOL.sentences()}),
    }
    check(counts, exact(dict(expected)))


@claim("pool-closes-the-hole")
def test_in_the_pool_the_words_alone_do_not_tell_the_answer(check: Check) -> None:
    """One pool and adjectives by role close the hole: the bag of words leaves both nouns possible.

    Every bag of words before an answer belongs to two sentences with different answers.
    """
    referents: dict[frozenset[tuple[str, int]], list[str]] = {}
    for sentence in POOL.sentences():
        bag = frozenset(Counter(sentence.prompt).items())
        referents.setdefault(bag, []).append(sentence.referent)
    kinds = Counter((len(found), len(set(found))) for found in referents.values())
    check(list(kinds.items()), exact([((2, 2), 960)]))


@claim("adjectives-4-4")
def test_four_adjectives_mean_the_crosser_and_four_the_crossed(
    check: Check, expected: Expected
) -> None:
    """Four adjectives make `it` the one that crosses, four the one that is crossed.

    Read off the sentences about one pair of nouns.
    """
    roles: dict[str, list[str]] = {"animal": [], "street": []}
    for sentence in POOL.sentences([("animal", "street")]):
        roles[sentence.words[ANSWER]].append(sentence.words[ADJECTIVE])
    check(roles, exact({"animal": expected["crosser"], "street": expected["crossed"]}))


@claim("template")
@given(sentence=st.sampled_from(POOL.sentences()))
def test_every_sentence_has_the_printed_shape(
    check: Check, expected: Expected, sentence: Sentence
) -> None:
    """the {x} did not cross the {y} because it was too {adj} , so the {ref} waited .

    Every sentence is the template filled in: 18 words, of which the one at index 14 predicts the
    answer. Encoded and decoded it has the same nouns, adjective and referent.
    """
    slots = {"x": sentence.x, "y": sentence.y, "adj": sentence.adjective}
    check(sentence.text, exact(expected["template"].format(**slots, ref=sentence.referent)))
    tokens = POOL.encode([sentence])[0]
    check(parse(POOL.decode(tokens)), exact(sentence))
    check([len(tokens), SCORED], exact([expected["tokens"], expected["scored"]]))


@claim("heldout-reversed-pairs")
@settings(max_examples=20)
@given(n=st.integers(1, 120), seed=st.integers(0, 2**31))
@example(n=48, seed=0)
def test_the_reverse_of_every_held_out_pair_is_in_training(
    check: Check, expected: Expected, n: int, seed: int
) -> None:
    """The held-out set is made of noun pairs whose reverse was in training.

    Any number of pairs, any seed: no held-out sentence is in training, its reverse is, and no
    sentence is lost. 48 of the 120 pairs give 384 held-out sentences, eight for each.
    """
    parts = split(POOL, n, torch.Generator().manual_seed(seed))
    train, held_out = set(parts.train), set(parts.held_out)
    found = [bool(held_out & train), {s.swapped for s in held_out} <= train, len(held_out)]
    check(found, exact([False, True, 8 * n]))
    check(train | held_out == set(POOL.sentences()), exact(True))
    check(8 * expected["pairs"], exact(expected["sentences"]))


# ---- without order -------------------------------------------------------------------------------


@claim("order-blind-answers-backwards")
@trains(ORDER_BLIND, "average")
def test_the_order_blind_average_answers_backwards(runs: Runs, check: Check) -> None:
    """What knows which nouns are present, but not which came first, must answer backwards.

    The share of held-out sentences to which the uniform average answers with the wrong noun.
    """
    check(_wrong(runs, "average"), every_seed_within((0.99, 1.0), "backwards: always wrong"))


@claim("order-blind-memoriser-answers-backwards")
def test_an_order_blind_memoriser_answers_backwards(check: Check, rng: Draws) -> None:
    """A model that learnt every bag of training words by heart answers the others backwards.

    The bag of a held-out sentence occurred in training once, with the nouns in the other order.
    """
    parts = split(POOL, 48, rng.generator("split"))
    learnt = {frozenset(s.prompt): s.referent for s in parts.train}
    answered = count_answers(parts.held_out, [learnt[frozenset(s.prompt)] for s in parts.held_out])
    check(answered.wrong_noun, exact(len(parts.held_out)))


@claim("order-blind-same-logits")
def test_the_average_gives_swapped_nouns_the_same_logits(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """The average can't tell who crosses: (a, b, adjective) and (b, a, adjective) get equal logits.

    All 1,920 sentences, in pairs, untrained weights: the bare average, and an average in a block
    with residual, LayerNorm and network. Both averages are sums of the same terms.
    """
    sentences = [sentence for sentence in POOL.sentences() if sentence.x < sentence.y]
    tokens, swapped = POOL.encode(sentences), POOL.encode([s.swapped for s in sentences])
    block = replace(AVERAGE, residual=True, norm="pre", feed_forward=True)
    for settings_ in (AVERAGE, block):
        model = rng.build(partial(implementation.LanguageModel, **asdict(settings_)))
        runs = ((model, swapped), (model, tokens), (copy.deepcopy(model).double(), tokens))
        with torch.no_grad():
            of_swapped, plain, reference = (m(ids)[:, SCORED] for m, ids in runs)
        check(of_swapped, rounding(reference, plain, 2, "k = 2: the same sums in another order"))


@claim("bare-average-adds-word-by-word")
def test_an_adjective_adds_the_same_to_the_logits_of_every_pair(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """What an adjective adds to the average's logits is the same, whatever the two nouns are.

    Untrained weights. For each of the 240 pairs the logits with an adjective minus those with the
    first one, compared with the same differences of another pair.
    """
    model = rng.build(lambda: implementation.LanguageModel(**asdict(AVERAGE)))
    tokens = POOL.encode(POOL.sentences())
    models = (model, copy.deepcopy(model).double())
    with torch.no_grad():
        logits = [m(tokens)[:, SCORED].view(240, 8, -1) for m in models]
    plain, reference = (each[:, 1:] - each[:, :1] for each in logits)
    other = rounding(reference.roll(1, 0), plain.roll(1, 0), 2, "k = 2: the same differences")
    check(plain, other)


@claim("average-of-averages-sees-order")
def test_an_average_of_averages_sees_order(implementation: Implementation, check: Check) -> None:
    """An average of averages depends on order: what came first is in every prefix.

    18, 0, 0 becomes 18, 9, 6 and then 11 at the end; 0, 18, 0 becomes 0, 9, 6 and then 5. Rounding:
    a weight, a product and a sum of three, twice.
    """
    x = torch.tensor([[18.0, 0.0, 0.0], [0.0, 18.0, 0.0]], dtype=torch.float64)[..., None]
    twice = implementation.average_by_matrix(implementation.average_by_matrix(x))
    expected = torch.tensor([11.0, 5.0], dtype=torch.float64)
    check(twice[:, -1, 0], ulps(expected, 2 * (1 + 1 + 3), "see the docstring", scale=18.0))


@claim("pair-chance-50")
def test_chance_between_the_two_nouns_is_one_half(check: Check, expected: Expected) -> None:
    """Chance between the two nouns present is 50 %: the first noun is right half of the time."""
    sentences = POOL.sentences()
    answered = count_answers(sentences, [s.x for s in sentences])
    check(Fraction(answered.right, len(sentences)), exact(Fraction(expected["value"])))


@claim("average-knows-which-words-are-there")
@trains(ORDER_BLIND, "average")
def test_the_average_knows_the_words_and_not_their_order(runs: Runs, check: Check) -> None:
    """The signature of a model that knows which words are there, and nothing about their order.

    It names one of the two nouns that are there in most sentences, where two of sixteen nouns would
    be one sentence in eight; and of the two it prefers the right one no more often than chance.
    """
    answered = runs.measured("average", SHARES)
    named = answered.map(lambda s: s.right + s.wrong_noun)
    check(named, every_seed_within((0.5, 1.0), "most sentences; an eighth by chance"))
    preferred = answered.map(lambda s: s.over_pair)
    check(preferred, seed_mean_within((0.3, 0.55), "one half, and no better"))


@claim("pool-uniform-27.9")
@trains(ORDER_BLIND, "average", "average, 6,000 steps")
def test_the_average_is_right_in_27_9_percent(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """In the pool language the uniform average names the right noun in 27.9 %."""
    below = 0.5 - expected["value"]
    print_ = printed_run(expected["value"], below, "one half, which one noun of each pair gives")
    check.under("3,000 steps")(right(runs, "average"), print_)
    check.under("6,000 steps")(right(runs, "average, 6,000 steps"), print_)


@claim("pool-uniform-wrong-half")
@trains(ORDER_BLIND, "average", "average, 6,000 steps")
def test_the_average_names_the_wrong_noun_half_of_the_time(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """The uniform average answers with the wrong noun of the pair exactly half of the time.

    After 6,000 steps each seed does: 192 of 384 sentences. After 3,000 the print is as one of them.
    """
    after_3000, after_6000 = (_wrong(runs, label) for label in ("average", "average, 6,000 steps"))
    check(after_3000, printed_run(expected["value"], 0.05, "five points, a tenth of it"))
    check(after_6000, digits([expected["value"]] * len(after_6000), 3))


@claim("average-prefers-one-noun-of-a-pair")
@trains(ORDER_BLIND, "average")
def test_the_average_prefers_one_noun_of_a_pair(runs: Runs, check: Check) -> None:
    """Of most held-out pairs the average prefers the same noun with all eight adjectives.

    Four adjectives make that noun the right one and four the wrong one.
    """
    one = runs.measured("average", ONE_PREFERENCE)
    check(one, every_seed_within((0.5, 1.0), "most pairs; 1 in 128 if each adjective chose"))


@claim("average-wrong-more-often-than-right")
@trains(ORDER_BLIND, "average")
def test_the_average_is_wrong_more_often_than_right(runs: Runs, check: Check) -> None:
    """The uniform average names the wrong noun at least as often as the right one, in every seed.

    A third noun takes the place of the right one, not of the wrong one.
    """
    more = runs.measured("average", SHARES).map(lambda s: s.wrong_noun - s.right)
    check(more, every_seed_within((0.0, 1.0), "as often, or more"))


# ---- the printed map -----------------------------------------------------------------------------


@claim("map-uniform-0.067")
def test_a_uniform_average_puts_0_067_on_each_visible_token(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """A uniform average would put 0.067 on each of the fifteen visible tokens.

    The row of the averaging matrix at the position that names the referent.
    """
    weights = implementation.averaging_matrix(len(TIRED.words))[SCORED]
    visible = weights[weights > 0]
    check(len(visible), exact(expected["tokens"]))
    check(visible, digits([expected["value"]] * expected["tokens"], 3))


@claim("map-rows-sum-to-one")
def test_each_printed_row_sums_to_one(check: Check, expected: Expected) -> None:
    """By the printed figures each attention row sums to one, to the two decimals printed."""
    sums = {name: sum(cells) for name, cells in expected["rows"].items()}
    check(sums, digits(dict.fromkeys(sums, 1.0), 2))


@claim("map-blk2-tired")
@trains(MAPS, "full", "small")
def test_the_second_row_for_tired(runs: Runs, check: Check, expected: Expected) -> None:
    """Block 2 at position 14, tired: 1.00 on the adjective: in a seed.

    Of the greatest distances between a seed's cells and the printed ones the least.
    """
    for settings_ in ("small", "full"):
        rows = _rows(runs, settings_, TIRED, 1)
        nearest = min(max(map(abs, _minus(row, expected["row"]))) for row in rows)
        check.under(settings_)(nearest, within(0.0, 0.005, "half a unit of the last digit"))


@claim("blk1-identical-both-sentences")
def test_block_1_is_identical_in_both_sentences(check: Check, expected: Expected) -> None:
    """By the printed rows block 1 is identical in both sentences: 0.70 on the first noun."""
    check(expected["wet"], digits(expected["tired"], 2))
    check(expected["tired"][FIRST], digits(expected["on_first_noun"], 2))


@claim("blk1-differs-in-other-seeds")
@trains(TEN_SEEDS, "two blocks")
def test_block_1_differs_between_the_sentences_in_other_seeds(runs: Runs, check: Check) -> None:
    """Some models of two blocks have other rows in block 1 for tired than for wet.

    For each seed the greatest difference of a cell; one is above a tenth of the weight.
    """
    apart = runs.measured("two blocks", ATTENTION).map(
        lambda seen: max(map(abs, _minus(seen.tired[0], seen.wet[0])))
    )
    check(max(apart), within(0.1, 1.0, "a tenth, where print shows a hundredth"))


@claim("blk1-query-is-own-token-and-index")
def test_a_first_layer_query_depends_on_its_own_token_and_index_alone(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """In the first layer the query is a function of its own token and index: `the` at 14.

    Sixteen sentences that differ in nouns and adjective, each run alone: at 14 all have the same
    query, to the bit.
    """
    model = rng.build(lambda: _two_blocks(implementation))
    sentences = POOL.sentences([("animal", "street"), ("river", "dog")])
    queries = torch.cat(
        [_in_block_1(implementation, model, "q", s)[:, SCORED] for s in sentences]
    )
    because = "the same row of the same matrices goes through the same operations"
    check(queries, exact(queries[:1].expand_as(queries), because=because))


@claim("blk1-cannot-condition")
def test_a_first_layer_head_cannot_condition_on_the_adjective(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """A first-layer head cannot condition on a word that it has not fetched yet: a proof.

    If it were proved, the row at 14 would be the same for tired and wet whatever the weights. Every
    pair of nouns, untrained weights, four heads.
    """
    tired, wet, reference = _rows_at_the_answer(implementation, rng)
    check(wet, rounding(reference, tired, 2, "k = 2: the same operations on the same numbers"))


@claim("blk1-same-off-the-adjective")
def test_a_first_layer_row_is_the_same_off_the_adjective(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Off the adjective the first layer's scores are provably the same, and so are weight ratios.

    A score depends on the query at 14 and on one key; for every other word both are the same to the
    bit. The adjective changes only the sum that the softmax divides by: normalised without it, the
    rows agree.
    """
    model = rng.build(lambda: _two_blocks(implementation))
    keys = [
        _in_block_1(implementation, model, "k", s)[:, OFF_THE_ADJECTIVE] for s in (TIRED, WET)
    ]
    check(keys[1], exact(keys[0], because="the same tokens at the same positions"))
    others = [row[..., OFF_THE_ADJECTIVE] for row in _rows_at_the_answer(implementation, rng)]
    tired, wet, reference = (row / row.sum(-1, keepdim=True) for row in others)
    check(wet, rounding(reference, tired, 2, "k = 2: the same scores under another sum"))


@claim("block-1-does-the-only-useful-thing")
@trains(TEN_SEEDS, "two blocks")
def test_fetching_the_first_noun_is_the_only_useful_thing(runs: Runs, check: Check) -> None:
    """Block 1 does the only useful thing available and brings the first noun forward.

    Then nothing would be lost where block 1 does not see the adjective: the share of sentences in
    which the right one of the two nouns is still preferred.
    """
    left = runs.measured("two blocks", CIRCUIT).map(lambda c: c.adjective_1)
    check(left, every_seed_within((0.9, 1.0), "block 1 has no use for the adjective"))


# ---- the second block ----------------------------------------------------------------------------


@claim("blk2-rule-eight-adjectives")
@trains(WINOGRAD, "two blocks")
def test_the_second_block_follows_a_rule_over_all_adjectives(runs: Runs, check: Check) -> None:
    """Block 2 is where the sentences separate; its row over all eight adjectives shows the rule.

    "by role": rows of adjectives of one role are alike, and those of the two roles differ: the
    greatest distance between cells within a role, in units of the least between the roles. "as
    described": the greatest cell is the adjective or, if crossed, the second noun.
    """
    seen = runs.measured("two blocks", ATTENTION)
    check.under("by role")(seen.map(_spread_within_roles), every_seed_within((0.0, 0.5), "half"))
    described = seen.map(
        lambda each: fmean(
            cells[ADJECTIVE if adjective in CROSSER else SECOND]
            for adjective, cells in each.greatest.items()
        )
    )
    check.under("as described")(described, every_seed_within((0.95, 1.0), "nearly every sentence"))


@claim("pool-one-block-92.7")
@trains(LONGER, "one block")
def test_one_block_is_right_in_92_7_percent(runs: Runs, check: Check, expected: Expected) -> None:
    """In the pool language one block names the right noun in 92.7 %."""
    print_ = printed_run(expected["value"], expected["value"] - 0.5, "guessing between two nouns")
    check(right(runs, "one block"), print_)


@claim("one-block-solves-it-too")
@trains(TEN_SEEDS, "one block")
def test_one_block_can_solve_the_pool_language(runs: Runs, check: Check) -> None:
    """One block, without composition, can name every right noun: 100.0 %.

    The best of ten seeds.
    """
    best = max(right(runs, "one block"))
    check(best, digits(1.0, 3))


@claim("pool-two-blocks-100")
@trains(TEN_SEEDS, "two blocks")
def test_two_blocks_are_right_in_100_percent(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """In the pool language two blocks name the right noun in 100 %: in every seed."""
    measured = right(runs, "two blocks")
    check(measured, digits([expected["value"]] * len(measured), 3))


@claim("two-blocks-learn-the-pool-language")
@trains(WINOGRAD, "two blocks")
def test_two_blocks_learn_the_pool_language(runs: Runs, check: Check) -> None:
    """Two blocks learn the language in which order is needed: the median of the seeds.

    At the small budget one seed in some dozens still guesses between the two nouns at the end.
    """
    check(median(right(runs, "two blocks")), within(0.99, 1.0, "one sentence in a hundred wrong"))


@claim("two-blocks-are-sooner")
@trains(WINOGRAD_STEPS, "one block, 500", "two blocks, 500")
def test_two_blocks_learn_it_sooner_than_one(runs: Runs, check: Check) -> None:
    """After the same number of steps two blocks are ahead of one: the difference, seed by seed."""
    one, two = (right(runs, f"{blocks}, 500") for blocks in ("one block", "two blocks"))
    check(two - one, seed_mean_within((0.0, 1.0), "ahead"))


@claim("printed-row-crosser-on-adjective")
def test_the_printed_row_for_tired_is_all_on_the_adjective(
    check: Check, expected: Expected
) -> None:
    """For a crosser adjective the second block spends all its weight on the adjective.

    By the row printed for tired, the only such adjective in print.
    """
    check(expected["row"]["adjective"], digits(1.0, 2))


@claim("crosser-all-weight-on-adjective")
@trains(TEN_SEEDS, "two blocks")
def test_other_seeds_put_little_on_a_crosser_adjective(runs: Runs, check: Check) -> None:
    """Ten models at the chapter's budget put less than half of block 2's weight on it.

    The mean over held-out sentences and heads.
    """
    weights = _mean_weight(runs, CROSSER, ADJECTIVE)
    check(weights, every_seed_within((0.0, 0.5), "less than half"))


@claim("printed-row-crossed-on-other-noun")
def test_the_printed_row_for_wet_is_on_the_other_noun(check: Check, expected: Expected) -> None:
    """For a crossed adjective the second block fetches the other noun.

    By the row printed for wet, in which the second noun has the greatest weight.
    """
    check(max(expected["row"], key=expected["row"].get), exact("second noun"))


@claim("crossed-fetches-other-noun")
@trains(TEN_SEEDS, "two blocks")
def test_seeds_differ_in_whether_block_2_fetches_the_other_noun(runs: Runs, check: Check) -> None:
    """For a crossed adjective some models put nearly all of block 2's weight on the second noun.

    Others put nearly none there. The mean over held-out sentences and heads.
    """
    weights = _mean_weight(runs, CROSSED, SECOND)
    extremes = [round(min(weights), 1), round(max(weights), 1)]
    check(extremes, digits([0.0, 1.0], 1))


@claim("answer-already-in-residual")
@trains(WINOGRAD, "two blocks")
def test_for_a_crosser_adjective_the_answer_is_in_the_stream_after_block_1(
    runs: Runs, check: Check
) -> None:
    """For a crosser adjective the answer is already in the residual stream, put there by block 1.

    At position 14 after block 1, the share of crosser sentences in which the model's own output
    head prefers the first noun to the second (the logit lens), and in which a linear probe, fitted
    to the training sentences, names the first noun.
    """
    always = every_seed_within((0.95, 1.0), "nearly every sentence")
    check.under("as the answer")(runs.measured("two blocks", FIRST_NOUN_AHEAD), always)
    check.under("as what can be read")(runs.measured("two blocks", FIRST_NOUN_READ), always)


@claim("two-hop-composition")
@trains(WINOGRAD, "two blocks")
def test_the_two_hop_circuit_is_the_mechanism(runs: Runs, check: Check) -> None:
    """Composition across layers is the mechanism: block 1 brings a noun, block 2 keeps it or not.

    1 for a seed whose answers drop under 75 % both without block 1's view of the first noun (in
    crosser sentences) and without block 2's view of the adjective, but not without block 1's;
    else 0.
    """
    found = runs.measured("two blocks", CIRCUIT).map(lambda c: float(c.two_hops))
    check(found, every_seed_within((1.0, 1.0), "the mechanism"))


@claim("one-block-reads-the-adjective")
@trains(WINOGRAD, "two blocks")
def test_one_of_the_two_blocks_reads_the_adjective(runs: Runs, check: Check) -> None:
    """The answers of a model that is right depend on one block's view of the adjective.

    The share of right answers of the two nouns when that edge is cut, in the block where it costs
    more. In some seeds both blocks read it, and each edge alone costs less.
    """
    left = solved(runs).map(lambda c: min(c.adjective_1, c.adjective_2))
    check(left, seed_mean_within((0.1, 0.9), "at least a tenth of the answers is lost"))


# ---- what several claims need --------------------------------------------------------------------


def _two_blocks(implementation: Implementation) -> Any:
    """The document's model of this language: two blocks of four heads, learned positions."""
    return implementation.LanguageModel(
        vocabulary=len(POOL.vocabulary), context=18, d_model=32, n_blocks=2, n_heads=4
    )


def _in_block_1(
    implementation: Implementation, model: Any, role: str, sentence: Sentence
) -> Tensor:
    """(1, 18, d): the queries or keys of the first block for one sentence."""
    mixer = mixer_of(model, 0, implementation)
    read, _ = passing_through(mixer, lambda: model(POOL.encode([sentence])))
    return projected(implementation, mixer, role, read)


def _rows_at_the_answer(
    implementation: Implementation, rng: Draws
) -> tuple[Tensor, Tensor, Tensor]:
    """First-block attention at the scored position for every pair, (240, 4, 15).

    With tired, with wet, and with tired in float64.
    """
    model = rng.build(lambda: _two_blocks(implementation))
    tired, wet = (
        POOL.encode([Sentence(x, y, adjective) for x, y in POOL.pairs])
        for adjective in ("tired", "wet")
    )
    runs = ((model, tired), (model, wet), (copy.deepcopy(model).double(), tired))
    weights = [attention_weights(m, tokens, 0, implementation) for m, tokens in runs]
    seen = [each[:, :, SCORED, : SCORED + 1] for each in weights]
    return seen[0], seen[1], seen[2]


def _wrong(runs: Runs, label: str) -> PerSeed[float]:
    """The share of held-out sentences that are answered with the wrong noun of the pair."""
    return runs.measured(label, SHARES).map(lambda shares: shares.wrong_noun)


def _nearest(shares: PerSeed[float], printed: float) -> float:
    """Of the seeds' shares the nearest to the printed one.

    The seeds spread too widely, and too unevenly, for a prediction interval to tell anything.
    """
    return min(shares, key=lambda share: abs(share - printed))


def _rows(runs: Runs, label: str, sentence: Sentence, block: int) -> PerSeed[list[float]]:
    """What the scored position of a printed sentence looks at in a block, averaged over heads."""
    return runs.measured(label, ATTENTION).map(
        lambda seen: (seen.tired if sentence == TIRED else seen.wet)[block]
    )


def _minus(row: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(row, other, strict=True)]


def _spread_within_roles(seen: Attention) -> float:
    """How far the rows of adjectives of one role differ, in units of how far the roles do."""

    def distance(one: str, other: str) -> float:
        return max(map(abs, _minus(seen.mean[one], seen.mean[other])))

    within_roles = max(distance(a, b) for role in (CROSSER, CROSSED) for a in role for b in role)
    return within_roles / min(distance(a, b) for a in CROSSER for b in CROSSED)


def _mean_weight(runs: Runs, adjectives: Sequence[str], token: int) -> PerSeed[float]:
    """The weight of a token in block 2, over held-out sentences with one of the adjectives.

    Every adjective has as many held-out sentences as every other.
    """
    return runs.measured("two blocks", ATTENTION).map(
        lambda seen: fmean(seen.mean[adjective][token] for adjective in adjectives)
    )
