"""The answer: what limits the workload, how much that costs, and what to do about it. The first
rows of the main screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpuconsole.diagnosis.claims import (
    Unexplained,
    Unjudged,
    open_question,
    unexplained,
    unjudged,
)
from gpuconsole.diagnosis.engine import still_measuring, still_open
from gpuconsole.model import units
from gpuconsole.model.experiments import Trial, last_trial
from gpuconsole.model.finding import Finding, Suggestion
from gpuconsole.model.job import AGENT
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes, in_words, side_effects
from gpuconsole.model.run import Run
from gpuconsole.model.text import cell_width
from gpuconsole.report.cells import Row, Segment, fill, line, line_of, row_width, spread
from gpuconsole.report.experiments import measured, verdict
from gpuconsole.report.run.diagnosis import (
    NO_ANSWER,
    NO_FIGURES,
    NOTHING_FOUND,
    effect_on_numbers,
    failure,
    gap_clauses,
    missing_signals,
    rule_counts,
    sentence,
    stake,
    starting,
    state_words,
)
from gpuconsole.report.run.figures import doubtful, outage
from gpuconsole.report.run.figures import verdict as validity_words
from gpuconsole.session import facts
from gpuconsole.session.api import View

GAP = "   "
MAX_UNTIL_LINE = 72
"""Cells of a summary that 80 columns surely show."""
Keys = Sequence[tuple[str, str]]
"""Pairs of a key and a word for what it does."""


class Answer(NamedTuple):
    """`style` is the colour of the mark at the left edge. `also` follows the headline where there
    is room beside the first key. `more` is the second row, the most important segment first: what
    does not fit is left out."""

    style: str
    head: list[Segment]
    more: list[Segment]
    also: list[Segment] = []


def paint_answer(view: View, selected: str, keys: Keys, width: int, height: int) -> list[Row]:
    """`selected` is the id of the suggestion that Enter tries. `keys`: the keys that make sense
    now. The headline keeps its room before the keys, which take the second row where it is free."""
    present = answer(view, selected)
    mark: Segment = ("▌", present.style)
    room = width - 1 - row_width(line_of(present.head)) - len(GAP)
    also = row_width(line_of(present.also))
    beside = (
        present.also
        if not keys or also + row_width(line_of(_fitting_keys(keys[:1], width))) <= room
        else []
    )
    shown = _fitting_keys(keys, room - also * bool(beside))
    rows = [spread(width, [mark, *present.head, *beside], shown)]
    more = _fitting(present.more, width - 1)
    below = [] if shown or any(text for text, _ in more) else _fitting_keys(keys, width - 1)
    rows.append(line(width, mark, *more, *below))
    return fill(rows, width, height)


def _fitting_keys(keys: Keys, room: int) -> list[Segment]:
    parts: list[Segment] = []
    for key, label in keys:
        entry: list[Segment] = [(GAP, "")] * bool(parts) + [(key, "key"), (f" {label}", "")]
        if row_width(line_of(parts + entry)) > room:
            break
        parts += entry
    return parts


def _fitting(parts: list[Segment], room: int) -> list[Segment]:
    """The first segment, cut where it must be; then the segments that fit whole. A label
    (`optional: `) is a part of the next segment."""
    if len(parts) > 1 and parts[0][0].endswith(": "):
        label, *rest = parts
        return [label, *_fitting(rest, room - cell_width(label[0]))]
    kept = parts[:1]
    room -= sum(cell_width(text) for text, _ in kept)
    for text, style in parts[1:]:
        if text and cell_width(text) + len(GAP) <= room:
            kept.append((GAP + text, style))
            room -= cell_width(text) + len(GAP)
    return kept


def answer(view: View, selected: str) -> Answer:
    """The answer in the present state."""
    run = view.run
    if run is None:
        return Answer(
            "dim",
            [("Nothing is running", "title")],
            [
                (
                    (
                        "Choose a scenario, or start your own program: gpuconsole run -- python"
                        " train.py"
                    ),
                    "dim",
                )
            ],
        )
    firing = facts.firing(run)
    if (trouble := _trouble(view, run)) is not None:
        return (
            trouble
            if not firing
            else trouble._replace(more=_about(view, run, *_chosen(view, firing, selected)))
        )
    if run.state == "starting":
        return Answer(
            "accent",
            [(starting(view), "title")],
            [("The first numbers follow the first steps.", "dim")],
        )
    trial = facts.running_trial(view)
    if view.asked and trial is None:
        return _open_question_answer(view, run)
    gap = (
        unexplained(run)
        if run.steady_from_s is not None and not view.probing and not still_measuring(run)
        else None
    )
    if trial is None and gap is not None and all(finding.note for finding in firing):
        return _not_explained(run, gap, _kept(view))
    if trial is None and (well := facts.healthy(run)) is not None:
        return _healthy(view, run, well, selected)
    kept = _kept(view)
    due = view.probing or still_measuring(run)
    if trial is None and kept is None and not due and (question := still_open(run)):
        if (one := unjudged(run)) is not None:
            return _not_judged(one, open_question(run), firing)
        if firing:
            return _no_conclusion(question, firing)
    if trial is None and kept is not None and all(finding.note for finding in firing):
        return _kept_so_far(view, run, kept, firing, selected)
    if firing:
        finding, suggestion = _chosen(view, firing, selected)
        if trial is not None:
            finding, suggestion = _on_trial(firing, trial) or (finding, suggestion)
        # nothing to recover, but the results may be wrong
        errors = finding is not firing[0] and _style(firing[0]) == "alert"
        also: list[Segment] = [(f"{GAP}{firing[0].title}", "alert")] if errors else []
        if trial is None and kept is not None and _style(finding) != "alert":
            return Answer("good", _proven(kept), _next(view, run, finding, suggestion), also)
        head: list[Segment] = [(finding.title, "title"), *_cost(finding)]
        return Answer(_style(finding), head, _about(view, run, finding, suggestion, trial), also)
    if trial is not None:
        return Answer(
            "accent",
            [(f"On trial: {in_words(trial.changes)}", "title")],
            _change(trial.changes, run),
        )
    state = (
        "Measuring: a probe runs" if view.probing and run.state == "running" else state_words(run)
    )
    return Answer("dim", [(state, "title")], _rest(view, run))


def _open_question_answer(view: View, run: Run) -> Answer:
    """A trial was asked for and has not begun."""
    waits = (
        f"requested: waits for the probe {view.probing}"
        if view.probing
        else "requested: it begins in a moment"
    )
    return Answer(
        "accent",
        [(f"Trial: {in_words(view.asked)}", "title")],
        [(describe_changes(view.asked, run.settings), ""), (waits, "accent")],
    )


def _not_judged(one: Unjudged, question: tuple[str, str], notes: list[Finding]) -> Answer:
    """Answer a run in which no finding names a cause and one function takes most of a part of the
    step. `question`: why rules have no conclusion, and how to get their data."""
    why, how = question
    clauses = filter(None, ("no rule judges it", how, *(note.title for note in notes), why))
    return Answer("wait", [(one.time, "title")], [(clause, "dim") for clause in clauses])


def _no_conclusion(question: str, notes: list[Finding]) -> Answer:
    """Answer a run in which all findings are notes: the question stays open."""
    return Answer(
        "wait",
        [(f"No conclusion: {question}", "title")],
        [(note.title, "dim") for note in notes],
    )


def _not_explained(run: Run, gap: Unexplained, kept: Trial | None) -> Answer:
    """No finding names the cause of a large part of the time. What was proven before stays the
    headline."""
    if kept is None and (one := unjudged(run)) is not None and one.place.share_ratio > gap.share:
        return _not_judged(one, (gap.words, gap.remedy), [])
    if kept is not None:
        return Answer(
            "good",
            _proven(kept),
            [(sentence(gap.words), "wait"), *((clause, "dim") for clause in gap_clauses(gap))],
        )
    return Answer(
        "wait", [(sentence(gap.words), "title")], [(clause, "dim") for clause in gap_clauses(gap)]
    )


def _healthy(view: View, run: Run, well: Finding, selected: str) -> Answer:
    """No fault: what was proven, if a change was kept, and that the run is healthy. A change that
    could be tried comes second.

    A note that names no change, such as a disturbance by other programs, follows the headline.
    """
    finding, suggestion = facts.suggestions(view).get(selected, (well, None))
    more: list[Segment] = [(clause, "dim") for clause in well.summary.split("; ")]
    if suggestion is not None:
        instruction, flags, predicted, *rest = _about(view, run, finding, suggestion)
        label = f"{', '.join(('optional', *side_effects(suggestion.changes)))}: "
        more = [(label, "dim"), instruction, predicted, flags, *rest]
    doubt = next(
        (note for note in facts.firing(run) if not note.suggestions and not note.is_healthy),
        None,
    )
    also: list[Segment] = [(f"{GAP}{doubt.title}", "")] if doubt is not None else []
    if (kept := _kept(view)) is not None:
        return Answer("good", _proven(kept), more, also or [(f"{GAP}Now: {well.title}", "title")])
    return Answer("good", [(well.title, "title")], more, also)


def _kept_so_far(view: View, run: Run, kept: Trial, notes: list[Finding], selected: str) -> Answer:
    """What was proven stays the headline until there is another cause. A note follows it."""
    if notes:
        return Answer(
            "good",
            _proven(kept),
            _about(view, run, *_chosen(view, notes, selected)),
            [(f"{GAP}{notes[0].title}", "")],
        )
    if view.probing:
        return Answer("good", _proven(kept), _rest(view, run))
    measures = run.state == "running" and run.steady_from_s is None
    return Answer(
        "good",
        _proven(kept),
        [("next: the console measures the faster run" if measures else state_words(run), "dim")],
    )


def _next(view: View, run: Run, finding: Finding, suggestion: Suggestion | None) -> list[Segment]:
    """What is left after a proven change: the next finding with its cost, then its suggestion
    without the flag."""
    change, *rest = _about(view, run, finding, suggestion)
    return [
        ("next: ", "dim"),
        (finding.title, "title"),
        (stake(finding), "loss"),
        change,
        *rest[1:],
    ]


def _proven(kept: Trial) -> list[Segment]:
    return [
        (sentence(in_words(kept.changes)), "title"),
        (f": {measured(kept)}  {verdict(kept)}", "good" if kept.holds else "wait"),
    ]


def _trouble(view: View, run: Run) -> Answer | None:
    """What needs action before any figure of the run counts."""
    if run.state == "failed":
        return Answer(
            "alert",
            [(sentence(failure(run)), "alert")],
            [(view.notes[-1] if view.notes else "", "dim")],
        )
    if view.down:
        return Answer("alert", [(sentence(outage(view)), "alert")], [(f"{NO_ANSWER}.", "dim")])
    if run.device in view.lost:
        return Answer(
            "alert", [(f"{run.device} is lost: {view.lost[run.device]}", "alert")], [("", "")]
        )
    if doubtful(run):
        return Answer(
            "alert",
            [(f"The numbers are {validity_words(run)}", "alert")],
            [(f"{NO_FIGURES}.", "dim")],
        )
    if run.is_job and AGENT in run.unavailable and facts.active(view):
        return Answer(
            "alert",
            [("The agent is off: no step is measured", "alert")],
            [(run.unavailable[AGENT], "dim")],
        )
    return None


def _chosen(view: View, firing: list[Finding], selected: str) -> tuple[Finding, Suggestion | None]:
    """The selected suggestion and its finding; else the first finding."""
    chosen = facts.suggestions(view).get(selected)
    return chosen if chosen is not None else (firing[0], next(iter(firing[0].suggestions), None))


def _on_trial(firing: list[Finding], trial: Trial) -> tuple[Finding, Suggestion | None] | None:
    return next(
        (
            (finding, suggestion)
            for finding in firing
            for suggestion in finding.suggestions
            if suggestion.changes == trial.changes
        ),
        None,
    )


def _style(finding: Finding) -> str:
    return "good" if finding.note else "wait" if finding.recoverable_ratio else "alert"


def _cost(finding: Finding) -> list[Segment]:
    """`: 61 % recoverable`. This is less than the part in the bar: the cure may leave a rest, and
    the wait for a CPU core is not counted."""
    return (
        [] if finding.note or not finding.recoverable_ratio else [(f": {stake(finding)}", "loss")]
    )


def _about(
    view: View,
    run: Run,
    finding: Finding,
    suggestion: Suggestion | None,
    trial: Trial | None = None,
) -> list[Segment]:
    """The suggestion with its prediction, or the outcome of its trial; without a suggestion the
    summary of the finding."""
    if suggestion is None:
        return [(_summary(finding), "dim")]
    parts = _change(suggestion.changes, run)
    if (
        run.watched and suggestion.code and not facts.can_try(run, suggestion)
    ):  # the user restarts the server: the flag has the name that this engine gives it
        return [parts[0], (suggestion.code, ""), ("no prediction", "dim")]
    if trial is not None and trial.changes == suggestion.changes:
        return [*parts, ("on trial", "accent"), *_tuning(view)]
    done = last_trial(view.trials, run.id, suggestion.changes)
    if done is not None:
        outcome = f"{measured(done)} {verdict(done)}" if done.speedup else verdict(done)
        # a trial may show another effect
        effect = [effect_on_numbers(run, suggestion.changes)] if done.state == "failed" else []
        return [*parts, (f"tried: {outcome}", "dim"), *effect]
    predicted = suggestion.predicted_speedup
    parts.append(
        (f"predicted {units.interval(predicted.low, predicted.high)}", "good")
        if predicted
        else ("no prediction", "dim")
    )
    if why := run.why_not(suggestion.changes):
        return [*parts, (f"not from here: {why}", "dim")]
    return [
        *parts,
        effect_on_numbers(run, suggestion.changes)
        if run.applies_live(suggestion.changes)
        else ("in a second process", "dim"),
        (f"confidence {finding.confidence}", "dim"),
    ]


def _summary(finding: Finding) -> str:
    """Return the summary of a finding. The line of the program stands first, where the summary has
    it too late for a narrow screen."""
    place = finding.place
    if place is None or not place.line or place.line in finding.summary[:MAX_UNTIL_LINE]:
        return finding.summary
    return f"{place.line}: {finding.summary}"


def _tuning(view: View) -> list[Segment]:
    """How far the tuning session is."""
    tuning = view.tuning
    if tuning is None or not tuning.under_way:
        return []
    elapsed_s = tuning.certificate.elapsed_s + max(0.0, view.now - view.tuning_at)
    return [(f"tuning: {elapsed_s:.0f} of {tuning.budget_s:.0f} s", "accent")]


def _change(changes: Knobs, run: Run) -> list[Segment]:
    return [(in_words(changes), "title"), (describe_changes(changes, run.settings), "")]


def _kept(view: View) -> Trial | None:
    """The trial whose change began the current run."""
    if len(view.runs) < 2 or not (view.run and view.run.changes):
        return None
    return next(
        (
            trial
            for trial in reversed(view.trials)
            if trial.kept
            and trial.baseline_run == view.runs[-2].id
            and trial.changes == view.run.changes
        ),
        None,
    )


def _rest(view: View, run: Run) -> list[Segment]:
    """How many rules are clear, and what the others lack."""
    if view.probing:
        return [(f"The probe {view.probing} runs.", "dim")]
    missing = missing_signals(run.findings)
    return [
        (rule_counts(run.findings), "dim"),
        (f"missing: {', '.join(missing)}" if missing else "", "dim"),
    ]


STEPS = 4
CONTENTION = "host.cpu_contention"
"""The rule that names other programs on the cores: while it fires, step times vary for that
reason."""
CLOSING_S = 60.0
"""Seconds for which the hint after the first win is shown."""


def guide(
    view: View,
    keys: Mapping[str, str],
    *,
    choosing: bool = False,
    install_torch: str = "",
    room: int = 200,
) -> tuple[int, str]:
    """The present step (1 to STEPS) and what to do; (0, "") where no hint is useful. `keys`: what
    to press, by action.
    `choosing`: the list of scenarios is open. `install_torch`: the command that the scenarios need
    first, or empty. `room`: columns for the hint; a command that does not fit is not shown in part.

    A recording takes no keys. After the first win the last hint says what to do with it: the user
    has seen the whole way.
    """
    run, trial = view.run, facts.running_trial(view)
    if view.recording or view.tuning is not None:
        return 0, ""
    if decided := [
        trial for trial in view.trials if trial.state == "done" and trial.verdict != "undecided"
    ]:
        return (
            (0, "")
            if choosing or trial is not None or len(decided) > 1
            else _after(view, decided[0], keys)
        )
    start = f"Press {keys['scenarios']}, choose a scenario, press {keys['start']}."
    another = (
        ""
        if run is not None and run.is_job
        else f" Press {keys['scenarios']} for a scenario with a fault."
    )
    if install_torch and (choosing or run is None):
        hint = f"Scenarios need torch: {install_torch}"
        if cell_width(hint) > room:
            return 1, "Scenarios need torch: `gpuconsole doctor` prints the command."
        shell = "   Your own job starts in a shell, see above."
        return 1, hint if choosing or cell_width(hint + shell) > room else hint + shell
    if choosing:
        return 1, f"{keys['start']} starts the selected scenario. Choose one with a fault."
    if run is None:
        return 1, start
    if view.asked and trial is None:
        return (
            4,
            f"The trial waits for the measurement under way. {keys['cancel_trial']} cancels it.",
        )
    if trial is not None:
        return 4, "Wait for the verdict. Steps with and without the change alternate."
    if not facts.active(view):
        return (0, "") if run.is_job or run.watched else (1, f"This run has ended. {start}")
    if run.watched and facts.suggestions(view):
        before = "The server has its limits of the start again. " if view.trials else ""
        return (
            3,
            (
                f"{before}Press {keys['try_selected']}: the limit changes in blocks under the load"
                " of its clients, and goes back."
            ),
        )
    if facts.suggestions(view) and view.trials and view.trials[-1].state == "done":
        why = (
            "other programs use the cores"
            if any(one.rule == CONTENTION for one in facts.firing(run))
            else "step times vary too much"
        )
        return 3, f"The trial was undecided: {why}. Press {keys['try_selected']} to try again."
    if facts.healthy(run) is not None:
        return (0, "") if run.watched else (2, f"This run is healthy.{another}")
    if facts.suggestions(view) and view.trials and view.trials[-1].state == "failed":
        if run.permissions(view.trials[-1].changes):
            return (
                3,
                f"The trial failed, see above. {keys['try_selected']} asks for your permission.",
            )
        return 3, f"The trial failed, see above. {keys['try_selected']} tries again."
    if facts.suggestions(view):
        return (
            3,
            f"Press {keys['try_selected']}: the console tries the change and keeps it if it helps.",
        )
    if facts.firing(run):
        return (
            2,
            f"This finding has no change to try here. Press {keys['details']} for the reasons.",
        )
    if run.findings and run.steady_from_s is not None and not view.probing:
        state = state_words(run)
        if state.startswith("No conclusion"):
            return 2, f"No rule names a cause. Press {keys['details']} for the reasons."
        if state == NOTHING_FOUND:
            return (0, "") if run.watched else (2, f"{state}.{another}")
    return 2, "Wait for the finding. The console measures where the time goes."


def _after(view: View, trial: Trial, keys: Mapping[str, str]) -> tuple[int, str]:
    """What to do with the first win, for some time after it."""
    ended_s = view.trial_times.get(trial.id, (0.0, view.now))[1]
    if (
        not trial.holds
        or trial not in facts.current_trials(view)
        or not facts.active(view)
        or view.now - ended_s > CLOSING_S
    ):
        return 0, ""
    if view.run is not None and view.run.is_job:
        return STEPS, f"Faster: kept. {keys['quit']} leaves, and prints the patch for your code."
    return (
        STEPS,
        (
            f"Faster: kept. {keys['export']} writes a snapshot, {keys['revert']} reverts,"
            f" {keys['quit']} saves and quits."
        ),
    )


def narrate(view: View) -> tuple[int, str]:
    """The same steps for the recorded session of `--demo`: what happens at this moment. Nothing
    takes keys, so the text asks for none."""
    trial = facts.running_trial(view)
    if trial is not None:
        return 4, "The trial: steps with and without the change alternate."
    if finished := [trial for trial in view.trials if trial.state != "running"]:
        return (
            4,
            (
                f"{sentence(verdict(finished[-1]))}. To try it on this machine: q, then gpuconsole,"
                " s, Enter."
            ),
        )
    if facts.suggestions(view):
        return (
            3,
            (
                "The cause is found. In a live session Enter starts the trial; the recording goes"
                " on by itself."
            ),
        )
    return (
        (2, "The console measures where the time of each step goes.")
        if view.run is not None
        else (1, "A training run starts.")
    )
