"""Files that tell whether they are whole: a first line holds the digest of the rest."""

from __future__ import annotations

import hashlib
from pathlib import Path

from claims.harness.files import write_whole


class TornFile(ValueError):
    """A file does not hold what its first line says that it holds."""


def write(path: Path, body: bytes) -> None:
    """The digest of `body` on a first line, then `body`. Raises OSError; `path` is then as before.
    """
    write_whole(path, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def read(path: Path) -> bytes | None:
    """The body of the file, or None where there is none. Raises TornFile, OSError."""
    try:
        digest, found, body = path.read_bytes().partition(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not found or hashlib.sha256(body).hexdigest().encode() != digest:
        raise TornFile(f"{path} is damaged")
    return body
