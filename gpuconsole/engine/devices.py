"""The choice of devices for a run, and the room on a device for a second worker."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass

from gpuconsole.diagnosis.models.run_memory import CONTEXT_BYTES, PEAKS
from gpuconsole.engine.children.job import descendants
from gpuconsole.engine.children.worker import WorkerHandle
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device
from gpuconsole.model.run import Run
from gpuconsole.session.api import SessionError
from gpuconsole.session.freshness import reported_at
from gpuconsole.session.state import SessionState

VARIABLE = "CUDA_VISIBLE_DEVICES"


class DeviceChoiceError(ValueError):
    """The requested device does not exist or cannot be used; the message is one line."""


def choose_devices(
    devices: Sequence[Device], wanted: str | None, lost: Container[str], visible: str | None = None
) -> list[Device]:
    """The device of a run, and after it the devices for further processes of the run. Raises
    DeviceChoiceError.

    Without a request the run uses the first visible GPU that is not lost, otherwise the CPU.
    `visible` is the value of CUDA_VISIBLE_DEVICES; None: as in the environment of this process.

    A GPU in MIG mode runs programs only on its slices. So its slices stand in its place, and a
    request for the GPU itself is refused.
    """
    present = list(devices) or [Device("cpu", "host CPU")]
    restriction = os.environ.get(VARIABLE) if visible is None else visible
    usable = visible_gpus(present, restriction)
    others = [device for device in usable if device.id not in lost]
    if wanted is None:
        return others or present[-1:]
    chosen = next((device for device in present if device.id == wanted), None)
    if chosen is None:
        raise DeviceChoiceError(
            f"there is no device {wanted!r}; there are:"
            f" {', '.join(device.id for device in present)}"
        )
    if not chosen.is_gpu:
        return [chosen]
    if slices := _slices(present, chosen):
        raise DeviceChoiceError(
            f"{wanted} is in MIG mode, and programs run on its slices:"
            f" {', '.join(mig_slice.id for mig_slice in slices)}"
        )
    if chosen not in usable:
        raise DeviceChoiceError(
            f"{wanted} is hidden from CUDA programs by {VARIABLE}={restriction}"
        )
    return [chosen, *(device for device in others if device is not chosen)]


def visible_gpus(devices: Sequence[Device], restriction: str | None) -> list[Device]:
    """The GPUs and MIG slices that a CUDA program sees, in its order.

    `restriction`: the value of CUDA_VISIBLE_DEVICES, None where it is not set. Its entries are
    indices in the order of the PCI bus, or the beginnings of uuids. CUDA ignores the first entry
    that names no device, and all entries after it (CUDA C programming guide, environment
    variables).
    """
    runnable = [device for device in devices if device.is_gpu and not _slices(devices, device)]
    if restriction is None:
        return runnable
    chosen: list[Device] = []
    for entry in (part.strip() for part in restriction.split(",")):
        device = _named(devices, runnable, entry)
        if device is None or device in chosen:
            break
        chosen.append(device)
    return chosen


def cuda_names(devices: Sequence[Device]) -> str:
    """The value of CUDA_VISIBLE_DEVICES with which a program sees these GPUs, in this order; empty
    for a CPU."""
    gpus = [device for device in devices if device.is_gpu]
    if all(device.uuid for device in gpus):  # CUDA accepts no mixture of uuids and indices
        return ",".join(device.uuid for device in gpus)
    return ",".join(device.id.removeprefix("gpu:").partition("/")[0] for device in gpus)


def gpus_of_server(devices: Sequence[Device], knobs: Knobs) -> tuple[str, ...]:
    """Return the chosen `devices` that our own vLLM uses, if it splits its layers among several
    GPUs; empty for another workload."""
    count = int(knobs.get("tensor_parallel_size", 1)) if knobs.get("server") == "vllm" else 1
    return tuple(device.id for device in devices[:count] if device.is_gpu) if count > 1 else ()


def _slices(devices: Sequence[Device], gpu: Device) -> list[Device]:
    return [device for device in devices if device.is_mig and device.id.startswith(f"{gpu.id}/")]


def _named(devices: Sequence[Device], runnable: Sequence[Device], entry: str) -> Device | None:
    """The device that an entry of CUDA_VISIBLE_DEVICES names. An index or uuid of a GPU in MIG mode
    names its first slice."""
    for device in devices:
        if device.is_gpu and (
            device.id == f"gpu:{entry}"
            or (len(entry) > len("GPU-") and device.uuid.startswith(entry))
        ):
            return next(
                (
                    candidate
                    for candidate in runnable
                    if candidate is device or candidate.id.startswith(f"{device.id}/")
                ),
                None,
            )
    return None


SAMPLE_S = 3.0
"""Longest wait for a sample of the GPU's memory that is newer than the pause of the worker."""
AGAIN_S = 0.05


