"""The real engine with real children: runs, trials, faults."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import jsonschema
import msgspec
import psutil
import pytest

from gpuconsole.engine.recording import Replay
from gpuconsole.experiments.session import LiveSession
from gpuconsole.host.folders import PREFIX, data_folder
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.snapshot import json_schema
from gpuconsole.session import facts
from gpuconsole.session.api import SessionError
from tests.waiting import gone, until

SMALL: Knobs = {"batch_size": 2, "seq_len": 32, "d_model": 64, "n_layer": 1}


def with_engine(play: Callable[[LiveSession], Awaitable[None]]) -> None:
    """Open an engine, play, close the engine, and check that no child is left. Helper processes of
    earlier tests do not count."""
    earlier = {child.pid for child in psutil.Process().children(recursive=True)}

    async def main() -> None:
        engine = LiveSession(interval_s=0.2)
        await engine.open()
        try:
            await play(engine)
        finally:
            children = [
                child
                for child in psutil.Process().children(recursive=True)
                if child.pid not in earlier
            ]
            await engine.close()
            await until(lambda: all(gone(child.pid) for child in children), 10, "children gone")

    asyncio.run(main())


async def running(
    engine: LiveSession, scenario: str = "train-gpt", overrides: Knobs | None = None
) -> None:
    await engine.start(scenario, SMALL if overrides is None else overrides)
    await until(lambda: engine.view().running_s > 1, 60, "the run runs")


@pytest.mark.slow
def test_a_trial_that_wins_is_kept_one_that_loses_is_reverted_and_u_goes_back() -> None:
    """Logging every gradient at every step of a small model costs most of its time."""

    async def play(engine: LiveSession) -> None:
        await running(engine, "chatty-logging", {**SMALL, "log_gradients": True})
        won = await engine.try_change({"log_every": 20})
        assert won.verdict == "win", won
        assert won.kept
        assert won.speedup is not None
        assert won.speedup.low > 1.0
        view = engine.view()
        assert [run.id for run in view.runs] == ["1", "2"]
        assert view.run is not None
        assert view.run.knobs["log_every"] == 20
        lost = await engine.try_change({"log_every": 1})
        # the latter where a busy neighbour blurs it: not kept either
        assert lost.verdict in ("worse", "no_gain"), lost
        assert lost.speedup is not None
        assert lost.speedup.estimate < 1
        assert not lost.kept
        assert len(engine.view().runs) == 2
        await until(lambda: engine.view().state == "running")
        await engine.revert()
        assert engine.view().runs[-1].knobs["log_every"] == 1
        with pytest.raises(SessionError, match="nothing to revert"):
            await engine.revert()

    with_engine(play)


@pytest.mark.matrix
@pytest.mark.slow
def test_a_win_that_was_only_measured_can_be_kept_afterwards_and_nothing_else() -> None:
    async def play(engine: LiveSession) -> None:
        await running(engine, "chatty-logging", {**SMALL, "log_gradients": True})
        with pytest.raises(SessionError, match="no trial has ended"):
            await engine.keep_trial()
        won = await engine.try_change({"log_every": 20}, keep=False)
        assert (won.verdict, won.kept) == ("win", False) and engine.view().runs[-1].knobs[
            "log_every"
        ] == 1
        assert (await engine.keep_trial()).kept
        await until(lambda: engine.view().state == "running")
        view = engine.view()
        assert (view.trials[-1].kept, view.runs[-1].knobs["log_every"]) == (True, 20)
        assert (gain := facts.since_start(view)) is not None and gain.proven
        with pytest.raises(SessionError, match="log_every 20 is kept already"):
            await engine.keep_trial()
        await engine.revert()
        await until(lambda: engine.view().state == "running")
        await engine.try_change({"log_every": 1000}, keep=False)
        await engine.set_knobs({"gradient_checkpointing": True})
        with pytest.raises(SessionError, match="was measured before other settings changed"):
            await engine.keep_trial()

    with_engine(play)


@pytest.mark.slow
def test_a_trial_that_waits_for_a_probe_is_shown_as_requested_and_can_be_cancelled() -> None:
    async def play(engine: LiveSession) -> None:
        await running(engine)
        async with engine.control.lock.probe("batch_elasticity"):
            asked = asyncio.ensure_future(engine.try_change({"log_every": 20}))
            await until(
                lambda: engine.view().asked == {"log_every": 20}, 5, "the trial is requested"
            )
            engine.cancel_trial()
            with pytest.raises(SessionError, match="was cancelled before it began"):
                await asked
            assert not engine.view().asked and not engine.view().trials
            again = asyncio.ensure_future(engine.try_change({"log_every": 20}))
            await until(
                lambda: engine.view().asked == {"log_every": 20}, 5, "the trial is requested"
            )
        await until(lambda: bool(engine.view().trials), 30, "the trial has begun")
        assert not engine.view().asked
        engine.cancel_trial()
        assert (await again).state == "cancelled"

    with_engine(play)


@pytest.mark.slow
def test_a_cold_knob_is_tried_in_a_second_worker() -> None:
    async def play(engine: LiveSession) -> None:
        await running(engine, "train-gpt", {**SMALL, "d_model": 256, "n_layer": 4})
        assert engine.control.worker is not None
        before = engine.control.worker.pid
        await engine.control.worker.probe("held_out_loss")
        trial = await engine.try_change({"n_layer": 1})
        assert trial.method == "two workers ABBA"
        # which nobody asks for here but a trial that treats both sides alike
        assert "held_out_loss" in engine.control.worker.probed
        assert trial.verdict == "win", trial
        assert engine.control.worker is not None
        assert engine.control.worker.pid != before
        await until(lambda: engine.view().running_s > 0.5, 20, "the winner goes on")
        run = engine.view().run
        assert run is not None
        assert run.knobs["n_layer"] == 1

    with_engine(play)


@pytest.mark.slow
def test_a_worker_killed_in_a_trial_ends_trial_and_run_with_its_cause_and_the_next_run_works() -> (
    None
):
    """The next one with steps so short that thousands are made until they are steady."""

    async def play(engine: LiveSession) -> None:
        await running(engine)
        task = asyncio.create_task(engine.try_change({"gradient_checkpointing": True}))
        await until(lambda: engine.view().trials and engine.view().trials[0].blocks > 0, 60)
        assert engine.control.worker is not None
        assert engine.control.worker.pid is not None
        os.kill(engine.control.worker.pid, signal.SIGKILL)
        trial = await task
        assert (trial.state, trial.verdict, trial.kept) == ("failed", "undecided", False)
        await until(lambda: engine.view().state == "failed")
        run = engine.view().run
        assert run is not None
        assert "SIGKILL" in (run.error or "")
        assert run.summary.steps > 0
        await engine.start("tiny-batch", {"d_model": 32, "n_layer": 1, "seq_len": 8})
        await until(lambda: engine.view().runs[-1].steady_from_s is not None, 60, "steady")
        assert engine.view().state == "running"

    with_engine(play)


@pytest.mark.slow
def test_snapshot_and_recording_hold_the_same_session_and_bad_requests_change_nothing(
    tmp_path: Path,
) -> None:
    recording = tmp_path / "session.jsonl"

    async def play(engine: LiveSession) -> None:
        engine.toggle_recording(recording)
        with pytest.raises(SessionError, match="nothing is running"):
            await engine.try_change({"log_every": 5})
        with pytest.raises(SessionError, match="did you mean 'train-gpt'"):
            await engine.start("train-gtp", {})
        await running(engine)
        with pytest.raises(SessionError, match="no setting 'bath_size'"):
            await engine.set_knobs({"bath_size": 3})
        with pytest.raises(SessionError, match="already in force"):
            await engine.set_knobs({"batch_size": 2})
        with pytest.raises(SessionError, match="needs a restart"):
            await engine.set_knobs({"n_layer": 2})
        assert engine.view().undo == {}
        await engine.set_knobs({"batch_size": 4})
        run = engine.view().run
        assert run is not None
        assert (run.id, run.knobs["batch_size"], run.changes) == ("2", 4, {"batch_size": 4})
        assert engine.view().undo == {"batch_size": 2} and run.at_step > 0
        await until(lambda: engine.view().running_s > 1)
        await engine.stop()
        engine.export(tmp_path / "live.json")

    with_engine(play)
    replay = Replay(recording, speed=0)
    asyncio.run(replay.open())
    assert replay.ended
    replay.export(tmp_path / "replayed.json")
    live, replayed = (
        msgspec.json.decode((tmp_path / name).read_bytes())
        for name in ("live.json", "replayed.json")
    )
    for snapshot in (live, replayed):
        jsonschema.validate(snapshot, json_schema())
        assert [run["knobs"]["batch_size"] for run in snapshot["runs"]] == [2, 4]
        for run in snapshot["runs"]:
            assert sum(run["summary"]["phases_ratio"].values()) == pytest.approx(1, abs=0.01)
    assert [run["summary"] for run in live["runs"]] == [run["summary"] for run in replayed["runs"]]
    view = replay.view()
    assert view.recording and (live["recording"], replayed["recording"]) == (False, True)
    with pytest.raises(SessionError, match="recording"):
        asyncio.run(replay.stop())


def test_an_export_that_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    async def play(engine: LiveSession) -> None:
        with pytest.raises(SessionError, match="cannot be written"):
            engine.export(tmp_path / "no" / "such" / "folder.json")
        assert list(tmp_path.iterdir()) == []

    with_engine(play)


def workers() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        if "gpuconsole.workloads.worker" in child.cmdline()
    ]


@pytest.mark.slow
def test_a_cancelled_trial_restores_the_knobs_and_a_new_start_breaks_a_trial_off() -> None:
    async def play(engine: LiveSession) -> None:
        await running(engine)
        for count, changes in enumerate(({"gradient_checkpointing": True}, {"n_layer": 3}), 1):
            trial = asyncio.create_task(engine.try_change(changes))
            await until(
                lambda count=count: (
                    len(engine.view().trials) == count and engine.view().trials[-1].blocks > 0
                ),
                60,
            )
            trial.cancel()
            with pytest.raises(asyncio.CancelledError):
                await trial
            steps = engine.state.records[-1].seen_steps
            await until(lambda before=steps: engine.state.records[-1].seen_steps > before + 20)
            assert len(engine.view().runs) == 1
            assert engine.state.records[-1].steps[-1].arm == 0
        assert len(workers()) == 1

        trial = asyncio.create_task(engine.try_change({"n_layer": 3}))
        await until(
            lambda: len(engine.view().trials) == 3 and engine.view().trials[-1].blocks > 0, 60
        )
        await engine.start("tiny-batch", {})
        broken = await trial
        assert (broken.state, broken.kept) == ("cancelled", False)
        await until(lambda: engine.view().running_s > 0.5, 60)
        assert [(run.scenario, run.state) for run in engine.view().runs] == [
            ("train-gpt", "stopped"),
            ("tiny-batch", "running"),
        ]
        assert len(workers()) == 1
        assert len(list(data_folder().glob(f"{PREFIX}*-{os.getpid()}-*"))) == 1

    with_engine(play)
    assert not list(data_folder().glob(f"{PREFIX}*-{os.getpid()}-*"))
