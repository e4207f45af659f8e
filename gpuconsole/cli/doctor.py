"""`gpuconsole doctor`."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path

from gpuconsole import __version__
from gpuconsole.cli.common import seconds
from gpuconsole.model.text import visible
from gpuconsole.telemetry.once import Look, look

EXAMPLES = """examples:
  gpuconsole doctor
"""
INSTALL_TORCH = 'not installed; training needs it: pip install "gpuconsole[torch]"'
# Any GPM metric tells whether the device has GPM; this one has no other conditions.
GPM_METRIC = "gpu.sm_active_ratio"
KERNEL_FILES = {
    "cpu pressure": (Path("/proc/pressure/cpu"), "run-queue delay reads n/a"),
    "io pressure": (Path("/proc/pressure/io"), "waiting for I/O reads n/a"),
    "memory pressure": (Path("/proc/pressure/memory"), "waiting for memory reads n/a"),
    "schedstat": (Path("/proc/self/schedstat"), "the training thread's wait for a core reads n/a"),
}

Row = tuple[str, str]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "doctor",
        help="what works on this machine, and why not",
        description="Say what works on this machine and what will read n/a, each with its reason. Changes nothing.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--timeout", type=seconds, default=10.0, metavar="S", help="how long to wait for the driver (default 10)")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0; 1 when the driver does not answer."""
    seen = look(timeout_s=args.timeout)
    print(report(seen))
    return 1 if seen.error else 0


def report(seen: Look) -> str:
    sections = {
        "program": program_rows(),
        "GPU": gpu_rows(seen),
        "kernel": kernel_rows(),
        "terminal": terminal_rows(),
        "reads n/a here": missing_rows(seen),
    }
    width = max(len(name) for rows in sections.values() for name, _ in rows)
    blocks = [[title, *(f"  {name:<{width}}  {visible(text)}" for name, text in rows)] for title, rows in sections.items()]
    return "\n\n".join("\n".join(block) for block in blocks)


def program_rows() -> list[Row]:
    return [("gpuconsole", __version__), ("python", sys.version.split()[0]), ("torch", torch_text())]


def torch_text() -> str:
    """Torch's version and the CUDA that it was built for, without importing it."""
    try:
        torch = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return INSTALL_TORCH
    cuda = _torch_cuda(Path(str(torch.locate_file("torch/version.py"))))
    return f"{torch.version}, {f'built for CUDA {cuda}' if cuda else 'CPU only'}"


def _torch_cuda(version_file: Path) -> str | None:
    """The `cuda` that torch's generated version.py names; None for a CPU build."""
    try:
        text = version_file.read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^cuda\b[^=]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return found[1] if found else None


def gpu_rows(seen: Look) -> list[Row]:
    rows: list[Row] = [("driver", seen.driver or "unknown")]
    if seen.error:
        return [*rows, ("NVML", seen.error)]
    if seen.no_gpu:
        return [*rows, ("NVML", f"{seen.no_gpu}; the host CPU is the device")]
    gpus = [device for device in seen.devices if device.is_gpu]
    rows.append(("NVML", f"works, {len(gpus)} {'GPU' if len(gpus) == 1 else 'GPUs'}"))
    for gpu in gpus:
        missing = seen.lost.get(gpu.id) or seen.unavailable.get(gpu.id, {}).get(GPM_METRIC)
        rows.append((gpu.id, f"{gpu.name}; GPM {f'n/a: {missing}' if missing else 'works'}"))
    return rows


def kernel_rows() -> list[Row]:
    return [(name, _readable(path, without)) for name, (path, without) in KERNEL_FILES.items()]


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
        ("size", f"{size.columns}x{size.lines}" if is_terminal else "stdout is no terminal"),
        ("colour", "off (NO_COLOR)" if os.environ.get("NO_COLOR") else "as the terminal can"),
    ]


def missing_rows(seen: Look) -> list[Row]:
    """Every metric without a value, the GPUs that miss it for the same reason on one line."""
    devices_by_gap: dict[tuple[str, str], list[str]] = {}
    for device, reasons in seen.unavailable.items():
        for metric, reason in reasons.items():
            devices_by_gap.setdefault((metric, reason), []).append(device)
    rows = [(metric, f"{reason} ({', '.join(devices)})") for (metric, reason), devices in devices_by_gap.items()]
    if seen.error:
        rows.append(("everything else", seen.error))
    elif seen.no_gpu:
        rows.append(("gpu.*", seen.no_gpu))
    return rows or [("nothing", "every metric has a source")]
