"""Starts workers: a spare that has torch imported, several processes by torchrun, or a worker that
starts a model server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from gpuconsole.engine.children.job import JobCommand
from gpuconsole.engine.children.torchrun import Launch
from gpuconsole.engine.children.worker import SERVING, TRAINING, WorkerHandle
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.scenario import Scenario
from gpuconsole.wire.events import AnyEvent

SPARE_S = 60.0


class DeviceSelection(Protocol):
    """The choice of devices."""

    def cuda_names(self, nproc: int) -> str:
        """CUDA_VISIBLE_DEVICES of a run in `nproc` processes; empty on a CPU."""
        ...

    def of_server(self, knobs: Knobs) -> tuple[str, ...]:
        """The GPUs of a model server that uses several; empty for one."""
        ...


class WorkerPool:
    """Starts workers, and keeps a spare worker ready that has torch imported.

    The spare worker costs some 300 MB. It stays while there is a reason for it, and `spare_s`
    seconds longer. `on_exit` receives each worker that ends, except an unused spare, with its exit
    code. `note` receives lines for the user.
    """

    def __init__(
        self,
        nodes: Launch,
        on_exit: Callable[[WorkerHandle, int], None],
        note: Callable[[str], None],
        spare_s: float = SPARE_S,
    ) -> None:
        self.nodes = nodes
        self.spare: WorkerHandle | None = None
        self._on_exit, self._note, self._spare_s = on_exit, note, spare_s
        self._reasons: set[str] = set()
        self._ending: asyncio.TimerHandle | None = None
        self._warming = asyncio.Lock()

    async def warm(self, reason: str) -> None:
        """Start the spare worker, if there is none, and hold it for `reason`."""
        self.hold(reason)
        async with self._warming:
            if self.spare is None:
                self.spare = await self._launch()

    def hold(self, reason: str) -> None:
        """Keep the spare worker until `reason` is released; none is started."""
        self._reasons.add(reason)
        self._cancel_ending()

    def release(self, reason: str) -> None:
        """When no reason is left, the spare worker ends after `spare_s` seconds."""
        self._reasons.discard(reason)
        self._cancel_ending()
        if not self._reasons:
            self._ending = asyncio.get_running_loop().call_later(self._spare_s, self._end_spare)

    def close(self) -> None:
        """Kill the spare worker."""
        self._cancel_ending()
        self._end_spare()

    def _cancel_ending(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None

    def _end_spare(self) -> None:
        spare, self.spare = self.spare, None
        if spare is not None:
            spare.kill()

    async def take(
        self, chosen: Scenario, knobs: Knobs, devices: DeviceSelection | None = None
    ) -> WorkerHandle:
        """A worker for a run of `chosen` with `knobs`; the spare where that will do. `devices`
        chooses the GPUs of several processes."""
        if chosen.workload.serves:
            return await self._launch(module=SERVING)
        nproc = int(knobs.get("nproc", 1))
        if nproc > 1 or self.nodes.nnodes > 1:
            launch = msgspec.structs.replace(
                self.nodes, nproc=nproc, cuda_devices=devices.cuda_names(nproc) if devices else ""
            )
            if launch.nnodes > 1:
                self._note(f"start the processes on each other machine: {launch.on_other_nodes()}")
            return await self._launch(launch)
        worker, self.spare = self.spare, None
        return worker or await self._launch()

    async def start_job(self, command: JobCommand) -> WorkerHandle:
        """Start the user's own command. Raises OSError."""
        worker = WorkerHandle(ignore, self._ended, job=command)
        await worker.launch()
        return worker

    async def _launch(self, launch: Launch | None = None, module: str = TRAINING) -> WorkerHandle:
        worker = WorkerHandle(ignore, self._ended, launch, module)
        await worker.launch()
        return worker

    def _ended(self, worker: WorkerHandle, code: int) -> None:
        if worker is self.spare:
            self.spare = None
        else:
            self._on_exit(worker, code)


def ignore(event: AnyEvent) -> None:
    """The listener of a worker that belongs to no run."""
