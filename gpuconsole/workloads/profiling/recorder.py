"""torch.profiler; every failure becomes one line of text.

`key_averages()` takes 1.2-2.5 s for three steps. Writing the trace takes 0.02-0.09 s; another process reads the trace.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from gpuconsole.model.profile import ProfileReport
from gpuconsole.workloads.profiling.summary import summarize
from gpuconsole.workloads.profiling.trace import TraceError, read_trace


class ProfileError(RuntimeError):
    """There is no profile; the message is the reason."""


class Recorder:
    """A profiler that never raises. `error` holds the first failure; later actions are then skipped."""

    def __init__(self, device: torch.device, path: Path, steps: int = 0) -> None:
        """The trace goes to `path`. With `steps`: one warm-up step, then this number of recorded steps, as marked by `step`."""
        self.error = ""
        self._path = path
        self._stepwise = steps > 0
        self._profile: profile | None = None
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
        plan: dict[str, Any] = (
            {"schedule": schedule(wait=0, warmup=1, active=steps, repeat=1), "on_trace_ready": self._write} if steps else {}
        )
        if device.type in ("cpu", "cuda"):
            self._guarded(lambda: self._begin(activities, plan))
        else:  # the launches alone would look like the work
            self.error = f"torch.profiler does not see what runs on {device.type}"

    def step(self) -> None:
        """Mark the end of a step. The device is synchronized where the window begins or ends."""
        if self._profile is not None:
            self._guarded(self._profile.step)

    def stop(self) -> None:
        recorder, self._profile = self._profile, None
        if recorder is None:
            return
        self._guarded(recorder.stop)
        if not self._stepwise:
            self._guarded(lambda: self._write(recorder))
        if not self.error and not self._path.exists():
            self.error = "torch.profiler wrote no trace"

    def _begin(self, activities: list[ProfilerActivity], plan: dict[str, Any]) -> None:
        if torch._C._autograd._profiler_enabled():
            raise RuntimeError("another profiler is running in this process")
        _let_cupti_go_afterwards()
        self._profile = profile(activities=activities, record_shapes=True, **plan)
        self._profile.start()

    def _write(self, recorder: profile) -> None:
        recorder.export_chrome_trace(str(self._path))

    def _guarded(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as problem:  # errors of Kineto and CUPTI go to the user unchanged
            line = next(iter(str(problem).strip().splitlines()), type(problem).__name__)
            self.error = self.error or f"torch.profiler cannot profile here: {line}"


def _let_cupti_go_afterwards() -> None:
    """Make Kineto detach CUPTI at its end. Otherwise the job stays some percent slower (pytorch#144455, #146604). Before CUDA 12.6 the
    setting crashes jobs with CUDA graphs, so it is not used there."""
    version = tuple(int(part) for part in (torch.version.cuda or "0").split("."))
    if version >= (12, 6):
        os.environ.setdefault("TEARDOWN_CUPTI", "1")


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def profile_passes(one_pass: Callable[[], None], passes: int, device: torch.device, scratch: Path) -> ProfileReport:
    """Run `one_pass` several times under the profiler and analyse the trace in this process: for a probe. Raises ProfileError."""
    path = scratch / "passes.json"
    synchronize(device)
    recorder = Recorder(device, path)
    try:
        for _ in range(passes):
            one_pass()
        synchronize(device)
        recorder.stop()
        if recorder.error:
            raise ProfileError(recorder.error)
        return summarize(read_trace(path), steps=passes, gpu=device.type == "cuda")
    except TraceError as error:
        raise ProfileError(str(error)) from None
    finally:
        recorder.stop()
        path.unlink(missing_ok=True)
