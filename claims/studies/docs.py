"""The generated parts of README.md and docs/, and the pictures: `python -m claims.studies.docs`.

They show the ledger, the stored tables of the chapter, the record and the studies. Nothing is
measured for them.

    python -m claims.studies.docs --site FOLDER --results FILE.json

makes also a site of them and of the report of stored runs.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

from claims.harness import paths
from claims.harness.diagnosis import FOLDER
from claims.harness.files import write_whole
from claims.harness.ledger import Ledger, load_ledger
from claims.report.merging import merge
from claims.report.pictures import all_pictures
from claims.report.pictures.picture import Picture
from claims.report.stored import NoResults, read
from claims.studies import (
    author,
    chapter_tables,
    diagnoses,
    document_tables,
    known_mistakes,
    peers,
    repetitions,
    seeds,
    site,
    verdicts,
    winograd_tables,
)
from claims.studies.markdown import COMMAND, with_parts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--site", type=Path, metavar="FOLDER", help="a new folder for the site")
    parser.add_argument(
        "--results", type=Path, nargs="+", default=[], metavar="FILE.json",
        help="with --site: what --claims-json wrote, for its report",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if bool(options.site) != bool(options.results):
        parser.error("--site FOLDER and --results FILE.json belong together")
    try:
        results = [each for file in options.results for each in read(file)]
        if options.site:
            site.refuse(options.site)
    except (NoResults, ValueError) as error:
        parser.error(str(error))
    ledger = load_ledger(paths.LEDGER)
    pictures = all_pictures(ledger)
    for picture in pictures:
        if picture.svg:
            write_whole(paths.ROOT / "docs" / "pictures" / f"{picture.name}.svg", picture.file)
    for name, parts in generated(ledger, pictures).items():
        path = paths.ROOT / name
        write_whole(path, with_parts(path.read_text(encoding="utf-8"), parts))
    if options.site:
        site.build(options.site, merge(results, ledger), pictures)
    return 0


def generated(ledger: Ledger, pictures: Sequence[Picture]) -> dict[str, dict[str, str]]:
    """For each document with generated parts: the name and the content of each part."""
    drawn = {f"picture: {picture.name}": shown(picture) for picture in pictures}
    of_seeds = drawn.pop("picture: seeds")
    orders = _rows("seeds/orders.csv")
    of_winograd = {name: drawn.pop(f"picture: {name}") for name in ("accuracy", "maps")}
    return {
        "README.md": {
            "verdicts": verdicts.by_section(ledger, verdicts.stored())
            + "\n"
            + verdicts.summary(ledger, verdicts.stored()),
        },
        "docs/results.md": {
            "refuted": verdicts.sentences(ledger, "refuted", verdicts.stored()),
            "open": verdicts.sentences(ledger, "open", verdicts.stored()),
            "the chapter's tables": chapter_tables.restored(ledger),
            **document_tables.tables(document_tables.values_of(_rows("document/runs.csv"))),
            **drawn,
        },
        "docs/for-the-author.md": author.parts(ledger),
        "docs/winograd.md": {
            "accuracy": winograd_tables.accuracy(_rows("winograd/accuracy.csv")),
            "circuits": winograd_tables.circuits(_rows("winograd/circuits.csv")),
            "cuts": winograd_tables.cuts(_rows("winograd/cuts.csv")),
            "induction": winograd_tables.induction(_rows("winograd/induction.csv")),
            **{f"picture: {name}": part for name, part in of_winograd.items()},
        },
        "docs/seeds.md": {
            "orders, the chapter's budget": seeds.shown(orders, "document"),
            "orders, the small budget": seeds.shown(orders, "ci"),
            "picture: seeds": of_seeds,
        },
        "docs/own-implementation.md": {
            "contract": peers.contract(),
            "peers": peers.counted(_rows("peers/verdicts.csv")),
            "findings": peers.found(_rows("peers/verdicts.csv"), ledger),
        },
        "docs/known-mistakes.md": {
            "rates": diagnoses.shown(known_mistakes.rows_of(FOLDER / "diagnoses.csv")),
            "fingerprints": known_mistakes.summary(ledger),
        },
        "docs/how-verdicts-are-made.md": {
            "margins": repetitions.shown(_rows("repetitions/margins.csv")),
        },
    }


def shown(picture: Picture) -> str:
    """A picture in Markdown, with the text in its place; or why there is none."""
    if picture.missing:
        return f"*{picture.title}*: not drawn. {picture.missing}\n"
    return f"![{picture.title}. {picture.alt}](pictures/{picture.name}.svg)\n"


def _rows(file: str) -> list[dict[str, str]]:
    """The rows of a file of fixtures/studies."""
    with (paths.FIXTURES / "studies" / file).open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


if __name__ == "__main__":
    raise SystemExit(main())
