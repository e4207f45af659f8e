"""A running or finished trial: its prediction next to its measurement."""

from __future__ import annotations

from gpuconsole.model.experiments.trial import Forecast, Trial
from gpuconsole.model.finding import Interval
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes, show
from gpuconsole.model.text import visible
from gpuconsole.report import units
from gpuconsole.report.cells import Row, line, row_width, spread
from gpuconsole.report.facts import shorter
from gpuconsole.report.parts import Line, Report

ROOM = 90
"""Minimum columns for the resolution in the head of a running trial."""
NO_CAUSE = "no cause was reported"


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
    if trial.state == "failed":
        return "failed"
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
    found: Report = [Line([(f"trial {trial.id}  ", "accent"), (describe_changes(trial.changes, before), "title")])]
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
    if trial.error:
        found.append(Line([(f"error: {visible(trial.error)}", "alert")], indent=2))
    return [*found, Line([("verdict: ", "dim"), (verdict(trial), "good" if trial.kept else "")], indent=2)]


def verdict_line(trial: Trial) -> str:
    """A finished trial in one sentence."""
    changes = describe_changes(trial.changes)
    if trial.state == "failed":
        return f"{changes}: the trial failed: {trial.error or NO_CAUSE}"
    return f"{changes}: {f'{measured(trial)}, ' if trial.speedup else ''}{verdict(trial)}"


# --- on the main screen -------------------------------------------------------------------------------------


def paint_running(trial: Trial, before: Knobs, width: int) -> list[Row]:
    """The change, the progress of the trial, and both intervals on one scale."""
    blocks = f"{trial.blocks} blocks  {units.clock(trial.elapsed_s)}"
    if trial.resolution_ratio is not None and width >= ROOM:
        blocks = f"detects {units.quantity(trial.resolution_ratio, 'ratio')} or more   {blocks}"
    change = shorter(describe_changes(trial.changes, before), width - len(blocks) - 8)
    rows = [spread(width, [("trial ", "accent"), (change, "title")], [("  ", ""), (blocks, "")])]
    expected, speedup = trial.predicted, trial.speedup
    # The first intervals are wide. The scale follows the estimate and the prediction; a wide interval ends at the edge of the scale.
    top = 1.3 * max(1.15, expected.high if expected else 0.0, speedup.estimate if speedup else 0.0)
    if expected is not None:
        rows.append(_scale("predicted", units.interval(expected.low, expected.high), (expected.low, expected.high, None), top, width))
    if speedup is not None:
        rows.append(_scale("measured", measured(trial), (speedup.low, speedup.high, speedup.estimate), top, width))
    else:
        so_far = "the first blocks run" if trial.method == "live ABBA" else "a second process starts"
        so_far += f"; the trial takes {units.about(trial.forecast.seconds)}" if trial.forecast else ""
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
    """The outcome of the last trial, in two rows where one is too short."""
    if trial.state == "failed":
        text = f"last trial: {describe_changes(trial.changes)} failed: {trial.error or NO_CAUSE}"
        return [line(width, (text, "alert"))]
    outcome = f"{measured(trial)}  {verdict(trial)}"
    extra = f"  ({predicted(trial.predicted)})" if trial.predicted else ""
    head: Row = [("last trial  ", "dim"), (f"{describe_changes(trial.changes)}  ", ""), (outcome, "good" if trial.kept else "")]
    if row_width(head) + len(extra) <= width or not extra:
        return [line(width, *head, (extra, "dim"))]
    return [line(width, *head), line(width, (f"          {extra}", "dim"))]
