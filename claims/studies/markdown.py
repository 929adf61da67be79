"""Markdown tables, and the generated parts of README.md and docs/.

A generated part stands between two comments. The first names the command that writes it:

    <!-- refuted, made by: python -m claims.studies.docs -->
    <!-- end of refuted -->
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

COMMAND = "python -m claims.studies.docs"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("|" + "|".join(f" {c} " if c else " " for c in line) + "|\n" for line in lines)


def with_parts(document: str, parts: Mapping[str, str]) -> str:
    """The document with the content of each generated part put in.

    Raises:
        ValueError: the document does not have exactly these parts, each once.
    """
    marked = re.findall(rf"^<!-- (.+), made by: {re.escape(COMMAND)} -->$", document, re.MULTILINE)
    if sorted(marked) != sorted(parts):
        raise ValueError(f"the document marks the parts {marked}; there are {list(parts)}")
    for name, content in parts.items():
        first, last = f"<!-- {name}, made by: {COMMAND} -->\n", f"<!-- end of {name} -->\n"
        before, _, rest = document.partition(first)
        _, end, after = rest.partition(last)
        if not end:
            raise ValueError(f"the part '{name}' has no end: write {last.strip()}")
        document = f"{before}{first}\n{content}\n{last}{after}"
    return document
