"""The block of the ladder with its mask taken out: each position sees the token it must predict."""

from __future__ import annotations

from dataclasses import replace

from claims.experiments import Budgets, Experiment
from claims.experiments.ladder import LADDER
from claims.settings import ONE_BLOCK

LEAK: Budgets = {
    "document": Experiment(
        {"without the mask": replace(LADDER["document"].runs[ONE_BLOCK.label], causal=False)},
        seeds=3,
    ),
}
