"""The step breakdown as a bar with a legend; the attainable rate of a run, with the waterfall down
to the reached rate; and the places of the program that take the time."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from gpuconsole.model import units
from gpuconsole.model.figures import Attainable, TimePart
from gpuconsole.model.run import IN_A_STEP, Run
from gpuconsole.model.serving import SERVING_PHASES
from gpuconsole.model.stacks import PARTS, Place
from gpuconsole.model.text import cell_width, visible
from gpuconsole.report.cells import Row, Segment, fill, line, row_width
from gpuconsole.report.parts import Column, Report, Table, heading, labelled, text
from gpuconsole.report.run.serving import ours, serving_rows
from gpuconsole.session import facts
from gpuconsole.session.api import View

# --- the step breakdown ---------------------------------------------------------------------------

SMALLEST = 0.005
LOOKS: dict[str, tuple[str, str]] = {
    "data_wait": ("█", "wait"),
    "h2d": ("░", "wait"),
    "generation": ("█", "forward"),
    "forward": ("▓", "forward"),
    "loss": ("░", "forward"),
    "backward": ("▒", "backward"),
    "optimizer": ("░", "optimizer"),
    "comm": ("█", "wait"),
    "logging": ("▓", "wait"),
    "checkpoint": ("▒", "wait"),
    "eval": ("█", "wait"),
    "other": ("▄", "work"),
    "client_queue": ("░", "wait"),
    "queue": ("█", "wait"),
    "prefill": ("▓", "forward"),
    "decode": ("▒", "backward"),
    "transport": ("░", "wait"),
}
"""The letter and the style of each phase, in every bar, legend and chart. All waits have one
colour, and each kind of work has its own. The density separates neighbours, also without colour:
parts that are often missing are between them."""


NAMES = {
    "data_wait": "data wait",
    "h2d": "copy to GPU",
    "comm": "communication",
    "client_queue": "client queue",
}
"""Plain words for parts whose names in files are short."""


def paint_steps(view: View, width: int, height: int) -> list[Row]:
    """The bar behind the time of a step or of a request, its legend, then what belongs to this kind
    of run."""
    run = view.run
    parts = visible_parts(run.summary.phases_ratio if run else {})
    if not parts and (before := _before(view)) is not None:
        return fill(_dimmed(before, width, height), width, height)
    if run is None or not parts:
        why = (
            "the server does not report the parts of a request's time"
            if run is not None and run.serves and run.summary.requests
            else _nothing(view)
        )
        below = (
            serving_rows(view, run, width, height - 1)
            if run is not None and run.serves and run.summary.requests
            else []
        )
        return fill([line(width, (why, "dim")), *below], width, height)
    head = _head(view, run)
    rows = [line(width, head, *_bar(parts, width - cell_width(head[0])))]
    below = (
        serving_rows(view, run, width, height - 2)
        if run.serves
        else _spread(run, width)[: max(0, height - 2)]
    )
    step_s = _step_s(run) if width >= 100 else None
    return fill(
        [*rows, *_legend(parts, step_s, width, height - 1 - len(below)), *below], width, height
    )


def _before(view: View) -> Run | None:
    """The run before a kept change, while the run with the change has no steps yet."""
    runs = facts.chain(view)
    return (
        runs[-2]
        if len(runs) > 1 and facts.active(view) and visible_parts(runs[-2].summary.phases_ratio)
        else None
    )


def _dimmed(before: Run, width: int, height: int) -> list[Row]:
    """The bar and the legend of the run before a kept change, without colours."""
    parts, step_s = visible_parts(before.summary.phases_ratio), _step_s(before)
    head = (
        f"before: mean {'request' if before.serves else 'step'}"
        f" {units.duration(step_s).strip() if step_s is not None else ''} "
    )
    rows = [
        line(
            width,
            (head, "dim"),
            *((text, "dim") for text, _ in _bar(parts, width - cell_width(head))),
        )
    ]
    legend = _legend(parts, step_s if width >= 100 else None, width, height - 1)
    return [*rows, *([(text, "dim") for text, _ in row] for row in legend)]


def rows_below(run: Run) -> int:
    """The rows below the legend: latencies and server, or how far several processes lie apart."""
    return 2 if run.serves else 1 if len(run.ranks) > 1 else 0


def _head(view: View, run: Run) -> Segment:
    """`mean step 146 ms `: the time that the bar shows."""
    head = "request" if run.serves else "step"
    if view.down:
        head = "request before the outage"
    elif (
        len(run.ranks) > 1
        and (leader := next((rank.rank for rank in run.ranks if rank.leads), None)) is not None
    ):
        head = f"step of rank {leader}:"
    seconds = _step_s(run)
    return (
        f"mean {head} {units.duration(seconds).strip()} " if seconds is not None else f"{head} ",
        "title",
    )


def visible_parts(ratios: dict[str, float]) -> list[tuple[str, float]]:
    """Phases that take at least half a percent, in the order of a step or of a request."""
    return [
        (name, ratios[name])
        for name in (*IN_A_STEP, *SERVING_PHASES)
        if ratios.get(name, 0.0) >= SMALLEST
    ]


def breakdown_segments(run: Run) -> list[Segment]:
    """The parts in one row, the largest first: `data_wait 41 % 180 ms   forward 18 % 79.0 ms`."""
    segments: list[Segment] = []
    step_s = _step_s(run)
    for name, ratio in sorted(visible_parts(run.summary.phases_ratio), key=lambda part: -part[1]):
        segments += [
            ("   " if segments else "", ""),
            (f"{name} ", ""),
            (units.percent(ratio).strip(), "title"),
        ]
        segments += (
            [(f" {units.duration(ratio * step_s).strip()}", "dim")] if step_s is not None else []
        )
    return segments


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
    return line(
        width,
        *(
            (LOOKS[name][0] * count, LOOKS[name][1])
            for (name, _), count in zip(parts, columns, strict=True)
        ),
    )


def _legend(
    parts: list[tuple[str, float]], step_s: float | None, width: int, height: int
) -> list[Row]:
    """Each part with its share, and its time if there is room. If not all parts fit, only the
    largest parts."""
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
        entry: list[Segment] = [
            (f"{glyph} ", style),
            (NAMES.get(name, name), ""),
            (f" {units.percent(ratio)}", "title"),
        ]
        entry += [(f" {units.duration(ratio * step_s)}", "dim")] if step_s is not None else []
        gap: list[Segment] = [("   ", "")] if rows[-1] else []
        if row_width(rows[-1] + gap + entry) > width and rows[-1]:
            rows.append(entry)
        else:
            rows[-1] += gap + entry
    return [line(width, *row) for row in rows]


def _spread(run: Run, width: int) -> list[Row]:
    """With several processes: the longest step time without communication, next to the median of
    the other processes."""
    busy = {rank.rank: rank.busy_s for rank in run.ranks if rank.busy_s is not None}
    if len(busy) < 2:
        return []
    longest = max(busy, key=lambda rank: busy[rank])
    others = statistics.median(seconds for rank, seconds in busy.items() if rank != longest)
    rest = (
        f"rank {next(rank for rank in busy if rank != longest)}"
        if len(busy) == 2
        else f"the median of the other {len(busy) - 1}"
    )
    late = any(finding.rule == "comm.straggler" for finding in facts.firing(run))
    text = (
        f"rank {longest} {units.duration(busy[longest]).strip()}, {rest}"
        f" {units.duration(others).strip()}"
    )
    return [line(width, ("without communication: ", "dim"), (text, "accent" if late else ""))]


def _step_s(run: Run | None) -> float | None:
    times = (run.summary.e2e_s if run.serves else run.summary.step_time_s) if run else None
    return times.mean if times else None


def _nothing(view: View) -> str:
    if view.run is None or view.run.state == "starting":
        return ""
    if view.run.state == "failed":
        return f"the run failed before it completed a {'request' if view.run.serves else 'step'}"
    if sent := ours(view.run):
        return f"no requests of others measured yet; {sent}"
    return f"no {'requests' if view.run.serves else 'steps'} measured yet" + (
        f": {view.stage}" if view.stage else ""
    )


# --- the attainable rate of a run -----------------------------------------------------------------

MIN_PART_SHARE = 0.005
"""Smaller parts of the time are added up in one row."""
RATE_BAR = 16
WORK, WAIT = "█", "▒"
NO_FACTS = "the run has not reported its facts yet"


def share_text(run: Run) -> str:
    """`41 % of hardware limit`, for a place next to the throughput; empty where the share is not
    known (see `why_no_share`).

    More than 100 % is shown as it is: the peaks in use are then too low, and the notes of the full
    report say so.
    """
    share = run.attainable.share_ratio if run.attainable is not None else None
    return f"{units.precise_percent(share)} of hardware limit" if share is not None else ""


def why_no_share(run: Run) -> str:
    """The reason why `share_text` is empty; empty where the share is known."""
    if share_text(run):
        return ""
    if run.client:
        return "the file of the client names no device"
    if run.watched:
        return "a server that is only watched does not say on which hardware it runs"
    return (
        run.attainable.reason if run.attainable is not None and run.attainable.reason else NO_FACTS
    )


def attainable_report(run: Run) -> Report:
    """The attainable rate with its limit and its sources, the rates as a table, and the waterfall.
    Fits 80 columns. Empty for a run without facts."""
    attainable = run.attainable
    if attainable is None:
        return []
    if attainable.main is None:
        return [labelled("limit", f"{units.NA}: {attainable.reason or NO_FACTS}")]
    summary = (
        f"{_rate(attainable.main.attainable_per_s, attainable.main.unit)}, limit:"
        f" {attainable.bound}"
    )
    report: Report = [
        labelled("limit", [(share_text(run), "title"), (f" ({summary})", "")]),
        labelled("peaks", attainable.source, "dim"),
        _rates(attainable),
        text(f"from the limit to the reached rate, per {attainable.per}:", "dim"),
        _waterfall(attainable),
    ]
    notes = (
        *attainable.notes,
        *_notes(attainable.parts),
        *_shifted_ends(run, sum(part.time_s for part in attainable.parts)),
    )
    return [*report, *(text(note, "dim") for note in dict.fromkeys(notes))]


def _shifted_ends(run: Run, reached_s: float) -> list[str]:
    """Why the waterfall of a step, which ends at `reached_s`, does not end at the mean step time;
    empty where both read the same."""
    times = run.summary.step_time_s
    if run.serves or times is None or not reached_s:
        return []
    reached, mean, unit = units.durations(reached_s, times.mean)
    return (
        [
            (
                f"{reached.strip()} {unit} is the time at the mean rate; the mean step takes"
                f" {mean.strip()} {unit}"
            )
        ]
        if reached != mean
        else []
    )


def _notes(parts: Sequence[TimePart]) -> list[str]:
    return [f"{part.title}: {part.note}" for part in parts if part.note]


def _rate(value: float | None, unit: str) -> str:
    return units.quantity(value, unit)


def _rates(attainable: Attainable) -> Table:
    columns = (Column("rate"), Column("reached", ">"), Column("limit", ">"), Column("share", ">"))
    rows = [
        [
            (rate.title, ""),
            (_rate(rate.reached_per_s, rate.unit), ""),
            (_rate(rate.attainable_per_s, rate.unit), ""),
            (units.precise_percent(rate.share_ratio), "title"),
        ]
        for rate in attainable.rates
    ]
    return Table(columns, rows, indent=2)


def _waterfall(attainable: Attainable) -> Table:
    """A row for each part: its time, its share of the whole time, the rate that it costs, and a bar
    at its place in the step."""
    main = attainable.main
    assert main is not None
    total = sum(part.time_s for part in attainable.parts)
    columns = (
        Column("part", least=24),
        Column("time", ">"),
        Column("share", ">"),
        Column(main.unit, ">"),
        Column("", least=8, drop=1),
    )
    rows: list[list[Segment]] = []
    begun, largest = 0.0, max((part.time_s for part in attainable.parts[1:]), default=0.0)
    for part in _parts_shown(attainable.parts, total):
        first = part is attainable.parts[0]
        rate = units.rate(main.attainable_per_s, 0) if first else _lost(part.lost_per_s)
        style = "title" if first or part.time_s == largest else ""
        bar = (
            _rate_bar(begun / total, (begun + part.time_s) / total, WORK if first else WAIT),
            "work" if first else "wait",
        )
        rows.append(
            [
                (part.title, style),
                (_duration(part.time_s), style),
                (units.percent(part.time_s / total), ""),
                (rate, style),
                bar,
            ]
        )
        begun += part.time_s
    end = (
        (units.duration(total), "title"),
        (units.percent(1.0), ""),
        (units.rate(main.reached_per_s, 0), "title"),
        (WORK * RATE_BAR, "work"),
    )
    return Table(columns, [*rows, [("reached", "title"), *end]], indent=2)


def _parts_shown(parts: Sequence[TimePart], total: float) -> list[TimePart]:
    """The parts with the small ones in one row, so that the rows still add up."""
    large = [
        part for n, part in enumerate(parts) if n == 0 or abs(part.time_s) >= MIN_PART_SHARE * total
    ]
    small = [part for part in parts if part not in large]
    if not small:
        return large
    title = small[0].title if len(small) == 1 else f"{len(small)} smaller parts"
    return [
        *large,
        TimePart(
            "smaller",
            title,
            sum(part.time_s for part in small),
            sum(part.lost_per_s for part in small),
        ),
    ]


def _duration(seconds: float) -> str:
    return units.duration(seconds) if seconds >= 0 else f"-{units.duration(-seconds).strip()}"


def _lost(per_s: float) -> str:
    return f"{'-' if per_s >= 0 else '+'}{units.rate(abs(per_s), 0)}"


def _rate_bar(start: float, end: float, glyph: str) -> str:
    """A bar of RATE_BAR cells from `start` to `end`, as shares of the whole. A part has at least
    one cell."""
    left, right = sorted(
        (round(max(0.0, min(1.0, start)) * RATE_BAR), round(max(0.0, min(1.0, end)) * RATE_BAR))
    )
    left = min(left, RATE_BAR - 1)
    return (" " * left + glyph * max(1, right - left)).ljust(RATE_BAR)


# --- the places of the program that take the time of a step: functions and lines, from samples of
# the stack --

SMALLEST_PLACE = 0.01
LARGE = 0.5
"""From this share of its samples on, a place is said to wait."""


def places_report(run: Run) -> Report:
    """The functions of the program with the largest shares of a step, the largest first; empty
    where no stack was sampled."""
    places = [place for place in run.places if place.share_ratio >= SMALLEST_PLACE]
    if not places:
        return []
    columns = (
        Column("share", ">"),
        Column("line"),
        Column("function", least=8),
        Column("part of the step", drop=1),
        Column("", drop=2, least=8),
    )
    rows: list[list[Segment]] = [
        [
            (units.percent(place.share_ratio).strip(), ""),
            (visible(place.line), ""),
            (visible(place.function), ""),
            (PARTS.get(place.part, place.part), "dim"),
            (visible(activity(place)), "dim"),
        ]
        for place in places
    ]
    return [heading("Time of a step by function of the program"), Table(columns, rows)]


def activity(place: Place) -> str:
    """`waits in queue.Queue.get, called by train.py:31 main`: what the thread does in a place."""
    what = "waits" if place.waits_ratio >= LARGE else ""
    inner = f"{what} in {place.callee}".strip() if place.callee else what
    return ", ".join(
        part for part in (inner, f"called by {place.caller}" if place.caller else "") if part
    )
