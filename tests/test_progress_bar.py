"""What is shown while runs are trained: bars on a terminal, a line now and then elsewhere."""

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
    """What is printed while two runs send the messages; three more were in the store."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=120, highlight=False)
    monkeypatch.setattr(progress_bar, "Console", lambda **_: console)
    with progress_bar.shown([SPEC, OTHER], 3, ["a run goes on from step 4 of 7"]) as report:
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


def test_elsewhere_the_start_and_the_end_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    text = shown_on(monkeypatch, False, MESSAGES)
    assert text.splitlines() == [
        "a run goes on from step 4 of 7",
        "training: 2 runs to train, 3 in the store",
        "training: 2 runs done in 0 s",
    ]


def test_elsewhere_a_line_now_and_then_tells_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two equal runs: one done and half of the other took a minute, so that 20 s are left."""
    monkeypatch.setenv("CI", "true")
    # The clock is asked at the start of `shown` and of its lines, at each message, and at the end.
    times = iter([0.0, 0.0, 10.0, 45.0, 60.0, 60.0])
    monkeypatch.setattr(progress_bar.time, "perf_counter", lambda: next(times))
    halves = [(SPEC, 0, 2.5), (SPEC, 7, None), (replace(OTHER, steps=8), 4, 1.0)]
    monkeypatch.setattr(progress_bar, "cost", lambda spec: 1.0)
    monkeypatch.setattr(progress_bar, "LINE_EVERY", 15.0)
    lines = shown_on(monkeypatch, True, halves).splitlines()
    assert lines[2:4] == [
        "training: 1 of 2 runs done, about 1 min left",
        "training: 1 of 2 runs done, about 0 min left",
    ]


def test_ci_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    assert "loss" not in shown_on(monkeypatch, True, MESSAGES)
