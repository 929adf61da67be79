"""Files are written whole or not at all, whatever ends the writing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from claims.harness.files import CACHE_VARIABLE, PART, cache_dir, replacing, write_whole
from conftest import ROOT


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("content", ["new\n", b"new\n"], ids=["text", "bytes"])
def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "deep" / "file"
    for _ in range(2):
        write_whole(path, content)
        assert contents(path.parent) == {"file": "new\n"}


def test_text_is_written_as_it_is(tmp_path: Path) -> None:
    """UTF-8 and the line ends that were given, on every system."""
    write_whole(tmp_path / "file", "é\r\n\n")
    assert (tmp_path / "file").read_bytes() == b"\xc3\xa9\r\n\n"


def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as part:
        part.write_text("half")
        assert path.read_text() == "old"
        assert part.parent == tmp_path
        part.write_text("whole")
    assert contents(tmp_path) == {"file": "whole"}


def write_half(path: Path, error: type[BaseException]) -> None:
    with replacing(path) as part:
        part.write_text("half")
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("old", ["old", None], ids=["an old file", "no file"])
def test_an_exception_leaves_the_old_file(
    tmp_path: Path, error: type[BaseException], old: str | None
) -> None:
    path = tmp_path / "file"
    if old is not None:
        path.write_text(old)
    with pytest.raises(error):
        write_half(path, error)
    assert contents(tmp_path) == ({} if old is None else {"file": old})


def test_a_block_that_writes_nothing_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "file"):
        pass
    assert contents(tmp_path) == {"file": "old"}


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_disk_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert contents(tmp_path) == {"file": "old"}


def test_the_content_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def noting(name: str, call: Callable[..., None]) -> Callable[..., None]:
        def noted(*arguments: object) -> None:
            order.append(name)
            call(*arguments)

        return noted

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, noting(name, getattr(os, name)))
    write_whole(tmp_path / "file", "new")
    assert order == ["fsync", "replace"]


KILLED = """
import os, signal, sys
from pathlib import Path
from claims.harness.files import replacing

with replacing(Path(sys.argv[1])) as part:
    part.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_leaves_the_old_file(tmp_path: Path) -> None:
    """The part that was written stays under another name, which the next process ignores."""
    path = tmp_path / "file"
    path.write_text("old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=ROOT)
    assert done.returncode < 0
    left = contents(tmp_path)
    assert left.pop("file") == "old"
    assert [name.endswith(PART) for name in left] == [True]
    write_whole(path, "new")
    assert path.read_text() == "new"


def test_two_processes_do_not_share_what_they_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replacing(tmp_path / "file") as first:
        first.write_text("first")
        with monkeypatch.context() as other:
            other.setattr(os, "getpid", lambda: 1)
            write_whole(tmp_path / "file", "second")
        assert (tmp_path / "file").read_text() == "second"
    assert contents(tmp_path) == {"file": "first"}


def test_the_cache_folder_is_the_one_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.setenv(CACHE_VARIABLE, "~/elsewhere")
    assert cache_dir() == Path.home() / "elsewhere"
    monkeypatch.setenv(CACHE_VARIABLE, "")
    assert cache_dir().name == "transformer-claims"
