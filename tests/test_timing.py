"""The timing instrument, by a clock that is made up: no test here depends on how fast anything is.

What real clocks show is a benchmark (`claims/benchmarks/bench_attention.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import test_on_a_gpu as on_a_gpu
import transformer
from claims import test_10_quadratic_cost as section
from claims.harness import Check, Draws, Refuted
from claims.harness.ledger import load_ledger
from claims.harness.paths import LEDGER
from claims.instruments.cost import timing
from claims.instruments.cost.timing import (
    CudaStopwatch,
    HostStopwatch,
    Timing,
    crossover,
    exponents,
    measure,
    ratios,
    stopwatch_for,
    summary,
)
from conftest import Project, output


class Job:
    """Something to call that takes `seconds` by the made-up clock, and `first` more at first."""

    def __init__(self, seconds: float, first: float = 0.0) -> None:
        self.seconds = seconds
        self.pending = first
        self.runs = 0

    def __call__(self) -> None:
        self.runs += 1


class MadeUp:
    """A stopwatch for jobs. `slowness` says how slow the machine is at the sample of a number."""

    def __init__(
        self, slowness: Callable[[int], float] = lambda sample: 1.0, resolution: float = 1e-9
    ) -> None:
        self.resolution = resolution
        self.asked: list[tuple[Any, int]] = []
        self._slowness = slowness

    def time(self, call: Any, calls: int) -> float:
        for _ in range(min(calls, 4)):
            call()
        self.asked.append((call, calls))
        first, call.pending = call.pending, 0.0
        return float(first + call.seconds * calls * self._slowness(len(self.asked)))


def timed(*seconds: float) -> Timing:
    return Timing(seconds, 1)


def test_rounds_go_through_the_variants_forth_and_back() -> None:
    a, b, c = Job(1.0), Job(2.0), Job(3.0)
    watch = MadeUp()
    measured = measure({"a": a, "b": b, "c": c}, rounds=4, stopwatch=watch)
    assert [job for job, _ in watch.asked[-12:]] == [a, b, c, c, b, a] * 2
    assert measured == {"a": timed(1, 1, 1, 1), "b": timed(2, 2, 2, 2), "c": timed(3, 3, 3, 3)}


def test_a_machine_that_throttles_leaves_ratios_alone() -> None:
    """One that gets slower with every round; of two runs one after the other the ratio is off."""
    calibration = 4  # two samples each: the warm-up, and one call, which is long enough

    def slowness(sample: int) -> float:
        return 1.0 + max(0, sample - calibration - 1) // 2

    measured = measure({"a": Job(1.0), "b": Job(2.0)}, rounds=5, stopwatch=MadeUp(slowness))
    assert measured["a"].seconds == (1, 2, 3, 4, 5)
    assert ratios(measured["b"], measured["a"]) == (2, 2, 2, 2, 2)


def test_a_steady_drift_within_rounds_cancels_between_them() -> None:
    measured = measure(
        {"a": Job(1.0), "b": Job(1.0)}, rounds=10, stopwatch=MadeUp(lambda s: 1 + s / 100)
    )
    both = ratios(measured["b"], measured["a"])
    there, back = both[::2], both[1::2]
    assert min(there) > 1 > max(back)


@pytest.mark.parametrize(
    ("seconds", "resolution", "calls"),
    [
        (1.0, 1e-9, 1),
        (1e-3, 1e-9, 32),  # 20 ms at least
        (1e-6, 1e-9, 32768),
        (1e-3, 1e-4, 128),  # 1000 steps of 0.1 ms at least
    ],
)
def test_a_sample_has_calls_enough_to_be_long(
    seconds: float, resolution: float, calls: int
) -> None:
    measured = measure({"a": Job(seconds)}, stopwatch=MadeUp(resolution=resolution))["a"]
    assert measured.calls == calls
    assert measured.median == pytest.approx(seconds, rel=1e-12)


def test_a_slow_first_call_is_in_no_sample_and_decides_no_number_of_calls() -> None:
    measured = measure({"a": Job(1e-3, first=60.0)}, stopwatch=MadeUp())["a"]
    assert (measured.calls, max(measured.seconds)) == (32, pytest.approx(1e-3, rel=1e-12))


def test_what_takes_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing: 16,777,216 calls in a row take no time"):
        measure({"nothing": Job(0.0)}, stopwatch=MadeUp())


@pytest.mark.parametrize(
    ("variants", "rounds", "sentence"),
    [({}, 9, "no variant was given"), ({"a": Job(1.0)}, 2, "2 rounds show no spread; at least 3")],
)
def test_bad_input(variants: dict[str, Job], rounds: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        measure(variants, rounds=rounds, stopwatch=MadeUp())
    assert all(job.runs == 0 for job in variants.values())


# ---- the real clocks -----------------------------------------------------------------------------


def test_the_host_s_clock_sees_sleep_and_every_call_is_made() -> None:
    """Sleep lasts at least as long as it is asked to, on any machine."""
    runs = 0

    def sleep() -> None:
        nonlocal runs
        runs += 1
        time.sleep(1e-3)

    measured = measure({"sleep": sleep}, rounds=3)["sleep"]
    assert min(measured.seconds) >= 1e-3
    # Once to see the devices, once to warm up, 1 + 2 + ... + calls to calibrate, then the samples.
    assert runs == 2 + (2 * measured.calls - 1) + 3 * measured.calls


def test_the_host_s_clock_has_a_resolution() -> None:
    assert 0 < HostStopwatch().resolution < timing.SHORTEST


def test_a_cpu_s_work_is_timed_by_the_host_s_clock() -> None:
    assert isinstance(stopwatch_for([lambda: torch.ones(2).sum()]), HostStopwatch)


def test_what_computes_nothing_is_not_timed() -> None:
    """Nothing waits for a device of another kind; the meta device stands for one."""
    with pytest.raises(ValueError, match="works on meta; only cpu and cuda can be timed"):
        measure({"meta": lambda: torch.ones(2, device="meta").sum()})


class Seen:
    """In place of the mode that sees devices: on this machine there is none but the CPU."""

    def __init__(self, *devices: str) -> None:
        self.devices = {torch.device(name) for name in devices}

    def __call__(self) -> Seen:
        return self

    def __enter__(self) -> Seen:
        return self

    def __exit__(self, *exception: object) -> None: ...


def test_cuda_s_work_is_timed_by_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_DevicesSeen", Seen("cpu", "cuda:0"))
    assert isinstance(stopwatch_for([lambda: None]), CudaStopwatch)


def test_two_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_DevicesSeen", Seen("cuda:0", "cuda:1"))
    with pytest.raises(ValueError, match="works on cuda:0, cuda:1; no one clock sees them all"):
        stopwatch_for([lambda: None])


def test_events_stand_around_the_loop_and_the_device_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: object) -> None:
            log.append(f"record on {stream}")

        def synchronize(self) -> None:
            log.append("wait for the event")

        def elapsed_time(self, later: Event) -> float:
            return 1500.0  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"{device}'s stream")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: log.append("wait for the device"))
    seconds = CudaStopwatch(torch.device("cuda:0")).time(lambda: log.append("call"), 3)
    assert seconds == 1.5
    assert log == [
        "wait for the device", "record on cuda:0's stream", "call", "call", "call",
        "record on cuda:0's stream", "wait for the event",
    ]  # fmt: skip


def test_the_host_s_clock_is_read_after_cuda_s_work_that_was_not_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    watch = HostStopwatch()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("wait"))
    monkeypatch.setattr(time, "perf_counter", lambda: log.append("clock") or 0.0)
    watch.time(lambda: log.append("call"), 2)
    assert log == ["wait", "clock", "call", "call", "wait", "clock"]


# ---- what is made of times -----------------------------------------------------------------------


def test_the_exponent_of_a_power_is_that_power() -> None:
    sizes = (128, 256, 512, 1024)
    timings = {n: timed(3e-6 * n**2, 5e-6 * n**1.5, 7e-6) for n in sizes}
    assert exponents(timings) == pytest.approx((2, 1.5, 0), abs=1e-12)


def test_the_exponent_is_a_least_squares_slope() -> None:
    """Logarithms 0, 0, 3 at 0, 1, 2: the slope is ((-1)(0) + 0 + (1)(3)) / 2."""
    assert exponents({1: timed(1), 10: timed(1), 100: timed(1000)}) == pytest.approx((1.5,))


@pytest.mark.parametrize(
    ("second", "size"),
    [
        ((0.5, 0.5, 0.5, 0.5), 1.0),  # ahead throughout
        ((2.0, 2.0, 2.0, 2.0), None),  # never
        ((0.5, 0.5, 0.5, 2.0), None),  # not at the end
        ((2.0, 0.5, 0.5, 0.5), 2.0),  # level halfway from 1 to 4
        ((4.0, 0.5, 0.5, 0.5), 4 ** (2 / 3)),  # two thirds of the way
        ((0.5, 0.5, 2.0, 0.5), 32.0),  # a lead that is lost does not count
        ((1.0, 1.0, 1.0, 0.5), 16.0),  # level is not ahead
    ],
)
def test_where_the_second_takes_the_lead(second: tuple[float, ...], size: float | None) -> None:
    sizes = (1, 4, 16, 64)
    first = {n: timed(1.0) for n in sizes}
    found = crossover(first, {n: timed(s) for n, s in zip(sizes, second, strict=True)})
    assert found == (size if size is None else pytest.approx(size))


def test_a_summary_is_the_median_and_the_quartiles() -> None:
    shown = summary((5.0, 1.0, 2.0, 4.0, 3.0))
    assert (shown.median, shown.quartiles, shown.rounds) == (3.0, (2.0, 4.0), 5)


def test_rounds_that_do_not_match_are_not_compared() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratios(timed(1.0, 2.0), timed(1.0))


# ---- the GPU claims, without one -----------------------------------------------------------------


class Operations:
    """A stopwatch that shows floating-point operations for seconds, times `slowness`."""

    resolution = 1e-9

    def __init__(self, slowness: float = 1.0, power: float = 1.0) -> None:
        self._slowness = slowness
        self._power = power

    def time(self, call: Callable[[], object], calls: int) -> float:
        with FlopCounterMode(display=False) as counter:
            call()
        return float(calls * self._slowness * counter.get_total_flops() ** self._power)


BODIES: dict[str, Any] = {
    "time-exponent-on-the-gpu": section.test_time_on_the_gpu_grows_like_n_squared,
    "projections-linear-control": section.test_projections_on_the_gpu_are_linear_in_n,
}


def run_body(claim: str, monkeypatch: pytest.MonkeyPatch, events: Operations) -> list[Any]:
    """The claim on the meta device; what its checks measured."""
    monkeypatch.setattr(timing, "stopwatch_for", lambda calls: events)
    check = Check(load_ledger(LEDGER)[claim], "")
    BODIES[claim](transformer, check, Draws(17, claim), torch.device("meta"))
    return [record.measured["mean"] for record in check.records]


@pytest.mark.parametrize(
    ("claim", "measured"),
    [
        # 4 n d (2 d + n) operations; the slope of its logarithm over the four rows.
        ("time-exponent-on-the-gpu", 1.7247),
        ("projections-linear-control", 1.0),
    ],
)
def test_a_gpu_claim_s_body_holds_when_time_is_operations(
    monkeypatch: pytest.MonkeyPatch, claim: str, measured: float
) -> None:
    assert run_body(claim, monkeypatch, Operations()) == pytest.approx([measured], abs=5e-5)


@pytest.mark.parametrize(
    ("claim", "events"),
    [
        ("time-exponent-on-the-gpu", Operations(power=0.5)),  # grows like n
        ("time-exponent-on-the-gpu", Operations(power=1.5)),  # like n^2.6
        ("projections-linear-control", Operations(power=2.0)),
        ("projections-linear-control", Operations(power=0.0)),
    ],
)
def test_a_gpu_claim_s_body_is_refuted_when_time_is_something_else(
    monkeypatch: pytest.MonkeyPatch, claim: str, events: Operations
) -> None:
    with pytest.raises(Refuted):
        run_body(claim, monkeypatch, events)


TWICE_THE_WORK = on_a_gpu.test_twice_the_work_takes_twice_the_time
TWO_CLOCKS = on_a_gpu.test_events_and_a_clock_that_waits_agree


@pytest.mark.parametrize(
    ("test", "events", "clock", "passes"),
    [
        (TWICE_THE_WORK, Operations(), Operations(), True),
        # Nothing waited for the GPU.
        (TWICE_THE_WORK, Operations(power=0), Operations(), False),
        (TWO_CLOCKS, Operations(), Operations(), True),
        # The timer waited within its loop.
        (TWO_CLOCKS, Operations(12), Operations(), False),
        (TWO_CLOCKS, Operations(), Operations(power=0.5), False),
    ],
)
def test_a_bad_timer_fails_its_test_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, test: Any, events: Operations, clock: Operations, passes: bool
) -> None:
    """The tests of test_on_a_gpu, on the meta device."""
    monkeypatch.setattr(timing, "stopwatch_for", lambda calls: events)
    monkeypatch.setattr(on_a_gpu, "HostStopwatch", lambda: clock)
    with nullcontext() if passes else pytest.raises(AssertionError):
        test(torch.device("meta"))


# ---- benchmarks and xdist ------------------------------------------------------------------------

BENCHMARK = "def test_speed(benchmark):\n    benchmark.pedantic(lambda: None)\n"


@pytest.mark.parametrize("asked", ["--benchmark-enable", "--benchmark-only"])
@pytest.mark.parametrize("spread", [("-n", "2"), ("-n1",), ("--dist", "each", "--tx", "popen")])
def test_benchmarks_refuse_to_share_the_machine(
    project: Project, asked: str, spread: tuple[str, ...]
) -> None:
    result = project.test(BENCHMARK).run("-p", "xdist", asked, *spread)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert (
        f"{asked} with xdist: workers that share the machine would time each other; "
        "run benchmarks without -n"
    ) in output(result)


def test_benchmarks_run_in_one_process(project: Project) -> None:
    project.test(BENCHMARK)
    project.run("--benchmark-enable").assert_outcomes(passed=1)
    project.run("--benchmark-enable", "-n0").assert_outcomes(passed=1)
