"""The corpus as token ids: kept by content, made again where damaged, split nine to one."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest
import torch

from claims.instruments.text import tokens as token_cache
from claims.instruments.text.corpus import Corpus, CorpusError, CorpusWarning
from claims.instruments.text.tokens import split, token_ids
from transformer.tokenizer import Tokenizer


class Words:
    """A tokenizer as the instrument sees one: `vocabulary` ids dealt out to words as they come."""

    trainings: ClassVar[list[int]] = []

    def __init__(self, ids: dict[str, int]) -> None:
        self.ids = ids

    @classmethod
    def train(cls, text: str, vocabulary: int) -> Self:
        cls.trainings.append(vocabulary)
        return cls({word: i % vocabulary for i, word in enumerate(dict.fromkeys(text.split()))})

    def encode(self, text: str) -> list[int]:
        return [self.ids[word] for word in text.split()]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.ids))

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls(json.loads(path.read_text()))


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(Words, "trainings", [])
    return Words.trainings


def corpus_of(text: str) -> Corpus:
    return Corpus(text, hashlib.sha256(text.encode()).hexdigest(), "given", "here")


TEXT = "".join(f"Line {i} of a play that nobody wrote.\n" for i in range(400))
A, B = corpus_of(TEXT), corpus_of(TEXT.replace("play", "poem"))


def test_tokens_are_kept_for_the_next_time(tmp_path: Path, trainings: list[int]) -> None:
    tokenizer, ids = token_ids(A, Words, tmp_path, source_digest="s", vocabulary=300)
    assert ids.dtype == torch.int64
    assert ids.tolist() == tokenizer.encode(TEXT)
    again, same = token_ids(A, Words, tmp_path, source_digest="s", vocabulary=300)
    assert trainings == [300]
    assert again.ids == tokenizer.ids
    assert same.dtype == torch.int64
    assert torch.equal(ids, same)


def test_vocabulary_is_1024_by_default(tmp_path: Path, trainings: list[int]) -> None:
    token_ids(A, Words, tmp_path, source_digest="s")
    token_ids(A, Words, tmp_path, source_digest="s", vocabulary=1024)
    assert trainings == [1024]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param((B, "s", 300), id="corpus"),
        pytest.param((A, "t", 300), id="source"),
        pytest.param((A, "s", 301), id="vocabulary"),
    ],
)
def test_another_corpus_source_or_vocabulary_has_its_own_tokens(
    tmp_path: Path, trainings: list[int], other: tuple[Corpus, str, int]
) -> None:
    for corpus, source, vocabulary in ((A, "s", 300), other):
        tokenizer, ids = token_ids(
            corpus, Words, tmp_path, source_digest=source, vocabulary=vocabulary
        )
        assert ids.tolist() == tokenizer.encode(corpus.text)
    assert len(trainings) == 2


def test_format_of_the_cache_is_part_of_its_key(
    tmp_path: Path, trainings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    token_ids(A, Words, tmp_path, source_digest="s")
    monkeypatch.setattr(token_cache, "TOKEN_CACHE_FORMAT", token_cache.TOKEN_CACHE_FORMAT + 1)
    token_ids(A, Words, tmp_path, source_digest="s")
    assert len(trainings) == 2


def entry_of(cache: Path) -> Path:
    (entry,) = (cache / "tokens").iterdir()
    return entry


def test_entry_is_three_plain_files(tmp_path: Path, trainings: list[int]) -> None:
    _, ids = token_ids(A, Words, tmp_path, source_digest="s")
    entry = entry_of(tmp_path)
    assert {path.name for path in entry.iterdir()} == {"tokenizer.json", "ids.npy", "manifest.json"}
    stored = np.load(entry / "ids.npy", allow_pickle=False)
    assert stored.tolist() == ids.tolist()


@pytest.mark.parametrize(("vocabulary", "dtype"), [(2**15, np.int16), (2**15 + 1, np.int32)])
def test_every_id_fits_its_type(tmp_path: Path, vocabulary: int, dtype: type) -> None:
    class Last(Words):
        def encode(self, text: str) -> list[int]:
            return [0, vocabulary - 1]

    token_ids(A, Last, tmp_path, source_digest="s", vocabulary=vocabulary)
    assert np.load(entry_of(tmp_path) / "ids.npy").dtype == dtype
    _, ids = token_ids(A, Last, tmp_path, source_digest="s", vocabulary=vocabulary)
    assert ids.tolist() == [0, vocabulary - 1]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def alter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def blank(path: Path) -> None:
    path.write_bytes(b"")


def unlist(path: Path) -> None:
    path.write_text("[]")


@pytest.mark.parametrize("damage", [cut, alter, blank, unlist, Path.unlink])
@pytest.mark.parametrize("name", ["tokenizer.json", "ids.npy", "manifest.json"])
def test_damaged_entry_is_made_again(
    tmp_path: Path, trainings: list[int], name: str, damage: Callable[[Path], None]
) -> None:
    tokenizer, ids = token_ids(A, Words, tmp_path, source_digest="s")
    damage(entry_of(tmp_path) / name)
    again, same = token_ids(A, Words, tmp_path, source_digest="s")
    assert len(trainings) == 2
    assert again.ids == tokenizer.ids
    assert torch.equal(ids, same)
    token_ids(A, Words, tmp_path, source_digest="s")
    assert len(trainings) == 2, "the entry made again is not used"


@pytest.mark.parametrize("moves", [0, 1, 2])
def test_interrupted_writing_is_noticed(
    tmp_path: Path, trainings: list[int], monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    """The disk fills up after so many of the three files are in place."""
    replace = os.replace
    done: list[object] = []

    def replace_until_full(source: Path, target: Path) -> None:
        if len(done) == moves:
            raise OSError(errno.ENOSPC, "No space left on device")
        done.append(target)
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace_until_full)
        with pytest.warns(CorpusWarning, match=r"No space left on device.*CLAIMS_CACHE"):
            _, ids = token_ids(A, Words, tmp_path, source_digest="s")
    assert len(list(entry_of(tmp_path).iterdir())) == moves
    _, same = token_ids(A, Words, tmp_path, source_digest="s")
    assert len(trainings) == 2
    assert torch.equal(ids, same)


def test_unwritable_cache_costs_one_warning(tmp_path: Path, trainings: list[int]) -> None:
    cache = tmp_path / "cache"
    cache.write_text("a file")
    with pytest.warns(CorpusWarning) as warnings:
        tokenizer, ids = token_ids(A, Words, cache, source_digest="s")
    (warning,) = warnings
    assert f"{cache}" in str(warning.message)
    assert "CLAIMS_CACHE" in str(warning.message)
    assert warning.filename == __file__
    assert ids.tolist() == tokenizer.encode(TEXT)


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([0, 300], "ids from 0 to 300: the vocabulary of 300 allows 0 to 299"),
        ([-1, 5], "ids from -1 to 5: the vocabulary of 300 allows 0 to 299"),
        ([], r"at least one; .* shape \(0,\)"),
        (np.zeros(0, dtype=np.int64), r"shape \(0,\) and type int64"),
        ([[1, 2]], r"shape \(1, 2\)"),
        ([0.5], "type float64"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path, ids: Any, said: str) -> None:
    class Wrong(Words):
        def encode(self, text: str) -> Any:
            return ids

    with pytest.raises(CorpusError, match=said):
        token_ids(A, Wrong, tmp_path, source_digest="s", vocabulary=300)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("tokens", "train", "held_out"), [(459_760, 413_784, 45_976), (10, 9, 1), (15, 13, 2)]
)
def test_split_is_contiguous_nine_to_one(tokens: int, train: int, held_out: int) -> None:
    ids = torch.arange(tokens)
    first, last = split(ids)
    assert (len(first), len(last)) == (train, held_out)
    assert torch.equal(torch.cat([first, last]), ids)


def test_too_few_tokens_are_not_split() -> None:
    with pytest.raises(CorpusError, match="9 tokens cannot be split: at least 10 are needed"):
        split(torch.arange(9))


def test_tokens_of_tiny_shakespeare(tiny_shakespeare: Corpus, tmp_path: Path) -> None:
    tokenizer, ids = token_ids(tiny_shakespeare, Tokenizer, tmp_path, source_digest="s")
    assert len(ids) == 459_760
    assert [len(part) for part in split(ids)] == [413_784, 45_976]
    again, same = token_ids(tiny_shakespeare, Tokenizer, tmp_path, source_digest="s")
    assert again.merges == tokenizer.merges
    assert torch.equal(ids, same)
