"""XID errors: the driver's error reports of a GPU."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

from gpuconsole.telemetry.nvml.library import TIMEOUT, CallFailed, call, meter
from gpuconsole.wire.readings import Xid

_XID_EVENT = 8  # nvmlEventTypeXidCriticalError
_MAX_AT_ONCE = 64

# Texts for common errors (NVIDIA, "XID Catalog":
# https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html).
MEANINGS = {
    8: "the GPU stopped processing",
    13: "a kernel accessed memory out of bounds or hit another exception",
    31: "a kernel accessed an unmapped address (page fault)",
    32: "corrupted commands reached the GPU",
    38: "the driver's firmware failed",
    43: "a kernel failed and its process was stopped",
    44: "a fault during a context switch",
    45: "work was removed because its process ended or another error came first",
    46: "the GPU stopped processing, and needs a reset",
    48: "an uncorrectable memory error: data was lost",
    54: "a power cable is not connected",
    61: "the GPU's internal microcontroller stopped",
    62: "the GPU's internal microcontroller halted",
    63: "a faulty memory row or page was replaced",
    64: "a faulty memory row or page could not be replaced",
    68: "a video decoder failed",
    69: "a program sent a wrong command",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many corrected memory errors",
    94: "an uncorrectable memory error, contained to one process",
    95: "an uncorrectable memory error that may have hit every process",
    109: "a context switch timed out",
    110: "a security fault",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor failed",
    121: "corrected errors of the chip-to-chip link",
    136: "the training of an NVLink failed",
    137: "an illegal access over NVLink",
    140: "uncorrectable memory errors that the driver could not handle",
    143: "the initialization of the GPU failed",
    144: "an NVLink error (SAW)",
    145: "an NVLink error (RLW)",
    146: "an NVLink error (TLW)",
    147: "an NVLink event without effect (TREX)",
    148: "an NVLink event without effect (NVLPW_CTRL)",
    149: "an NVLink went down (NETIR)",
    150: "an NVLink error (MSE)",
    154: "the driver says how to recover from another XID",
    155: "an NVLink went down on purpose",
    156: "a faulty part of the GPU is to be retired",
    157: "a faulty part of the GPU could not be retired",
    158: "the GPU did not answer in time (fatal)",
    159: "an error of the chip-to-chip link",
    167: "the PCIe link did not answer in time (fatal)",
    169: "the GPU's internal microcontroller halted",
    171: "an uncorrectable error of the GPU's memory (DRAM)",
    172: "an uncorrectable error of the GPU's memory on the chip (SRAM)",
}


class XidWatch:
    """Counts the errors of each device since the creation of this object. `refusals`: for each
    device without error events, the reason.

    A device registers itself: the call may hang, and then only the reading of this GPU hangs.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.refusals: dict[str, str] = {}
        self._devices: dict[int, str] = {}
        self._registered: set[str] = set()
        self._registering: set[str] = set()
        self._set: Any = None
        self._refused = ""
        self._renew()

    def _renew(self) -> None:
        """Create a new event set, at which each device registers again. While an event set contains
        a lost GPU, the driver reports no events of the other GPUs."""
        self.refusals, self._registered = {}, set()
        if self._set is not None and not self._registering:  # a call may still use it
            with contextlib.suppress(CallFailed):
                call("nvmlEventSetFree", self._set)
        try:
            self._set, self._refused = call("nvmlEventSetCreate"), ""
        except CallFailed as failure:
            self._set, self._refused = None, str(failure)

    def register(self, device: str, handle: Any) -> None:
        """Let the driver report the errors of a device, if it does not yet."""
        if device in self._registered:
            return
        events = self._set
        self._registered.add(device)
        self._devices[_address(handle)] = device
        self.counts.setdefault(device, 0)
        if events is None:
            self.refusals[device] = self._refused
            return
        self._registering.add(device)
        try:
            call("nvmlDeviceRegisterEvents", handle, _XID_EVENT, events)
        except CallFailed as failure:
            if meter.is_over():
                self._registered.discard(device)
            elif events is self._set:
                self.refusals[device] = str(failure)
        else:
            if events is self._set:
                self.refusals.pop(device, None)
        finally:
            self._registering.discard(device)

    def read(self, t: float) -> list[Xid]:
        """Return the events since the last call. Does not block. After a failure the next call uses
        a new event set."""
        xids: list[Xid] = []
        watched = self._set is not None and len(self.refusals) < len(self._registered)
        while watched and len(xids) < _MAX_AT_ONCE:
            try:
                event = call("nvmlEventSetWait", self._set, 0)
            except CallFailed as failure:
                if failure.code != TIMEOUT:
                    self._renew()
                break
            device = self._devices.get(_address(event.device))
            if device is not None and event.eventType == _XID_EVENT:
                self.counts[device] += 1
                xids.append(
                    Xid(t, device, int(event.eventData), MEANINGS.get(int(event.eventData), ""))
                )
        return xids


def _address(handle: Any) -> int:
    """The address of the device: equal for two handles of the same device."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
