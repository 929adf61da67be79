"""Writes a template for an implementation of one's own, made from the contract.

    python -m claims.new my_attention.py --only attention
"""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from claims.harness.contract import (
    CONTRACT,
    DECLARATIONS,
    GROUPS,
    HOOKS,
    MODEL_SETTINGS,
    Name,
    of_group,
)
from claims.harness.files import write_whole

HEAD = '''"""My implementation, judged by

    {command}

Fill in what you have and delete the rest: a claim about a name that is not here is not run. Where
yours cannot do what it is asked for, leave or raise NotImplementedError.

Shapes: B batch, T tokens (n queries, m keys), d = d_model, h heads, V vocabulary, ... any leading
dimensions.
"""

import torch
from torch import Tensor, nn
'''
WIDTH = 94


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m claims.new", description=__doc__)
    parser.add_argument("file", type=Path, help="a new Python file, such as my_attention.py")
    parser.add_argument(
        "--only", metavar="GROUP[,GROUP]", help=f"some names alone: {', '.join(GROUPS)}"
    )
    given = parser.parse_args(arguments)
    groups = GROUPS if given.only is None else tuple(g.strip() for g in given.only.split(","))
    for group in groups:
        if group not in GROUPS:
            parser.error(f"--only takes {', '.join(GROUPS)}, not '{group}'")
    name = given.file.stem
    if given.file.suffix != ".py" or not name.isidentifier() or keyword.iskeyword(name):
        parser.error(f"{given.file}: give a name that Python can import, such as my_attention.py")
    if given.file.exists():
        parser.error(f"{given.file} exists, and is not replaced")
    if importlib.util.find_spec(name) is not None:
        parser.error(f"{given.file}: there is a module {name} already; choose another name")
    command = " ".join(
        ["pytest --pyargs claims --implementation", name,
         *([f"--only {','.join(groups)}"] if given.only else []), '-m "not gpu and not trains"']
    )
    try:
        write_whole(given.file, template(groups, command))
    except OSError as error:
        parser.error(f"{given.file} cannot be written: {error.strerror}")
    folder = given.file.parent
    where = "" if folder == Path() else f" in the folder {folder}"
    print(f"{given.file} is written. Judge it{where} by\n  {command}")
    return 0


def template(groups: Sequence[str], command: str) -> str:
    """The text of the file."""
    names = [name for group in groups for name in of_group(group)]
    parts = [HEAD.format(command=command), *(_stub(name, CONTRACT[name]) for name in names)]
    if any(CONTRACT[name].weights or CONTRACT[name].parts for name in names):
        parts.append(
            "\n\n# Where weights and sub-modules are, if the usual names do not say it.\n"
            + "".join(f"# def {name}({takes}): ...\n#     {says}\n" for name, (takes, says) in
                      HOOKS.items())
        )
    parts.append(
        "\n# What is so on purpose; the first of each is taken where nothing is declared.\n"
        "# DECLARES = {\n"
        + "".join(
            f"#     {name!r}: {allowed[0]!r},  # or {', '.join(map(repr, allowed[1:]))}\n"
            for name, allowed in DECLARATIONS.items()
        )
        + "# }\n"
    )
    return "".join(parts)


def _stub(name: str, each: Name) -> str:
    words = [each.says + "."]
    for title, roles in (("Weights", each.weights), ("Sub-modules", each.parts)):
        if roles:
            words.append(f"{title}: " + ", ".join(f"{r} {what}" for r, what in roles.items()) + ".")
    if each.takes == "**settings":
        settings = ((key, " or ".join(map(repr, may))) for key, may in MODEL_SETTINGS.items())
        words.append("Settings: " + ", ".join(f"{key} {may}" for key, may in settings) + ".")
    indent = "    "
    text = f"\n{indent}".join(
        textwrap.fill(line, WIDTH, subsequent_indent=indent) for line in words
    )
    says = f'{indent}"""{text}{chr(10) + indent if len(text) > WIDTH - 6 else ""}"""\n'
    refuse = "raise NotImplementedError\n"
    if each.forward:
        return (
            f"\n\nclass {name}(nn.Module):\n{says}\n"
            f"    def __init__(self, {each.takes}):\n        {refuse}\n"
            f"    def forward(self, {each.forward}):\n        {refuse}"
        )
    if each.methods:
        methods = "".join(
            f"\n{'    @classmethod' + chr(10) if 'cls' in method else ''}"
            f"    def {method}:\n        {refuse}" for method in each.methods
        )
        start = f"    def __init__(self, {each.takes}):\n        {refuse}"
        return f"\n\nclass {name}:\n{says}\n{start}{methods}"
    return f"\n\ndef {name}({each.takes}):\n{says}    {refuse}"


if __name__ == "__main__":
    sys.exit(main())
