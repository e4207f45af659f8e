"""A process on a device, as far as the driver and the operating system let us see it."""

from __future__ import annotations

import msgspec


class Process(msgspec.Struct, frozen=True, omit_defaults=True):
    """`started` (Unix seconds, 0: unknown) tells a process from a later one with the same `pid`.

    `kind` is `compute` or `graphics`. None, and an empty text, mean that it cannot be seen from here; `name` and
    `command` are as the process gave them, so they are outside text. `container` is a short id.
    """

    pid: int
    device: str
    kind: str = "compute"
    name: str = ""
    user: str = ""
    uid: int | None = None
    command: str = ""
    container: str = ""
    parent: int = 0
    started: float = 0.0
    memory_bytes: int | None = None
    sm_ratio: float | None = None
    cpu_ratio: float | None = None
