"""What is shown while runs are trained: bars on a terminal, two lines elsewhere."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from claims.training import progress_bar
from small_runs import SPEC


def shown_on(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, messages: list[tuple[Any, ...]]
) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=120)
    monkeypatch.setattr(progress_bar, "Console", lambda **_: console)
    with progress_bar.shown(2, 3, ["a run goes on from step 4 of 7"]) as report:
        for message in messages:
            report(*message)
        time.sleep(0.15)
    return stream.getvalue()


OTHER = replace(SPEC, warmup=2)
MESSAGES = [(SPEC, 3, 2.5), (OTHER, 4, 1.25), (SPEC, 7, 2.0), (SPEC, 7, None), (SPEC, 7, 2.0)]


def test_a_terminal_shows_runs_step_loss_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that arrives after a run's end brings no bar back."""
    monkeypatch.delenv("CI", raising=False)
    text = shown_on(monkeypatch, True, MESSAGES)
    assert "a run goes on from step 4 of 7" in text
    last = text.rpartition("runs (3 in the store)")[2]
    assert "1/2" in last
    assert "warmup 2, seed 0" in last
    assert "4/7 loss 1.250" in last
    assert "-:--:--" in last or "0:0" in last
    assert "loss 2" not in last


def test_elsewhere_two_lines_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    text = shown_on(monkeypatch, False, MESSAGES)
    assert text.splitlines() == [
        "a run goes on from step 4 of 7",
        "training: 2 runs done in 0 s, 3 were in the store",
    ]


def test_ci_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    assert "loss" not in shown_on(monkeypatch, True, MESSAGES)
