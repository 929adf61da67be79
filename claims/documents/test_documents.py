"""Translations of the chapter against its figures; run with `--documents DIR`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from claims.documents.comparison import Paired, differences, missing, unexplained
from claims.documents.inventory import Inventory


def test_the_translations_have_the_same_figures(
    translations: list[Paired], chapter: Inventory
) -> None:
    demand_none(differences(translations, chapter))


def test_every_line_is_there(translation: Paired) -> None:
    demand_none(translation.lost)


def test_every_figure_of_the_chapter_is_there(translation: Paired, chapter: Inventory) -> None:
    demand_none(missing(translation, chapter))


def test_every_figure_is_accounted_for(translation: Paired, chapter: Inventory) -> None:
    demand_none(unexplained(translation, chapter))


def demand_none(findings: Iterable[str]) -> None:
    if found := list(findings):
        pytest.fail("\n".join(found), pytrace=False)
