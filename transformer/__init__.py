"""The transformer of the chapter, built from an average: what the claims are tested on.

Read the files in the chapter's order: average, attention, position, block, model, size. Shapes:
B sequences of T tokens (n queries, m keys), width d, h heads, V entries in the vocabulary.
"""

from .attention import Head, MultiHeadAttention, attention, causal_mask
from .average import (
    average_by_matrix,
    average_by_softmax,
    average_loop,
    averaging_matrix,
    uniform_scores,
)
from .block import Block, FeedForward
from .model import EncoderDecoder, LanguageModel, gpt2_small
from .position import LearnedPositions, alibi_bias, alibi_slopes, rotate, sinusoidal_positions
from .size import (
    attention_matrix_bytes,
    attention_parameters,
    block_parameters,
    count_parameters,
    feed_forward_parameters,
    layer_norm_parameters,
    model_parameters,
)
from .tokenizer import Tokenizer

__all__ = [
    "Block",
    "EncoderDecoder",
    "FeedForward",
    "Head",
    "LanguageModel",
    "LearnedPositions",
    "MultiHeadAttention",
    "Tokenizer",
    "alibi_bias",
    "alibi_slopes",
    "attention",
    "attention_matrix_bytes",
    "attention_parameters",
    "average_by_matrix",
    "average_by_softmax",
    "average_loop",
    "averaging_matrix",
    "block_parameters",
    "causal_mask",
    "count_parameters",
    "feed_forward_parameters",
    "gpt2_small",
    "layer_norm_parameters",
    "model_parameters",
    "rotate",
    "sinusoidal_positions",
    "uniform_scores",
]
