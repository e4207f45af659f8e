"""`gpuconsole devices`: a line for each GPU, or all of its metrics."""

from __future__ import annotations

import argparse

import msgspec

from gpuconsole.cli import output
from gpuconsole.cli.exits import exit_code
from gpuconsole.cli.options import DCGM, JSON, TIMEOUT, Option
from gpuconsole.cli.values import dcgm
from gpuconsole.engine.children.once import DevicesReading, read_devices
from gpuconsole.host.cores import allowed_cores
from gpuconsole.model.machine import NO_GPU_REASONS, Process
from gpuconsole.model.snapshot import Environment
from gpuconsole.report.machine.devices import devices_report, short_report
from gpuconsole.session.api import View
from gpuconsole.session.gpu_state import GpuState
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import make_view, states_now

HELP = "list what each GPU does and who uses it"
DESCRIPTION = (
    "List each GPU in a line: what it does, its vital figures, and who uses it; then why a GPU is"
    " lost, sick or n/a. With --long, every metric of every device, or the reason why it has no"
    " value."
)
EXAMPLES = """examples:
  gpuconsole devices --long
  watch -n 1 gpuconsole devices
  gpuconsole devices --json | jq '.devices[0].values'
"""
LONG = Option(
    "--long",
    "every metric of every device, with its source or the reason why it has no value",
    refused={"--json": "does not go with --json, which has every metric"},
)
OPTIONS = (
    LONG,
    JSON._replace(help="values in SI units, by metric name"),
    DCGM._replace(help="a dcgm-exporter's /metrics, for what NVML cannot report"),
    TIMEOUT,
)


def run(args: argparse.Namespace) -> int:
    """Exit code OK, or FAILED if the driver does not answer or cannot be used. Even then, the known
    values are printed."""
    brief = not args.long and not args.json
    reading = read_devices(timeout_s=args.timeout, dcgm=dcgm(args), brief=brief)
    report = devices_report if args.long else short_report
    output.show_result(
        args, as_json(reading) if args.json else None, lambda: report(as_view(reading.state))
    )
    if reading.error:
        output.problem(reading.error)
    why = reading.state.no_gpu_reason
    return exit_code(reading.error or (why and why not in NO_GPU_REASONS))


def as_json(reading: DevicesReading) -> dict[str, object]:
    """The JSON of `--json`: SI units, by metric name."""
    state, readings = reading.state, reading.state.readings
    states = states_now(state, state.session_time(state.now))
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
            **_state_of(states.get(device.id)),
            "values": readings.present(device.id),
            "sources": {
                metric: readings.substitutes[key]
                for metric, key, _ in readings.values(device.id)
                if key in readings.substitutes
            },
            "unavailable": state.unavailable.get(device.id, {}),
            "links": {
                name.removeprefix(f"{device.id}/"): readings.present(name)
                for name in links
                if name.startswith(f"{device.id}/link:")
            },
            "processes": [
                _without_command(process)
                for process in state.processes
                if process.device == device.id
            ],
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


def _state_of(gpu: GpuState | None) -> dict[str, str | None]:
    """Return the state of a GPU (see `session/gpu_state.py`) and its reason. Empty for the host."""
    return {"state": gpu.kind, "state_reason": gpu.reason or None} if gpu is not None else {}


def _without_command(process: Process) -> dict[str, object]:
    """A process without command lines: these may contain secrets, and users copy this output into
    files and tickets."""
    return {
        name: value
        for name, value in msgspec.to_builtins(process).items()
        if name not in ("command", "launcher", "device")
    }


def as_view(state: SessionState) -> View:
    return make_view(
        state,
        now=state.now,
        environment=Environment(driver=state.driver, cores=allowed_cores()),
        device="cpu",
        probing="",
        recording=False,
        recording_to="",
        ended=False,
    )
