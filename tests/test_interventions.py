"""Edits of a running model: attention weights that are cut, outputs that are replaced."""

from __future__ import annotations

import torch
from torch import Tensor

from claims.instruments.attention.activations import passing_through
from claims.instruments.attention.interventions import knocked_out, replaced
from transformer import MultiHeadAttention


def rows_of(mixer: MultiHeadAttention, x: Tensor) -> Tensor:
    weights: Tensor = mixer(x, return_weights=True)[1]
    return weights


def test_a_cut_edge_has_no_weight_and_its_row_still_sums_to_one() -> None:
    generator = torch.Generator().manual_seed(0)
    mixer, x = MultiHeadAttention(8, 2), torch.randn(3, 5, 8, generator=generator)
    before = rows_of(mixer, x)
    with knocked_out(mixer, [(4, 1), (4, 2)]):
        cut = rows_of(mixer, x)
    assert cut[:, :, 4, 1:3].abs().max() == 0
    torch.testing.assert_close(cut[:, :, 4].sum(-1), torch.ones(3, 2))
    left, right = (w[:, :, 4, 0] / w[:, :, 4, 3] for w in (cut, before))
    torch.testing.assert_close(left, right)
    assert torch.equal(cut[:, :, :4], before[:, :, :4])
    assert torch.equal(rows_of(mixer, x), before)


def test_an_output_is_replaced_at_one_position_while_it_lasts() -> None:
    linear, x = torch.nn.Linear(4, 4), torch.ones(2, 3, 4)
    before, values = linear(x), torch.full((2, 4), 7.0)
    with replaced(linear, 1, values):
        output = linear(x)
    assert torch.equal(output[:, 1], values)
    assert torch.equal(output[:, [0, 2]], before[:, [0, 2]])
    assert torch.equal(linear(x), before)


def test_a_module_that_was_compiled_is_watched_as_well() -> None:
    """Compiled, and run once, it takes no notice of hooks that come later."""
    inner, x = torch.nn.Linear(4, 4), torch.ones(2, 3, 4)
    compiled = torch.compile(torch.nn.Sequential(inner), backend="eager")
    before = compiled(x)
    with replaced(inner, 1, torch.full((2, 4), 7.0)):
        assert torch.equal(compiled(x)[:, 1], torch.full((2, 4), 7.0))
    assert torch.equal(passing_through(inner, lambda: compiled(x))[1], before)
