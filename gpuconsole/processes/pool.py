"""Starts workers: a spare that has torch imported, several processes by torchrun, or a worker that starts a model server."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.scenario import Scenario
from gpuconsole.processes.torchrun import Launch
from gpuconsole.processes.worker import SERVING, TRAINING, WorkerHandle
from gpuconsole.wire.events import AnyEvent


class WorkerPool:
    """Starts workers, and keeps a spare worker ready that has torch imported.

    `on_exit` receives each worker that ends, except an unused spare, with its exit code. `note` receives lines for the user.
    """

    def __init__(self, nodes: Launch, on_exit: Callable[[WorkerHandle, int], None], note: Callable[[str], None]) -> None:
        self.nodes = nodes
        self.spare: WorkerHandle | None = None
        self._on_exit, self._note = on_exit, note

    async def warm(self) -> None:
        """Start the spare worker, if there is none."""
        if self.spare is None:
            self.spare = await self._launch()

    async def take(self, chosen: Scenario, knobs: Knobs) -> WorkerHandle:
        """A worker for a run of `chosen` with `knobs`; the spare where that will do."""
        if chosen.workload.serves:
            return await self._launch(module=SERVING)
        nproc = int(knobs.get("nproc", 1))
        if nproc > 1 or self.nodes.nnodes > 1:
            launch = msgspec.structs.replace(self.nodes, nproc=nproc)
            if launch.nnodes > 1:
                if launch.on_loopback:
                    self._note(f"{launch.host} is a loopback address: no other machine reaches it")
                self._note(f"waiting for the other machines; on each of them: {launch.on_other_nodes()}")
            return await self._launch(launch)
        await self.warm()
        worker, self.spare = self.spare, None
        return worker or await self._launch()

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
