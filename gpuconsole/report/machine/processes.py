"""The table of processes on the devices, and one process in full. Names and commands are text from
outside: `plain` makes them safe."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

from gpuconsole.model import units
from gpuconsole.model.machine import Process
from gpuconsole.model.metrics import series_key
from gpuconsole.model.text import cell_width, cut, plain
from gpuconsole.report.cells import Row, Segment, blank, fit, line, spans, wrap
from gpuconsole.report.page import Lines, heading, labelled, paragraph, text_lines
from gpuconsole.session import facts
from gpuconsole.session.api import View
from gpuconsole.session.gpu_state import MUCH_MEMORY, is_work_stuck, unreadable
from gpuconsole.session.idle import BUSY_RATIO, UTILIZATION
from gpuconsole.session.jobs import starters_of
from gpuconsole.session.machine import parent as whole_of

# --- the table of processes on the devices --------------------------------------------------------

Id = tuple[str, int, float]
"""Identifies a process on a device, also after its pid was reused."""


class ProcessFilter(NamedTuple):
    """Order, tree and filter of the table. `device`, `job`: only the processes of this GPU, or of
    the job that this process has started; empty and 0: all."""

    sort: str = "memory"
    reverse: bool = False
    tree: bool = False
    needle: str = ""
    device: str = ""
    job: int = 0

    @property
    def whose(self) -> str:
        """`gpu:3` or `job 4100`; empty where all processes are meant."""
        return self.device or (f"job {self.job}" if self.job else "")


class ProcessEntry(NamedTuple):
    """A line: a process; or, with `process` None, a parent of several processes that uses no device
    itself, with their sums."""

    process: Process | None
    depth: int = 0
    pid: int = 0
    children: tuple[Process, ...] = ()


MPS = "nvidia-cuda-mps"
"""In the names of the programs of NVIDIA's Multi-Process Service."""
_DEVICE = re.compile(r"gpu:\d+(/mig:\d+)?")


def device_number(device: str) -> tuple[int, ...]:
    """The numbers of a device's name, so that gpu:9 comes before gpu:10."""
    return tuple(int(number) for number in re.findall(r"\d+", device))


class _Order(NamedTuple):
    """The initial direction of a sort order: `down` begins with the largest. Unknown values (None)
    are always last."""

    down: bool
    key: Callable[[Process], float | str | tuple[int, ...] | None]


ORDERS = {
    "device": _Order(False, lambda process: device_number(process.device)),
    "memory": _Order(True, lambda process: process.memory_bytes),
    "sm": _Order(True, lambda process: process.sm_ratio),
    "memory time": _Order(True, lambda process: process.memory_time_ratio),
    "cpu": _Order(True, lambda process: process.cpu_ratio),
    "host memory": _Order(True, lambda process: process.host_memory_bytes),
    "pid": _Order(False, lambda process: process.pid),
    "name": _Order(False, lambda process: (process.name or process.command).casefold() or None),
}


def identity(process: Process) -> Id:
    return process.device, process.pid, process.started


def arrange(processes: Iterable[Process], choice: ProcessFilter) -> list[ProcessEntry]:
    """The lines of the table in order."""
    order = ORDERS[choice.sort]
    listed = list(processes)
    if choice.job:
        job_of = starters_of(listed)
        listed = [process for process in listed if job_of[process.pid] == choice.job]
    matching = [process for process in listed if _matches(process, choice)]
    by_pid = sorted(matching, key=lambda process: (process.pid, device_number(process.device)))
    if choice.sort == "device":  # of a GPU, those with most memory first
        by_pid.sort(key=lambda process: -(process.memory_bytes or 0))
    in_order = [process for process in by_pid if order.key(process) is not None]
    in_order.sort(key=order.key, reverse=order.down != choice.reverse)  # type: ignore[arg-type]
    in_order += [process for process in by_pid if order.key(process) is None]
    return (
        _tree(in_order)
        if choice.tree
        else [ProcessEntry(process, pid=process.pid) for process in in_order]
    )


