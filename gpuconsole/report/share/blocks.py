"""The blocks of a shared report about one run, or two runs side by side: figures, throughput over
time, steps, the attainable rate."""

from __future__ import annotations

from collections.abc import Sequence

from gpuconsole.model import units
from gpuconsole.model.experiments import Speedup
from gpuconsole.model.figures import FIGURES, Attainable, SummaryFigure, TimePart
from gpuconsole.model.memory import CARD, KEPT, OWNERS
from gpuconsole.model.run import Run, SeriesData
from gpuconsole.model.text import visible
from gpuconsole.report.cells import Segment
from gpuconsole.report.parts import Column, Table, labelled
from gpuconsole.report.run.breakdown import (
    attainable_report,
    share_text,
    visible_parts,
    why_no_share,
)
from gpuconsole.report.run.figures import figure_text, throughput
from gpuconsole.report.run.memory import owner_series
from gpuconsole.report.run.runs import run_entries
from gpuconsole.report.share.document import (
    Band,
    Bar,
    Block,
    FigureTile,
    Folded,
    Layers,
    StepBars,
    StepLoss,
    TextBlock,
    Tiles,
    Timeline,
    Trace,
    TraceMark,
    Waterfall,
)
from gpuconsole.report.share.story import RunChain

NO_TRACE = "n/a: the snapshot has no series of the throughput"

# --- the figures of a run -------------------------------------------------------------------------


def pair_table(runs: Sequence[Run]) -> Table:
    """Two runs in two columns, or one run in one column. A figure that always has a row is n/a,
    with the reason, where it was not measured."""
    heads = ["before", "after"] if len(runs) > 1 else [""]
    labels: dict[str, list[tuple[SummaryFigure, str]]] = {}
    for figure in FIGURES.values():
        for share in figure.beside:
            labels.setdefault(_label(figure, share), []).append((figure, share))
    rows: list[list[Segment]] = []
    for label, figures in labels.items():
        first = figures[0][0]
        texts = [
            next(
                filter(None, (figure_text(run, figure.field, share) for figure, share in figures)),
                "",
            )
            for run in runs
        ]
        rows += _row(label, texts, [_reason(run, first) for run in runs], first.always)
        if first.field == "mbu_ratio":  # after the shares of the peaks
            rows += _row(
                "hardware limit",
                [share_text(run) for run in runs],
                [why_no_share(run) for run in runs],
                True,
            )
    return Table([Column(""), *(Column(head) for head in heads)], rows)


def _label(figure: SummaryFigure, share: str) -> str:
    return figure.label if len(figure.beside) == 1 else f"{figure.label}, {share}"


def _row(
    label: str, texts: Sequence[str], reasons: Sequence[str], always: bool
) -> list[list[Segment]]:
    """A row; none where no run has the figure."""
    if not any(texts) and not always:
        return []
    cells: list[Segment] = [
        (text, "") if text else (f"{units.NA}: {visible(reason)}", "dim")
        for text, reason in zip(texts, reasons, strict=True)
    ]
    return [[(label, ""), *cells]]


def _reason(run: Run, figure: SummaryFigure) -> str:
    reason = run.unavailable.get(figure.metric)
    if reason is None and figure.field == "energy_j":
        reason = run.unavailable.get("workload.tokens_per_j")
    if reason is None and figure.field == "mfu_ratio":
        reason = (
            "the FLOPs of this model are not known"
            if run.summary.flops_per_s is None
            else "the peak of this device is not known"
        )
    return reason or "not measured in this run"


def tiles(runs: Sequence[Run], gain: Speedup | None) -> Tiles:
    """The largest figures: the throughput, the time of a step or of a request, the speedup of all
    kept changes."""
    first, last = runs[0], runs[-1]
    several = [first, last] if len(runs) > 1 else [last]
    shown = [_tile("throughput", [throughput(run) for run in several])]
    if last.serves:
        shown += [
            _tile(
                _label(FIGURES[field], "p99"), [figure_text(run, field, "p99") for run in several]
            )
            for field in ("ttft_s", "e2e_s")
        ]
    elif last.summary.step_time_s is not None:
        label = _label(FIGURES["step_time_s"], "mean")
        shown.append(_tile(label, [figure_text(run, "step_time_s") or units.NA for run in several]))
    if gain is not None:
        interval = f"alternating blocks, 95 % interval {units.bounds(gain.low, gain.high)}"
        shown.append(
            FigureTile("speedup", units.speedup(gain.estimate).strip(), note=interval, style="good")
        )
    return Tiles([tile for tile in shown if tile.value])


def _tile(label: str, texts: Sequence[str]) -> FigureTile:
    """`texts`: the figure of the first and of the last run, or of one run."""
    return FigureTile(label, texts[-1], texts[0] if len(texts) > 1 else "")


# --- where a step goes ----------------------------------------------------------------------------


