"""The digest of the code under test, by which trained runs and tokens are kept."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType

from claims.harness import paths

# Imported by the reference itself: torch's version is part of every key, and regex only splits.
OWN_DISTRIBUTIONS = {"torch", "regex"}


def digest(module: ModuleType) -> str:
    """sha256 over the code of the package's Python files, without comments and docstrings.

    Also over what the package imports from elsewhere: the code of a neighbour or of a library under
    development, and the version of an installed distribution.
    """
    assert module.__file__ is not None
    folder = Path(module.__file__).parent
    lines = [f"{path.relative_to(folder)}\0{_code(path)}\0" for path in _own(module)]
    neighbours, versions = elsewhere(module)
    lines += [f"{name}\0{_code(path)}\0" for name, path in sorted(neighbours.items())]
    text = "".join((*lines, *(f"{version}\0" for version in sorted(versions))))
    return hashlib.sha256(text.encode()).hexdigest()


def _own(module: ModuleType) -> list[Path]:
    """The Python files of a package; the one of a module."""
    assert module.__file__ is not None
    file = Path(module.__file__)
    return sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]


def elsewhere(module: ModuleType) -> tuple[dict[str, Path], set[str]]:
    """What a package imports that is not its own, directly or by one another.

    Returns:
        The files of neighbours by their dotted names, and installed distributions as "name==1.2".
    """
    package, files = module.__name__, _own(module)
    neighbours: dict[str, Path] = {}
    versions: set[str] = set()
    unread = [(path, _module_of(path, package, files[0])) for path in files]
    known = {path.resolve() for path in files}
    while unread:
        path, name = unread.pop()
        for imported in _imports(path, name):
            found = _file_of(imported)
            if found is None or found.resolve() in known:
                continue
            known.add(found.resolve())
            if _installed(found) and not _of_this_project(found):
                versions.update(_versions(imported.partition(".")[0]))
            else:
                neighbours[imported] = found
                unread.append((found, imported))
    return neighbours, versions


def _module_of(path: Path, package: str, first: Path) -> str:
    """The dotted name of a file of the package."""
    root = first.parent
    parts = path.relative_to(root).with_suffix("").parts
    is_package = any(p.name == "__init__.py" for p in (first, root / "__init__.py") if p.exists())
    inside = [part for part in parts if part != "__init__"]
    return ".".join([package, *inside]) if is_package else package


def _imports(path: Path, name: str) -> Iterator[str]:
    """Dotted names that a file imports; of `from a import b` both a and a.b."""
    if path.suffix != ".py":
        return
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:
        return
    own = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(own, node.level, node.module or "")
            yield from _with_parents(base)
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            called, argument = ast.unparse(node.func).rpartition(".")[2], node.args[0]
            named = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            if called in ("import_module", "__import__") and named:
                yield from _with_parents(argument.value)  # type: ignore[attr-defined]


def _absolute(package: str, level: int, module: str) -> str:
    parts = package.split(".")
    base = parts[: len(parts) - level + 1] if level else []
    return ".".join([*base, *([module] if module else [])])


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    yield from (".".join(parts[: i + 1]) for i in range(len(parts)) if name)


def _file_of(name: str) -> Path | None:
    """The file of a module, without importing it where nobody has."""
    if name.partition(".")[0] in sys.stdlib_module_names:
        return None
    module = sys.modules.get(name)
    if module is not None:
        file = getattr(module, "__file__", None)
    elif name.rpartition(".")[0] and name.rpartition(".")[0] not in sys.modules:
        return None
    else:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            return None
        file = spec.origin if spec is not None and spec.has_location else None
    return Path(file) if file else None


@cache
def _installed(file: Path) -> bool:
    folders = {sysconfig.get_paths()[each] for each in ("purelib", "platlib", "stdlib")}
    return any(file.is_relative_to(folder) for folder in folders) or any(
        part in ("site-packages", "dist-packages") for part in file.parts
    )


def _of_this_project(file: Path) -> bool:
    """The reference is code under development, also where it is installed."""
    return file.is_relative_to(paths.ROOT / "transformer")


@cache
def _distributions() -> dict[str, list[str]]:
    return dict(metadata.packages_distributions())


def _versions(top: str) -> Iterator[str]:
    if top in OWN_DISTRIBUTIONS:  # at once: who has which package takes half a second to find
        return
    for name in _distributions().get(top, []):
        if re.sub(r"[-_.]+", "-", name).lower() not in OWN_DISTRIBUTIONS:
            yield f"{name}=={metadata.version(name)}"


def _code(path: Path) -> str:
    """The code of a module, the same whatever its comments, docstrings and layout say."""
    source = path.read_bytes()
    if path.suffix != ".py":  # compiled
        return hashlib.sha256(source).hexdigest()
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a file that is never imported: its bytes are its code
        return hashlib.sha256(source).hexdigest()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            text = body[0].value
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.dump(tree)
