"""A run on a simulated card: commands on an endless queue, and changes that do not fit into the
card's memory."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from gpuconsole.engine import devices
from gpuconsole.experiments.session import LiveSession
from gpuconsole.model.experiments import Trial
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.wire.events import KnobsSet
from tests.cuda.conftest import Machines
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("simulated run")]
KNOBS: Knobs = {
    "d_model": 1024,
    "n_layer": 2,
    "batch_size": 8,
    "seq_len": 512,
    "log_every": 0,
    "eval_every": 0,
}


class Seen(NamedTuple):
    """What a run on a small card showed. `pause_s`: until the answer; `stop_s`: until the end of
    the process."""

    step_s: float
    pause_s: float
    stop_s: float
    refused: KnobsSet
    knobs: Knobs
    state: str
    no_room: Trial
    out_of_memory: Trial
    pid: int | None


async def _unknown(*_: object) -> str:
    """In place of `missing_room`: the need of the second worker is not known."""
    return ""


async def _run() -> Seen:
    engine = LiveSession(interval_s=0.2)
    await engine.open()
    try:
        await engine.start("train-gpt", KNOBS)
        await until(
            lambda: (
                engine.view().state == "running"
                and len(engine.state.record.steps if engine.state.record else ()) > 4
            ),
            60,
        )
        worker = engine.control.worker
        assert worker is not None
        refused = await worker.set_knobs({"batch_size": 128}, 0)
        await worker.next_steps()
        no_room = await engine.try_change({"pytorch_alloc_conf": "expandable_segments:True"})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(devices.SecondaryRoom, "missing_room", _unknown)
            out_of_memory = await engine.try_change(
                {"pytorch_alloc_conf": "expandable_segments:True"}
            )
        for _ in range(2):
            await worker.next_steps()
        start = time.monotonic()
        await worker.pause()
        pause_s = time.monotonic() - start
        worker.resume(0)
        await worker.next_steps()
        steps = list(engine.state.record.steps) if engine.state.record else []
        view, start = engine.view(), time.monotonic()
        await engine.stop()
        stop_s = time.monotonic() - start
        assert view.run is not None
        return Seen(
            steps[-1].wall_s,
            pause_s,
            stop_s,
            refused,
            view.run.knobs,
            view.state,
            no_room,
            out_of_memory,
            worker.pid,
        )
    finally:
        await engine.close()


@pytest.fixture(scope="module")
def seen(simulated: Machines) -> Iterator[Seen]:
    machine = simulated("card h100 memory=1.5e9", "values none", "slowdown 70")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in machine.environment().items():
            patch.setenv(name, value)
        yield asyncio.run(_run())


def test_pause_and_stop_are_answered_within_a_second_on_an_endless_queue(seen: Seen) -> None:
    assert seen.step_s > 0.1, "the device is far slower than the host"
    assert seen.pause_s < 1
    assert seen.stop_s < 2, "the answer, and the end of the process"


def test_a_live_change_that_does_not_fit_is_refused_and_explained(seen: Seen) -> None:
    assert seen.refused.error is not None
    assert "out of memory at batch_size 128" in seen.refused.error
    assert "Tried to allocate" in seen.refused.error
    assert seen.knobs["batch_size"] == 8 and seen.state == "running"


def test_a_second_process_that_would_not_fit_is_not_started(seen: Seen) -> None:
    assert seen.no_room.state == "failed" and seen.no_room.error is not None
    reason = (
        r"the second process of this trial needs about 1\.\d GB, and gpu:0 has 0\.\d GB free: the"
        rf" paused process of this run \(pid {seen.pid}\) holds"
    )
    assert re.match(reason, seen.no_room.error)


def test_out_of_memory_in_a_second_process_names_the_process_that_holds_the_memory(
    seen: Seen,
) -> None:
    assert seen.out_of_memory.state == "failed" and seen.out_of_memory.error is not None
    assert seen.out_of_memory.error.startswith("out of memory at batch_size 8")
    assert f"the paused process of this run (pid {seen.pid}) holds" in seen.out_of_memory.error