def _is_on(device: str, wanted: str) -> bool:
    """Whether a device is the wanted one or a slice of it."""
    return device == wanted or device.startswith(f"{wanted}/")


def _matches(process: Process, choice: ProcessFilter) -> bool:
    """Whether a process is of the chosen GPU, and the needle is part of its name, command, user,
    container or pid, or the name of its device or of the whole GPU."""
    if choice.device and not _is_on(process.device, choice.device):
        return False
    if not choice.needle:
        return True
    wanted = choice.needle.casefold().strip()
    if _DEVICE.fullmatch(wanted):
        return _is_on(process.device, wanted)
    texts = (
        process.name,
        process.command,
        process.user,
        process.container,
        process.device,
        str(process.pid),
    )
    return any(wanted in text.casefold() for text in texts)


def _tree(processes: list[Process]) -> list[ProcessEntry]:
    """Children under their parents, in the order of `processes`. Children of a missing parent are
    adjacent."""
    pids = {process.pid for process in processes}
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    rows: list[ProcessEntry] = []
    placed: set[Id] = set()

    def place(process: Process, depth: int) -> None:
        if identity(process) in placed:
            return
        placed.add(identity(process))
        rows.append(ProcessEntry(process, depth, process.pid))
        for child in children.get(process.pid, ()):
            place(child, depth + 1)

    for process in processes:
        siblings = children.get(process.parent, [])
        top = not process.parent or process.parent not in pids or process.parent == process.pid
        if (
            top
            and process.parent > 1
            and len({sibling.pid for sibling in siblings}) > 1
            and identity(process) not in placed
        ):
            rows.append(ProcessEntry(None, 0, process.parent, tuple(siblings)))
            for sibling in siblings:
                place(sibling, 1)
        elif top:
            place(process, 0)
    for process in processes:  # a reused pid can create a cycle of parents
        place(process, 0)
    return rows


class _ProcessColumn(NamedTuple):
    """A column: what its cells say of a process at Unix time `wall` (None: not known), and of a
    parent, from its children.

    `shapes`: the first shape of the table with the column, and the first without it. The shapes
    from 0 on are ever narrower.
    """

    name: str
    head: str
    width: int
    align: str
    shapes: tuple[int, int]
    text: Callable[[Process, float | None], str]
    sum: Callable[[ProcessEntry], str] = lambda entry: ""


SHAPES = 6
MIN_COMMAND = 24
JOB_COMMAND = 200
"""Characters of a launcher's command on the page of one process."""
USER_CELLS = 8
MAX_USER = 24
"""Cells that the user gets beyond USER_CELLS."""
ALWAYS = ("device", "pid", "memory")
"""The columns that stay where no process has a value."""
STATES = {
    "R": "running", "S": "sleeping", "D": "waits in the kernel", "T": "stopped",
    "t": "stopped by a debugger", "Z": "zombie",
}  # fmt: skip
ORDINARY = ("R", "S", "")


def _user(process: Process, wall: float | None) -> str:
    return plain(process.user[:64]) or (units.NA if process.uid is None else str(process.uid))


def _size(count: int | None) -> str:
    return units.NA if count is None else units.size_bytes(count)


def _memory(process: Process, wall: float | None = None) -> str:
    return _size(process.memory_bytes)


def _memory_of_all(entry: ProcessEntry) -> str:
    return units.size_bytes(sum(process.memory_bytes or 0 for process in entry.children))


def _cpu_of_all(entry: ProcessEntry) -> str:
    """The CPU time of a child on two devices counts once."""
    ratios = {
        process.pid: process.cpu_ratio
        for process in entry.children
        if process.cpu_ratio is not None
    }
    return _percent(sum(ratios.values())) if ratios else ""


def _age(process: Process, wall: float | None) -> str:
    return units.age(wall - process.started) if wall is not None and process.started else units.NA


def _percent(ratio: float | None) -> str:
    return units.NA if ratio is None else f"{ratio * 100:.0f}"


