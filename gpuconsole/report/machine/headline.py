"""The first line about the GPUs of a machine: which one is free, which is held without work, since
when and by whom, and which is sick."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuconsole.model import units
from gpuconsole.model.machine import Device
from gpuconsole.model.metrics import series_key
from gpuconsole.model.text import plain
from gpuconsole.report.cells import Row, Segment, row_width, spans
from gpuconsole.report.machine.gpus import STYLES
from gpuconsole.session import facts
from gpuconsole.session.api import View
from gpuconsole.session.gpu_state import KINDS, GpuState, Kind, in_words, whole_gpus

DETAILS = (
    "processes", "memory", "price", "pid", "fault", "user", "others", "sick", "total", "idle",
    "free",
)  # fmt: skip
"""What is left out where the room ends, the first one first. A person asks for the name of a free
GPU, then for the user of an idle one. `sick`, `idle`, `free`: the names of these GPUs; `others`:
the names of the lost, silent and unknown ones; `total`: the number of all, and of the busy ones."""
MAX_USERS = 3
BETWEEN: Segment = (" · ", "dim")

Details = frozenset[str]


def headline(
    view: View, gpus: Sequence[Device], states: Mapping[str, GpuState], width: int, rows: int
) -> list[Row]:
    """Return at most `rows` lines of at most `width` cells, with as many details as fit."""
    lines: list[Row] = []
    for left_out in range(len(DETAILS) + 1):
        parts = list(_parts(view, gpus, states, frozenset(DETAILS[left_out:])))
        lines = _broken(parts, width)
        if len(lines) <= rows and all(row_width(row) <= width for row in lines):
            break
    return lines[:rows]


def _broken(parts: Sequence[Segment], width: int) -> list[Row]:
    """The parts in lines, which are broken between two parts only."""
    lines: list[Row] = [[parts[0]]]
    for part in parts[1:]:
        longer = [*lines[-1], BETWEEN, part]
        if row_width(longer) <= width:
            lines[-1] = longer
        else:
            lines.append([part])
    return lines


def _parts(
    view: View, gpus: Sequence[Device], states: Mapping[str, GpuState], details: Details
) -> Iterator[Segment]:
    """`8 GPUs`, `1 free: gpu:6`, `1 idle 14 min: gpu:4, ...`, `5 busy`; of a single GPU its name
    and what it does."""
    whole = whole_gpus(gpus)
    if len(gpus) == 1:
        only = states[gpus[0].id]
        held = _held(view, whole, details) if only.kind == "idle" else []
        name = plain(facts.short_name(gpus[0].name))
        yield ", ".join([f"{name}: {plain(only.text)}", *held]), STYLES.get(only.kind, "title")
        return
    by_kind: dict[Kind, list[Device]] = {kind: [] for kind in KINDS}
    for gpu in whole:
        by_kind[states[gpu.id].kind].append(gpu)
    total = "total" in details or len(by_kind["busy"]) == len(whole)
    if total:
        yield in_words(gpus), "title"
    for kind, of_kind in by_kind.items():
        if of_kind and (total or kind != "busy"):
            yield _of_kind(view, kind, of_kind, states, details), STYLES.get(kind, "")
    processes = len({process.pid for process in view.processes})
    if processes and "processes" in details:
        yield f"{processes} {'process' if processes == 1 else 'processes'}", ""


def _of_kind(
    view: View,
    kind: Kind,
    gpus: Sequence[Device],
    states: Mapping[str, GpuState],
    details: Details,
) -> str:
    names = spans(gpu.id for gpu in gpus)
    count = f"{len(gpus)} {kind}"
    if kind == "idle":
        longest = max((states[gpu.id] for gpu in gpus), key=lambda state: state.idle_s)
        time = longest.words.removeprefix("idle ")
        count += f" {time}" if len(gpus) == 1 else f" up to {time}"
        named = ", ".join([names, *_held(view, gpus, details)])
    elif kind == "sick" and "fault" in details:
        named = _faults(gpus, states)
    else:
        named = names
    is_named = kind != "busy" and (kind if kind in DETAILS else "others") in details
    return f"{count}: {named}" if is_named else count


def _faults(gpus: Sequence[Device], states: Mapping[str, GpuState]) -> str:
    """`gpu:1-2 heat slowdown, gpu:4 XID 79`."""
    by_reason: dict[str, list[str]] = {}
    for gpu in gpus:
        by_reason.setdefault(states[gpu.id].reason, []).append(gpu.id)
    return ", ".join(f"{spans(ids)} {plain(reason)}" for reason, ids in by_reason.items())


def _held(view: View, gpus: Sequence[Device], details: Details) -> Iterator[str]:
    """What idle GPUs hold back: memory, the process with its user, and the price of the machine per
    hour times their share of its GPUs."""
    ids = {gpu.id for gpu in gpus}
    memory = sum(view.latest.get(series_key("gpu.hbm_used_bytes", gpu), 0.0) for gpu in ids)
    if memory and "memory" in details:
        yield units.size_bytes(memory).strip()
    holders = [one for one in view.processes if one.device.partition("/")[0] in ids]
    pids = {one.pid for one in holders}
    users = sorted({one.user for one in holders if one.user})
    named = plain(", ".join(users[:MAX_USERS]) + (", ..." if len(users) > MAX_USERS else ""))
    if "pid" in details and pids:
        who = f"pid {min(pids)}" if len(pids) == 1 else f"{len(pids)} processes"
        yield f"{who} ({named})" if named else who
    elif "user" in details and named:
        yield named
    price = view.environment.price_per_hour
    if price and "price" in details:
        share = len(ids) / len(whole_gpus(view.devices))
        yield f"about {price * share:.2f} per hour"
