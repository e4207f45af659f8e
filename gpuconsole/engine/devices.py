"""The devices of the next run, and the room on a device for a second worker."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from gpuconsole.diagnosis.expected.card import CONTEXT_BYTES, Card
from gpuconsole.diagnosis.expected.check import WORKS
from gpuconsole.engine.children.worker import WorkerHandle
from gpuconsole.engine.machine.choice import DeviceChoiceError, choose_devices, cuda_names
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device
from gpuconsole.model.run import Run
from gpuconsole.session.api import SessionError
from gpuconsole.session.freshness import reported_at
from gpuconsole.session.state import SessionState

SAMPLE_S = 3.0
"""Longest wait for a sample of the GPU's memory that is newer than the pause of the worker."""
AGAIN_S = 0.05


class ChosenDevices:
    """The user's choice among the devices that are known now. `wanted`: the device that the user named, if any."""

    def __init__(self, state: SessionState, wanted: str | None) -> None:
        self._state, self._wanted = state, wanted

    def first(self) -> Device:
        """The device of the next run: the device that the user named, else the first GPU, else the CPU. Raises SessionError."""
        return self._all()[0]

    def cuda_names(self, nproc: int) -> str:
        """CUDA_VISIBLE_DEVICES of a run in `nproc` processes; empty on a CPU. Raises SessionError."""
        return cuda_names(self._all()[:nproc])

    def _all(self) -> list[Device]:
        try:
            return choose_devices(self._state.devices, self._wanted, self._state.lost)
        except DeviceChoiceError as error:
            raise SessionError(str(error)) from None


def needed_bytes(run: Run, knobs: Knobs, card: Card) -> float | None:
    """Memory that the workload of `run` needs with `knobs`: the model's figure, corrected by what the run itself used. None without a model."""
    model = WORKS.get(run.workload)
    changed, present = (model(values, card) for values in (knobs, run.knobs)) if model is not None else (None, None)
    if changed is None or present is None or not run.summary.memory_peak_bytes:
        return None
    return changed.memory_bytes * run.summary.memory_peak_bytes / present.memory_bytes + CONTEXT_BYTES


@dataclass(frozen=True)
class RoomBeside:
    """The room on a GPU for the second worker of a trial, beside the paused `worker` of `run`."""

    state: SessionState
    run: Run
    worker: WorkerHandle

    def paused_text(self) -> str:
        """What the paused worker holds on the GPU of `run`, for people; empty on a CPU."""
        device = self.run.device
        if device == "cpu":
            return ""
        pids = {self.worker.pid, *(rank.pid for rank in self.worker.joined)}
        held = sum(process.memory_bytes or 0 for process in self.state.processes if process.pid in pids and process.device == device)
        amount = f"{held / 1e9:.1f} GB" if held else "memory"
        return f"the paused process of this run (pid {self.worker.pid}) holds {amount} of {device}"

    async def missing_room(self, knobs: Knobs) -> str:
        """Why a second worker with `knobs` does not fit beside the paused worker; empty if it fits, or if its need is not known."""
        device = next((device for device in self.state.devices if device.id == self.run.device), None)
        if self.run.device == "cpu" or device is None or not device.memory_bytes:
            return ""
        needed = needed_bytes(self.run, knobs, Card(device.name, device.memory_bytes, device.peaks))
        if needed is None:
            return ""
        paused, deadline = self.state.session_time(time.monotonic()), time.monotonic() + SAMPLE_S
        while (reported_at(self.state, self.run.device) or 0.0) <= paused and time.monotonic() < deadline:
            await asyncio.sleep(AGAIN_S)
        memory = self.state.memory_used(self.run.device)
        if memory is None or needed <= memory[1] - memory[0]:
            return ""
        return (
            f"the second process of this trial needs about {needed / 1e9:.1f} GB, and {self.run.device} has {(memory[1] - memory[0]) / 1e9:.1f} GB free: "
            f"{self.paused_text()}. Start a run of its own with the change (--set)"
        )