_COLUMNS = (
    _ProcessColumn("device", "device", 6, "<", (0, 5), lambda process, _: plain(process.device)),
    _ProcessColumn("pid", "pid", 7, ">", (0, 6), lambda process, _: str(process.pid),
                   lambda entry: str(entry.pid)),
    _ProcessColumn("user", "user", USER_CELLS, "<", (0, 4), _user),
    _ProcessColumn("kind", "kind", 8, "<", (0, 1), lambda process, _: plain(process.kind[:16])),
    _ProcessColumn("kind", "K", 1, "<", (1, 3), lambda process, _: plain(process.kind[:1].upper())),
    _ProcessColumn("sm", "SM %", 5, ">", (0, 5), lambda process, _: _percent(process.sm_ratio)),
    _ProcessColumn("memory time", "mem rw", 6, ">", (0, 2),
                   lambda process, _: _percent(process.memory_time_ratio)),
    _ProcessColumn("memory", "memory", 8, ">", (0, 6), _memory, _memory_of_all),
    _ProcessColumn("cpu", "CPU %", 6, ">", (0, 4), lambda process, _: _percent(process.cpu_ratio),
                   _cpu_of_all),
    _ProcessColumn("host memory", "RSS", 8, ">", (0, 2),
                   lambda process, _: _size(process.host_memory_bytes)),
    _ProcessColumn("age", "age", 6, ">", (0, 3), _age),
    _ProcessColumn("container", "container", 12, "<", (0, 2),
                   lambda process, _: plain(process.container[:64])),
)  # fmt: skip


class _ProcessLayout(NamedTuple):
    """The columns that fit into `width` cells with `gap` cells after each, and the `room` that is
    left for the command."""

    width: int
    gap: int
    columns: tuple[_ProcessColumn, ...]
    room: int


def _layout(
    view: View,
    width: int,
    entries: Iterable[ProcessEntry],
    sort: str = "",
    wall: float | None = None,
) -> _ProcessLayout:
    """No number is cut: `pid` and `memory` are as wide as their longest text. A column without any
    value is left out, unless the table is sorted by it; a long user gets room that is free."""
    listed = [entry.process for entry in entries if entry.process is not None]
    longest = {
        "pid": max((len(str(process.pid)) for process in listed), default=0),
        "memory": max((len(_memory(process)) for process in listed), default=0),
        "device": max([6, *(len(device.id) for device in view.devices if device.is_gpu)]),
    }
    filled = [
        column
        for column in _COLUMNS
        if column.name in (*ALWAYS, sort) or any(_has(column, process, wall) for process in listed)
    ]
    for shape in range(SHAPES):
        gap = 1 if shape else 2
        columns = tuple(
            column._replace(width=max(column.width, longest.get(column.name, 0)))
            for column in filled
            if column.shapes[0] <= shape < column.shapes[1]
        )
        room = width - sum(column.width + gap for column in columns)
        if room >= MIN_COMMAND:
            break
    users = max((cell_width(_user(process, None)) for process in listed), default=0)
    more = max(0, min(users - USER_CELLS, MAX_USER, room - MIN_COMMAND))
    if any(column.name == "user" for column in columns):
        columns = tuple(
            column._replace(width=column.width + more) if column.name == "user" else column
            for column in columns
        )
        room -= more
    return _ProcessLayout(width, gap, columns, max(0, room))


def _has(column: _ProcessColumn, process: Process, wall: float | None) -> bool:
    """Whether a process has a value in a column. A CPU share comes with the second reading."""
    return column.text(process, wall) not in ("", units.NA) or (
        column.name == "cpu" and bool(process.started)
    )


