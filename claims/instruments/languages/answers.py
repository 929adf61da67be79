"""What a model answers in a Winograd language, and which tokens it attends to.

Models give logits (B, T, V) for tokens (B, T); everything is read at position SCORED.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from claims.harness.layout import USUAL
from claims.instruments.attention.activations import attention_weights, passing_through
from claims.instruments.languages.schemas import (
    SCORED,
    Language,
    Pair,
    Sentence,
    count_answers,
)


@dataclass(frozen=True)
class Shares:
    """Of N sentences.

    right, wrong_noun, neither    what the greatest logit of the vocabulary names; they sum to one
    over_pair                     where the referent's logit is above the other noun's
    margin                        the mean of the first minus the second, in nats
    """

    right: float
    wrong_noun: float
    neither: float
    over_pair: float
    margin: float


def shares(model: Any, language: Language, sentences: Sequence[Sentence]) -> Shares:
    """How a model answers the sentences."""
    logits = answer_logits(model, language, sentences)
    counted = count_answers(sentences, language.decode(logits.argmax(-1)))
    above = margins(logits, language, sentences)
    n = len(sentences)
    return Shares(
        counted.right / n, counted.wrong_noun / n, counted.neither / n,
        float((above > 0).double().mean()), float(above.double().mean()),
    )


@torch.no_grad()
def answer_logits(model: Any, language: Language, sentences: Sequence[Sentence]) -> Tensor:
    """(N, V): the logits at position SCORED, of the word that follows."""
    logits: Tensor = model(language.encode(sentences)[:, : SCORED + 1])[:, SCORED]
    return logits


def margins(logits: Tensor, language: Language, sentences: Sequence[Sentence]) -> Tensor:
    """(N,): the referent's logit minus that of the other noun."""
    nouns = language.tokens([(s.referent, s.other) for s in sentences])
    pair = logits.gather(1, nouns)
    return pair[:, 0] - pair[:, 1]


def rows(model: Any, language: Language, sentences: Sequence[Sentence], block: int) -> Tensor:
    """(N, h, 15): the weights of position SCORED on each token, by head."""
    tokens = language.encode(sentences)[:, : SCORED + 1]
    return attention_weights(model, tokens, block)[:, :, SCORED]


def mean_row(model: Any, language: Language, sentence: Sentence, block: int) -> Tensor:
    """(15,): those of one sentence, averaged over heads, as the document prints them."""
    return rows(model, language, [sentence], block)[0].mean(0)


def one_preference(model: Any, language: Language, sentences: Sequence[Sentence]) -> float:
    """The share of pairs of nouns of which the model prefers the same one with every adjective.

    Right for four of the eight adjectives, and wrong for the other four.
    """
    above = (margins(answer_logits(model, language, sentences), language, sentences) > 0).tolist()
    preferred: defaultdict[Pair, set[str]] = defaultdict(set)
    for sentence, right in zip(sentences, above, strict=True):
        preferred[sentence.x, sentence.y].add(sentence.referent if right else sentence.other)
    return sum(len(nouns) == 1 for nouns in preferred.values()) / len(preferred)


@torch.no_grad()
def stream(model: Any, language: Language, sentences: Sequence[Sentence], block: int) -> Tensor:
    """(N, d): the residual stream at position SCORED after `block`."""
    tokens = language.encode(sentences)[:, : SCORED + 1]
    _, after = passing_through(USUAL.part(model, "blocks")[block], lambda: model(tokens))
    return after[:, SCORED]


def first_noun_by_probe(
    model: Any, language: Language, seen: Sequence[Sentence], sentences: Sequence[Sentence],
    block: int,
) -> float:
    """How often a linear probe names the first noun from the residual stream after `block`.

    The probe is fitted by least squares to the sentences `seen` (Alain and Bengio 2016), and its
    greatest output counts.
    """
    nouns = sorted({s.x for s in language.sentences()})

    def rows_of(some: Sequence[Sentence]) -> Tensor:
        rows = stream(model, language, some, block).double()
        return torch.cat([rows, torch.ones(len(rows), 1, dtype=torch.float64)], dim=1)

    wanted = torch.tensor([nouns.index(s.x) for s in seen])
    probe = torch.linalg.lstsq(rows_of(seen), F.one_hot(wanted, len(nouns)).double()).solution
    named = (rows_of(sentences) @ probe).argmax(-1).tolist()
    right = sum(nouns[i] == s.x for i, s in zip(named, sentences, strict=True))
    return float(right / len(sentences))


@torch.no_grad()
def logit_lens(
    model: Any, language: Language, sentences: Sequence[Sentence], block: int
) -> Tensor:
    """(N, V): the logits at position SCORED if the model ended after `block`.

    The residual stream goes through the final LayerNorm and the output head as it is (the logit
    lens, nostalgebraist 2020).
    """
    ended = stream(model, language, sentences, block)
    if (norm := USUAL.part(model, "norm")) is not None:
        ended = norm(ended)
    logits: Tensor = USUAL.part(model, "head")(ended)
    return logits
