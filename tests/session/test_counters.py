"""Totals that a worker sends, as signals: sums over ordinary stretches, and a slope that single
jumps do not move."""

from __future__ import annotations

import msgspec
import pytest

from gpuconsole.model.run import PHASES, Step
from gpuconsole.session.counters import WorkCounts
from gpuconsole.wire.events import Steps


def message(t: float, kind: int = 0, memory: float = 1e9, **counters: float) -> Steps:
    step = Step(0, t, 0.1, 1, 1, (0.0,) * len(PHASES), None, None, 0, kind)
    base = {
        "gc.pause_s": 0.0,
        "gc.collections": 0.0,
        "loader.restart_s": 0.0,
        "loader.restarts": 0.0,
        "comm.exchanges": 0.0,
    }
    return Steps(
        t,
        [step],
        0.0,
        0.0,
        0.0,
        0.0,
        counters={**base, "work.steps": t * 10, "host.private_bytes": memory, **counters},
    )


def test_what_a_probe_did_is_left_out() -> None:
    counts = WorkCounts()
    for event in (
        message(0.0),
        message(1.0, **{"gc.pause_s": 0.1}),
        message(2.0, kind=2, **{"gc.pause_s": 5.0}),
        message(3.0, **{"gc.pause_s": 5.0}),
        message(4.0, **{"gc.pause_s": 5.1}),
    ):
        counts.add(event)
    assert abs(counts.signals(0.0)["gc.pause_ratio"].value - 0.1) < 1e-9


def test_the_time_in_which_a_probe_held_a_job_is_left_out() -> None:
    """In a user's own job the message after a probe has ordinary steps, and the workers slept while
    the probe held the training thread."""
    counts = WorkCounts()
    for t, cpu_s in ((0.0, 0.0), (1.0, 1.0)):
        counts.add(message(t, **{"loader.workers_cpu_s": cpu_s}))
    counts.probed()
    for t, cpu_s in ((3.0, 1.2), (4.0, 2.2)):
        counts.add(message(t, **{"loader.workers_cpu_s": cpu_s}))
    seconds, gained = counts.gained(0.0)
    assert seconds == 2.0 and gained["loader.workers_cpu_s"] == 2.0


def test_a_jump_is_no_slope_and_steady_growth_is() -> None:
    jumped, grows = WorkCounts(), WorkCounts()
    for second in range(60):
        jumped.add(message(float(second), memory=1e9 + (5e8 if second > 30 else 0.0)))
        grows.add(message(float(second), memory=1e9 + 1e6 * second))
    assert jumped.signals(0.0)["host.memory_growth_bytes_per_s"].value == 0.0
    assert abs(grows.signals(0.0)["host.memory_growth_bytes_per_s"].value - 1e6) < 1.0
    assert grows.signals(0.0)["host.memory_rises_ratio"].value == 1.0


def grown(megabytes: list[float], every_s: float = 0.5, **counters: float) -> dict[str, float]:
    """The signals of so many readings, by name without their prefix."""
    counts = WorkCounts()
    for n, value in enumerate(megabytes):
        counts.add(message(n * every_s, memory=1e6 * value, **counters))
    return {
        name.removeprefix("host.memory_"): signal.value
        for name, signal in counts.signals(0.0).items()
    }


def test_fast_growth_needs_few_readings() -> None:
    fast = grown([1000 + 100 * n for n in range(9)])
    assert abs(fast["growth_bytes_per_s"] - 200e6) < 1 and fast["steady_ratio"] > 0.9
    assert "growth_bytes_per_s" not in grown([1000 + 10 * n for n in range(9)]), (
        "80 MB in 4 s may be the start of anything"
    )
    jumps = grown([1000] * 3 + [1400] * 3 + [1800] * 3)
    assert "growth_bytes_per_s" not in jumps


def test_a_reading_after_the_loop_hides_no_growth() -> None:
    """The memory of the program is free again before the process ends."""
    for readings in range(30, 36):  # the slope is computed every three seconds
        ended = grown([1000 + 20 * n for n in range(readings)] + [200])
        assert (
            ended["grown_bytes"] > 400e6
            and ended["steady_ratio"] > 0.8
            and ended["rises_ratio"] > 0.9
        )