def process_lines(
    view: View, entries: list[ProcessEntry], choice: ProcessFilter, width: int, wall: float | None
) -> Lines:
    """The heads of the columns, the entries, and devices that do not report their processes.
    `wall`: Unix time of `view`, if known."""
    layout = _layout(view, width, entries, choice.sort, wall)
    if not entries:
        return text_lines(
            [row for text in why_empty(view, choice) for row in paragraph(text, width)]
        )
    notes = [
        line(width, (part, "dim"))
        for text in (*_missing(view), *_short_lists(view))
        for part in wrap(text, max(8, width))
    ]
    return Lines(
        [identity(entry.process) if entry.process is not None else None for entry in entries],
        lambda n, selected: _line(entries[n], selected, layout, wall),
        [_heads(layout, choice)],
        (lambda key: notes) if notes else None,
    )


def order_in_words(choice: ProcessFilter) -> str:
    """`by memory, largest first`."""
    down = ORDERS[choice.sort].down != choice.reverse
    name = {"sm": "SM", "cpu": "CPU"}.get(choice.sort, choice.sort)
    if choice.sort == "device":
        return "by device" if not down else "by device, last first"
    ends = ("z to a", "a to z") if choice.sort == "name" else ("largest first", "smallest first")
    return f"by {name}, {ends[0] if down else ends[1]}"


def _heads(layout: _ProcessLayout, choice: ProcessFilter) -> Row:
    """The heads of the columns. The sort column is marked."""
    row: list[Segment] = []
    for column in layout.columns:
        row += [
            (
                fit(column.head, column.width, column.align),
                "heading" if column.name == choice.sort else "dim",
            ),
            (" " * layout.gap, ""),
        ]
    return line(
        layout.width,
        *row,
        (fit("command", layout.room), "heading" if choice.sort == "name" else "dim"),
    )


def _line(entry: ProcessEntry, chosen: bool, layout: _ProcessLayout, wall: float | None) -> Row:
    row: list[Segment] = []
    for column in layout.columns:
        text = column.sum(entry) if entry.process is None else column.text(entry.process, wall)
        style = "dim" if text == units.NA or entry.process is None else ""
        row += [(fit(text, column.width, column.align), style), (" " * layout.gap, "")]
    indent = "" if not entry.depth else "  " * (min(entry.depth, 8) - 1) + "└ "
    if entry.process is None:
        row.append(
            (f"parent of {len({process.pid for process in entry.children})}, on no device", "dim")
        )
    else:
        row += [(indent, ""), *_command_cells(entry.process, layout.room)]
    painted = line(layout.width, *row)
    return [("".join(text for text, _ in painted), "mark")] if chosen else painted


def title(process: Process, room: int) -> str:
    """The command without the folder of its program; without a command, the name. At most `room`
    cells."""
    return short_command(process.command or process.name, room) or units.NA


def short_command(command: str, room: int) -> str:
    """A command line without the folder of its program, in at most `room` cells."""
    text = command[:4096]
    if text.startswith("/"):
        program, blank, rest = text.partition(" ")
        text = (program.rpartition("/")[2] or program) + blank + rest
    return cut(plain(text[: max(0, room) + 1]), max(0, room))


def _command_cells(process: Process, room: int) -> Row:
    """The command after a state that is not ordinary; or why the process cannot be seen."""
    if process.unseen:
        return [(cut(plain(process.unseen), max(0, room)), "dim")]
    if process.state in ORDINARY:
        text = title(process, room)
        return [(text, "dim" if text == units.NA else "")]
    word = f"{state_in_words(process.state)}: "
    return [(cut(word, max(0, room)), "alert"), (title(process, room - len(word)), "")]


def state_in_words(state: str) -> str:
    """`stopped` for T; a letter without words as it is."""
    return STATES.get(state) or plain(state[:16])


def _missing(view: View) -> list[str]:
    """Devices that do not report their processes, by reason, in at most two lines."""
    by_reason: dict[str, list[str]] = {}
    for device, reason in _without_list(view).items():
        by_reason.setdefault(reason, []).append(device)
    texts = [
        f"processes of {spans(devices)} n/a: {plain(reason)}"
        for reason, devices in by_reason.items()
    ]
    return (
        texts
        if len(texts) <= 2
        else [texts[0], f"and {len(texts) - 1} more reasons: {'; '.join(texts[1:])}"]
    )


