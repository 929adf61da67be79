"""Every picture of the report, in the order of the chapter."""

from __future__ import annotations

from collections.abc import Callable

from claims.harness.ledger import Ledger
from claims.report.pictures import attention, cost, seeds, training
from claims.report.pictures.picture import Picture
from claims.report.sources import Record, SourceMissing

MAKERS: dict[str, Callable[[Ledger, Record], Picture]] = {
    "variance": attention.variance,
    "saturation": attention.saturation,
    "scores": training.scores,
    "ladder": training.ladder,
    "gradients": training.gradients,
    "warmup": training.warmup,
    "losses": training.losses,
    "positions": training.positions,
    "cost": cost.cost,
    "accuracy": training.accuracy,
    "maps": attention.maps,
    "seeds": seeds.seeds,
}


def all_pictures(ledger: Ledger) -> list[Picture]:
    """Each drawn from the record and the stored tables, or with the reason why it is not."""
    record = Record()
    return [_made(name, ledger, record) for name in MAKERS]


def _made(name: str, ledger: Ledger, record: Record) -> Picture:
    try:
        return MAKERS[name](ledger, record)
    except SourceMissing as missing:
        says = (MAKERS[name].__doc__ or "").strip().rstrip(".")
        return Picture(name, title=says, missing=str(missing))
