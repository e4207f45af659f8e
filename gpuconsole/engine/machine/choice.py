"""The choice of the device of a run, among the GPUs that the user's CUDA_VISIBLE_DEVICES leaves visible."""

from __future__ import annotations

import os
from collections.abc import Container, Sequence

from gpuconsole.model.machine import Device

VARIABLE = "CUDA_VISIBLE_DEVICES"


class DeviceChoiceError(ValueError):
    """The requested device does not exist or cannot be used; the message is one line."""


def choose_device(devices: Sequence[Device], wanted: str | None, lost: Container[str]) -> Device:
    """The device of a run in one process. See `choose_devices`."""
    return choose_devices(devices, wanted, lost)[0]


def choose_devices(devices: Sequence[Device], wanted: str | None, lost: Container[str], visible: str | None = None) -> list[Device]:
    """The device of a run, and after it the devices for further processes of the run. Raises DeviceChoiceError.

    Without a request the run uses the first visible GPU that is not lost, otherwise the CPU. `visible` is the value of
    CUDA_VISIBLE_DEVICES; None: as in the environment of this process.

    A GPU in MIG mode runs programs only on its slices. So its slices stand in its place, and a request for the GPU itself is refused.
    """
    present = list(devices) or [Device("cpu", "host CPU")]
    restriction = os.environ.get(VARIABLE) if visible is None else visible
    usable = visible_gpus(present, restriction)
    others = [device for device in usable if device.id not in lost]
    if wanted is None:
        return others or present[-1:]
    chosen = next((device for device in present if device.id == wanted), None)
    if chosen is None:
        raise DeviceChoiceError(f"there is no device {wanted!r}; there are: {', '.join(device.id for device in present)}")
    if not chosen.is_gpu:
        return [chosen]
    if slices := _slices(present, chosen):
        raise DeviceChoiceError(
            f"{wanted} is in MIG mode, and programs run on its slices: {', '.join(mig_slice.id for mig_slice in slices)}"
        )
    if chosen not in usable:
        raise DeviceChoiceError(f"{wanted} is hidden from CUDA programs by {VARIABLE}={restriction}")
    return [chosen, *(device for device in others if device is not chosen)]


def visible_gpus(devices: Sequence[Device], restriction: str | None) -> list[Device]:
    """The GPUs and MIG slices that a CUDA program sees, in its order.

    `restriction`: the value of CUDA_VISIBLE_DEVICES, None where it is not set. Its entries are indices in the order of the PCI bus, or the
    beginnings of uuids. CUDA ignores the first entry that names no device, and all entries after it (CUDA C programming guide,
    environment variables).
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
    """The value of CUDA_VISIBLE_DEVICES with which a program sees these GPUs, in this order; empty for a CPU."""
    gpus = [device for device in devices if device.is_gpu]
    if all(device.uuid for device in gpus):  # CUDA accepts no mixture of uuids and indices
        return ",".join(device.uuid for device in gpus)
    return ",".join(device.id.removeprefix("gpu:").partition("/")[0] for device in gpus)


def _slices(devices: Sequence[Device], gpu: Device) -> list[Device]:
    return [device for device in devices if device.is_mig and device.id.startswith(f"{gpu.id}/")]


def _named(devices: Sequence[Device], runnable: Sequence[Device], entry: str) -> Device | None:
    """The device that an entry of CUDA_VISIBLE_DEVICES names. An index or uuid of a GPU in MIG mode names its first slice."""
    for device in devices:
        if device.is_gpu and (device.id == f"gpu:{entry}" or (len(entry) > len("GPU-") and device.uuid.startswith(entry))):
            return next((candidate for candidate in runnable if candidate is device or candidate.id.startswith(f"{device.id}/")), None)
    return None
