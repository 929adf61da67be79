"""The site of the documents and the report: every link leads somewhere, nothing is half-built."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from claims.harness import paths
from claims.harness.ledger import load_ledger
from claims.report.merging import merge
from claims.report.pictures.picture import Picture
from claims.report.stored import of_data
from claims.studies import docs, site
from conftest import ROOT
from small_results import results, run

MERGED = merge([of_data(results(run("token-count")), "file")], load_ledger(paths.LEDGER))
PICTURES = [Picture("none", "None", missing="Nothing to draw.")]


def test_the_site_has_the_documents_the_report_and_no_dead_link(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs mkdocs: pip install -e '.[site]'")
    folder = tmp_path / "site"
    site.build(folder, MERGED, PICTURES)
    pages = [folder / "index.html", *sorted((folder / "docs").glob("*.html"))]
    assert len(pages) == 1 + len([*(ROOT / "docs").glob("*.md")])
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for address in re.findall(r'(?:href|src)="([^"]+)"', text):
            path = unquote(urldefrag(address).url)
            if path and not path.startswith(("http", "mailto:", "data:")):
                assert (page.parent / path).exists(), f"{page.name}: {address}"
        assert not re.search(r'<(?:script|img)[^>]+src="https?:', text)
        assert not re.search(r'<link[^>]+rel="stylesheet"[^>]+href="https?:', text)
    report = (folder / site.REPORT).read_text(encoding="utf-8")
    links = re.findall(r'href="(\./claims[^"]+)"', report)
    assert links
    assert all((folder / link).is_file() for link in links)


def test_a_dead_link_is_an_error_and_leaves_no_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mkdocs", reason="needs mkdocs: pip install -e '.[site]'")
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    for name in site.COPIED:
        (tmp_path / name).mkdir()
    (tmp_path / "LICENSE").write_text("")
    (tmp_path / "README.md").write_text("# A\n\n[here](docs/b.md#nothing-of-that-name)\n")
    (tmp_path / "docs" / "b.md").write_text("# B\n\n[there](missing.md)\n")
    with pytest.raises(SystemExit, match=r"missing\.md") as failed:
        site.build(tmp_path / "site", MERGED, PICTURES)
    assert "nothing-of-that-name" in str(failed.value)
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--site", "new"], "--site FOLDER and --results FILE.json belong together"),
        (["--results", "{file}"], "--site FOLDER and --results FILE.json belong together"),
        (["--site", "new", "--results", "none.json"], "none.json cannot be read"),
        (["--site", "{folder}", "--results", "{file}"], "it exists; give a new folder"),
        (["--site", "{folder}/a/b", "--results", "{file}"], "does not exist"),
    ],
)
def test_a_bad_command_is_refused_before_anything_is_written(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(site.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(docs, "write_whole", lambda path, text: pytest.fail("written"))
    file = tmp_path / "file.json"
    file.write_text(json.dumps(results()))
    with pytest.raises(SystemExit) as left:
        docs.main([each.format(folder=tmp_path, file=file) for each in arguments])
    assert left.value.code == 2
    assert sentence in capsys.readouterr().err


def test_without_mkdocs_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install"):
        site.refuse(tmp_path / "new")
