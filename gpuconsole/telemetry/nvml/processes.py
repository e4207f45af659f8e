"""The processes on a GPU, as the driver reports them, and what the operating system tells of each:
name, user, command line, container."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil

from gpuconsole.model.machine import Process
from gpuconsole.model.text import command_line
from gpuconsole.telemetry.nvml.calls import MEMORY, ask, is_plausible
from gpuconsole.telemetry.nvml.library import NOT_SUPPORTED, CallFailed, call
from gpuconsole.telemetry.nvml.lineage import Relative, lineage_of, parents_from

_KINDS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses",
}
_LOOK_BACK_S = 5.0
_PERCENT = 0.01


MAX_PID = 2**22 - 1
"""The highest pid on Linux (PID_MAX_LIMIT). The driver reports the pids of the host, and a
container may not know the `pid_max` of the host."""
INVENTED = "the driver lists processes that cannot exist"
OLD_RECORDS = (
    f"{INVENTED}: drivers 535.43 to 535.86 write process records in another format than"
    " nvidia-ml-py reads"
)
_OLD_BRANCH, _OLD_RELEASES = 535, range(43, 87)
FAR_ABOVE = 1.5
ROOM_BYTES = 2**30
"""Processes start and end between two calls. So the sum of their memory counts as wrong only if it
is this far above the used memory of the device, twice in a row."""


def processes_of(
    device: str, handle: Any, slices: dict[int, str], total_bytes: int = 0
) -> tuple[list[Process], CallFailed | None]:
    """Each process once (compute if it is both kinds), and the reason if the list may be
    incomplete. `slices`: MIG slices by GPU instance. `total_bytes`: the device's own memory, 0 if
    it is not known or there is none; only with it is the memory of processes checked.

    A list with a process that cannot exist is wrong as a whole: no process of it is returned.
    Raises CallFailed only for a lost device.
    """
    for _ in range(2):
        listed, gap = _listed(device, handle, slices)
        if not _is_far_above_used(listed, handle, total_bytes if not slices else 0):
            break
    else:
        return [], CallFailed(-1, _why_invented())
    if any(not _can_exist(process, total_bytes) for process in listed):
        return [], CallFailed(-1, _why_invented())
    return listed, gap


def _why_invented() -> str:
    """The reason for processes that cannot exist, as far as the version of the driver tells it."""
    try:
        version = re.match(r"(\d+)\.(\d+)", str(call("nvmlSystemGetDriverVersion")))
    except CallFailed:
        return INVENTED
    old = version and int(version[1]) == _OLD_BRANCH and int(version[2]) in _OLD_RELEASES
    return OLD_RECORDS if old else INVENTED


def _can_exist(process: Process, total_bytes: int) -> bool:
    fits = not total_bytes or (process.memory_bytes or 0) <= total_bytes
    return 0 < process.pid <= MAX_PID and fits


def _is_far_above_used(processes: list[Process], handle: Any, total_bytes: int) -> bool:
    """Whether the processes hold far more memory than the device says is used. The driver is asked
    only where a device has processes."""
    held = sum(process.memory_bytes or 0 for process in processes)
    if not total_bytes or held <= ROOM_BYTES:
        return False
    try:
        used = ask(MEMORY, handle)["gpu.hbm_used_bytes"]
    except CallFailed as failure:
        if failure.is_loss:
            raise
        return False
    return is_plausible("gpu.hbm_used_bytes", used) and held > FAR_ABOVE * used + ROOM_BYTES


def _listed(
    device: str, handle: Any, slices: dict[int, str]
) -> tuple[list[Process], CallFailed | None]:
    """The list of the driver, unchecked, and the reason if it may be incomplete. Raises CallFailed
    only for a lost device."""
    shares = _shares(handle)
    by_pid: dict[int, Process] = {}
    gap: CallFailed | None = None
    for kind, function in _KINDS.items():
        try:
            answers = call(function, handle)
        except CallFailed as failure:
            if failure.is_loss:
                raise
            # otherwise a device without graphics
            if kind == "compute" or failure.code != NOT_SUPPORTED:
                gap = gap or failure
            continue
        for process in answers:
            pid = int(process.pid)
            memory = process.usedGpuMemory
            if pid not in by_pid:
                where = slices.get(int(process.gpuInstanceId), device)
                sm, memory_time = shares.get(pid, (None, None))
                bytes_used = None if memory is None else int(memory)
                by_pid[pid] = Process(
                    pid,
                    where,
                    kind,
                    memory_bytes=bytes_used,
                    sm_ratio=sm,
                    memory_time_ratio=memory_time,
                )
    return list(by_pid.values()), gap


def _shares(handle: Any) -> dict[int, tuple[float, float]]:
    """The newest share of the SMs and of the time in which device memory was read or written, of
    each process in the last seconds; empty where the driver has no data."""
    since_us = int((time.time() - _LOOK_BACK_S) * 1e6)
    try:
        samples = call("nvmlDeviceGetProcessUtilization", handle, since_us)
    except CallFailed as failure:
        if failure.is_loss:
            raise
        return {}  # NOT_FOUND: nothing ran; otherwise this device or container does not report it
    newest: dict[int, tuple[int, tuple[float, float]]] = {}
    for sample in samples:
        pid, t = int(sample.pid), int(sample.timeStamp)
        if max(sample.smUtil, sample.memUtil) <= 100 and t >= newest.get(pid, (0, ()))[0]:
            newest[pid] = (t, (sample.smUtil * _PERCENT, sample.memUtil * _PERCENT))
    return {pid: shares for pid, (_, shares) in newest.items()}


COMMAND_LIMIT = 4096
"""Maximum characters of a command line; some command lines have 64 KB."""
_NAME_LIMIT = 256
_LAUNCHER_LIMIT = 512
_CONTAINER = re.compile(
    r"(?:docker|containerd|crio|libpod|kubepods|lxc)[^\n]*?([0-9a-f]{12})[0-9a-f]*"
)


GONE = "no such process"
ELSEWHERE = "no such process here: it is of another container, or has ended"
HIDDEN = "this user cannot read it"
STRANGER = "its pid belongs to another container: another process has this pid here"
_FIRST_NAMESPACE = "pid:[4026531836]"
"""The namespace of pids that a machine starts with (PROC_PID_INIT_INO in Linux)."""
_STATES = {
    psutil.STATUS_RUNNING: "R", psutil.STATUS_SLEEPING: "S", psutil.STATUS_DISK_SLEEP: "D",
    psutil.STATUS_STOPPED: "T", psutil.STATUS_TRACING_STOP: "t", psutil.STATUS_ZOMBIE: "Z",
}  # fmt: skip


class ProcessDetails:
    """Adds details that the driver does not report. Constant details are read once per process, and
    again when it gets another parent."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[psutil.Process, Process]] = {}
        self._waiting: set[int] = set()
        """Processes whose last reading had the state D."""

    def complete(self, processes: list[Process]) -> list[Process]:
        """The same processes with their details. A process that cannot be seen keeps only its pid
        and the reason, and so does one whose pid here belongs to another process."""
        owners = {pid: self._look(pid) for pid in {process.pid for process in processes}}
        self._known = {pid: details for pid, details in self._known.items() if pid in owners}
        self._waiting &= set(owners)
        return [_joined(process, owners[process.pid]) for process in processes]

    def _look(self, pid: int) -> Process | str:
        """The details of a process, its resident memory and its CPU share since the last reading,
        which the first reading does not have. A text: why it cannot be seen."""
        try:
            if pid in self._known:
                handle, identity = self._known[pid]
                # another process may have the pid now
                with contextlib.suppress(psutil.NoSuchProcess), handle.oneshot():
                    if handle.ppid() == identity.parent:
                        return self._now(handle, identity, handle.cpu_percent() / 100)
            handle = psutil.Process(pid)
            identity = _identity(handle)
            handle.cpu_percent()  # a share needs two readings; this is the first
            if handle.status() != psutil.STATUS_ZOMBIE and is_stranger(pid):
                return STRANGER
            self._known[pid] = (handle, identity)
            return self._now(handle, identity, None)
        except psutil.Error as error:
            self._known.pop(pid, None)
            return why_unseen(pid, error)

    def _now(self, handle: psutil.Process, identity: Process, cpu_ratio: float | None) -> Process:
        """`identity` with what changes."""
        state = _STATES.get(handle.status(), "")
        lasts = state == "D" and handle.pid in self._waiting
        (self._waiting.add if state == "D" else self._waiting.discard)(handle.pid)
        return msgspec.structs.replace(
            identity,
            cpu_ratio=cpu_ratio,
            host_memory_bytes=handle.memory_info().rss,
            state="S" if state == "D" and not lasts else state,
        )


