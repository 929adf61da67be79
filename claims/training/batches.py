"""What a run is trained on, batch by batch; each batch depends on the seed and its step alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from claims.harness.seeds import seed_of
from claims.instruments.languages.repeated_rows import repeated
from claims.instruments.languages.schemas import CATEGORY, POOL, Language, Sentence, Split
from claims.instruments.languages.schemas import split as split_pairs
from claims.instruments.text.tokens import split as split_tokens
from claims.training.spec import Repeats, RunSpec, Schemas, Text

_LANGUAGES = {"pool": POOL, "category": CATEGORY}

# step -> (batch, tokens + 1) int64: each token is predicted from those before it in its row.
Batches = Callable[[int], Tensor]


def batches(spec: RunSpec, ids: Tensor | None) -> Batches:
    """The batches of a run. `ids` are the corpus' tokens, (N,) int64, for runs on text.

    Raises:
        ValueError: a run on text without a text, or a text too short for one window.
    """
    match spec.data:
        case Text(length=length, once=once):
            windows = _windows_once if once else _windows
            return windows(spec, training_split(ids), length)
        case Schemas() as data:
            rows = _LANGUAGES[data.language].encode(schemas(data)[1].train)
            return lambda step: rows[_integers(spec, step, len(rows), spec.batch)]
        case Repeats() as repeats:
            return lambda step: repeated(
                repeats.vocabulary, repeats.length, repeats.shortest, repeats.longest,
                spec.batch, _generator(spec, step),
            ).tokens


def schemas(data: Schemas) -> tuple[Language, Split]:
    """The language, and which of its sentences are in training and which held out."""
    language = _LANGUAGES[data.language]
    generator = torch.Generator().manual_seed(seed_of("split", data.draw))
    return language, split_pairs(language, data.held_out, generator)


def held_out(spec: RunSpec) -> tuple[Language, list[Sentence]]:
    """The language that a run was on, and the sentences that it never saw."""
    if not isinstance(spec.data, Schemas):
        raise ValueError("only runs on schemas hold out sentences")
    language, parts = schemas(spec.data)
    return language, parts.held_out


def training_split(ids: Tensor | None) -> Tensor:
    if ids is None:
        raise ValueError("a run on text needs the tokens of a corpus")
    return split_tokens(ids)[0]


def _windows(spec: RunSpec, ids: Tensor, length: int) -> Batches:
    if len(ids) <= length:
        raise ValueError(f"{len(ids)} training tokens hold no window of {length} and the next one")
    windows = ids.unfold(0, length + 1, 1)                               # (N - length, length + 1)
    return lambda step: windows[_integers(spec, step, len(windows), spec.batch)]


def _windows_once(spec: RunSpec, ids: Tensor, length: int) -> Batches:
    windows = ids.unfold(0, length + 1, length)                          # the next token is shared
    if spec.steps * spec.batch > len(windows):
        raise ValueError(
            f"{len(ids)} training tokens hold {len(windows)} windows of {length}; "
            f"{spec.steps} steps of {spec.batch} need {spec.steps * spec.batch} of them"
        )
    generator = torch.Generator().manual_seed(seed_of("order", spec.seed))
    order = torch.split(torch.randperm(len(windows), generator=generator), spec.batch)
    return lambda step: windows[order[step]]


def _integers(spec: RunSpec, step: int, below: int, *shape: int) -> Tensor:
    return torch.randint(below, shape, generator=_generator(spec, step))


def _generator(spec: RunSpec, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of("batch", spec.seed, step))
