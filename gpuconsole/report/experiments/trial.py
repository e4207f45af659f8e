"""A trial, while it runs and when it is done: what was predicted beside what is measured."""

from __future__ import annotations

from gpuconsole.model.experiments.trial import Trial
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes
from gpuconsole.report import units as format
from gpuconsole.report.cells import Row, line, row_width, spread
from gpuconsole.report.facts import shorter

ROOM = 90
WORDS = {"win": "win", "no_gain": "no gain", "worse": "worse", "undecided": "undecided"}


def paint_running(trial: Trial, before: Knobs, width: int) -> list[Row]:
    """The change, how far the trial is, and both intervals on one scale."""
    blocks = f"{trial.blocks} blocks  {format.clock(trial.elapsed_s)}"
    if trial.resolution_ratio is not None and width >= ROOM:
        blocks = f"can tell {format.percent(trial.resolution_ratio).strip()} from nothing   {blocks}"
    change = shorter(describe_changes(trial.changes, before), width - len(blocks) - 8)
    head = spread(width, [("trial ", "accent"), (change, "title")], [("  ", ""), (blocks, "")])
    rows = [head]
    predicted, speedup = trial.predicted, trial.speedup
    # Early intervals are wide: the scale is made for what is expected, and they run over its end.
    top = 1.3 * max(1.15, predicted.high if predicted else 0.0, speedup.estimate if speedup else 0.0)
    if predicted is not None:
        rows.append(_scale("predicted", format.interval(predicted.low, predicted.high), (predicted.low, predicted.high, None), top, width))
    if speedup is not None:
        text = f"{format.speedup(speedup.estimate)} ({format.interval(speedup.low, speedup.high)})"
        rows.append(_scale("measured", text, (speedup.low, speedup.high, speedup.estimate), top, width))
    else:
        so_far = "first blocks under way" if trial.method == "live ABBA" else "a second process is made ready"
        rows.append(line(width, (f"  measured   {so_far}", "dim")))
    return rows


def _scale(name: str, text: str, interval: tuple[float, float, float | None], top: float, width: int) -> Row:
    """An interval as text, and on a scale from 0 to `top` with a mark at 1x."""
    label = f"  {name:<9}  {text:<20}  "
    columns = min(60, width - len(label))
    if columns < 16:
        return line(width, (label, ""))
    low, high, middle = interval

    def column(ratio: float) -> int:
        return max(0, min(columns - 1, int(ratio / top * (columns - 1))))

    cells = ["·"] * columns
    cells[column(1.0)] = "│"
    for n in range(column(low), column(high) + 1):
        cells[n] = "━" if middle is not None else "─"
    if middle is not None:
        cells[column(middle)] = "●"
    return line(width, (label, ""), ("".join(cells), "trace" if middle is not None else "dim"))


def paint_done(trial: Trial, width: int) -> list[Row]:
    """The last trial's outcome, in two rows where it does not fit in one."""
    if trial.state == "failed":
        text = f"last trial: {describe_changes(trial.changes)} failed: {trial.error or 'no reason given'}"
        return [line(width, (text, "alert"))]
    gain = format.speedup(trial.speedup.estimate).strip() if trial.speedup else "not measured"
    verdict = "" if trial.kept else f" {WORDS.get(trial.verdict or '', '')},"
    outcome = f"{gain}{verdict} {'kept' if trial.kept else 'reverted'}"
    extra = f" (predicted {format.interval(trial.predicted.low, trial.predicted.high)})" if trial.predicted else ""
    head: Row = [("last trial  ", "dim"), (f"{describe_changes(trial.changes)}  ", ""), (outcome, "good" if trial.kept else "")]
    if row_width(head) + len(extra) <= width or not extra:
        return [line(width, *head, (extra, "dim"))]
    return [line(width, *head), line(width, (f"           {extra}", "dim"))]


def verdict_line(trial: Trial) -> str:
    """A finished trial in a line."""
    changes = describe_changes(trial.changes)
    if trial.state == "failed":
        return f"{changes}: the trial failed: {trial.error or 'no reason given'}"
    gain = f" {format.speedup(trial.speedup.estimate).strip()}" if trial.speedup else ""
    return f"{changes}:{gain} {WORDS.get(trial.verdict or '', 'undecided')}, {'kept' if trial.kept else 'reverted'}"
