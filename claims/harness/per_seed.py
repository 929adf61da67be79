"""Values of runs, one per seed, that know their seeds."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import compress
from statistics import fmean, stdev
from typing import Any, Generic, NamedTuple, TypeVar, overload

T = TypeVar("T")
U = TypeVar("U")
FEWEST = 3  # seeds of which a mean is shown


class Spread(NamedTuple):
    """How values lie over n seeds; None where the seeds are too few to tell."""

    mean: float | None
    sd: float | None
    n: int


class PerSeed(Sequence[T], Generic[T]):
    """One value per seed. `check` reads the seeds off it, and `source`, where the values are from.

    Differences and ratios are taken seed by seed: runs of one seed share their batches, and with
    them much of chance.
    """

    def __init__(
        self, seeds: Iterable[int], values: Iterable[T], source: str = "", looks: int = 1
    ) -> None:
        """Raises ValueError unless there are as many values as seeds.

        Args:
            source: names a stored record; empty for what was measured in this session.
            looks: after how many numbers of seeds the claim may be decided; they share its chance
                of a wrong verdict.
        """
        self.source, self.looks = source, looks
        self.seeds = list(seeds)
        self._values = list(values)
        if len(self.seeds) != len(self._values):
            raise ValueError(f"{len(self.seeds)} seeds have {len(self._values)} values")

    def map(self, measure: Callable[[T], U]) -> PerSeed[U]:
        """`measure(value)` for each seed."""
        return PerSeed(self.seeds, map(measure, self._values), self.source, self.looks)

    def at(self, seeds: Container[int]) -> PerSeed[T]:
        """The values of those of its seeds."""
        return self._only(seed in seeds for seed in self.seeds)

    def where(self, holds: Callable[[T], bool]) -> PerSeed[T]:
        """The seeds whose value satisfies `holds`."""
        return self._only(map(holds, self._values))

    def _only(self, chosen: Iterable[bool]) -> PerSeed[T]:
        kept = [*compress(zip(self.seeds, self._values, strict=True), chosen)]
        seeds, values = (seed for seed, _ in kept), (value for _, value in kept)
        return PerSeed(seeds, values, self.source, self.looks)

    @property
    def spread(self: PerSeed[float]) -> Spread:
        """Mean, standard deviation and number of seeds."""
        n = len(self)
        enough = n >= FEWEST
        return Spread(fmean(self) if enough else None, stdev(self) if enough else None, n)

    def __sub__(self: PerSeed[float], other: PerSeed[float]) -> PerSeed[float]:
        values = (a - b for a, b in _pairs(self, other))
        return PerSeed(self.seeds, values, sources(self, other), self.looks)

    def __truediv__(self: PerSeed[float], other: PerSeed[float]) -> PerSeed[float]:
        values = (a / b for a, b in _pairs(self, other))
        return PerSeed(self.seeds, values, sources(self, other), self.looks)

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[T]:
        return iter(self._values)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self._values[index]

    def __repr__(self) -> str:
        return f"PerSeed({dict(zip(self.seeds, self._values, strict=True))})"


def _pairs(a: PerSeed[float], b: PerSeed[float]) -> Iterator[tuple[float, float]]:
    """Raises ValueError when the two are of other seeds: they are not to be compared one by one."""
    if a.seeds != b.seeds:
        raise ValueError(f"values of the seeds {a.seeds} and of {b.seeds} cannot be paired")
    return zip(a, b, strict=True)


def sources(*values: PerSeed[Any]) -> str:
    """Where they are from, each place once."""
    places = (place for each in values for place in each.source.split("; "))
    return "; ".join(dict.fromkeys(filter(None, places)))
