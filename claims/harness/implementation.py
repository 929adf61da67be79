"""The seam: the only way by which claims and instruments reach the code under test.

`--implementation some.package` names an importable package. It provides, at its top level, some or
all of the names below; a claim that needs a name that the package lacks is reported as `not run`.
`transformer/`, whose docstrings give the details, is the reference for all of them.

Shapes: B batch, T tokens (n queries, m keys), d = d_model, h heads, V vocabulary, `...` any leading
dimensions.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import unittest
from pathlib import Path
from types import ModuleType
from typing import Any

NAMES: dict[str, str] = {
    # average
    "average_loop": "(x (..., T, d)) -> (..., T, d): causal running mean, as a loop",
    "averaging_matrix": "(T, dtype, device) -> (T, T): row t holds 1/(t+1) up to the diagonal",
    "average_by_matrix": "(x (..., T, d)) -> (..., T, d): the same mean as one product",
    "uniform_scores": "(T, dtype, device) -> (T, T): zero on and below the diagonal, -inf above",
    "average_by_softmax": "(x (..., T, d)) -> (..., T, d): the same mean through a softmax",
    # attention
    "causal_mask": "(n, m=n, device) -> bool (n, m), True = may attend, lower-right aligned",
    "attention": "(q (..., n, d_k), k (..., m, d_k), v (..., m, d_v), mask, *, scale, dropout,"
    " fused, return_weights) -> (..., n, d_v) [, weights (..., n, m)]",
    "Head": "(d_model, d_head, block): Module, (B, T, d) -> (B, T, d_head), causal, no W_o",
    "MultiHeadAttention": "(d_model, n_heads, *, d_head, qkv_bias, causal, scaled, positions,"
    " dropout, fused): Module, (x (B, n, d), context (B, m, d), mask, return_weights) -> (B, n, d)",
    # position
    "LearnedPositions": "(n_positions, d_model): Module, (n) -> (n, d)",
    "sinusoidal_positions": "(n, d_model, base) -> (n, d)",
    "rotate": "(x (..., T, d_head), positions (T,), base) -> (..., T, d_head): rotary,"
    " interleaved pairs",
    "alibi_slopes": "(n_heads) -> (h,)",
    "alibi_bias": "(n_heads, n, m=n) -> (h, n, m)",
    # block
    "FeedForward": "(d_model, expansion, dropout): Module, (B, T, d) -> (B, T, d)",
    "Block": "(d_model, mixer, *, norm, feed_forward, residual, dropout): Module,"
    " (B, T, d) -> (B, T, d)",
    # model
    "LanguageModel": "(**settings: those of `ModelSettings` in claims/training/spec.py, dropout and"
    " fused): Module, (tokens (B, T)) -> logits (B, T, V)",
    "gpt2_small": "(**changes) -> LanguageModel of GPT-2 small's shape",
    "EncoderDecoder": "(*, source_vocabulary, target_vocabulary, context, d_model, n_heads,"
    " n_blocks, dropout): Module, (source (B, S), target (B, T)) -> logits (B, T, V)",
    # size
    "attention_parameters": "(d_model, n_heads, d_head, qkv_bias) -> int",
    "feed_forward_parameters": "(d_model, expansion) -> int",
    "layer_norm_parameters": "(d_model) -> int",
    "block_parameters": "(d_model, qkv_bias) -> int",
    "model_parameters": "(LanguageModel's settings) -> dict of part -> int, with 'total'",
    "count_parameters": "(module) -> int, a tied tensor counted once",
    "attention_matrix_bytes": "(n, n_heads, bytes_per_number) -> int",
    # tokenizer
    "Tokenizer": ".train(text, vocabulary), .encode(text), .decode(ids), .decode_bytes(ids),"
    " .merges, .vocabulary, .save(path), .load(path)",
}


class Missing(unittest.SkipTest):
    """The package under test lacks what a claim needs.

    pytest and Hypothesis take a `SkipTest` for a skip: the claim is not run, with this as reason.
    """


class Implementation:
    """The package under test through the seam: `implementation.Head` is the package's `Head`."""

    def __init__(self, package: str) -> None:
        """Import `package`.

        Raises:
            ValueError: it cannot be imported, or provides none of the names.
        """
        self.package = package
        self._module = _import(package)
        if not self.provided():
            raise ValueError(
                f"--implementation {package}: the package provides none of the names of the seam "
                f"(claims/harness/implementation.py lists them, e.g. {', '.join(list(NAMES)[:4])})"
            )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in NAMES:
            raise AttributeError(
                f"'{name}' is no name of the seam (claims/harness/implementation.py)"
            )
        if not hasattr(self._module, name):
            raise Missing(f"{self.package} does not provide {name}")
        return getattr(self._module, name)

    def provided(self) -> list[str]:
        """The names of the seam that the package has."""
        return [name for name in NAMES if hasattr(self._module, name)]

    def source_digest(self) -> str:
        """sha256 over the code of the package's Python files, without comments and docstrings: what
        a result computed with it depends on.
        """
        assert self._module.__file__ is not None
        file = Path(self._module.__file__)
        files = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
        digest = hashlib.sha256()
        for path in files:
            code = _without_words(path.read_bytes())
            digest.update(f"{path.relative_to(file.parent)}\0{code}\0".encode())
        return digest.hexdigest()



def _without_words(source: bytes) -> str:
    """The code of a module, the same whatever its comments, docstrings and layout say."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a file that is never imported: its bytes are its code
        return hashlib.sha256(source).hexdigest()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            text = body[0].value
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _import(package: str) -> ModuleType:
    allowed = "name an importable package, e.g. --implementation transformer"
    parts = package.split(".")
    if not all(part.isidentifier() for part in parts):
        raise ValueError(f"--implementation '{package}' is no package name; {allowed}")
    try:
        module = importlib.import_module(package)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{package}.".startswith(f"{missing}."):
            raise ValueError(
                f"--implementation {package}: no such package on this Python's path; {allowed}"
            ) from error
        raise ValueError(
            f"--implementation {package} fails to import: {type(error).__name__}: {error}"
        ) from error
    if module.__file__ is None:
        raise ValueError(f"--implementation {package} is a folder without __init__.py; {allowed}")
    return module
