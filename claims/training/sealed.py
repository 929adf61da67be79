"""Files that are whole or not there: written beside their place, moved, and checked when read."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

# What a process that was killed leaves of a file that it was writing; it stands for nothing.
PART = ".part"


class TornFile(ValueError):
    """A file does not hold what its first line says that it holds."""


def write(path: Path, body: bytes) -> None:
    """The digest of `body` on a first line, then `body`. Raises OSError; `path` is then as before.

    The file is on the disk before it has its name: a name never stands for half a file, not even
    after the machine itself went down.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=path.name, suffix=PART, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read(path: Path) -> bytes | None:
    """The body of the file, or None where there is none. Raises TornFile, OSError."""
    try:
        digest, found, body = path.read_bytes().partition(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not found or hashlib.sha256(body).hexdigest().encode() != digest:
        raise TornFile(f"{path} is damaged")
    return body
