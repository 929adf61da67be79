"""The training loop: AdamW on mean next-token loss, stopped and continued at any step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from claims.harness.seeds import seed_of
from claims.instruments.text.tokens import split as split_tokens
from claims.training.batches import batches
from claims.training.loss import loss_and_gradient
from claims.training.precision import fastest
from claims.training.snapshots import PROBE_WINDOWS, gradient_norms, head_scores
from claims.training.spec import (
    FASTEST,
    HeadScores,
    ModelSettings,
    RunResult,
    RunSpec,
    Snapshot,
    Text,
    snapshot_from_json,
)

# The package under test: the seam, or anything with its names.
Implementation = Any
State = dict[str, Any]
REPORT_EVERY = 0.5  # seconds


def build(implementation: Implementation, spec: RunSpec) -> Any:
    """The untrained model of a run. The global generator is left as it was.

    Raises ValueError where the model lacks a parameter that the run holds fixed.
    """
    with torch.random.fork_rng(devices=[]):
        # Of the CPU alone: torch.manual_seed would seed the GPU's generators as well.
        torch.default_generator.manual_seed(seed_of("model", spec.seed))
        model = implementation.LanguageModel(**asdict(spec.model))
        if not spec.causal:
            for block in model.blocks:
                block.mixer = _without_mask(implementation, spec.model)
    for suffix in spec.fixed:
        held = [p for name, p in model.named_parameters() if name.endswith(suffix)]
        if not held:
            raise ValueError(f"the model has no parameter '{suffix}' to hold fixed")
        for parameter in held:
            parameter.requires_grad_(False)
    return model


def _without_mask(implementation: Implementation, model: ModelSettings) -> Any:
    """The attention that `LanguageModel` gives a block with these settings, but for the mask."""
    in_the_heads = model.positions if model.positions in ("rotary", "alibi") else "none"
    return implementation.MultiHeadAttention(
        model.d_model, model.n_heads, d_head=model.d_head, qkv_bias=model.qkv_bias,
        scaled=model.scaled, positions=in_the_heads, causal=False,
    )


def optimiser_of(model: nn.Module, spec: RunSpec) -> torch.optim.AdamW:
    """AdamW over every parameter that is trained, each once, all with the same weight decay."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(
        trained, spec.learning_rate, weight_decay=spec.weight_decay, fused=True
    )


def train(
    implementation: Implementation,
    spec: RunSpec,
    ids: Tensor | None = None,
    *,
    device: str = "cpu",
    resume: State | None = None,
    save: Callable[[State], None] = lambda state: None,
    save_every: float = 30.0,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> tuple[RunResult, dict[str, Tensor]]:
    """Train one model; returns what was seen, without evaluations, and the weights.

    Args:
        ids: the corpus' token ids (N,), for runs on text.
        resume: a state that `save` was given earlier; the run goes on from there, to the bit.
        save: called with the state every `save_every` seconds.
        report: called now and then with the step and the last loss.

    Raises:
        ValueError: the run does not fit the text or the implementation.
    """
    if spec.precision == FASTEST:
        spec = replace(spec, precision=fastest(device))
    draw = batches(spec, ids)
    model = build(implementation, spec).to(device)
    optimiser = optimiser_of(model, spec)
    progress = _Progress(spec, model, _probe(spec, ids, device))
    start = 0
    if resume is not None:
        model.load_state_dict(resume["model"])
        optimiser.load_state_dict(resume["optimiser"])
        progress.restore(resume)
        start = resume["step"]

    began, before = time.perf_counter(), progress.seconds
    saved = reported = began
    failed_at = None
    for step in range(start, spec.steps):
        progress.before(step)
        for group in optimiser.param_groups:
            group["lr"] = spec.learning_rate * min(1.0, (step + 1) / max(1, spec.warmup))
        window = draw(step).to(device)
        loss = gradients(model, window, spec, device)
        if not math.isfinite(loss):
            failed_at = step
            break
        progress.after(step, loss)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

        now = time.perf_counter()
        progress.seconds = before + now - began
        if now - reported > REPORT_EVERY:
            report(step + 1, loss)
            reported = now
        if now - saved > save_every:
            state = {"model": model.state_dict(), "optimiser": optimiser.state_dict()}
            save({**state, **progress.state(), "step": step + 1})
            saved = now
    steps = spec.steps if failed_at is None else failed_at
    progress.end(steps)
    weights = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    result = RunResult(
        steps, failed_at, tuple(progress.snapshots), progress.seconds, precision=spec.precision
    )
    return result, weights


def gradients(model: nn.Module, window: Tensor, spec: RunSpec, device: str) -> float:
    """The loss of one batch; its gradients are left with the parameters."""
    low = spec.precision == "bfloat16"
    with torch.autocast(device, torch.bfloat16) if low else nullcontext():
        logits = model(window[:, :-1])
    loss, gradient = loss_and_gradient(logits, window[:, 1:])
    if math.isfinite(loss):
        logits.backward(gradient)
    return loss


def _probe(spec: RunSpec, ids: Tensor | None, device: str) -> Tensor | None:
    """(B, T): the first held-out windows of a text."""
    if ids is None or not isinstance(spec.data, Text):
        return None
    length = spec.data.length
    held_out = split_tokens(ids)[1]
    if "scores" in spec.record and len(held_out) < length:
        raise ValueError(f"{len(held_out)} held-out tokens hold no window of {length} to record")
    windows = held_out[: len(held_out) // length * length].view(-1, length)
    return windows[:PROBE_WINDOWS].to(device)


class _Progress:
    """What is recorded as the steps go by."""

    def __init__(self, spec: RunSpec, model: nn.Module, probe: Tensor | None) -> None:
        if "scores" in spec.record and probe is None:
            raise ValueError("scores are recorded on held-out text; this run is not on text")
        self.snapshots: list[Snapshot] = []
        self.seconds = 0.0
        self._spec, self._model, self._probe = spec, model, probe
        self._sum, self._count = 0.0, 0

    def before(self, step: int) -> None:
        if step % self._spec.record_every == 0:
            self._take(step)

    def after(self, step: int, loss: float) -> None:
        """With the gradients of `step` at hand."""
        self._sum += loss
        self._count += 1
        if "gradients" in self._spec.record and step % self._spec.record_every == 0:
            last = self.snapshots[-1]
            norms = gradient_norms(self._model)
            self.snapshots[-1] = Snapshot(last.step, last.loss, last.scores, norms)

    def end(self, step: int) -> None:
        if not self.snapshots or self.snapshots[-1].step != step:
            self._take(step)

    def state(self) -> State:
        return {
            "snapshots": [asdict(snapshot) for snapshot in self.snapshots],
            "sum": self._sum, "count": self._count, "seconds": self.seconds,
        }

    def restore(self, state: State) -> None:
        self.snapshots = [snapshot_from_json(values) for values in state["snapshots"]]
        self._sum, self._count, self.seconds = state["sum"], state["count"], state["seconds"]

    def _take(self, step: int) -> None:
        loss = self._sum / self._count if self._count else None
        self._sum, self._count = 0.0, 0
        scores: tuple[HeadScores, ...] = ()
        if "scores" in self._spec.record and self._probe is not None:
            scores = head_scores(self._model, self._spec, self._probe)
        self.snapshots.append(Snapshot(step, loss, scores))