def test_the_memory_of_the_workers_is_a_series_of_its_own() -> None:
    counts = WorkCounts()
    for second in range(30):
        told = {"loader.private_bytes": 1e8 + 2e7 * second} if second != 7 else {}
        counts.add(message(float(second), **told))
    signals = counts.signals(0.0)
    assert (
        abs(signals["loader.memory_growth_bytes_per_s"].value - 2e7) < 1
        and signals["host.memory_growth_bytes_per_s"].value == 0
    )
    assert "29 readings" in signals["loader.memory_growth_bytes_per_s"].source


def test_the_lead_of_the_host_is_that_of_the_steps_in_the_window() -> None:
    """The first seconds of the job, in which the GPU waits for compilation, do not count later."""
    counts = WorkCounts()
    for second in range(10):
        counts.add(
            message(
                float(second),
                **{"stream.steps": 4.0 * second, "stream.caught_up": 4.0 * min(second, 5)},
            )
        )
    assert counts.signals(0.0)["host.caught_up_ratio"].value == 5 / 9
    assert counts.signals(5.0)["host.caught_up_ratio"].value == 0.0
    assert "host.caught_up_ratio" not in counts.signals(8.0), "four sampled steps are too few"


def test_the_lead_within_steps_counts_the_steps_whose_times_are_known() -> None:
    """Whether the GPU had caught up is known at once, the times of the step later: the lead was
    that "of 0 sampled steps"."""
    counts = WorkCounts()
    for second in range(12):
        looked = {"stream.steps": 4.0 * second, "stream.caught_up": 4.0 * min(second, 5)}
        late = 4.0 * max(0, min(second - 3, 5))
        times = {"ahead_s": 0.05 * late, "caught_up_s": 0.1 * late, "ahead_steps": late}
        looked |= {f"stream.{name}": value for name, value in times.items()}
        counts.add(message(float(second), **looked))
    lead = counts.signals(6.0)["host.ahead_ratio"]
    assert lead.value == pytest.approx(0.5) and "of 8 sampled steps" in lead.source
    assert "host.ahead_ratio" not in counts.signals(9.0)


def test_the_wait_for_a_core_is_known_from_the_messages_alone() -> None:
    counts, silent = WorkCounts(), WorkCounts()
    for second in range(5):
        event = message(float(second))
        counts.add(msgspec.structs.replace(event, cpu_s=0.5 * second, runq_s=0.01 + 0.3 * second))
        silent.add(msgspec.structs.replace(event, cpu_s=0.5 * second))
    waited = counts.runq_ratio(0.0)
    assert (
        waited is not None and abs(waited.value - 0.3) < 1e-9 and "CPU time 50 %" in waited.source
    )
    assert silent.runq_ratio(0.0) is None, "the kernel reports no time on run queues"


def test_too_little_says_nothing() -> None:
    counts = WorkCounts()
    counts.add(message(0.0))
    assert counts.signals(0.0) == {}


def test_a_process_that_starts_again_begins_its_totals_at_0() -> None:
    counts = WorkCounts()
    for second in range(6):
        counts.add(message(float(second), **{"gc.pause_s": 0.05 * second}))
    for second in range(6):
        counts.add(
            message(10.0 + second, **{"work.steps": 10.0 * second, "gc.pause_s": 0.05 * second})
        )
    assert abs(counts.signals(0.0)["gc.pause_ratio"].value - 0.05) < 1e-9


def test_the_growth_of_memory_is_that_of_the_process_that_runs_now() -> None:
    """The first process grows to 3 GB and ends; the second begins at 1 GB and grows as fast."""
    counts = WorkCounts()
    for second in range(60):
        counts.add(message(float(second), memory=1e9 + 35e6 * second))
    for second in range(60):
        counts.add(
            message(100.0 + second, memory=1e9 + 35e6 * second, **{"work.steps": 10.0 * second})
        )
    signals = counts.signals(0.0)
    assert abs(signals["host.memory_growth_bytes_per_s"].value - 35e6) < 1e5
    assert signals["host.memory_grown_bytes"].value > 1.9e9
