"""One examination of a model server: the child that asks, from its start to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine.device import Device
from gpuconsole.processes.child import Child
from gpuconsole.wire.events import AnyEvent, Failed, ProbeDone, Progress, Start

MODULE = "gpuconsole.workloads.serving.examine"


class ExaminationError(RuntimeError):
    """It came to nothing; the message is one line."""


async def examine(
    workload: str, knobs: Knobs, device: Device, options: dict[str, str], tell: Callable[[Progress], None], stop: asyncio.Event
) -> list[ProbeDone]:
    """What the server answered, in the order asked; all of it, or what there was when `stop` was set. Raises ExaminationError."""
    answers: list[ProbeDone] = []
    failed: list[str] = []
    codes: list[int] = []

    def heard(event: AnyEvent) -> None:
        if isinstance(event, ProbeDone):
            answers.append(event)
        elif isinstance(event, Progress):
            tell(event)
        elif isinstance(event, Failed):
            failed.append(event.cause)

    child = Child(MODULE, [], heard, codes.append)
    try:
        await child.start()
        child.send(Start(workload, knobs, device.id, device.uuid, options=options))
        ends = [asyncio.ensure_future(child.exited.wait()), asyncio.ensure_future(stop.wait())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
    finally:
        child.kill()
        if child.alive:
            await child.exited.wait()
    if failed or (codes != [0] and not stop.is_set()):
        words = next((line for line in reversed(child.last_words) if line.strip()), "no last words")
        raise ExaminationError(failed[0] if failed else f"the examining process ended with exit code {codes[0]}: {words}")
    return answers
