"""What was measured without training is kept: by its code and by what it depends on."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path

import pytest

from claims.harness.files import CACHE_VARIABLE
from claims.plugins.kept import kept

Measured = Callable[..., list[float]]


@pytest.fixture
def code(tmp_path: Path) -> types.ModuleType:
    """A module that measures."""
    module = types.ModuleType("measuring")
    module.__file__ = str(tmp_path / "measuring.py")
    (tmp_path / "measuring.py").write_text("one = 1\n")
    return module


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: types.ModuleType) -> list[int]:
    """One entry for each time that `measured` has measured."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return []


@pytest.fixture
def measured(calls: list[int], code: types.ModuleType) -> Measured:
    def again(*facts: str) -> list[float]:
        def measure() -> list[float]:
            calls.append(len(calls))
            return [1 / 3, 1e300]

        found: list[float] = kept(measure, [code], *facts)
        return found

    return again


def test_it_is_measured_once_and_comes_back_to_the_last_bit(
    measured: Measured, calls: list[int]
) -> None:
    assert [measured("a"), measured("a")] == [[1 / 3, 1e300]] * 2
    assert len(calls) == 1


def test_other_facts_other_code_and_another_torch_measure_anew(
    measured: Measured, calls: list[int], code: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured("a"), measured("b")
    assert len(calls) == 2
    Path(str(code.__file__)).write_text("one = 2\n")
    measured("a")
    assert len(calls) == 3
    monkeypatch.setattr("torch.__version__", "0.0")
    measured("a")
    assert len(calls) == 4


def test_a_damaged_file_is_made_again(
    measured: Measured, calls: list[int], tmp_path: Path
) -> None:
    measured("a")
    (file,) = (tmp_path / "cache" / "measured").iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert measured("a") == measured("a") == [1 / 3, 1e300]
    assert len(calls) == 2


def test_a_cache_that_cannot_be_written_costs_the_time_alone(
    measured: Measured, calls: list[int], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert measured("a") == measured("a") == [1 / 3, 1e300]
    assert len(calls) == 2
