"""The corpus as token ids, cached by content, and its split."""

import hashlib
import io
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from claims.harness.files import CACHE_VARIABLE, replacing, write_whole
from claims.instruments.text.corpus import Corpus, CorpusError, CorpusWarning

TOKEN_CACHE_FORMAT = 1  # raise it when the files of an entry change
TOKENIZER_FILE, IDS_FILE, MANIFEST_FILE = "tokenizer.json", "ids.npy", "manifest.json"
Ids = npt.NDArray[np.signedinteger[Any]]


class TrainedTokenizer(Protocol):
    """What is used of a trained tokenizer."""

    def encode(self, text: str, /) -> Sequence[int]: ...
    def save(self, path: Path, /) -> None: ...


T = TypeVar("T", bound=TrainedTokenizer)
T_co = TypeVar("T_co", bound=TrainedTokenizer, covariant=True)


class TokenizerType(Protocol[T_co]):
    """What is used of a tokenizer's class."""

    def train(self, text: str, /, vocabulary: int) -> T_co: ...
    def load(self, path: Path, /) -> T_co: ...


def token_ids(
    corpus: Corpus,
    tokenizer_type: TokenizerType[T],
    cache_dir: Path,
    *,
    source_digest: str,
    vocabulary: int = 1024,
) -> tuple[T, torch.Tensor]:
    """A tokenizer trained on the whole corpus, and the corpus in its ids: int64, (tokens,).

    `source_digest` is a digest of the tokenizer's source. With it, the corpus and the vocabulary
    the result is looked up in `cache_dir`, and stored there when new; an entry that is damaged is
    made again. A cache that cannot be written costs a CorpusWarning, not the result. Raises
    CorpusError where the tokenizer gives no ids or ids outside the vocabulary.
    """
    facts = [TOKEN_CACHE_FORMAT, corpus.sha256, vocabulary, source_digest]
    entry = cache_dir / "tokens" / _sha256(json.dumps(facts).encode())
    stored = _load(entry, tokenizer_type)
    if stored is not None:
        return stored
    tokenizer = tokenizer_type.train(corpus.text, vocabulary=vocabulary)
    ids = _checked(tokenizer.encode(corpus.text), vocabulary)
    try:
        _store(entry, tokenizer, ids)
    except OSError as error:
        warnings.warn(
            f"the tokens are not kept, and are made again next time: {entry} cannot be written "
            f"({error.strerror}); the environment variable {CACHE_VARIABLE} names another cache",
            CorpusWarning,
            stacklevel=2,
        )
    return tokenizer, torch.from_numpy(ids.astype(np.int64))


def split(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first nine tenths of the tokens, to train on, and the last tenth, held out.

    Of Tiny Shakespeare's 459,760 tokens 413,784 and 45,976. Raises CorpusError below 10 tokens.
    """
    if len(ids) < 10:
        raise CorpusError(f"{len(ids)} tokens cannot be split: at least 10 are needed")
    cut = len(ids) * 9 // 10
    return ids[:cut], ids[cut:]


def digest(ids: torch.Tensor) -> str:
    """sha256 of token ids (N,): what a run on them depends on."""
    return _sha256(ids.numpy().astype(np.int64).tobytes())


def _checked(ids: Sequence[int], vocabulary: int) -> Ids:
    array = np.asarray(ids)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise CorpusError(
            "the tokenizer's encode must return a list of ids, at least one; for the corpus it "
            f"returned an array of shape {array.shape} and type {array.dtype}"
        )
    least, most = array.min(), array.max()
    if least < 0 or most >= vocabulary:
        raise CorpusError(
            f"the tokenizer's encode returned ids from {least} to {most}: "
            f"the vocabulary of {vocabulary} allows 0 to {vocabulary - 1}"
        )
    stored: type[np.signedinteger[Any]] = np.int16 if vocabulary <= 2**15 else np.int32
    return array.astype(stored)


def _load(entry: Path, tokenizer_type: TokenizerType[T]) -> tuple[T, torch.Tensor] | None:
    """What the entry holds, or None where a file of it is missing, torn or altered."""
    try:
        manifest = json.loads((entry / MANIFEST_FILE).read_bytes())
        ids = (entry / IDS_FILE).read_bytes()
        digests = _digests((entry / TOKENIZER_FILE).read_bytes(), ids)
    except (OSError, ValueError):
        return None
    if manifest != digests:
        return None
    array = np.load(io.BytesIO(ids), allow_pickle=False)
    tokenizer = tokenizer_type.load(entry / TOKENIZER_FILE)
    return tokenizer, torch.from_numpy(array.astype(np.int64))


def _store(entry: Path, tokenizer: TrainedTokenizer, ids: Ids) -> None:
    """Write the entry's files, each whole or not at all, and the digests of the two others last."""
    with replacing(entry / TOKENIZER_FILE) as part:
        tokenizer.save(part)
        tokenizer_bytes = part.read_bytes()
    buffer = io.BytesIO()
    np.save(buffer, ids, allow_pickle=False)
    write_whole(entry / IDS_FILE, buffer.getvalue())
    write_whole(entry / MANIFEST_FILE, json.dumps(_digests(tokenizer_bytes, buffer.getvalue())))


def _digests(tokenizer: bytes, ids: bytes) -> dict[str, str]:
    return {TOKENIZER_FILE: _sha256(tokenizer), IDS_FILE: _sha256(ids)}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
