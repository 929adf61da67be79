"""Which names of the package under test a claim can ask for, read off its code before it runs.

A claim that can reach none of the names that a package provides says nothing about it, and need not
run. It reaches every function and class of this project that its test and its fixtures mention, and
what those mention; a name of the contract counts wherever it is mentioned. So a claim may reach a
name that it never asks for, but asks for none that it does not reach: of the reference's claims
that is demanded (`plugin.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from claims.harness import paths
from claims.harness.contract import CONTRACT

# Object by its id -> itself, the names that its own code mentions, and what it leads to.
_LOOKED_AT: dict[int, tuple[Any, frozenset[str], list[Any]]] = {}


def names_in_reach(item: pytest.Item) -> set[str]:
    """Names of the contract that the test, its fixtures, or what they call may ask for."""
    definitions = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
    stack = [item.obj, *(each.func for several in definitions for each in several)]  # type: ignore[attr-defined]
    found: set[str] = set()
    seen: set[int] = set()
    while stack:
        each = stack.pop()
        if id(each) not in seen:
            seen.add(id(each))
            names, leads_to = _look_at(each)
            found |= names
            stack += leads_to
    return found


def _look_at(each: Any) -> tuple[frozenset[str], list[Any]]:
    if id(each) not in _LOOKED_AT:
        mentioned = _mentioned(each.__code__) if _is_our_function(each) else set()
        leads_to = [other for other in _parts(each, mentioned) if not isinstance(other, str)]
        _LOOKED_AT[id(each)] = (each, frozenset(mentioned & CONTRACT.keys()), leads_to)
    return _LOOKED_AT[id(each)][1:]


def _is_our_function(each: Any) -> bool:
    mine = (str(paths.CLAIMS), str(Path(__file__).parents[1]))
    return isinstance(each, FunctionType) and each.__code__.co_filename.startswith(mine)


def _mentioned(code: CodeType) -> set[str]:
    """Globals and attributes of a function and of those that it defines."""
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return {*code.co_names}.union(*map(_mentioned, inner))


def _parts(each: Any, mentioned: set[str]) -> Iterator[Any]:
    """What an object is made of, or mentions, of which code may run."""
    if _is_our_function(each):
        for name in mentioned & each.__globals__.keys():
            value = each.__globals__[name]
            yield value
            if isinstance(value, ModuleType) and value.__name__.startswith("claims."):
                yield from (getattr(value, other, None) for other in mentioned)
        yield from (cell.cell_contents for cell in each.__closure__ or () if _is_full(cell))
        yield from (*(each.__defaults__ or ()), *(each.__kwdefaults__ or {}).values())
    elif isinstance(each, type) and each.__module__.startswith("claims."):
        yield from (*vars(each).values(), *each.__bases__)
    elif isinstance(each, partial):
        yield from (each.func, *each.args, *each.keywords.values())
    elif isinstance(each, property):
        yield each.fget
    elif isinstance(each, dict):
        yield from each.values()
    elif isinstance(each, list | tuple | set | frozenset):
        yield from each
    elif type(each).__module__.startswith("claims."):
        yield type(each)
    # What decorators, methods and Hypothesis keep of the function that they wrap.
    for name in ("__wrapped__", "__func__", "hypothesis", "inner_test"):
        yield getattr(each, name, None)


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # what is defined later
        return False
