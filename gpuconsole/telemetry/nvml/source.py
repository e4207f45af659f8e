"""All NVIDIA GPUs of this machine as one source."""

from __future__ import annotations

import time

from gpuconsole.model.machine import Device, Process
from gpuconsole.telemetry.nvml.calls import SlowCalls
from gpuconsole.telemetry.nvml.facts import UNKNOWN_NAME, fact
from gpuconsole.telemetry.nvml.gpu import (
    GPU_METRICS,
    Gpu,
    MigSlice,
    links_between,
    mig_layout,
    mig_slices,
)
from gpuconsole.telemetry.nvml.library import CallFailed, NoNvml, call, cuda_version, meter, start
from gpuconsole.telemetry.nvml.processes import ProcessDetails, processes_of
from gpuconsole.telemetry.nvml.xid import XidWatch
from gpuconsole.telemetry.source import DriverGone, Readings, Reasons
from gpuconsole.wire.events import DeviceLost, Processes, Sample, Topology

PROCESSES_S = 2.0
CHECK_S = 5.0
MAX_LOOK_S = 600.0


class NvmlSource:
    """GPUs in NVML's order, each followed by its MIG slices. A GPU that cannot be opened is listed
    with the reason."""

    name = "nvml"

    def __init__(self, interval_s: float = 1.0) -> None:
        """Raises NoNvml with a one-line reason when there is no GPU."""
        self._count, self.driver = start()
        self.cuda = cuda_version()
        if self._count == 0:
            raise NoNvml("the NVIDIA driver reports no GPU")
        meter.suspects_driver = False
        self._slow_calls = SlowCalls(meter, interval_s)
        self._gpus: list[Gpu] = []
        self._closed: dict[str, CallFailed] = {}
        self._told_lost: set[str] = set()
        self._worked: set[str] = set()
        """GPUs without a valid handle here that worked at the last look."""
        self._look_s, self._look_t = CHECK_S, 0.0
        for index in range(self._count):
            self._open(index)
        self._slices: list[MigSlice] = [
            mig_slice for gpu in self._gpus for mig_slice in mig_slices(gpu)
        ]
        self._mig = mig_layout(self._gpus)
        self._xids = XidWatch({gpu.device.id: gpu.handle for gpu in self._gpus})
        self._details = ProcessDetails()
        self._nvlinks_sent: list[int | None] | None = None
        self._link_reasons: Reasons = {}
        self._processes_t = float("-inf")
        self._checked_t = time.monotonic()

    def _open(self, index: int) -> None:
        device = f"gpu:{index}"
        meter.device = device
        try:
            self._gpus.append(
                Gpu(device, call("nvmlDeviceGetHandleByIndex", index), self._slow_calls.may_ask)
            )
        except CallFailed as failure:
            self._closed[device] = failure

    def devices(self) -> list[Device]:
        by_id = {gpu.device.id: [gpu.device] for gpu in self._gpus}
        by_id |= {device: [Device(id=device, name=UNKNOWN_NAME)] for device in self._closed}
        for mig_slice in self._slices:
            by_id[mig_slice.whole.device.id].append(mig_slice.device)
        return [device for index in range(self._count) for device in by_id[f"gpu:{index}"]]

    def prime(self) -> None:
        for gpu in self._gpus:
            gpu.prime()
        for mig_slice in self._slices:
            mig_slice.read()

    def read(self, t: float) -> Readings:
        """One sample for each GPU that answers, one DeviceLost for each lost GPU, and sometimes
        topology, processes and XID errors.

        Raises DriverGone when the driver has been unloaded or replaced, or the number of GPUs has
        changed.
        """
        self._slow_calls.begin_round()
        xids = self._xids.read(t, {gpu.device.id for gpu in self._gpus if gpu.loss is not None})
        processes = self._processes(t) if t - self._processes_t >= PROCESSES_S else None
        readings: Readings = []
        for gpu in self._gpus:
            values = gpu.read()
            if gpu.loss is None:
                self._add_counts(gpu, processes, values)
            if gpu.loss is None:
                readings.append(Sample(t, gpu.device.id, values, gpu.substitutes))
                readings += self._links_of(gpu, t)
        readings += [
            Sample(t, mig_slice.device.id, values)
            for mig_slice in self._slices
            if (values := mig_slice.read())
        ]
        readings += xids
        if processes is not None:
            self._processes_t = t
            readings.append(processes)
        nvlinks = [gpu.nvlinks for gpu in self._gpus]
        if nvlinks != self._nvlinks_sent:  # links become active after the driver
            self._nvlinks_sent = nvlinks
            readings.append(Topology(t, links_between(self._gpus)))
        readings += [
            DeviceLost(t=t, device=device, reason=reason)
            for device, reason in self._losses()
            if device not in self._told_lost
        ]
        self._told_lost.update(device for device, _ in self._losses())
        self._check_driver()
        return readings

    def unavailable(self) -> Reasons:
        reasons: Reasons = {gpu.device.id: gpu.reasons for gpu in self._gpus}
        reasons |= {mig_slice.device.id: mig_slice.reasons for mig_slice in self._slices}
        reasons |= {
            device: dict.fromkeys(GPU_METRICS, str(failure))
            for device, failure in self._closed.items()
        }
        return reasons | self._link_reasons

    def slow(self) -> str:
        """A description of calls that are too slow for every round; empty when there are none."""
        return self._slow_calls.words()

    def under_way(self) -> str:
        """A description of the driver call that has not returned yet."""
        return meter.under_way()

    def _links_of(self, gpu: Gpu, t: float) -> list[Sample]:
        """Values of the links, if they are read in this round."""
        links, gpu.links = gpu.links, []
        samples = []
        for link, (values, reasons) in enumerate(links):
            device = f"{gpu.device.id}/link:{link}"
            self._link_reasons[device] = reasons
            samples.append(Sample(t, device, values))
        return samples

    def _add_counts(self, gpu: Gpu, processes: Processes | None, values: dict[str, float]) -> None:
        """The metrics that count the driver's reports: errors and processes."""
        device = gpu.device.id
        refusal = self._xids.refusals.get(device)
        if refusal is None:
            values["gpu.xid_errors"] = float(self._xids.counts[device])
            gpu.reasons.pop("gpu.xid_errors", None)
        else:
            gpu.refuse("gpu.xid_errors", refusal)
        if gpu.loss is None and processes is not None and device not in processes.reasons:
            of_gpu = [
                process
                for process in processes.processes
                if process.device.partition("/")[0] == device
            ]
            values["gpu.processes"] = float(len(of_gpu))
            gpu.reasons.pop("gpu.processes", None)
            gpu.add_processes(of_gpu, values)

    def _processes(self, t: float) -> Processes:
        processes: list[Process] = []
        reasons = {}
        for gpu in self._gpus:
            device = gpu.device.id
            slices = {
                mig_slice.instance: mig_slice.device.id
                for mig_slice in self._slices
                if mig_slice.whole is gpu and mig_slice.instance is not None
            }
            if gpu.loss is not None:
                reasons[device] = gpu.loss
                continue
            meter.device = device
            try:
                of_gpu, gap = processes_of(
                    device,
                    gpu.handle,
                    slices,
                    0 if gpu.device.is_unified else gpu.device.memory_bytes,
                )
            except CallFailed as loss:
                of_gpu, gap = [], loss
            processes += of_gpu
            if gap is not None:
                reasons[device] = str(gap)
                gpu.note(gap, "gpu.processes")
        return Processes(t, self._details.complete(processes), reasons)

    def _check_driver(self) -> None:
        """Check the driver; raises DriverGone. The check runs at once after a suspicious failure,
        otherwise at intervals."""
        now = time.monotonic()
        if not meter.suspects_driver and now - self._checked_t < CHECK_S:
            return
        self._checked_t, meter.device = now, ""
        try:
            count = int(call("nvmlDeviceGetCount"))
        except CallFailed as failure:
            raise DriverGone(str(failure)) from None
        finally:
            meter.suspects_driver = False
        if count != self._count:
            raise DriverGone(f"the number of GPUs went from {self._count} to {count}")
        self._look_for_returned()
        alive = [gpu for gpu in self._gpus if gpu.loss is None]
        if mig_layout(alive) != {
            gpu.device.id: self._mig[gpu.device.id] for gpu in alive if gpu.device.id in self._mig
        }:
            raise DriverGone("the MIG slices have changed")

    def _look_for_returned(self) -> None:
        """Raises DriverGone when a GPU that was lost, or had no handle, works again twice in a row:
        its old handle stays invalid after a reset."""
        if time.monotonic() < self._look_t:
            return
        dead = [gpu.device.id for gpu in self._gpus if gpu.loss is not None] + [*self._closed]
        working = {device for device in dead if self._works(device)}
        if both := sorted(working & self._worked):
            raise DriverGone(f"{both[0]} answers again")
        self._worked = working

    def _works(self, device: str) -> bool:
        """Whether a GPU gives a new handle, and no call through it says that the GPU is lost. Where
        one does, the next look is twice as late."""
        meter.device = device
        handle = fact("nvmlDeviceGetHandleByIndex", int(device.removeprefix("gpu:")))
        if handle is None:
            return False
        gpu = Gpu(device, handle, self._slow_calls.may_ask)
        gpu.prime()
        values = gpu.read()
        try:
            processes_of(device, handle, {})
        except CallFailed:
            values = {}
        if not values:
            self._look_s = min(2 * self._look_s, MAX_LOOK_S)
            self._look_t = time.monotonic() + self._look_s
        return bool(values)

    def _losses(self) -> list[tuple[str, str]]:
        opened = [(gpu.device.id, gpu.loss) for gpu in self._gpus if gpu.loss is not None]
        closed = [
            (device, str(failure)) for device, failure in self._closed.items() if failure.is_loss
        ]
        slices = [
            (mig_slice.device.id, mig_slice.whole.loss)
            for mig_slice in self._slices
            if mig_slice.whole.loss is not None
        ]
        return opened + closed + slices
