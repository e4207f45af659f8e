"""A worker that hangs in mid-trial (SIGSTOP stands for a hung kernel or NCCL call): whatever ends
the run ends it within seconds."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from gpuconsole.experiments.session import LiveSession
from tests.engine.test_engine import SMALL, running, with_engine
from tests.waiting import children_that_run, until, wait_until

SECONDS = 12.0
"""A worker that does not answer is killed 3 s after the request to stop; a trial is given up 2 s
after it was cancelled."""


async def hang_in_mid_trial(
    engine: LiveSession, changes: dict[str, object]
) -> asyncio.Task[object]:
    """A trial of `changes` whose workers are stopped after its first blocks."""
    await running(engine)
    trial: asyncio.Task[object] = asyncio.create_task(engine.try_change(changes))  # type: ignore[arg-type]
    await until(
        lambda: engine.view().trials and engine.view().trials[0].blocks > 0, 60, "the first blocks"
    )
    for child in children_that_run("gpuconsole.workloads.worker"):
        child.send_signal(signal.SIGSTOP)
    return trial


Ends = Callable[[LiveSession, "asyncio.Task[object]"], Awaitable[object]]


async def by_key(engine: LiveSession, trial: asyncio.Task[object]) -> None:
    await engine.stop()
    assert engine.view().state == "stopped"


async def by_another_scenario(engine: LiveSession, trial: asyncio.Task[object]) -> None:
    await engine.start("tiny-batch", dict(SMALL))
    await until(lambda: engine.view().running_s > 0, 60, "the next run runs")
    assert [run.state for run in engine.view().runs] == ["stopped", "running"]


async def by_cancelling_the_trial_first(engine: LiveSession, trial: asyncio.Task[object]) -> None:
    """As the end of a tuning session does, and Escape."""
    trial.cancel()
    await asyncio.wait([trial])
    await engine.stop()


LIVE, TWO_WORKERS = {"gradient_checkpointing": True}, {"n_layer": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "changes"),
    [
        (by_key, LIVE),
        pytest.param(by_key, TWO_WORKERS, marks=pytest.mark.matrix),
        pytest.param(by_another_scenario, LIVE, marks=pytest.mark.matrix),
        pytest.param(by_cancelling_the_trial_first, LIVE, marks=pytest.mark.matrix),
    ],
)
def test_a_run_whose_worker_hangs_in_mid_trial_ends_within_seconds(
    end: Ends, changes: dict[str, object]
) -> None:
    async def play(engine: LiveSession) -> None:
        trial = await hang_in_mid_trial(engine, changes)
        begun = time.monotonic()
        async with asyncio.timeout(60 if end is by_another_scenario else SECONDS):
            await end(engine, trial)
        await asyncio.wait([trial], timeout=SECONDS)
        assert trial.done()
        assert engine.view().trials[0].state == "cancelled"
        assert not engine.view().trials[0].kept
        assert end is by_another_scenario or time.monotonic() - begun < 2 * SECONDS

    with_engine(play)


@pytest.mark.slow
def test_a_tuning_session_on_a_hung_worker_ends_within_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(engine: LiveSession) -> None:
        await running(engine, "chatty-logging", {**SMALL, "log_gradients": True})
        tuning = asyncio.create_task(engine.tune(120.0))
        await until(
            lambda: engine.view().trials and engine.view().trials[0].blocks > 0,
            60,
            "the first blocks",
        )
        for child in children_that_run("gpuconsole.workloads.worker"):
            child.send_signal(signal.SIGSTOP)
        engine.end_tuning()
        async with asyncio.timeout(SECONDS):
            assert (await tuning).stopped == "ended by hand"
            await engine.stop()

    with_engine(play)


@pytest.mark.slow
def test_ctrl_c_ends_a_headless_run_whose_worker_hangs_and_writes_the_snapshot(
    tmp_path: Path,
) -> None:
    words = [
        "run",
        "train-gpt",
        "--headless",
        "--duration",
        "120",
        "--try",
        "gradient_checkpointing=true",
        "--snapshot",
        "s.json",
    ]
    words += [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "gpuconsole", *words]
    with (tmp_path / "stderr").open("w") as stderr:
        console = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        wait_until(lambda: "trial:" in (tmp_path / "stderr").read_text(), 90, "the trial begins")
        (worker,) = [
            c
            for c in psutil.Process(console.pid).children()
            if "gpuconsole.workloads.worker" in c.cmdline()
        ]
        worker.send_signal(signal.SIGSTOP)
        os.kill(console.pid, signal.SIGINT)
        assert console.wait(15) == 130
    finally:
        if console.poll() is None:
            for child in psutil.Process(console.pid).children():
                child.kill()
            console.kill()
    (run,) = json.loads((tmp_path / "s.json").read_text())["runs"]
    assert run["state"] == "stopped"
