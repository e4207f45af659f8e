"""`gpuconsole devices`."""

from __future__ import annotations

import argparse
import sys

import msgspec

from gpuconsole.cli.options.console import dcgm
from gpuconsole.cli.options.files import to_json
from gpuconsole.cli.options.usage import seconds
from gpuconsole.model.machine.device import Device
from gpuconsole.model.machine.process import Process
from gpuconsole.model.metrics.catalogue import CATALOGUE, series_key
from gpuconsole.model.text import visible
from gpuconsole.processes.once import Reading, read_devices
from gpuconsole.report.units import quantity
from gpuconsole.session.state import SessionState

EXAMPLES = """examples:
  gpuconsole devices
  gpuconsole devices --json | jq '.devices[0].values'
"""
NA = "n/a"
NAME_WIDTH = 36
LINK_WORDS = {
    "gpu.link_rx_bytes_per_s": "rx",
    "gpu.link_tx_bytes_per_s": "tx",
    "gpu.link_replays": "replays",
    "gpu.link_recoveries": "recoveries",
    "gpu.link_crc_errors": "CRC errors",
}
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
    parser.add_argument("--dcgm", default=argparse.SUPPRESS, metavar="URL", help="a dcgm-exporter's /metrics, for what NVML cannot report")
    parser.add_argument("--timeout", type=seconds, default=10.0, metavar="S", help="how long to wait for the driver (default 10)")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0; 1 when the driver does not answer, after what is known has been printed."""
    reading = read_devices(timeout_s=args.timeout, dcgm=dcgm(args))
    print(to_json(as_json(reading)) if args.json else as_text(reading.state))
    if reading.error:
        print(f"gpuconsole: {visible(reading.error)}", file=sys.stderr)
    return 1 if reading.error else 0


def as_json(reading: Reading) -> dict[str, object]:
    """The JSON of `--json`: SI units, by metric name."""
    state, readings = reading.state, reading.state.readings
    links = [device for device in readings.devices() if "/link:" in device]
    devices = [
        {
            "id": device.id,
            "name": device.name,
            "uuid": device.uuid,
            "memory_bytes": device.memory_bytes,
            "pcie": device.pcie,
            "nvlink": device.nvlink,
            "peaks": device.peaks,
            "facts": device.facts,
            "lost": state.lost.get(device.id),
            "values": readings.present(device.id),
            "sources": {metric: readings.substitutes[key] for metric, key, _ in readings.values(device.id) if key in readings.substitutes},
            "unavailable": state.unavailable.get(device.id, {}),
            "links": {
                name.removeprefix(f"{device.id}/"): readings.present(name) for name in links if name.startswith(f"{device.id}/link:")
            },
            "processes": [_without_command(process) for process in state.processes if process.device == device.id],
        }
        for device in state.devices
    ]
    return {
        "driver": state.driver,
        "no_gpu": state.no_gpu_reason or None,
        "error": reading.error or None,
        "devices": devices,
        "topology": state.links,
    }


def _without_command(process: Process) -> dict[str, object]:
    """Command lines may hold secrets, and this goes into files and tickets."""
    return {name: value for name, value in msgspec.to_builtins(process).items() if name not in ("command", "device")}


def as_text(state: SessionState) -> str:
    head = [f"driver {visible(state.driver)}"] if state.driver else []
    if state.no_gpu_reason:
        head.append(f"no GPU: {visible(state.no_gpu_reason)}")
    return "\n\n".join(head + [_device_text(device, state) for device in state.devices])


def _device_text(device: Device, state: SessionState) -> str:
    lines = [_title(device)]
    if device.id in state.lost:
        return "\n".join([*lines, f"  lost: {visible(state.lost[device.id])}"])
    readings = state.readings
    values, reasons = readings.present(device.id), state.unavailable.get(device.id, {})
    for name, metric in CATALOGUE.items():
        if name in values:
            source = readings.substitutes.get(series_key(name, device.id), metric.source)
            lines.append(f"  {name:<{NAME_WIDTH}} {quantity(values[name], metric.unit):>12}  {source}")
        elif name in reasons:
            lines.append(f"  {name:<{NAME_WIDTH}} {NA:>12}  {visible(reasons[name])}")
    if device.is_gpu:
        lines += _links(device, state) + _processes(device, state)
    if not device.is_gpu:
        lines += _cores(state)
    return "\n".join(lines)


def _title(device: Device) -> str:
    facts = [quantity(device.memory_bytes, "bytes")] if device.memory_bytes else []
    facts += [visible(device.pcie)] if device.pcie else []
    facts += [f"NVLink {visible(device.nvlink)}"] if device.nvlink else []
    facts += [visible(device.uuid)] if device.uuid else []
    return "  ".join([device.id, visible(device.name), *facts])


def _links(device: Device, state: SessionState) -> list[str]:
    """Its NVLinks that are up, a line each, and its paths to the other GPUs."""
    lines = []
    for name in state.readings.devices():
        values = state.readings.present(name) if name.startswith(f"{device.id}/link:") else {}
        if values.get("gpu.link_up"):
            parts = [
                f"{label} {quantity(values[metric], CATALOGUE[metric].unit)}" for metric, label in LINK_WORDS.items() if metric in values
            ]
            lines.append(f"  {name.removeprefix(f'{device.id}/'):<{NAME_WIDTH}} {'  '.join(parts)}")
    paths = [f"{link.b if link.a == device.id else link.a} {link.path}" for link in state.links if device.id in (link.a, link.b)]
    return lines + ([f"  {'paths':<{NAME_WIDTH}} {', '.join(paths)}"] if paths else [])


def _processes(device: Device, state: SessionState) -> list[str]:
    lines = []
    for process in state.processes:
        if process.device == device.id:
            memory = quantity(process.memory_bytes, "bytes") if process.memory_bytes is not None else NA
            who = visible(" ".join(filter(None, (process.user, process.name)))) or "not visible from here"
            lines.append(f"  {f'process {process.pid}':<{NAME_WIDTH}} {memory:>12}  {process.kind}  {who}")
    return lines


def _cores(state: SessionState) -> list[str]:
    """The busy share of every core, in percent, sixteen to a line."""
    cores = (state.readings.present(device) for device in state.readings.devices() if device.startswith("cpu:"))
    busy = [values[CORE_METRIC] for values in cores if CORE_METRIC in values]
    rows = [busy[start : start + 16] for start in range(0, len(busy), 16)]
    labels = [f"{CORE_METRIC} (%)"] + [""] * len(rows)
    return [
        f"  {label:<{NAME_WIDTH}}  {' '.join(f'{100 * share:3.0f}' for share in row)}" for label, row in zip(labels, rows, strict=False)
    ]
