"""The one door to NVML: every call goes through `call`, and every failure comes out as a CallFailed with a reason for people."""

from __future__ import annotations

import ctypes
import time
from collections import deque
from statistics import median
from typing import Any

import pynvml

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
"""What calls return once the driver was unloaded or replaced under us."""

# nvmlReturn_t in words. The numbers are NVML's ABI, so an older binding that lacks a name still gets its text.
_REASONS = {
    1: "NVML is not initialised",
    2: "the driver refuses the call (invalid argument)",
    NOT_SUPPORTED: "not supported on this device",
    4: "no permission",
    5: "NVML is already initialised",
    6: "not found by the driver",
    7: "the driver has more to say than the call takes",
    8: "the external power cables are not attached",
    9: "the NVIDIA kernel driver is not loaded",
    10: "the driver timed out",
    11: "the kernel has an interrupt problem with this GPU",
    12: "the NVIDIA driver library is missing",
    FUNCTION_NOT_FOUND: "this driver is too old for it",
    14: "the GPU's infoROM is corrupted",
    GPU_IS_LOST: "GPU is lost",
    RESET_REQUIRED: "GPU needs a reset",
    17: "blocked by the operating system or a cgroup",
    VERSION_CHANGED: "the driver and its library have different versions",
    19: "in use by another process",
    20: "the driver is out of memory",
    21: "the driver has no data",
    23: "the driver is out of resources",
    25: "the driver does not know this version of the call",
    26: "removed from this driver",
    27: "not ready yet",
    28: "GPU not found by the driver",
    29: "the GPU is in a state that does not allow it",
    999: "unknown driver error",
}

# Why NVML as a whole cannot be used, with what to do about it.
_START_REASONS = {
    4: "no permission to use the NVIDIA driver (/dev/nvidiactl)",
    9: "the NVIDIA kernel driver is not loaded",
    12: "no NVIDIA driver: libnvidia-ml.so.1 is missing or cannot be loaded",
    FUNCTION_NOT_FOUND: "the NVIDIA driver is too old: libnvidia-ml.so.1 lacks a call that is needed",
    VERSION_CHANGED: "the NVIDIA kernel driver and libnvidia-ml.so.1 have different versions: reboot, or reload the driver",
}


class NoNvml(Exception):
    """NVML cannot be used at all; the message is one line for people."""


class CallFailed(Exception):
    """One NVML call failed with nvmlReturn_t `code`; the message is one line for people."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(reason or reason_for(code))
        self.code = code

    @property
    def is_permanent(self) -> bool:
        """Whether asking again is pointless."""
        return self.code == NOT_SUPPORTED

    @property
    def is_loss(self) -> bool:
        """Whether the whole GPU is gone until somebody resets it."""
        return self.code in (GPU_IS_LOST, RESET_REQUIRED)


class Meter:
    """What calls cost, and the one that is under way: for pacing slow calls, and for naming one that hangs.

    Written by the thread that calls NVML, read by the one that watches it. `suspects_driver`: a call failed as it would with no driver.
    """

    RECENT = 5

    def __init__(self) -> None:
        self.device = ""
        self.current = ""
        self.since = 0.0
        self.calls = 0
        self.suspects_driver = False
        self._recent: dict[str, deque[float]] = {}

    def begin(self, name: str) -> None:
        self.current, self.since = name, time.monotonic()
        self.calls += 1

    def end(self) -> None:
        self._recent.setdefault(self.current, deque(maxlen=self.RECENT)).append(time.monotonic() - self.since)
        self.current = ""

    def typical_s(self, name: str) -> float:
        """The median of the last few: one hiccup makes no call a slow one. 0: never called."""
        recent = self._recent.get(name)
        return median(recent) if recent else 0.0

    def typical(self) -> dict[str, float]:
        return {name: median(recent) for name, recent in self._recent.items()}

    def under_way(self) -> str:
        """The call that has not returned yet, in words."""
        return f"{self.current} of {self.device}" if self.current and self.device else self.current


meter = Meter()


member = ctypes.Structure.__getattribute__
"""Reads a member of one of the binding's structures as it is. The structures' own way decodes text, and is four times as slow."""


def reason_for(code: int) -> str:
    return _REASONS.get(code, f"NVML error {code}")


def call(name: str, *arguments: Any) -> Any:
    """The result of the binding's function `name`. Raises CallFailed, and nothing else that NVML causes."""
    function = getattr(pynvml, name, None)
    if function is None:
        raise CallFailed(FUNCTION_NOT_FOUND, f"the installed nvidia-ml-py lacks {name}")
    meter.begin(name)
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        meter.suspects_driver |= int(error.value) in DRIVER_GONE
        raise CallFailed(int(error.value)) from None
    except pynvml.NVMLLibraryMismatchError:  # the binding's own: it knows only a newer version of the call
        raise CallFailed(FUNCTION_NOT_FOUND) from None
    except UnicodeDecodeError:  # the binding decodes names strictly
        raise CallFailed(999, "the driver's text is not UTF-8") from None
    finally:
        meter.end()


def start() -> tuple[int, str | None]:
    """Load and initialise NVML: the number of GPUs, and the driver's version where it says it. Raises NoNvml."""
    try:
        call("nvmlInit")
        count = int(call("nvmlDeviceGetCount"))
    except CallFailed as failure:
        raise NoNvml(_START_REASONS.get(failure.code, f"NVML does not start: {failure}")) from None
    return count, driver_version()


def driver_version() -> str | None:
    try:
        return str(call("nvmlSystemGetDriverVersion"))
    except CallFailed:
        return None  # a fact to show, not one to fail on


def driver_is_at_least(*version: int) -> bool:
    """Whether the driver is of `version` or newer, such as 580, 82; one that does not say is taken for new."""
    parts = tuple(int(part) for part in (driver_version() or "").split(".") if part.isdigit())
    return not parts or parts >= version


def cuda_version() -> str:
    """The newest CUDA that the driver runs, as `13.0`; empty when it does not say."""
    try:
        version = int(call("nvmlSystemGetCudaDriverVersion_v2"))
    except CallFailed:
        return ""
    return f"{version // 1000}.{version % 1000 // 10}"
