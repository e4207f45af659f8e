"""The NVIDIA driver of this machine, for a message of a process of ours that cannot use the GPU. Nothing is read while a workload runs."""

from __future__ import annotations

import ctypes

from gpuconsole.model.torch_build import Driver

VERSION_BYTES = 80
"""NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE of nvml.h."""


def installed_driver() -> Driver:
    """The driver as NVML reports it; empty parts where there is no driver, or where it does not say."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return Driver()
        text, number = ctypes.create_string_buffer(VERSION_BYTES), ctypes.c_int()
        version = text.value.decode(errors="replace") if nvml.nvmlSystemGetDriverVersion(text, VERSION_BYTES) == 0 else ""
        cuda = number.value if nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(number)) == 0 else 0
    except (OSError, AttributeError):  # no library, or one without the call
        return Driver()
    return Driver(version, f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "")
