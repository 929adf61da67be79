"""What claims read off their trained models: by seed, and on the CPU wherever they were trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from claims.harness.per_seed import PerSeed
from claims.instruments.languages.answers import Shares, shares
from claims.instruments.languages.circuits import Circuit, circuit
from claims.instruments.languages.schemas import Language, Sentence
from claims.training.batches import held_out
from claims.training.results import Runs
from claims.training.spec import RunSpec

T = TypeVar("T")


def models(runs: Runs, label: str) -> PerSeed[Any]:
    return runs.models(label).map(lambda model: model.cpu())


def each(
    runs: Runs, label: str, measure: Callable[[Any, Language, Sequence[Sentence]], T]
) -> PerSeed[T]:
    """`measure(model, language, held-out sentences)` of the models of a Winograd language."""
    pairs = zip(runs.specs(label), models(runs, label), strict=True)
    return PerSeed(runs.seeds, (measure(model, *held_out(spec)) for spec, model in pairs))


def answers(runs: Runs, label: str) -> PerSeed[Shares]:
    return each(runs, label, shares)


def right(runs: Runs, label: str) -> PerSeed[float]:
    """The share of held-out sentences that are answered right."""
    return answers(runs, label).map(lambda s: s.right)


def circuits(runs: Runs) -> PerSeed[Circuit]:
    """What the answers of the models of two blocks depend on; measured once for all claims."""
    return runs.once("two blocks", _circuit)


def solved(runs: Runs) -> PerSeed[Circuit]:
    """The circuits of the models that prefer the right one of the two nouns in 99 %."""
    return circuits(runs).where(lambda c: c.intact >= 0.99)


def _circuit(spec: RunSpec, model: Any) -> Circuit:
    return circuit(model.cpu(), *held_out(spec))
