"""What a claim reads off the weights of a run, as plain data that is kept with the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from claims.training.spec import RunSpec

T = TypeVar("T")
# Raise it when a measurement comes to measure something else.
MEASUREMENT_FORMAT = 1


@dataclass(frozen=True)
class Measurement(Generic[T]):
    """A measurement of a trained model.

    name        under which its value is kept
    measure     (specification, model in evaluation mode on the CPU) -> the value
    to_json     the value as data that JSON can hold
    from_json   that data as the value again
    """

    name: str
    measure: Callable[[RunSpec, Any], T]
    to_json: Callable[[T], Any] = lambda value: value
    from_json: Callable[[Any], T] = lambda data: data
