"""Runs so small that a test can do dozens: a vocabulary of 11, width 8, a handful of steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from claims.training.spec import Evaluation, ModelSettings, RunSpec, Text
from claims.training.store import RunStore

VOCABULARY = 11
MODEL = ModelSettings(vocabulary=VOCABULARY, context=8, d_model=8, n_heads=2)
SPEC = RunSpec(MODEL, Text(8), steps=7, batch=3, record_every=3)
SCORED = replace(SPEC, evaluations=(Evaluation(8), Evaluation(8, "training")))


def ids(n: int = 400) -> Tensor:
    """(n,): tokens of a text that can be learned: each mostly determines the next."""
    generator = torch.Generator().manual_seed(7)
    noise = torch.randint(3, (n,), generator=generator)
    return (torch.arange(n) * 2 + noise) % VOCABULARY


def store(folder: Path, device: str = "cpu") -> RunStore:
    return RunStore(folder, "source", device)


def same(a: Any, b: Any) -> bool:
    """Whether two sets of weights are equal to the bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
