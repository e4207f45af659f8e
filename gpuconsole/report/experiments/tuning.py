"""A tuning session as a tree: what was tried under which settings, what came of it, and how to have it."""

from __future__ import annotations

from gpuconsole.model.experiments.certificate import Attempt, Certificate, Tuning
from gpuconsole.model.experiments.trial import Trial
from gpuconsole.model.knobs.catalogue import describe_changes
from gpuconsole.report import units as format
from gpuconsole.report.cells import Row, blank, line, spread
from gpuconsole.report.experiments.trial import WORDS, paint_running
from gpuconsole.report.facts import shorter
from gpuconsole.report.page import heading, paragraph
from gpuconsole.session.api import View

FIGURES = "     predicted          measured                 verdict"
FIGURES_WIDTH = len(FIGURES) + 12
INTRODUCTION = (
    "Enter begins: the change that promises most for its time is tried in paired blocks, what wins is kept, then the run is diagnosed anew, "
    "until nothing that is left promises 5 %. Nothing that alters what is learnt, and nothing of a server's load, is touched."
)


def paint_tuning(view: View, width: int) -> list[Row]:
    """The session under way, or the last one; without any, what Enter would do."""
    tuning = view.tuning
    if tuning is None:
        return paragraph(INTRODUCTION if view.run is not None else "Nothing is running. Press s on the main screen.", width)
    made = tuning.certificate
    elapsed_s = made.elapsed_s + (max(0.0, view.now - view.tuning_at) if tuning.under_way else 0.0)
    rows = [*_head(tuning, elapsed_s, width), blank(width), *_tree(made, width)]
    if tuning.under_way:
        return [*rows, *_now(view, len(_kept(made)), width)]
    return [*rows, blank(width), *_outcome(made, width)]


def _head(tuning: Tuning, elapsed_s: float, width: int) -> list[Row]:
    made = tuning.certificate
    clock = f"{elapsed_s:.0f} of {tuning.budget_s:.0f} s"
    names = spread(width, [(f"{made.scenario} on {made.device}", "heading")], [(clock, "dim")])
    return [names, _columns("start", "", FIGURES, width, "dim")]


def _tree(made: Certificate, width: int) -> list[Row]:
    """A change that was kept is what the next ones stand on: they hang one level deeper."""
    rows: list[Row] = []
    depth = 0
    for one in made.attempts:
        rows.append(_attempt(one, depth, width))
        depth += one.trial.kept
    return rows


def _attempt(one: Attempt, depth: int, width: int) -> Row:
    trial = one.trial
    branch = "  " * depth + ("└─ " if trial.kept else "├─ ")
    style = "good" if trial.kept else "" if trial.state == "done" else "alert"
    return _columns(branch + describe_changes(trial.changes, one.knobs), one.rule, _figures(trial), width, style)


def _figures(trial: Trial) -> str:
    predicted = format.interval(trial.predicted.low, trial.predicted.high) if trial.predicted else "–"
    if trial.state == "failed":
        return f"     {predicted:<17}  {trial.error or 'failed'}"
    found = trial.speedup
    measured = f"{format.speedup(found.estimate).strip()} ({format.interval(found.low, found.high)})" if found else "–"
    return f"     {predicted:<17}  {measured:<23}  {WORDS.get(trial.verdict or '', '')}{', kept' if trial.kept else ''}"


def _columns(change: str, rule: str, figures: str, width: int, style: str = "") -> Row:
    """The change, who suggested it where there is room, and the figures in columns of their own."""
    room = max(20, width - FIGURES_WIDTH)
    names = min(26, room - 27) if room >= 50 else 0
    text = shorter(change, room - names - 1)
    return line(width, (f"{text:<{room - names}}", style), (f"{shorter(rule, names):<{names}}" if names else "", "dim"), (figures, ""))


def _now(view: View, depth: int, width: int) -> list[Row]:
    """What is being done at this moment."""
    trial = next((one for one in reversed(view.trials) if one.state == "running"), None)
    if trial is not None and view.run is not None:
        return paint_running(trial, view.run.knobs, width)
    return [
        line(
            width,
            ("  " * depth + "   ", ""),
            ("looking for what limits it now", "accent"),
            (f"  {view.probing}" if view.probing else "", "dim"),
        )
    ]


def _kept(made: Certificate) -> list[Attempt]:
    return [one for one in made.attempts if one.trial.kept]


def _outcome(made: Certificate, width: int) -> list[Row]:
    rows = paragraph(f"Ended: {made.stopped}.", width)
    if not made.changed:
        return [*rows, line(width, "Nothing was kept: it stays as it was.")]
    gain = made.gain
    if gain is not None:
        interval = format.interval(gain.low, gain.high)
        rows.append(
            line(width, ("In all  ", "dim"), (f"{format.speedup(gain.estimate).strip()} ({interval})", "good"), (" against the start", ""))
        )
    rows += [blank(width), heading("To have it again", width), *paragraph(f"gpuconsole run {made.scenario} {made.flags}", width, "", 2)]
    code = dict.fromkeys(row for one in _kept(made) for row in one.code.splitlines())
    if code:
        rows += [blank(width), heading("In your own code", width), *(line(width, (f"  {row}", "")) for row in code)]
    return rows
