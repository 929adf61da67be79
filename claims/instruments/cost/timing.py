"""How long computations take compared with each other, in one process.

A single time says little: machines throttle, share their cores, and differ. So the variants are
timed in turn, round after round and in alternating order, and compared within each round, because
a slow moment hits all of them. The result is one value per round; the caller takes the median and
the spread.

A GPU works asynchronously: a clock read on the host without waiting shows how long it took to
launch the work. So each variant is run once under a mode that sees the device of every tensor, and
CUDA work is timed by CUDA's own events, recorded once around a loop of calls. Waiting within the
loop would add many times the duration of a short kernel to each call. The work must be on the
current stream. Work that the mode cannot see (a CUDA graph's replay) is waited for after the loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import linear_regression, median, quantiles
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Call = Callable[[], object]
Key = TypeVar("Key", bound=Hashable)

# One sample lasts at least this long, many times a scheduler's slice of the core, so that a busy
# machine slows all samples alike...
SHORTEST = 0.02
# ...and at least this many steps of the clock, so that one step is a thousandth of it or less.
STEPS = 1000
# What needs more calls for one sample takes no time.
MOST_CALLS = 2**24


@dataclass(frozen=True)
class Timing:
    """Seconds per call, one value per round, each the mean over `calls` calls in a row."""

    seconds: tuple[float, ...]
    calls: int

    @property
    def median(self) -> float:
        """Seconds per call, over the rounds."""
        return median(self.seconds)


@dataclass(frozen=True)
class Summary:
    """Values over rounds, as a report shows them: the median and the quartiles, inclusive."""

    median: float
    quartiles: tuple[float, float]
    rounds: int


class Stopwatch(Protocol):
    """A clock, and the loop whose duration it reads."""

    resolution: float
    """The smallest step that it shows, in seconds."""

    def time(self, call: Call, calls: int) -> float:
        """Seconds from before the first to after the last of `calls` calls."""
        ...


class HostStopwatch:
    """Python's performance counter, read when no CUDA work of this process is pending."""

    def __init__(self) -> None:
        self.resolution = min(later - now for now, later in pairwise(_ticks(1000)) if later > now)

    def time(self, call: Call, calls: int) -> float:
        _wait_for_cuda()
        started = time.perf_counter()
        for _ in range(calls):
            call()
        _wait_for_cuda()
        return time.perf_counter() - started


class CudaStopwatch:
    """Two CUDA events on the current stream, before and after the whole loop."""

    # As CUDA documents for elapsed times between events.
    resolution = 0.5e-6

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def time(self, call: Call, calls: int) -> float:
        before, after = _event(), _event()
        stream = torch.cuda.current_stream(self._device)
        torch.cuda.synchronize(self._device)
        before.record(stream)
        for _ in range(calls):
            call()
        after.record(stream)
        after.synchronize()
        return float(before.elapsed_time(after)) / 1e3


def measure(
    variants: Mapping[Key, Call], *, rounds: int = 9, stopwatch: Stopwatch | None = None
) -> dict[Key, Timing]:
    """Time the variants against each other.

    Each is first run alone until one sample of it is long enough, which warms it up and fixes its
    number of calls. Then every round takes one sample of each, in the order given and in reverse by
    turns, so that a drift during a round favours no variant.

    Args:
        variants: what to call, by name, size or both. Results are dropped.
        rounds: samples of each, at least 3.
        stopwatch: found from the devices on which the variants work unless given.

    Returns:
        The timing of each variant, under its key, with `rounds` samples.

    Raises:
        ValueError: no variants; too few rounds; variants that work on several devices, or on one
            that this cannot time; a variant that takes no time.
    """
    if not variants:
        raise ValueError("nothing to time: no variant was given")
    if rounds < 3:
        raise ValueError(f"{rounds} rounds show no spread; at least 3 are needed")
    watch = stopwatch or stopwatch_for(variants.values())
    calls = {key: _calibrated(key, call, watch) for key, call in variants.items()}
    samples: dict[Key, list[float]] = {key: [] for key in variants}
    order = list(variants)
    for _ in range(rounds):
        for key in order:
            samples[key].append(watch.time(variants[key], calls[key]) / calls[key])
        order.reverse()
    return {key: Timing(tuple(samples[key]), calls[key]) for key in variants}


def stopwatch_for(calls: Any) -> Stopwatch:
    """The stopwatch for the device that `calls`, an iterable, work on; each is called once.

    Raises:
        ValueError: they work on several devices, or on one that neither clock can time.
    """
    with _DevicesSeen() as seen:
        for call in calls:
            call()
    # A CPU tensor beside CUDA's is a scalar or a copy, whose time is the device's.
    devices = {device for device in seen.devices if device.type != "cpu"}
    if not devices:
        return HostStopwatch()
    names = ", ".join(sorted(map(str, devices)))
    if len(devices) > 1:
        raise ValueError(f"what is timed works on {names}; no one clock sees them all")
    device = devices.pop()
    if device.type != "cuda":
        raise ValueError(f"what is timed works on {names}; only cpu and cuda can be timed")
    return CudaStopwatch(device)


def ratios(numerator: Timing, denominator: Timing) -> tuple[float, ...]:
    """How many times as long the first takes as the second, round by round."""
    return tuple(a / b for a, b in zip(numerator.seconds, denominator.seconds, strict=True))


def exponents(timings: Mapping[int, Timing]) -> tuple[float, ...]:
    """The power of the size that the time grows with, round by round.

    The least-squares slope of log(seconds) against log(size); the keys are the sizes.
    """
    sizes = [math.log(size) for size in timings]
    by_round = zip(*(timing.seconds for timing in timings.values()), strict=True)
    return tuple(
        linear_regression(sizes, [math.log(value) for value in row]).slope for row in by_round
    )


def crossover(first: Mapping[int, Timing], second: Mapping[int, Timing]) -> float | None:
    """The size from which on the second takes less time than the first, by their medians.

    Between two sizes it is interpolated, linearly in logarithms. The smallest size if the second
    leads at all of them; None if it does not lead at the largest. A lead that it loses again does
    not count.
    """
    sizes = sorted(first)
    # Above zero where the second leads.
    leads = [math.log(first[n].median / second[n].median) for n in sizes]
    if leads[-1] <= 0:
        return None
    behind = [i for i, lead in enumerate(leads) if lead <= 0]
    if not behind:
        return float(sizes[0])
    i = behind[-1]
    share = -leads[i] / (leads[i + 1] - leads[i])
    return float(sizes[i] * (sizes[i + 1] / sizes[i]) ** share)


def summary(values: tuple[float, ...]) -> Summary:
    """Median and quartiles of values over rounds."""
    low, middle, high = quantiles(values, method="inclusive")
    return Summary(middle, (low, high), len(values))


def _calibrated(key: object, call: Call, watch: Stopwatch) -> int:
    """How many calls make a sample, found after one call to warm up."""
    needed = max(SHORTEST, STEPS * watch.resolution)
    watch.time(call, 1)
    calls = 1
    while watch.time(call, calls) < needed:
        calls *= 2
        if calls > MOST_CALLS:
            raise ValueError(f"{key}: {MOST_CALLS:,} calls in a row take no time to speak of")
    return calls


def _wait_for_cuda() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _ticks(n: int) -> list[float]:
    return [time.perf_counter() for _ in range(n)]


class _DevicesSeen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the device of every tensor that an operation reads or makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.devices: set[torch.device] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs, out))
        self.devices |= {leaf.device for leaf in leaves if isinstance(leaf, Tensor)}
        return out