def why_unseen(pid: int, error: psutil.Error) -> str:
    """Why a process that the driver lists cannot be seen here."""
    if not isinstance(error, psutil.NoSuchProcess):
        return HIDDEN
    try:
        os.kill(pid, 0)  # /proc may hide the processes of other users (hidepid)
    except ProcessLookupError:
        with contextlib.suppress(OSError):
            if os.readlink("/proc/self/ns/pid") != _FIRST_NAMESPACE:
                return ELSEWHERE
        return GONE
    except OSError:
        return HIDDEN
    return GONE  # it has ended between the two looks, or this pid is a thread


_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD in the flags of /proc/PID/stat."""
_DEVICE_FILES = ("nvidia", "dxg", "nvgpu", "nvhost", "nvmap", "dri/")
"""Names in /dev that a process on an NVIDIA GPU has open: of the driver, of WSL, of Jetson, and of
graphics."""


def is_stranger(pid: int, processes: Path = Path("/proc"), devices: Path = Path("/dev")) -> bool:
    """Whether the local process `pid` cannot be the one that the driver means, whose pid is of
    another namespace: it is a thread of the kernel, or it has no device file of the GPU open. False
    where that cannot be told: its files cannot be read, or there are no device files here."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = (processes / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        if int(fields[6]) & _KERNEL_THREAD:
            return True
    if not any(file.name.startswith(_DEVICE_FILES[:-1]) for file in devices.iterdir()):
        return False
    prefixes = tuple(f"{devices}/{name}" for name in _DEVICE_FILES)
    try:
        files = [*(processes / str(pid) / "fd").iterdir()]
    except OSError:
        return False
    for file in files:
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(file).startswith(prefixes):
                return False
    return True


