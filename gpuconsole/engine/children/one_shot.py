"""One-shot jobs: a child that measures something, from its start to its end. A calibration, or an examination of a model server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpuconsole.engine.children.child import Child
from gpuconsole.model.folders import Scratch, data_folder, sweep_scratch
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device, Reached
from gpuconsole.wire.events import AnyEvent, Calibrated, Command, Failed, ProbeDone, Progress, Start

CALIBRATION = "gpuconsole.workloads.calibration.child"
EXAMINATION = "gpuconsole.workloads.serving.examine"


class JobFailed(RuntimeError):
    """The child ended before its work was done; the message is one line."""


class Interrupted(Exception):
    """The caller's `stop` event ended the job."""


async def calibrate(device: Device, budget_s: float, on_progress: Callable[[Progress], None], stop: asyncio.Event) -> list[Reached]:
    """Measure what `device` reaches, each figure for about `budget_s` seconds.

    No process and no file is left behind, however the job ends. Raises JobFailed, and Interrupted once `stop` is set.
    """
    sweep_scratch()
    reached: list[Reached] = []

    def on_event(event: AnyEvent) -> None:
        if isinstance(event, Calibrated):
            reached.append(event.reached)
        elif isinstance(event, Progress):
            on_progress(event)

    arguments = ["--device", device.id, "--uuid", device.uuid, "--budget", str(budget_s)]
    await _run(CALIBRATION, arguments, None, on_event, stop, "calibration")
    if stop.is_set():
        raise Interrupted
    return reached


async def examine(
    workload: str, knobs: Knobs, device: Device, options: dict[str, str], on_progress: Callable[[Progress], None], stop: asyncio.Event
) -> list[ProbeDone]:
    """The answers of a model server, in the order of the questions; those so far once `stop` is set. Raises JobFailed."""
    answers: list[ProbeDone] = []

    def on_event(event: AnyEvent) -> None:
        if isinstance(event, ProbeDone):
            answers.append(event)
        elif isinstance(event, Progress):
            on_progress(event)

    await _run(EXAMINATION, [], Start(workload, knobs, device.id, device.uuid, options=options), on_event, stop, "examining")
    return answers


async def _run(
    module: str, arguments: list[str], command: Command | None, on_event: Callable[[AnyEvent], None], stop: asyncio.Event, what: str
) -> None:
    """Run a child with a private folder to its end, or until `stop` is set. `command` is sent once it has started. Raises JobFailed."""
    failures: list[str] = []
    codes: list[int] = []

    def receive(event: AnyEvent) -> None:
        if isinstance(event, Failed):
            failures.append(event.cause)
        else:
            on_event(event)

    try:
        scratch = Scratch(data_folder())
    except OSError as error:
        raise JobFailed(str(error)) from None
    child = Child(module, ["--scratch", str(scratch.path), *arguments], receive, codes.append)
    try:
        await child.start()
        if command is not None:
            child.send(command)
        ends = [asyncio.ensure_future(child.exited.wait()), asyncio.ensure_future(stop.wait())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
    finally:
        child.hang_up()  # examining starts a model server
        if child.alive:
            await child.exited.wait()
        scratch.close()
    if failures and not stop.is_set():
        raise JobFailed(failures[0])
    if codes != [0] and not stop.is_set():
        line = next((line for line in reversed(child.last_words) if line.strip()), "it printed nothing")
        raise JobFailed(f"the {what} process ended with exit code {codes[0]}: {line}")
