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
# Whether the package under test has made them, and not the reference in its place.
TOKENS_ARE_OWN = pytest.StashKey[bool]()
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
    own = "Tokenizer" in implementation.provided()
    try:
        if own:
            config.stash[TOKENS_ARE_OWN] = True
            return _made_by(implementation, found)
    except NotImplementedError:
        if not config.stash[FOREIGN]:
            raise
        config.stash[TOKENS_ARE_OWN] = False  # still to be filled in
    except Exception as error:
        if not config.stash[FOREIGN]:
            raise
        said = str(error) or type(error).__name__
        return f"the Tokenizer of {implementation.package} cannot make tokens: {said}"
    # Models of somebody who has no tokenizer are given the reference's tokens.
    try:
        reference = Implementation(paths.REFERENCE)
    except ValueError as error:
        return f"{implementation.package} does not provide Tokenizer, and {error}"
    if "Tokenizer" not in reference.provided():
        return f"{implementation.package} does not provide Tokenizer"
    return _made_by(reference, found)


def _made_by(implementation: Implementation, corpus: Corpus) -> tuple[Any, Tensor]:
    source = implementation.source_digest()
    return token_ids(corpus, implementation.Tokenizer, cache_dir(), source_digest=source)


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
