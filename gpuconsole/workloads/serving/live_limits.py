"""The limits of a watched server that can change while it runs: the console's side of
in_vllm/gpuconsole_caps.py."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable

import psutil

from gpuconsole.model.knobs.knob import Knobs
from gpuconsole.model.knobs.serving import LIVE_KNOBS
from gpuconsole.workloads.serving.in_vllm.gpuconsole_caps import (
    BEGAN_AT,
    LAYOUT,
    NUMBER,
    SIZE,
    UNTIL_AT,
    began,
    folder_of,
    name_of,
)

LEASE_S = 3.0
"""The server goes back to the values of its start so many seconds after the last renewal."""
RENEW_S = 0.5


class LiveLimits:
    """The limits of a server: a file for each of its engines. The file belongs to another program,
    so it is written and never mapped: the owner may cut it off."""

    def __init__(self, files: list[int], chosen: Knobs) -> None:
        """`files`: open, for each engine. `chosen`: the values of the start of one engine, of the
        LIVE_KNOBS that can change."""
        self._files = files
        self.chosen = chosen
        self._in_force: Knobs = {}
        self._until = 0.0

    @property
    def engines(self) -> int:
        return len(self._files)

    def set(self, limits: Knobs) -> None:
        """Put `limits` in force, from the next iteration on, and until `LEASE_S` after the last
        `renew`. Those of the start need no such time. Raises OSError."""
        lowered = {name: value for name, value in limits.items() if value != self.chosen[name]}
        if lowered:
            self._lease()
        self._in_force = lowered
        words = LAYOUT.pack(*(int(lowered.get(name, 0)) for name in LIVE_KNOBS))
        for file in self._files:
            os.pwrite(file, words, 0)

    def renew(self) -> bool:
        """Move the end of the limits on. False if they had ended before: the server has had the
        values of its start for a time. Raises OSError."""
        if not self._in_force:
            return True
        in_time = time.monotonic() < self._until
        self._lease()
        return in_time

    def close(self) -> None:
        """Give the server the values of its start back."""
        with contextlib.suppress(OSError):
            self.set(self.chosen)
        for file in self._files:
            os.close(file)
        self._files = []

    def _lease(self) -> None:
        self._until = time.monotonic() + LEASE_S
        for file in self._files:
            os.pwrite(file, NUMBER.pack(int(self._until * 1e9)), UNTIL_AT)


def find_limits(processes: Iterable[int]) -> LiveLimits | None:
    """The limits of a server with these `processes`; None where it offers none. Several engines
    have the same values."""
    files: list[int] = []
    chosen: list[tuple[int, ...]] = []
    for pid in processes:
        with contextlib.suppress(OSError, ValueError, IndexError, psutil.Error):
            owner = psutil.Process(pid).uids().real
            file = os.open(
                os.path.join(folder_of(owner), name_of(pid)),
                os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK,
            )
            about, content = os.fstat(file), os.pread(file, SIZE, 0)
            whole = stat.S_ISREG(about.st_mode) and about.st_uid == owner and len(content) == SIZE
            # of an earlier process with this number
            if not whole or NUMBER.unpack_from(content, BEGAN_AT)[0] != began(pid):
                os.close(file)
                continue
            files.append(file)
            chosen.append(LAYOUT.unpack_from(content, LAYOUT.size))
    if not files:
        return None
    values = {
        name: min(limits)
        for name, limits in zip(LIVE_KNOBS, zip(*chosen, strict=True), strict=True)
    }
    return LiveLimits(files, {name: value for name, value in values.items() if value > 0})
