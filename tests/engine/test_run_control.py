"""Starts, changes and trials on a worker that answers as the test wants: no process is started."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

import msgspec
import pytest

from gpuconsole.engine.children import serving
from gpuconsole.engine.children.serving import ServingChoice
from gpuconsole.engine.children.worker import SERVING, WorkerGone, WorkerHandle
from gpuconsole.engine.devices import ChosenDevices
from gpuconsole.engine.run_control import RunControl, RunLock
from gpuconsole.experiments import session
from gpuconsole.experiments.session import Trials
from gpuconsole.experiments.trial import USUAL, forecast_line
from gpuconsole.model.certificate import Attempt, Certificate, Tuning
from gpuconsole.model.experiments import Forecast, Trial
from gpuconsole.model.finding import Interval
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device
from gpuconsole.model.run import PHASES, Step
from gpuconsole.model.serving import Fact, ServerFacts
from gpuconsole.session.api import SessionError
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import (
    AnyEvent,
    KnobsSet,
    Note,
    ServerKnown,
    Started,
    TrialUpdate,
    TuningUpdate,
)
from gpuconsole.workloads.serving.servers import READY_S

SECONDS = {8: 0.2, 16: 0.25}
"""Step time by batch size: 16 is 1.6 times as fast."""

FACTS = ServerFacts(engine=Fact("vllm", "/v1/models"))


class FakeWorker:
    """Trains without a process. `refuses`: batch sizes that do not fit, by the arm of the request;
    None: any arm."""

    def __init__(self, start_limit_s: float = 1.0, starts: bool = True) -> None:
        self.alive, self.progress, self.failed, self.hanging = True, None, None, ""
        self.job = None
        self.last_words: list[str] = []
        self.joined: list[Any] = []
        self.probed: list[str] = []
        self.last_started: Started | None = None
        self.last_server: ServerKnown | None = None
        self.listener: Callable[[AnyEvent], None] = lambda event: None
        self.trial_steps: list[Step] = []
        self.knobs: Knobs = {}
        self.options: Mapping[str, str] = {}
        self.arm = 0
        self.refuses: dict[int, list[int]] = {}
        self.start_limit_s, self._starts = start_limit_s, starts
        self.stopped = False
        self.seconds = SECONDS
        self._t = 0.0

    def start(
        self,
        workload: str,
        knobs: Knobs,
        device: object,
        options: Mapping[str, str],
        gpus: Sequence[str],
    ) -> None:
        self.knobs, self.options = dict(knobs), options
        if self._starts:
            self.last_started = Started(1.0, {}, {}, dict(knobs))
            self.listener(self.last_started)

    async def set_knobs(self, changes: Knobs, arm: int) -> KnobsSet:
        if changes.get("batch_size") in self.refuses.get(arm, []):
            return KnobsSet(self._t, 1, 0, {}, "out of memory")
        self.knobs, self.arm = {**self.knobs, **changes}, arm
        return KnobsSet(self._t, 1, 0, changes)

    async def next_steps(self) -> None:
        await asyncio.sleep(0 if self._starts else 3600)
        seconds = self.seconds[int(self.knobs["batch_size"])] * (
            1.0 + 0.002 * (len(self.trial_steps) % 3)
        )
        self._t += seconds
        phases = tuple(seconds / len(PHASES) for _ in PHASES)
        batch = int(self.knobs["batch_size"])
        self.trial_steps.append(
            Step(
                len(self.trial_steps),
                self._t,
                seconds,
                batch,
                batch,
                phases,
                None,
                None,
                self.arm,
                0,
            )
        )

    async def pause(self) -> None:
        pass

    def resume(self, arm: int) -> None:
        self.arm = arm

    def release(self) -> None:
        pass

    async def stop(self) -> None:
        self.alive, self.stopped = False, True

    def cause(self) -> str:
        return "gone"


class FakePool:
    """Hands out the workers that the test made."""

    def __init__(self, *workers: FakeWorker) -> None:
        self._workers = list(workers)

    async def take(self, *_: object) -> FakeWorker:
        return self._workers.pop(0)

    def hold(self, reason: str) -> None:
        pass

    release = hold

    @property
    def nodes(self) -> Any:
        from gpuconsole.engine.children.torchrun import Launch

        return Launch(1)


class ControlWithTrials(RunControl):
    """The control of a run, and the trials on the run."""

    trials: Trials


def with_control(
    play: Callable[[ControlWithTrials, SessionState], Awaitable[None]], *workers: FakeWorker
) -> None:
    state = SessionState()

    async def main() -> None:
        devices = ChosenDevices(state, "cpu")
        control = ControlWithTrials(
            state, state.apply, cast("Any", FakePool(*workers)), RunLock(), ServingChoice(), devices
        )
        control.trials = Trials(control, state, state.apply)
        await control.start(control.plan("train-gpt", {"batch_size": 8}))
        await play(control, state)

    asyncio.run(main())


@pytest.fixture(autouse=True)
def _with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "torch_version", lambda: "2.13")


async def tried(control: ControlWithTrials, changes: Knobs) -> Trial:
    return await control.trials.try_change(changes, None, keep=True, limits=USUAL)


def test_a_win_is_kept_and_opens_a_run_with_the_knobs_of_the_worker() -> None:
    worker = FakeWorker()
    worker.last_server = ServerKnown(1.0, FACTS)

    async def play(control: ControlWithTrials, state: SessionState) -> None:
        trial = await tried(control, {"batch_size": 16})
        assert (trial.verdict, trial.kept, trial.error) == ("win", True, None)
        assert [record.run.knobs["batch_size"] for record in state.records] == [8, 16]
        assert (worker.knobs["batch_size"], worker.arm) == (16, 0)
        assert [record.run.server for record in state.records] == [None, FACTS], (
            "the facts of the server that goes on"
        )

    with_control(play, worker)


def test_a_kept_change_that_is_slower_later_is_taken_back_once_no_trial_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, watched = FakeWorker(), asyncio.Event()

    async def slower(trial: Trial, *_: object) -> Trial:
        await watched.wait()
        return msgspec.structs.replace(trial, verdict="worse", reason="0.90x a minute later")

    monkeypatch.setattr(session, "watch", slower)
    monkeypatch.setattr(session, "EVERY_S", 0.0)

    async def play(control: ControlWithTrials, state: SessionState) -> None:
        trial = await tried(control, {"batch_size": 16})
        start = dict(state.records[0].run.knobs)
        made = Certificate(
            scenario="s",
            device="cpu",
            start=start,
            end={**start, "batch_size": 16},
            attempts=[Attempt("r", start, trial)],
        )
        state.apply(TuningUpdate(1.0, Tuning(made, 300.0, False)))
        async with control.lock.change():  # another trial
            watched.set()
            for _ in range(20):
                await asyncio.sleep(0)
            assert state.trials[trial.id].kept
        await until_settled(lambda: state.trials[trial.id].taken_back)
        after = state.trials[trial.id]
        assert (after.kept, after.fate, after.verdict) == (False, "taken back", "worse")
        assert [record.run.knobs["batch_size"] for record in state.records] == [8, 16, 8]
        assert state.tuning is not None
        assert state.tuning.certificate.attempts[0].trial.taken_back
        assert state.tuning.certificate.end == start

    with_control(play, worker)


async def until_settled(done: Callable[[], bool]) -> None:
    for _ in range(1000):
        if done():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("not settled")


def test_a_win_whose_knobs_cannot_be_applied_again_is_not_kept() -> None:
    """Memory is filled by another program between the last block and the end of the trial."""
    worker = FakeWorker()
    worker.refuses = {0: [16]}

    async def play(control: ControlWithTrials, state: SessionState) -> None:
        trial = await tried(control, {"batch_size": 16})
        assert (trial.verdict, trial.kept) == ("win", False)
        assert trial.error == "not kept: batch_size 16 could not be applied again: out of memory"
        assert state.trials[trial.id] == trial
        assert [record.run.knobs["batch_size"] for record in state.records] == [8]
        assert (worker.knobs["batch_size"], worker.arm) == (8, 0)
        assert state.records[-1].run.state == "running"

    with_control(play, worker)


def test_a_worker_that_cannot_go_back_ends_its_run_with_the_cause() -> None:
    worker = FakeWorker()
    worker.refuses = {0: [16, 8]}

    async def play(control: ControlWithTrials, state: SessionState) -> None:
        await tried(control, {"batch_size": 16})
        run = state.records[-1].run
        assert run.state == "failed"
        assert (
            run.error == "the worker could not go back to batch_size 8 after a trial: out of memory"
        )
        assert worker.stopped

    with_control(play, worker)


def test_the_second_worker_has_the_time_that_its_server_has_to_start() -> None:
    server = WorkerHandle(lambda event: None, lambda worker, code: None, module=SERVING)
    assert server.start_limit_s > READY_S

    async def play(control: ControlWithTrials, state: SessionState) -> None:
        trial = await tried(control, {"n_layer": 2})
        assert trial.error == "not running after 0 s"

    with_control(play, FakeWorker(), FakeWorker(start_limit_s=0.05, starts=False))


def test_a_second_worker_that_wins_and_takes_over_is_the_worker_of_the_next_run() -> None:
    first, second = FakeWorker(), FakeWorker()
    second.seconds = {8: 0.1}

    async def play(control: ControlWithTrials, state: SessionState) -> None:
        trial = await tried(control, {"n_layer": 2})
        assert (trial.verdict, trial.kept, trial.method) == ("win", True, "two workers ABBA")
        assert control.worker is cast("Any", second)
        assert first.stopped and not second.stopped
        assert [record.run.knobs["n_layer"] for record in state.records][1:] == [2]

    with_control(play, first, second)


def test_a_second_worker_that_won_and_died_is_not_kept() -> None:
    first, second = FakeWorker(), FakeWorker()
    second.seconds = {8: 0.1}

    async def play(control: ControlWithTrials, state: SessionState) -> None:
        def on_event(event: AnyEvent) -> None:
            if isinstance(event, TrialUpdate) and event.trial.blocks:
                second.alive = False

        control.trials._emit = on_event
        trial = await tried(control, {"n_layer": 2})
        assert (trial.verdict, trial.kept, trial.error) == ("win", False, "not kept: gone")
        assert control.worker is cast("Any", first)
        assert len(state.records) == 1

    with_control(play, first, second)


def test_a_winner_that_dies_while_the_other_worker_is_stopped_ends_the_run_as_failed() -> None:
    first, second = FakeWorker(), FakeWorker()
    second.seconds = {8: 0.1}

    async def play(control: ControlWithTrials, state: SessionState) -> None:
        async def stop() -> None:
            first.alive = second.alive = False
            control.worker_ended(cast("Any", second), -9)

        first.stop = stop  # type: ignore[method-assign]
        trial = await tried(control, {"n_layer": 2})
        assert trial.verdict == "win"
        assert [record.run.state for record in state.records] == ["failed"]
        assert control.worker is None and control.second is None

    with_control(play, first, second)


def test_a_run_that_died_while_it_was_paused_is_not_continued_by_the_second_worker() -> None:
    first, second = FakeWorker(), FakeWorker()
    second.seconds = {8: 0.1}

    async def play(control: ControlWithTrials, state: SessionState) -> None:
        def on_event(event: AnyEvent) -> None:
            if (
                isinstance(event, TrialUpdate)
                and event.trial.verdict is None
                and event.trial.blocks
            ):
                first.alive = False

        control.trials._emit = on_event
        trial = await tried(control, {"n_layer": 2})
        assert (trial.kept, trial.error) == (False, "not kept: gone")
        assert second.stopped

    with_control(play, first, second)


def test_a_device_that_is_gone_fails_the_trial_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = FakeWorker(), FakeWorker()

    async def play(control: ControlWithTrials, state: SessionState) -> None:
        def gone(_: ChosenDevices) -> Device:
            raise SessionError("there is no device 'gpu:0'")

        first.arm = 1
        monkeypatch.setattr(ChosenDevices, "first", gone)
        trial = await tried(control, {"n_layer": 2})
        assert (trial.state, trial.error) == ("failed", "there is no device 'gpu:0'")
        assert (first.arm, [record.run.state for record in state.records]) == (0, ["running"]), (
            "the worker of the run was resumed"
        )

    with_control(play, first, second)


async def cancelled(control: ControlWithTrials, state: SessionState, changes: Knobs) -> Trial:
    """A trial that the user cancels after its first blocks."""
    work = asyncio.create_task(tried(control, changes))
    async with asyncio.timeout(10):
        while not any(trial.blocks for trial in state.trials.values()):
            await asyncio.sleep(0)
    control.trials.cancel()
    return await work


def test_a_cancelled_trial_is_reverted_and_the_run_goes_on() -> None:
    worker = FakeWorker()

    async def play(control: ControlWithTrials, state: SessionState) -> None:
        trial = await cancelled(control, state, {"batch_size": 16})
        assert (trial.state, trial.verdict, trial.kept, trial.error) == (
            "cancelled",
            "undecided",
            False,
            None,
        )
        assert trial.blocks and state.trials[trial.id] == trial
        assert (worker.knobs["batch_size"], worker.arm) == (8, 0)
        assert [record.run.state for record in state.records] == ["running"]
        again = await tried(control, {"batch_size": 16})
        assert again.kept, "the lock is free, and the next trial is not cancelled"

    with_control(play, worker)


def test_the_second_worker_of_a_cancelled_trial_is_stopped() -> None:
    first, second = FakeWorker(), FakeWorker()

    async def play(control: ControlWithTrials, state: SessionState) -> None:
        trial = await cancelled(control, state, {"n_layer": 2})
        assert (trial.state, trial.kept) == ("cancelled", False)
        assert control.worker is cast("Any", first)
        assert second.stopped and not first.stopped and first.arm == 0

    with_control(play, first, second)


def test_without_a_trial_there_is_nothing_to_cancel() -> None:
    async def play(control: ControlWithTrials, state: SessionState) -> None:
        with pytest.raises(SessionError, match="no trial runs"):
            control.trials.cancel()

    with_control(play, FakeWorker())


def test_a_win_that_was_only_measured_is_kept_afterwards_while_the_settings_are_the_same() -> None:
    worker = FakeWorker()

    async def play(control: ControlWithTrials, state: SessionState) -> None:
        async def measured(changes: Knobs) -> Trial:
            return await control.trials.try_change(changes, None, keep=False, limits=USUAL)

        with pytest.raises(SessionError, match="no trial has ended"):
            await control.trials.keep()
        won = await measured({"batch_size": 16})
        assert (won.verdict, won.kept, worker.knobs["batch_size"]) == ("win", False, 8)
        kept = await control.trials.keep()
        assert kept.kept and state.trials[won.id] == kept
        assert [record.run.knobs["batch_size"] for record in state.records] == [8, 16]
        with pytest.raises(SessionError, match="batch_size 16 is kept already"):
            await control.trials.keep()
        await measured({"batch_size": 8})
        with pytest.raises(SessionError, match="only a proven win is kept"):
            await control.trials.keep()
        await control.revert()
        await measured({"batch_size": 16})
        await control.set_knobs({"log_every": 7})
        with pytest.raises(SessionError, match="was measured before other settings changed"):
            await control.trials.keep()

    with_control(play, worker)


def test_a_change_by_hand_is_taken_back_too_and_then_there_is_nothing_to_take_back() -> None:
    async def play(control: ControlWithTrials, state: SessionState) -> None:
        assert control.undo == {}
        await control.set_knobs({"batch_size": 16})
        await control.set_knobs({"log_every": 7})
        assert control.undo == {"log_every": state.records[0].run.knobs["log_every"]}
        await control.revert()
        assert control.undo == {"batch_size": 8}
        await control.revert()
        assert control.undo == {} and state.records[-1].run.knobs["batch_size"] == 8
        with pytest.raises(SessionError, match="nothing to revert"):
            await control.revert()
        await control.set_knobs({"batch_size": 16})
        await control.end_run("stopped")
        assert control.undo == {}, "nothing runs that could be changed"

    with_control(play, FakeWorker())


class HangingWorker(FakeWorker):
    """Answers nothing after `answers` changes and pauses, until it is released."""

    def __init__(self, answers: int = 6) -> None:
        super().__init__()
        self._left, self._released = answers, asyncio.Event()

    async def _answer(self) -> None:
        if self._left <= 0:
            await self._released.wait()
            raise WorkerGone("hangs")

    async def next_steps(self) -> None:
        await self._answer()
        await super().next_steps()

    async def set_knobs(self, changes: Knobs, arm: int) -> KnobsSet:
        self._left -= 1
        await self._answer()
        return await super().set_knobs(changes, arm)

    async def pause(self) -> None:
        self._left -= 1
        await self._answer()

    def release(self) -> None:
        self._released.set()

    async def stop(self) -> None:
        self.release()
        await super().stop()


async def by_stopping(control: ControlWithTrials, trial: asyncio.Task[Trial]) -> None:
    await control.end_run("stopped")


async def by_another_start(control: ControlWithTrials, trial: asyncio.Task[Trial]) -> None:
    await control.start(control.plan("tiny-batch", {}))


async def by_cancelling_first(control: ControlWithTrials, trial: asyncio.Task[Trial]) -> None:
    trial.cancel()
    await asyncio.wait([trial])
    await control.end_run("stopped")


@pytest.mark.parametrize("end", [by_stopping, by_another_start, by_cancelling_first])
@pytest.mark.parametrize(
    "changes", [{"batch_size": 16}, {"n_layer": 2}], ids=["one worker", "two workers"]
)
def test_whatever_ends_a_run_ends_its_trial_on_a_worker_that_hangs(
    end: Callable[[ControlWithTrials, asyncio.Task[Trial]], Awaitable[None]],
    changes: Knobs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "SETTLE_S", 0.05)

    async def play(control: ControlWithTrials, state: SessionState) -> None:
        trial = asyncio.create_task(tried(control, changes))
        async with asyncio.timeout(5):
            while not any(each.blocks for each in state.trials.values()):
                await asyncio.sleep(0)
            await asyncio.sleep(0.05)  # by now it hangs
            await end(control, trial)
            await asyncio.wait([trial])
            while any(each.state == "running" for each in state.trials.values()):
                await asyncio.sleep(0)
        (ended,) = state.trials.values()
        assert (ended.state, ended.kept, state.records[0].run.state) == (
            "cancelled",
            False,
            "stopped",
        )

    with_control(play, HangingWorker(), HangingWorker(), FakeWorker())


def test_a_server_that_was_not_named_at_the_start_can_be_watched() -> None:
    """As from the page of the jobs. The next run does not go to that server."""
    workers = FakeWorker(), FakeWorker(), FakeWorker()

    async def play(control: ControlWithTrials, state: SessionState) -> None:
        await control.start(control.plan("http://user:secret@10.0.0.7:8000", {}))
        assert state.record is not None and state.record.run.watched
        assert "secret" not in state.record.run.scenario
        assert workers[1].options == {
            "server_url": "http://user:secret@10.0.0.7:8000", "watch": "yes",
        }  # fmt: skip
        await control.start(control.plan("train-gpt", {"batch_size": 8}))
        assert not state.record.run.watched and workers[2].options == {}

    with_control(play, *workers)


def test_a_trial_with_a_second_server_says_what_it_takes_or_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forecast = Forecast(100.0, 0.5)
    monkeypatch.setattr(session, "noise_s", lambda *_: 0.0)
    monkeypatch.setattr(session, "forecast_restart", lambda *_: forecast)

    async def play(control: ControlWithTrials, state: SessionState) -> None:
        await control.start(control.plan("serve-chat", {}))
        notes: list[str] = []
        control.trials._emit = lambda event: (
            notes.append(event.text) if isinstance(event, Note) else state.apply(event)
        )
        with pytest.raises(
            SessionError, match="no trial: it would take about 1 min 40 s and resolve 50 % at best"
        ):
            await control.trials.try_change(
                {"enable_prefix_caching": False}, Interval(1.1, 1.2), keep=True, limits=USUAL
            )
        assert (state.trials, notes) == ({}, [])
        for predicted in (None, Interval(1.6, 1.8)):
            trial = await control.trials.try_change(
                {"enable_prefix_caching": False}, predicted, keep=True, limits=USUAL
            )
            assert (trial.forecast, trial.error, notes.pop()) == (
                forecast,
                "not running after 0 s",
                forecast_line(forecast, server=True),
            )

    never = {"start_limit_s": 0.01, "starts": False}
    with_control(play, FakeWorker(), FakeWorker(), FakeWorker(**never), FakeWorker(**never))
