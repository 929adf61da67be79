"""Counts of GPT-2 small that users took for its size, beside the 124,439,808 of section 11."""

from __future__ import annotations

import torch

from claims.harness import Check, Expected, claim, exact
from claims.harness.implementation import Implementation


@claim("gpt2-count-without-positions")
def test_gpt2_without_its_positions(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Without its table of positions GPT-2 small has 123,653,376 parameters.

    The model's count less that table's, and the count of a model with rotary positions.
    """
    count = implementation.count_parameters
    with torch.device("meta"):
        gpt2, rotary = implementation.gpt2_small(), implementation.gpt2_small(positions="rotary")
    positions = implementation.part(gpt2, "position")
    check(count(gpt2) - count(positions), exact(expected["value"]))
    check(count(rotary), exact(expected["value"]))


@claim("gpt2-count-blocks-only")
def test_gpt2_without_its_tables(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Without both its tables GPT-2 small has 85,056,000 parameters: blocks and final LayerNorm.

    The tied output head is one of the tables.
    """
    count = implementation.count_parameters
    with torch.device("meta"):
        gpt2 = implementation.gpt2_small()
    blocks, norm, token, position = (
        count(implementation.part(gpt2, role)) for role in ("blocks", "norm", "token", "position")
    )
    check(blocks + norm, exact(expected["value"]))
    check(count(gpt2) - token - position, exact(expected["value"]))


@claim("gpt2-count-padded-vocabulary")
def test_gpt2_with_a_padded_vocabulary(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """With its vocabulary padded to a multiple of 64 GPT-2 small has 124,475,904 parameters.

    The next multiple is 50,304: 47 rows of 768 more.
    """
    padded = -(-50_257 // 64) * 64
    with torch.device("meta"):
        model = implementation.gpt2_small(vocabulary=padded)
    check(padded, exact(expected["vocabulary"]))
    check(implementation.count_parameters(model), exact(expected["value"]))
