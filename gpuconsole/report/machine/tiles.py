"""The content of the live tiles: eight for a GPU, and their counterparts for a CPU."""

from __future__ import annotations

from typing import NamedTuple

from gpuconsole.model import units
from gpuconsole.model.metrics import series_key
from gpuconsole.session import facts
from gpuconsole.session.api import View


class Trace(NamedTuple):
    """A series to draw. `high` is the top of its scale; None: the maximum of the series.

    Where a tile has several series: `figure` is the figure of this series in a row of its own, `label` names it where all share a row.
    """

    key: str
    label: str = ""
    high: float | None = None
    figure: str = ""


class Tile(NamedTuple):
    """`figure` is shown if it fits next to the title, otherwise `short`. `reason`: why there is no value."""

    title: str
    figure: str
    traces: tuple[Trace, ...]
    short: str = ""
    reason: str = ""


FIRST = (0, 2, 6, 7)
"""The four most important tiles, for a screen without room for eight."""


def tiles(view: View, all_eight: bool) -> list[Tile]:
    """The tiles of the view's device."""
    eight = _gpu(view) if facts.device(view).is_gpu else _cpu(view)
    return eight if all_eight else [eight[n] for n in FIRST]


def host_tiles(view: View) -> list[Tile]:
    """What the host does, without a workload."""
    return [
        _cores(view),
        _ratio(view, "run-queue delay", "host.run_queue_delay_ratio"),
        _memory(view, "memory", "host.memory_used_bytes", "host.memory_total_bytes"),
        _pair(view, "disk", "host.disk_{}_bytes_per_s", ("read", "write"), ("r", "w")),
        _pair(view, "net", "host.net_{}_bytes_per_s", ("rx", "tx")),
    ]


def _gpu(view: View) -> list[Tile]:
    return [
        _ratio(view, "SM active", "gpu.sm_active_ratio"),
        _ratio(view, "tensor active", "gpu.tensor_active_ratio"),
        _memory(view, "HBM used", "gpu.hbm_used_bytes", "gpu.hbm_total_bytes"),
        _bandwidth(view),
        _pair(view, "PCIe", "gpu.pcie_{}_bytes_per_s", ("rx", "tx")),
        _pair(view, "NVLink", "gpu.nvlink_{}_bytes_per_s", ("rx", "tx")),
        _throughput(view),
        _latency(view) if _serves(view) else _step(view),
    ]


def _cpu(view: View) -> list[Tile]:
    return [
        _cores(view),
        _ratio(view, "run-queue delay", "host.run_queue_delay_ratio"),
        _memory(view, "memory", "host.memory_used_bytes", "host.memory_total_bytes"),
        _requests(view) if _serves(view) else _flops(view),
        _pair(view, "disk", "host.disk_{}_bytes_per_s", ("read", "write"), ("r", "w")),
        _pair(view, "net", "host.net_{}_bytes_per_s", ("rx", "tx")),
        _throughput(view),
        _latency(view) if _serves(view) else _step(view),
    ]


def _serves(view: View) -> bool:
    return view.run is not None and view.run.serves


def _tile(view: View, metric: str, title: str, figure: str, traces: tuple[Trace, ...], short: str = "") -> Tile:
    """A tile with its figure, or with the reason why there is no figure."""
    old = not metric.startswith("workload.") and facts.silent_s(view, facts.device_of(view, metric))
    if old or facts.latest(view, metric) is None:
        return Tile(title, units.NA, (), "", facts.reason(view, metric))
    return Tile(title, figure, traces, short)


def _trace(view: View, metric: str, label: str = "", high: float | None = None, figure: str = "") -> Trace:
    return Trace(series_key(metric, facts.device_of(view, metric)), label, high, figure)


def _ratio(view: View, title: str, metric: str) -> Tile:
    return _tile(view, metric, title, units.percent(facts.latest(view, metric)), (_trace(view, metric, high=1.0),))


def _memory(view: View, title: str, used: str, total: str) -> Tile:
    now, whole = facts.latest(view, used), facts.latest(view, total)
    return _tile(
        view, used, title, units.used_of(now, whole), (_trace(view, used, high=whole),), units.used_of(now, whole, places=0).strip()
    )


