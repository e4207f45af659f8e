"""The profiler window on some steps of the program, with consent. The console reads the trace: the program's Python has no gpuconsole."""

from __future__ import annotations

import os
from typing import Any

from ...clock import now
from ...probes import ProbeError
from ...protocol import Message, Profile, profiled
from ..guard import switch

QUIET = "KINETO_LOG_LEVEL", "99"
"""Kineto writes lines about its start and end to stderr, which belongs to the program. It reads this variable when it starts for the first time."""
TEARDOWN = "TEARDOWN_CUPTI", "1"
"""Makes Kineto detach CUPTI at its end; otherwise the program stays some percent slower (pytorch#144455). Before CUDA 12.6 it breaks CUDA graphs."""


class Window:
    """A warm-up step, then `command.steps` steps under torch.profiler. Raises ProbeError where the profiler does not start."""

    def __init__(self, command: Profile, folder: str, device: Any) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile, schedule

        if torch._C._autograd._profiler_enabled():
            raise ProbeError("another profiler is running in this process")
        self._command, self._device, self._start = command, device, now()
        self._path = os.path.join(folder, "window.json")
        self._left = command.steps + 1
        self._torch = torch
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self._on_gpu else [])
        cuda = tuple(int(part) for part in (torch.version.cuda or "0").split("."))
        wanted = [QUIET, TEARDOWN] if self._on_gpu and cuda >= (12, 6) else [QUIET]
        self._ours = dict(one for one in wanted if one[0] not in os.environ)
        """Variables that are set for the time of the window."""
        os.environ.update(self._ours)
        self._profile = profile(
            activities=activities,
            record_shapes=True,
            schedule=schedule(wait=0, warmup=1, active=command.steps, repeat=1),
            on_trace_ready=lambda done: done.export_chrome_trace(self._path),
        )
        self._profile.start()
        self._on = True
        switch.undo.append(self.stop)

    @property
    def _on_gpu(self) -> bool:
        return bool(self._device.type == "cuda")

    def step(self) -> bool:
        """A step of the program has ended. Returns whether the window is over, and its trace written."""
        self._left -= 1
        if self._on_gpu and self._left in (0, self._command.steps):
            self._torch.cuda.synchronize(self._device)
        self._profile.step()
        if self._left:
            return False
        self.stop()
        return True

    def stop(self) -> None:
        """End the window. A second call changes nothing."""
        if not self._on:
            return
        self._on = False
        self._profile.stop()
        for name in self._ours:
            os.environ.pop(name, None)

    def answer(self) -> Message:
        return profiled(now(), self._command.request, self._path, self._command.keep, self._on_gpu, now() - self._start)
