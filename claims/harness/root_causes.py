"""What rests on what: of the claims that failed, those that the others rest on come first."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from claims.harness.ledger import Ledger


def root_causes(failed: Collection[str], ledger: Ledger) -> list[tuple[int, str]]:
    """(depth, claim) of each claim that failed: at depth 0 the causes, the one on which most rests
    first, and beneath each, one deeper, what failed and rests on it.

    A claim that rests on several failed ones stands beneath the first of them alone. Where a claim
    rests on another through one that did not fail, it still stands beneath it.
    """
    order = [name for name in ledger.entries if name in failed]
    above = {name: _failed_above(name, failed, ledger) for name in order}
    beneath = {name: [other for other in order if name in above[other]] for name in order}
    placed: set[str] = set()

    def places(name: str, depth: int) -> Iterator[tuple[int, str]]:
        if name not in placed:
            placed.add(name)
            yield depth, name
            for other in _widest_first(beneath[name]):
                yield from places(other, depth + 1)

    def _widest_first(names: list[str]) -> list[str]:
        return sorted(names, key=lambda name: -_size(name, beneath))

    causes = _widest_first([name for name in order if not above[name]])
    return [place for cause in causes for place in places(cause, 0)]


def _failed_above(name: str, failed: Collection[str], ledger: Ledger) -> set[str]:
    """The nearest failed claims on which one rests."""
    found: set[str] = set()
    for other in ledger[name].requires:
        found |= {other} if other in failed else _failed_above(other, failed, ledger)
    return found


def _size(name: str, beneath: dict[str, list[str]]) -> int:
    return len(_all_beneath(name, beneath))


def _all_beneath(name: str, beneath: dict[str, list[str]]) -> set[str]:
    return {name}.union(*(_all_beneath(other, beneath) for other in beneath[name]))
