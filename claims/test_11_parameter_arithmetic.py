"""Section 11: with the block defined, the size of a model is arithmetic.

A block has 12 d^2 + 13 d parameters, and the tables add V d and n_ctx d. For the shape of GPT-2
small that makes 124,439,808, nearly a third of them in the embedding table. The claims count built
modules on the meta device, so that nothing is allocated.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from claims.experiments.rungs import ONE_BLOCK, TWO_BLOCKS
from claims.harness import Check, Draws, Expected, claim, digits, exact, within
from claims.harness.implementation import Implementation

WIDTHS = (64, 128, 768)
GPT2: dict[str, Any] = {
    "vocabulary": 50_257, "context": 1_024, "d_model": 768, "n_blocks": 12, "n_heads": 12,
    "tied": True, "qkv_bias": True,
}


@pytest.fixture(scope="module")
def gpt2(implementation: Implementation) -> Any:
    """GPT-2 small's shape, on the meta device."""
    with torch.device("meta"):
        return implementation.gpt2_small()


@pytest.fixture(scope="module")
def gpt2_parts(implementation: Implementation) -> Any:
    """GPT-2 small's parameters as arithmetic, part by part."""
    return implementation.model_parameters(**GPT2)


# ---- one block -----------------------------------------------------------------------------------


