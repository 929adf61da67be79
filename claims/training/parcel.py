"""An implementation that travels by content, to a process that sees nothing of the user's files."""

from __future__ import annotations

import importlib
import importlib.machinery
import io
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType

from claims.harness import paths, source
from claims.harness.implementation import Implementation

LARGEST = 8_000_000  # bytes of files; a scheduler passes them on to every worker
COMPILED = tuple(importlib.machinery.EXTENSION_SUFFIXES)


class CannotTravel(ValueError):
    """An implementation cannot be sent, or cannot be used where it arrived; in a sentence."""


@dataclass(frozen=True)
class Parcel:
    """An implementation in the form in which it travels.

    digest    of its source, by which its runs are kept
    archive   a zip of its files and of its neighbours'; empty where all is of this project, which
              every worker has
    needs     installed distributions that it imports, as "name==1.2"
    """

    package: str
    digest: str
    archive: bytes
    needs: tuple[str, ...]


def pack(implementation: Implementation) -> Parcel:
    """Raises CannotTravel."""
    package, digest = implementation.package, implementation.source_digest()
    base = _base(package)
    neighbours, needs = source.elsewhere(base)
    files = dict(_own(base)) if _foreign(base) else {}
    files |= {_inside(name, path): path for name, path in neighbours.items() if _foreign(path)}
    if compiled := [name for name in files if name.endswith(COMPILED)]:
        raise CannotTravel(
            f"{package} cannot travel to other machines: {compiled[0]} is compiled for this one"
        )
    try:
        size = sum(path.stat().st_size for path in files.values())
        archive = _zipped(files) if size <= LARGEST else b""
    except OSError as error:
        raise CannotTravel(f"{package} cannot travel to other machines: {error}") from error
    if size > LARGEST:
        raise CannotTravel(
            f"{package} cannot travel to other machines: its folder holds {size / 1e6:.0f} MB of "
            f"files, and at most {LARGEST / 1e6:.0f} MB are sent; keep data elsewhere"
        )
    return Parcel(package, digest, archive, tuple(sorted(needs)))


def _zipped(files: Mapping[str, Path]) -> bytes:
    """A zip, empty for no files. Equal content gives equal bytes: the times of files are left out.
    """
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        for name, path in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return body.getvalue() if files else b""


def _foreign(of: ModuleType | Path) -> bool:
    """Whether a module is not of this project, which every worker has."""
    path = of if isinstance(of, Path) else Path(of.__file__ or "")
    return not any(path.is_relative_to(own) for own in (paths.CLAIMS, paths.ROOT / "transformer"))


def _base(package: str) -> ModuleType:
    """The outermost package with an `__init__.py`: what it runs is needed to import what is in it.
    """
    parts = package.split(".")
    names = (".".join(parts[: i + 1]) for i in range(len(parts)))
    found = map(importlib.import_module, names)
    return next(module for module in found if module.__file__ is not None)


def _own(base: ModuleType) -> Iterator[tuple[str, Path]]:
    assert base.__file__ is not None
    file = Path(base.__file__)
    if file.name != "__init__.py":
        yield _inside(base.__name__, file), file
        return
    folder = base.__name__.replace(".", "/")
    for path in file.parent.rglob("*"):
        inside = path.relative_to(file.parent)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in inside.parts)
        if path.is_file() and not hidden:
            yield f"{folder}/{inside.as_posix()}", path


def _inside(name: str, path: Path) -> str:
    """Where a module's file lies in the archive."""
    folders = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    return "/".join((*folders, path.name))


# ---- where it arrives ----------------------------------------------------------------------------

_unpacked: list[tempfile.TemporaryDirectory[str]] = []  # at most one


def unpack(parcel: Parcel) -> Implementation:
    """The implementation, imported from what arrived.

    What an earlier parcel brought to this process is forgotten, so that a package that was changed
    since is not taken for the new one.

    Raises:
        CannotTravel: it needs what this machine does not have, or its code differs here.
    """
    _forget()
    for need in parcel.needs:
        name, _, wanted = need.partition("==")
        if (found := _version(name)) != wanted:
            raise CannotTravel(
                f"{parcel.package} needs {name} {wanted} as on the client, and finds {found}"
            )
    if parcel.archive:
        folder = tempfile.TemporaryDirectory(prefix="claims-")
        _unpacked.append(folder)
        with zipfile.ZipFile(io.BytesIO(parcel.archive)) as archive:
            archive.extractall(folder.name)
            tops = {re.split(r"[/.]", name)[0] for name in archive.namelist()}
        _remove_modules(tops)
        sys.path.insert(0, folder.name)
        importlib.invalidate_caches()
    try:
        implementation = Implementation(parcel.package)
    except ValueError as error:
        raise CannotTravel(str(error)) from error
    if implementation.source_digest() != parcel.digest:
        raise CannotTravel(
            f"the source of {parcel.package}, or of what it imports, differs from the client's"
        )
    return implementation


def _forget() -> None:
    while _unpacked:
        folder = _unpacked.pop()
        sys.path.remove(folder.name)
        _remove_modules({path.name.partition(".")[0] for path in Path(folder.name).iterdir()})
        folder.cleanup()


def _remove_modules(tops: set[str]) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in tops]:
        del sys.modules[name]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"
