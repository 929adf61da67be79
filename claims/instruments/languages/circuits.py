"""Which parts of a model its answers depend on: edges are cut, outputs taken from other sentences.

Everything concerns position SCORED, the one that must name the referent. Blocks count from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from claims.instruments.attention.activations import mixer_of, passing_through
from claims.instruments.attention.interventions import knocked_out, replaced
from claims.instruments.languages.answers import Shares, answer_logits, margins, shares
from claims.instruments.languages.schemas import (
    ADJECTIVE,
    CROSSED,
    CROSSER,
    FIRST,
    SCORED,
    SECOND,
    Language,
    Sentence,
)

# Half-way between guessing one of the two nouns and knowing which.
BROKEN = 0.75

_SISTERS = dict(zip(CROSSER + CROSSED, CROSSED + CROSSER, strict=True))


@dataclass(frozen=True)
class Cut:
    """Edges to cut: in `block`, position SCORED no longer sees `keys`."""

    block: int
    keys: tuple[int, ...]


def cut(
    model: Any, language: Language, sentences: Sequence[Sentence], edge: Cut
) -> Shares:
    """How the model answers without the edges."""
    edges = [(SCORED, key) for key in edge.keys]
    with knocked_out(mixer_of(model, edge.block), edges):
        return shares(model, language, sentences)


def other_role(sentence: Sentence) -> Sentence:
    """The sister of the schema: the same nouns, an adjective of the other role."""
    return Sentence(sentence.x, sentence.y, _SISTERS[sentence.adjective])


def other_order(sentence: Sentence) -> Sentence:
    """The same words with the nouns exchanged."""
    return sentence.swapped


def flips(
    model: Any, language: Language, sentences: Sequence[Sentence], sisters: Sequence[Sentence],
    block: int,
) -> float:
    """The share of answers that turn when the attention of one block is taken from the sisters.

    What the block's mixer gives at SCORED is replaced by what it gives there for the sister, whose
    answer is the other noun (interchange intervention, Geiger et al. 2021); everything else is the
    sentence's own. Answers are over the pair.
    """
    mixer = mixer_of(model, block)
    tokens = language.encode(sisters)[:, : SCORED + 1]
    _, output = passing_through(mixer, lambda: model(tokens))
    before = margins(answer_logits(model, language, sentences), language, sentences) > 0
    with replaced(mixer, SCORED, output[:, SCORED]):
        after = margins(answer_logits(model, language, sentences), language, sentences) > 0
    return float((before != after).double().mean())


@dataclass(frozen=True)
class Circuit:
    """What one model of two blocks needs. Accuracies are over the pair of nouns.

    intact             accuracy, nothing cut
    first_noun_1       accuracy on crosser sentences if block 1 does not see the first noun
    second_noun_1, _2  accuracy on crossed sentences if block 1, 2 does not see the second noun
    adjective_1, _2    accuracy if block 1, 2 does not see the adjective
    role_1, _2         share of answers turned by that block's attention from the other role
    order_1            share turned by block 1's attention from the sentence in the other order
    """

    intact: float
    first_noun_1: float
    second_noun_1: float
    second_noun_2: float
    adjective_1: float
    adjective_2: float
    role_1: float
    role_2: float
    order_1: float

    @property
    def adjective_read_by(self) -> str:
        """The block whose view of the adjective the answers depend on."""
        broken = (self.adjective_1 < BROKEN, self.adjective_2 < BROKEN)
        return {
            (True, False): "block 1", (False, True): "block 2", (True, True): "both",
            (False, False): "either",
        }[broken]

    @property
    def two_hops(self) -> bool:
        """The document's circuit: block 1 brings the first noun, block 2 alone reads the adjective.

        So crosser answers need block 1's view of that noun.
        """
        return self.adjective_read_by == "block 2" and self.first_noun_1 < BROKEN


def circuit(model: Any, language: Language, sentences: Sequence[Sentence]) -> Circuit:
    """Cut and exchange, on a model of two blocks."""
    crosser = [s for s in sentences if s.adjective in CROSSER]
    crossed = [s for s in sentences if s.adjective in CROSSED]

    def without(edge: Cut, some: Sequence[Sentence]) -> float:
        return cut(model, language, some, edge).over_pair

    roles = [other_role(s) for s in sentences]
    return Circuit(
        intact=shares(model, language, sentences).over_pair,
        first_noun_1=without(Cut(0, (FIRST,)), crosser),
        second_noun_1=without(Cut(0, (SECOND,)), crossed),
        second_noun_2=without(Cut(1, (SECOND,)), crossed),
        adjective_1=without(Cut(0, (ADJECTIVE,)), sentences),
        adjective_2=without(Cut(1, (ADJECTIVE,)), sentences),
        role_1=flips(model, language, sentences, roles, 0),
        role_2=flips(model, language, sentences, roles, 1),
        order_1=flips(model, language, sentences, [other_order(s) for s in sentences], 0),
    )
