"""Where workers come from: one that is warm already, several processes by torchrun, or one that keeps a model server."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.scenario import Scenario
from gpuconsole.processes.ranked import Launch
from gpuconsole.processes.worker import SERVING, TRAINING, WorkerHandle
from gpuconsole.wire.events import AnyEvent


class Workers:
    """Launches workers, and keeps one ready that has torch imported. `ended` hears of each that ends, `note` takes a line for people."""

    def __init__(self, nodes: Launch, ended: Callable[[WorkerHandle, int], None], note: Callable[[str], None]) -> None:
        self.nodes = nodes
        self.spare: WorkerHandle | None = None
        self._ended, self._note = ended, note

    async def warm(self) -> None:
        if self.spare is not None and not self.spare.alive and self.spare.failed is None:
            self.spare = None  # it died idle, and did not say why
        if self.spare is None:
            self.spare = await self._launch()

    async def take(self, chosen: Scenario, knobs: Knobs) -> WorkerHandle:
        """The worker for a run with `knobs`."""
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
        assert worker is not None
        return worker

    async def _launch(self, launch: Launch | None = None, module: str = TRAINING) -> WorkerHandle:
        worker = WorkerHandle(nobody, self._ended, launch, module)
        await worker.launch()
        return worker


def nobody(event: AnyEvent) -> None:
    """Listens for nobody: a spare worker's events concern no run."""
