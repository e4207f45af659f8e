"""The paths between GPUs as a matrix, with the place of each GPU. If the matrix is too large, equal
GPUs form groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from gpuconsole.model import units
from gpuconsole.model.device_columns import NVLINK
from gpuconsole.model.machine import Device, Link
from gpuconsole.model.metrics import series_key
from gpuconsole.model.text import plain
from gpuconsole.report.cells import Row, Segment, blank, fit, line, spans
from gpuconsole.report.page import Lines, paragraph, text_lines
from gpuconsole.session.api import View

SELF, UNKNOWN = "X", "?"
CELL = 5
_FRAME = 7
"""Rows around the matrix: a sentence, the heads, the legend, and blanks."""
_MEANINGS = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "a PCIe host bridge",
    "NODE": "host bridges of one NUMA node",
    "SYS": "between NUMA nodes",
    UNKNOWN: "not reported by the driver",
}


class Net(NamedTuple):
    """The GPUs in order, the path of each pair in both directions, and groups of GPUs with the same
    links and the same place.

    `used` are the existing paths, the fastest first. `sentence` describes the topology in words.
    """

    gpus: tuple[Device, ...]
    paths: dict[tuple[str, str], str]
    groups: tuple[tuple[Device, ...], ...] = ()
    used: tuple[str, ...] = ()
    sentence: str = ""

    def path(self, a: str, b: str) -> str:
        return SELF if a == b else self.paths.get((a, b), UNKNOWN)


def read_net(devices: Sequence[Device], links: Sequence[Link]) -> Net:
    """Compute the topology. MIG slices are excluded, because they share the links of their GPU."""
    gpus = tuple(device for device in devices if device.is_gpu and not device.is_mig)
    paths = {pair: link.path for link in links for pair in ((link.a, link.b), (link.b, link.a))}
    net = Net(gpus, paths)
    groups: list[list[Device]] = []
    for gpu in gpus:
        for group in groups:
            if _alike(net, group[0], gpu):
                group.append(gpu)
                break
        else:
            groups.append([gpu])
    used = {net.path(a.id, b.id) for a in gpus for b in gpus if a is not b}
    net = net._replace(
        groups=tuple(tuple(group) for group in groups), used=tuple(sorted(used, key=_speed_order))
    )
    return net._replace(sentence=_sentence(net))


def _alike(net: Net, gpu: Device, other: Device) -> bool:
    """Return whether both GPUs have the same path to every other GPU, and the same place."""
    if _place(gpu) != _place(other):
        return False
    return all(
        net.path(gpu.id, third.id) == net.path(other.id, third.id)
        for third in net.gpus
        if third.id not in (gpu.id, other.id)
    )


def _place(gpu: Device) -> tuple[str, str]:
    """Return the NUMA node and the CPUs of the GPU; each is empty if it is not known."""
    return gpu.facts.get("numa_node", ""), gpu.facts.get("cpu_affinity", "")


def wants_folding(net: Net, width: int, height: int) -> bool:
    """Return whether the matrix of single GPUs does not fit, and a matrix of groups is smaller."""
    count = len(net.gpus)
    room = height - _FRAME
    return len(net.groups) < count and (
        _label_width(net, False) + CELL * count > width or count > room
    )


class _MatrixLine(NamedTuple):
    """A line of the matrix: one GPU, or a group of them."""

    label: str
    gpus: tuple[Device, ...]


class _TopologyColumn(NamedTuple):
    head: str
    width: int
    cell: Callable[[_MatrixLine], Segment]


def topology_lines(view: View, net: Net, folded: bool, first_column: int, width: int) -> Lines:
    """Return a sentence about the topology, the matrix from `first_column` on, and the meaning of
    the words in the matrix. `folded`: the lines are groups in place of single GPUs."""
    if len(net.gpus) < 2:
        return text_lines(_no_matrix(view, net, width))
    lines, columns = _matrix_lines(net, folded), _columns(view, net, folded)
    label = _label_width(net, folded)
    visible = _fitting(columns, first_column, width - label)
    more = len(columns) - first_column - len(visible)
    head = "".join(fit(column.head, column.width, ">") for column in visible)

    def row(n: int, selected: bool) -> Row:
        gpus = lines[n].gpus
        lost = any(gpu.id in view.lost for gpu in gpus)
        current = any(gpu.id == view.device.partition("/")[0] for gpu in gpus)
        style = "alert" if lost else "accent" if current else ""
        painted = line(
            width,
            (fit(lines[n].label, label), style),
            *(column.cell(lines[n]) for column in visible),
        )
        return [("".join(text for text, _ in painted), "mark")] if selected else painted

    above = [
        *paragraph(net.sentence, width),
        blank(width),
        line(width, (" " * label + head, "dim"), ("  …" if more > 0 else "", "dim")),
    ]
    legend = [blank(width), *_legend(net, width)]
    return Lines([entry.label for entry in lines], row, above, lambda key: legend)


def last_column(view: View, net: Net, folded: bool, width: int) -> int:
    """Return the first column of the last page: from this column on, all columns are visible."""
    columns = _columns(view, net, folded)
    room = width - _label_width(net, folded)
    return next(
        (n for n in range(len(columns)) if len(_fitting(columns, n, room)) == len(columns) - n), 0
    )


def _fitting(columns: list[_TopologyColumn], first: int, room: int) -> list[_TopologyColumn]:
    """Return the columns from `first` on that are completely visible in `room`."""
    ends = accumulate(column.width for column in columns[first:])
    return [column for column, end in zip(columns[first:], ends, strict=True) if end <= room]


def _matrix_lines(net: Net, folded: bool) -> list[_MatrixLine]:
    if not folded:
        return [_MatrixLine(gpu.id, (gpu,)) for gpu in net.gpus]
    return [
        _MatrixLine(f"{letters(n):<2} {spans(gpu.id for gpu in group)}", group)
        for n, group in enumerate(net.groups)
    ]


def _label_width(net: Net, folded: bool) -> int:
    if not net.gpus:
        return 0
    return min(40, max(len(entry.label) for entry in _matrix_lines(net, folded)) + 1)


def _columns(view: View, net: Net, folded: bool) -> list[_TopologyColumn]:
    """Return a column for the path to each GPU or group, then columns for the place of the GPUs and
    the traffic on their links."""
    to_others = [
        _TopologyColumn(
            letters(n) if folded else to.label.partition(":")[2],
            CELL,
            partial(_path_cell, net, to=to),
        )
        for n, to in enumerate(_matrix_lines(net, folded))
    ]
    traffic = [
        _TopologyColumn(heading, 11, partial(_traffic_cell, view, metric))
        for heading, metric in (("in", NVLINK.metric), ("out", NVLINK.beside))
    ]
    counts = _TopologyColumn("NVLinks", 10, lambda entry: _padded(_nvlink_counts(view, entry), 10))
    places = [
        _fact_column(net, "NUMA", "numa_node", 8),
        _fact_column(net, "CPUs", "cpu_affinity", 8),
    ]
    address = [] if folded else [_fact_column(net, "PCI address", "pci", 13)]
    return [*to_others, *places, counts, *traffic, *address]


def _fact_column(net: Net, head: str, name: str, least: int) -> _TopologyColumn:
    width = min(40, max([least, *(len(gpu.facts.get(name, "")) + 2 for gpu in net.gpus)]))
    return _TopologyColumn(
        head,
        width,
        lambda entry: _padded(plain(entry.gpus[0].facts.get(name, "")) or units.NA, width),
    )


def _padded(text: str, width: int) -> Segment:
    return fit(text, width, ">"), "dim" if text == units.NA else ""


def _path_cell(net: Net, entry: _MatrixLine, to: _MatrixLine) -> Segment:
    """Return the path to another line; within a group, the path between any two of its GPUs."""
    other = to.gpus[-1] if entry == to else to.gpus[0]
    path = net.path(entry.gpus[0].id, other.id)
    style = "accent" if path.startswith("NV") else "dim" if path in (SELF, UNKNOWN) else ""
    return f"{path:>{CELL}}"[:CELL], style


def _latest(view: View, metric: str, gpus: Sequence[Device]) -> list[float]:
    """Return the latest values of `metric`, of the GPUs that report it."""
    values = (
        view.latest.get(series_key(metric, gpu.id)) for gpu in gpus if gpu.id not in view.lost
    )
    return [value for value in values if value is not None]


def _nvlink_counts(view: View, entry: _MatrixLine) -> str:
    """Return the number of active NVLinks of each GPU of the line, in words."""
    counts = [int(value) for value in _latest(view, "gpu.nvlinks_active", entry.gpus)]
    if not counts:
        return units.NA
    each = " each" if len(entry.gpus) > 1 else ""
    return (str(counts[0]) if min(counts) == max(counts) else f"{min(counts)}-{max(counts)}") + each


def _traffic_cell(view: View, metric: str, entry: _MatrixLine) -> Segment:
    """Return the traffic over NVLink, summed over the GPUs of the line."""
    rates = _latest(view, metric, entry.gpus)
    return _padded(units.si(sum(rates), "B/s") if rates else units.NA, 11)


def letters(n: int) -> str:
    """Return the letters of group `n`, from 0 on: A, B, ... Z, AA, AB, ..."""
    return (letters(n // 26 - 1) if n >= 26 else "") + chr(ord("A") + n % 26)


def _sentence(net: Net) -> str:
    """Return a sentence that describes the topology."""
    count = len(net.gpus)
    if net.used == (UNKNOWN,):
        return "The driver did not report how the GPUs are linked."
    if len(net.used) == 1:
        return (
            f"{spans(gpu.id for gpu in net.gpus)}:"
            f" {_in_words(net.used[0])} from each to every other."
        )
    within = {net.path(group[0].id, group[-1].id) for group in net.groups if len(group) > 1}
    between = {net.path(a[0].id, b[0].id) for a in net.groups for b in net.groups if a is not b}
    inside = f"{_either(within)} within a group, " if within else ""
    return (
        f"{count} GPUs in {len(net.groups)} groups with equal links:"
        f" {inside}{_either(between)} between groups."
    )


def _either(paths: set[str]) -> str:
    return " or ".join(sorted(paths, key=_speed_order))


def _in_words(path: str) -> str:
    return f"{path} ({_meaning(path)})"


def _meaning(path: str) -> str:
    if path.startswith("NV") and path[2:].isdecimal():
        return "1 NVLink" if path == "NV1" else f"{path[2:]} NVLinks"
    return _MEANINGS.get(path, "")


def _speed_order(path: str) -> tuple[int, int, str]:
    """Return the sort key of a path: the fastest path comes first."""
    if path.startswith("NV"):
        return 0, -int(path[2:]) if path[2:].isdecimal() else 0, path
    return 1, list(_MEANINGS).index(path) if path in _MEANINGS else 99, path


def _legend(net: Net, width: int) -> list[Row]:
    """Return rows with the meaning of the words in the matrix, the fastest path first."""
    meanings = [f"{path}: {_meaning(path)}" for path in net.used] + [
        f"{SELF}: itself",
        "in, out: current traffic over NVLink",
    ]
    rows: list[Row] = []
    text = ""
    for meaning in meanings:
        if text and len(text) + 3 + len(meaning) > width:
            rows.append(line(width, (text, "dim")))
            text = ""
        text += ("   " if text else "") + meaning
    return [*rows, line(width, (text, "dim"))]


def _no_matrix(view: View, net: Net, width: int) -> list[Row]:
    if not net.gpus:
        return paragraph(
            f"No GPU: {plain(view.no_gpu_reason)}" if view.no_gpu_reason else "No GPU here.", width
        )
    gpu = net.gpus[0]
    numa, cpus = _place(gpu)
    facts = [
        f"NUMA node {plain(numa)}" if numa else "",
        f"CPUs {plain(cpus)}" if cpus else "",
        f"PCI {plain(gpu.facts.get('pci', ''))}",
    ]
    return paragraph(
        (
            f"One GPU: there is no path to another. {gpu.id}:"
            f" {', '.join(fact for fact in facts if fact.strip('PCI '))}"
        ).rstrip(": "),
        width,
    )