def _joined(process: Process, owner: Process | str) -> Process:
    """The fields of a process from the driver, combined with the fields from the operating
    system."""
    if isinstance(owner, str):
        return msgspec.structs.replace(process, unseen=owner)
    told = ("device", "kind", "memory_bytes", "sm_ratio", "memory_time_ratio")
    return msgspec.structs.replace(owner, **{name: getattr(process, name) for name in told})


def _identity(handle: psutil.Process) -> Process:
    """The constant details of a process. Raises psutil.Error when the process has ended."""
    with handle.oneshot():
        started = handle.create_time()
        facts = handle.as_dict(["name", "username", "uids", "ppid", "cmdline"], ad_value=None)
    uids = facts["uids"]
    name, command = _text(facts["name"]), _text(command_line(facts["cmdline"] or []))
    parent = facts["ppid"] or 0
    lineage = lineage_of(Relative(handle.pid, name, command), parents_from(parent))
    return Process(
        pid=handle.pid,
        device="",
        name=name[:_NAME_LIMIT],
        user=_text(facts["username"]),
        uid=uids.real if uids else None,
        command=command[:COMMAND_LIMIT],
        container=container_of(handle.pid),
        parent=parent,
        started=started,
        lineage=lineage.parents,
        launcher=_text(lineage.launcher)[:_LAUNCHER_LIMIT],
        console=lineage.console,
    )


def _text(text: str | None) -> str:
    """The text as valid UTF-8. A process name may contain any bytes; invalid bytes become question
    marks."""
    return (text or "").encode("utf-8", "replace").decode()


def container_of(pid: int) -> str:
    """The short id of a process's container; empty for no container or an invisible one."""
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text(errors="replace")
    except OSError:
        return ""
    match = _CONTAINER.search(text)
    return match[1] if match else ""