def _bandwidth(view: View) -> Tile:
    """HBM bandwidth; the scale ends at the datasheet peak where the peak is known."""
    peak = facts.device(view).peaks.memory_bytes_per_s
    value, ratio = facts.latest(view, "gpu.hbm_bytes_per_s"), facts.latest(view, "gpu.dram_active_ratio")
    if value is None and ratio is not None:
        return _ratio(view, "HBM bandwidth", "gpu.dram_active_ratio")
    short = units.si(value, "B/s")
    figure = f"{short} {units.percent(ratio)}" if ratio is not None else short
    return _tile(view, "gpu.hbm_bytes_per_s", "HBM bandwidth", figure, (_trace(view, "gpu.hbm_bytes_per_s", high=peak),), short)


def _pair(view: View, title: str, pattern: str, names: tuple[str, str], labels: tuple[str, str] | None = None) -> Tile:
    """A tile with two directions of traffic, both in the unit of the larger rate."""
    metrics = [pattern.format(name) for name in names]
    labels = labels or names
    first, second, unit = units.rates(facts.latest(view, metrics[0]), facts.latest(view, metrics[1]), "B/s")
    both = tuple(zip(metrics, labels, (first, second), strict=True))
    traces = tuple(_trace(view, metric, label, figure=f"{label} {text} {unit}") for metric, label, text in both)
    metric = next((one for one in metrics if facts.latest(view, one) is not None), metrics[0])
    return _tile(view, metric, title, f"{labels[0]} {first.strip()} {labels[1]} {second.strip()} {unit}", traces)


def _cores(view: View) -> Tile:
    cores = view.environment.cores
    busy = facts.latest(view, "host.cores_busy")
    figure = f"{busy:4.1f}" if busy is not None else units.NA
    figure += f" of {cores}" if cores else " cores"
    return _tile(view, "host.cores_busy", "cores busy", figure, (_trace(view, "host.cores_busy", high=float(cores) or None),))


def _flops(view: View) -> Tile:
    rate, mfu = facts.latest(view, "workload.flops_per_s"), facts.latest(view, "workload.mfu_ratio")
    short = units.si(rate, "FLOP/s")
    figure = f"{short} {units.precise_percent(mfu)} MFU" if mfu is not None else short
    return _tile(view, "workload.flops_per_s", "model", figure, (_trace(view, "workload.flops_per_s"),), short)


def _throughput(view: View) -> Tile:
    metric, unit = facts.throughput_metric(view)
    return _tile(view, metric, unit, units.rate(facts.latest(view, metric)), (_trace(view, metric),))


def _requests(view: View) -> Tile:
    """Running and waiting requests of the server."""
    counts = (facts.latest(view, f"server.requests_{which}") for which in ("running", "waiting"))
    running, waiting = (units.NA if count is None else f"{count:.0f}" for count in counts)
    traces = (
        _trace(view, "server.requests_running", "run", figure=f"running {running:>4}"),
        _trace(view, "server.requests_waiting", "wait", figure=f"waiting {waiting:>4}"),
    )
    return _tile(view, "server.requests_running", "requests", f"{running} run {waiting} wait", traces)


def _latency(view: View) -> Tile:
    """Latencies of requests: TTFT and TPOT."""
    ttft, tpot = facts.latest(view, "workload.ttft_s"), facts.latest(view, "workload.tpot_s")
    first, second, unit = units.durations(ttft, tpot)
    figure = f"{first.strip()}, {second.strip()} {unit}"
    return _tile(view, "workload.ttft_s", "TTFT, TPOT", figure, (_trace(view, "workload.ttft_s"),))


def _step(view: View) -> Tile:
    p50, p99 = facts.percentiles(view)
    first, second, unit = units.durations(p50, p99)
    figure = f"p50 {first} p99 {second} {unit}"
    short = f"p50/99 {first}/{second.strip()} {unit}"
    if p50 is None:
        return Tile("step", units.NA, (), "", facts.reason(view, "workload.step_time_s"))
    return Tile("step", figure, (_trace(view, "workload.step_time_s"),), short)
