"""What every reader of metrics looks like to the sampler."""

from __future__ import annotations

from typing import Protocol

from gpuconsole.model.machine.device import Device
from gpuconsole.wire.events import DeviceLost, Processes, Sample, Topology, Xid

Readings = list[Sample | DeviceLost | Topology | Processes | Xid]
Reasons = dict[str, dict[str, str]]

DRIVER_GONE_EXIT = 75
"""The sampler's exit code that asks for a fresh one: only a new process can load another driver's library. (EX_TEMPFAIL)"""
NOT_YET = "the NVIDIA driver has not answered yet"
"""The reason for a list of devices without GPUs while the driver is still opening."""


class DriverGone(Exception):
    """The driver was unloaded or replaced, or the number of devices has changed: the source is of no use any more."""


class Source(Protocol):
    """A reader of metrics. Each metric of each device has, after every `read`, either been in a sample or is in `unavailable`.

    `name` is what the screen calls it. Another thread may ask what a source that does not return is doing.
    """

    name: str

    def devices(self) -> list[Device]:
        """What this source watches; fixed for its lifetime."""

    def prime(self) -> None:
        """Take the first of the two readings that a rate needs."""

    def read(self, t: float) -> Readings:
        """The values now, stamped `t` (CLOCK_MONOTONIC seconds); rates are over the time since the last reading.

        Raises DriverGone.
        """

    def unavailable(self) -> Reasons:
        """As of the last `read`: for each device the metrics that it could not report, with the reason."""

    def slow(self) -> str:
        """What is read less often than asked for because it takes long, in words; else empty."""

    def under_way(self) -> str:
        """What it is waiting for at this moment, in words; else empty."""
