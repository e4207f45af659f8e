"""The first rows: host, present run, and each device in a line."""

from __future__ import annotations

from gpuconsole.model import units
from gpuconsole.model.device_columns import ALARMS
from gpuconsole.model.machine import Device
from gpuconsole.model.text import plain
from gpuconsole.report.cells import Row, Segment, line_of, row_width, spread
from gpuconsole.report.machine.columns import device_line, gpu_lines
from gpuconsole.report.machine.fleet import fleet_rows
from gpuconsole.report.machine.gpus import same_name, short_names
from gpuconsole.report.machine.tiles import ELSEWHERE
from gpuconsole.report.run.breakdown import share_text
from gpuconsole.report.run.figures import doubtful, outage
from gpuconsole.session import facts
from gpuconsole.session.api import View
from gpuconsole.session.gpu_state import faults, in_words, whole_gpus


def paint_header(view: View, width: int, height: int) -> list[Row]:
    """The title row, then as many devices as fit; the rest is counted. While something runs, its
    device has a zone of its own."""
    devices, room = _devices(view), height - 1
    shown = devices[: max(0, room)]
    gpus = iter(gpu_lines(view, [device for device in shown if device.is_gpu], width))
    rows = [_title(view, width)]
    for n, device in enumerate(shown):
        left_out = len(devices) - room if n == room - 1 and not fleet_rows(view, 1) else 0
        rows.append(
            spread(
                width,
                next(gpus) if device.is_gpu else device_line(view, device, width),
                [(f"  +{left_out} more: i", "dim")] if left_out > 0 else [],
            )
        )
    return rows[:height]


def header_rows(view: View) -> int:
    """How many rows the header can use."""
    return 1 + len(_devices(view))


def _devices(view: View) -> list[Device]:
    """The devices that have a row, the device in use first: not the device of a run, and not the
    GPUs that a strip shows."""
    if facts.server_is_elsewhere(view):
        return []
    current = facts.device(view)
    others = (
        []
        if fleet_rows(view, 1)
        else [device for device in view.devices if device.is_gpu and device.id != current.id]
    )
    return [current, *others] if view.run is None else others


def _title(view: View, width: int) -> Row:
    """Program, host and device at the left, the run and its throughput at the right. What matters
    least is left out first."""
    right = [_trouble(view) or _activity(view)]
    replay = replay_mark(view)
    named: list[Segment] = [("gpuconsole", "title"), *([("  ", "")] if replay else []), *replay]
    fits = not replay or row_width(line_of(named)) + 1 + row_width(line_of(right[0])) <= width
    left: list[list[Segment]] = [named if fits else replay]
    room = width - 1 - row_width(line_of(left[0])) - row_width(line_of(right[0]))
    no_gpu = not any(device.is_gpu for device in view.devices)
    device, host = [(f"   {_device_name(view)}", "dim")], [(f"   {view.environment.host}", "dim")]
    if facts.server_is_elsewhere(view):
        device, host = [(f"   {ELSEWHERE}", "dim")], []
    numbers = (
        []
        if _trouble(view)
        else [(right, _rate(view)), (right, _share(view)), (right, _since_start(view))]
    )
    # that there is no GPU is said in any case
    wanted = [(left, device), *numbers] if no_gpu else [*numbers, (left, device)]
    for side, parts in [*wanted, (left, host), (right, _console_cpu(view))]:
        if parts and row_width(line_of(parts)) <= room:
            side.append(parts)
            room -= row_width(line_of(parts))
    if device in left and host in left:
        left = [left[0], host, device]
    return spread(
        width,
        [part for parts in left for part in parts],
        [(" ", ""), *(part for parts in right for part in parts)],
    )


def replay_mark(view: View) -> list[Segment]:
    """That a recording is shown: which moment of it, how fast where it is not the speed of the
    session, or that it is paused."""
    if not view.recording:
        return []
    playback = view.playback
    if playback is None:
        return [(" REPLAY ", "mark")]
    mark: Segment = (
        f" REPLAY {units.clock(playback.at_s)} of {units.clock(playback.length_s)} ",
        "mark",
    )
    if playback.seeking:
        return [mark, (" seeking", "title")]
    if playback.paused:
        return [mark, (" paused", "title")]
    return [mark, (f" {playback.speed:g}x", "title")] if playback.speed != 1 else [mark]


def _device_name(view: View) -> str:
    """`8x H200`; `16 GPUs of 4 kinds` where they differ."""
    gpus = whole_gpus(view.devices)
    if not gpus:
        return "CPU (no NVIDIA GPU)"
    kinds = len(short_names(view, gpus))
    return same_name(view, gpus) or f"{in_words(gpus)} of {kinds} kinds"


def _console_cpu(view: View) -> list[Segment]:
    """The CPU time of the console itself, as a share of one core."""
    return (
        [(f"   console {units.digits(view.own_cpu_ratio * 100):>4} % CPU", "dim")]
        if view.own_cpu_ratio is not None
        else []
    )


def _share(view: View) -> list[Segment]:
    """The reached part of the rate that this hardware could reach for this work."""
    share = share_text(view.run) if view.run is not None and facts.active(view) else ""
    return [(f"  {share}", "")] if share else []


def _rate(view: View) -> list[Segment]:
    """The present throughput."""
    metric, unit = facts.throughput_metric(view)
    value = facts.latest(view, metric)
    return (
        [(f"  {units.rate(value)}", "title"), (f" {unit}", "")]
        if value is not None and facts.active(view)
        else []
    )


def _since_start(view: View) -> list[Segment]:
    gain = facts.since_start(view)
    return (
        [(f"  {gain.words}", "good" if gain.proven and gain.ratio > 1 else "")]
        if gain is not None
        else []
    )


def _trouble(view: View) -> list[Segment]:
    """A model server that does not answer; else a source that does not answer, with the call that
    it waits for and the time; else a device that needs action."""
    if view.down:
        return [(outage(view), "alert")]
    for state in view.sources.values():
        if state.source in view.slow:
            return [(f"{state.source}: {state.detail}", "alert")]
        if state.stuck_s:
            stuck = f"{state.source} has not answered for {state.stuck_s:.0f} s: {state.detail}"
            return [(stuck, "alert")]
    if view.run is None:
        return _worst_fault(view)
    for device in view.devices:
        for metric, meaning in ALARMS.items():
            if meaning and facts.latest(view, metric, device.id):
                return [(f"{device.id}: {meaning}", "alert")]
    return []


def _worst_fault(view: View) -> list[Segment]:
    """The worst fault of a GPU, and how many GPUs have another one: lost GPUs, then faults by their
    order."""
    gpus = [gpu.id for gpu in whole_gpus(view.devices)]
    by_rank = [(0, f"{gpu} lost: {plain(view.lost[gpu])}") for gpu in gpus if gpu in view.lost]
    for gpu in gpus:
        new = [fault for fault in faults(view, gpu) if fault.is_new and gpu not in view.lost]
        by_rank += [(1 if new[0].breaks else 2, f"{gpu}: {new[0].words}")] if new else []
    if not by_rank:
        return []
    more = f", {len(by_rank) - 1} more with a fault" if len(by_rank) > 1 else ""
    return [(min(by_rank)[1] + more, "alert")]


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
    parts.append((f"  {state} {units.clock(facts.clock_s(view))}", style))
    if facts.agent_is_off(view):
        parts.append(("  no agent", "alert"))
    if run.state != "failed" and run.validity is not None and doubtful(run):
        parts.append((f"  {run.validity.verdict}", "alert"))
    return parts
