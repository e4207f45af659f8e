"""Reports of experiments: a trial with its prediction next to its measurement, a tuning session, a
sweep, a sweep over numbers of processes."""

from __future__ import annotations

from collections.abc import Sequence

from gpuconsole.experiments.traffic import WORDS, in_words
from gpuconsole.model import units
from gpuconsole.model.certificate import Attempt, Certificate, Tuning
from gpuconsole.model.experiments import HeldOutLoss, Sweep, SweepPoint, Trial
from gpuconsole.model.finding import Interval, Suggestion
from gpuconsole.model.job import EFFECTS
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes, place, show
from gpuconsole.model.run import Distribution, Run
from gpuconsole.model.text import cut, visible
from gpuconsole.report.cells import (
    Row,
    Segment,
    blank,
    fill,
    line,
    row_width,
    shorter,
    spread,
    wrap,
)
from gpuconsole.report.page import paragraph
from gpuconsole.report.parts import BLANK, Column, Line, Report, Table, heading, lay_out, text
from gpuconsole.session import facts
from gpuconsole.session.api import View

# --- a running or finished trial ------------------------------------------------------------------

ROOM = 90
"""Minimum columns for the resolution in the head of a running trial."""
WIDE = 3.0
"""The interval of a running trial is shown once its upper end is at most this multiple of the
estimate: before, it says nothing."""
NO_CAUSE = "no cause was reported"
CHANGES_TRAINING = "this change alters what the model learns per step, not only the speed"


def predicted(interval: Interval | None) -> str:
    """`predicted 1.45-1.69x`."""
    return (
        f"predicted {units.interval(interval.low, interval.high)}" if interval else "no prediction"
    )


def measured(trial: Trial) -> str:
    """`1.52x [1.40, 1.66]`."""
    speedup = trial.speedup
    return (
        units.measured(speedup.estimate, speedup.low, speedup.high) if speedup else "not measured"
    )


def promised(suggestion: Suggestion) -> str:
    """`tried: 0.76x [0.59, 0.99], slower` where the change was measured in this run, else
    `predicted 1.45-1.69x`."""
    tried = suggestion.tried
    if tried is None:
        return predicted(suggestion.predicted_speedup)
    return (
        f"tried: {units.measured(tried.estimate, tried.low, tried.high)},"
        f" {RESULTS.get(tried.verdict, UNFINISHED)}"
    )


RESULTS = {"win": "faster", "no_gain": "not faster", "worse": "slower", "undecided": "undecided"}
"""The words of each verdict."""
UNFINISHED = "not finished"


def verdict(trial: Trial) -> str:
    """`faster: kept`; `on trial` while the trial runs; only `faster` where the command of a user's
    job was started for the trial alone. The result and the fate of the change stand first."""
    if trial.state != "done":
        return "on trial" if trial.state == "running" else trial.state
    if trial.of_traffic and trial.verdict == "undecided":
        return f"undecided: {trial.reason}" if trial.reason else "undecided"
    if trial.of_traffic:
        words = {
            "win": "better: restart the server with it",
            "worse": "worse",
            "no_gain": "no difference",
        }
        return (
            f"{words.get(trial.verdict or '', UNFINISHED)}"
            f"{f'; {trial.reason}' if trial.reason else ''}"
        )
    result = RESULTS.get(trial.verdict or "", UNFINISHED)
    if trial.reason:
        result = "worse" if trial.verdict == "worse" else "withdrawn"
    if trial.method != "restarts ABBA":  # no side goes on after such a trial
        result = f"{result}: {trial.fate}"
    return f"{result}{f', {trial.reason}' if trial.reason else ''}{_unseen(trial)}"


EVENTS = {"eval": "evaluation", "checkpoint": "checkpoint"}


def _unseen(trial: Trial) -> str:
    """`, without evaluation`: what the job did not do on both sides although it takes time."""
    unseen = [EVENTS.get(phase, phase) for phase in trial.unseen]
    return f", without {' and '.join(unseen)}" if unseen else ""


# --- before the start -----------------------------------------------------------------------------


SPREAD_S = 0.1
"""Less time of evaluations and checkpoints is not worth a line."""


BY_STEPS = (
    "compared by steps per second: the number of samples in a step is not known, and the change"
    " does not alter this number"
)


