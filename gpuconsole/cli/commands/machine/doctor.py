"""`gpuconsole doctor`."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

from gpuconsole import __version__
from gpuconsole.cli import output
from gpuconsole.cli.exits import exit_code
from gpuconsole.cli.options import JSON, TIMEOUT
from gpuconsole.engine.children.once import DevicesReading, read_devices
from gpuconsole.host.environment import fingerprint, installed_torch, of_this_machine, unusable_gpus
from gpuconsole.host.installation import install_command
from gpuconsole.host.settings import SETTINGS, config_path, misspelt, settings
from gpuconsole.host.torch_build import Driver
from gpuconsole.model import units
from gpuconsole.model.machine import Device
from gpuconsole.model.metrics import series_key
from gpuconsole.model.text import visible
from gpuconsole.report.machine.environment import age
from gpuconsole.report.parts import BLANK, Report, heading, labelled
from gpuconsole.session.gpu_state import (
    BRIDGED,
    UNKNOWN_ERROR,
    CurrentReadings,
    GpuState,
    gpu_states,
    in_words,
    links_down,
    unknown_errors,
    whole_gpus,
)
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import seen_now

HELP = "report what works on this machine, and why not"
DESCRIPTION = """Report what works on this machine, what reads n/a with the reason, and where the
value of each setting comes from. This command changes nothing."""
EXAMPLES = """examples:
  gpuconsole doctor
  gpuconsole doctor --json
"""
GPM_METRIC = "gpu.sm_active_ratio"
"""Every device with GPM reports this metric."""
KERNEL_FILES = {
    "cpu pressure": (Path("/proc/pressure/cpu"), "run-queue delay reads n/a"),
    "io pressure": (Path("/proc/pressure/io"), "waiting for I/O reads n/a"),
    "memory pressure": (Path("/proc/pressure/memory"), "waiting for memory reads n/a"),
    "schedstat": (Path("/proc/self/schedstat"), "the training thread's wait for a core reads n/a"),
}
DRM = Path("/sys/class/drm")
"""The kernel lists the GPUs of all vendors there."""
AMD = "0x1002"
"""AMD's number as a vendor of PCI devices."""
NVIDIA_ONLY = "is there; gpuconsole measures NVIDIA GPUs only"
SHARED_MEMORY = Path("/dev/shm")
MIN_SHARED_BYTES = 2 * 2**30
"""Twelve workers with two batches of 64 images each need 1 GB. Docker's default is 64 MB."""

LINK_ADVICE = (
    "NCCL hangs or is slow without them: see nvidia-smi nvlink -s, and on a board with NVSwitch"
    " systemctl status nvidia-fabricmanager"
)
MAX_LABEL_LENGTH = 32
"""Cells. A longer label has a row of its own."""

Row = tuple[str, str]


OPTIONS = (
    TIMEOUT._replace(help="seconds to wait for the driver (default 10)"),
    JSON._replace(help="the same rows as JSON, by section"),
)


def run(args: argparse.Namespace) -> int:
    """Print the report. Exit code OK, or FAILED if the driver does not answer."""
    reading = read_devices(timeout_s=args.timeout)
    rows_by_title = sections(reading)
    data = {
        title: [{"name": name, "text": text} for name, text in rows]
        for title, rows in rows_by_title.items()
    }
    output.show_result(args, data, lambda: report(rows_by_title))
    return exit_code(reading.error)


def sections(reading: DevicesReading) -> dict[str, list[Row]]:
    """All rows, by the title of their section."""
    return {
        "program": program_rows(reading.state),
        "GPU": gpu_rows(reading) + other_gpu_rows(),
        "topology": topology_rows(reading.state),
        "kernel": kernel_rows(),
        "terminal": terminal_rows(),
        "reads n/a here": missing_rows(reading),
        "settings": settings_rows(),
    }


