"""`gpuconsole devices`."""

from __future__ import annotations

import argparse
import sys

from gpuconsole.cli.common import seconds, to_json
from gpuconsole.model.device import Device
from gpuconsole.model.metrics import CATALOGUE
from gpuconsole.model.text import visible
from gpuconsole.telemetry.once import Look, look
from gpuconsole.tui.paint.format import quantity

EXAMPLES = """examples:
  gpuconsole devices
  gpuconsole devices --json | jq '.devices[0].values'
"""
NA = "n/a"
CORE_METRIC = "host.core_busy_ratio"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "devices",
        help="list devices with their current values, and what each cannot report",
        description="List the GPUs and the host with the value of every metric now, or the reason why there is none.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="values in SI units, by metric name")
    parser.add_argument("--timeout", type=seconds, default=10.0, metavar="S", help="how long to wait for the driver (default 10)")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0; 1 when the driver does not answer, after what is known has been printed."""
    seen = look(timeout_s=args.timeout)
    print(to_json(as_json(seen)) if args.json else as_text(seen))
    if seen.error:
        print(f"gpuconsole: {visible(seen.error)}", file=sys.stderr)
    return 1 if seen.error else 0


def as_json(seen: Look) -> dict[str, object]:
    devices = [
        {
            "id": device.id,
            "name": device.name,
            "uuid": device.uuid,
            "memory_bytes": device.memory_bytes,
            "pcie": device.pcie,
            "nvlink": device.nvlink,
            "peaks": device.peaks,
            "lost": seen.lost.get(device.id),
            "values": seen.values.get(device.id, {}),
            "unavailable": seen.unavailable.get(device.id, {}),
        }
        for device in seen.devices
    ]
    return {"driver": seen.driver, "no_gpu": seen.no_gpu or None, "error": seen.error or None, "devices": devices}


def as_text(seen: Look) -> str:
    head = [f"driver {visible(seen.driver)}"] if seen.driver else []
    if seen.no_gpu:
        head.append(f"no GPU: {visible(seen.no_gpu)}")
    return "\n\n".join(head + [_device_text(device, seen) for device in seen.devices])


def _device_text(device: Device, seen: Look) -> str:
    lines = [_title(device)]
    if device.id in seen.lost:
        return "\n".join([*lines, f"  lost: {visible(seen.lost[device.id])}"])
    values, reasons = seen.values.get(device.id, {}), seen.unavailable.get(device.id, {})
    for name, metric in CATALOGUE.items():
        if name in values:
            lines.append(f"  {name:<30} {quantity(values[name], metric.unit):>12}  {metric.source}")
        elif name in reasons:
            lines.append(f"  {name:<30} {NA:>12}  {visible(reasons[name])}")
    if not device.is_gpu:
        lines += _cores(seen)
    return "\n".join(lines)


def _title(device: Device) -> str:
    facts = [quantity(device.memory_bytes, "bytes")] if device.memory_bytes else []
    facts += [visible(device.pcie)] if device.pcie else []
    facts += [f"NVLink {visible(device.nvlink)}"] if device.nvlink else []
    facts += [visible(device.uuid)] if device.uuid else []
    return "  ".join([device.id, visible(device.name), *facts])


def _cores(seen: Look) -> list[str]:
    """The busy share of every core, in percent, sixteen to a line."""
    busy = [values[CORE_METRIC] for device, values in seen.values.items() if device.startswith("cpu:") and CORE_METRIC in values]
    rows = [busy[start : start + 16] for start in range(0, len(busy), 16)]
    labels = [f"{CORE_METRIC} (%)"] + [""] * len(rows)
    return [f"  {label:<30}  {' '.join(f'{100 * share:3.0f}' for share in row)}" for label, row in zip(labels, rows, strict=False)]
