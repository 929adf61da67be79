"""One run: taken from the store, or trained, evaluated and put there."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from claims.training.evaluation import demand_fit, evaluate
from claims.training.loop import Implementation, build, train
from claims.training.spec import Evaluation, RunResult, RunSpec, Score
from claims.training.store import RunStore

SAVE_EVERY = 30.0  # seconds of training that a kill may cost


def run(
    implementation: Implementation,
    spec: RunSpec,
    store: RunStore,
    ids: Tensor | None = None,
    *,
    report: Callable[[int, float], None] = lambda step, loss: None,
    wait: bool = True,
    save_every: float = SAVE_EVERY,
) -> RunResult:
    """The result of a run; `ids` are the corpus' token ids, for runs on text.

    Raises:
        Busy: another process is at the run, and `wait` is False.
        ValueError: the run does not fit the text or the implementation.
    """
    if (stored := store.result(spec)) is not None:
        return stored
    with store.lock(spec, wait):
        if (stored := store.result(spec)) is not None:
            return stored
        if (result := store.trained(spec)) is None:
            if ids is not None:
                for evaluation in spec.evaluations:
                    demand_fit(ids, evaluation)
            result, weights = train(
                implementation, spec, ids,
                device=store.device, resume=store.checkpoint(spec),
                save=partial(store.keep_checkpoint, spec), save_every=save_every, report=report,
            )
            store.keep(spec, result, weights)
        if ids is None or not spec.evaluations:
            return result
        scores = store.scores(spec)
        missing = [e for e in spec.evaluations if e not in scores]
        if missing:
            scores |= _evaluated(implementation, spec, store, ids, result, missing)
            store.keep_scores(spec, scores)
        return replace(result, scores=tuple(scores[e] for e in spec.evaluations))


def trained_model(
    implementation: Implementation, spec: RunSpec, store: RunStore, device: str | None = None
) -> Any:
    """The model of a run that was trained, with its weights, by default on the store's device."""
    weights = store.weights(spec)
    if weights is None:
        raise ValueError("the run has not been trained, or its weights are lost")
    model = build(implementation, spec)
    model.load_state_dict(weights)
    return model.to(device or store.device).eval()


def _evaluated(
    implementation: Implementation, spec: RunSpec, store: RunStore, ids: Tensor,
    result: RunResult, missing: list[Evaluation],
) -> dict[Evaluation, Score]:
    if result.failed_at is not None:
        return {evaluation: Score(math.inf, 1) for evaluation in missing}
    model = trained_model(implementation, spec, store)
    ids = ids.to(store.device)
    return {evaluation: evaluate(model, ids, evaluation) for evaluation in missing}


def keep_freed_memory() -> None:
    """Ask the C library not to hand large freed blocks back to the system.

    A training step allocates the same tens of megabytes every time; page by page, the system would
    zero them anew each step. Only glibc has the call; elsewhere nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    trim_threshold, mmap_max = -1, -4
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, 2**31 - 1)


def settle_process() -> None:
    """What a process that only trains sets for itself: one thread, memory kept, full precision.

    Numbers below float32's normal range become zero: a saturated head has many such weights, a core
    takes many times as long over each of them, and they do not change the sum that they enter.
    """
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    keep_freed_memory()