def step_bars(runs: Sequence[tuple[str, Run]]) -> StepBars:
    """Where a step or a request goes; each run with its label."""
    serves = runs[0][1].serves
    bars = []
    for label, run in runs:
        times = run.summary.e2e_s if serves else run.summary.step_time_s
        if parts := visible_parts(run.summary.phases_ratio):
            bars.append(Bar(label, parts, times.mean if times else None))
    work = "request" if serves else "step"
    missing = "" if bars else f"{units.NA}: the parts of a {work} were not measured"
    return StepBars(bars, f"where a {work} goes", missing)


# --- throughput over time -------------------------------------------------------------------------


def timeline(chain: RunChain) -> Timeline:
    """All runs of a chain on one time axis that begins at the first step. Marks: changes of knobs.
    Bands: trials."""
    unit = chain.first.throughput[1]
    origin = chain.first.begun_s
    if origin is None:
        return Timeline((), unit, missing=NO_TRACE)
    traces = [_trace(f"run {run.id}", run, unit, origin) for run in chain.runs]
    verdicts = {
        entry.number: f"{entry.change}: {entry.verdict or 'set'}"
        for entry in run_entries(chain.runs, chain.trials)
    }
    later = zip(chain.runs[1:], traces[1:], strict=True)
    marks = [
        TraceMark(min([run.begun_s - origin, *trace.times[:1]]), verdicts.get(run.id, ""))
        for run, trace in later
        if run.begun_s is not None
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
    series = next(
        (series for key, series in run.series.items() if key.startswith(prefix)),
        SeriesData([], [], ""),
    )
    points = [
        (t - origin, value) for t, value in zip(series.t, series.v, strict=True) if t >= origin
    ]
    return Trace(label, [t for t, _ in points], [value for _, value in points], style)


# --- memory over time -----------------------------------------------------------------------------

LAYER_STYLES = {
    "parameters": "work",
    "gradients": "work dense2",
    "optimizer": "work dense3",
    "activations": "trace",
    "unknown": "trace dense2",
    "cache": "trace dense4",
    "others": "dim",
}
"""Blue for what the job keeps, and for its activations; grey for what is not the job's."""


def memory_layers(label: str, run: Run) -> list[Layers]:
    """The owners of GPU memory over a run of a user's job; none where they were not measured.
    `label`: which run, or empty."""
    series = owner_series(run)
    times = sorted({t for data in series.values() for t in data.t})
    if not times:
        return []
    layers = [
        Trace(
            owner.title, [t - times[0] for t in times], _at(series[name], times), LAYER_STYLES[name]
        )
        for name, owner in OWNERS.items()
        if name in series
    ]
    kept = (
        [Trace(KEPT.title, [t - times[0] for t in times], _at(series[KEPT.name], times), "dim")]
        if KEPT.name in series
        else []
    )
    title = ": ".join(
        filter(None, (label, "owners of the GPU's memory, at the largest allocation so far"))
    )
    return [Layers(layers, title, series[CARD.name].v[-1] if CARD.name in series else 0.0, kept)]


def _at(data: SeriesData, times: Sequence[float]) -> list[float]:
    """The values of a series at `times`; 0 where it has none."""
    values = dict(zip(data.t, data.v, strict=True))
    return [values.get(t, 0.0) for t in times]


# --- the attainable rate --------------------------------------------------------------------------


def attainable_blocks(label: str, run: Run) -> list[Block | Folded]:
    """The waterfall of a run, its rates, and the limits of the calculation; or the reason why there
    is none. `label`: which run, or empty."""
    attainable = run.attainable
    if attainable is None or not share_text(run):
        return [
            TextBlock(
                [
                    labelled(
                        label or f"run {run.id}", f"{units.NA}: {visible(why_no_share(run))}", "dim"
                    )
                ]
            )
        ]
    title = ": ".join(filter(None, (label, share_text(run))))
    return [
        _waterfall(title, attainable),
        Folded(
            "Reached rates and hardware limits, and how they are calculated",
            [
                TextBlock(
                    [*attainable_report(run), labelled("formula", visible(attainable.formula))]
                )
            ],
        ),
    ]


def _waterfall(title: str, attainable: Attainable) -> Waterfall:
    """Each part begins where the part before it ends; the last row is the whole time at the reached
    rate."""
    rows: list[StepLoss] = []
    start = 0.0
    unit = attainable.main.unit if attainable.main is not None else ""
    for part in attainable.parts:
        duration = units.duration(part.time_s).strip()
        rows.append(
            StepLoss(
                part.title, start, part.time_s, duration, _cost(part, unit), "" if rows else "work"
            )
        )
        start += part.time_s
    rows.append(
        StepLoss("at the reached rate", 0.0, start, units.duration(start).strip(), "", "total")
    )
    return Waterfall(rows, title, f"time of each {attainable.per}")


def _cost(part: TimePart, unit: str) -> str:
    """`-15.4 samples/s`: what the part costs of the rate."""
    return f"-{units.quantity(part.lost_per_s, unit)}" if part.lost_per_s > 0 else ""
