"""Section 11: with the block defined, the size of a model is arithmetic.

12 d^2 + 13 d a block, V d and n_ctx d for the tables: for the shape of GPT-2 small 124,439,808
parameters. Counted on built modules, on the meta device, so that nothing is allocated.
"""

from __future__ import annotations

import copy
from dataclasses import asdict, replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from claims.experiments.rungs import ONE_BLOCK, TWO_BLOCKS
from claims.harness import Check, Draws, Expected, claim, digits, exact, within
from claims.harness.implementation import Implementation

WIDTHS = (64, 128, 768)
GPT2: dict[str, Any] = {
    "vocabulary": 50_257,
    "context": 1_024,
    "d_model": 768,
    "n_blocks": 12,
    "n_heads": 12,
    "tied": True,
    "qkv_bias": True,
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

    Counted on the module at three widths, 2,362,368 at d = 768; the package's arithmetic agrees.
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

    Two blocks are counted, with and without the biases of W_q, W_k and W_v: 3 x 768.
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
def test_the_network_costs_8d2_5d(
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

    What a block has more than its attention and its network: 3,072 at d = 768.
    """
    with torch.device("meta"):
        blocks = {
            d: implementation.Block(d, implementation.MultiHeadAttention(d, 4)) for d in WIDTHS
        }
    count = implementation.count_parameters
    norms = {d: count(b) - count(b.mixer) - count(b.ff) for d, b in blocks.items()}
    check(norms, exact({d: 4 * d for d in WIDTHS}))
    check(norms[768], exact(expected["at_768"]))
    check({d: 2 * implementation.layer_norm_parameters(d) for d in WIDTHS}, exact(norms))


@claim("block-12d2-13d")
def test_a_block_totals_12d2_13d(implementation: Implementation, check: Check) -> None:
    """A block totals 12 d^2 + 13 d.

    The three parts' sum, on built blocks of three widths and in the package's arithmetic.
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

    What a tied model has more with a larger vocabulary, with a longer context, and without
    positions.
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
    check(implementation.count_parameters(gpt2.token), exact(expected["value"]))
    check(gpt2_parts["token embeddings"], exact(expected["value"]))


@claim("gpt2-position-embeddings")
def test_gpt2_position_embeddings(
    implementation: Implementation, check: Check, expected: Expected, gpt2: Any, gpt2_parts: Any
) -> None:
    """Position embeddings: 1,024 x 768 = 786,432.

    Counted on the model, and in the package's arithmetic.
    """
    check(1_024 * 768, exact(expected["value"]))
    check(implementation.count_parameters(gpt2.position), exact(expected["value"]))
    check(gpt2_parts["position embeddings"], exact(expected["value"]))


@claim("gpt2-one-block")
def test_gpt2_one_block(
    implementation: Implementation, check: Check, expected: Expected, gpt2: Any, gpt2_parts: Any
) -> None:
    """One block: 7,087,872.

    Each of the twelve, counted on the model, and in the package's arithmetic.
    """
    blocks = [implementation.count_parameters(block) for block in gpt2.blocks]
    check(blocks, exact([expected["value"]] * 12))
    check(gpt2_parts["one block"], exact(expected["value"]))


@claim("gpt2-12-blocks")
def test_gpt2_twelve_blocks(
    implementation: Implementation, check: Check, expected: Expected, gpt2: Any, gpt2_parts: Any
) -> None:
    """12 blocks: 85,054,464.

    Counted on the stack, which would count a block that is used twice once.
    """
    check(implementation.count_parameters(gpt2.blocks), exact(expected["value"]))
    check(gpt2_parts["blocks"], exact(expected["value"]))


@claim("gpt2-final-layernorm")
def test_gpt2_final_layernorm(
    implementation: Implementation, check: Check, expected: Expected, gpt2: Any, gpt2_parts: Any
) -> None:
    """Final LayerNorm: 2 x 768 = 1,536.

    Counted on the model, and in the package's arithmetic.
    """
    check(2 * 768, exact(expected["value"]))
    check(implementation.count_parameters(gpt2.norm), exact(expected["value"]))
    check(gpt2_parts["final LayerNorm"], exact(expected["value"]))


@claim("gpt2-total")
def test_gpt2_small_has_124_439_808_parameters(
    implementation: Implementation, check: Check, expected: Expected, gpt2: Any, gpt2_parts: Any
) -> None:
    """The total with tied weights is 124,439,808.

    The rows' sum; counted on the model; and in the package's arithmetic.
    """
    check(sum(expected["rows"]), exact(expected["value"]))
    check(implementation.count_parameters(gpt2), exact(expected["value"]))
    check(gpt2_parts["total"], exact(expected["value"]))


@claim("gpt2-published-size")
def test_gpt2_has_its_published_size(
    implementation: Implementation, check: Check, expected: Expected, gpt2: Any
) -> None:
    """That is the published size of the model.

    124 million, to the million that it was published to.
    """
    check(implementation.count_parameters(gpt2) / 1e6, digits(expected["millions"], 0))


@claim("formula-is-the-model")
def test_the_formula_is_the_model(implementation: Implementation, check: Check, gpt2: Any) -> None:
    """The formula is not an approximation; it is the model.

    The formula of the prose, 12 d^2 + 13 d a block and the two tables, against the model counted.
    """
    V, n_ctx, d, blocks = (GPT2[name] for name in ("vocabulary", "context", "d_model", "n_blocks"))
    formula = blocks * (12 * d * d + 13 * d) + V * d + n_ctx * d
    check(implementation.count_parameters(gpt2), exact(formula))


@claim("formula-with-final-layernorm-is-the-model")
def test_the_formula_with_the_final_layernorm_is_the_model(
    implementation: Implementation, check: Check
) -> None:
    """With 2 d for the LayerNorm that ends the stack, the formula is the model.

    For vocabularies, contexts, widths and depths at will; the package's arithmetic gives the same.
    """

    @settings(max_examples=12)
    @given(st.integers(1, 500), st.integers(1, 100), st.integers(1, 12), st.integers(1, 4))
    def every_shape(V: int, n_ctx: int, head: int, blocks: int) -> None:
        d = 2 * head
        shape = {
            **GPT2,
            "vocabulary": V,
            "context": n_ctx,
            "d_model": d,
            "n_heads": 2,
            "n_blocks": blocks,
        }
        with torch.device("meta"):
            model = implementation.LanguageModel(**shape)
        formula = blocks * (12 * d * d + 13 * d) + V * d + n_ctx * d + 2 * d
        counts = [
            implementation.count_parameters(model),
            implementation.model_parameters(**shape)["total"],
        ]
        check(counts, exact([formula, formula]))

    every_shape()


@claim("embedding-nearly-a-third")
def test_nearly_a_third_of_a_small_model_is_its_embeddings(
    implementation: Implementation, check: Check, expected: Expected, gpt2: Any
) -> None:
    """Nearly a third of a small model is the embedding table.

    Of GPT-2 small's shape 31.0 %, with the table of positions 31.6 %, and of the chapter's own
    model 27.5 %: under a third each.
    """
    count = implementation.count_parameters
    with torch.device("meta"):
        chapter = implementation.LanguageModel(**asdict(ONE_BLOCK.model))
    shares = {
        "gpt2_small": Fraction(count(gpt2.token), count(gpt2)),
        "with_positions": Fraction(count(gpt2.token) + count(gpt2.position), count(gpt2)),
        "chapter": Fraction(count(chapter.token), count(chapter)),
    }
    percent = {name: float(100 * share) for name, share in shares.items()}
    check(percent, digits(expected["percent"], 1))
    check(list(percent.values()), within(0.0, 100 / 3, "nearly is not quite", strict=True))


@claim("chapter-model-500k")
def test_the_chapters_model_has_500_000_parameters(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """The model trained on Shakespeare has 500,000 parameters.

    To one digit that is one block with an output head of its own, 476,672. Two blocks are not, nor
    is one block with a tied head; two blocks with a tied head would be as well.
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


# ---- beyond the document: counts that others took for the size, and ties that were lost ----------


@claim("gpt2-count-without-positions")
def test_gpt2_without_its_positions(
    implementation: Implementation, check: Check, expected: Expected, gpt2: Any
) -> None:
    """Without its table of positions GPT-2 small has 123,653,376 parameters.

    The model's count less that table's, and the count of a model that has rotary positions.
    """
    count = implementation.count_parameters
    with torch.device("meta"):
        rotary = implementation.gpt2_small(positions="rotary")
    check(count(gpt2) - count(gpt2.position), exact(expected["value"]))
    check(count(rotary), exact(expected["value"]))


@claim("gpt2-count-blocks-only")
def test_gpt2_without_its_tables(
    implementation: Implementation, check: Check, expected: Expected, gpt2: Any
) -> None:
    """Without both tables GPT-2 small has 85,056,000 parameters: blocks and final LayerNorm.

    The tied output head is one of the tables.
    """
    count = implementation.count_parameters
    check(count(gpt2.blocks) + count(gpt2.norm), exact(expected["value"]))
    check(count(gpt2) - count(gpt2.token) - count(gpt2.position), exact(expected["value"]))


@claim("gpt2-count-untied")
def test_gpt2_untied(
    implementation: Implementation, check: Check, expected: Expected, gpt2: Any
) -> None:
    """With an output head of its own GPT-2 small has 163,037,184 parameters.

    A second table of 50,257 x 768, on the built model and in the package's arithmetic.
    """
    with torch.device("meta"):
        untied = implementation.gpt2_small(tied=False)
    check(implementation.count_parameters(untied), exact(expected["value"]))
    check(
        implementation.model_parameters(**{**GPT2, "tied": False})["total"],
        exact(expected["value"]),
    )
    check(implementation.count_parameters(gpt2) + 50_257 * 768, exact(expected["value"]))


@claim("gpt2-count-padded-vocabulary")
def test_gpt2_with_a_padded_vocabulary(
    implementation: Implementation, check: Check, expected: Expected
) -> None:
    """With its vocabulary padded to 50,304 GPT-2 small has 124,475,904 parameters.

    To a multiple of 64: 47 rows of 768 more.
    """
    padded = -(-50_257 // 64) * 64
    with torch.device("meta"):
        model = implementation.gpt2_small(vocabulary=padded)
    check(padded, exact(expected["vocabulary"]))
    check(implementation.count_parameters(model), exact(expected["value"]))


@claim("tied-tensor-counted-once")
def test_a_tied_tensor_is_counted_once(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """A tied tensor is one tensor of the model, however often its state dictionary names it.

    The state dictionary lists the table under two names; by distinct memory, and by the package's
    count, it is one.
    """
    V, d = 64, 16
    model = rng.build(lambda: implementation.LanguageModel(vocabulary=V, d_model=d, tied=True))
    state: dict[str, Tensor] = model.state_dict()
    numbers = [(tensor.data_ptr(), tensor.numel()) for tensor in state.values()]
    counted = implementation.count_parameters(model)
    check(sum(n for _, n in set(numbers)), exact(counted))
    check(sum(n for _, n in numbers), exact(counted + V * d))
    check(
        implementation.model_parameters(vocabulary=V, d_model=d, tied=True)["total"], exact(counted)
    )


@claim("tie-survives")
def test_the_tie_survives_what_is_done_to_a_model(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Embedding and output head stay one tensor after copying, moving, casting and loading.

    Including the way of a model that is made on the meta device and gets its memory and its numbers
    later.
    """

    def build() -> Any:
        return implementation.LanguageModel(vocabulary=64, d_model=16, tied=True)

    saved = rng.build(build).state_dict()
    with torch.device("meta"):
        empty = build()
    loaded, assigned = rng.build(build, "loaded"), rng.build(build, "assigned")
    loaded.load_state_dict(saved)
    assigned.load_state_dict({name: x.clone() for name, x in saved.items()}, assign=True)
    done = {
        "deepcopy": copy.deepcopy(rng.build(build)),
        "to another device": rng.build(build).to("meta"),
        "to another type": rng.build(build).to(torch.float64),
        "half": rng.build(build).half(),
        "load_state_dict": loaded,
        "load_state_dict with assign": assigned,
        "meta device, then to_empty": empty.to_empty(device="cpu"),
    }
    tied = {name: model.head.weight is model.token.weight for name, model in done.items()}
    check(tied, exact(dict.fromkeys(done, True)))