def stalls_note(trial: Trial) -> str:
    """Say which rare stalls the trial could not see; empty if this is not known."""
    return too_short("trial", trial.stalls_from) if trial.stalls_from > 1 else ""


def too_short(measured: str, stalls_from: int) -> str:
    """Say from which rarity on a trial or a sweep sees no stall."""
    return f"the {measured} was too short to see a stall rarer than one in {stalls_from} steps"


def after_switch_note(trial: Trial) -> str:
    """Say that the steps soon after a switch of sides differ from later ones, and what follows."""
    return "the steps soon after a switch of sides differ from later ones: " + (
        "the difference outlasts the blocks, so these blocks prove nothing"
        if trial.lasting
        else "only the last third of each block counts"
    )


# --- the whole trial ------------------------------------------------------------------------------


def trial_report(trial: Trial, before: Knobs | None) -> Report:
    """Every figure of a trial. `before`: the knobs of the run that the trial started from."""
    report: Report = [
        Line(
            [
                (f"trial {trial.id}  ", "accent"),
                (describe_changes(trial.changes, before), "title"),
                (_effect(trial), "dim"),
            ]
        )
    ]
    expected = predicted(trial.predicted)
    if trial.speedup:
        how = f"   ({trial.blocks} blocks, {trial.way}, {trial.clock.replace('_', '-')} clock)"
        report.append(
            Line(
                [
                    ("measured ", "dim"),
                    (measured(trial), "accent"),
                    (f"   {expected}", ""),
                    (how, "dim"),
                ],
                indent=2,
            )
        )
    report += _of_traffic(trial)
    loss = (
        "loss of the job's own batches"
        if trial.held_out_loss is not None and trial.held_out_loss.training
        else "held-out loss"
    )
    for name, cost in (("perplexity", trial.perplexity), (loss, trial.held_out_loss)):
        if cost is not None:
            change = f" ({units.change(cost.cost_ratio)})" if cost.cost_ratio is not None else ""
            values = f"{units.plain(cost.before)} -> {units.plain(cost.after)}{change}"
            problem = ": too high to keep the change" if cost.too_high else ""
            if not problem and isinstance(cost, HeldOutLoss) and cost.too_noisy:
                problem = ": too noisy to tell, so the change is measured and not kept"
            report.append(
                Line(
                    [
                        (f"{name} {values}", ""),
                        (problem, "alert"),
                    ],
                    indent=2,
                )
            )
    if trial.resolution_ratio is not None:
        share = units.quantity(trial.resolution_ratio, "ratio")
        report.append(Line([(f"this trial can detect effects from {share} on", "dim")], indent=2))
    if trial.stalls_from > 1:
        report.append(Line([(stalls_note(trial), "dim")], indent=2))
    if trial.by_steps:
        report.append(Line([(BY_STEPS, "dim")], indent=2))
    if trial.spread_s >= SPREAD_S:
        spread = (
            "evaluations and checkpoints in the blocks took"
            f" {units.duration(trial.spread_s).strip()}: each step has their mean on its side"
            " instead"
        )
        report.append(Line([(spread, "dim")], indent=2))
    if trial.after_switch:
        report.append(Line([(after_switch_note(trial), "wait")], indent=2))
    if trial.changes_training:
        report.append(Line([(CHANGES_TRAINING, "")], indent=2))
    if trial.error:
        report.append(Line([(f"error: {visible(trial.error)}", "alert")], indent=2))
    return [
        *report,
        Line([("verdict ", "dim"), (verdict(trial), "good" if trial.holds else "")], indent=2),
    ]


def _of_traffic(trial: Trial) -> list[Line]:
    """The figures under the traffic of a server's own clients, and its load."""
    if not trial.of_traffic:
        return []
    lines = [
        Line(
            [
                (
                    (
                        f"the figure is the {WORDS.get(trial.figure, trial.figure)}; above 1:"
                        " better with the change"
                    ),
                    "dim",
                )
            ],
            indent=2,
        )
    ]
    for name, effect in trial.effects.items():
        lines.append(
            Line(
                [
                    (f"{WORDS[name]} ", "dim"),
                    (units.measured(effect.estimate, effect.low, effect.high), ""),
                ],
                indent=2,
            )
        )
    if "objective" not in trial.reason:  # the reason of the verdict names it
        lines += [
            Line([("objective ", "dim"), (in_words(bound), "")], indent=2)
            for bound in trial.objective
        ]
    if trial.load_ratio is not None:
        lines.append(
            Line(
                [
                    (
                        (
                            f"load with the change: {units.speedup(trial.load_ratio).strip()} of"
                            " that without it"
                        ),
                        "dim",
                    )
                ],
                indent=2,
            )
        )
    return (
        [*lines, Line([("the server has its limits of the start again", "dim")], indent=2)]
        if trial.state != "running"
        else lines
    )


