"""A running or finished trial: its prediction next to its measurement."""

from __future__ import annotations

from gpuconsole.model.experiments.trial import Forecast, Trial
from gpuconsole.model.finding import Interval
from gpuconsole.model.job.facts import EFFECTS
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes, show
from gpuconsole.model.text import visible
from gpuconsole.report import units
from gpuconsole.report.cells import Row, Segment, fill, line, row_width, spread
from gpuconsole.report.facts import shorter
from gpuconsole.report.parts import Line, Report

ROOM = 90
"""Minimum columns for the resolution in the head of a running trial."""
NO_CAUSE = "no cause was reported"
CHANGES_TRAINING = "this change alters what the model learns per step, not only the speed"


def predicted(interval: Interval | None) -> str:
    """`predicted 1.45-1.69x`."""
    return f"predicted {units.interval(interval.low, interval.high)}" if interval else "no prediction"


def measured(trial: Trial) -> str:
    """`1.52x [1.40, 1.66]`."""
    found = trial.speedup
    return units.measured(found.estimate, found.low, found.high) if found else "not measured"


def verdict(trial: Trial) -> str:
    """`win, kept`; `on trial` while the trial runs; only `win` where the command of a user's job was started for the trial alone."""
    if trial.state == "running":
        return "on trial"
    if trial.state in ("failed", "cancelled"):
        return trial.state
    words = {"win": "win", "no_gain": "no gain", "worse": "worse", "undecided": "undecided"}.get(trial.verdict or "", "not finished")
    if trial.method == "restarts ABBA":  # no side goes on after the trial
        return words
    return f"{words}, {'kept' if trial.kept else 'reverted'}"


# --- before the start ---------------------------------------------------------------------------------------


def forecast_line(forecast: Forecast) -> str:
    """What a trial with a second model server will take, in one or two sentences."""
    words = f"The trial starts a second model server: {units.about(forecast.seconds)}."
    if forecast.resolution_ratio is not None:
        words += f" It can resolve a change of {units.precise_percent(forecast.resolution_ratio)} at best."
    return words


def refusal(changes: Knobs, forecast: Forecast, expected: Interval) -> str:
    """Why a trial is not started, and how to start it anyway."""
    assert forecast.resolution_ratio is not None
    takes = f"it would take {units.about(forecast.seconds)} and resolve {units.precise_percent(forecast.resolution_ratio)} at best"
    gain = units.interval(expected.low, expected.high)
    force = " ".join(f"--try {name}={show(value)}" for name, value in changes.items())
    return (
        f"{describe_changes(changes)}: no trial: {takes}, and the predicted gain is {gain}; to try it anyway: {force}, or k on the screen"
    )


# --- the whole trial ----------------------------------------------------------------------------------------


def trial_report(trial: Trial, before: Knobs | None) -> Report:
    """Every figure of a trial. `before`: the knobs of the run that the trial started from."""
    found: Report = [Line([(f"trial {trial.id}  ", "accent"), (describe_changes(trial.changes, before), "title"), (_effect(trial), "dim")])]
    expected = predicted(trial.predicted)
    if trial.speedup:
        how = f"   ({trial.blocks} blocks, {trial.method}, {trial.clock.replace('_', '-')} clock)"
        found.append(Line([("measured ", "dim"), (measured(trial), "accent"), (f"   {expected}", ""), (how, "dim")], indent=2))
    loss = "loss of the job's own batches" if trial.held_out_loss is not None and trial.held_out_loss.training else "held-out loss"
    for name, cost in (("perplexity", trial.perplexity), (loss, trial.held_out_loss)):
        if cost is not None:
            words = f"{units.plain(cost.before)} -> {units.plain(cost.after)} ({units.change(cost.cost_ratio)})"
            found.append(Line([(f"{name} {words}", ""), (": too high to keep the change" if cost.too_high else "", "alert")], indent=2))
    if trial.resolution_ratio is not None:
        share = units.quantity(trial.resolution_ratio, "ratio")
        found.append(Line([(f"this trial can detect effects from {share} on", "dim")], indent=2))
    if trial.changes_training:
        found.append(Line([(CHANGES_TRAINING, "")], indent=2))
    if trial.error:
        found.append(Line([(f"error: {visible(trial.error)}", "alert")], indent=2))
    return [*found, Line([("verdict: ", "dim"), (verdict(trial), "good" if trial.kept else "")], indent=2)]


def _effect(trial: Trial) -> str:
    return f"   {trial.effect}: {EFFECTS[trial.effect]}" if trial.effect in EFFECTS else ""


def verdict_line(trial: Trial) -> str:
    """A finished trial in one sentence."""
    changes = describe_changes(trial.changes)
    if trial.state == "failed":
        return f"{changes}: the trial failed: {trial.error or NO_CAUSE}"
    if trial.state == "cancelled":
        return f"{changes}: the trial was cancelled, the change is reverted"
    return f"{changes}: {f'{measured(trial)}, ' if trial.speedup else ''}{verdict(trial)}"


# --- on the screen ------------------------------------------------------------------------------------------


