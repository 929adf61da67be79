"""Offers the instruments to the claims as fixtures, and names the corpus in the header."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from torch import Tensor

from claims.harness.implementation import Implementation
from claims.harness.report import CLAIMS, CORPUS_LINE
from claims.instruments.corpus import (
    CACHE_VARIABLE,
    Corpus,
    CorpusError,
    find_corpus,
)
from claims.instruments.tokens import token_ids

CORPUS_VARIABLE = "CLAIMS_CORPUS"
CORPUS = pytest.StashKey[Corpus | CorpusError]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("claims").addoption(
        "--corpus",
        metavar="FILE",
        help=f"text to run on; else ${CORPUS_VARIABLE}, the user cache, a download, the stand-in",
    )


def pytest_configure(config: pytest.Config) -> None:
    # A file that somebody named is read now: a typo must not wait for the first claim that needs
    # it.
    if _given(config) is not None and isinstance(fault := _find(config), CorpusError):
        raise pytest.UsageError(str(fault))


def pytest_report_header(config: pytest.Config) -> list[str]:
    if config.option.collectonly or not _runs_claims(config):
        return []
    found = _find(config)
    if isinstance(found, CorpusError):
        return [f"corpus: none, claims that need one are not run. {found}"]
    return [f"corpus: {found.describe()}", *(f"  not from {reason}" for reason in found.missed)]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist: the controller looks, so that the workers find the same text and do not download."""
    _find(node.config)


@pytest.fixture(scope="session")
def corpus(pytestconfig: pytest.Config) -> Corpus:
    """The text that claims run on: Tiny Shakespeare, its stand-in, or the one given."""
    found = _find(pytestconfig)
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
def _tokenised(corpus: Corpus, implementation: Implementation) -> tuple[Any, Tensor]:
    digest = implementation.source_digest()
    return token_ids(corpus, implementation.Tokenizer, _cache_dir(), source_digest=digest)


@pytest.fixture(scope="session")
def tokenizer(_tokenised: tuple[Any, Tensor]) -> Any:
    """The implementation's tokenizer, trained on the corpus to a vocabulary of 1,024."""
    return _tokenised[0]


@pytest.fixture(scope="session")
def tokens(_tokenised: tuple[Any, Tensor]) -> Tensor:
    """The corpus as ids of `tokenizer`, int64, (tokens,)."""
    return _tokenised[1]


def _given(config: pytest.Config) -> Path | None:
    named = config.getoption("corpus") or os.environ.get(CORPUS_VARIABLE)
    return config.invocation_params.dir / Path(named).expanduser() if named else None


def _cache_dir() -> Path:
    named = os.environ.get(CACHE_VARIABLE)
    return (
        Path(named).expanduser()
        if named
        else Path(platformdirs.user_cache_dir("transformer-claims"))
    )


def _find(config: pytest.Config) -> Corpus | CorpusError:
    """Look once per process."""
    if CORPUS not in config.stash:
        worker = hasattr(config, "workerinput")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                found = find_corpus(_given(config), _cache_dir(), allow_download=not worker)
            except CorpusError as error:
                config.stash[CORPUS] = error
            else:
                config.stash[CORPUS] = found
                config.stash[CORPUS_LINE] = found.describe()
        for warning in said:
            config.issue_config_time_warning(warning.message, stacklevel=2)  # type: ignore[arg-type]
    return config.stash[CORPUS]


def _runs_claims(config: pytest.Config) -> bool:
    paths = [
        (config.invocation_params.dir / arg.partition("::")[0]).resolve() for arg in config.args
    ]
    return any(path in (CLAIMS, *CLAIMS.parents) or CLAIMS in path.parents for path in paths)
