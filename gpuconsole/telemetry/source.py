"""What every reader of metrics looks like to the sampler."""

from __future__ import annotations

from typing import Protocol

from gpuconsole.model.device import Device
from gpuconsole.wire.events import DeviceLost, Sample

Readings = list[Sample | DeviceLost]
Reasons = dict[str, dict[str, str]]


class Source(Protocol):
    """A reader of metrics. Each metric of each device is, after every `read`, either in a sample or in `unavailable`."""

    def devices(self) -> list[Device]:
        """What this source watches; fixed for its lifetime."""

    def prime(self) -> None:
        """Take the first of the two readings that a rate needs."""

    def read(self, t: float) -> Readings:
        """The values now, stamped `t` (CLOCK_MONOTONIC seconds); rates are over the time since the last reading."""

    def unavailable(self) -> Reasons:
        """As of the last `read`: for each device the metrics that it could not report, with the reason."""
