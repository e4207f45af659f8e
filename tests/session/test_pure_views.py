"""A view, a snapshot and a history change nothing, and show the same when they are taken twice."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import pytest

from gpuconsole.model.experiments import Trial
from gpuconsole.model.machine import Device, Peaks
from gpuconsole.model.run import PHASES, Step
from gpuconsole.model.serving import Objective, Request
from gpuconsole.model.snapshot import Environment, encode
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import bucketed, make_snapshot, make_view, points, prelude, run_now
from gpuconsole.wire.events import (
    AnyEvent,
    DeviceLost,
    Devices,
    EnvironmentKnown,
    Hello,
    RankJoined,
    Requests,
    RunClosed,
    RunOpened,
    Sample,
    ServerState,
    Started,
    Steps,
    TrialUpdate,
    Unavailable,
)

GPU = Device(
    "gpu:0",
    "H200",
    uuid="A",
    peaks=Peaks(bf16_flops_per_s=1e15, memory_bytes_per_s=4.8e12, source="datasheet"),
)
TRAINING = {"batch_size": 8, "precision": "bf16"}
SERVING = {"request_rate": 0, "max_num_seqs": 8}


def machine() -> list[AnyEvent]:
    return [
        Hello(0.0, "runtime", 1, "x", 1e9),
        Devices(0.0, [GPU, Device("cpu", "cpu")], "580"),
        EnvironmentKnown(0.0, Environment(host="here", price_per_hour=2.0)),
        Unavailable(0.0, "gpu:0", {"gpu.nvlink_rx_bytes_per_s": "no NVLink"}),
    ]


def training(run: str = "1", start: float = 0.0) -> list[AnyEvent]:
    facts = {"flops_per_sample": 1e12, "bytes_per_sample": 1e9}
    events: list[AnyEvent] = [
        RunOpened(start, run, "train-gpt", "training.gpt", TRAINING, "gpu:0"),
        RankJoined(start, 0, "here", 10, leads=True),
        Started(start, TRAINING, facts),
    ]
    phases = tuple(0.1 if name == "forward" else 0.0 for name in PHASES)
    for second in range(20):
        t = start + second
        values = {
            "gpu.power_w": 500.0,
            "gpu.energy_j": 1000.0 + 500 * t,
            "gpu.utilization_ratio": 0.9,
        }
        events.append(Sample(t, "gpu:0", values))
        counters = {
            "work.steps": 10.0 * second,
            "gc.pause_s": 0.0,
            "host.private_bytes": 1e9 + second,
        }
        steps = [
            Step(10 * second + n, t + n / 10, 0.1, 8, 1000, phases, loss=1.0) for n in range(10)
        ]
        events.append(Steps(t + 1, steps, 0.0, 0.0, 0.01 * second, 1e9, counters=counters))
    return events


def serving() -> list[AnyEvent]:
    events: list[AnyEvent] = [
        RunOpened(0.0, "1", "serve-chat", "inference.serving", SERVING, "cpu"),
        Started(0.0, SERVING, {"max_num_seqs": 8.0}),
    ]
    for second in range(20):
        t = float(second)
        done = [
            Request(t + n / 10, 0.0, 0.1, 1.0, 10, 11, (0.05,) * 10, (1.0,) * 10) for n in range(10)
        ]
        totals = {
            "generation_tokens": 110.0 * second,
            "requests": 10.0 * second,
            "flops": 1e9 * second,
        }
        events += [
            Requests(t + 1, done, active=3),
            ServerState(t + 1, {"requests_running": 3.0}, totals),
            Steps(t + 1, [Step(second, t + 1, 1.0, 10, 110, ())], 0.0, 0.0, 0.0, 0.0),
        ]
    return events


def fed(*groups: list[AnyEvent]) -> SessionState:
    state = SessionState()
    for event in (event for group in groups for event in group):
        state.apply(event)
    return state


def plain(value: Any) -> Any:
    """Everything that an object holds, as nested tuples."""
    if isinstance(value, dict):
        return tuple((str(key), plain(one)) for key, one in value.items())
    if isinstance(value, list | tuple | deque):
        return tuple(map(plain, value))
    if isinstance(value, msgspec.Struct):
        return msgspec.json.encode(value)
    if type(value).__module__.startswith("gpuconsole"):
        names = [*getattr(type(value), "__slots__", ()), *getattr(value, "__dict__", {})]
        return type(value).__name__, tuple((name, plain(getattr(value, name))) for name in names)
    return value if not callable(value) else None


def shown(state: SessionState, now: float) -> list[object]:
    keys = list(state.readings.series)
    return [
        make_view(
            state,
            now=now,
            environment=state.environment,
            device="cpu",
            probing="",
            recording=False,
            recording_to="",
            ended=False,
        ),
        encode(make_snapshot(state, state.environment, now)),
        [bucketed(state, key, now, 40, 30.0) for key in keys],
        [points(state, key) for key in keys],
        prelude(state, state.environment, None, now),
    ]


@pytest.mark.parametrize(
    "groups",
    [
        [machine()],
        [machine(), training()],
        [machine(), training(), [RunClosed(21.0, "1", "finished")]],
        [machine(), training(), [RunClosed(21.0, "1", "finished")], training("2", 30.0)],
        [machine(), serving()],
        [machine(), training(), [DeviceLost(21.0, "gpu:0", "fell off the bus")]],
    ],
    ids=["machine", "training", "closed", "two runs", "serving", "lost"],
)
def test_reading_changes_nothing(groups: list[list[AnyEvent]]) -> None:
    state = fed(*groups)
    before = plain(state)
    first = shown(state, 22.5)
    assert shown(state, 22.5) == first
    assert plain(state) == before
    assert shown(fed(*groups), 22.5) == first, "what was read before has no effect on what is read"


def test_the_time_of_a_view_is_an_argument() -> None:
    state = fed(machine(), training())
    kwargs: dict[str, Any] = {
        "environment": state.environment,
        "device": "cpu",
        "probing": "",
        "recording": False,
        "recording_to": "",
        "ended": False,
    }
    later, now = make_view(state, now=40.0, **kwargs), make_view(state, now=20.5, **kwargs)
    assert (now.now, later.now) == (20.5, 40.0)
    assert now.silent == {}
    assert later.silent == {"gpu:0": 21.0}
    assert state.now == 20.0


def test_the_same_steps_give_the_same_summary_in_a_view_and_in_a_snapshot() -> None:
    state = fed(machine(), training(), [RunClosed(21.0, "1", "finished")])
    view = make_view(
        state,
        now=22.0,
        environment=state.environment,
        device="cpu",
        probing="",
        recording=False,
        recording_to="",
        ended=False,
    )
    assert view.run is not None
    assert view.run.summary == make_snapshot(state, state.environment, 22.0).runs[0].summary
    assert view.run.summary.mfu_ratio == pytest.approx(80 * 1e12 / 1e15)
    assert view.run.summary.mbu_ratio == pytest.approx(80 * 1e9 / 4.8e12)


def test_a_snapshot_says_when_each_trial_began_and_ended() -> None:
    state = SessionState()
    trial = Trial("1", "1", {"num_workers": 2})
    events = [
        Hello(100.0, "sampler", 1, "0", 1000.0),
        RunOpened(101.0, "1", "data-starved", "training.gpt", {"num_workers": 0}, "cpu"),
    ]
    for event in (
        *events,
        TrialUpdate(112.0, trial),
        TrialUpdate(120.0, msgspec.structs.replace(trial, state="done", elapsed_s=8.0)),
    ):
        state.apply(event)
    (kept,) = make_snapshot(state, Environment(), 121.0).trials
    assert (kept.begun_s, kept.ended_s, kept.state) == (12.0, 20.0, "done")
    state.apply(
        TrialUpdate(150.0, msgspec.structs.replace(trial, state="done", elapsed_s=8.0, kept=True))
    )
    (kept,) = make_snapshot(state, Environment(), 151.0).trials
    assert (kept.begun_s, kept.ended_s, kept.kept) == (12.0, 20.0, True), (
        "kept after its end, which stays"
    )


def test_a_recording_that_begins_in_a_serving_run_counts_the_requests_within_the_objective() -> (
    None
):
    opened, started, *work = serving()
    limited = msgspec.structs.replace(opened, objective=Objective(ttft_s=0.5))
    state = fed(machine(), [limited, started])
    recorded = prelude(
        state, state.environment, started if isinstance(started, Started) else None, 0.0
    )
    replayed = fed([Hello(0.0, "runtime", 1, "x", 1e9), *recorded, *work])
    assert replayed.record is not None
    summary = run_now(replayed, replayed.record).summary
    assert summary.requests_per_s is not None
    assert summary.goodput_per_s == summary.requests_per_s.mean, (
        "each request has its first token after 0.1 s"
    )
