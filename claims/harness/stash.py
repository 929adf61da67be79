"""What the plugins keep in pytest's configuration for one session."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from claims.harness.implementation import Implementation
from claims.harness.ledger import Entry, Ledger
from claims.harness.mark import claim_id

LEDGER = pytest.StashKey[Ledger]()
IMPLEMENTATION = pytest.StashKey[Implementation]()  # the package under test
# Its name where it is not this project's reference; empty where it is.
FOREIGN = pytest.StashKey[str]()
BASE_SEEDS = pytest.StashKey[Sequence[int]]()
CORPUS_LINE = pytest.StashKey[str]()  # where the corpus came from; the harness itself knows none


def entry_of(item: pytest.Item) -> Entry | None:
    """The ledger's entry that a test decides; None for a test that is no claim."""
    name = claim_id(item)
    return None if name is None else item.config.stash[LEDGER][name]
