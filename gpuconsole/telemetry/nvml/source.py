"""All NVIDIA GPUs of this machine as one source."""

from __future__ import annotations

from gpuconsole.model.device import Device
from gpuconsole.telemetry.nvml.facts import UNKNOWN_NAME
from gpuconsole.telemetry.nvml.gpu import GPU_METRICS, Gpu
from gpuconsole.telemetry.nvml.library import CallFailed, NoNvml, call, start
from gpuconsole.telemetry.source import Readings, Reasons
from gpuconsole.wire.events import DeviceLost, Sample


class NvmlSource:
    """GPUs in NVML's order. One that cannot be opened is listed all the same, with the reason for every metric."""

    def __init__(self) -> None:
        """Raises NoNvml, with the reason in one line, when there is no GPU to read."""
        count, self.driver = start()
        if count == 0:
            raise NoNvml("the NVIDIA driver reports no GPU")
        self._gpus: list[Gpu] = []
        self._closed: dict[str, CallFailed] = {}
        self._told_lost: set[str] = set()
        for index in range(count):
            self._open(index)

    def _open(self, index: int) -> None:
        try:
            self._gpus.append(Gpu(index, call("nvmlDeviceGetHandleByIndex", index)))
        except CallFailed as failure:
            self._closed[f"gpu:{index}"] = failure

    def devices(self) -> list[Device]:
        closed = [Device(id=device, name=UNKNOWN_NAME) for device in self._closed]
        return sorted([gpu.device for gpu in self._gpus] + closed, key=lambda device: int(device.id.removeprefix("gpu:")))

    def prime(self) -> None:
        for gpu in self._gpus:
            gpu.prime()

    def read(self, t: float) -> Readings:
        """One sample for each GPU that answers; a DeviceLost once for each that is lost."""
        readings: Readings = []
        for gpu in self._gpus:
            values = gpu.read()
            if values:
                readings.append(Sample(t=t, device=gpu.device.id, values=values))
        readings += [DeviceLost(t=t, device=device, reason=reason) for device, reason in self._losses() if device not in self._told_lost]
        self._told_lost.update(device for device, _ in self._losses())
        return readings

    def unavailable(self) -> Reasons:
        reasons = {gpu.device.id: gpu.reasons for gpu in self._gpus}
        closed = {device: dict.fromkeys(GPU_METRICS, str(failure)) for device, failure in self._closed.items()}
        return reasons | closed

    def _losses(self) -> list[tuple[str, str]]:
        opened = [(gpu.device.id, gpu.loss) for gpu in self._gpus if gpu.loss is not None]
        closed = [(device, str(failure)) for device, failure in self._closed.items() if failure.is_loss]
        return opened + closed
