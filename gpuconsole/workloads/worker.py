"""The worker process: imports torch ahead of time, waits for a Start, then runs one workload and
answers commands.

The console starts it as `python -m gpuconsole.workloads.worker --fd N --scratch DIR`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gpuconsole import __version__
from gpuconsole.agent.clock import now
from gpuconsole.agent.loop import Loop
from gpuconsole.agent.protocol import PlainError
from gpuconsole.agent.service import Inbox, Profiler, Service, explain
from gpuconsole.agent.world import World
from gpuconsole.host.installation import install_command
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs, show
from gpuconsole.model.knobs.knob import NO_EFFECT
from gpuconsole.wire.channel import ChildChannel, die_with_parent, kill_own_group
from gpuconsole.wire.events import (
    Command,
    Event,
    Failed,
    Hello,
    Note,
    Progress,
    QueryActivity,
    Start,
    Started,
)
from gpuconsole.workloads import process
from gpuconsole.workloads.process import without_collections

if TYPE_CHECKING:
    from gpuconsole.workloads.facts import Described


class WorkloadLoop(Loop, Protocol):
    """A loop of ours: the task or the repeated work says what it consists of."""

    @property
    def task(self) -> Described: ...


class WorkerChannel(Protocol):
    """The worker's end of the wire."""

    dropped: int

    def send(self, event: Event | dict[str, Any], /) -> None: ...

    def flush(self) -> bool: ...


def train(
    channel: WorkerChannel,
    inbox: Inbox,
    loop: WorkloadLoop,
    start: Start,
    world: World | None = None,
) -> None:
    """Run `loop` until Stop or until its last step, and answer commands between its steps."""
    service = make_service(channel, inbox, loop, start.max_steps, world or World())
    service.begin()
    while service.between_steps():
        loop.step()
    service.end()


def make_service(
    channel: WorkerChannel, inbox: Inbox, loop: WorkloadLoop, max_steps: int, world: World
) -> Service:
    """The agent's service for a workload of ours."""

    def profiler() -> Profiler:
        from gpuconsole.workloads.profiling.window import Profiling

        note = f"process {world.rank} of {world.size}" if world.size > 1 else ""
        return Profiling(loop, channel.send, world.leads, note)

    return Service(
        loop, inbox, channel, world, FactsPublisher(channel, loop, world), profiler, max_steps
    )


class FactsPublisher:
    """Sends the facts about the workload under its present knobs, and which knobs have no effect on
    this device."""

    def __init__(self, channel: WorkerChannel, loop: WorkloadLoop, world: World) -> None:
        from gpuconsole.workloads.facts import WorkloadFacts

        self._channel = channel
        self._loop = loop
        self._facts = WorkloadFacts(loop.task, loop.device, world.size)
        self._noted: set[str] = set()

    def __call__(self) -> None:
        from gpuconsole.workloads.training.settings import without_effect

        knobs = self._loop.knobs
        notes = {"peak": f"{knobs.get('precision', 'fp32')} {self._loop.task.dense_kind}"}
        for name, why in without_effect(knobs, self._loop.device).items():
            notes[NO_EFFECT + name] = why
            if knobs[name] != CATALOGUE[name].default and name not in self._noted:
                self._noted.add(name)
                self._channel.send(Note(now(), f"{name} {show(knobs[name])} has no effect: {why}"))
        self._channel.send(Started(now(), knobs, self._facts.under(knobs), notes))


def put_into(inbox: Inbox) -> Callable[[Command], None]:
    """A function that puts commands from the wire into `inbox`."""

    def put(command: Command) -> None:
        if not isinstance(command, QueryActivity):  # only the processes of a larger run answer it
            inbox.put(command)

    return put


def build(
    start: Start, scratch: Path, channel: WorkerChannel, world: World | None = None
) -> WorkloadLoop:
    """The loop of the workload in `start`, ready for its first step.

    Raises what goes wrong; DeviceError where torch cannot use the device.
    """
    world = world or World()
    import torch

    from gpuconsole.workloads.calibration.repeating import RepeatingLoop
    from gpuconsole.workloads.device import torch_device
    from gpuconsole.workloads.device_memory import set_up_allocator
    from gpuconsole.workloads.training.loop import TrainingLoop
    from gpuconsole.workloads.training.parallel import plan_for
    from gpuconsole.workloads.training.probes.catalog import probes_of

    channel.send(Progress(now(), "building", start.workload))
    set_up_allocator(start.knobs)
    device = torch_device(start.device, start.uuid, world)
    torch.manual_seed(start.seed)
    module = importlib.import_module(f"gpuconsole.workloads.{start.workload}")
    if hasattr(module, "create_work"):
        work = module.create_work(start.knobs, device, start.seed)
        return RepeatingLoop(work, start.knobs, device, scratch)
    plan = plan_for(start.knobs, world)
    task = module.create(start.knobs, device, start.seed + plan.replica)
    channel.send(Progress(now(), "warming", "first steps"))
    loop = TrainingLoop(task, start.knobs, device, scratch, plan)
    loop.probes = probes_of(loop)
    return loop


def warm_up(channel: WorkerChannel) -> None:
    """Import what every workload needs: torch, and torch._dynamo, which the first optimizer would
    import."""
    channel.send(Progress(now(), "importing", "torch"))
    with without_collections():
        import torch
        import torch.optim

        torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    channel.send(
        Progress(
            now(),
            "ready",
            torch.__version__ + (f" cuda {torch.version.cuda}" if torch.version.cuda else ""),
        )
    )


def failed(error: BaseException, knobs: Knobs, prefix: str = "") -> Failed:
    """The message that reports the end of the workload by `error`. An error with a plain message
    needs no traceback."""
    detail = (
        "" if isinstance(error, PlainError) else "".join(traceback.format_exception(error)[-6:])
    )
    return Failed(now(), prefix + explain(error, knobs), detail)


def run_worker(channel: WorkerChannel, inbox: Inbox, scratch: Path) -> int:
    """The worker's life. Returns its exit code; a failure has been reported to the console by
    then."""
    start: Any = None
    loop = None
    try:
        warm_up(channel)
        start = inbox.wait()
        if not isinstance(start, Start):
            return 0
        loop = build(start, scratch, channel)
        train(channel, inbox, loop, start)
    except ModuleNotFoundError as error:
        channel.send(Failed(now(), f"{error.name} is not installed: {install_command('torch')}"))
        return 1
    except Exception as error:
        # the last line of defence: the user sees whatever ended the workload
        channel.send(
            failed(error, loop.knobs if loop else start.knobs if isinstance(start, Start) else {})
        )
        return 1
    finally:
        if loop is not None:
            loop.close()
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description="worker process of gpuconsole; the console starts it"
    )
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    args = parser.parse_args()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the console handles Ctrl-C
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    process.set_variables(str(args.scratch))
    # torch takes all cores, and each of its compile processes imports torch: leave one core for the
    # rest
    os.environ.setdefault(
        "TORCHINDUCTOR_COMPILE_THREADS", str(max(1, min(8, (os.cpu_count() or 1) - 1)))
    )
    channel = ChildChannel(args.fd)
    inbox = Inbox()
    channel.listen(put_into(inbox), kill_own_group)
    channel.send(Hello(now(), "worker", os.getpid(), __version__, time.time()))
    code = run_worker(channel, inbox, args.scratch)
    channel.end(code)  # shutting down torch and the loader can take seconds and saves nothing


if __name__ == "__main__":
    main()
