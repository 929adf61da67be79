"""Importing the package under test, with every way in which that can fail said in one sentence."""

from __future__ import annotations

import difflib
import importlib
import importlib.machinery
import pkgutil
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from claims.harness import paths
from claims.harness.isolation import GlobalState

ALLOWED = "name an importable package, e.g. --implementation my_package"


def load(package: str) -> tuple[ModuleType, list[str]]:
    """The imported package, and what is remarkable about its import, in sentences.

    Code that reads the command line sees none, warnings are shown and not raised, and global state
    that the import changed is set back.

    Raises:
        ValueError: it is no package, hides another, fails to import, or ends the program.
    """
    _demand_a_name(package)
    if package == "transformer":
        _demand_the_only_reference()
    before = GlobalState()
    try:
        with _no_arguments(package), warnings.catch_warnings():
            warnings.simplefilter("default")
            module = importlib.import_module(package)
    except SystemExit as error:
        raise ValueError(
            f"--implementation {package} ends the program when it is imported "
            f"(SystemExit: {error.code}); put what runs it under `if __name__ == '__main__':`"
        ) from None
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{package}.".startswith(f"{missing}."):
            raise ValueError(
                f"--implementation {package}: no such package on this Python's path; "
                f"{_similar(package) or ALLOWED}"
            ) from error
        raise ValueError(
            f"--implementation {package} fails to import: {type(error).__name__}: {error}"
            f"{_place(error)}"
        ) from error
    finally:
        changes = before.restore()
    if module.__file__ is None:
        raise ValueError(f"--implementation {package} is a folder without __init__.py; {ALLOWED}")
    changed = f"{package} changes global state when it is imported, which was set back: "
    return module, [changed + ", ".join(changes)] if changes else []


def _demand_a_name(package: str) -> None:
    if all(part.isidentifier() for part in package.split(".")) and not package.endswith(".py"):
        return
    path = Path(package)
    name = path.name.removesuffix(".py")
    there = path.exists() or path.with_name(f"{path.name}.py").exists()
    if name.isidentifier() and (there or package.endswith(".py")):
        raise ValueError(
            f"--implementation '{package}' is a path; give the name by which Python imports it: "
            f"--implementation {name}, from the folder in which it lies"
        )
    raise ValueError(f"--implementation '{package}' is no package name; {ALLOWED}")


def _similar(package: str) -> str:
    """The module of the current folder that is called almost so, as a question."""
    here = [module.name for module in pkgutil.iter_modules([str(Path.cwd())])]
    found = difflib.get_close_matches(package, here, n=1)
    return f"did you mean {found[0]}?" if found else ""


def _place(error: Exception) -> str:
    """The line of the package that raised, if the sentence of the error does not have it."""
    if isinstance(error, SyntaxError):  # says where it is, and is raised in no file
        return ""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and not frame.filename.startswith("<frozen")
        and Path(frame.filename) != Path(importlib.__file__)
    ]
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def _demand_the_only_reference() -> None:
    """`transformer` means this project's; a user's own of that name would never be tested."""
    own = (paths.ROOT / "transformer").resolve()
    for folder in dict.fromkeys((str(Path.cwd()), *sys.path)):
        spec = importlib.machinery.PathFinder.find_spec("transformer", [folder or str(Path.cwd())])
        if spec is not None and spec.origin and Path(spec.origin).resolve().parent != own:
            raise ValueError(
                f"two packages are called transformer: {Path(spec.origin).parent}, and this "
                f"project's reference in {own}; rename yours, so that it can be told from it"
            )


@contextmanager
def _no_arguments(package: str) -> Iterator[None]:
    arguments = sys.argv
    sys.argv = [package]
    try:
        yield
    finally:
        sys.argv = arguments
