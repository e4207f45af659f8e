"""The figures of one run, or of two runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuconsole.model import units
from gpuconsole.model.experiments import Speedup
from gpuconsole.model.run import PHASES, Distribution, Run
from gpuconsole.model.serving import SERVING_PHASES
from gpuconsole.model.text import visible
from gpuconsole.report.cells import Segment
from gpuconsole.report.parts import Column, Table
from gpuconsole.report.run.account import share_text, visible_parts, why_no_share
from gpuconsole.report.run.figures import costs, step_time, throughput, utilization
from gpuconsole.report.run.serving import goodput, request_rate
from gpuconsole.report.share.document import Bar, Steps, Tile, Tiles

Figure = Callable[[Run], str]


def _tail(field: str, share: str) -> Figure:
    """A percentile of a distribution of times."""

    def figure(run: Run) -> str:
        found: Distribution | None = getattr(run.summary, field)
        return units.latency(getattr(found, share)).strip() if found is not None else ""

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
    known = run.unavailable.get(f"workload.{metric}")
    if known is None and metric == "energy_j":
        known = run.unavailable.get("workload.tokens_per_j")
    if known is None and metric == "mfu_ratio":
        known = "the FLOPs of this model are not known" if run.summary.flops_per_s is None else "the peak of this device is not known"
    return visible(known or "not measured in this run")


def tiles(runs: Sequence[Run], gain: Speedup | None) -> Tiles:
    """The largest figures: the throughput, the time of a step or of a request, the proven gain."""
    first, last = runs[0], runs[-1]
    several = len(runs) > 1
    found = [_tile("throughput", throughput, first, last, several)]
    if last.serves:
        found += [
            _tile(label, _tail(field, "p99"), first, last, several) for label, field in (("TTFT, p99", "ttft_s"), ("E2E, p99", "e2e_s"))
        ]
    elif last.summary.step_time_s is not None:
        found.append(_tile("step time, mean", step_time, first, last, several))
    if gain is not None:
        interval = f"95 % interval {units.bounds(gain.low, gain.high)}"
        found.append(Tile("proven gain", units.speedup(gain.estimate).strip(), note=interval, style="good"))
    return Tiles([tile for tile in found if tile.value])


def _tile(label: str, figure: Figure, first: Run, last: Run, several: bool) -> Tile:
    return Tile(label, figure(last), figure(first) if several else "")


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


def step_parts(chart: Steps) -> list[str]:
    """The names of all parts, in the order of a step or of a request."""
    known = {name for bar in chart.bars for name, _ in bar.parts}
    return [name for name in (*PHASES, *SERVING_PHASES) if name in known]


def part_words(bar: Bar, name: str) -> tuple[str, str]:
    """`54 %` and `89.1 ms`, as in the time account of the terminal. Empty for a part below half a percent; the time where it is not known."""
    ratio = dict(bar.parts).get(name)
    if ratio is None:
        return "", ""
    return units.percent(ratio).strip(), units.duration(ratio * bar.total_s).strip() if bar.total_s else ""
