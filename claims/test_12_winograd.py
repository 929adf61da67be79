"""Section 12: a language in which what a head does has a right answer.

One adjective decides what a pronoun means. With an animal and a place the words alone give the
answer; with two nouns out of one pool only their order does, and what is blind to order can't tell
the two apart. These claims are about the language, about models whatever their weights, and about
the numbers that the document prints; what training makes of it is decided elsewhere.
"""

from __future__ import annotations

import copy
from collections import Counter
from fractions import Fraction
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from claims.harness import Check, Draws, Expected, claim, digits, exact, rounding, ulps, within
from claims.harness.implementation import Implementation
from claims.instruments.activations import attention_weights, passing_through
from claims.instruments.winograd import (
    ADJECTIVE,
    ANSWER,
    CATEGORY,
    CROSSED,
    CROSSER,
    POOL,
    SCORED,
    Sentence,
    count_answers,
    parse,
    split,
)

PAIRS = st.sampled_from(POOL.pairs)
TIRED, WET = Sentence("animal", "street", "tired"), Sentence("animal", "street", "wet")
OFF_THE_ADJECTIVE = [i for i in range(SCORED + 1) if i != ADJECTIVE]


# ---- the language -------------------------------------------------------------------------------


@claim("winograd-one-word")
def test_the_sentences_of_a_schema_differ_in_one_word(check: Check) -> None:
    """Winograd pairs are identical except for one word, and that word decides the referent.

    Any two nouns, an adjective of either role: of the words before the answer one differs, the
    adjective; and so does the answer.
    """

    @given(pair=PAIRS, one=st.sampled_from(CROSSER), other=st.sampled_from(CROSSED))
    def every_schema(pair: tuple[str, str], one: str, other: str) -> None:
        words = zip(Sentence(*pair, one).words, Sentence(*pair, other).words, strict=True)
        check([i for i, (a, b) in enumerate(words) if a != b], exact([ADJECTIVE, ANSWER]))

    every_schema()


@claim("cheat-category-solvable")
def test_categories_are_solved_by_a_bag_of_words(check: Check) -> None:
    """With an animal and a place the adjective names the category: a bag of words is enough.

    A look-up is given the words before the answer as a multiset, without their order.
    """

    def look_up(bag: Counter[str]) -> str:
        kind = CATEGORY.firsts if any(bag[word] for word in CROSSER) else CATEGORY.seconds
        return next(noun for noun in kind if bag[noun])

    sentences = CATEGORY.sentences()
    answered = count_answers(sentences, [look_up(Counter(s.prompt)) for s in sentences])
    check(answered.right, exact(len(sentences)))


