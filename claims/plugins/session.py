"""The corpus and its tokens, looked up once per session for both plugins."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from claims.harness import paths
from claims.harness.files import cache_dir
from claims.harness.implementation import Implementation
from claims.harness.stash import CORPUS_LINE, FOREIGN, IMPLEMENTATION
from claims.instruments.text.corpus import Corpus, CorpusError, find_corpus
from claims.instruments.text.tokens import digest, token_ids

CORPUS_VARIABLE = "CLAIMS_CORPUS"
CORPUS = pytest.StashKey[Corpus | CorpusError]()
TOKENS = pytest.StashKey[tuple[Any, Tensor] | str]()
DIGEST = pytest.StashKey[str]()


def given_corpus(config: pytest.Config) -> Path | None:
    named = config.getoption("corpus") or os.environ.get(CORPUS_VARIABLE)
    return config.invocation_params.dir / Path(named).expanduser() if named else None


def tokens_of(config: pytest.Config) -> tuple[Any, Tensor] | str:
    """The tokenizer and the corpus in its ids, made once per process; or why there are none."""
    if TOKENS not in config.stash:
        config.stash[TOKENS] = _tokenise(config)
    return config.stash[TOKENS]


def tokens_digest(config: pytest.Config) -> str:
    """Of the corpus in ids; empty where there are none."""
    if DIGEST not in config.stash:
        found = tokens_of(config)
        config.stash[DIGEST] = "" if isinstance(found, str) else digest(found[1])
    return config.stash[DIGEST]


def _tokenise(config: pytest.Config) -> tuple[Any, Tensor] | str:
    found = corpus_of(config)
    if isinstance(found, CorpusError):
        return f"needs a corpus: {found}"
    implementation = config.stash[IMPLEMENTATION]
    if "Tokenizer" not in implementation.provided():
        # Models of somebody who has no tokenizer are given the reference's tokens.
        try:
            implementation = Implementation(paths.REFERENCE)
        except ValueError as error:
            return f"{implementation.package} does not provide Tokenizer, and {error}"
        if "Tokenizer" not in implementation.provided():
            return f"{implementation.package} does not provide Tokenizer"
    source = implementation.source_digest()
    try:
        return token_ids(found, implementation.Tokenizer, cache_dir(), source_digest=source)
    except Exception as error:
        if not config.stash[FOREIGN]:
            raise
        return f"the Tokenizer of {implementation.package} cannot make tokens: {error}"


def corpus_of(config: pytest.Config) -> Corpus | CorpusError:
    """Look once per process."""
    if CORPUS not in config.stash:
        worker = hasattr(config, "workerinput")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                found = find_corpus(given_corpus(config), cache_dir(), allow_download=not worker)
            except CorpusError as error:
                config.stash[CORPUS] = error
            else:
                config.stash[CORPUS] = found
                config.stash[CORPUS_LINE] = found.describe()
        for warning in said:
            config.issue_config_time_warning(warning.message, stacklevel=2)  # type: ignore[arg-type]
    return config.stash[CORPUS]
