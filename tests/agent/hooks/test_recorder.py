"""The segments of a step that does not end: a program that has stopped training, and serves its
model."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from gpuconsole.agent.hooks import recorder as module
from gpuconsole.agent.hooks import stream
from gpuconsole.agent.hooks.recorder import (
    BACKWARD,
    COMM,
    DATA,
    FORWARD,
    GAP,
    LOG,
    NO_GRAD,
    OPTIMIZER,
    OWN,
    StepRecorder,
)
from gpuconsole.agent.hooks.stream import StreamClock


def seconds(recorder: StepRecorder) -> dict[int, float]:
    spans: dict[int, float] = {}
    for code, (begun, ended) in zip(
        recorder.codes, itertools.pairwise([recorder.start, *recorder.times]), strict=True
    ):
        spans[code] = spans.get(code, 0.0) + ended - begun
    return spans


def test_a_step_that_never_ends_stays_small_and_keeps_its_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_SEGMENTS", 1000)
    recorder, exact = StepRecorder(), StepRecorder()
    ticks = itertools.count(1)
    for one in (recorder, exact):
        one.start, one.thread = 0.0, 1
    for number in range(20_000):
        times = [float(next(ticks)) for _ in range(4)]
        for one in (recorder, exact):
            at = iter(times)
            monkeypatch.setattr(module, "now", lambda at=at: next(at))
            if one is exact:
                monkeypatch.setattr(module, "MAX_SEGMENTS", 10**9)
            for code in (NO_GRAD, LOG if number % 7 == 0 else FORWARD):
                one.enter(code)
                one.leave()
            monkeypatch.setattr(module, "MAX_SEGMENTS", 1000)
    assert len(recorder.codes) < 1010 and len(exact.codes) == 80_000
    assert recorder.times[-1] == exact.times[-1]
    assert seconds(recorder) == pytest.approx(seconds(exact))


def test_a_step_with_too_many_readings_has_none() -> None:
    recorder = StepRecorder()
    recorder.thread, recorder.read = 1, lambda: 0.0
    recorder.sampled(True)
    for _ in range(module.MAX_READINGS):
        recorder.enter(NO_GRAD)
        recorder.leave()
    assert recorder.readings is None
    recorder.cut()
    assert recorder.done[-1][-1] is None


def test_a_step_that_ends_at_a_past_moment_has_its_own_readings_or_none() -> None:
    """With two optimizers in turn, a step ends as the next one begins its update: each segment of
    these steps waits for a core for half a second."""
    waited = itertools.count(step=0.5)
    recorder = StepRecorder()
    recorder.thread, recorder.read = 1, lambda: next(waited)
    mark = recorder.mark()
    for step in range(4):
        for code in (FORWARD, BACKWARD):
            recorder.enter(code)
            recorder.leave()
        if step:
            recorder.split(mark)
            if step == 1:
                recorder.sampled(True)
        mark = recorder.mark()
    waits = [
        None if readings is None else [b - a for a, b in itertools.pairwise(readings)]
        for *_, readings in recorder.done
    ]
    assert waits == [None, None, [0.5] * 4]


def test_a_step_that_begins_with_work_of_the_agent_has_all_of_its_readings() -> None:
    recorder = StepRecorder()
    recorder.thread, recorder.read = 1, itertools.count(step=0.5).__next__
    recorder.enter(OPTIMIZER)
    recorder.cut()
    recorder.enter(OWN)
    recorder.sampled(True)
    recorder.leave()
    recorder.leave()
    recorder.enter(FORWARD)
    recorder.leave()
    recorder.cut()
    codes, readings = recorder.done[-1][2], recorder.done[-1][-1]
    assert readings is not None and len(readings) == 1 + len(codes)


class Event:
    """An event of a stream that is passed once `done` is set."""

    done = False

    def query(self) -> bool:
        return self.done


def test_a_step_of_a_trial_on_a_gpu_has_two_events_and_its_loss() -> None:
    events: list[Event] = []
    recorder, clock = StepRecorder(), StreamClock.__new__(StreamClock)
    clock._free, clock._caught_up = [], set()

    def read() -> Event:
        events.append(Event())
        return events[-1]

    recorder.thread, recorder.read, recorder.sample_all, recorder.ends_only = 1, read, True, True
    recorder.sampled(True)
    for _ in range(2):
        for code in (FORWARD, BACKWARD, OPTIMIZER):
            recorder.enter(code)
            recorder.leave()
        recorder.loss = 2.5
        recorder.cut()
    assert len(events) == 5, "two for each step, and the begin of the next one"
    assert clock._settled(recorder.done, wait=False) == ([], recorder.done), (
        "nothing waits for the stream"
    )
    for event in events[:2]:
        event.done = True
    settled, rest = clock._settled(recorder.done, wait=False)
    assert len(settled) == len(rest) == 1 and clock._free == events[:2]
    codes, ends, loss, readings = settled[0][2], settled[0][3], settled[0][6], settled[0][9]
    assert (
        len(codes) == len(ends) == 7 and ends == sorted(ends) and loss == 2.5 and readings is None
    )


class AtTime:
    """An event that the GPU has passed at a time, in seconds."""

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: AtTime) -> float:
        return (later.at_s - self.at_s) * 1e3


@pytest.mark.parametrize(("issued_s", "ahead_s"), [((0.1, 0.2, 1.0), 0.7), ((0.4, 0.9, 1.0), 0.0)])
def test_a_host_that_waits_within_a_step_was_ahead_of_the_gpu(
    issued_s: tuple[float, ...], ahead_s: float
) -> None:
    """The GPU passes the marks at 0.4, 0.9 and 1.0 s. In the first case the host has issued all
    work by 0.2 s, and then waits, in whatever function."""
    clock = StreamClock.__new__(StreamClock)
    clock._free, clock._caught_up, clock.ahead_s, clock.caught_up_s = [], {7, 8}, 0.0, 0.0
    clock.ahead_steps = 0
    events = [AtTime(at_s) for at_s in (0.0, 0.4, 0.9, 1.0)]
    step = (7, 0.0, [FORWARD, BACKWARD, OPTIMIZER], list(issued_s), 1, 0, None, 0, 0, events)
    without_times = (8, 0.0, [FORWARD], [2.0], 1, 0, None, 0, 0, [AtTime(1.0), None])
    clock._settled([step, without_times], wait=False)  # type: ignore[list-item]
    assert clock.ahead_s == pytest.approx(ahead_s) and clock.caught_up_s == pytest.approx(1.0)
    assert not clock._caught_up, "no step is left over, also none whose times are not known"


class Stream:
    """A stream as torch's: it says that it does not differ from None."""

    def __init__(self, name: str) -> None:
        self.name, self.events = name, 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.name == self.name

    def __ne__(self, other: object) -> bool:
        return other is not None and not self == other

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("beside", [COMM, DATA])
def test_events_of_two_streams_make_no_timeline_but_collectives_and_batches_have_own_streams(
    beside: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, others = Stream("passes"), Stream("others")
    present = [passes]

    class MadeEvent:
        def __init__(self, enable_timing: bool) -> None:
            """Nothing is recorded yet."""

        def record(self, stream: Stream) -> None:
            stream.events += 1

    clock = StreamClock.__new__(StreamClock)
    clock._free, clock._stream, clock.device = [], None, None
    clock._cuda = SimpleNamespace(current_stream=lambda device: present[-1], Event=MadeEvent)
    monkeypatch.setattr(stream.tracing, "capturing", lambda: False)
    monkeypatch.setattr(stream.recorder, "stack", [GAP])
    monkeypatch.setattr(stream.recorder, "codes", [])
    assert clock.record() is not None and clock.record() is not None
    present.append(others)
    monkeypatch.setattr(stream.recorder, "stack", [GAP, beside])
    assert clock.record() is not None
    monkeypatch.setattr(stream.recorder, "stack", [GAP])
    monkeypatch.setattr(stream.recorder, "codes", [GAP, beside])
    assert clock.record() is not None, "its end"
    assert (passes.events, others.events) == (4, 0)
    monkeypatch.setattr(stream.recorder, "codes", [])
    assert clock.record() is None and clock.record() is not None, (
        "the program goes on in another stream"
    )


@pytest.mark.parametrize("rare", [range(0), (20,), (20, 21, 40)])
def test_a_step_that_is_marked_from_its_middle_on_has_the_samples_of_the_step_before(
    rare: range | tuple[int, ...],
) -> None:
    recorder = StepRecorder()
    recorder.begin([])
    recorder.every = 16
    for number in range(80):
        for batch in range(4):
            if batch == 2 and number in rare:
                recorder.mark_rest()
            if not recorder.counted:
                recorder.samples += 8
        (recorder.cut_counted if recorder.counted else recorder.cut)()
    assert [step[4] for step in recorder.done] == [32] * 80
