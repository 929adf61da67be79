"""Byte-level byte-pair encoding: text becomes ids, and the ids become the same text again."""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Self
from uuid import uuid4

import regex

Pair = tuple[int, int]

# GPT-2's way of cutting text into chunks that no token may straddle. Any character is a letter,
# a number, white space or something else, so the chunks put end to end are the whole text.
PATTERN = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CHUNKS = regex.compile(PATTERN)

FILE_HEADER = {"format": "byte-level byte-pair encoding", "version": 1, "pattern": PATTERN}


class Tokenizer:
    """Ids 0 to 255 are the bytes themselves; id 256 + k joins the two ids of merge k.

    Merging stays inside the chunks of GPT-2's split pattern. There are no special tokens.
    Bytes and pattern: Radford et al. 2019, section 2.2, except that GPT-2 numbers its bytes
    in another order. The merging: Sennrich et al. 2016, section 3.2.

    Raises ValueError for a merge that uses an id not yet made, and for one that occurs twice.
    """

    def __init__(self, merges: Iterable[Pair]) -> None:
        self._joined: dict[Pair, int] = {}
        self._bytes = [bytes([byte]) for byte in range(256)]
        for new, pair in enumerate(merges, start=256):
            merge = f"merge {new - 256} is {pair}"
            if not all(0 <= i < new for i in pair):
                raise ValueError(f"{merge}, but it may only use ids 0 to {new - 1}")
            first = self._joined.setdefault(pair, new)
            if first != new:
                raise ValueError(f"{merge}, and so is merge {first - 256}")
            self._bytes.append(self._bytes[pair[0]] + self._bytes[pair[1]])

    @property
    def merges(self) -> list[Pair]:
        """The pairs in the order in which they were learnt."""
        return list(self._joined)

    @property
    def vocabulary(self) -> int:
        """The number of ids: 256 bytes and one for each merge."""
        return len(self._bytes)

    @classmethod
    def train(cls, text: str, vocabulary: int = 1024) -> Self:
        """Learn `vocabulary - 256` merges, each of the pair of ids that is then most frequent.

        Tie rule: of equally frequent pairs the one met first wins, when the distinct chunks are
        scanned in order of first appearance in the text, each from left to right as merged so
        far. Sennrich et al. do not discuss ties; their listing, the maximum over a dictionary
        that such a scan fills, comes to this rule where dictionaries keep their order.

        The rule matters: it decides 309 of the 768 merges on Tiny Shakespeare, which becomes
        459,760 tokens. Taking the pair met last, or the one of lowest ids, gives 459,792; the
        highest ids give 459,760 again, by 75 other merges. So does the order of the text: its
        lines reversed, which leaves every chunk as frequent as before, give 459,770.

        Raises ValueError for a vocabulary below 256 or of more merges than the text allows, and
        for a lone surrogate in the text.
        """
        if vocabulary < 256:
            raise ValueError(f"vocabulary is {vocabulary}, but the bytes alone take 256")
        chunks = [(list(chunk.encode()), n) for chunk, n in Counter(_chunks(text)).items()]
        counts: defaultdict[Pair, int] = defaultdict(int)
        where: defaultdict[Pair, set[int]] = defaultdict(set)
        for index, (ids, n) in enumerate(chunks):
            for pair in pairwise(ids):
                counts[pair] += n
                where[pair].add(index)

        merges: list[Pair] = []
        for new in range(256, vocabulary):
            most = max(counts.values(), default=0)
            if most == 0:
                asked = f"vocabulary {vocabulary} asks for {vocabulary - 256} merges"
                raise ValueError(f"{asked}, but the text allows {len(merges)}: one id per chunk")
            tied = {pair for pair, count in counts.items() if count == most}
            earliest = min(min(where[pair]) for pair in tied)
            best = next(pair for pair in pairwise(chunks[earliest][0]) if pair in tied)
            merges.append(best)
            for index in list(where[best]):
                ids, n = chunks[index]
                for pair in pairwise(ids):
                    counts[pair] -= n
                    where[pair].discard(index)
                ids = _join(ids, best, new)
                chunks[index] = ids, n
                for pair in pairwise(ids):
                    counts[pair] += n
                    where[pair].add(index)
        return cls(merges)

    def encode(self, text: str) -> list[int]:
        """The ids of a text: in each chunk the earliest merge that applies, until none does.

        That need not be the fewest ids possible. Raises ValueError for a lone surrogate.
        """
        chunks = _chunks(text)
        ids = {chunk: self._encode_chunk(chunk) for chunk in set(chunks)}
        return [i for chunk in chunks for i in ids[chunk]]

    def _encode_chunk(self, chunk: str) -> list[int]:
        ids = list(chunk.encode())
        while mergeable := [pair for pair in pairwise(ids) if pair in self._joined]:
            earliest = min(mergeable, key=self._joined.__getitem__)
            ids = _join(ids, earliest, self._joined[earliest])
        return ids

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes that the ids stand for. Raises ValueError for an id outside the vocabulary."""
        pieces = []
        for i in ids:
            if not 0 <= i < self.vocabulary:
                raise ValueError(f"id {i} is outside the vocabulary: 0 to {self.vocabulary - 1}")
            pieces.append(self._bytes[i])
        return b"".join(pieces)

    def decode(self, ids: Iterable[int]) -> str:
        """The text that the ids stand for: decode(encode(text)) == text.

        Ids that a model sampled may spell bytes that are no UTF-8: these become U+FFFD, as in
        GPT-2, and `decode_bytes` keeps them. Raises ValueError for an id outside the vocabulary.
        """
        return self.decode_bytes(ids).decode(errors="replace")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the merges as JSON, whole or not at all: a failed write leaves the old file."""
        path = Path(path)
        unfinished = path.with_name(f".{uuid4().hex}.tmp")
        try:
            with unfinished.open("x", encoding="utf-8") as file:
                json.dump(FILE_HEADER | {"merges": self.merges}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote. Raises ValueError, naming file and fault, for anything else."""
        try:
            return cls(_merges_in(Path(path).read_bytes()))
        except ValueError as fault:
            raise ValueError(f"{os.fspath(path)}: {fault}") from None


def _chunks(text: str) -> list[str]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        culprit = f"character {text[error.start]!r} at index {error.start}"
        raise ValueError(f"{culprit} is a lone surrogate, which UTF-8 cannot hold") from None
    chunks: list[str] = CHUNKS.findall(text)
    return chunks


def _join(ids: list[int], pair: Pair, new: int) -> list[int]:
    """Put the new id in place of the pair, from the left: of three equal ids, the first two."""
    left, right = pair
    joined: list[int] = []
    for i in ids:
        if i == right and joined and joined[-1] == left:
            joined[-1] = new
        else:
            joined.append(i)
    return joined


def _merges_in(content: bytes) -> list[Pair]:
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(fields, dict):
        raise ValueError(f"a JSON object is needed, not {type(fields).__name__}")
    for name, wanted in FILE_HEADER.items():
        if fields.get(name) != wanted:
            raise ValueError(f"{name} is {fields.get(name)!r}, but only {wanted!r} is known")
    merges = fields.get("merges")
    if not isinstance(merges, list):
        raise ValueError(f"merges is {merges!r}, but a list of pairs is needed")
    for number, pair in enumerate(merges):
        # Not isinstance: true and false are no ids.
        if not (isinstance(pair, list) and [type(i) for i in pair] == [int, int]):
            raise ValueError(f"merge {number} is {pair!r}, but a pair of whole numbers is needed")
    return [(left, right) for left, right in merges]
