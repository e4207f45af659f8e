"""The time account: the exclusive parts of a step, or of a request, as a bar with a legend."""

from __future__ import annotations

import statistics

from gpuconsole.model.run import PHASES, Run
from gpuconsole.model.serving import SERVING_PHASES
from gpuconsole.report import facts, units
from gpuconsole.report.cells import Row, Segment, fill, inner_width, line, panel, row_width
from gpuconsole.report.run import serving
from gpuconsole.report.run.figures import step_time, utilization
from gpuconsole.report.run.serving import live_costs, serving_rows
from gpuconsole.session.api import View

SMALLEST = 0.005
LOOKS: dict[str, tuple[str, str]] = {
    "data_wait": ("█", "wait"),
    "h2d": ("▓", "wait"),
    "forward": ("█", "work"),
    "backward": ("▓", "work"),
    "optimizer": ("▒", "work"),
    "comm": ("▒", "wait"),
    "logging": ("░", "wait"),
    "checkpoint": ("▓", "wait"),
    "eval": ("▒", "wait"),
    "other": ("░", "work"),
    "client_queue": ("░", "wait"),
    "queue": ("█", "wait"),
    "prefill": ("▓", "work"),
    "decode": ("█", "work"),
    "transport": ("▒", "wait"),
}
"""The colour separates work from waiting. The density separates the parts, also without colour."""


def paint_phases(view: View, width: int, height: int, boxed: bool) -> list[Row]:
    """The panel of the main screen."""
    inner = inner_width(width, boxed)
    run = view.run
    parts = visible_parts(run.summary.phases_ratio if run else {})
    bare = height < 3
    if parts:
        room = height - (3 if boxed else 1 if bare else 2)
        below = [] if run is None or room <= 1 else serving_rows(view, run, inner, room - 1) if run.serves else _spread(run, inner)
        rows = [_bar(parts, inner), *_legend(parts, _step_s(run) if width >= 100 else None, inner, room - len(below)), *below]
    elif run is not None and run.serves and run.summary.requests:
        rows = [
            line(inner, ("the server does not report the parts of a request's time", "dim")),
            *serving_rows(view, run, inner, height - 2),
        ]
    else:
        rows = [line(inner, (_nothing(view), "dim"))]
    if bare:
        return fill(rows, width, height)
    if run is not None and run.serves:
        return panel(
            "requests before the outage" if view.down else "where a request goes",
            serving.figures(view, run, width),
            rows,
            width,
            height,
            boxed,
        )
    leader = next((rank.rank for rank in run.ranks if rank.leads), None) if run and len(run.ranks) > 1 else None
    title = "where a step goes" if leader is None else f"where a step of rank {leader} goes"
    return panel(title, _figures(view, width), rows, width, height, boxed)


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
        entry: list[Segment] = [(f"{glyph} ", style), (name, ""), (f" {units.percent(ratio)}", "title")]
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
    if view.run is None:
        return "nothing is running: press s"
    if view.run.state == "failed":
        return f"the run failed before it completed a {'request' if view.run.serves else 'step'}"
    return f"no {'requests' if view.run.serves else 'steps'} measured yet" + (f": {view.stage}" if view.stage else "")


def _figures(view: View, width: int) -> list[Segment]:
    """Step time, utilization and cost, as far as each is known."""
    run = view.run
    if run is None or run.summary.step_time_s is None:
        return []
    words = [f"step {step_time(run)}"]
    if width >= 70 and (found := utilization(run, "MFU", with_peak=width >= 110)):
        words.append(found)
    if width >= 100:
        words += live_costs(view, run)
    return [("   ".join(words), "accent")]
