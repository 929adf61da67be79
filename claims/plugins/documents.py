"""`--documents DIR`: translations of the chapter, compared with each other and with the ledger."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from claims.harness.ledger import load_ledger
from claims.harness.paths import CLAIMS, LEDGER

if TYPE_CHECKING:  # its libraries are installed only where translations are compared
    from claims.documents.comparison import Paired
    from claims.documents.inventory import Inventory

TESTS = CLAIMS / "documents" / "test_documents.py"
CHAPTER = pytest.StashKey["Inventory"]()
PAIRED = pytest.StashKey["list[Paired]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("claims").addoption(
        "--documents",
        metavar="DIR",
        help="compare the translations of the chapter in DIR (*.txt) with each other and with the "
        "ledger, figure by figure",
    )


def pytest_configure(config: pytest.Config) -> None:
    if (named := config.getoption("documents")) is None:
        return
    try:
        from claims.documents.comparison import pair
        from claims.documents.inventory import INVENTORY, load_inventory
        from claims.documents.translations import DocumentsError, load_translations
    except ImportError as error:
        raise pytest.UsageError(
            f"--documents needs {error.name}: pip install -c constraints.txt -e '.[documents]'"
        ) from error
    chapter = load_inventory(INVENTORY, load_ledger(LEDGER))
    folder = config.invocation_params.dir / Path(named).expanduser()
    try:
        translations = load_translations(folder)
    except DocumentsError as error:
        raise pytest.UsageError(f"--documents {named}: {error}") from error
    config.stash[CHAPTER] = chapter
    config.stash[PAIRED] = [pair(translation, chapter) for translation in translations]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without translations there is nothing to test; None leaves it to the other plugins."""
    return True if collection_path == TESTS and PAIRED not in config.stash else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "translation" in metafunc.fixturenames:
        paired = metafunc.config.stash[PAIRED]
        names = [each.translation.name for each in paired]
        metafunc.parametrize("translation", paired, ids=names)


@pytest.fixture(scope="session")
def chapter(pytestconfig: pytest.Config) -> Inventory:
    """The chapter's figures, line by line."""
    return pytestconfig.stash[CHAPTER]


@pytest.fixture(scope="session")
def translations(pytestconfig: pytest.Config) -> list[Paired]:
    return pytestconfig.stash[PAIRED]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if PAIRED not in config.stash:
        return
    from claims.documents.words import listed

    chapter, paired = config.stash[CHAPTER], config.stash[PAIRED]
    kinds = Counter(printed.by for row in chapter.figures.values() for printed in row)
    none = {kind: kinds.pop(kind) for kind in chapter.no_claim}
    terminalreporter.section("documents")
    write = terminalreporter.write_line
    write(
        f"the chapter: {kinds.total()} figures of {len(kinds)} claims; {sum(none.values())} that "
        f"are no claim: {', '.join(f'{count} {kind}' for kind, count in none.items())}"
    )
    for each in paired:
        count = sum(map(len, each.figures.values()))
        write(f"{each.translation.name}: {count} figures ({each.translation.file})")
    words = list(listed([each.translation for each in paired], chapter))
    write(f"numbers in words stand on {len(words)} lines, for a person to compare; -v lists them")
    if config.get_verbosity() > 0:
        for line in words:
            write(f"  {line}")
