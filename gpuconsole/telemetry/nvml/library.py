"""Access to NVML: every call goes through `call`, and every failure becomes a CallFailed with a
readable reason."""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections import deque
from functools import cache
from typing import Any

import pynvml

from gpuconsole.model.machine import NO_DRIVER

UNINITIALIZED = 1
NOT_SUPPORTED = 3
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
VERSION_CHANGED = 18
ARGUMENT_VERSION_MISMATCH = 25

DRIVER_GONE = (UNINITIALIZED, DRIVER_NOT_LOADED, VERSION_CHANGED)
"""Return codes of calls after the driver was unloaded or replaced."""

# Texts for nvmlReturn_t. The numbers are NVML's ABI, so an older binding without a name still gets
# the text.
_REASONS = {
    1: "NVML is not initialised",
    2: "the driver refuses the call (invalid argument)",
    NOT_SUPPORTED: "not supported on this device",
    4: "no permission",
    5: "NVML is already initialised",
    6: "not found by the driver",
    7: "the buffer of the call is too small",
    8: "the external power cables are not attached",
    9: "the NVIDIA kernel driver is not loaded",
    10: "the driver timed out",
    11: "the kernel has an interrupt problem with this GPU",
    12: "the NVIDIA driver library is missing",
    FUNCTION_NOT_FOUND: "this driver is too old for the call",
    14: "the GPU's infoROM is corrupted",
    GPU_IS_LOST: "GPU is lost",
    RESET_REQUIRED: "GPU needs a reset",
    17: "blocked by the operating system or a cgroup",
    VERSION_CHANGED: "the driver and its library have different versions",
    19: "in use by another process",
    20: "the driver is out of memory",
    21: "the driver has no data",
    23: "the driver is out of resources",
    25: "the driver does not support this version of the call",
    26: "removed from this driver",
    27: "not ready yet",
    28: "GPU not found by the driver",
    29: "the state of the GPU does not allow the call",
    999: "unknown driver error",
}

# Reasons why NVML as a whole cannot be used, with a remedy.
_START_REASONS = {
    4: "no permission to use the NVIDIA driver (/dev/nvidiactl)",
    9: "the NVIDIA kernel driver is not loaded",
    12: NO_DRIVER,
    FUNCTION_NOT_FOUND: (
        "the NVIDIA driver is too old: libnvidia-ml.so.1 lacks a call that is needed"
    ),
    VERSION_CHANGED: (
        "the NVIDIA kernel driver and libnvidia-ml.so.1 have different versions: reboot, or reload"
        " the driver"
    ),
}


NOTED_S = 0.002
"""Shorter calls are not noted: they cost nothing."""
TOO_LATE = "not asked for: the driver is slow"


class NoNvml(Exception):
    """NVML cannot be used; the message is one line for the user."""


