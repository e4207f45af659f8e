"""A tuning session: each change with its prediction and its measurement, and the settings that were found."""

from __future__ import annotations

from gpuconsole.model.experiments.certificate import Attempt, Certificate, Tuning
from gpuconsole.model.knobs.catalogue import describe_changes
from gpuconsole.model.text import visible
from gpuconsole.report import facts, units
from gpuconsole.report.cells import Row, blank, line, spread
from gpuconsole.report.experiments.trial import measured, paint_running, predicted, verdict
from gpuconsole.report.page import paragraph
from gpuconsole.report.parts import BLANK, Column, Line, Report, Table, heading, lay_out, text
from gpuconsole.session.api import View

INTRODUCTION = (
    "Press Enter to start. The tool tries the change with the largest predicted gain per second of trial, in paired blocks. "
    "It keeps the change if it wins, and diagnoses the run again. It stops when no remaining change promises 5 %. "
    "It does not change the load on a server or what the model learns."
)
COLUMNS = (
    Column("change", least=20),
    Column("rule", drop=1, least=12),
    Column("predicted"),
    Column("measured"),
    Column("verdict"),
)


def paint_tuning(view: View, width: int) -> list[Row]:
    """The tuning session of the current run, or an explanation of the Enter key."""
    tuning = view.tuning
    if tuning is None:
        return paragraph(INTRODUCTION if view.run is not None else "Nothing is running. Press s on the main screen.", width)
    made = tuning.certificate
    elapsed_s = made.elapsed_s + (max(0.0, view.now - view.tuning_at) if tuning.under_way else 0.0)
    rows = [_head(view, tuning, elapsed_s, width), blank(width), *lay_out(attempt_report(made), width)]
    if tuning.under_way:
        return [*rows, blank(width), *_now(view, width)]
    return [*rows, blank(width), *lay_out(outcome(made), width)]


def certificate_report(made: Certificate) -> Report:
    """The whole session: the attempts, the gain, and the settings as flags and code."""
    title = f"tuned {made.scenario} on {made.device} in {made.elapsed_s:.0f} s"
    return [heading(title), *attempt_report(made), BLANK, *outcome(made)]


def attempt_report(made: Certificate) -> Report:
    """The attempts as a tree, and the causes of failed attempts. Attempts after a kept change include that change and are one level deeper."""
    rows = []
    depth = 0
    for one in made.attempts:
        trial = one.trial
        style = "good" if trial.kept else "" if trial.state == "done" else "alert"
        branch = "  " * depth + ("└─ " if trial.kept else "├─ ")
        expected = units.interval(trial.predicted.low, trial.predicted.high) if trial.predicted else "–"
        rows.append(
            [
                (branch + describe_changes(trial.changes, one.knobs), style),
                (one.rule, "dim"),
                (expected, ""),
                (measured(trial) if trial.speedup else "–", ""),
                (verdict(trial), style),
            ]
        )
        depth += trial.kept
    failed = [one for one in made.attempts if one.trial.error]
    causes = [text(f"{describe_changes(one.trial.changes, one.knobs)}: {one.trial.error}", "alert", indent=2) for one in failed]
    return [Table(COLUMNS, rows), *causes]


def attempt_line(number: int, one: Attempt) -> str:
    """One attempt for a log."""
    trial = one.trial
    outcome = f"failed: {trial.error}" if trial.state == "failed" and trial.error else verdict(trial)
    words = (describe_changes(trial.changes, one.knobs), measured(trial), predicted(trial.predicted), outcome, f"({one.rule})")
    return visible(f"{one.at_s:5.0f} s  {number}. {'   '.join(words)}")


def gain(made: Certificate) -> str:
    """`2.10x [1.95, 2.27] against the start, 16 blocks, live ABBA`: all kept changes together. Empty where one trial did not measure them."""
    total, proof = made.gain, made.proof
    if total is None:
        return ""
    how = f", {proof.blocks} blocks, {proof.method}" if proof is not None else ""
    return f"{units.measured(total.estimate, total.low, total.high)} against the start{how}"


def outcome(made: Certificate) -> Report:
    """Why the session ended, its total gain, and the settings as flags and code."""
    found: Report = [text(f"Ended: {made.stopped}."), *left_alone_report(made)]
    if not made.changed:
        return [*found, text("No change was kept: the settings are the same as at the start.")]
    found.append(Line([("Total gain: ", "dim"), (gain(made) or "not measured in one trial", "good" if gain(made) else "")]))
    if made.command_digest:
        found += [BLANK, heading("The changes"), text(describe_changes(made.changed, made.start), indent=2)]
    else:
        found += [BLANK, heading("The same settings as a command"), text(f"gpuconsole run {made.scenario} {made.flags}", indent=2)]
    code = dict.fromkeys(row for one in made.attempts if one.trial.kept for row in one.code.splitlines())
    if code:
        found += [BLANK, heading("In your own code"), *(Line([(row, "code")], indent=2, hang=4) for row in code)]
    return found


def left_alone_report(made: Certificate) -> Report:
    """The promising changes that were not tried, each with the option that allows it."""
    found: Report = []
    for one in made.left_alone:
        expected = f"   {predicted(one.predicted)}" if one.predicted is not None else ""
        found.append(text(visible(f"Left alone: {describe_changes(one.changes, made.end)}{expected}: {one.why}."), "wait"))
    return found


def _head(view: View, tuning: Tuning, elapsed_s: float, width: int) -> Row:
    """What is tuned, the gain so far while the session is under way, and the time."""
    made = tuning.certificate
    gain = facts.since_start(view) if tuning.under_way else None
    so_far = [(f"   so far {gain.words}", "good" if gain.proven and gain.ratio > 1 else "")] if gain is not None else []
    time = f"{elapsed_s:.0f} of {tuning.budget_s:.0f} s"
    return spread(width, [(f"{made.scenario} on {made.device}", "heading"), *so_far], [(time, "dim")])


def _now(view: View, width: int) -> list[Row]:
    """The current activity of the session."""
    trial = facts.running_trial(view)
    if trial is not None and view.run is not None:
        return paint_running(trial, view.run.knobs, width, 4)
    return [line(width, ("   diagnosing the run", "accent"), (f"  probe {view.probing}" if view.probing else "", "dim"))]
