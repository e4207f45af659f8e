"""The processes that use a GPU, as the driver reports them: pid, kind, memory, SM share."""

from __future__ import annotations

import time
from typing import Any

from gpuconsole.model.machine import Process
from gpuconsole.telemetry.nvml.library import NOT_SUPPORTED, CallFailed, call

_KINDS = {"compute": "nvmlDeviceGetComputeRunningProcesses", "graphics": "nvmlDeviceGetGraphicsRunningProcesses"}
_LOOK_BACK_S = 5.0
_PERCENT = 0.01


def processes_of(device: str, handle: Any, slices: dict[int, str]) -> tuple[list[Process], CallFailed | None]:
    """Each process once (compute if it is both kinds), and the reason if the list may be incomplete. `slices`: MIG slices by GPU instance.

    Raises CallFailed only for a lost device.
    """
    shares = _sm_shares(handle)
    by_pid: dict[int, Process] = {}
    gap: CallFailed | None = None
    for kind, function in _KINDS.items():
        try:
            answers = call(function, handle)
        except CallFailed as failure:
            if failure.is_loss:
                raise
            if kind == "compute" or failure.code != NOT_SUPPORTED:  # otherwise a device without graphics
                gap = gap or failure
            continue
        for process in answers:
            pid = int(process.pid)
            memory = process.usedGpuMemory
            if pid not in by_pid:
                where = slices.get(int(process.gpuInstanceId), device)
                by_pid[pid] = Process(pid, where, kind, memory_bytes=None if memory is None else int(memory), sm_ratio=shares.get(pid))
    return list(by_pid.values()), gap


def _sm_shares(handle: Any) -> dict[int, float]:
    """The newest SM share of each process in the last seconds; empty where the driver has no data."""
    since_us = int((time.time() - _LOOK_BACK_S) * 1e6)
    try:
        samples = call("nvmlDeviceGetProcessUtilization", handle, since_us)
    except CallFailed as failure:
        if failure.is_loss:
            raise
        return {}  # NOT_FOUND: nothing ran; otherwise this device or container does not report it
    newest: dict[int, tuple[int, float]] = {}
    for sample in samples:
        pid, t = int(sample.pid), int(sample.timeStamp)
        if sample.smUtil <= 100 and t >= newest.get(pid, (0, 0.0))[0]:
            newest[pid] = (t, sample.smUtil * _PERCENT)
    return {pid: share for pid, (_, share) in newest.items()}
