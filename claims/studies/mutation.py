"""Mutates `transformer/` with mutmut's operators, and tells which mutants no claim notices.

    python -m claims.studies.mutation FOLDER

runs the claims that need neither training nor a GPU on each mutant, up to the first that fails or
crashes, and writes into the folder

mutants.csv        each mutant, and the claim that noticed it, or nothing
provenance.json    with what it was made

The operators change one number, one operator, one condition, one True or False. What they leave
alone: text, arguments of calls, what a refusal says, signatures that are types alone (`@overload`),
and functions whose name begins with `check` or `_check`, which refuse bad input and are tested by
tests/test_transformer.py.

Needs mutmut: pip install -c constraints.txt -e ".[claims,mutation]"
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.progress import track

from claims.harness import machine
from claims.harness.files import cache_dir, write_whole
from claims.harness.mark import claim_id
from claims.studies.fingerprints import SLOW
from claims.studies.variants import (
    CHOICE,
    EXAMPLES,
    REFERENCE,
    Session,
    Variant,
    collected,
    evidence_digest,
    sha256,
)


def _library(name: str) -> Any:
    """A module that the extra `mutation` installs; without it the command ends in a sentence."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        needed = 'pip install -c constraints.txt -e ".[claims,mutation]"'
        raise SystemExit(f"{error.name} is not installed; it comes with {needed}") from None


cst, metadata = _library("libcst"), _library("libcst.metadata")
mutators = _library("mutmut.mutation.mutators")
OPERATORS = (
    mutators.operator_number, mutators.operator_name, mutators.operator_remove_unary_ops,
    mutators.operator_keywords, mutators.operator_swap_op, mutators.operator_if_exp,
    mutators.operator_augmented_assignment,
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A node of the source and what takes its place; `noticed` by a claim, a crash, or by none."""

    file: str
    line: int
    before: str
    after: str
    noticed: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m claims.studies.mutation")
    parser.add_argument("folder", type=Path, help="where to write")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="judge each N-th mutant")
    parser.add_argument("--files", nargs="+", metavar="FILE", help="of transformer/, not all")
    options = parser.parse_args(arguments)
    folder, every = options.folder, options.every
    if every < 1:
        parser.error(f"--every {every}: give 1 for all mutants, or a larger number")
    if not folder.is_dir():
        parser.error(f"{folder} is no folder; give one that exists")
    of_all = sorted(path.name for path in REFERENCE.glob("*.py"))
    files = options.files or of_all
    for name in files:
        if name not in of_all:
            parser.error(f"--files {name}: transformer/ has {', '.join(of_all)}")
    found: list[Mutant] = []
    with tempfile.TemporaryDirectory() as work:
        collected(Path(work), partial(judge, found, files, every))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(asdict(found[0])), lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(asdict, found))
    write_whole(folder / "mutants.csv", text.getvalue())
    chosen = f" --files {' '.join(files)}" if options.files else ""
    facts = {
        "command": f"python -m claims.studies.mutation FOLDER --every {every}{chosen}",
        "mutants": "all" if every == 1 else f"one in {every}", "of": files,
        "claims": f'pytest claims -m "{CHOICE}"', "examples of a property": EXAMPLES,
        "mutmut": version("mutmut"), "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.description(),
    }
    write_whole(folder / "provenance.json", json.dumps(facts, indent=2) + "\n")
    return 0


def judge(found: list[Mutant], files: Sequence[str], every: int, session: Session) -> None:
    """Enter each `every`-th mutant of the files in `found`, with what noticed it."""
    judges = sha256(sorted({evidence_digest(item) for item in session.items}))
    made = [each for name in files for each in mutants(REFERENCE / name)]
    for number, (mutant, source) in enumerate(track(made[::every], "mutants")):
        variant = Variant(f"mutant_{number}", mutant.file, source)
        stored = cache_dir() / "mutants" / f"{sha256([variant.digest(), judges])}.json"
        if not stored.exists():
            write_whole(stored, json.dumps(_noticed(variant, session)))
        noticed = json.loads(stored.read_text(encoding="utf-8"))
        found.append(Mutant(**(asdict(mutant) | {"noticed": noticed})))


def _noticed(variant: Variant, session: Session) -> str:
    items = [item for item in session.items_for(variant) if claim_id(item) not in SLOW]
    # What calls little of the package is quick, and close to what it tests.
    items.sort(key=lambda item: len(session.calls(item)))
    judged = session.judge(variant, items, first=True)
    if judged.fault:
        return judged.fault.strip().splitlines()[-1]
    noticed = [claim for claim, o in judged.outcomes.items() if o in ("failed", "crashed")]
    return noticed[0] if noticed else ""


def mutants(path: Path) -> Iterator[tuple[Mutant, str]]:
    """Each mutant of a file, with the file's text."""
    wrapper = metadata.MetadataWrapper(cst.parse_module(path.read_text(encoding="utf-8")))
    module, places = wrapper.module, wrapper.resolve(metadata.PositionProvider)
    for node in _nodes(module):
        for kind, operator in mutators.mutation_operators:
            if operator not in OPERATORS or not isinstance(node, kind):
                continue
            for new in operator(node):
                changed: Any = module.deep_replace(node, new)
                before, after = (" ".join(module.code_for_node(n).split()) for n in (node, new))
                yield Mutant(path.name, places[node].start.line, before, after), changed.code


def _nodes(node: Any) -> Iterator[Any]:
    """What is mutated: not what a refusal says, no types, and no function that refuses."""
    if isinstance(node, cst.Raise | cst.Annotation | cst.Decorator):
        return
    if isinstance(node, cst.FunctionDef):
        types_alone = any(d.decorator.deep_equals(cst.Name("overload")) for d in node.decorators)
        if types_alone or node.name.value.lstrip("_").startswith("check"):
            return
    yield node
    for child in node.children:
        yield from _nodes(child)


if __name__ == "__main__":
    raise SystemExit(main())