def _effect(trial: Trial) -> str:
    return f"   {trial.effect}: {EFFECTS[trial.effect]}" if trial.effect in EFFECTS else ""


def verdict_line(trial: Trial) -> str:
    """A finished trial in one sentence."""
    changes = describe_changes(trial.changes)
    if trial.state == "failed":
        return f"{changes}: the trial failed: {trial.error or NO_CAUSE}"
    if trial.state == "cancelled":
        return f"{changes}: the trial was cancelled, the change is taken back"
    return f"{changes}: {f'{measured(trial)}, ' if trial.speedup else ''}{verdict(trial)}"


# --- on the screen --------------------------------------------------------------------------------


def paint_running(
    trial: Trial, before: Knobs, width: int, height: int = 3, since_report_s: float = 0.0
) -> list[Row]:
    """The change, the progress and the remaining time of the trial, then the prediction and the
    measurement on one axis.

    `since_report_s`: seconds since the trial was last reported.
    """
    blocks = (
        f"{trial.blocks} blocks  {units.clock(trial.elapsed_s + since_report_s)}"
        f"{_left(trial, since_report_s)}"
    )
    if trial.resolution_ratio is not None and trial.resolution_ratio <= 1 and width >= ROOM:
        blocks = f"can detect {units.quantity(trial.resolution_ratio, 'ratio')} or more   {blocks}"
    effect = f"  {trial.effect}" if trial.effect else ""
    change = shorter(describe_changes(trial.changes, before), width - len(blocks) - len(effect) - 8)
    rows = [
        spread(
            width,
            [("trial ", "accent"), (change, "title"), (effect, "dim")],
            [("  ", ""), (blocks, "")],
        )
    ]
    if trial.speedup is None:
        so_far = (
            "the first blocks run"
            if trial.method in ("live ABBA", "live traffic")
            else "a second process starts"
        )
        so_far += (
            f"; the trial takes {units.about(trial.forecast.seconds)}" if trial.forecast else ""
        )
        expected = f"   {predicted(trial.predicted)}" if trial.predicted else ""
        return fill(
            [*rows, line(width, (f"  measured   {so_far}", "dim"), (expected, "dim"))],
            width,
            height,
        )
    return fill([*rows, *_scales(trial, width, height - 1)], width, height)


def paint_done(trial: Trial, width: int, height: int = 1) -> list[Row]:
    """The outcome of the last trial, then the prediction and the measurement on one axis, as far as
    there is room. Where the outcome needs more room, the axis has the measurement alone, the change
    is shortened, and a long outcome takes rows from the axis."""
    if trial.state == "failed":
        text = f"last trial: {describe_changes(trial.changes)} failed: {trial.error or NO_CAUSE}"
        return fill([line(width, (text, "alert"))], width, height)
    words, style = verdict(trial), "good" if trial.holds else ""
    scales = _scales(trial, width, height - 1)
    extra = f"  ({predicted(trial.predicted)})" if trial.predicted and not scales else ""
    head: Row = [
        ("last trial  ", "dim"),
        (f"{describe_changes(trial.changes)}  ", "title"),
        (f"{measured(trial)}  {words}", style),
    ]
    if row_width(head) <= width:
        fits = row_width(head) + len(extra) <= width
        return fill([line(width, *head, (extra if fits else "", "dim")), *scales], width, height)
    figure = "" if scales and trial.speedup else f"  {measured(trial)}"
    room = width - row_width(head[:1]) - len(words) - len(figure) - 2
    change = shorter(describe_changes(trial.changes), room)
    if len(change) <= room or height < 2:
        named = [(f"{cut(change, room)}  ", "title")] if room > 0 else []
        return fill([line(width, head[0], *named, (words + figure, style)), *scales], width, height)
    rows = [line(width, head[0], (f"{change}  {measured(trial)}", "title"))]
    rows += [line(width, (row, style)) for row in wrap(words, width, height - 1)]
    return fill([*rows, *_scales(trial, width, height - len(rows))], width, height)


