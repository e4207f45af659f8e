"""A process that uses a device, with the details that the driver and the operating system report."""

from __future__ import annotations

import msgspec


class Process(msgspec.Struct, frozen=True, omit_defaults=True):
    """`started` (Unix seconds, 0: unknown) distinguishes a process from a later process with the same `pid`.

    `kind` is `compute` or `graphics`. None and an empty text mean that this process has no permission to read the value. `name` and
    `command` come from the process: treat them as untrusted text. `container` is a short id.
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
