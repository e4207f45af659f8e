"""The NVIDIA driver of this machine, for a process of ours that starts or cannot start on a GPU.
Nothing is read while a workload runs."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from gpuconsole.host.torch_build import Driver

VERSION_BYTES = 80
"""NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE of nvml.h."""


class DeviceMemory(NamedTuple):
    """The memory of a GPU now."""

    total_bytes: int
    free_bytes: int


class _Memory(ctypes.Structure):
    """nvmlMemory_t, version 1."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def _nvml() -> ctypes.CDLL:
    """The library, initialised. Raises OSError."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    if nvml.nvmlInit_v2() != 0:
        raise OSError("NVML does not start")
    return nvml


def device_memory(index: int) -> DeviceMemory | None:
    """The memory of the GPU with NVML's number `index`; None where the driver does not say."""
    handle, memory = ctypes.c_void_p(), _Memory()
    try:
        nvml = _nvml()
        if nvml.nvmlDeviceGetHandleByIndex_v2(
            index, ctypes.byref(handle)
        ) or nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
            return None
    except (OSError, AttributeError):
        return None
    return DeviceMemory(memory.total, memory.free)


def installed_driver() -> Driver:
    """The driver as NVML reports it; empty parts where there is no driver, or where it does not
    say."""
    try:
        nvml = _nvml()
        text, number = ctypes.create_string_buffer(VERSION_BYTES), ctypes.c_int()
        version = (
            text.value.decode(errors="replace")
            if nvml.nvmlSystemGetDriverVersion(text, VERSION_BYTES) == 0
            else ""
        )
        cuda = (
            number.value if nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(number)) == 0 else 0
        )
    except (OSError, AttributeError):  # no library, or one without the call
        return Driver()
    return Driver(version, f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "")