def trial_rows(trial: Trial | None) -> int:
    """The rows that a trial can use. A trial that ended without a measurement is one line."""
    if trial is None:
        return 0
    return 4 if trial.state == "running" or trial.speedup is not None else 1


def _left(trial: Trial, since_report_s: float) -> str:
    """The time until the limit of a trial, `, up to about 9 s left`. A verdict can come sooner. A
    decided trial may wait for an evaluation after the limit. Empty before the first block."""
    if trial.limit_s is None or not trial.blocks:
        return ""
    left_s = trial.limit_s - trial.elapsed_s - since_report_s
    return f", up to about {left_s:.0f} s left" if left_s >= 1 else ", the last block runs"


def _scales(trial: Trial, width: int, height: int) -> list[Row]:
    """The prediction and the measurement on one axis, and the figures of the axis, in at most
    `height` rows."""
    expected, speedup = trial.predicted, trial.speedup
    # The first intervals are wide. The scale follows the estimate and the prediction; a wide
    # interval ends at the edge of the scale.
    top = 1.3 * max(1.15, expected.high if expected else 0.0, speedup.estimate if speedup else 0.0)
    rows = []
    if speedup is not None:
        wide = trial.state == "running" and speedup.high > WIDE * speedup.estimate
        figure = f"{units.speedup(speedup.estimate)}, not sure yet" if wide else measured(trial)
        rows.append(
            _scale("measured", figure, (speedup.low, speedup.high, speedup.estimate), top, width)
        )
    if expected is not None:
        rows.insert(
            0,
            _scale(
                "predicted",
                units.interval(expected.low, expected.high),
                (expected.low, expected.high, None),
                top,
                width,
            ),
        )
    if len(rows) < height and rows:
        rows.append(_ticks(top, width))
    return rows[-height:] if len(rows) > height > 0 else rows[: max(0, height)]


SCALE_LABEL = 35
"""Cells of the name and of the figures before a scale."""


def _scale(
    name: str, text: str, interval: tuple[float, float, float | None], top: float, width: int
) -> Row:
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
    step = next(
        (
            size
            for size in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
            if top / size <= max(2, columns / 10)
        ),
        50.0,
    )
    cells = [" "] * max(0, columns)
    for n in range(int(top / step) + 1):
        label, at = f"{n * step:g}x", _column(n * step, top, columns)
        if at + len(label) <= columns:
            cells[at : at + len(label)] = label
    return line(width, (" " * SCALE_LABEL, ""), ("".join(cells), "dim"))


# --- a tuning session -----------------------------------------------------------------------------

