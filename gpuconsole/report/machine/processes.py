"""The table of processes on the devices, and one process in full. Names and commands are text from outside: `plain` makes them safe."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

from gpuconsole.model import units
from gpuconsole.model.machine import Process
from gpuconsole.model.text import cell_width, cut, plain
from gpuconsole.report.cells import Row, Segment, blank, fit, line
from gpuconsole.report.names import spans
from gpuconsole.report.page import Lines, heading, labelled, paragraph, text_lines
from gpuconsole.session import facts
from gpuconsole.session.api import View

# --- the table of processes on the devices -------------------------------------------------------------------

Id = tuple[str, int, float]
"""Identifies a process on a device, also after its pid was reused."""


class Choice(NamedTuple):
    """Order, tree and filter of the table."""

    sort: str = "memory"
    reverse: bool = False
    tree: bool = False
    needle: str = ""


class Entry(NamedTuple):
    """A line: a process; or, with `process` None, a parent of several processes that uses no device itself, with their sums."""

    process: Process | None
    depth: int = 0
    pid: int = 0
    children: tuple[Process, ...] = ()


class _Order(NamedTuple):
    """The initial direction of a sort order: `down` begins with the largest. Unknown values (None) are always last."""

    down: bool
    key: Callable[[Process], float | str | None]


ORDERS = {
    "memory": _Order(True, lambda one: one.memory_bytes),
    "sm": _Order(True, lambda one: one.sm_ratio),
    "cpu": _Order(True, lambda one: one.cpu_ratio),
    "pid": _Order(False, lambda one: one.pid),
    "name": _Order(False, lambda one: (one.name or one.command).casefold() or None),
}


def identity(process: Process) -> Id:
    return process.device, process.pid, process.started


def arrange(processes: Iterable[Process], choice: Choice) -> list[Entry]:
    """The lines of the table in order."""
    found = [one for one in processes if _matches(one, choice.needle)]
    order = ORDERS[choice.sort]
    found.sort(key=lambda one: (one.pid, one.device))
    known = [one for one in found if order.key(one) is not None]
    known.sort(key=order.key, reverse=order.down != choice.reverse)  # type: ignore[arg-type]
    found = known + [one for one in found if order.key(one) is None]
    return _tree(found) if choice.tree else [Entry(one, pid=one.pid) for one in found]


def _matches(process: Process, needle: str) -> bool:
    """Whether `needle` is part of a name, command, user, container, device or pid."""
    if not needle:
        return True
    wanted = needle.casefold()
    texts = (process.name, process.command, process.user, process.container, process.device, str(process.pid))
    return any(wanted in text.casefold() for text in texts)


def _tree(found: list[Process]) -> list[Entry]:
    """Children under their parents, in the order of `found`. Children of a missing parent are adjacent."""
    here = {one.pid for one in found}
    children: dict[int, list[Process]] = {}
    for one in found:
        children.setdefault(one.parent, []).append(one)
    rows: list[Entry] = []
    placed: set[Id] = set()

    def place(one: Process, depth: int) -> None:
        if identity(one) in placed:
            return
        placed.add(identity(one))
        rows.append(Entry(one, depth, one.pid))
        for child in children.get(one.pid, ()):
            place(child, depth + 1)

    for one in found:
        siblings = children.get(one.parent, [])
        top = not one.parent or one.parent not in here or one.parent == one.pid
        if top and one.parent > 1 and len({sibling.pid for sibling in siblings}) > 1 and identity(one) not in placed:
            rows.append(Entry(None, 0, one.parent, tuple(siblings)))
            for sibling in siblings:
                place(sibling, 1)
        elif top:
            place(one, 0)
    for one in found:  # a reused pid can create a cycle of parents
        place(one, 0)
    return rows


class _Column(NamedTuple):
    name: str
    head: str
    width: int
    align: str


_DEVICE, _PID, _USER = _Column("device", "device", 6, "<"), _Column("pid", "pid", 7, ">"), _Column("user", "user", 8, "<")
_KIND, _SHORT_KIND = _Column("kind", "kind", 8, "<"), _Column("short_kind", "K", 1, "<")
_SM, _MEMORY = _Column("sm", "SM %", 5, ">"), _Column("memory", "memory", 8, ">")
_CPU, _AGE, _CONTAINER = _Column("cpu", "CPU %", 6, ">"), _Column("age", "age", 6, ">"), _Column("container", "container", 12, "<")
_SHAPES: tuple[tuple[int, tuple[_Column, ...]], ...] = (
    (2, (_DEVICE, _PID, _USER, _KIND, _SM, _MEMORY, _CPU, _AGE, _CONTAINER)),
    (1, (_DEVICE, _PID, _USER, _SHORT_KIND, _SM, _MEMORY, _CPU, _AGE, _CONTAINER)),
    (1, (_DEVICE, _PID, _USER, _SHORT_KIND, _SM, _MEMORY, _CPU, _AGE)),
    (1, (_DEVICE, _PID, _USER, _SM, _MEMORY, _CPU)),
    (1, (_DEVICE, _PID, _SM, _MEMORY)),
    (1, (_PID, _MEMORY)),
)
LEAST_COMMAND = 24


def _shape(view: View, width: int) -> tuple[int, tuple[_Column, ...], int]:
    """Gap, columns, and the room that is left for the command."""
    ids = max([6, *(len(device.id) for device in view.devices if device.is_gpu)])
    for gap, columns in _SHAPES:
        columns = tuple(one._replace(width=ids) if one is _DEVICE else one for one in columns)
        room = width - sum(one.width + gap for one in columns)
        if room >= LEAST_COMMAND:
            break
    return gap, columns, max(0, room)


def process_lines(view: View, entries: list[Entry], choice: Choice, width: int, wall: float | None) -> Lines:
    """The heads of the columns, the entries, and devices that do not report their processes. `wall`: Unix time of `view`, if known."""
    gap, columns, room = _shape(view, width)
    if not entries:
        return text_lines([row for text in _nothing(view, choice) for row in paragraph(text, width)])
    notes = [line(width, (text, "dim")) for text in _missing(view)]
    return Lines(
        [identity(entry.process) if entry.process is not None else None for entry in entries],
        lambda n, selected: _line(entries[n], selected, columns, gap, room, width, wall),
        [_heads(columns, gap, room, choice, width)],
        (lambda key: notes) if notes else None,
    )


def order_in_words(choice: Choice) -> str:
    """`by memory, largest first`."""
    down = ORDERS[choice.sort].down != choice.reverse
    name = {"sm": "SM", "cpu": "CPU"}.get(choice.sort, choice.sort)
    ends = ("z to a", "a to z") if choice.sort == "name" else ("largest first", "smallest first")
    return f"by {name}, {ends[0] if down else ends[1]}"


def _heads(columns: tuple[_Column, ...], gap: int, room: int, choice: Choice, width: int) -> Row:
    """The heads of the columns. The sort column is marked."""
    row: list[Segment] = []
    for one in (*columns, _Column("name", "command", room, "<")):
        row += [(fit(one.head, one.width, one.align), "heading" if one.name == choice.sort else "dim"), (" " * gap, "")]
    return line(width, *row)


def _line(entry: Entry, chosen: bool, columns: tuple[_Column, ...], gap: int, room: int, width: int, wall: float | None) -> Row:
    row: list[Segment] = []
    for one in columns:
        text = _sums(entry, one.name) if entry.process is None else _text(entry.process, one.name, wall)
        style = "dim" if text == units.NA or entry.process is None else ""
        row += [(fit(text, one.width, one.align), style), (" " * gap, "")]
    indent = "" if not entry.depth else "  " * (min(entry.depth, 8) - 1) + "└ "
    if entry.process is None:
        row.append((f"parent of {len({one.pid for one in entry.children})}, on no device", "dim"))
    else:
        text = title(entry.process, room)
        row.append((indent + text, "dim" if text == units.NA else ""))
    painted = line(width, *row)
    return [("".join(text for text, _ in painted), "mark")] if chosen else painted


def title(process: Process, room: int) -> str:
    """The command without the folder of its program; without a command, the name. At most `room` cells."""
    text = process.command[:4096] or process.name
    if text.startswith("/"):
        program, blank, rest = text.partition(" ")
        text = (program.rpartition("/")[2] or program) + blank + rest
    return cut(plain(text[: room + 1]), max(0, room)) if text else units.NA


def _text(process: Process, column: str, wall: float | None) -> str:
    """A cell. Unknown values read n/a."""
    match column:
        case "device":
            return plain(process.device)
        case "pid":
            return str(process.pid)
        case "user":
            return plain(process.user[:64]) or (units.NA if process.uid is None else str(process.uid))
        case "kind":
            return plain(process.kind[:16])
        case "short_kind":
            return plain(process.kind[:1].upper())
        case "sm":
            return _percent(process.sm_ratio)
        case "memory":
            return units.NA if process.memory_bytes is None else units.size_bytes(process.memory_bytes)
        case "cpu":
            return _percent(process.cpu_ratio)
        case "age":
            return age(wall - process.started) if wall is not None and process.started else units.NA
    return plain(process.container[:64])


def _sums(entry: Entry, column: str) -> str:
    """A cell of a parent: its pid, or the sum over its children. The CPU time of a child on two devices counts once."""
    if column == "pid":
        return str(entry.pid)
    if column == "memory":
        return units.size_bytes(sum(one.memory_bytes or 0 for one in entry.children))
    if column == "cpu":
        known = {one.pid: one.cpu_ratio for one in entry.children if one.cpu_ratio is not None}
        return _percent(sum(known.values())) if known else ""
    return ""


def _percent(ratio: float | None) -> str:
    return units.NA if ratio is None else f"{ratio * 100:.0f}"


def age(seconds: float) -> str:
    """`42s`, `12m03s`, `2h01m`, `3d04h`: at most six cells for three years."""
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days}d{hours % 24:02}h" if days < 100 else f"{days}d"
    return f"{hours}h{minutes % 60:02}m" if hours else f"{minutes}m{whole % 60:02}s" if minutes else f"{whole}s"


def _missing(view: View) -> list[str]:
    """Devices that do not report their processes, by reason, in at most two lines."""
    by_reason: dict[str, list[str]] = {}
    for device, reason in view.processes_missing.items():
        by_reason.setdefault(reason, []).append(device)
    texts = [f"processes of {spans(devices)} n/a: {plain(reason)}" for reason, devices in by_reason.items()]
    return texts if len(texts) <= 2 else [texts[0], f"and {len(texts) - 1} more reasons: {'; '.join(texts[1:])}"]


def _nothing(view: View, choice: Choice) -> list[str]:
    """The reason why the table is empty."""
    if not any(device.is_gpu for device in view.devices):
        return [f"No GPU: {plain(view.no_gpu_reason)}" if view.no_gpu_reason else "No GPU here."]
    if view.processes:
        return [f"No process matches {plain(choice.needle)!r}; escape shows all."]
    silent = [device.id for device in view.devices if device.is_gpu and device.id not in view.processes_missing]
    return _missing(view) + (
        ["No process holds a GPU." if not view.processes_missing else f"No process holds {spans(silent)}."] if silent else []
    )


def question(process: Process, signal: str, width: int) -> Row:
    """The question before a signal is sent. If there is little room, the command is cut, never the question."""
    head, tail = f"send {signal} to {process.pid} ", "? [y/N]" + ("  (K: SIGKILL)" if signal != "SIGKILL" else "")
    room = max(0, width - cell_width(head) - len(tail))
    return line(width, (head, "alert"), title(process, room), (tail, "alert"))


# --- one process in full -------------------------------------------------------------------------------------


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
