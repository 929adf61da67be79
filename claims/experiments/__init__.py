"""What is trained for the claims: plain data, one module per experiment of the chapter.

Each experiment exists at one or two budgets. "ci" is small and decides on a CPU, in minutes, what
it can; "document" has the chapter's own steps, batch and widths.
"""

from __future__ import annotations

from dataclasses import replace

from claims.training.spec import ModelSettings

# Why a trained value that the document prints is compared as it is.
PRINTED = "the printed value within 5 %: one run, of a seed and of settings that are not printed"

# How far from a printed gain another result would be.
HALF = "half as many points, or half as many more, would be another result"

# The small budget: width 64, windows of 32 tokens, a learning rate that suits few steps. Chosen by
# measuring: docs/how-verdicts-are-made.md says by which margin each claim is decided.
WIDTH, LENGTH, BATCH, RATE = 64, 32, 16, 1e-2


def small(model: ModelSettings, context: int = LENGTH) -> ModelSettings:
    """The same model at the small budget's width."""
    return replace(model, d_model=WIDTH, context=context)