def report(sections: dict[str, list[Row]]) -> Report:
    """The sections that have rows, with a heading for each."""
    column = (
        min(MAX_LABEL_LENGTH, max(len(name) for rows in sections.values() for name, _ in rows)) + 2
    )
    parts: Report = []
    for title, rows in sections.items():
        if rows:
            lines = (labelled(name, visible(text), column=column, indent=2) for name, text in rows)
            parts += [*([BLANK] if parts else []), heading(title), *lines]
    return parts


def settings_rows() -> list[Row]:
    """Every setting with its value and the place of the value."""
    in_force = settings()
    rows = [
        ("file", f"{config_path()}{'' if config_path().exists() else ', which does not exist'}")
    ]
    for name in SETTINGS:
        value = getattr(in_force, name)
        if isinstance(value, dict):
            value = ", ".join(f"{action}={key}" for action, key in value.items())
        rows.append((name, f"{_written(value)}  ({in_force.source(name)})"))
    return [
        *rows,
        *(
            (name, f"is no setting{hint}, and has no effect")
            for name, hint in misspelt(os.environ).items()
        ),
    ]


def _written(value: object) -> str:
    """A value as in the file; `-` where there is none."""
    return (
        "-"
        if value is None or value == ""
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )


def program_rows(state: SessionState) -> list[Row]:
    return [
        ("gpuconsole", __version__),
        ("python", sys.version.split()[0]),
        ("torch", torch_text(state.cuda)),
        ("calibration", calibration_text(state)),
    ]


def calibration_text(state: SessionState) -> str:
    """The devices with a valid calibration, and its age."""
    records = of_this_machine(fingerprint(state.devices, state.driver, state.cuda))
    return (
        "; ".join(f"{record.device} {age(record, time.time())}" for record in records)
        or "none: run `gpuconsole calibrate`"
    )


def torch_text(driver_cuda: str) -> str:
    """Torch's version and its CUDA version beside that of the driver. Does not import torch."""
    torch = installed_torch()
    if torch is None:
        return (
            "not installed; the built-in training scenarios need it, your own job does not:"
            f" {install_command('torch')}"
        )
    if not torch.cuda:
        return f"{torch.version}, CPU only"
    return f"{torch.version}, built for CUDA {torch.cuda}" + (
        f"; the driver runs CUDA {driver_cuda}" if driver_cuda else ""
    )


def torch_rows(state: SessionState) -> list[Row]:
    """The GPUs that the installed torch cannot use, why, and what to install."""
    torch = installed_torch()
    gpus = (
        unusable_gpus(torch, Driver(state.driver or "", state.cuda), state.devices)
        if torch is not None
        else {}
    )
    return [(f"{folded(ids)} torch", why) for why, ids in gpus.items()]


def gpu_rows(reading: DevicesReading) -> list[Row]:
    state, error = reading
    rows: list[Row] = [
        (
            "driver",
            f"{state.driver or 'unknown'}{f', runs CUDA {state.cuda}' if state.cuda else ''}",
        )
    ]
    if error:
        return [*rows, ("NVML", error)]
    if state.no_gpu_reason:
        return [*rows, ("NVML", f"{state.no_gpu_reason}; the host CPU is the device")]
    gpus = [device for device in state.devices if device.is_gpu]
    rows.append(("NVML", f"works, {in_words(gpus)}"))
    seen = seen_now(state, state.session_time(state.now))
    states = gpu_states(seen, gpus)
    rows += [(gpu.id, f"{gpu.name}; {_condition(state, gpu, states[gpu.id])}") for gpu in gpus]
    rows += [
        (f"{gpu.id} advice", advice)
        for gpu in gpus
        for advice in advice_on(seen, gpu, state.readings.present(gpu.id))
    ]
    rows += torch_rows(state)
    rows += [(source.source, source.detail) for source in state.sources.values() if source.detail]
    return rows


