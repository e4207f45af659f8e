"""Tables on the page of a device: problems, NVLinks, cores, fixed facts and sources."""

from __future__ import annotations

from gpuconsole.model import units
from gpuconsole.model.machine import Device, Peaks
from gpuconsole.model.metrics import series_key
from gpuconsole.model.text import plain
from gpuconsole.report.cells import Row, Segment
from gpuconsole.report.machine.processes import age
from gpuconsole.report.names import spans
from gpuconsole.report.page import labelled, paragraph
from gpuconsole.report.parts import Column, Table
from gpuconsole.session.api import View

MOST_LINKS = 36
MOST_CORES = 1024
LABEL = 22
_LINK_COLUMNS = (
    ("up", "gpu.link_up"),
    ("in", "gpu.link_rx_bytes_per_s"),
    ("out", "gpu.link_tx_bytes_per_s"),
    ("replays", "gpu.link_replays"),
    ("recoveries", "gpu.link_recoveries"),
    ("CRC errors", "gpu.link_crc_errors"),
)


def trouble(view: View, place: str, width: int) -> list[Row]:
    """Problems that affect the values of the page."""
    rows: list[Row] = []
    gpu = place.partition("/")[0]
    if gpu in view.lost:
        rows += paragraph(f"{gpu} is lost: {plain(view.lost[gpu])}", width, "alert")
    if not place.startswith("gpu") and place not in ("console", "sampler") and view.no_gpu_reason:
        rows += paragraph(f"no GPU: {plain(view.no_gpu_reason)}", width)
    for name, state in view.sources.items():
        if state.stuck_s:
            detail = f": {plain(state.detail)}" if state.detail else ""
            what = "has been opening" if state.opening else "has not answered"
            rows += paragraph(f"source {plain(name)} {what} for {age(state.stuck_s)}{detail}", width, "" if state.opening else "alert")
    return rows


def links(view: View, gpu: str) -> list[Table]:
    """One row for each NVLink. Nothing for a GPU without NVLinks."""
    rows = []
    for n in range(MOST_LINKS):
        keys = [series_key(metric, f"{gpu}/link:{n}") for _, metric in _LINK_COLUMNS]
        if any(key in view.latest or key in view.unavailable for key in keys):
            cells = [_link_cell(metric, view.latest.get(key)) for (_, metric), key in zip(_LINK_COLUMNS, keys, strict=True)]
            rows.append([(f"link:{n}", ""), *cells])
    columns = [Column("NVLink"), *(Column(title, ">") for title, _ in _LINK_COLUMNS)]
    return [Table(columns, rows, indent=2)] if rows else []


def _link_cell(metric: str, value: float | None) -> Segment:
    if value is None:
        return units.NA, "dim"
    if metric == "gpu.link_up":
        return ("yes", "") if value else ("no", "alert")
    if metric.endswith("_per_s"):
        return units.si(value, "B/s").strip(), "accent"
    return units.grouped(value), ""


def cores(view: View, width: int) -> list[Table]:
    """The busy share of every core in percent: 32, 16, 8 or 4 cores in a row of at most `width` cells."""
    count = sum(1 for n in range(MOST_CORES) if series_key("host.core_busy_ratio", f"cpu:{n}") in view.latest)
    keys = [series_key("host.core_busy_ratio", f"cpu:{n}") for n in range(max(count, min(MOST_CORES, view.environment.cores or 0)))]
    values = [view.latest.get(key) for key in keys]
    if not count:
        return []
    each = next((n for n in (32, 16, 8) if 18 + 5 * n <= width), 4)
    rows = []
    for start in range(0, len(values), each):
        some = [units.NA if value is None else f"{value * 100:.0f}" for value in values[start : start + each]]
        label = f"cores {start}-{start + len(some) - 1}"
        rows.append([(label, "dim"), *((text, "") for text in some), *((("", ""),) * (each - len(some)))])
    return [Table([Column("busy share, %"), *(Column("", ">") for _ in range(each))], rows, indent=2)]


def about(device: Device, width: int) -> list[Row]:
    """The fixed facts of a device, without facts that the driver does not report."""
    facts = [
        ("memory", units.size_bytes(device.memory_bytes).strip() if device.memory_bytes else ""),
        ("uuid", device.uuid),
        ("PCIe", device.pcie),
        ("NVLink", device.nvlink),
        ("peaks", peaks(device.peaks)),
    ]
    facts += [(_WORDS.get(name, name.replace("_", " ")), text) for name, text in device.facts.items()]
    rows = labelled("  name", plain(device.name), width, LABEL)
    for label, text in facts:
        if text:
            rows += labelled(f"  {plain(label)}", plain(text), width, LABEL)
    return rows


_WORDS = {"pci": "PCI address", "numa_node": "NUMA node", "cpu_affinity": "CPU affinity", "ecc": "ECC", "mig": "MIG", "vbios": "VBIOS"}


def peaks(peaks: Peaks) -> str:
    """The known dense peaks with their source."""
    named = [
        (name, getattr(peaks, f"{name}_flops_per_s"), "FLOP/s") for name in ("fp32", "tf32", "bf16", "fp16")
    ] + [("memory", peaks.memory_bytes_per_s, "B/s")]  # fmt: skip
    known = [f"{name} {units.si(value, unit).strip()}" for name, value, unit in named if value is not None]
    return ", ".join(known) + (f" ({peaks.source})" if known and peaks.source else "")


def sources(view: View, width: int) -> list[Row]:
    """Period, missed rounds and problems of each source."""
    rows: list[Row] = []
    for name, state in view.sources.items():
        words = f"read every {state.period_s:.3g} s"
        if state.missed:
            words += f", {state.missed} {'round' if state.missed == 1 else 'rounds'} missed"
        if state.stuck_s:
            words = f"opening for {age(state.stuck_s)}" if state.opening else f"stuck for {age(state.stuck_s)}; was {words}"
        if state.detail:
            words += f"; {plain(state.detail)}"
        rows += labelled(f"  {plain(name)}", words, width, LABEL, "alert" if state.stuck_s and not state.opening else "")
    if view.lost:
        rows += labelled("  lost", spans(view.lost), width, LABEL, "alert")
    return rows
