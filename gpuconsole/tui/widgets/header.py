"""The first rows: host, present run, and each device in a line."""

from __future__ import annotations

from gpuconsole.model import units
from gpuconsole.model.machine import Device
from gpuconsole.report.cells import Row, Segment, line_of, row_width, spread
from gpuconsole.report.machine.fleet import fleet_rows
from gpuconsole.report.run.account import share_text
from gpuconsole.report.run.figures import doubtful, outage
from gpuconsole.session import facts
from gpuconsole.session.api import View

CUT = {
    "gpu.clocks_hw_thermal": "clocks cut by the hardware: heat",
    "gpu.clocks_power_brake": "clocks cut from outside: power brake",
    "gpu.clocks_hw_slowdown": "clocks cut by the hardware",
    "gpu.row_remap_failed": "memory is worn: it needs service",
}
"""Conditions that need action, worst first."""


def paint_header(view: View, width: int, height: int) -> list[Row]:
    """The title row, then as many devices as fit; the rest is counted. While something runs, its device has a zone of its own."""
    shown = _shown(view)
    rows = [_title(view, width)]
    room = height - 1
    many = has_fleet(view)
    for n, device in enumerate(shown[:room]):
        left_out = len(shown) - room if n == room - 1 and not many else 0
        rows.append(_strip(view, device, width, left_out))
    return rows[:height]


def header_rows(view: View) -> int:
    """How many rows the header can use."""
    return 1 + len(_shown(view))


def _shown(view: View) -> list[Device]:
    """The devices that have a row: not the device of a run, and not the GPUs that a strip shows."""
    devices = _devices(view)[:1] if has_fleet(view) else _devices(view)
    return devices if view.run is None else devices[1:]


def device_line(view: View, width: int) -> Row:
    """The device that runs use, in a line, with its present figures."""
    return _strip(view, facts.device(view), width, 0)


def has_fleet(view: View) -> bool:
    return fleet_rows(view, 1) > 0


def _devices(view: View) -> list[Device]:
    """The GPUs, the GPU in use first; the host where there is no GPU."""
    current = facts.device(view)
    return [current] + [one for one in view.devices if one.is_gpu and one.id != current.id]


def _title(view: View, width: int) -> Row:
    """Program, host and device at the left, the run and its throughput at the right. What matters least is left out first."""
    left: list[list[Segment]] = [[("gpuconsole", "title"), *([("  ", ""), (" RECORDING ", "mark")] if view.recording else [])]]
    right = [_trouble(view) or _activity(view)]
    room = width - 1 - row_width(line_of(left[0])) - row_width(line_of(right[0]))
    no_gpu = not any(one.is_gpu for one in view.devices)
    device, host = [(f"   {_device_name(view)}", "dim")], [(f"   {view.environment.host}", "dim")]
    numbers = [] if _trouble(view) else [(right, _rate(view)), (right, _share(view)), (right, _since_start(view))]
    wanted = [(left, device), *numbers] if no_gpu else [*numbers, (left, device)]  # that there is no GPU is said in any case
    for side, parts in [*wanted, (left, host), (right, _overhead(view))]:
        if parts and row_width(line_of(parts)) <= room:
            side.append(parts)
            room -= row_width(line_of(parts))
    if device in left and host in left:
        left = [left[0], host, device]
    return spread(width, [part for parts in left for part in parts], [(" ", ""), *(part for parts in right for part in parts)])


def _device_name(view: View) -> str:
    gpus = [one for one in view.devices if one.is_gpu and not one.is_mig]
    if not gpus:
        return "CPU (no GPU)"
    name = facts.short_name(gpus[0].name)
    return f"{len(gpus)}x {name}" if len(gpus) > 1 else name


def _overhead(view: View) -> list[Segment]:
    """The CPU time of the console itself."""
    return [(f"   overhead {units.digits(view.own_cpu_ratio * 100):>4} %", "dim")] if view.own_cpu_ratio is not None else []


def _share(view: View) -> list[Segment]:
    """The reached part of the rate that this hardware could reach for this work."""
    words = share_text(view.run) if view.run is not None and facts.active(view) else ""
    return [(f"  {words}", "")] if words else []


def _rate(view: View) -> list[Segment]:
    """The present throughput."""
    metric, unit = facts.throughput_metric(view)
    value = facts.latest(view, metric)
    return [(f"  {units.rate(value)}", "title"), (f" {unit}", "")] if value is not None and facts.active(view) else []


def _since_start(view: View) -> list[Segment]:
    gain = facts.since_start(view)
    return [(f"  {gain.words}", "good" if gain.proven and gain.ratio > 1 else "")] if gain is not None else []


