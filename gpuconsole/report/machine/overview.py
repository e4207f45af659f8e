"""The machine overview, shown while no workload runs: devices with their state, processes that use the GPUs, and what to press."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpuconsole.model import units
from gpuconsole.model.machine import Device
from gpuconsole.model.metrics import series_key
from gpuconsole.model.scenario import Scenario, grouped
from gpuconsole.model.text import cell_width, plain
from gpuconsole.report.cells import Row, beside, blank, fill, fit, inner_width, line, panel, spark, wrap
from gpuconsole.report.machine.devices import History
from gpuconsole.report.machine.processes import Choice, arrange, process_lines
from gpuconsole.report.machine.tiles import Tile, host_tiles
from gpuconsole.session import facts
from gpuconsole.session.api import View

WIDE = 100
TALL = 28
"""From so many rows on, the panels have boxes."""
MOST_SPARK_ROWS = 40
MOST_HOST_ROWS = 7
"""Rows that the history of the host's cores takes below the GPUs, where nothing else needs them."""
BANDWIDTH_WIDTH = 100
"""From so many columns on, the table has the HBM bandwidth."""
LEAST_TRACE_ROWS, LEAST_TRACE_COLUMNS = 3, 30
"""A GPU shows a further history, with its name, for so much room each."""
LEAST_PROCESSES = 4
GAP = 3
"""Cells between two columns of examples."""
LEAST_HOST = 7
"""Rows that the processes, and the figures of a machine without a GPU, keep. Where they do not fit, hints are left out."""
BUSY_RATIO = 0.02
"""A GPU without a known process counts as busy above this share of active SMs. An idle desktop GPU stays below it."""


class Hint(NamedTuple):
    """A key with its label, or a command (then `label` is empty), and what it does."""

    key: str
    label: str
    text: str