INTRODUCTION = (
    "Press Enter to start. The tool tries the change with the largest predicted speedup per second"
    " of trial, in paired blocks. It keeps the change if it is faster, and diagnoses the run again."
    " It stops when no remaining change promises 5 %. It changes neither the load on a server nor"
    " what the model learns; a change that alters the numbers of a job of your own needs your"
    " permission (N)."
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
    if tuning is None and view.recording:
        return paragraph("The recording has no tuning session up to this moment.", width)
    if tuning is None and view.run is not None and not facts.active(view):
        return paragraph("The run has ended. A tuning session needs a run that goes on.", width)
    if tuning is None:
        return paragraph(
            INTRODUCTION
            if view.run is not None
            else "Nothing is running. Press s on the main screen.",
            width,
        )
    made = tuning.certificate
    elapsed_s = made.elapsed_s + (max(0.0, view.now - view.tuning_at) if tuning.under_way else 0.0)
    rows = [
        _head(view, tuning, elapsed_s, width),
        blank(width),
        *lay_out(attempt_report(made), width),
    ]
    if tuning.under_way:
        return [*rows, blank(width), *_now(view, width)]
    return [*rows, blank(width), *lay_out(outcome(made), width)]


def certificate_report(made: Certificate) -> Report:
    """The whole session: the attempts, the gain, and the settings as flags and code."""
    title = f"tuned {made.scenario} on {made.device} in {made.elapsed_s:.0f} s"
    return [heading(title), *attempt_report(made), BLANK, *outcome(made)]


def attempt_report(made: Certificate) -> Report:
    """The attempts as a tree, and the causes of failed attempts. Attempts after a kept change
    include that change and are one level deeper."""
    rows = []
    depth = 0
    for attempt in made.attempts:
        trial = attempt.trial
        style = "good" if trial.holds else "" if trial.state == "done" else "alert"
        branch = "  " * depth + ("└─ " if trial.kept else "├─ ")
        expected = (
            units.interval(trial.predicted.low, trial.predicted.high) if trial.predicted else "–"
        )
        rows.append(
            [
                (branch + describe_changes(trial.changes, attempt.knobs), style),
                (attempt.rule, "dim"),
                (expected, ""),
                (measured(trial) if trial.speedup else "–", ""),
                (verdict(trial), style),
            ]
        )
        depth += trial.kept
    failed = [attempt for attempt in made.attempts if attempt.trial.error]
    causes = [
        text(
            f"{describe_changes(attempt.trial.changes, attempt.knobs)}: {attempt.trial.error}",
            "alert",
            indent=2,
        )
        for attempt in failed
    ]
    return [Table(COLUMNS, rows), *causes]


def attempt_line(number: int, attempt: Attempt) -> str:
    """One attempt for a log."""
    trial = attempt.trial
    outcome = (
        f"failed: {trial.error}" if trial.state == "failed" and trial.error else verdict(trial)
    )
    columns = (
        describe_changes(trial.changes, attempt.knobs),
        measured(trial),
        predicted(trial.predicted),
        outcome,
        f"({attempt.rule})",
    )
    return visible(f"{attempt.at_s:5.0f} s  {number}. {'   '.join(columns)}")


def gain(made: Certificate) -> str:
    """`2.10x [1.95, 2.27] against the start, 16 blocks, live, random order`: all kept changes
    together. Empty where one trial did not measure them."""
    total, proof = made.gain, made.proof
    if total is None:
        return ""
    how = f", {proof.blocks} blocks, {proof.way}" if proof is not None else ""
    return f"{units.measured(total.estimate, total.low, total.high)} against the start{how}"


def outcome(made: Certificate) -> Report:
    """Why the session ended, its total gain, and the settings as flags and code."""
    report: Report = [
        text(f"Ended: {made.stopped}."),
        *_lost_report(made),
        *left_alone_report(made),
    ]
    if not made.changed:
        return [*report, text("No change was kept: the settings are the same as at the start.")]
    report.append(
        Line(
            [
                ("Total speedup: ", "dim"),
                (gain(made) or "not measured in one trial", "good" if gain(made) else ""),
            ]
        )
    )
    if made.command_digest:
        report += [
            BLANK,
            heading("The changes"),
            text(describe_changes(made.changed, made.start), indent=2),
        ]
    else:
        report += [
            BLANK,
            heading("The same settings as a command"),
            text(f"gpuconsole run {made.scenario} {made.flags}", indent=2),
        ]
    code: dict[str, dict[str, None]] = {}
    for attempt in made.attempts:
        if attempt.trial.kept and attempt.code:
            code.setdefault(place(attempt.trial.changes), {}).update(
                dict.fromkeys(attempt.code.splitlines())
            )
    for where, rows in code.items():
        report += [
            BLANK,
            heading(where.capitalize()),
            *(Line([(row, "code")], indent=2, hang=4) for row in rows),
        ]
    return report


def _lost_report(made: Certificate) -> Report:
    """The changes that were kept, and whose gain was gone in the minute after."""
    return [
        text(
            f"{describe_changes(trial.changes)} was a win in its trial; {verdict(trial)}.", "alert"
        )
        for trial in (attempt.trial for attempt in made.attempts)
        if trial.began_run and not trial.holds
    ]


def left_alone_report(made: Certificate) -> Report:
    """The promising changes that were not tried, each with the option that allows it."""
    report: Report = []
    for change in made.left_alone:
        expected = f"   {predicted(change.predicted)}" if change.predicted is not None else ""
        report.append(
            text(
                visible(
                    f"Left alone: {describe_changes(change.changes, made.end)}{expected}:"
                    f" {change.why}."
                ),
                "wait",
            )
        )
    return report


def _head(view: View, tuning: Tuning, elapsed_s: float, width: int) -> Row:
    """What is tuned, the gain so far while the session is under way, and the time."""
    made = tuning.certificate
    gain = facts.since_start(view) if tuning.under_way else None
    so_far = (
        [(f"   so far {gain.words}", "good" if gain.proven and gain.ratio > 1 else "")]
        if gain is not None
        else []
    )
    time = f"{elapsed_s:.0f} of {tuning.budget_s:.0f} s"
    return spread(
        width, [(f"{made.scenario} on {made.device}", "heading"), *so_far], [(time, "dim")]
    )


def _now(view: View, width: int) -> list[Row]:
    """The current activity of the session."""
    trial = facts.running_trial(view)
    if trial is not None and view.run is not None:
        return paint_running(trial, view.run.knobs, width, 4)
    return [
        line(
            width,
            ("   diagnosing the run", "accent"),
            (f"  probe {view.probing}" if view.probing else "", "dim"),
        )
    ]


# --- a sweep --------------------------------------------------------------------------------------

BAR = 30


def sweep_report(sweep: Sweep, names: Sequence[str]) -> Report:
    """Each point with mean, standard deviation and interval, and a bar as long as its mean.
    `names`: the varied knobs."""
    head = (
        f"{sweep.scenario} on {sweep.device}, {sweep.clock.replace('_', '-')} clock,"
        f" {sweep.repeats} interleaved repeats, {sweep.elapsed_s:.0f} s"
    )
    columns = (
        Column("setting"),
        Column(sweep.unit, ">"),
        Column("interval"),
        Column("", least=8, drop=1),
        Column("", least=4),
    )
    return [
        text(head, "title"),
        Table(columns, [_row(sweep, point, names) for point in sweep.points]),
        text(
            (
                f"The intervals of all {len(sweep.points)} settings hold together with 95 %"
                " probability, after every round."
            ),
            "dim",
        ),
        *(
            [text(f"{too_short('sweep', sweep.stalls_from)}.", "dim")]
            if sweep.stalls_from > 1
            else []
        ),
    ]


def setting(point: SweepPoint, names: Sequence[str]) -> str:
    """`batch_size=4 precision=bf16`."""
    return " ".join(f"{name}={show(point.knobs[name])}" for name in names)


def _row(sweep: Sweep, point: SweepPoint, names: Sequence[str]) -> list[Segment]:
    settings = [(setting(point, names), "")]
    mean, best = point.mean, sweep.best
    if mean is None or point.low is None or point.high is None or best is None or not best.mean:
        return [
            *settings,
            (units.NA, "dim"),
            ("", ""),
            ("", ""),
            (point.error or "too few repeats", "alert"),
        ]
    low, high = (units.rate(bound, 0) for bound in (point.low, point.high))
    bar = "█" * round(BAR * mean / best.mean)
    style = "good" if point is best else ""
    if point is best:
        note = "highest, not proven" if sweep.rivals else "best"
    elif point in sweep.rivals:
        note = "may be the best"
    else:
        note = (
            "slower, settled early"
            if point.settled and len(point.rates) < len(best.rates)
            else "slower"
        )
    return [
        *settings,
        (units.spread(mean, point.std, 0), style),
        (f"[{low}, {high}]", ""),
        (bar, "high"),
        (note, style),
    ]


# --- the table of a sweep over numbers of processes -----------------------------------------------


def scaling_table(runs: list[Run]) -> Table:
    """A row for each number of processes."""
    heads = ("nproc", "throughput", "per process", "efficiency", "step p50", "comm")
    single = next((run.throughput[0] for run in runs if run.knobs["nproc"] == 1), None)
    return Table(
        [Column(head, ">") for head in heads],
        [[(cell, "") for cell in _cells(run, single)] for run in runs],
    )


def _cells(run: Run, single: Distribution | None) -> list[str]:
    rate, unit = run.throughput
    nproc = int(run.knobs["nproc"])
    if rate is None:
        return [str(nproc), run.state, "", "", "", ""]
    step = run.summary.step_time_s
    exposed = run.summary.phases_ratio.get("comm", 0.0)
    # The collectives of FSDP2 and of tensor parallelism run inside forward and backward: their time
    # is not measured.
    comm = exposed if nproc == 1 or exposed > 0 else None
    return [
        str(nproc),
        units.quantity(rate.p50, unit),
        units.rate(rate.p50 / nproc, 0),
        units.percent(rate.p50 / (nproc * single.p50) if single else None).strip(),
        units.duration(step.p50 if step else None).strip(),
        units.percent(comm).strip(),
    ]