class ChosenDevices:
    """The user's choice among the devices that are known now. `wanted`: the device that the user
    named, if any."""

    def __init__(self, state: SessionState, wanted: str | None) -> None:
        self._state, self._wanted = state, wanted

    def first(self) -> Device:
        """The device of the next run: the device that the user named, else the first GPU, else the
        CPU. Raises SessionError."""
        return self._all()[0]

    def cuda_names(self, nproc: int) -> str:
        """CUDA_VISIBLE_DEVICES of a run in `nproc` processes; empty on a CPU. Raises
        SessionError."""
        return cuda_names(self._all()[:nproc])

    def of_server(self, knobs: Knobs) -> tuple[str, ...]:
        """See `gpus_of_server`. Raises SessionError."""
        return gpus_of_server(self._all(), knobs)

    def _all(self) -> list[Device]:
        try:
            return choose_devices(self._state.devices, self._wanted, self._state.lost)
        except DeviceChoiceError as error:
            raise SessionError(str(error)) from None


MEMORY_LACKS = (
    "out of memory",
    "does not fit on gpu:",
    "less than desired GPU memory utilization",
    "No available memory for the cache blocks",
)
"""What torch, our serving worker and vLLM (vllm/v1/worker/utils.py, vllm/v1/core/kv_cache_utils.py)
say where the memory of the GPU is not enough."""


def lacks_memory(cause: str) -> bool:
    """Whether a worker has failed because the memory of the GPU is not enough."""
    return any(text in cause for text in MEMORY_LACKS)


def needed_bytes(run: Run, knobs: Knobs) -> float | None:
    """Memory that the workload of `run` needs with `knobs`: the model's figure, corrected by what
    the run itself used. None without a model."""
    model = PEAKS.get(run.workload)
    changed, present = (model(knobs), model(run.knobs)) if model is not None else (None, None)
    if not changed or not present or not run.summary.memory_peak_bytes:
        return None
    return changed * run.summary.memory_peak_bytes / present + CONTEXT_BYTES


@dataclass(frozen=True)
class SecondaryRoom:
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
        if self.worker.pid is not None:
            # a model server is a child of the worker
            pids |= {process.pid for process in descendants(self.worker.pid)}
        held = sum(
            process.memory_bytes or 0
            for process in self.state.processes
            if process.pid in pids and process.device == device
        )
        amount = f"{held / 1e9:.1f} GB" if held else "memory"
        return f"the paused process of this run (pid {self.worker.pid}) holds {amount} of {device}"

    async def missing_room(self, knobs: Knobs) -> str:
        """Why a second worker with `knobs` does not fit beside the paused worker; empty if it fits,
        or if its need is not known."""
        device = next(
            (device for device in self.state.devices if device.id == self.run.device), None
        )
        if self.run.device == "cpu" or device is None or not device.memory_bytes:
            return ""
        needed = needed_bytes(self.run, knobs)
        if needed is None:
            return ""
        paused, deadline = self.state.session_time(time.monotonic()), time.monotonic() + SAMPLE_S
        while (
            reported_at(self.state, self.run.device) or 0.0
        ) <= paused and time.monotonic() < deadline:
            await asyncio.sleep(AGAIN_S)
        memory = self.state.memory_used(self.run.device)
        if memory is None or needed <= memory[1] - memory[0]:
            return ""
        return (
            f"the second process of this trial needs about {needed / 1e9:.1f} GB, and"
            f" {self.run.device} has {(memory[1] - memory[0]) / 1e9:.1f} GB free:"
            f" {self.paused_text()}. Start a run of its own with the change (--set)"
        )
