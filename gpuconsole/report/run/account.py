"""The time account: the exclusive parts of a step, or of a request, as a bar with a legend."""

from __future__ import annotations

import statistics

from gpuconsole.model.run import PHASES, Run
from gpuconsole.model.serving import SERVING_PHASES
from gpuconsole.report import facts, units
from gpuconsole.report.cells import Row, Segment, cell_width, fill, line, row_width
from gpuconsole.report.run.serving import serving_rows
from gpuconsole.session.api import View

SMALLEST = 0.005
LOOKS: dict[str, tuple[str, str]] = {
    "data_wait": ("█", "wait"),
    "h2d": ("░", "wait"),
    "forward": ("▓", "work"),
    "backward": ("▒", "work"),
    "optimizer": ("░", "work"),
    "comm": ("█", "wait"),
    "logging": ("▓", "wait"),
    "checkpoint": ("▒", "wait"),
    "eval": ("█", "wait"),
    "other": ("▄", "work"),
    "client_queue": ("░", "wait"),
    "queue": ("█", "wait"),
    "prefill": ("▓", "work"),
    "decode": ("▒", "work"),
    "transport": ("░", "wait"),
}
"""The colour separates work from waiting. The density separates neighbours, also without colour: parts that are often missing are between them."""


NAMES = {"data_wait": "data wait", "h2d": "copy to GPU", "comm": "communication", "client_queue": "client queue"}
"""Plain words for parts whose names in files are short."""


def paint_steps(view: View, width: int, height: int) -> list[Row]:
    """The bar behind the time of a step or of a request, its legend, then what belongs to this kind of run."""
    run = view.run
    parts = visible_parts(run.summary.phases_ratio if run else {})
    if run is None or not parts:
        why = (
            "the server does not report the parts of a request's time"
            if run is not None and run.serves and run.summary.requests
            else _nothing(view)
        )
        below = serving_rows(view, run, width, height - 1) if run is not None and run.serves and run.summary.requests else []
        return fill([line(width, (why, "dim")), *below], width, height)
    head = _head(view, run)
    rows = [line(width, head, *_bar(parts, width - cell_width(head[0])))]
    below = serving_rows(view, run, width, height - 2) if run.serves else _spread(run, width)[: max(0, height - 2)]
    step_s = _step_s(run) if width >= 100 else None
    return fill([*rows, *_legend(parts, step_s, width, height - 1 - len(below)), *below], width, height)


def rows_below(run: Run) -> int:
    """The rows below the legend: latencies and server, or how far several processes lie apart."""
    return 2 if run.serves else 1 if len(run.ranks) > 1 else 0


def _head(view: View, run: Run) -> Segment:
    """`step 146 ms `: the time that the bar shows."""
    words = "request" if run.serves else "step"
    if view.down:
        words = "request before the outage"
    elif len(run.ranks) > 1 and (leader := next((rank.rank for rank in run.ranks if rank.leads), None)) is not None:
        words = f"step of rank {leader}:"
    seconds = _step_s(run)
    return (f"{words} {units.duration(seconds).strip()} " if seconds is not None else f"{words} ", "title")


def visible_parts(ratios: dict[str, float]) -> list[tuple[str, float]]:
    """Phases that take at least half a percent, in the order of a step or of a request."""
    return [(name, ratios[name]) for name in (*PHASES, *SERVING_PHASES) if ratios.get(name, 0.0) >= SMALLEST]


def account_segments(run: Run) -> list[Segment]:
    """The parts in one row, the largest first: `data_wait 41 % 180 ms   forward 18 % 79.0 ms`."""
    found: list[Segment] = []
    step_s = _step_s(run)
    for name, ratio in sorted(visible_parts(run.summary.phases_ratio), key=lambda part: -part[1]):
        found += [("   " if found else "", ""), (f"{name} ", ""), (units.percent(ratio).strip(), "title")]
        found += [(f" {units.duration(ratio * step_s).strip()}", "dim")] if step_s is not None else []
    return found


def columns_of(parts: list[tuple[str, float]], width: int) -> list[int]:
    """Columns for each part: proportional to its share, `width` in total (largest remainders)."""
    total = sum(ratio for _, ratio in parts)
    exact = [ratio / total * width for _, ratio in parts]
    columns = [int(value) for value in exact]
    order = sorted(range(len(parts)), key=lambda n: exact[n] - columns[n], reverse=True)
    for n in order[: width - sum(columns)]:
        columns[n] += 1
    return columns


def _bar(parts: list[tuple[str, float]], width: int) -> Row:
    columns = columns_of(parts, width)
    return line(width, *((LOOKS[name][0] * count, LOOKS[name][1]) for (name, _), count in zip(parts, columns, strict=True)))


def _legend(parts: list[tuple[str, float]], step_s: float | None, width: int, height: int) -> list[Row]:
    """Each part with its share, and its time if there is room. If not all parts fit, only the largest parts."""
    timed = _flow(parts, width, step_s) if step_s is not None else []
    if timed and len(timed) <= height:
        return timed
    for keep in range(len(parts), 0, -1):
        largest = {name for name, _ in sorted(parts, key=lambda part: -part[1])[:keep]}
        rows = _flow([part for part in parts if part[0] in largest], width)
        if len(rows) <= height:
            return rows
    return []


def _flow(parts: list[tuple[str, float]], width: int, step_s: float | None = None) -> list[Row]:
    rows: list[list[Segment]] = [[]]
    for name, ratio in parts:
        glyph, style = LOOKS[name]
        entry: list[Segment] = [(f"{glyph} ", style), (NAMES.get(name, name), ""), (f" {units.percent(ratio)}", "title")]
        entry += [(f" {units.duration(ratio * step_s)}", "dim")] if step_s is not None else []
        gap: list[Segment] = [("   ", "")] if rows[-1] else []
        if row_width(rows[-1] + gap + entry) > width and rows[-1]:
            rows.append(entry)
        else:
            rows[-1] += gap + entry
    return [line(width, *row) for row in rows]


def _spread(run: Run, width: int) -> list[Row]:
    """With several processes: the longest step time without communication, next to the median of the other processes."""
    busy = {rank.rank: rank.busy_s for rank in run.ranks if rank.busy_s is not None}
    if len(busy) < 2:
        return []
    longest = max(busy, key=lambda rank: busy[rank])
    others = statistics.median(seconds for rank, seconds in busy.items() if rank != longest)
    rest = f"rank {next(rank for rank in busy if rank != longest)}" if len(busy) == 2 else f"the median of the other {len(busy) - 1}"
    late = any(finding.rule == "comm.straggler" for finding in facts.firing(run))
    text = f"rank {longest} {units.duration(busy[longest]).strip()}, {rest} {units.duration(others).strip()}"
    return [line(width, ("without communication: ", "dim"), (text, "accent" if late else ""))]


def _step_s(run: Run | None) -> float | None:
    times = (run.summary.e2e_s if run.serves else run.summary.step_time_s) if run else None
    return times.mean if times else None


def _nothing(view: View) -> str:
    if view.run is None or view.run.state == "starting":
        return ""
    if view.run.state == "failed":
        return f"the run failed before it completed a {'request' if view.run.serves else 'step'}"
    return f"no {'requests' if view.run.serves else 'steps'} measured yet" + (f": {view.stage}" if view.stage else "")
