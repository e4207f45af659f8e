"""One process in full: its facts and its command line."""

from __future__ import annotations

import datetime
from functools import lru_cache

from gpuconsole.model.machine.process import Process
from gpuconsole.report import facts, units
from gpuconsole.report.cells import Row, blank, cell_width, line
from gpuconsole.report.machine.processes import age
from gpuconsole.report.names import plain
from gpuconsole.report.page import heading, labelled
from gpuconsole.session.api import View


def paint_process(view: View, process: Process, width: int, wall: float | None) -> list[Row]:
    """All rows. `wall` is the Unix time of `view`, None: not known."""
    rows = [heading(f"{process.pid}  {plain(process.name[:width]) or '(name n/a)'}", width), blank(width)]
    for label, text in _facts(view, process, wall):
        rows += labelled(f"  {label}", text or units.NA, width, 14, "dim" if not text else "")
    rows += [blank(width), heading("command line", width)]
    if not process.command:
        return [*rows, line(width, ("  n/a: this user cannot read it", "dim"))]
    return rows + [line(width, text) for text in _wrapped(process.command, max(8, width - 4))]


def _facts(view: View, process: Process, wall: float | None) -> list[tuple[str, str]]:
    device = next((one for one in view.devices if one.id == process.device), None)
    memory = units.size_bytes(process.memory_bytes).strip() if process.memory_bytes is not None else ""
    if memory and device is not None and device.memory_bytes:
        memory += f", {units.percent((process.memory_bytes or 0) / device.memory_bytes).strip()} of the device"
    user = plain(process.user[:200])
    if process.uid is not None:
        user = f"{user} (uid {process.uid})" if user else f"uid {process.uid}"
    others = sorted({one.device for one in view.processes if one.pid == process.pid and one.device != process.device})
    return [
        ("device", f"{process.device}   {facts.short_name(device.name)}" if device else process.device),
        ("also on", ", ".join(others) or "no other device"),
        ("kind", plain(process.kind[:100])),
        ("user", user),
        ("container", plain(process.container[:200]) or "none found"),
        ("parent", _parent(view, process)),
        ("started", _started(process, wall)),
        ("memory", memory),
        ("SM", units.percent(process.sm_ratio).strip() if process.sm_ratio is not None else ""),
        ("CPU", f"{process.cpu_ratio * 100:.0f} % of a core" if process.cpu_ratio is not None else ""),
    ]


def _parent(view: View, process: Process) -> str:
    if not process.parent:
        return ""
    known = next((one for one in view.processes if one.pid == process.parent), None)
    return f"{process.parent}  {plain(known.name[:200])}" if known else f"{process.parent}  (uses no device)"


def _started(process: Process, wall: float | None) -> str:
    if not process.started:
        return ""
    moment = datetime.datetime.fromtimestamp(process.started).isoformat(" ", "seconds")
    return f"{moment}, {age(wall - process.started)} ago" if wall is not None else moment


@lru_cache(maxsize=4)
def _wrapped(command: str, width: int) -> tuple[str, ...]:
    """The command in lines of at most `width` cells, broken at blanks where possible."""
    lines: list[str] = []
    rest = plain(command, right_to_left=True)
    at = 0
    while at < len(rest):
        end, used, blank_at = at, 0, 0
        while end < len(rest):
            used += 1 if rest[end] < "\u0300" else cell_width(rest[end])
            if used > width:
                break
            end += 1
            if rest[end - 1] == " ":
                blank_at = end
        if end < len(rest) and blank_at > at + width // 2:
            end = blank_at
        lines.append("  " + rest[at:end])
        at = max(end, at + 1)
    return tuple(lines)
