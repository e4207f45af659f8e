"""Reads the metrics of the host: cores, load, pressure, memory, swap, disk and network (psutil,
/proc/pressure and /proc/meminfo).

In a container, the memory is that of the container, and the load and the swap space are those of
the whole machine.
"""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

import psutil

from gpuconsole.model.machine import Device
from gpuconsole.telemetry.source import Readings, Reasons
from gpuconsole.wire.readings import Sample

# --- the host as a source -------------------------------------------------------------------------

HOST = "cpu"
PRESSURE = {
    "host.run_queue_delay_ratio": Path("/proc/pressure/cpu"),
    "host.io_pressure_ratio": Path("/proc/pressure/io"),
    "host.memory_pressure_ratio": Path("/proc/pressure/memory"),
}
WHOLE_MACHINE = ("host.load_average_1min", "host.swap_used_bytes", "host.swap_total_bytes")
MEMORY = Path("/proc/meminfo")
_ONE_READING = "a rate needs two readings"
_WENT_BACK = "the counter of the system decreased"
_LOOPBACK = "lo"
NETWORK = Path("/sys/class/net")


class _Missing(Exception):
    """This machine does not report the value; the message is the reason."""


def cpu_device() -> Device:
    """The host CPU as a device; its memory is the container's limit where there is one."""
    return Device(id=HOST, name=_cpu_name(), memory_bytes=memory_bytes()[1])


class HostSource:
    """`cpu` is the whole host, `cpu:0`, `cpu:1`, ... its cores. Rates are over the time since the
    last reading."""

    name = "host"

    def __init__(self) -> None:
        self._device = cpu_device()
        self._reasons: dict[str, str] = {}
        self._counters: dict[str, float] = {}
        self._read_at = 0.0

    def devices(self) -> list[Device]:
        return [self._device]

    def prime(self) -> Readings:
        psutil.cpu_percent(percpu=True)  # psutil stores the first reading
        self._counters, self._reasons = _cumulative()
        self._read_at = time.monotonic()
        return []

    def read(self, t: float) -> Readings:
        cores = [percent / 100 for percent in psutil.cpu_percent(percpu=True)]
        used, total = memory_bytes()
        values = {
            "host.cores_busy": sum(_usable(cores)),
            "host.memory_used_bytes": float(used),
            "host.memory_total_bytes": float(total),
        }
        values.update(self._rates())
        try:
            values.update(_whole_machine())
        except _Missing as missing:
            self._reasons.update(dict.fromkeys(WHOLE_MACHINE, str(missing)))
        samples: Readings = [Sample(t=t, device=HOST, values=values)]
        samples += [
            Sample(t=t, device=f"{HOST}:{core}", values={"host.core_busy_ratio": busy})
            for core, busy in enumerate(cores)
        ]
        return samples

    def unavailable(self) -> Reasons:
        return {HOST: self._reasons}

    def slow(self) -> str:
        return ""

    def under_way(self) -> str:
        return "/proc"

    def _rates(self) -> dict[str, float]:
        """Growth per second of every cumulative counter. Stores the reasons for missing rates."""
        before, elapsed = self._counters, time.monotonic() - self._read_at
        self._counters, self._reasons = _cumulative()
        self._read_at += elapsed
        rates = {}
        for name, value in self._counters.items():
            if name not in before:
                self._reasons[name] = _ONE_READING
            elif value < before[name]:
                self._reasons[name] = _WENT_BACK
            else:
                rate = (value - before[name]) / elapsed
                # The kernel's clock and our clock are read at slightly different times, so a share
                # can be slightly above 1.
                rates[name] = min(rate, 1.0) if name in PRESSURE else rate
        return rates


def _cumulative() -> tuple[dict[str, float], dict[str, str]]:
    """The cumulative counters by the name of their rate (seconds waited, bytes moved), and the
    reasons for missing counters."""
    counters: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for name, path in PRESSURE.items():
        try:
            counters[name] = waited_s(path)
        except _Missing as missing:
            reasons[name] = str(missing)
    for names, read in (
        (("host.disk_read_bytes_per_s", "host.disk_write_bytes_per_s"), _disk_bytes),
        (("host.net_rx_bytes_per_s", "host.net_tx_bytes_per_s"), _net_bytes),
    ):
        try:
            counters.update(zip(names, read(), strict=True))
        except _Missing as missing:
            reasons.update(dict.fromkeys(names, str(missing)))
    return counters, reasons


