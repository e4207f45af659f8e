"""The blocks of a shared report about one run, or two runs side by side: figures, throughput over time, steps, the attainable rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuconsole.model import units
from gpuconsole.model.experiments import Speedup
from gpuconsole.model.figure import Attainable, TimePart
from gpuconsole.model.run import Distribution, Run, SeriesData
from gpuconsole.model.text import visible
from gpuconsole.report.cells import Segment
from gpuconsole.report.parts import Column, Table, labelled
from gpuconsole.report.run.account import attainable_report, share_text, visible_parts, why_no_share
from gpuconsole.report.run.figures import costs, step_time, throughput, utilization
from gpuconsole.report.run.runs import run_entries
from gpuconsole.report.run.serving import goodput, request_rate
from gpuconsole.report.share.document import Band, Bar, Block, Folded, Loss, Mark, Steps, TextBlock, Tile, Tiles, Timeline, Trace, Waterfall
from gpuconsole.report.share.story import Chain

NO_TRACE = "n/a: the snapshot has no series of the throughput"

# --- the figures of a run ------------------------------------------------------------------------------------

Figure = Callable[[Run], str]


def _tail(field: str, share: str) -> Figure:
    """A percentile of a distribution of times."""

    def figure(run: Run) -> str:
        times: Distribution | None = getattr(run.summary, field)
        return units.latency(getattr(times, share)).strip() if times is not None else ""

    return figure


FIGURES: tuple[tuple[str, str, Figure], ...] = (
    ("throughput", "", lambda run: throughput(run) if run.throughput[0] else ""),
    ("requests", "requests_per_s", lambda run: request_rate(run) if run.summary.requests_per_s else ""),
    ("goodput", "", lambda run: goodput(run) if run.summary.goodput_per_s is not None else ""),
    ("step time, mean", "step_time_s", lambda run: step_time(run) if run.summary.step_time_s else ""),
    ("step time, p50", "step_time_s", _tail("step_time_s", "p50")),
    ("step time, p99", "step_time_s", _tail("step_time_s", "p99")),
    *(
        (f"{name}, {share}", field, _tail(field, share))
        for name, field in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("ITL", "itl_s"), ("E2E", "e2e_s"))
        for share in ("p50", "p99")
    ),
    ("arithmetic", "flops_per_s", lambda run: units.quantity(run.summary.flops_per_s, "FLOP/s") if run.summary.flops_per_s else ""),
    ("MFU", "mfu_ratio", lambda run: utilization(run, "MFU").removeprefix("MFU ")),
    ("MBU", "mbu_ratio", lambda run: utilization(run, "MBU").removeprefix("MBU ")),
    ("attainable", "", share_text),
    ("memory peak", "", lambda run: units.quantity(run.summary.memory_peak_bytes, "bytes") if run.summary.memory_peak_bytes else ""),
    ("energy", "energy_j", lambda run: units.quantity(run.summary.energy_j, "J") if run.summary.energy_j else ""),
    ("tokens per joule", "tokens_per_j", lambda run: "".join(costs(run.summary.tokens_per_j, None))),
    ("cost", "cost_per_million_tokens", lambda run: "".join(costs(None, run.summary.cost_per_million_tokens))),
)
"""The label, the metric that `Run.unavailable` may explain, and the figure as text; empty where it was not measured."""
ALWAYS = ("throughput", "MFU", "attainable", "energy")
"""These figures have a row also where they were not measured: n/a with the reason."""


def pair_table(runs: Sequence[Run]) -> Table:
    """Two runs in two columns, or one run in one column."""
    heads = ["before", "after"] if len(runs) > 1 else [""]
    rows: list[list[Segment]] = []
    for label, metric, figure in FIGURES:
        texts = [figure(run) for run in runs]
        if any(texts) or label in ALWAYS:
            cells = [
                (text or f"{units.NA}: {_reason(run, label, metric)}", "" if text else "dim") for text, run in zip(texts, runs, strict=True)
            ]
            rows.append([(label, ""), *cells])
    return Table([Column(""), *(Column(head) for head in heads)], rows)


def _reason(run: Run, label: str, metric: str) -> str:
    if label == "attainable":
        return visible(why_no_share(run))
    reason = run.unavailable.get(f"workload.{metric}")
    if reason is None and metric == "energy_j":
        reason = run.unavailable.get("workload.tokens_per_j")
    if reason is None and metric == "mfu_ratio":
        reason = "the FLOPs of this model are not known" if run.summary.flops_per_s is None else "the peak of this device is not known"
    return visible(reason or "not measured in this run")


def tiles(runs: Sequence[Run], gain: Speedup | None) -> Tiles:
    """The largest figures: the throughput, the time of a step or of a request, the proven gain."""
    first, last = runs[0], runs[-1]
    several = len(runs) > 1
    figures = [_tile("throughput", throughput, first, last, several)]
    if last.serves:
        figures += [
            _tile(label, _tail(field, "p99"), first, last, several) for label, field in (("TTFT, p99", "ttft_s"), ("E2E, p99", "e2e_s"))
        ]
    elif last.summary.step_time_s is not None:
        figures.append(_tile("step time, mean", step_time, first, last, several))
    if gain is not None:
        interval = f"95 % interval {units.bounds(gain.low, gain.high)}"
        figures.append(Tile("proven gain", units.speedup(gain.estimate).strip(), note=interval, style="good"))
    return Tiles([tile for tile in figures if tile.value])


def _tile(label: str, figure: Figure, first: Run, last: Run, several: bool) -> Tile:
    return Tile(label, figure(last), figure(first) if several else "")


# --- where a step goes --------------------------------------------------------------------------------------


def step_bars(runs: Sequence[tuple[str, Run]]) -> Steps:
    """Where a step or a request goes; each run with its label."""
    serves = runs[0][1].serves
    bars = []
    for label, run in runs:
        times = run.summary.e2e_s if serves else run.summary.step_time_s
        if parts := visible_parts(run.summary.phases_ratio):
            bars.append(Bar(label, parts, times.mean if times else None))
    what = "request" if serves else "step"
    missing = "" if bars else f"{units.NA}: the parts of a {what} were not measured"
    return Steps(bars, f"where a {what} goes", missing)


# --- throughput over time ------------------------------------------------------------------------------------


def timeline(chain: Chain) -> Timeline:
    """All runs of a chain on one time axis that begins at the first step. Marks: changes of knobs. Bands: trials."""
    unit = chain.first.throughput[1]
    origin = chain.first.begun_s
    if origin is None:
        return Timeline((), unit, missing=NO_TRACE)
    traces = [_trace(f"run {run.id}", run, unit, origin) for run in chain.runs]
    verdicts = {entry.number: f"{entry.change}: {entry.verdict or 'set'}" for entry in run_entries(chain.runs, chain.trials)}
    later = zip(chain.runs[1:], traces[1:], strict=True)
    marks = [
        Mark(min([run.begun_s - origin, *trace.times[:1]]), verdicts.get(run.id, "")) for run, trace in later if run.begun_s is not None
    ]
    bands = [
        Band(trial.begun_s - origin, trial.ended_s - origin, chain.change(trial))
        for trial in chain.trials
        if trial.begun_s is not None and trial.ended_s is not None
    ]
    if not any(trace.values for trace in traces):
        return Timeline((), unit, missing=NO_TRACE)
    return Timeline([trace for trace in traces if trace.values], unit, marks, bands)


def side_by_side(before: Run, after: Run) -> Timeline:
    """Two runs on one time axis, each from its first step."""
    unit = before.throughput[1]
    sides = (("before", before, "dim"), ("after", after, "trace"))
    traces = [_trace(label, run, unit, run.begun_s or 0.0, style) for label, run, style in sides]
    measured = [trace for trace in traces if trace.values]
    return Timeline(measured, unit, missing="" if measured else NO_TRACE)


def _trace(label: str, run: Run, unit: str, origin: float, style: str = "trace") -> Trace:
    """The throughput of a run since `origin`, without values from before the first step."""
    prefix = f"workload.{unit.replace('/s', '_per_s')}{{"
    series = next((series for key, series in run.series.items() if key.startswith(prefix)), SeriesData([], [], ""))
    points = [(t - origin, value) for t, value in zip(series.t, series.v, strict=True) if t >= origin]
    return Trace(label, [t for t, _ in points], [value for _, value in points], style)


# --- the attainable rate -------------------------------------------------------------------------------------


def attainable_blocks(label: str, run: Run) -> list[Block | Folded]:
    """The waterfall of a run, its rates, and the limits of the calculation; or the reason why there is none. `label`: which run, or empty."""
    attainable = run.attainable
    if attainable is None or not share_text(run):
        return [TextBlock([labelled(label or f"run {run.id}", f"{units.NA}: {visible(why_no_share(run))}", "dim")])]
    title = ": ".join(filter(None, (label, share_text(run))))
    return [
        _waterfall(title, attainable),
        Folded(
            "Reached and attainable rates, and how they are calculated",
            [TextBlock([*attainable_report(run), labelled("formula", visible(attainable.formula))])],
        ),
    ]


def _waterfall(title: str, attainable: Attainable) -> Waterfall:
    """Each part begins where the part before it ends; the last row is the whole time at the reached rate."""
    rows: list[Loss] = []
    start = 0.0
    unit = attainable.main.unit if attainable.main is not None else ""
    for part in attainable.parts:
        duration = units.duration(part.time_s).strip()
        rows.append(Loss(part.title, start, part.time_s, duration, _cost(part, unit), "" if rows else "work"))
        start += part.time_s
    rows.append(Loss("at the reached rate", 0.0, start, units.duration(start).strip(), "", "total"))
    return Waterfall(rows, title, f"time of each {attainable.per}")


def _cost(part: TimePart, unit: str) -> str:
    """`-15.4 samples/s`: what the part costs of the rate."""
    return f"-{units.quantity(part.lost_per_s, unit)}" if part.lost_per_s > 0 else ""
