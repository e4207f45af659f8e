"""The interface of every source of metrics."""

from __future__ import annotations

from typing import Protocol

from gpuconsole.model.machine.device import Device
from gpuconsole.wire.events import DeviceLost, Processes, Sample, Topology, Xid

Readings = list[Sample | DeviceLost | Topology | Processes | Xid]
Reasons = dict[str, dict[str, str]]

DRIVER_GONE_EXIT = 75
"""The sampler's exit code that asks for a restart: only a new process can load another driver library. (EX_TEMPFAIL)"""
NOT_YET = "the NVIDIA driver has not answered yet"
"""The reason for a device list without GPUs while the driver is still starting."""


class DriverGone(Exception):
    """The driver was unloaded or replaced, or the number of devices has changed: the source has ended."""


class Source(Protocol):
    """A reader of metrics. After every `read` each metric of each device has been in a sample or is in `unavailable`.

    `name` is the name on the screen. Another thread may call `under_way` while `read` has not returned.
    """

    name: str

    def devices(self) -> list[Device]:
        """The devices of this source; fixed for its lifetime."""

    def prime(self) -> None:
        """Take the first of the two readings that a rate needs."""

    def read(self, t: float) -> Readings:
        """The present values with time `t` (CLOCK_MONOTONIC seconds). Rates are over the time since the last reading.

        Raises DriverGone.
        """

    def unavailable(self) -> Reasons:
        """After the last `read`: for each device the missing metrics with their reasons."""

    def slow(self) -> str:
        """A description of readings that are slower than requested; otherwise empty."""

    def under_way(self) -> str:
        """A description of the call that has not returned yet; otherwise empty."""
