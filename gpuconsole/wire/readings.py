"""The messages of the sampler, and the base of all events. The sampler imports these alone, because
those of a run need much more."""

from __future__ import annotations

import msgspec

from gpuconsole.model.machine import Device, Link, Process


class Event(msgspec.Struct, tag_field="event", tag=str.lower, frozen=True, omit_defaults=True):
    t: float


class Hello(Event, frozen=True):
    """The first message of a child, and of a recording. `wall_time` is Unix time at `t`."""

    role: str
    pid: int
    version: str
    wall_time: float


class Devices(Event, frozen=True):
    """The list of devices; replaces the previous list. `reason`: why there is no GPU; empty with a
    GPU. `cuda`: the newest CUDA version of the driver. `opening`: the driver has not answered yet,
    so the GPUs that are known stay in the list."""

    devices: list[Device]
    driver: str | None = None
    reason: str = ""
    cuda: str = ""
    opening: bool = False


class Sample(Event, frozen=True):
    """One reading of one device, by metric name. `sources`: the source of each value that did not
    come from the source in the catalogue."""

    device: str
    values: dict[str, float]
    sources: dict[str, str] = {}


class Unavailable(Event, frozen=True):
    """Metrics that a device cannot report, each with the reason. Replaces the earlier reasons of
    that device."""

    device: str
    reasons: dict[str, str]


class DeviceLost(Event, frozen=True):
    device: str
    reason: str


class DeviceKnown(Event, frozen=True):
    """What one GPU and its MIG slices are, where the list came before the GPU answered. Replaces
    the GPU in the list."""

    devices: list[Device]


class Topology(Event, frozen=True):
    """The links between the GPUs, each pair once."""

    links: list[Link]


class Processes(Event, frozen=True):
    """All processes on all devices; replaces the previous list. `reasons`: why a device does not
    list its processes."""

    processes: list[Process]
    reasons: dict[str, str] = {}


class Xid(Event, frozen=True):
    """The driver reported an error of a device."""

    device: str
    code: int
    meaning: str = ""


class SourceState(Event, frozen=True):
    """The state of a source. `period_s`: the real time between two readings. `stuck_s`: seconds
    without an answer, 0 while it answers.

    `detail`: what is slow or stuck, in words. `missed`: rounds skipped since the source began.
    `opening`: the source has not begun yet (a driver without persistence mode takes seconds for
    each GPU). A GPU that is slow or stuck by itself is a source with the name of the device; when
    it is read as the others again, its `stuck_s` is 0 and its `detail` is empty.
    """

    source: str
    period_s: float
    stuck_s: float = 0.0
    detail: str = ""
    missed: int = 0
    opening: bool = False
