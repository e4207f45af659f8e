"""Which processes of this machine belong to this console."""

from __future__ import annotations

import os

import psutil

from gpuconsole.model.machine.process import Process


class OwnProcesses:
    """The console and all processes that the console started, directly or indirectly. Each process is checked once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, float], bool] = {}

    def has(self, process: Process) -> bool:
        """False also for an invisible process (of another container or user), and for a process that has just ended."""
        if process.started <= 0:
            return False
        key = process.pid, process.started
        if key not in self._known:
            try:
                self._known[key] = os.getpid() in [process.pid, *(parent.pid for parent in psutil.Process(process.pid).parents())]
            except psutil.Error:
                return False
        return self._known[key]
