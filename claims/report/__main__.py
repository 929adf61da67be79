"""What became of the claims, from stored runs: `python -m claims.report FILE.json -o FILE.html`.

Several files become one report: of two devices, of two budgets, of several implementations, or of
the shards of a CI matrix. The newest evidence comes first, and conflicts are shown.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from claims.harness import paths
from claims.harness.files import demand_writable, write_whole
from claims.harness.ledger import load_ledger
from claims.report.merging import merge
from claims.report.page import Links, html, markdown
from claims.report.pictures import all_pictures
from claims.report.stored import NoResults, read


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m claims.report", description=__doc__)
    parser.add_argument(
        "files", nargs="+", type=Path, help="what --claims-json or claims.compare -o wrote"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="where to (default: print it)")
    parser.add_argument("--format", choices=("html", "markdown"), default="html")
    parser.add_argument(
        "--source-url", metavar="URL",
        help="where the project's files are shown, up to the commit (default: beside the report)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    try:
        if options.output is not None:
            demand_writable("--output", options.output)
        stored = chain.from_iterable(map(read, options.files))
        merged = merge(stored, load_ledger(paths.LEDGER))
    except (NoResults, ValueError) as error:
        parser.error(str(error))
    links = links_from(Path(options.output or "report.md"), options.source_url)
    if options.format == "markdown":
        text = markdown(merged, links)
    else:
        text = html(merged, all_pictures(merged.ledger), links)
    if options.output is None:
        sys.stdout.write(text)
    else:
        write_whole(Path(options.output), text)
    return 0


def links_from(report: Path, address: str | None = None) -> Links:
    """Links from a report to the project's files: by an address, or relative to the report."""
    if address is not None:
        return Links(address.rstrip("/"), web=True)
    folder = os.path.relpath(paths.FIXTURES.parent, report.absolute().parent)
    return Links(Path(folder).as_posix())


if __name__ == "__main__":
    raise SystemExit(main())