class CallFailed(Exception):
    """One NVML call failed with nvmlReturn_t `code`; the message is one line for the user."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(reason or reason_for(code))
        self.code = code

    @property
    def is_permanent(self) -> bool:
        """Whether a repeated call cannot succeed."""
        return self.code == NOT_SUPPORTED

    @property
    def is_loss(self) -> bool:
        """Whether the whole GPU is lost until a reset."""
        return self.code in (GPU_IS_LOST, RESET_REQUIRED)


class Meter:
    """Measures calls: how long they take, which call of each GPU has not returned, and the longest
    call of a GPU since `begin_turn`.

    Each thread that calls NVML sets `device` for itself. Other threads may ask. `suspects_driver`:
    a call failed with a code that a missing driver gives.
    """

    RECENT = 5

    def __init__(self) -> None:
        self.suspects_driver = False
        self.calls = 0
        self._thread = threading.local()
        self._under_way: dict[int, tuple[str, str, float]] = {}
        """For each thread: the GPU, the call and its begin."""
        self._longest: dict[str, tuple[float, str]] = {}
        self._recent: dict[tuple[str, str], deque[float]] = {}
        """By GPU and call, of calls that have taken NOTED_S once."""

    @property
    def device(self) -> str:
        """The device of this thread's calls; empty for calls about the whole machine."""
        return getattr(self._thread, "device", "")

    @device.setter
    def device(self, device: str) -> None:
        self._thread.device, self._thread.gpu = device, parent_of(device)

    @property
    def _gpu(self) -> str:
        """The GPU of `device`."""
        return getattr(self._thread, "gpu", "")

    def begin_turn(self, device: str, limit_s: float = math.inf) -> None:
        """Forget the longest call of a GPU, and let this thread's calls count for the GPU. Calls
        that this thread begins after `limit_s` seconds fail at once."""
        self.device = device
        self._thread.limit = time.monotonic() + limit_s
        self._longest.pop(device, None)

    def is_over(self) -> bool:
        """Return whether the turn of this thread is over its limit."""
        return time.monotonic() > getattr(self._thread, "limit", math.inf)

    def begin(self, name: str) -> float:
        """Note that a call begins. Raises CallFailed where the turn is over its limit."""
        if self.is_over():
            raise CallFailed(-1, TOO_LATE)
        now = time.monotonic()
        self._under_way[threading.get_ident()] = (self._gpu, name, now)
        self.calls += 1
        return now

    def end(self, name: str, began: float) -> None:
        took_s, gpu = time.monotonic() - began, self._gpu
        self._under_way.pop(threading.get_ident(), None)
        if took_s > self._longest.get(gpu, (0.0, ""))[0]:
            self._longest[gpu] = (took_s, name)
        key = gpu, name
        if key in self._recent:
            self._recent[key].append(took_s)
        elif took_s >= NOTED_S:
            self._recent[key] = deque([took_s], maxlen=self.RECENT)

    def longest(self, device: str) -> tuple[float, str]:
        """Return the longest call of a GPU since `begin_turn`: seconds and name."""
        return self._longest.get(device, (0.0, ""))

    def typical_s(self, device: str, name: str) -> float:
        """The median of the last few durations of a call about a GPU, in seconds, so that one slow
        call does not count. 0: no call has been slow."""
        recent = self._recent.get((parent_of(device), name))
        return sorted(recent.copy())[len(recent) // 2] if recent else 0.0

    def under_way(self, device: str = "") -> tuple[str, float]:
        """Return the call of a GPU, or of the whole machine, that has not returned yet, and when it
        began. An empty name: no call."""
        calls = [call for call in self._under_way.copy().values() if call[0] == device]
        _, name, since = min(calls, key=lambda call: call[2], default=("", "", 0.0))
        return name, since


def parent_of(device: str) -> str:
    """Return the GPU of a MIG slice or link."""
    return device.partition("/")[0]


meter = Meter()


member = ctypes.Structure.__getattribute__
"""Reads a member of a binding structure directly. The structure's own attribute access decodes text
and is four times slower."""


def reason_for(code: int) -> str:
    return _REASONS.get(code, f"NVML error {code}")


def call(name: str, *arguments: Any) -> Any:
    """The result of the binding's function `name`. Raises CallFailed for every NVML failure."""
    function = getattr(pynvml, name, None)
    if function is None:
        raise CallFailed(FUNCTION_NOT_FOUND, f"the installed nvidia-ml-py lacks {name}")
    began = meter.begin(name)
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        meter.suspects_driver |= int(error.value) in DRIVER_GONE
        raise CallFailed(int(error.value)) from None
    except pynvml.NVMLLibraryMismatchError:
        # raised by the binding: it supports only a newer version of the call
        raise CallFailed(FUNCTION_NOT_FOUND) from None
    except UnicodeDecodeError:  # the binding decodes names with strict UTF-8
        raise CallFailed(999, "the driver's text is not UTF-8") from None
    finally:
        meter.end(name, began)


def start() -> tuple[int, str | None]:
    """Load and initialise NVML. Returns the number of GPUs, and the driver version if reported.
    Raises NoNvml."""
    driver_version.cache_clear()
    try:
        call("nvmlInit")
        count = int(call("nvmlDeviceGetCount"))
    except CallFailed as failure:
        raise NoNvml(_START_REASONS.get(failure.code, f"NVML does not start: {failure}")) from None
    return count, driver_version()


@cache
def driver_version() -> str | None:
    """Return the version of the driver; None where the driver does not tell it. Another version
    needs another process: see `DriverGone`."""
    try:
        return str(call("nvmlSystemGetDriverVersion"))
    except CallFailed:
        return None  # only shown, so a failure is ignored


def driver_is_at_least(*version: int) -> bool:
    """Whether the driver has `version` (such as 580, 82) or a newer version. An unknown version
    counts as new."""
    parts = tuple(int(part) for part in (driver_version() or "").split(".") if part.isdigit())
    return not parts or parts >= version


def cuda_version() -> str:
    """The newest CUDA version that the driver supports, as `13.0`; empty when not reported."""
    try:
        version = int(call("nvmlSystemGetCudaDriverVersion_v2"))
    except CallFailed:
        return ""
    return f"{version // 1000}.{version % 1000 // 10}"
