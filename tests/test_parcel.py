"""An implementation that travels: what is sent, what cannot be, and what is refused on arrival."""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from claims.harness.implementation import Implementation
from claims.training import parcel
from claims.training.parcel import CannotTravel, pack, unpack

NAME = "def causal_mask(n, m=None, device=None): ...\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's folder, from which Python imports; what was imported is forgotten at the end."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    parcel._forget()
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder: Path, **files: str) -> None:
    """`a__b="..."` is the file a/b.py."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def sent(package: str) -> parcel.Parcel:
    """What travels; from here on the package is not importable from the user's folder."""
    made = pack(Implementation(package))
    del sys.path[0]
    return made


def names(made: parcel.Parcel) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(made.archive)).namelist()


def test_the_reference_is_not_sent() -> None:
    made = pack(Implementation("transformer"))
    assert made.archive == b""
    assert made.needs == ()
    assert unpack(made).source_digest() == made.digest


def test_a_package_travels_with_its_data_and_with_what_it_imports(folder: Path) -> None:
    """But for what is hidden, what nobody imports, and this project."""
    write(
        folder, unrelated="", near="from deep.down import VALUE\n", deep__down="VALUE = 3\n",
        mine__part="import transformer\nfrom near import VALUE\nfrom claims.harness import paths\n",
    )
    (folder / "mine" / "__init__.py").write_text("from .part import VALUE\n" + NAME)
    (folder / "mine" / "data.json").write_text("{}")
    (folder / "mine" / ".hidden").write_text("")
    made = sent("mine")
    assert names(made) == [
        "deep/down.py", "mine/__init__.py", "mine/data.json", "mine/part.py", "near.py"
    ]  # fmt: skip
    arrived = unpack(made)
    assert not arrived.file.is_relative_to(folder)
    assert arrived.source_digest() == made.digest
    assert (arrived.file.parent / "data.json").read_text() == "{}"
    assert sys.modules["mine"].VALUE == 3


@pytest.mark.parametrize("package", ["one", "outer.inner", "space.inner"])
def test_modules_and_packages_in_packages_travel(package: str, folder: Path) -> None:
    """outer has an `__init__.py`, which runs when outer.inner is imported; space has none."""
    write(folder, one=NAME, outer__inner=NAME, space__inner=NAME, beside="")
    (folder / "outer" / "__init__.py").write_text("import beside\n")
    made = sent(package)
    assert unpack(made).provided() == ["causal_mask"]


def test_equal_content_is_equal_to_the_byte(folder: Path) -> None:
    write(folder, one=NAME)
    first = pack(Implementation("one"))
    write(folder, one=NAME)
    assert pack(Implementation("one")) == first


def test_what_arrives_takes_the_place_of_what_came_before(folder: Path) -> None:
    write(folder, one="from other import VALUE\n" + NAME, other="VALUE = 1\n")
    first = pack(Implementation("one"))
    for name in ("one", "other"):
        del sys.modules[name]
    write(folder, one="from other import VALUE\n" + NAME, other="VALUE = 22\n")
    second = sent("one")
    unpack(first)
    assert sys.modules["one"].VALUE == 1
    unpack(second)
    assert sys.modules["one"].VALUE == 22
    places = [place for place in sys.path if Path(place).name.startswith("claims-")]
    assert len(places) == 1


def test_what_is_compiled_cannot_travel(folder: Path) -> None:
    write(folder, mine__part="")
    (folder / "mine" / "__init__.py").write_text(NAME)
    (folder / "mine" / "fast.cpython-311-x86_64-linux-gnu.so").write_bytes(b"")
    with pytest.raises(CannotTravel, match=r"^mine cannot .*: mine/fast\..*\.so is compiled"):
        pack(Implementation("mine"))


def test_what_is_large_cannot_travel(folder: Path) -> None:
    write(folder, mine__part="")
    (folder / "mine" / "__init__.py").write_text(NAME)
    with (folder / "mine" / "weights.bin").open("wb") as file:
        file.truncate(9_000_000)
    with pytest.raises(CannotTravel, match=r"mine cannot .* holds 9 MB .* at most 8 MB are"):
        pack(Implementation("mine"))


def test_what_cannot_be_read_cannot_travel(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(files: object) -> bytes:
        raise PermissionError(13, "Permission denied", "secret")

    write(folder, one=NAME)
    monkeypatch.setattr(parcel, "_zipped", fail)
    with pytest.raises(CannotTravel, match=r"^one cannot travel .* Permission denied: 'secret'$"):
        pack(Implementation("one"))


def test_an_installed_library_of_another_version_is_refused(folder: Path) -> None:
    write(folder, one="import yaml\n" + NAME)
    made = sent("one")
    assert [need.partition("==")[0] for need in made.needs] == ["PyYAML"]
    assert unpack(made).provided() == ["causal_mask"]
    with pytest.raises(CannotTravel, match=r"^one needs PyYAML 0\.1 as .* and finds \d"):
        unpack(replace(made, needs=("PyYAML==0.1",)))
    with pytest.raises(CannotTravel, match=r"^one needs no-such 1 as .*, and finds none$"):
        unpack(replace(made, needs=("no-such==1",)))


def test_another_source_on_arrival_is_refused(folder: Path) -> None:
    write(folder, one=NAME)
    with pytest.raises(CannotTravel, match=r"^the source of one, or of what it imports, differs"):
        unpack(replace(sent("one"), digest="0" * 64))


def test_a_package_that_fails_to_import_on_arrival_is_refused(folder: Path) -> None:
    write(folder, one=f"open({str(folder / 'data')!r}).close()\n" + NAME)
    (folder / "data").write_text("")
    made = sent("one")
    (folder / "data").unlink()
    with pytest.raises(CannotTravel, match=r"one fails to import: FileNotFoundError"):
        unpack(made)
