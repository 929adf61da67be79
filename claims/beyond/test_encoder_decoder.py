"""The model of 2017, layer by layer: what stands between its attentions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from claims.harness import Check, Draws, claim, rounding
from claims.harness.implementation import Implementation


@claim("layers-of-2017-add-and-normalise")
def test_each_sub_layer_of_the_model_of_2017_is_ln_of_x_plus_f_of_x(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Each sub-layer f of the model of 2017 hands on LN(x + f(x)).

    An encoder block and a decoder layer that reads its output, against these sub-layers in turn:
    attention and network; attention to the target, attention to the source and network. All
    parameters are moved from where they start, so that no two LayerNorms are alike.
    """
    model = rng.build(
        lambda: implementation.EncoderDecoder(
            source_vocabulary=16, target_vocabulary=16, context=8, d_model=16, n_heads=2, n_blocks=1
        )
    )
    for i, tensor in enumerate(model.parameters()):
        tensor.data += 0.3 * rng.normal(*tensor.shape, salt=f"parameter {i}")
    encoder, decoder = (implementation.part(model, role)[0] for role in ("encoder", "decoder"))
    source, target = (rng.normal(2, n, 16, salt=f"{n}") for n in (6, 4))

    @torch.no_grad()
    def written_out(source: Tensor, target: Tensor) -> Tensor:
        def part(role: str, layer: Any = decoder) -> Any:
            return implementation.part(layer, role)

        y = part("ln1", encoder)(source + part("mixer", encoder)(source))
        memory = part("ln2", encoder)(y + part("ff", encoder)(y))
        y = part("ln1")(target + part("attention")(target))
        y = part("ln2")(y + part("cross")(y, context=memory))
        done: Tensor = part("ln3")(y + part("ff")(y))
        return done

    measured, plain = decoder(target, encoder(source)), written_out(source, target)
    model.double()
    reference = written_out(source.double(), target.double())
    check(measured, rounding(reference, plain, 2, "k = 2: the same sums in another order"))