def _trouble(view: View) -> list[Segment]:
    """A model server that does not answer; else a source that does not answer, with the call that it waits for and the time; else a device that
    needs action."""
    if view.down:
        return [(outage(view), "alert")]
    for state in view.sources.values():
        if state.stuck_s:
            return [(f"{state.source} has not answered for {state.stuck_s:.0f} s: {state.detail}", "alert")]
    for device in view.devices:
        for metric, words in CUT.items():
            if facts.latest(view, metric, device.id):
                return [(f"{device.id}: {words}", "alert")]
    return []


def _activity(view: View) -> list[Segment]:
    run = view.run
    parts: list[Segment] = []
    if view.recording_to:
        parts.append(("● rec  ", "accent"))
    if run is None:
        parts.append(("no run", "dim"))
        return parts
    style = "alert" if run.state == "failed" else ""
    state = "ended" if view.ended and run.state == "running" else run.state
    parts.append((run.scenario, "title"))
    if (several := facts.processes(run)) > 1:
        parts.append((f"  {several} processes", ""))
    parts.append((f"  {state} {units.clock(view.running_s)}", style))
    if agent := facts.agent_state(view):
        parts.append((f"  agent {agent}", "alert" if agent == "off" else "dim"))
    if run.state != "failed" and run.validity is not None and doubtful(run):
        parts.append((f"  {run.validity.verdict}", "alert"))
    return parts


def _strip(view: View, device: Device, width: int, left_out: int) -> Row:
    left = _gpu_strip(view, device, width) if device.is_gpu else _cpu_strip(view, device, width)
    right: list[Segment] = [(f"  +{left_out} more: i", "dim")] if left_out > 0 else []
    return spread(width, left, right)


def _gpu_strip(view: View, device: Device, width: int) -> list[Segment]:
    name: Segment = (f"{device.id} {facts.short_name(device.name)}", "accent" if device.id == view.device else "")
    if device.id in view.lost:
        return [name, (f"   lost: {view.lost[device.id]}", "alert")]
    if silent := facts.silent_s(view, device.id):
        return [name, (f"   last reading {silent:.0f} s ago", "alert")]

    def value(metric: str) -> float | None:
        return facts.latest(view, metric, device.id)

    power, limit = value("gpu.power_w"), value("gpu.power_limit_w")
    watts = f"{power:3.0f}/{limit:.0f} W" if power is not None and limit else f"{power:3.0f} W" if power is not None else "power n/a"
    warmth = value("gpu.temperature_c")
    figures = [
        f"SM {units.percent(value('gpu.sm_active_ratio'))}",
        f"tensor {units.percent(value('gpu.tensor_active_ratio'))}",
        f"HBM {units.used_of(value('gpu.hbm_used_bytes'), value('gpu.hbm_total_bytes'))}",
        *(
            [f"HBM bw {units.si(value('gpu.hbm_bytes_per_s'), 'B/s')} {units.percent(value('gpu.dram_active_ratio'))}"]
            if width >= 100
            else []
        ),
        watts,
        f"{warmth:2.0f} °C" if warmth is not None else "temp n/a",
        *([f"power cap {units.percent(capped)} of time"] if (capped := value("gpu.power_cap_time_ratio")) else []),
        f"SM clock {units.si(value('gpu.sm_clock_hz'), 'Hz').strip()}",
    ]
    return _fitting(name, figures, width)


def _cpu_strip(view: View, device: Device, width: int) -> list[Segment]:
    why = view.no_gpu_reason
    cores = view.environment.cores
    busy = facts.latest(view, "host.cores_busy")
    memory = units.used_of(facts.latest(view, "host.memory_used_bytes"), facts.latest(view, "host.memory_total_bytes"))
    label = f"CPU (no GPU: {why})" if why else "CPU" if any(one.is_gpu for one in view.devices) else "CPU (no GPU)"
    figures = [
        facts.short_name(device.name),
        f"cores busy {f'{busy:4.1f}' if busy is not None else units.NA}" + (f" of {cores}" if cores else ""),
        f"memory {memory}",
        f"waiting for a core {units.percent(facts.latest(view, 'host.run_queue_delay_ratio'))}",
    ]
    return _fitting((label, "accent"), figures, width)


def _fitting(name: Segment, figures: list[str], width: int) -> list[Segment]:
    """`name`, then the figures that fit whole: a cut number is a wrong number."""
    parts: list[Segment] = [name]
    room = width - row_width(line_of(parts))
    for text in figures:
        if row_width(line_of([(text, "")])) + 3 > room:
            continue
        parts.append((f"   {text}", ""))
        room -= row_width(line_of([parts[-1]]))
    return parts