@claim("pool-16-nouns")
def test_both_candidates_come_from_one_pool_of_sixteen_nouns(
    check: Check, document: Expected
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
    check(counts, exact(dict(document)))


@claim("pool-closes-the-hole")
def test_in_the_pool_the_words_alone_do_not_tell_the_answer(check: Check) -> None:
    """One pool and adjectives by role close the hole: the bag of words leaves both nouns possible.

    Every multiset of words before an answer belongs to two sentences with different answers.
    """
    answers: dict[frozenset[tuple[str, int]], list[str]] = {}
    for sentence in POOL.sentences():
        bag = frozenset(Counter(sentence.prompt).items())
        answers.setdefault(bag, []).append(sentence.referent)
    kinds = Counter((len(each), len(set(each))) for each in answers.values())
    check(list(kinds.items()), exact([((2, 2), 960)]))


@claim("adjectives-4-4")
def test_four_adjectives_mean_the_crosser_and_four_the_crossed(
    check: Check, document: Expected
) -> None:
    """Four adjectives make `it` the one that crosses, four the one that is crossed.

    Read from the sentences about one pair: which adjectives go with which answer.
    """
    roles: dict[str, list[str]] = {"animal": [], "street": []}
    for sentence in POOL.sentences([("animal", "street")]):
        roles[sentence.words[ANSWER]].append(sentence.words[ADJECTIVE])
    check(roles, exact({"animal": document["crosser"], "street": document["crossed"]}))


@claim("template")
def test_every_sentence_has_the_printed_shape(check: Check, document: Expected) -> None:
    """the {x} did not cross the {y} because it was too {adj} , so the {ref} waited .

    Every sentence is the template filled in, 18 words of which the one at index 14 predicts the
    answer; as tokens and back it parses to the same nouns, adjective and referent.
    """

    @given(sentence=st.sampled_from(POOL.sentences()))
    def every_sentence(sentence: Sentence) -> None:
        slots = {"x": sentence.x, "y": sentence.y, "adj": sentence.adjective}
        text = document["template"].format(**slots, ref=sentence.referent)
        check(sentence.text, exact(text))
        tokens = POOL.encode([sentence])[0]
        check(parse(POOL.decode(tokens)), exact(sentence))
        check([len(tokens), SCORED], exact([document["tokens"], document["scored"]]))

    every_sentence()


@claim("heldout-reversed-pairs")
def test_the_reverse_of_every_held_out_pair_is_in_training(
    check: Check, document: Expected
) -> None:
    """The held-out set is made of noun pairs whose reverse was in training.

    Any number of pairs, any seed: each held-out sentence is not in training, its reverse is, and
    nothing is lost. 48 of the 120 pairs give 384 held-out sentences.
    """

    @settings(max_examples=20)
    @given(n=st.integers(1, 120), seed=st.integers(0, 2**31))
    def every_split(n: int, seed: int) -> None:
        parts = split(POOL, n, torch.Generator().manual_seed(seed))
        train, held_out = set(parts.train), set(parts.held_out)
        found = [bool(held_out & train), {s.swapped for s in held_out} <= train, len(held_out)]
        check(found, exact([False, True, 8 * n]))
        check(train | held_out == set(POOL.sentences()), exact(True))

    every_split()
    parts = split(POOL, document["pairs"], torch.Generator().manual_seed(0))
    check(len(parts.held_out), exact(document["sentences"]))


# ---- blind to order -----------------------------------------------------------------------------


@claim("order-blind-answers-backwards")
def test_the_order_blind_average_answers_backwards(check: Check, document: Expected) -> None:
    """What knows which nouns are present, but not which came first, must answer backwards.

    From the document's own measurement of such a thing: how often the average named the wrong noun.
    """
    check(document["wrong_noun"], digits(1.0, 3))


@claim("order-blind-memoriser-answers-backwards")
def test_an_order_blind_memoriser_answers_backwards(check: Check, rng: Draws) -> None:
    """What learnt every bag of training words by heart answers each held-out sentence backwards.

    Its bag occurred in training once, with the nouns the other way round.
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

    All 1,920 sentences, a model of one averaging block with untrained weights; the two sums behind
    a logit have the same terms.
    """
    model = rng.build(
        lambda: implementation.LanguageModel(
            vocabulary=len(POOL.vocabulary), context=18, d_model=32, n_blocks=1,
            mixer="average", positions="none",
        )
    )
    sentences = POOL.sentences()
    tokens, swapped = POOL.encode(sentences), POOL.encode([s.swapped for s in sentences])
    runs = ((model, swapped), (model, tokens), (copy.deepcopy(model).double(), tokens))
    with torch.no_grad():
        of_swapped, plain, reference = (m(ids)[:, SCORED] for m, ids in runs)
    check(of_swapped, rounding(reference, plain, 2, "k = 2: the same sums in another order"))


@claim("average-of-averages-sees-order")
def test_an_average_of_averages_sees_order(implementation: Implementation, check: Check) -> None:
    """Averaged twice, the order shows: what came first is in every prefix.

    18, 0, 0 becomes 18, 9, 6 and then 11 at the end; 0, 18, 0 becomes 0, 9, 6 and then 5. Rounding:
    a weight, a product and a sum of three, twice.
    """
    x = torch.tensor([[18.0, 0.0, 0.0], [0.0, 18.0, 0.0]], dtype=torch.float64)[..., None]
    twice = implementation.average_by_matrix(implementation.average_by_matrix(x))
    expected = torch.tensor([11.0, 5.0], dtype=torch.float64)
    check(twice[:, -1, 0], ulps(expected, 2 * (1 + 1 + 3), "see the docstring", scale=18.0))


@claim("pair-chance-50")
def test_chance_between_the_two_nouns_is_one_half(check: Check, document: Expected) -> None:
    """Chance between the two nouns present is 50 %: the first noun is right half of the time."""
    sentences = POOL.sentences()
    answered = count_answers(sentences, [s.x for s in sentences])
    check(Fraction(answered.right, len(sentences)), exact(Fraction(document["value"])))


@claim("average-knows-which-words-are-there")
def test_the_average_names_one_of_the_two_nouns(check: Check, document: Expected) -> None:
    """27.9 % right and 50 % the other noun: the mark of something that knows which words are there.

    Such a thing would name one of the two nouns present, every time.
    """
    check(document["right"] + document["wrong_noun"], digits(1.0, 3))


# ---- the printed map ----------------------------------------------------------------------------


@claim("map-uniform-0.067")
def test_a_uniform_average_puts_0_067_on_each_visible_token(
    implementation: Implementation, check: Check, document: Expected
) -> None:
    """A uniform average would put 0.067 on each of the fifteen visible tokens.

    The row of the averaging matrix at the position that names the referent.
    """
    weights = implementation.averaging_matrix(len(TIRED.words))[SCORED]
    visible = weights[weights > 0]
    check(len(visible), exact(document["tokens"]))
    check(visible, digits([document["value"]] * document["tokens"], 3))


@claim("map-rows-sum-to-one")
def test_each_printed_row_sums_to_one(check: Check, document: Expected) -> None:
    """Each printed attention row sums to one, to the two decimals printed."""
    sums = {name: sum(cells) for name, cells in document["rows"].items()}
    check(sums, digits(dict.fromkeys(sums, 1.0), 2))


@claim("printed-row-crosser-on-adjective")
def test_the_printed_row_for_tired_is_all_on_the_adjective(
    check: Check, document: Expected
) -> None:
    """For a crosser adjective the second block spends all its weight on the adjective.

    In the one row that is printed of such an adjective, tired.
    """
    check(document["row"]["adjective"], digits(1.0, 2))


@claim("printed-row-crossed-on-other-noun")
def test_the_printed_row_for_wet_is_on_the_other_noun(check: Check, document: Expected) -> None:
    """For a crossed adjective the second block fetches the other noun.

    Read with the measure of the sentence before, "all its weight", or just most of it: more than
    half of the printed row for wet should lie on the second noun.
    """
    check(document["row"]["second noun"], within(0.5, 1.0, "most of a row", strict=True))


@claim("printed-row-crossed-greatest-on-other-noun")
def test_the_greatest_printed_cell_for_wet_is_the_other_noun(
    check: Check, document: Expected
) -> None:
    """No other cell of the printed row for wet is as great as that of the second noun."""
    check(max(document["row"], key=document["row"].get), exact("second noun"))


# ---- what a first layer can do ------------------------------------------------------------------


@claim("blk1-query-is-own-token-and-index")
def test_a_first_layer_query_depends_on_its_own_token_and_index_alone(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """In the first layer the query is a function of its own token and index: `the` at 14.

    Sixteen sentences, each run by itself, that differ in nouns and adjective: at 14 they all have
    the same query, to the bit.
    """
    model = rng.build(lambda: _two_blocks(implementation))
    query = model.blocks[0].mixer.q
    sentences = POOL.sentences([("animal", "street"), ("river", "dog")])
    rows = torch.cat([_at_each_position(query, model, s)[:, SCORED] for s in sentences])
    because = "the same row of the same matrices goes through the same operations"
    check(rows, exact(rows[:1].expand_as(rows), because=because))


@claim("blk1-cannot-condition")
def test_a_first_layer_head_cannot_condition_on_the_adjective(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """A first-layer head cannot condition on a word that it has not fetched yet: a proof.

    Proved, then the row at 14 would be the same for tired and wet whatever the weights. Every pair
    of nouns, untrained weights, four heads.
    """
    tired, wet, reference = _rows_at_the_answer(implementation, rng)
    check(wet, rounding(reference, tired, 2, "k = 2: the same operations on the same numbers"))


@claim("blk1-same-off-the-adjective")
def test_a_first_layer_row_is_the_same_off_the_adjective(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Off the adjective the first layer's scores are provably the same, and so are weight ratios.

    A score is of the query at 14 and one key: both are the same to the bit for every other word.
    The softmax then divides by a sum in which the adjective takes part; renormalised without it,
    the rows agree.
    """
    model = rng.build(lambda: _two_blocks(implementation))
    key = model.blocks[0].mixer.k
    keys = [_at_each_position(key, model, s)[:, OFF_THE_ADJECTIVE] for s in (TIRED, WET)]
    check(keys[1], exact(keys[0], because="the same tokens at the same positions"))
    rows = [row[..., OFF_THE_ADJECTIVE] for row in _rows_at_the_answer(implementation, rng)]
    tired, wet, reference = (row / row.sum(-1, keepdim=True) for row in rows)
    check(wet, rounding(reference, tired, 2, "k = 2: the same scores under another sum"))


@claim("one-block-is-left-at-chance")
def test_one_block_is_left_at_chance(check: Check, document: Expected) -> None:
    """A first layer cannot condition on the adjective, so that one block is left at chance.

    What it answers for a pair it would answer for all eight adjectives, and be right for four. The
    document prints what one block reached.
    """
    ceiling = len(CROSSER) / len(CROSSER + CROSSED)
    check(document["one_block"], within(0.0, ceiling, "one answer, right for 4 of 8 adjectives"))


# ---- what several claims need -------------------------------------------------------------------


def _two_blocks(implementation: Implementation) -> Any:
    """The document's model of this language: two blocks of four heads, learned positions."""
    return implementation.LanguageModel(
        vocabulary=len(POOL.vocabulary), context=18, d_model=32, n_blocks=2, n_heads=4
    )


def _at_each_position(module: Any, model: Any, sentence: Sentence) -> Tensor:
    """(1, 18, d): what a part of the model gives for one sentence."""
    return passing_through(module, lambda: model(POOL.encode([sentence])))[1]


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
    rows = [attention_weights(m, tokens, 0)[:, :, SCORED, : SCORED + 1] for m, tokens in runs]
    return rows[0], rows[1], rows[2]
