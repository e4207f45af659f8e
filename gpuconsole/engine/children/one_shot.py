"""Children that do one piece of work: a calibration, the examination of a model server, the
analysis of a profiler trace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpuconsole.engine.children.child import Child
from gpuconsole.engine.children.environment import own_environment
from gpuconsole.host.folders import Scratch, data_folder, sweep_scratch
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device, Reached
from gpuconsole.model.profile import ProfileReport
from gpuconsole.wire.events import (
    AnyEvent,
    Calibrated,
    Command,
    Failed,
    ProbeDone,
    Profiled,
    Progress,
    Start,
)

ANALYSIS_S = 120.0
"""Time limit in seconds, longer than the analysis of the largest known trace."""


async def analysed(answer: Profiled) -> Profiled:
    """`answer` with the report on its trace, or with the reason why there is none. The trace is
    removed; a copy goes to `answer.keep`, if it is set."""
    trace = Path(answer.trace)
    target = trace.with_name("report.json")
    arguments = [
        str(trace),
        str(target),
        *(["--keep", answer.keep] if answer.keep else []),
        *(["--gpu"] if answer.gpu else []),
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "gpuconsole.workloads.profiling.analyse",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **own_environment()},
    )
    report, error = None, None
    try:
        _, said = await asyncio.wait_for(process.communicate(), ANALYSIS_S)
        report = msgspec.json.decode(target.read_bytes(), type=ProfileReport)
    except TimeoutError:
        process.kill()
        error = f"the trace was not read within {ANALYSIS_S:.0f} s"
    except (OSError, msgspec.DecodeError):
        lines = said.decode(errors="replace").strip().splitlines()
        error = (
            "the trace could not be read: "
            f"{lines[-1] if lines else f'exit code {process.returncode}'}"
        )
    finally:
        for path in (trace, target):
            with contextlib.suppress(OSError):
                path.unlink()
    return msgspec.structs.replace(answer, trace="", report=report, error=error)


CALIBRATION = "gpuconsole.workloads.calibration.child"
EXAMINATION = "gpuconsole.workloads.serving.examine"


class JobFailed(RuntimeError):
    """The child ended before its work was done; the message is one line."""


class Interrupted(Exception):
    """The caller's `stop` event ended the job."""


async def calibrate(
    device: Device, budget_s: float, on_progress: Callable[[Progress], None], stop: asyncio.Event
) -> list[Reached]:
    """Measure what `device` reaches, each figure for about `budget_s` seconds.

    No process and no file is left behind, however the job ends. Raises JobFailed, and Interrupted
    once `stop` is set.
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
    workload: str,
    knobs: Knobs,
    device: Device,
    options: dict[str, str],
    gpus: tuple[str, ...],
    on_progress: Callable[[Progress], None],
    stop: asyncio.Event,
) -> list[ProbeDone]:
    """Return the answers of a model server, in the order of the questions. Once `stop` is set,
    return the answers so far. `gpus`: see `Start`. Raises JobFailed."""
    answers: list[ProbeDone] = []

    def on_event(event: AnyEvent) -> None:
        if isinstance(event, ProbeDone):
            answers.append(event)
        elif isinstance(event, Progress):
            on_progress(event)

    await _run(
        EXAMINATION,
        [],
        Start(workload, knobs, device.id, device.uuid, options=options, gpus=gpus),
        on_event,
        stop,
        "examining",
    )
    return answers


async def _run(
    module: str,
    arguments: list[str],
    command: Command | None,
    on_event: Callable[[AnyEvent], None],
    stop: asyncio.Event,
    what: str,
) -> None:
    """Run a child with a private folder to its end, or until `stop` is set. `command` is sent once
    it has started. Raises JobFailed."""
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
        line = next(
            (line for line in reversed(child.last_words) if line.strip()), "it printed nothing"
        )
        raise JobFailed(f"the {what} process ended with exit code {codes[0]}: {line}")