def paint_overview(
    view: View, hints: Sequence[Hint], history: History, width: int, height: int, scenarios: Sequence[Scenario] = ()
) -> list[Row]:
    """`height` rows. The room that remains goes to the history of the devices and to the processes; without a GPU to the `scenarios`."""
    boxed = width >= WIDE and height >= TALL
    frame = 2 if boxed else 1
    inner = inner_width(width, boxed)
    gpus = [one for one in view.devices if one.is_gpu]
    least = len(gpus) + 2 + LEAST_PROCESSES + 2 * frame if gpus else LEAST_HOST + frame
    for shown in (hints, [one for one in hints if one.label], hints[:1]):
        keys = _hint_rows(shown, inner)
        rows = [*_headline(view, width), blank(width), *panel("what to press", [], keys, width, len(keys) + frame, boxed)]
        if (room := height - len(rows)) >= least:
            break
    if not gpus:
        examples = _example_rows(scenarios, inner)
        below = len(examples) + frame if examples and len(examples) + LEAST_HOST + 1 + 2 * frame <= room else 0
        host = panel("this machine (CPU)", [], _host_rows(view, history, inner, room - below - frame), width, room - below, boxed)
        return fill([*rows, *host, *panel("examples", [("press s", "dim")], examples, width, below, boxed)], width, height)
    wanted = max(LEAST_PROCESSES, len(view.processes) + 2) + frame if view.processes else 2 + frame
    each = max(1, min(MOST_SPARK_ROWS, (room - wanted - frame - 2) // len(gpus)))
    upper = min(each * len(gpus) + 2 + frame, room - min(wanted, LEAST_PROCESSES + frame))
    upper += max(0, min(MOST_HOST_ROWS, room - wanted - upper))
    rows += panel("devices", [], _device_rows(view, gpus, history, inner, upper - frame), width, upper, boxed)
    processes = _process_rows(view, inner, room - upper - frame)
    return fill([*rows, *panel("processes on the GPUs", [], processes, width, room - upper, boxed)], width, height)


def _headline(view: View, width: int) -> list[Row]:
    """How many GPUs are free, or why there is none, in one line."""
    gpus = [one for one in view.devices if one.is_gpu]
    if gpus:
        states = [_state(view, one)[0] for one in gpus]
        free = states.count("free")
        name = facts.short_name(gpus[0].name)
        lost = sum(one.id in view.lost for one in gpus)
        counts = [
            *([f"{free} free"] if free else []),
            *(f"{n} {word}" for word, n in (("busy", len(gpus) - free - lost), ("lost", lost)) if n),
        ]
        what = f"{len(gpus)} GPUs: {', '.join(counts)}" if len(gpus) > 1 else f"{plain(name)}: {states[0]}"
        used = len({one.pid for one in view.processes})
        text = f"{what}; {used} {'process' if used == 1 else 'processes'}." if len(gpus) > 1 and used else f"{what}."
        rest = "Nothing runs under gpuconsole yet."
    elif view.devices:
        text = f"No GPU: {plain(view.no_gpu_reason)}." if view.no_gpu_reason else "No GPU."
        rest = "Workloads run on the CPU, at a small scale. No figure is GPU data."
    else:
        text, rest = "Searching for devices.", ""
    if cell_width(text) + cell_width(rest) + 5 <= width:
        return [line(width, ("▌ ", "accent"), (text, "title"), (f"  {rest}", ""))]
    return [line(width, ("▌ ", "accent"), (text, "title")), *([line(width, ("▌ ", "accent"), rest)] if rest else [])]


def _hint_rows(hints: Sequence[Hint], width: int) -> list[Row]:
    """The keys, and the commands for a shell beside or below them."""
    keys, commands = [one for one in hints if one.label], [one for one in hints if not one.label]
    if width < WIDE - 4:
        return [*_key_rows(keys, width), *(line(width, (one.key, "code"), (f"   {one.text}", "dim")) for one in commands)]
    half = width // 2 - 2
    left, right = _key_rows(keys, half), [line(half, ("In a shell:", "dim"))]
    for one in commands:
        if cell_width(one.key) + cell_width(one.text) + 5 <= half:
            right.append(
                line(half, ("  ", ""), (one.key.ljust(max(cell_width(two.key) for two in commands)), "code"), (f"   {one.text}", "dim"))
            )
        else:
            right += [line(half, ("  ", ""), (one.key, "code")), line(half, (f"      {one.text}", "dim"))]
    height = max(len(left), len(right))
    gap = [line(width - 2 * half) for _ in range(height)]
    return beside(fill(left, half, height), gap, fill(right, half, height))


def _key_rows(keys: Sequence[Hint], width: int) -> list[Row]:
    column = max((cell_width(one.key) + cell_width(one.label) for one in keys), default=0) + 3
    rows = []
    for one in keys:
        first, *rest = wrap(one.text, max(8, width - column))
        label = f" {one.label}".ljust(column - cell_width(one.key))
        rows.append(line(width, (one.key, "key"), (label, "title"), first))
        rows += [line(width, (" " * column, ""), text) for text in rest]
    return rows


# --- devices ------------------------------------------------------------------------------------------------


def _state(view: View, gpu: Device) -> tuple[str, str]:
    """What a GPU does, in words, and the style."""
    if gpu.id in view.lost:
        return f"lost: {plain(view.lost[gpu.id])}", "alert"
    if silent := facts.silent_s(view, gpu.id):
        return f"silent for {silent:.0f} s", "alert"
    users = len({one.pid for one in view.processes if one.device == gpu.id})
    if users:
        return f"{users} {'process' if users == 1 else 'processes'}", ""
    shares = (facts.latest(view, metric, gpu.id) for metric in ("gpu.sm_active_ratio", "gpu.utilization_ratio"))
    if next((share for share in shares if share is not None), 0.0) > BUSY_RATIO:
        return "busy", ""
    return ("free", "good") if gpu.id not in view.processes_missing else ("processes n/a", "dim")


def _device_rows(view: View, gpus: Sequence[Device], history: History, width: int, height: int) -> list[Row]:
    """A head, then each GPU with its figures and the SM activity of the last minutes, then the host."""
    host = next((one for one in view.devices if not one.is_gpu), None)
    room = height - 1 - (1 if host else 0)
    shown = gpus if len(gpus) <= room else gpus[: max(0, room - 1)]
    each = min(MOST_SPARK_ROWS, max(1, room // max(1, len(shown))))
    ids = max(6, *(cell_width(one.id) for one in gpus))
    names = min(24, max(cell_width(facts.short_name(one.name)) for one in gpus)) if width >= 80 else 0
    heads = [fit("device", ids), *([fit("", names)] if names else []), fit("state", 13), "   SM", fit("HBM used/total", 16)]
    heads += [*(["HBM bw"] if width >= BANDWIDTH_WIDTH else []), "  power", "temp"]
    head = line(width, ("  ".join(heads), "dim"), ("   last minutes" if width >= BANDWIDTH_WIDTH else "", "dim"))
    rows = [head]
    for gpu in shown:
        rows += _gpu_rows(view, gpu, history, (ids, names), width, each)
    if left_out := len(gpus) - len(shown):
        rows.append(line(width, (f"{left_out} more GPUs: press i", "dim")))
    if host is not None:
        columns = max((cell_width(text) for row in rows for text, style in row if style == "trace"), default=0)
        cores = host_tiles(view)[0].traces
        high = height - len(rows)
        beside_words = columns if cores and high > 1 else 0
        texts = spark(history(cores[0].key, columns), high - 1, cores[0].high) if beside_words else [""]
        rows += [blank(width)] * (beside_words > 0)
        rows += [line(width, " " * (width - columns), (text, "trace")) for text in texts[:-1]]
        room = width - beside_words
        rows.append(line(width, *line(room, fit(host.id, ids), f"  {_host_words(view, host, room)}"), (texts[-1], "trace")))
    return fill(rows, width, height)


def _gpu_rows(view: View, gpu: Device, history: History, columns: tuple[int, int], width: int, height: int) -> list[Row]:
    def value(metric: str) -> float | None:
        return facts.latest(view, metric, gpu.id)

    ids, names = columns
    state, style = _state(view, gpu)
    power, warmth = value("gpu.power_w"), value("gpu.temperature_c")
    figures = [
        units.percent(value("gpu.sm_active_ratio")),
        fit(units.used_of(value("gpu.hbm_used_bytes"), value("gpu.hbm_total_bytes")), 16),
        *([f" {units.percent(value('gpu.dram_active_ratio'))}"] if width >= BANDWIDTH_WIDTH else []),
        f"{power:5.0f} W" if power is not None else "    n/a",
        f"{warmth:2.0f}°".ljust(4) if warmth is not None else "n/a ",
    ]
    parts = [(fit(gpu.id, ids) + "  ", "accent" if gpu.id == view.device else "")]
    parts += [(fit(plain(facts.short_name(gpu.name)), names) + "  ", "dim")] if names else []
    if gpu.id in view.lost:
        return [line(width, *parts, (state, style)), *[blank(width)] * (height - 1)]
    parts += [(fit(state, 13), style), ("  " + "  ".join(figures) + "   ", "")]
    used = sum(cell_width(text) for text, _ in parts)
    traces = [
        ("SM active", "gpu.sm_active_ratio", 1.0),
        ("HBM used", "gpu.hbm_used_bytes", value("gpu.hbm_total_bytes")),
        ("HBM bw", "gpu.dram_active_ratio", 1.0),
        ("power", "gpu.power_w", value("gpu.power_limit_w")),
    ]
    why = view.unavailable.get(series_key("gpu.sm_active_ratio", gpu.id)) if value("gpu.sm_active_ratio") is None else None
    if why:
        return [line(width, *parts, (f"SM n/a: {plain(why)}", "dim")), *[blank(width)] * (height - 1)]
    named = height >= LEAST_TRACE_ROWS and width - used >= LEAST_TRACE_COLUMNS
    label = 11 if named else 0
    traces = traces[: height // LEAST_TRACE_ROWS if named else 1]
    each, more = divmod(height, len(traces))
    rows: list[Row] = []
    for n, (title, metric, high) in enumerate(traces):
        texts = spark(history(series_key(metric, gpu.id), max(0, width - used - label)), each + (n < more), high)
        rows += [
            line(
                width,
                *(parts if not rows and not y else [(" " * used, "")]),
                ((title if not y else "").ljust(label)[:label], "dim"),
                (text, "trace"),
            )
            for y, text in enumerate(texts)
        ]
    return rows


def _host_words(view: View, host: Device, width: int) -> str:
    cores, busy = view.environment.cores, facts.latest(view, "host.cores_busy")
    memory = units.used_of(facts.latest(view, "host.memory_used_bytes"), facts.latest(view, "host.memory_total_bytes"))
    words = [f"{plain(facts.short_name(host.name))}"] if width >= WIDE else []
    words += [f"cores busy {f'{busy:4.1f}' if busy is not None else units.NA}" + (f" of {cores}" if cores else ""), f"memory {memory}"]
    return "   ".join(words)


def _host_rows(view: View, history: History, width: int, height: int) -> list[Row]:
    """What the host does, each series with its history."""
    host = next((one for one in view.devices if not one.is_gpu), None)
    rows = [line(width, (plain(host.name) if host else "", "dim"))] if height >= 8 else []
    room = max(1, height - len(rows))
    traces = [(tile, n) for tile in host_tiles(view) for n in range(max(1, len(tile.traces)))][:room]
    each, more = divmod(room, max(1, len(traces)))
    for place, (tile, n) in enumerate(traces):
        rows += _host_trace(tile, n, history, width, each + (place < more))
    return fill(rows, width, height)


def _example_rows(scenarios: Sequence[Scenario], width: int) -> list[Row]:
    """Each scenario with its title in two columns; where a title would be cut, only the first group has titles."""
    groups = grouped(scenarios)
    names = max((cell_width(one.name) for one in scenarios), default=0)
    each = (width - GAP) // 2
    if any(names + cell_width(plain(one.title)) + 4 > each for one in scenarios):
        return _short_examples(groups, width)
    cells: list[Row] = []
    half = -(-sum(1 + len(some) for some in groups.values()) // 2)
    for group, some in groups.items():
        cells += [line(each)] * (len(cells) == half - 1)  # no heading at the foot of a column
        cells.append(line(each, (group, "heading")))
        cells += [line(each, f"  {fit(plain(one.name), names)}", (f"  {plain(one.title)}", "dim")) for one in some]
    right = fill(cells[half:], each, max(half, len(cells) - half))
    return [line(width, *row) for row in beside(fill(cells[:half], each, len(right)), [line(GAP)] * len(right), right)]


def _short_examples(groups: Mapping[str, Sequence[Scenario]], width: int) -> list[Row]:
    """The first group with titles, the names of the others."""
    column = max(map(cell_width, groups), default=0) + GAP
    rows: list[Row] = []
    for n, (group, some) in enumerate(groups.items()):
        names = max(cell_width(one.name) for one in some)
        found: list[Row] = [[(fit(plain(one.name), names), ""), (f"  {plain(one.title)}", "dim")] for one in some]
        if n:
            found = [[(words, "")] for words in wrap(", ".join(plain(one.name) for one in some), width - column)]
        rows += [line(width, (fit("" if at else group, column), "heading"), *row) for at, row in enumerate(found)]
    return rows


def _host_trace(tile: Tile, n: int, history: History, width: int, height: int) -> list[Row]:
    """A series with its figure, and its history in the rest of the row. From three rows on, the first row is blank."""
    column = min(42, width * 2 // 3)
    title = (fit(tile.title if n == 0 else "", 18), "dim")
    if not tile.traces:
        rows = [line(width, title, (f"{fit(tile.figure.strip(), column - 20, '>')}  ", "dim"), (plain(tile.reason), "dim"))]
    else:
        trace = tile.traces[n]
        figure = trace.figure or tile.figure
        texts = spark(history(trace.key, max(0, width - column)), height - 1 if height >= 3 else height, trace.high)
        rows = [line(width, (" " * column, ""), (text, "trace")) for text in texts[:-1]]
        rows.append(line(width, title, fit(figure.strip(), column - 20, ">"), "  ", (texts[-1], "trace")))
    return [*[blank(width)] * (height - len(rows)), *rows]


# --- processes ----------------------------------------------------------------------------------------------


def _process_rows(view: View, width: int, height: int) -> list[Row]:
    """The processes that use most memory."""
    if height <= 0:
        return []
    entries = arrange(view.processes, Choice())
    lines = process_lines(view, entries, Choice(), width, view.wall or None)
    rows = [*lines.head, *(lines.row(n, False) for n in range(len(lines.keys)))]
    foot = lines.foot(None) if lines.foot is not None else []
    room = height - len(foot)
    if len(rows) > room >= 2:
        rows = [*rows[: room - 1], line(width, (f"{len(rows) - room + 1} more: press p", "dim"))]
    return fill([*rows, *foot], width, height)