@claim("attention-params-with-bias")
def test_attention_with_four_biases_costs_4d2_4d(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """W_q, W_k, W_v and W_o with biases on all four cost 4 d^2 + 4 d.

    Counted on the module at three widths, 2,362,368 at d = 768, and in the package's arithmetic.
    """
    with torch.device("meta"):
        modules = {d: implementation.MultiHeadAttention(d, 4, qkv_bias=True) for d in WIDTHS}
    counted = {d: implementation.count_parameters(module) for d, module in modules.items()}
    check(counted, exact({d: 4 * d * d + 4 * d for d in WIDTHS}))
    check(counted[768], exact(expected["at_768"]))
    computed = {d: implementation.attention_parameters(d, 4, qkv_bias=True) for d in WIDTHS}
    check(computed, exact(counted))


@claim("table-above-2304-fewer")
def test_a_block_without_three_biases_has_2_304_fewer(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """The earlier table leaves three biases out, hence 2,304 parameters fewer per block at d = 768.

    Counted are two blocks, with and without the biases of W_q, W_k and W_v: 3 x 768.
    """
    with torch.device("meta"):
        without, with_them = (
            implementation.Block(768, implementation.MultiHeadAttention(768, 12, qkv_bias=bias))
            for bias in (False, True)
        )
    fewer = implementation.count_parameters(with_them) - implementation.count_parameters(without)
    check(fewer, exact(expected["value"]))
    check(fewer, exact(3 * 768))


@claim("mlp-params")
def test_the_mlp_costs_8d2_5d(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """The MLP costs 8 d^2 + 5 d.

    Two matrices of 4 d^2, biases of 4 d and d: 131,712 at d = 128, 4,722,432 at d = 768.
    """
    with torch.device("meta"):
        modules = {d: implementation.FeedForward(d) for d in WIDTHS}
    counted = {d: implementation.count_parameters(module) for d, module in modules.items()}
    check(counted, exact({d: 8 * d * d + 5 * d for d in WIDTHS}))
    check({d: counted[d] for d in (128, 768)}, exact(expected["at"]))
    check({d: implementation.feed_forward_parameters(d) for d in WIDTHS}, exact(counted))


@claim("two-layernorms-4d")
def test_two_layernorms_cost_4d(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """Two LayerNorms cost 4 d.

    The parameters of a block without those of its attention and its MLP: 3,072 at d = 768.
    """
    with torch.device("meta"):
        blocks = {
            d: implementation.Block(d, implementation.MultiHeadAttention(d, 4)) for d in WIDTHS
        }
    count = implementation.count_parameters
    part = implementation.part
    norms = {
        d: count(b) - count(part(b, "mixer")) - count(part(b, "ff")) for d, b in blocks.items()
    }
    check(norms, exact({d: 4 * d for d in WIDTHS}))
    check(norms[768], exact(expected["at_768"]))
    check({d: 2 * implementation.layer_norm_parameters(d) for d in WIDTHS}, exact(norms))


@claim("block-12d2-13d")
def test_a_block_totals_12d2_13d(implementation: Implementation, check: Check) -> None:
    """A block totals 12 d^2 + 13 d.

    The sum of the three parts, on built blocks of three widths and in the package's arithmetic.
    """
    with torch.device("meta"):
        blocks = {
            d: implementation.Block(d, implementation.MultiHeadAttention(d, 4, qkv_bias=True))
            for d in WIDTHS
        }
    counted = {d: implementation.count_parameters(block) for d, block in blocks.items()}
    check(counted, exact({d: (4 * d * d + 4 * d) + (8 * d * d + 5 * d) + 4 * d for d in WIDTHS}))
    check(counted, exact({d: 12 * d * d + 13 * d for d in WIDTHS}))
    check({d: implementation.block_parameters(d, qkv_bias=True) for d in WIDTHS}, exact(counted))


@claim("tables-V-d-and-nctx-d")
def test_the_tables_add_v_d_and_n_ctx_d(implementation: Implementation, check: Check) -> None:
    """Add a V x d table of tokens and, for absolute positions, one of n_ctx x d.

    The differences in the count of a tied model between two vocabularies, between two contexts, and
    between learned and rotary positions.
    """
    V, n_ctx, d = 96, 40, 16

    def size(vocabulary: int, context: int, positions: str) -> int:
        with torch.device("meta"):
            model = implementation.LanguageModel(
                vocabulary=vocabulary, context=context, d_model=d, positions=positions, tied=True
            )
        return int(implementation.count_parameters(model))

    whole = size(V, n_ctx, "learned")
    check(whole - size(1, n_ctx, "learned"), exact((V - 1) * d))
    check(whole - size(V, 1, "learned"), exact((n_ctx - 1) * d))
    check(whole - size(V, n_ctx, "rotary"), exact(n_ctx * d))


# ---- GPT-2 small ---------------------------------------------------------------------------------


@claim("gpt2-token-embeddings")
def test_gpt2_token_embeddings(
    implementation: Implementation, check: Check, expected: Expected, gpt2: Any, gpt2_parts: Any
) -> None:
    """Token embeddings: 50,257 x 768 = 38,597,376.

    Counted on the model, and in the package's arithmetic.
    """
    check(50_257 * 768, exact(expected["value"]))
    table = implementation.part(gpt2, "token")
    check(implementation.count_parameters(table), exact(expected["value"]))
    check(gpt2_parts["token embeddings"], exact(expected["value"]))


@claim("gpt2-position-embeddings")
def test_gpt2_position_embeddings(
    implementation: Implementation, check: Check, expected: Expected, gpt2: Any, gpt2_parts: Any
) -> None:
    """Position embeddings: 1,024 x 768 = 786,432.

    Counted on the model, and in the package's arithmetic.
    """
    check(1_024 * 768, exact(expected["value"]))
    table = implementation.part(gpt2, "position")
    check(implementation.count_parameters(table), exact(expected["value"]))
    check(gpt2_parts["position embeddings"], exact(expected["value"]))


@claim("gpt2-one-block")
def test_gpt2_one_block(
    implementation: Implementation, check: Check, expected: Expected, gpt2: Any, gpt2_parts: Any
) -> None:
    """One block: 7,087,872.

    Counted on each of the model's twelve, and in the package's arithmetic.
    """
    blocks = implementation.part(gpt2, "blocks")
    counted = [implementation.count_parameters(block) for block in blocks]
    check(counted, exact([expected["value"]] * 12))
    check(gpt2_parts["one block"], exact(expected["value"]))


@claim("gpt2-12-blocks")
def test_gpt2_twelve_blocks(
    implementation: Implementation, check: Check, expected: Expected, gpt2: Any, gpt2_parts: Any
) -> None:
    """12 blocks: 85,054,464.

    Counted on the stack, where a block that is used twice would count once.
    """
    blocks = implementation.part(gpt2, "blocks")
    check(implementation.count_parameters(blocks), exact(expected["value"]))
    check(gpt2_parts["blocks"], exact(expected["value"]))


@claim("gpt2-final-layernorm")
def test_gpt2_final_layernorm(
    implementation: Implementation, check: Check, expected: Expected, gpt2: Any, gpt2_parts: Any
) -> None:
    """Final LayerNorm: 2 x 768 = 1,536.

    Counted on the model, and in the package's arithmetic.
    """
    check(2 * 768, exact(expected["value"]))
    norm = implementation.part(gpt2, "norm")
    check(implementation.count_parameters(norm), exact(expected["value"]))
    check(gpt2_parts["final LayerNorm"], exact(expected["value"]))


@claim("gpt2-total")
def test_gpt2_small_has_124_439_808_parameters(
    implementation: Implementation, check: Check, expected: Expected, gpt2: Any, gpt2_parts: Any
) -> None:
    """The total with tied weights is 124,439,808.

    The sum of the rows, the count of the model, and the package's arithmetic.
    """
    check(sum(expected["rows"]), exact(expected["value"]))
    check(implementation.count_parameters(gpt2), exact(expected["value"]))
    check(gpt2_parts["total"], exact(expected["value"]))


@claim("gpt2-published-size")
def test_gpt2_has_its_published_size(
    implementation: Implementation, check: Check, expected: Expected, gpt2: Any
) -> None:
    """That is the published size of the model.

    Published are 124 million, so the count is compared to the million.
    """
    check(implementation.count_parameters(gpt2) / 1e6, digits(expected["millions"], 0))


@claim("formula-is-the-model")
def test_the_formula_is_the_model(implementation: Implementation, check: Check, gpt2: Any) -> None:
    """The formula is not an approximation; it is the model.

    The formula as it is applied in the listing above the sentence, with the final LayerNorm's 2 d;
    and as l.191 has it, without. Each against the count of the model.
    """
    V, n_ctx, d, blocks = (GPT2[name] for name in ("vocabulary", "context", "d_model", "n_blocks"))
    without = blocks * (12 * d * d + 13 * d) + V * d + n_ctx * d
    counted = implementation.count_parameters(gpt2)
    check.under("as the listing applies it")(counted, exact(without + 2 * d))
    check.under("as l.191 has it")(counted, exact(without))


@claim("formula-with-final-layernorm-is-the-model")
@settings(max_examples=12)
@given(
    V=st.integers(1, 500), n_ctx=st.integers(1, 100), d_head=st.integers(1, 12), L=st.integers(1, 4)
)
def test_the_formula_with_the_final_layernorm_is_the_model(
    implementation: Implementation, check: Check, rng: Draws,
    V: int, n_ctx: int, d_head: int, L: int,
) -> None:
    """L (12d^2 + 13d) + V d + n_ctx d + 2d is the number of parameters of a tied model, exactly.

    2 d is the LayerNorm that ends the stack. Counted on models with biases and two heads, of any
    vocabulary, context, width and depth, in the package's arithmetic, and among the tensors that
    the logits depend on.
    """
    d = 2 * d_head
    sizes = {"vocabulary": V, "context": n_ctx, "d_model": d, "n_heads": 2, "n_blocks": L}
    model = rng.build(lambda: implementation.LanguageModel(**GPT2 | sizes))
    computed = implementation.model_parameters(**GPT2 | sizes)["total"]
    formula = L * (12 * d * d + 13 * d) + V * d + n_ctx * d + 2 * d
    check([implementation.count_parameters(model), computed], exact([formula, formula]))
    logits, tensors = model(rng.integers(0, V, 1, n_ctx)), list(model.parameters())
    grads = torch.autograd.grad(logits.square().sum(), tensors, allow_unused=True)
    used = sum(t.numel() for t, grad in zip(tensors, grads, strict=True) if grad is not None)
    check(used, exact(formula), unit="parameters that the logits depend on")


@claim("embedding-nearly-a-third")
def test_nearly_a_third_of_a_small_model_is_its_embeddings(
    implementation: Implementation, check: Check, expected: Expected, gpt2: Any
) -> None:
    """Nearly a third of a small model is the embedding table.

    31.0 % of GPT-2 small, 31.6 % with the table of positions, and 27.5 % of the chapter's own
    model: each is less than a third.
    """
    count = implementation.count_parameters
    with torch.device("meta"):
        chapter = implementation.LanguageModel(**asdict(ONE_BLOCK.model))

    def table_of(model: Any, role: str = "token") -> int:
        return int(count(implementation.part(model, role)))

    shares = {
        "gpt2_small": Fraction(table_of(gpt2), count(gpt2)),
        "with_positions": Fraction(table_of(gpt2) + table_of(gpt2, "position"), count(gpt2)),
        "chapter": Fraction(table_of(chapter), count(chapter)),
    }
    percent = {name: float(100 * share) for name, share in shares.items()}
    check(percent, digits(expected["percent"], 1))
    check(list(percent.values()), within(0.0, 100 / 3, "nearly: less than a third", strict=True))


@claim("chapter-model-500k")
def test_the_chapters_model_has_500_000_parameters(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """The model trained on Shakespeare has 500,000 parameters.

    One block with an output head of its own has 476,672, which rounds to 500,000. Two blocks do
    not, nor does one block with a tied head; two blocks with a tied head do.
    """
    models = {
        "one_block": ONE_BLOCK.model,
        "two_blocks": TWO_BLOCKS.model,
        "one_block_tied": replace(ONE_BLOCK.model, tied=True),
        "two_blocks_tied": replace(TWO_BLOCKS.model, tied=True),
    }
    with torch.device("meta"):
        built = {name: implementation.LanguageModel(**asdict(m)) for name, m in models.items()}
    counted = {name: implementation.count_parameters(model) for name, model in built.items()}
    check(counted, exact(expected["parameters"]))
    check({name: round(n, -5) for name, n in counted.items()}, exact(expected["to_one_digit"]))
