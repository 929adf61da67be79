"""What benchmarks share: they are skipped unless asked for, and they print what they measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from claims.harness.seeds import Draws
from claims.instruments.cost.timing import Summary


@pytest.fixture(autouse=True)
def _asked_for(benchmark: Any) -> None:
    if benchmark.disabled:
        pytest.skip("a benchmark: run with --benchmark-enable")


@pytest.fixture
def draws(request: pytest.FixtureRequest) -> Draws:
    return Draws(0, request.node.name)


@pytest.fixture
def once(benchmark: Any) -> Callable[[Callable[[], Any]], Any]:
    """`once(target)` runs `target`, which repeats its measurement itself, as the one round."""
    return lambda target: benchmark.pedantic(target, rounds=1, iterations=1)


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """`show(text, values)` prints past pytest's capture, with a column for each of the values."""

    def past_capture(text: str, values: Sequence[Summary] = ()) -> None:
        cells = [f"{s.median:6.2f} ({s.quartiles[0]:.2f} to {s.quartiles[1]:.2f})" for s in values]
        with capsys.disabled():
            print(f"{text:<24}" + "".join(f"{cell:>24}" for cell in cells))

    return past_capture