def other_gpu_rows() -> list[Row]:
    """A row for a GPU of AMD or Apple."""
    amd = any(_vendor(file) == AMD for file in DRM.glob("renderD*/device/vendor"))
    apple = sys.platform == "darwin" and platform.machine() == "arm64"
    return [
        (name, NVIDIA_ONLY) for name, found in (("AMD GPU", amd), ("Apple GPU", apple)) if found
    ]


def _vendor(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _condition(state: SessionState, gpu: Device, seen: GpuState) -> str:
    """Whether GPM works on a GPU, and its fault; else why the GPU itself does not answer, or why
    its state is not known."""
    missing = state.unavailable.get(gpu.id, {}).get(GPM_METRIC)
    gpm = f"GPM n/a: {missing}" if missing else "GPM works"
    if seen.kind == "lost":
        return seen.text
    if seen.kind == "sick":
        return f"{gpm}; {seen.text}"
    if seen.kind == "n/a":
        return seen.text if missing and missing in seen.reason else f"{gpm}; state {seen.text}"
    return gpm


def advice_on(seen: CurrentReadings, gpu: Device, values: dict[str, float]) -> list[str]:
    """Return advice about settings and defects that cost speed or data."""
    advice = []
    if gpu.facts.get("persistence") == "off":
        advice.append(
            "persistence mode is off: the first call of every program is slow (nvidia-smi -pm 1)"
        )
    if gpu.facts.get("ecc") == "off":
        advice.append("ECC is off: nothing reports memory errors")
    for now, most, what in (
        ("gpu.pcie_link_width", "gpu.pcie_link_width_max", "PCIe lanes"),
        ("gpu.power_limit_w", "gpu.power_limit_max_w", "W of power limit"),
    ):
        if now in values and most in values and values[now] < values[most]:
            advice.append(f"{values[now]:.0f} of {values[most]:.0f} {what}")
    if values.get("gpu.row_remap_failed") or values.get("gpu.ecc_uncorrected"):
        advice.append("uncorrectable memory errors: see nvidia-smi -q -d ECC,ROW_REMAPPER")
    elif values.get("gpu.row_remap_pending"):
        advice.append("a faulty memory row will be replaced at the next GPU reset")
    if mode := gpu.facts.get("ecc_pending"):
        advice.append(f"ECC will be {mode} after the next GPU reset")
    if unknown_errors(seen, gpu.id):
        advice.append(
            f"{UNKNOWN_ERROR} for a part of the readings: reset the GPU (nvidia-smi -r), or restart"
            " the machine"
        )
    if links := links_down(seen, gpu.id):
        advice.append(f"{links} are active. {LINK_ADVICE}, then reset the GPU")
    elif all_links_down(seen, gpu, values):
        advice.append(f"its NVLinks are all down. {LINK_ADVICE}")
    return advice


def all_links_down(seen: CurrentReadings, gpu: Device, values: dict[str, float]) -> bool:
    """Return whether a GPU beside others has NVLinks that need no bridge, and none is active."""
    others = [other for other in whole_gpus(seen.devices) if other.name == gpu.name]
    return (
        values.get("gpu.nvlinks_active") == 0
        and series_key("gpu.link_up", f"{gpu.id}/link:0") in seen.latest
        and len(others) > 1
        and not BRIDGED.search(gpu.name)
    )


def topology_rows(state: SessionState) -> list[Row]:
    """Number of GPU pairs for each kind of path, and the NUMA node of each GPU."""
    paths = Counter(link.path for link in state.links)
    rows = (
        [
            (
                "paths",
                ", ".join(
                    f"{path} {count} {'pair' if count == 1 else 'pairs'}"
                    for path, count in paths.most_common()
                ),
            )
        ]
        if paths
        else []
    )
    nodes: dict[tuple[str, str], list[str]] = {}
    for gpu in state.devices:
        if gpu.facts.get("numa_node") or gpu.facts.get("cpu_affinity"):
            nodes.setdefault(
                (gpu.facts.get("numa_node", "?"), gpu.facts.get("cpu_affinity", "?")), []
            ).append(gpu.id)
    rows += [
        (f"NUMA node {node}", f"CPUs {cpus}: {', '.join(gpus)}")
        for (node, cpus), gpus in nodes.items()
    ]
    return rows


def kernel_rows() -> list[Row]:
    rows = [(name, _readable(path, without)) for name, (path, without) in KERNEL_FILES.items()]
    return [*rows, (str(SHARED_MEMORY), shared_memory_text(SHARED_MEMORY))]


def shared_memory_text(folder: Path) -> str:
    """The size of shared memory, and whether it is enough for the batches of DataLoader workers."""
    try:
        total = shutil.disk_usage(folder).total
    except OSError as error:
        return f"{error.strerror}; DataLoader workers cannot pass batches"
    text = units.quantity(total, "bytes")
    if total >= MIN_SHARED_BYTES:
        return text
    return (
        f"{text}: DataLoader workers with large batches die with a bus error (docker run"
        " --shm-size=8g, or --ipc=host)"
    )


def _readable(path: Path, without: str) -> str:
    try:
        path.read_bytes()
    except OSError as error:
        return f"{path}: {error.strerror}; {without}"
    return "works"


def terminal_rows() -> list[Row]:
    is_terminal = sys.stdout.isatty()
    size = shutil.get_terminal_size()
    return [
        ("TERM", os.environ.get("TERM") or "not set"),
        ("encoding", sys.stdout.encoding or "unknown"),
        ("size", f"{size.columns}x{size.lines}" if is_terminal else "stdout is not a terminal"),
        ("colour", "off (NO_COLOR)" if os.environ.get("NO_COLOR") else "as the terminal supports"),
    ]


def missing_rows(reading: DevicesReading) -> list[Row]:
    """Every metric without a value, grouped by the reason."""
    state, error = reading
    by_gap: dict[tuple[str, str], list[str]] = {}
    for device, reasons in state.unavailable.items():
        for metric, reason in reasons.items():
            by_gap.setdefault((metric, reason), []).append(device)
    by_reason: dict[tuple[str, str], list[str]] = {}
    for (metric, reason), devices in by_gap.items():
        by_reason.setdefault((reason, folded(devices)), []).append(metric)
    rows = [
        (devices, f"{reason}: {', '.join(metrics)}")
        for (reason, devices), metrics in by_reason.items()
    ]
    if error:
        rows.append(("everything else", error))
    elif state.no_gpu_reason:
        rows.append(("gpu.*", state.no_gpu_reason))
    return rows or [("nothing", "every metric has a source")]


def folded(devices: list[str]) -> str:
    """Device ids with consecutive numbers as ranges: `gpu:0-7`, `gpu:0-7/link:0-17`."""
    parts_of: dict[str, list[str]] = {}
    for device in devices:
        gpu, _, part = device.partition("/")
        parts_of.setdefault(gpu, []).append(part)
    gpus_with: dict[tuple[str, ...], list[str]] = {}
    for gpu, parts in parts_of.items():
        gpus_with.setdefault(tuple(_ranges(parts)), []).append(gpu)
    return ", ".join(
        f"{gpus}/{part}".rstrip("/")
        for parts, named in gpus_with.items()
        for gpus in _ranges(named)
        for part in parts
    )


def _ranges(devices: list[str]) -> list[str]:
    """Numbered names, consecutive numbers as ranges."""
    parts: list[list[object]] = []
    for device in devices:
        head, _, tail = device.rpartition(":")
        number = int(tail) if tail.isdigit() else None
        last = parts[-1] if parts else None
        if last and number is not None and last[0] == head and last[2] == number - 1:
            last[2] = number
        else:
            parts.append([head, number if number is not None else tail, number])
    return [
        f"{head}:{low}-{high}" if high is not None and high != low else f"{head}:{low}".strip(":")
        for head, low, high in parts
    ]
