"""A language of Winograd schemas: one sentence shape, two nouns, one adjective that decides.

    the {x} did not cross the {y} because it was too {adj} , so the {ref} waited .

x is the crosser, y the crossed. Four adjectives make `it` the crosser, four the crossed, and the
answer names that noun again. In POOL any of sixteen nouns fills either slot, so that only the order
of the two tells the answer; in CATEGORY the crosser is an animal and the crossed a place, so that
the kinds of adjective and noun do, whatever the order. Both have the same 36 words.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

Pair = tuple[str, str]

TEMPLATE = "the {x} did not cross the {y} because it was too {adj} , so the {ref} waited ."
CROSSER = ("tired", "scared", "slow", "weak")
CROSSED = ("wet", "wide", "busy", "steep")
ANIMALS = ("animal", "dog", "cat", "horse", "goat", "fox", "sheep", "bear")
PLACES = ("street", "river", "bridge", "field", "road", "park", "square", "lake")

_SLOTS = TEMPLATE.split()
LENGTH = len(_SLOTS)
FIRST, SECOND, ADJECTIVE, ANSWER = (_SLOTS.index(s) for s in ("{x}", "{y}", "{adj}", "{ref}"))
SCORED = ANSWER - 1  # the position whose prediction is the answer


@dataclass(frozen=True)
class Sentence:
    """One sentence: `x` did not cross `y`, because it was too `adjective`."""

    x: str
    y: str
    adjective: str

    @property
    def referent(self) -> str:
        return self.x if self.adjective in CROSSER else self.y

    @property
    def other(self) -> str:
        """The noun of the pair that is not the referent."""
        return self.y if self.adjective in CROSSER else self.x

    @property
    def text(self) -> str:
        return TEMPLATE.format(x=self.x, y=self.y, adj=self.adjective, ref=self.referent)

    @property
    def words(self) -> list[str]:
        return self.text.split()

    @property
    def prompt(self) -> list[str]:
        """The words before the answer."""
        return self.words[:ANSWER]

    @property
    def swapped(self) -> Sentence:
        """The same words with the two nouns exchanged; the referent is the other one."""
        return Sentence(self.y, self.x, self.adjective)


def parse(words: Sequence[str]) -> Sentence:
    """The sentence with these words.

    Raises:
        ValueError: the words are no sentence of the template, or the answer is not the referent.
    """
    if len(words) == LENGTH and words[ADJECTIVE] in CROSSER + CROSSED:
        sentence = Sentence(words[FIRST], words[SECOND], words[ADJECTIVE])
        if sentence.words == list(words):
            return sentence
    raise ValueError(f"'{' '.join(words)}' is no sentence of the shape '{TEMPLATE}'")


@dataclass(frozen=True)
class Language:
    """All sentences with x from `firsts` and y from `seconds`, two different nouns."""

    firsts: tuple[str, ...]
    seconds: tuple[str, ...]

    @cached_property
    def pairs(self) -> list[Pair]:
        """(x, y), ordered."""
        return [(x, y) for x in self.firsts for y in self.seconds if x != y]

    @cached_property
    def vocabulary(self) -> list[str]:
        """The words; a word's index is its token."""
        fixed = [word for word in _SLOTS if not word.startswith("{")]
        return list(dict.fromkeys([*fixed, *self.firsts, *self.seconds, *CROSSER, *CROSSED]))

    @cached_property
    def _token(self) -> dict[str, int]:
        return {word: token for token, word in enumerate(self.vocabulary)}

    def sentences(self, pairs: Iterable[Pair] | None = None) -> list[Sentence]:
        """Every pair (by default all) with each of the eight adjectives."""
        chosen = self.pairs if pairs is None else pairs
        return [Sentence(x, y, adjective) for x, y in chosen for adjective in CROSSER + CROSSED]

    def encode(self, sentences: Sequence[Sentence]) -> Tensor:
        """(N, 18) int64. Predictions at position SCORED are compared with the token at ANSWER."""
        return self.tokens([s.words for s in sentences])

    def tokens(self, words: Sequence[Sequence[str]]) -> Tensor:
        """The tokens of equally long rows of words, (N, T) int64."""
        return torch.tensor([[self._token[word] for word in row] for row in words])

    def decode(self, tokens: Tensor) -> list[str]:
        """The words of the tokens (T,)."""
        return [self.vocabulary[token] for token in tokens.tolist()]


POOL = Language(ANIMALS + PLACES, ANIMALS + PLACES)
CATEGORY = Language(ANIMALS, PLACES)


@dataclass(frozen=True)
class Split:
    train: list[Sentence]
    held_out: list[Sentence]


def split(language: Language, held_out: int, generator: torch.Generator) -> Split:
    """Keep `held_out` pairs of nouns for the test, each in one order, with all eight adjectives.

    In POOL the order that is held out is drawn, and the other order is in training: with 48 pairs
    held out (384 sentences), training keeps 192 ordered pairs (1,536 sentences). In CATEGORY a pair
    has one order.

    Raises:
        ValueError: more pairs than there are, or none left for training.
    """
    orders: defaultdict[frozenset[str], list[Pair]] = defaultdict(list)
    for pair in language.pairs:
        orders[frozenset(pair)].append(pair)
    groups = list(orders.values())
    largest = min(len(groups), len(language.pairs) - 1)
    if not 1 <= held_out <= largest:
        raise ValueError(f"{held_out} pairs cannot be held out: choose 1 to {largest}")
    kept = set()
    for group in torch.randperm(len(groups), generator=generator)[:held_out].tolist():
        choice = int(torch.randint(len(groups[group]), (), generator=generator))
        kept.add(groups[group][choice])
    return Split(
        train=language.sentences(pair for pair in language.pairs if pair not in kept),
        held_out=language.sentences(pair for pair in language.pairs if pair in kept),
    )


@dataclass(frozen=True)
class Answers:
    """How many of N sentences were answered with the referent, the other noun, any other word."""

    right: int
    wrong_noun: int
    neither: int


def count_answers(sentences: Sequence[Sentence], answers: Sequence[str]) -> Answers:
    """Compare one answered word per sentence with what the sentence says."""
    kinds = Counter(
        "right" if answer == s.referent else "wrong_noun" if answer == s.other else "neither"
        for s, answer in zip(sentences, answers, strict=True)
    )
    return Answers(kinds["right"], kinds["wrong_noun"], kinds["neither"])
