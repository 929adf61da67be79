"""A site of README.md, docs/ and the report, by MkDocs (`pip install -e ".[site]"`).

`python -m claims.studies.docs --site FOLDER --results FILE.json` calls it. The project's other
files lie beside the pages, so that every link of a document works.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

from claims.harness import paths
from claims.harness.files import write_whole
from claims.report.merging import Merged
from claims.report.page import Links, html
from claims.report.pictures.picture import Picture

COPIED = ("claims", "docs", "fixtures", "tests", "transformer")
REPORT = "report.html"


def refuse(folder: Path) -> None:
    """Raise ValueError where a site cannot be built into `folder`."""
    if importlib.util.find_spec("mkdocs") is None:
        raise ValueError('--site needs mkdocs: pip install -e ".[site]"')
    if folder.exists():
        raise ValueError(f"--site {folder}: it exists; give a new folder")
    if not folder.absolute().parent.is_dir():
        raise ValueError(f"--site {folder}: the folder {folder.absolute().parent} does not exist")


def build(folder: Path, merged: Merged, pictures: Sequence[Picture]) -> None:
    """Write the site. Raises SystemExit with what MkDocs says, such as a link that leads nowhere.

    Args:
        folder: a new one.
        merged: the stored runs of the report.
        pictures: of the report.
    """
    with tempfile.TemporaryDirectory() as temporary:
        source, made = Path(temporary) / "source", Path(temporary) / "site"
        _copy(source)
        config = Path(temporary) / "mkdocs.yml"
        config.write_text(yaml.safe_dump(_settings(source, made)), encoding="utf-8")
        # Not --quiet: what MkDocs does not say, it does not count as a warning either.
        command = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(config)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"mkdocs: {done.stdout}{done.stderr}")
        write_whole(made / REPORT, html(merged, pictures, Links(".")))
        shutil.copytree(made, folder)


def _copy(source: Path) -> None:
    for name in COPIED:
        ignored = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(paths.ROOT / name, source / name, ignore=ignored)
    shutil.copy(paths.ROOT / "LICENSE", source)
    shutil.copy(paths.ROOT / "README.md", source / "index.md")
    for document in [source / "index.md", *(source / "docs").glob("*.md")]:
        text = document.read_text(encoding="utf-8")
        document.write_text(_to_pages(text, document), encoding="utf-8")


def _to_pages(text: str, document: Path) -> str:
    """Links to README.md lead to the first page, and links to folders to a page that lists them."""

    def page(match: re.Match[str]) -> str:
        target = document.parent / match.group(1)
        if target.is_dir():
            _list(target)
            return f"]({match.group(1)}/index.md"
        return match.group().replace("README.md", "index.md")

    return re.sub(r"\]\(([^)#:]+)", page, text)


def _list(folder: Path) -> None:
    lines = [
        f"- [{path.name}]({path.name})" if path.is_file() else f"- {path.name}/"
        for path in sorted(folder.iterdir()) if path.name != "index.md"
    ]  # fmt: skip
    (folder / "index.md").write_text("\n".join([f"# {folder.name}", "", *lines, ""]))


def _settings(source: Path, made: Path) -> dict[str, object]:
    documents = sorted(path.name for path in (source / "docs").glob("*.md"))
    return {
        "site_name": "transformer-claims",
        "docs_dir": str(source), "site_dir": str(made),
        "use_directory_urls": False,  # the pages work from a folder too
        "strict": True,
        # The report is no page of MkDocs: it is put beside them.
        "validation": {"nav": {"not_found": "ignore", "omitted_files": "ignore"},
                       "links": {"anchors": "warn"}},
        "theme": {"name": "material", "font": False, "palette": {"scheme": "default"}},
        "nav": [{"Overview": "index.md"}, {"Report": REPORT}, *(f"docs/{d}" for d in documents)],
    }  # fmt: skip