def _whole_machine() -> dict[str, float]:
    """The load average and the swap space of the machine; a container has none of its own. Raises
    _Missing."""
    try:
        # Not psutil.swap_memory(): it prints a warning where a container hides /proc/vmstat.
        fields = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines())
        total, free = (int(fields[name].split()[0]) * 1024 for name in ("SwapTotal", "SwapFree"))
        return {
            "host.load_average_1min": os.getloadavg()[0],
            "host.swap_used_bytes": float(total - free),
            "host.swap_total_bytes": float(total),
        }
    except (OSError, ValueError, KeyError, IndexError):
        raise _Missing(f"{MEMORY} or the load average cannot be read") from None


def waited_s(path: Path) -> float:
    """Seconds since boot in which some task waited, from a pressure file's "some" line. Raises
    _Missing."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise _Missing(f"the kernel has no {path}") from None
    except OSError as error:
        # the kernel has the file but the feature is off, or a container hides it
        raise _Missing(f"{path}: {error.strerror}") from None
    for line in text.splitlines():
        if line.startswith("some "):
            return int(line.rpartition("total=")[2]) * 1e-6  # µs
    raise _Missing(f"{path} has no line for some tasks")


def _disk_bytes() -> tuple[float, float]:
    """Bytes read and written by physical disks, without the volumes and loop devices on top of
    these disks."""
    try:
        disks = psutil.disk_io_counters(perdisk=True) or {}
    except (OSError, NotImplementedError) as error:
        raise _Missing(f"disk counters: {error}") from None
    physical = [
        counters
        for name, counters in disks.items()
        if os.path.exists(f"/sys/block/{name}/device")  # three times as fast as that of a Path
    ]
    if not physical:
        raise _Missing("no physical disk is visible")
    return float(sum(disk.read_bytes for disk in physical)), float(
        sum(disk.write_bytes for disk in physical)
    )


def _net_bytes() -> tuple[float, float]:
    """Bytes received and sent by network cards; if no card is visible, by all interfaces except
    loopback."""
    try:
        interfaces = psutil.net_io_counters(pernic=True)
    except OSError as error:
        raise _Missing(f"network counters: {error}") from None
    others = {
        name: counters for name, counters in interfaces.items() if not name.startswith(_LOOPBACK)
    }
    # Bridges and bonds count the traffic of their cards a second time. In a container no card may
    # be visible.
    physical = [
        counters for name, counters in others.items() if os.path.exists(NETWORK / name / "device")
    ]
    real = physical or list(others.values())
    if not real:
        raise _Missing("no network interface but loopback")
    return float(sum(nic.bytes_recv for nic in real)), float(sum(nic.bytes_sent for nic in real))


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()  # Arm kernels report no model name


def _usable(cores: list[float]) -> list[float]:
    """The entries of the cores that this console may use: a container or `taskset` may leave it
    only some."""
    allowed = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(len(cores)))
    )
    return [busy for core, busy in enumerate(cores) if core in allowed] or cores


# --- total and used memory of this host, or of the container of this process ----------------------

# inside a container this is the container's own control group (version 2)
_CGROUP = Path("/sys/fs/cgroup")


def memory_bytes() -> tuple[int, int]:
    """(used, total) in bytes. Used memory is not available to new programs. In a container the
    total is the container's limit."""
    machine = psutil.virtual_memory()
    limit = _cgroup_limit_bytes()
    if limit is None or limit >= machine.total:
        return machine.total - machine.available, machine.total
    return _cgroup_used_bytes(), limit


def _cgroup_limit_bytes() -> int | None:
    try:
        text = (_CGROUP / "memory.max").read_text()
    except OSError:  # no such control group: no limit
        return None
    return None if text.strip() == "max" else int(text)


def _cgroup_used_bytes() -> int:
    """Bytes charged to the control group, minus reclaimable file cache. Raises OSError."""
    charged = int((_CGROUP / "memory.current").read_text())
    fields = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    return charged - int(fields.get("inactive_file", "0"))