def _without_list(view: View) -> dict[str, str]:
    """Why the processes of a GPU are not known, for each GPU whose list is missing: also of one
    that is lost, or of which nothing can be read."""
    found = dict(view.processes_missing)
    for device in view.devices:
        why = view.lost.get(device.id, "") or unreadable(view, device.id)
        if device.is_gpu and device.id not in found and why:
            found[device.id] = why
    return found


def _short_lists(view: View) -> list[str]:
    """The first GPU whose listed processes hold only a small part of its used memory, in words;
    empty if there is none."""
    by_gpu: dict[str, list[Process]] = {}
    for process in view.processes:
        by_gpu.setdefault(whole_of(process.device), []).append(process)
    for gpu, listed in by_gpu.items():
        used = view.latest.get(series_key("gpu.hbm_used_bytes", gpu), 0.0)
        held = sum(process.memory_bytes or 0 for process in listed)
        is_known = all(process.memory_bytes is not None for process in listed)
        if not is_known or used - held <= MUCH_MEMORY or held > used / 2:
            continue
        shared = any(MPS in f"{process.name} {process.command}" for process in listed)
        what = "the clients of its MPS server" if shared else "what holds the rest"
        return [
            f"{gpu}: the listed processes hold {units.size_bytes(held).strip()} of"
            f" {units.size_bytes(used).strip()}; the driver does not list {what}"
        ]
    return []


def why_empty(view: View, choice: ProcessFilter) -> list[str]:
    """The reason why the table is empty."""
    if not any(device.is_gpu for device in view.devices):
        return [f"No GPU: {plain(view.no_gpu_reason)}" if view.no_gpu_reason else "No GPU here."]
    if choice.needle and arrange(view.processes, choice._replace(needle="")):
        return [f"No process matches {plain(choice.needle)!r}; escape shows all."]
    if choice.job:
        return [f"The job of process {choice.job} has ended."]
    missing = _without_list(view)
    if choice.device in missing:
        return [f"processes of {choice.device} n/a: {plain(missing[choice.device])}"]
    listed = [
        device.id
        for device in view.devices
        if device.is_gpu
        and device.id not in missing
        and (not choice.device or _is_on(device.id, choice.device))
    ]
    notes = [] if choice.device else _missing(view)
    if not listed:
        return notes
    where = choice.device or ("a GPU" if not missing else spans(listed))
    used = {device: _is_used(view, device) for device in listed}
    if hidden := [device for device in listed if used[device]]:
        return [
            *notes, f"No process is seen on {where}. What uses {spans(hidden)} is not visible here."
        ]  # fmt: skip
    is_known = None not in used.values()
    return [*notes, f"No process {'holds' if is_known else 'is seen on'} {where}."]


def _is_used(view: View, device: str) -> bool | None:
    """Whether something works on a device or holds more than the driver's own memory; None: the
    driver does not tell."""
    shares = [
        view.latest[key] for name in UTILIZATION if (key := series_key(name, device)) in view.latest
    ]
    used = view.latest.get(series_key("gpu.hbm_used_bytes", device))
    works = any(share > BUSY_RATIO for share in shares) and not is_work_stuck(view, device)
    if works or (used or 0.0) > MUCH_MEMORY:
        return True
    return None if not shares else False


def question(process: Process, signal: str, width: int) -> Row:
    """The question before a signal is sent. If there is little room, the command is cut, never the
    question."""
    head, tail = (
        f"send {signal} to {process.pid} ",
        "? [y/N]" + ("  (K: SIGKILL)" if signal != "SIGKILL" else ""),
    )
    room = max(0, width - cell_width(head) - len(tail))
    return line(width, (head, "alert"), title(process, room), (tail, "alert"))


# --- one process in full --------------------------------------------------------------------------


