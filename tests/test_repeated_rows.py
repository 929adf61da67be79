"""Sequences that repeat a random row, and the loss on the first row and on its repetitions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from claims.instruments.languages.repeated_rows import losses, repeated


def test_each_sequence_repeats_after_its_own_period() -> None:
    data = repeated(50, 20, 4, 9, 64, torch.Generator().manual_seed(0))
    assert set(data.periods.tolist()) == {4, 5, 6, 7, 8, 9}
    for row, period in zip(data.tokens, data.periods.tolist(), strict=True):
        assert torch.equal(row[period:], row[:-period])


@pytest.mark.parametrize(("shortest", "longest"), [(0, 4), (5, 4), (4, 20)])
def test_rows_that_cannot_repeat_are_refused(shortest: int, longest: int) -> None:
    with pytest.raises(ValueError, match="does not repeat within 20"):
        repeated(50, 20, shortest, longest, 2, torch.Generator())


def test_losses_tell_what_is_new_from_what_repeats() -> None:
    """A model that always expects the token of four places before, in rows that repeat after 4."""
    data = repeated(50, 20, 4, 4, 8, torch.Generator().manual_seed(0))

    def four_back(tokens: Tensor) -> Tensor:
        logits = torch.zeros(*tokens.shape, 50)
        known = tokens[:, :-3]                    # the token after position t is that of t - 3
        logits[:, 3:].scatter_(-1, known[..., None], 100.0)
        return logits

    found = losses(four_back, data)
    assert found.repeated < 1e-6
    # Four are new, but this model knows the period, and so where the row starts again.
    assert found.new == pytest.approx(math.log(50) * 3 / 4, rel=1e-5)
