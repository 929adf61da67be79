"""Files: written whole or not at all, and the folder where results are kept between runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

CACHE_VARIABLE = "CLAIMS_CACHE"  # the environment variable that moves the cache folder
# What a process that was killed leaves of a file that it was writing.
PART = ".part"


def cache_dir() -> Path:
    """Where tokens, runs and a downloaded corpus are kept between runs."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser()
    return Path(platformdirs.user_cache_dir("transformer-claims"))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """`with replacing(path) as part:` write `part`; at the end it takes the place of `path`.

    When the block raises, `path` is as it was before. The content is on the disk before it has its
    name, so that a name never stands for half a file, not even after the machine itself went down.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}{PART}")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: str | bytes) -> None:
    """Write the file whole or not at all. Raises OSError; `path` is then as before."""
    with replacing(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def demand_writable(option: str, target: str) -> None:
    """Raise ValueError when the file that an option names could not be written."""
    path = Path(target).absolute()
    if path.is_dir() or not path.parent.is_dir():
        fault = "it is a folder" if path.is_dir() else f"the folder {path.parent} does not exist"
        raise ValueError(f"{option} {target}: {fault}; give a file in an existing folder")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"{option} {target}: the folder {path.parent} is not writable")