def paint_process(view: View, process: Process, width: int, wall: float | None) -> list[Row]:
    """All rows. `wall` is the Unix time of `view`, None: not known."""
    rows = [
        heading(f"{process.pid}  {plain(process.name[:width]) or '(name n/a)'}", width),
        blank(width),
    ]
    for label, text in _facts(view, process, wall):
        rows += labelled(f"  {label}", text or units.NA, width, 14, "dim" if not text else "")
    rows += [blank(width), heading("command line", width)]
    if not process.command:
        return [*rows, line(width, (f"  n/a: {_why_no_command(view, process)}", "dim"))]
    return rows + [line(width, text) for text in _wrapped(process.command, max(8, width - 4))]


def _why_no_command(view: View, process: Process) -> str:
    if process.unseen:
        return plain(process.unseen)
    if process.state == "Z":
        return "the process has ended"
    return "a recording has no command lines" if view.recording else "the process has none"


def _state(process: Process) -> str:
    """What the process does, in words; a zombie with what the driver still counts for it."""
    if process.unseen or process.state != "Z":
        return plain(process.unseen) or state_in_words(process.state)
    held = units.size_bytes(process.memory_bytes).strip() if process.memory_bytes else "nothing"
    return (
        f"zombie: it has ended, and the driver still counts {held} for it; it goes when its parent"
        f" {process.parent} takes note of its end"
    )


def _facts(view: View, process: Process, wall: float | None) -> list[tuple[str, str]]:
    device = next((device for device in view.devices if device.id == process.device), None)
    memory = (
        units.size_bytes(process.memory_bytes).strip() if process.memory_bytes is not None else ""
    )
    if memory and device is not None and device.memory_bytes:
        memory += (
            f", {units.percent((process.memory_bytes or 0) / device.memory_bytes).strip()} of the"
            " device"
        )
    user = plain(process.user[:200])
    if process.uid is not None:
        user = f"{user} (uid {process.uid})" if user else f"uid {process.uid}"
    others = sorted(
        {
            other.device
            for other in view.processes
            if other.pid == process.pid and other.device != process.device
        }
    )
    return [
        (
            "device",
            f"{process.device}   {facts.short_name(device.name)}" if device else process.device,
        ),
        ("also on", ", ".join(others) or "no other device"),
        ("state", _state(process)),
        ("kind", plain(process.kind[:100])),
        ("user", user),
        ("container", plain(process.container[:200]) or ("" if process.unseen else "none found")),
        ("parent", _parent(view, process)),
        ("job", _job(view, process)),
        ("started", _started(process, wall)),
        ("memory", memory),
        ("SM", units.percent(process.sm_ratio).strip() if process.sm_ratio is not None else ""),
        (
            "mem time",
            (
                f"{units.percent(process.memory_time_ratio).strip()} of the time reads or writes"
                " device memory"
            )
            if process.memory_time_ratio is not None
            else "",
        ),
        (
            "CPU",
            f"{process.cpu_ratio * 100:.0f} % of a core" if process.cpu_ratio is not None else "",
        ),
        (
            "RSS",
            f"{units.size_bytes(process.host_memory_bytes).strip()} of host memory"
            if process.host_memory_bytes is not None
            else "",
        ),
    ]


def _parent(view: View, process: Process) -> str:
    if not process.parent:
        return ""
    parent = next((other for other in view.processes if other.pid == process.parent), None)
    return (
        f"{process.parent}  {plain(parent.name[:200])}"
        if parent
        else f"{process.parent}  (uses no device)"
    )


def _job(view: View, process: Process) -> str:
    """What has started the job of a process, and the console that it runs under."""
    starter = starters_of([process, *view.processes])[process.pid]
    started = f"{starter}  {short_command(process.launcher, JOB_COMMAND)}".strip()
    if starter == process.pid:
        started = "" if process.unseen else "this process alone"
    return started + (f", under gpuconsole {process.console}" if process.console else "")


def _started(process: Process, wall: float | None) -> str:
    if not process.started:
        return ""
    moment = datetime.datetime.fromtimestamp(process.started).isoformat(" ", "seconds")
    return f"{moment}, {units.age(wall - process.started)} ago" if wall is not None else moment


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
