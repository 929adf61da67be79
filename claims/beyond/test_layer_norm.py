"""LayerNorm divides by sqrt(variance + eps): what eps may be.

Users who ported weights met an eps of another size, which shows only where activations are small.
"""

from __future__ import annotations

from functools import partial

import torch

from claims.harness import Check, Draws, claim, within
from claims.harness.implementation import Implementation

STD = 0.01


@claim("layernorm-eps-is-small")
def test_tokens_of_small_spread_are_normalised_too(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """A token of standard deviation 0.01 gets at least 9/10 of a variance of 1.

    var / (var + eps) is 0.909 for PyTorch's eps of 1e-5, and 0.09 for 1e-3. Of both LayerNorms of a
    block, and of the one at the end of a model.
    """
    model = rng.build(partial(implementation.LanguageModel, vocabulary=8, context=8, d_model=64))
    block = implementation.part(model, "blocks")[0]
    norms = {
        "first of a block": implementation.part(block, "ln1"),
        "second of a block": implementation.part(block, "ln2"),
        "end of the model": implementation.part(model, "norm"),
    }
    x = rng.normal(16, 64, dtype=torch.float64)
    x = STD * (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)
    for name, norm in norms.items():
        variance = norm(x.float()).detach().double().var(-1, correction=0)
        nine_tenths = within(0.9, 1.0, "eps is at most 1.1e-5")
        check(variance, nine_tenths, facts={"LayerNorm": name})
