"""What claims read off trained models: measured once per run, kept with it, and part of the record.

Every measurement is plain data, so that a claim can be judged without the weights.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor

from claims.harness.per_seed import PerSeed
from claims.instruments.languages import answers, circuits
from claims.instruments.languages.answers import Shares
from claims.instruments.languages.circuits import Circuit
from claims.instruments.languages.repeated_rows import (
    Repeated,
    induction_scores,
    loss_without_the_token_before,
    losses,
    previous_token_scores,
    repeated,
)
from claims.instruments.languages.schemas import CROSSER, Language, Sentence
from claims.training.batches import held_out, schemas
from claims.training.measurement import Measurement
from claims.training.results import Runs
from claims.training.spec import Repeats, RunSpec, Schemas

Rows = list[list[float]]

# The two sentences of l.221, which differ in one word.
TIRED = Sentence("animal", "street", "tired")
WET = Sentence("animal", "street", "wet")


@dataclass(frozen=True)
class Attention:
    """Where the scored position of a Winograd model looks, each row averaged over heads.

    tired, wet    the two sentences of l.221: block -> weights of the 15 visible tokens
    mean          adjective -> the row of the last block, averaged over held-out sentences
    greatest      adjective -> for each token the share of held-out sentences in whose row of the
                  last block it has the greatest weight
    """

    tired: Rows
    wet: Rows
    mean: dict[str, list[float]]
    greatest: dict[str, list[float]]


@dataclass(frozen=True)
class Induction:
    """A model of random rows that repeat, on 256 rows that no training has.

    new, repeated          loss (nats) on tokens of the first pass, and on those that repeat
    without_previous       loss on what repeats if block 1 does not see the token before
    previous, induction    block -> the largest score of its heads
    """

    new: float
    repeated: float
    without_previous: float
    previous: list[float]
    induction: list[float]


def _shares(spec: RunSpec, model: Any) -> Shares:
    return answers.shares(model, *held_out(spec))


def _circuit(spec: RunSpec, model: Any) -> Circuit:
    return circuits.circuit(model, *held_out(spec))


def _attention(spec: RunSpec, model: Any) -> Attention:
    language, sentences = held_out(spec)
    blocks = range(spec.model.n_blocks)

    def printed(sentence: Sentence) -> Rows:
        rows = (answers.mean_row(model, language, sentence, block) for block in blocks)
        return [row.tolist() for row in rows]

    mean, greatest = {}, {}
    for adjective in dict.fromkeys(sentence.adjective for sentence in sentences):
        chosen = [sentence for sentence in sentences if sentence.adjective == adjective]
        rows = answers.rows(model, language, chosen, blocks[-1]).mean(1)             # (N, 15)
        mean[adjective] = rows.mean(0).tolist()
        counts = torch.bincount(rows.argmax(-1), minlength=rows.shape[-1])
        greatest[adjective] = (counts / len(rows)).tolist()
    return Attention(printed(TIRED), printed(WET), mean, greatest)


def _one_preference(spec: RunSpec, model: Any) -> float:
    return answers.one_preference(model, *held_out(spec))


def _first_noun_read(spec: RunSpec, model: Any) -> float:
    language, parts = schemas(cast(Schemas, spec.data))
    crosser = [sentence for sentence in parts.held_out if sentence.adjective in CROSSER]
    return answers.first_noun_by_probe(model, language, parts.train, crosser, 0)


def _first_noun_ahead(spec: RunSpec, model: Any) -> float:
    language, sentences = held_out(spec)
    crosser = [sentence for sentence in sentences if sentence.adjective in CROSSER]
    ahead = _margins_after_block_1(model, language, crosser) > 0
    return float(ahead.double().mean())


def _margins_after_block_1(model: Any, language: Language, sentences: list[Sentence]) -> Tensor:
    return answers.margins(answers.logit_lens(model, language, sentences, 0), language, sentences)


def _induction(spec: RunSpec, model: Any) -> Induction:
    rows = _repeated_rows(spec)
    blocks = range(spec.model.n_blocks)
    loss = losses(model, rows)
    return Induction(
        new=loss.new,
        repeated=loss.repeated,
        without_previous=loss_without_the_token_before(model, rows, 0).repeated,
        previous=[float(previous_token_scores(model, rows, block).max()) for block in blocks],
        induction=[float(induction_scores(model, rows, block).max()) for block in blocks],
    )


def _repeated_rows(spec: RunSpec) -> Repeated:
    """256 sequences of a run's own kind, from a seed that no training has."""
    data = cast(Repeats, spec.data)
    generator = torch.Generator().manual_seed(0)
    return repeated(data.vocabulary, data.length, data.shortest, data.longest, 256, generator)


# How the held-out sentences of a Winograd language are answered.
SHARES = Measurement("shares", _shares, asdict, lambda data: Shares(**data))
# What the answers of a model of two blocks depend on.
CIRCUIT = Measurement("circuit", _circuit, asdict, lambda data: Circuit(**data))
ATTENTION = Measurement("attention", _attention, asdict, lambda data: Attention(**data))
# The share of crosser sentences in which the first noun is ahead of the second after block 1, by
# the final LayerNorm and the output head (the logit lens).
FIRST_NOUN_AHEAD = Measurement("first noun ahead after block 1", _first_noun_ahead)
# The share of crosser sentences whose first noun a linear probe reads off the stream after it.
FIRST_NOUN_READ = Measurement("first noun read after block 1", _first_noun_read)
# The share of held-out pairs of which the model prefers the same noun with every adjective.
ONE_PREFERENCE = Measurement("one preference", _one_preference)
INDUCTION = Measurement("induction", _induction, asdict, lambda data: Induction(**data))


def right(runs: Runs, label: str) -> PerSeed[float]:
    """The share of held-out sentences that each seed's model answers right."""
    return runs.measured(label, SHARES).map(lambda shares: shares.right)


def solved(runs: Runs) -> PerSeed[Circuit]:
    """The circuits of the models that prefer the right one of the two nouns in 99 %."""
    return runs.measured("two blocks", CIRCUIT).where(lambda circuit: circuit.intact >= 0.99)