def paint_running(trial: Trial, before: Knobs, width: int, height: int = 3, since_report_s: float = 0.0) -> list[Row]:
    """The change, the progress and the remaining time of the trial, then the prediction and the measurement on one axis.

    `since_report_s`: seconds since the trial was last reported.
    """
    blocks = f"{trial.blocks} blocks  {units.clock(trial.elapsed_s + since_report_s)}{_left(trial, since_report_s)}"
    if trial.resolution_ratio is not None and width >= ROOM:
        blocks = f"can prove {units.quantity(trial.resolution_ratio, 'ratio')} or more   {blocks}"
    effect = f"  {trial.effect}" if trial.effect else ""
    change = shorter(describe_changes(trial.changes, before), width - len(blocks) - len(effect) - 8)
    rows = [spread(width, [("trial ", "accent"), (change, "title"), (effect, "dim")], [("  ", ""), (blocks, "")])]
    if trial.speedup is None:
        so_far = "the first blocks run" if trial.method == "live ABBA" else "a second process starts"
        so_far += f"; the trial takes {units.about(trial.forecast.seconds)}" if trial.forecast else ""
        expected = f"   {predicted(trial.predicted)}" if trial.predicted else ""
        return fill([*rows, line(width, (f"  measured   {so_far}", "dim"), (expected, "dim"))], width, height)
    return fill([*rows, *_scales(trial, width, height - 1)], width, height)


def paint_done(trial: Trial, width: int, height: int = 1) -> list[Row]:
    """The outcome of the last trial, then the prediction and the measurement on one axis where there is room."""
    if trial.state == "failed":
        text = f"last trial: {describe_changes(trial.changes)} failed: {trial.error or NO_CAUSE}"
        return fill([line(width, (text, "alert"))], width, height)
    outcome = f"{measured(trial)}  {verdict(trial)}"
    head: Row = [("last trial  ", "dim"), (f"{describe_changes(trial.changes)}  ", "title"), (outcome, "good" if trial.kept else "")]
    scales = _scales(trial, width, height - 1)
    extra = f"  ({predicted(trial.predicted)})" if trial.predicted and not scales else ""
    fits = row_width(head) + len(extra) <= width
    return fill([line(width, *head, (extra if fits else "", "dim")), *scales], width, height)


def trial_rows(trial: Trial | None) -> int:
    """The rows that a trial can use. A trial that ended without a measurement is one line."""
    if trial is None:
        return 0
    return 4 if trial.state == "running" or trial.speedup is not None else 1


def _left(trial: Trial, since_report_s: float) -> str:
    """`, at most 9 s left`. Nothing before the measurement has begun."""
    if trial.limit_s is None or not trial.blocks:
        return ""
    left_s = trial.limit_s - trial.elapsed_s - since_report_s
    return f", at most {left_s:.0f} s left" if left_s >= 1 else ", about to end"


def _scales(trial: Trial, width: int, height: int) -> list[Row]:
    """The prediction and the measurement on one axis, and the figures of the axis, in at most `height` rows."""
    expected, speedup = trial.predicted, trial.speedup
    # The first intervals are wide. The scale follows the estimate and the prediction; a wide interval ends at the edge of the scale.
    top = 1.3 * max(1.15, expected.high if expected else 0.0, speedup.estimate if speedup else 0.0)
    rows = []
    if speedup is not None:
        rows.append(_scale("measured", measured(trial), (speedup.low, speedup.high, speedup.estimate), top, width))
    if expected is not None:
        rows.insert(0, _scale("predicted", units.interval(expected.low, expected.high), (expected.low, expected.high, None), top, width))
    if len(rows) < height and rows:
        rows.append(_ticks(top, width))
    return rows[-height:] if len(rows) > height > 0 else rows[: max(0, height)]


SCALE_LABEL = 35
"""Cells of the name and of the figures before a scale."""


def _scale(name: str, text: str, interval: tuple[float, float, float | None], top: float, width: int) -> Row:
    """An interval as text, and on a scale from 0 to `top` with a mark at 1x."""
    label = f"  {name:<9}  {text:<20}  "
    columns = width - len(label)
    if columns < 16:
        return line(width, (label, ""))
    low, high, middle = interval
    cells = ["·"] * columns
    cells[_column(1.0, top, columns)] = "│"
    for n in range(_column(low, top, columns), _column(high, top, columns) + 1):
        cells[n] = "━" if middle is not None else "─"
    if middle is not None:
        cells[_column(middle, top, columns)] = "●"
    style = "" if middle is None else "good" if low > 1.0 else "title"
    return line(width, (label, ""), *_styled("".join(cells), style))


def _styled(cells: str, style: str) -> list[Segment]:
    """The interval in `style`, the rest of the scale dim."""
    inside = [n for n, cell in enumerate(cells) if cell in "━─●"]
    first, last = inside[0], inside[-1] + 1
    return [(cells[:first], "dim"), (cells[first:last], style), (cells[last:], "dim")]


def _column(ratio: float, top: float, columns: int) -> int:
    return max(0, min(columns - 1, int(ratio / top * (columns - 1))))


def _ticks(top: float, width: int) -> Row:
    """The figures of the axis: `0.5x`, `1x`, `1.5x`."""
    columns = width - SCALE_LABEL
    step = next((one for one in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0) if top / one <= max(2, columns / 10)), 50.0)
    cells = [" "] * max(0, columns)
    for n in range(int(top / step) + 1):
        label, at = f"{n * step:g}x", _column(n * step, top, columns)
        if at + len(label) <= columns:
            cells[at : at + len(label)] = label
    return line(width, (" " * SCALE_LABEL, ""), ("".join(cells), "dim"))
