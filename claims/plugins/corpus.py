"""Offers the instruments to the claims as fixtures, and names the corpus in the header."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import pytest
from torch import Tensor

from claims.harness import layout, seeds
from claims.harness.implementation import Implementation
from claims.harness.paths import CLAIMS
from claims.harness.per_seed import PerSeed
from claims.instruments.attention import block_gradients
from claims.instruments.attention.block_gradients import BlockGradient, Ends
from claims.instruments.text.corpus import Corpus, CorpusError
from claims.plugins.kept import kept
from claims.plugins.session import (
    CORPUS_VARIABLE,
    TOKENS_ARE_OWN,
    corpus_of,
    given_corpus,
    tokens_digest,
    tokens_of,
)

SEEDS = range(16)  # of the models whose gradients are measured before training


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("claims").addoption(
        "--corpus",
        metavar="FILE",
        help=f"text to run on; else ${CORPUS_VARIABLE}, the user cache, a download, the stand-in",
    )


def pytest_configure(config: pytest.Config) -> None:
    # A file that somebody named is read now: a typo must not wait for the first claim that needs
    # it.
    if given_corpus(config) is not None and isinstance(fault := corpus_of(config), CorpusError):
        raise pytest.UsageError(str(fault))


def pytest_report_header(config: pytest.Config) -> list[str]:
    if config.option.collectonly or not _runs_claims(config):
        return []
    found = corpus_of(config)
    if isinstance(found, CorpusError):
        return [f"corpus: none, claims that need one are not run. {found}"]
    return [f"corpus: {found.describe()}", *(f"  not from {reason}" for reason in found.missed)]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist: the controller looks, so that the workers find the same text and do not download."""
    corpus_of(node.config)


@pytest.fixture(scope="session")
def corpus(pytestconfig: pytest.Config) -> Corpus:
    """The text that claims run on: Tiny Shakespeare, its stand-in, or the one given."""
    found = corpus_of(pytestconfig)
    if isinstance(found, CorpusError):
        pytest.skip(f"needs a corpus: {found}")
    return found


@pytest.fixture(scope="session")
def exact_corpus(corpus: Corpus) -> Corpus:
    """Tiny Shakespeare to the byte, for exact counts."""
    if not corpus.exact:
        pytest.skip("needs the exact corpus")
    return corpus


@pytest.fixture(scope="session")
def _tokenised(
    pytestconfig: pytest.Config, implementation: Implementation
) -> tuple[Any, Tensor]:
    found = tokens_of(pytestconfig)
    if isinstance(found, str):
        pytest.skip(found)
    if pytestconfig.stash.get(TOKENS_ARE_OWN, False):
        implementation.Tokenizer  # noqa: B018 - asked for, also where the tokens are kept
    return found


@pytest.fixture(scope="session")
def tokenizer(_tokenised: tuple[Any, Tensor]) -> Any:
    """The implementation's tokenizer, trained on the corpus to a vocabulary of 1,024."""
    return _tokenised[0]


@pytest.fixture(scope="session")
def tokens(_tokenised: tuple[Any, Tensor]) -> Tensor:
    """The corpus as ids of `tokenizer`, int64, (tokens,)."""
    return _tokenised[1]


@pytest.fixture(scope="session")
def ends(
    pytestconfig: pytest.Config, implementation: Implementation, tokens: Tensor
) -> dict[str, PerSeed[Ends]]:
    """By norm and seed, the gradients in block 1 and in block 12 before the first step.

    Kept: 32 models of twelve blocks take as long as all other claims that train nothing.
    """

    def measure() -> dict[str, Any]:
        of = partial(block_gradients.of_twelve_blocks, implementation, tokens)
        return {n: [[*map(asdict, of(n, seed))] for seed in SEEDS] for n in ("pre", "post")}

    found = _gradients(implementation, measure, "ends", tokens_digest(pytestconfig))
    return {
        norm: PerSeed(SEEDS, [(BlockGradient(**a), BlockGradient(**b)) for a, b in of_seeds])
        for norm, of_seeds in found.items()
    }


@pytest.fixture(scope="session")
def last_by_depth(implementation: Implementation) -> dict[str, list[PerSeed[float]]]:
    """By norm, the gradient in the last block of stacks of 1 block and of 16, over six seeds."""

    def measure() -> dict[str, Any]:
        of = partial(block_gradients.of_last_block, implementation)
        return {n: [[of(n, d, i) for i in range(6)] for d in (1, 16)] for n in ("pre", "post")}

    found = _gradients(implementation, measure, "last by depth")
    return {n: [PerSeed(range(6), values) for values in by_depth] for n, by_depth in found.items()}


def _gradients(
    implementation: Implementation, measure: Callable[[], Any], *facts: str
) -> dict[str, Any]:
    """Kept by the source of the package and by the code that measures."""
    implementation.LanguageModel  # noqa: B018 - asked for, also where the gradients are kept
    code = (block_gradients, layout, seeds)
    found: dict[str, Any] = kept(measure, code, implementation.source_digest(), *facts)
    return found


def _runs_claims(config: pytest.Config) -> bool:
    paths = [
        (config.invocation_params.dir / arg.partition("::")[0]).resolve() for arg in config.args
    ]
    return any(path in (CLAIMS, *CLAIMS.parents) or CLAIMS in path.parents for path in paths)
