"""The corpus: where Tiny Shakespeare or its stand-in is found."""

import hashlib
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import pooch

from claims.harness.files import CACHE_VARIABLE
from claims.instruments.text import standin

# Tiny Shakespeare as karpathy/char-rnn has it.
CHARACTERS = 1_115_394
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
URL = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/"
    "6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt"
)
# Of its first 1,000 characters, by which a damaged copy is told from another corpus.
OPENING = 1_000
OPENING_SHA256 = "dd95711302202f44363bd040cc21b09bb365a3dc2c979646f1555ca138f878c0"

FEWEST_CHARACTERS = 10_000  # of another corpus: its held-out tenth still has a few hundred tokens
DOWNLOAD_TIMEOUT = 10  # seconds to connect, and of silence: a machine without a network waits once
CACHED_FILE = "tinyshakespeare.txt"


class CorpusError(ValueError):
    """No usable corpus. The message names what was given or tried, and what to do."""


class CorpusWarning(UserWarning):
    """The corpus is there, but the cache directory did not do its part."""


class _Missed(Exception):
    """Why Tiny Shakespeare is not to be had from one of the places."""


@dataclass(frozen=True)
class Corpus:
    """A text and where it came from.

    `sha256` is the digest of the text in UTF-8. `origin` is a path, an address or a package, for
    people. `missed` says of each place tried before why it had no corpus.
    """

    text: str = field(repr=False)
    sha256: str
    source: Literal["given", "cache", "download", "stand-in"]
    origin: str
    missed: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether this is Tiny Shakespeare itself, to the byte."""
        return self.sha256 == SHA256

    @property
    def shakespeare(self) -> bool:
        """Whether this is Tiny Shakespeare or the stand-in for it."""
        return self.exact or self.source == "stand-in"

    def describe(self) -> str:
        """One line: which text, how long, from where."""
        size = f"{len(self.text):,} characters"
        if self.source == "stand-in":
            share = standin.IDENTICAL_LINES / standin.LINES
            return (
                f"stand-in for Tiny Shakespeare, {size}, built from {self.origin} "
                f"({share:.2%} of Tiny Shakespeare's lines are identical)"
            )
        name = "Tiny Shakespeare" if self.exact else "another corpus"
        place = "the user cache, " if self.source == "cache" else ""
        return f"{name}, {size}, from {place}{self.origin}"


def find_corpus(given: Path | None, cache_dir: Path, *, allow_download: bool = True) -> Corpus:
    """The given file; without one Tiny Shakespeare from the cache or the net, or the stand-in.

    A given file may be any text of at least 10,000 characters, but no damaged Tiny Shakespeare. A
    download stays in `cache_dir`. Raises CorpusError for a given file that is no corpus and where
    every place fails, and warns (CorpusWarning) of a cached file that is not Tiny Shakespeare and
    of a cache that a download needs and cannot write.
    """
    if given is not None:
        return _read_given(given)
    places: list[Callable[[], Corpus]] = [partial(_read_cached, cache_dir / CACHED_FILE)]
    if allow_download:
        places.append(partial(_download, cache_dir))
    places.append(_build_stand_in)

    missed = [] if allow_download else ["download: not allowed in this run"]
    for place in places:
        try:
            corpus = place()
        except _Missed as reason:
            missed.append(str(reason))
        else:
            return replace(corpus, missed=tuple(missed))
    raise CorpusError(
        "no corpus. Tried:\n"
        + "".join(f"- {reason}\n" for reason in missed)
        + f"Give a copy of {URL} (sha256 {SHA256}), or make one of these places work."
    )


def _read_given(path: Path) -> Corpus:
    if path.is_dir():
        raise CorpusError(f"the corpus {path} is a directory: name the text file in it")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise CorpusError(f"the corpus {path} does not exist") from None
    except OSError as error:
        raise CorpusError(f"the corpus {path} cannot be read ({error.strerror})") from error
    if not data:
        raise CorpusError(f"the corpus {path} is empty")
    try:
        # Not read as text: that would translate line endings and hide a file that has others.
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"the corpus {path} is not UTF-8 (byte {error.start:,} is {data[error.start]:#04x}): "
            "convert it to UTF-8"
        ) from error
    digest = _sha256(data)
    plain = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if digest != SHA256 and _sha256(plain[:OPENING].encode()) == OPENING_SHA256:
        raise CorpusError(
            f"{path} opens like Tiny Shakespeare but is not the same file: "
            f"{_differences(text, plain)}. Replace it by {URL} (sha256 {SHA256}), "
            "or give no file, and it is downloaded"
        )
    if len(text) < FEWEST_CHARACTERS:
        raise CorpusError(
            f"the corpus {path} has {len(text):,} characters: allowed are {FEWEST_CHARACTERS:,} "
            "and more"
        )
    return Corpus(text, digest, "given", str(path))


def _differences(text: str, plain: str) -> str:
    """What separates `text` from Tiny Shakespeare; `plain` is it with LF line endings alone."""
    found = []
    if text.startswith("\ufeff"):
        found.append("it starts with a byte-order mark")
    if carriage_returns := text.count("\r"):
        found.append(f"its line endings are not LF alone ({carriage_returns:,} carriage returns)")
    if len(plain) != CHARACTERS:
        besides = "without them " if found else ""
        found.append(f"{besides}it has {len(plain):,} characters, not {CHARACTERS:,}")
    elif _sha256(plain.encode()) != SHA256:
        found.append("it has the same length, but some characters differ")
    return "; ".join(found)


def _read_cached(path: Path) -> Corpus:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise _Missed(f"cache: {path} does not exist") from None
    except OSError as error:
        raise _Missed(f"cache: {path} cannot be read ({error.strerror})") from error
    if (digest := _sha256(data)) != SHA256:
        reason = f"{path} is not Tiny Shakespeare ({len(data):,} bytes, sha256 {digest})"
        warnings.warn(
            f"{reason}: it is not used, and a download replaces it", CorpusWarning, stacklevel=3
        )
        raise _Missed(f"cache: {reason}: delete it")
    return Corpus(data.decode("utf-8"), SHA256, "cache", str(path))


def _download(cache_dir: Path) -> Corpus:
    if reason := _why_unwritable(cache_dir):
        warnings.warn(f"Tiny Shakespeare is not downloaded: {reason}", CorpusWarning, stacklevel=3)
        raise _Missed(f"download: {reason}")
    try:
        # Pooch fetches into a temporary file beside the target and moves it there once the digest
        # is right.
        path = pooch.retrieve(
            URL,
            known_hash=f"sha256:{SHA256}",
            fname=CACHED_FILE,
            path=cache_dir,
            downloader=pooch.HTTPDownloader(timeout=DOWNLOAD_TIMEOUT),
        )
        text = Path(path).read_bytes().decode("utf-8")
    except (OSError, ValueError) as error:  # what requests raises, and pooch for a wrong digest
        raise _Missed(f"download: {URL} ({error})") from error
    return Corpus(text, SHA256, "download", URL)


def _build_stand_in() -> Corpus:
    try:
        text = standin.stand_in()
    except standin.StandInMissing as error:
        raise _Missed(f"stand-in: {error}") from error
    return Corpus(text, standin.SHA256, "stand-in", f"{standin.PACKAGE} {standin.VERSION}")


def _why_unwritable(directory: Path) -> str | None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return None
    except OSError as error:
        return (
            f"the cache directory {directory} cannot be written ({error.strerror}); "
            f"the environment variable {CACHE_VARIABLE} names another one"
        )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
