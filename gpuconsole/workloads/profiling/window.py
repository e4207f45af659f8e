"""torch.profiler over a few steps or passes, and what it leaves on disk.

`key_averages()` takes 1.2-2.5 s for three steps; writing the trace takes 0.02-0.09 s, and reading it is another process's business.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from gpuconsole.model.profile import ProfileReport
from gpuconsole.workloads.profiling.summary import summarize
from gpuconsole.workloads.profiling.trace import TraceError, read_trace


class ProfileError(RuntimeError):
    """No profile; the message says why."""


def _profiler(device: torch.device) -> profile:
    """A profiler that has not begun. Raises ProfileError where torch.profiler cannot start."""
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    if torch._C._autograd._profiler_enabled():
        raise ProfileError("torch.profiler cannot start: another profiler is running in this process")
    return profile(activities=activities, record_shapes=True)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def profile_passes(one_pass: Callable[[], None], passes: int, device: torch.device, scratch: Path) -> ProfileReport:
    """Run `one_pass` so often under the profiler and analyse at once, in this process: for a probe. Raises ProfileError."""
    path = scratch / "passes.json"
    try:
        _synchronize(device)
        with _profiler(device) as recorder:
            for _ in range(passes):
                one_pass()
            _synchronize(device)
        recorder.export_chrome_trace(str(path))
        return summarize(read_trace(path), steps=passes)
    except (TraceError, RuntimeError) as error:
        raise ProfileError(f"torch.profiler: {error}") from None
    finally:
        path.unlink(missing_ok=True)
