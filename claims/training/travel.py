"""Runs that travel: from the run store into files of the record, and from files into the cache."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from claims.harness.provenance import commit
from claims.training import sealed
from claims.training.evidence import Evidence, EvidenceError, Merged, merge, probe, read
from claims.training.loop import Implementation
from claims.training.pool import name_of
from claims.training.spec import RunResult, RunSpec
from claims.training.store import RESULT, RunStore, listed

IMPORTED = "evidence"  # the folder of the user cache that imported runs are kept in


def export(
    store: RunStore, implementation: Implementation, folder: Path, specs: Iterable[RunSpec] | None
) -> Merged:
    """Write the store's finished runs of this implementation into a folder, a file for each.

    `specs` chooses runs, whatever their text; by default all are written.
    """
    chosen = None if specs is None else {spec.on("").digest(): spec for spec in specs}
    return merge(_finished(store, implementation, chosen), folder)


def _finished(
    store: RunStore, implementation: Implementation, chosen: dict[str, RunSpec] | None
) -> Iterator[tuple[str, Evidence]]:
    for entry in listed(store.folder) if store.folder.is_dir() else []:
        body = sealed.read(store.folder / entry.key / RESULT) if entry.done else None
        if body is None:
            continue
        facts = json.loads(body)
        try:
            spec = RunSpec.from_json(facts["spec"])
        except (KeyError, TypeError, ValueError):
            continue  # a run of another version of this project
        if store.key(spec) != entry.key:
            continue  # of another implementation, torch or device
        if chosen is not None and spec.on("").digest() not in chosen:
            continue
        scores = store.scores(spec)
        result = RunResult.from_json(facts["result"])
        evidence = Evidence(
            spec=replace(spec, evaluations=tuple(scores)),
            result=replace(result, scores=tuple(scores.values())),
            measured=store.measured(spec),
            probe=probe(implementation, spec),
            facts={
                "date": facts["finished"][:10], "device": facts["device"],
                "machine": facts["machine"], "torch": facts["torch"],
                "threads": str(facts["threads"]), "commit": commit(),
            },
        )
        yield name_of(spec), evidence


def bring_in(files: Path, folder: Path) -> Merged:
    """Merge the files of one folder into another.

    Raises:
        EvidenceError: a file is damaged or of another format; nothing is merged then.
    """
    found = [read(path) for path in sorted(files.glob("*.json"))]
    if not found:
        raise EvidenceError(f"{files} holds no file of the record (*.json)")
    folder.mkdir(parents=True, exist_ok=True)
    return merge(((name_of(evidence.spec), evidence) for evidence in found), folder)
