"""Edits of a running model, sequences that repeat, and the picture of attention."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor

from claims.instruments.attention.interventions import knocked_out, replaced
from claims.instruments.languages.repeated_rows import losses, repeated
from claims.studies.heat_map import heat_maps
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


def test_the_picture_is_well_formed_and_has_a_square_for_each_weight() -> None:
    panel = {"1 tired": [0.0, 0.25, 0.75], "2 <wet>": [1.0, 0.0, 0.0]}
    picture = ElementTree.fromstring(heat_maps({"a": panel, "b & c": panel}, ["x", "y", "z"], 2))
    squares = [e for e in picture.iter() if e.tag.endswith("rect") and e.get("stroke")]
    assert len(squares) == 2 * 2 * 3
    texts = [e.text for e in picture.iter() if e.text]
    assert {".25", ".75", "1.0", "b & c", "2 <wet>"} <= set(texts)
