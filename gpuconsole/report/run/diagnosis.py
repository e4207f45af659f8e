"""The diagnosis panel, and the findings in full: evidence, suggestions with their reasons, and the
rules that are clear or can't tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gpuconsole.diagnosis.claims import Unexplained, unexplained, unjudged
from gpuconsole.diagnosis.engine import still_measuring, still_open, why_no_claim
from gpuconsole.diagnosis.rule import NEEDS, NOT_ON_GPU
from gpuconsole.model import units
from gpuconsole.model.finding import Evidence, Finding, Suggestion
from gpuconsole.model.job import EFFECTS, PERMISSIONS
from gpuconsole.model.knobs.catalogue import (
    Knobs,
    describe_changes,
    in_words,
    place,
    show,
    side_effects,
)
from gpuconsole.model.run import Run
from gpuconsole.model.stacks import placed
from gpuconsole.model.text import cell_width, cut, visible
from gpuconsole.report.cells import (
    Row,
    Segment,
    blank,
    inner_width,
    line,
    panel,
    row_width,
    shorter,
    spread,
    wrap,
)
from gpuconsole.report.experiments import NO_CAUSE, promised
from gpuconsole.report.page import paragraph
from gpuconsole.report.parts import (
    BLANK,
    Column,
    Line,
    Report,
    Table,
    heading,
    labelled,
    lay_out,
    text,
)
from gpuconsole.report.run.breakdown import attainable_report, places_report
from gpuconsole.report.run.figures import doubtful, outage, validity_report, verdict
from gpuconsole.report.run.runs import cause_report, figures, run_head
from gpuconsole.report.run.serving import server_report
from gpuconsole.session import facts
from gpuconsole.session.api import View

# --- the diagnosis panel --------------------------------------------------------------------------

NOTHING_FOUND = "No fault found so far"
NO_ANSWER = "No conclusion while the server does not answer"
NO_GAIN = "no gain measured"
NO_FIGURES = "No conclusion: the numbers cannot show what limits this run"


def paint_diagnosis(view: View, selected: str, width: int, height: int, boxed: bool) -> list[Row]:
    """`selected` is the id of the suggestion that Enter tries. The row of this suggestion is always
    visible.

    Below the findings that fire, as far as there is room: the rules without a conclusion, and how
    many found everything in order.
    """
    if height <= 0:
        return []
    body, _ = _body(view, selected, width, height, boxed)
    return panel("findings", _status(view), body, width, height, boxed)


def suggestion_at(view: View, selected: str, width: int, height: int, boxed: bool, y: int) -> str:
    """The id of the suggestion in row `y` of the panel; in the rows of a finding above its
    suggestions, its first suggestion; else empty."""
    if height <= 0:
        return ""
    body, owners = _body(view, selected, width, height, boxed)
    owner = owners[y - 1] if 0 < y <= len(body) else ""
    return owner if owner in facts.suggestions(view) else ""


def _body(
    view: View, selected: str, width: int, height: int, boxed: bool
) -> tuple[list[Row], list[str]]:
    """The rows inside the panel, and the suggestion that each row belongs to, or an empty text."""
    inner, room = inner_width(width, boxed), height - (2 if boxed else 1)
    top = _top(view, inner, room)
    notes = view.notes[-2 if room >= 10 else -1 :] if room >= 6 else ()
    foot = [line(inner, (note, "dim")) for note in notes]
    left = room - len(top) - len(foot)
    for most, gaps in ((3, True), (3, False), (1, False), (0, False)):
        rows, headlines, at, owners = _findings(view, selected, inner, most, gaps)
        if len(rows) <= left:
            break
    by_row = {id(row): owner for row, owner in zip(rows, owners, strict=False)}
    if rows and len(rows) < left - 1:
        rows = [*rows, blank(inner)]
    rows += _others(view, inner, left - len(rows))
    middle = _window(rows, headlines, at, left, inner)
    if len(middle) < left < len(rows):  # the finding above does not fit as a whole
        middle += _others(view, inner, left - len(middle))
    gap = left - len(middle)
    body = top + middle + [blank(inner)] * max(0, gap) + foot
    return body, [by_row.get(id(row), "") for row in body]


def needed_rows(view: View) -> int:
    """About the rows that the panel could fill, with its box."""
    run = view.run
    if run is None or run.state == "failed":
        return 8
    firing = sum(4 + len(finding.suggestions) for finding in facts.firing(run))
    unsure = sum(finding.state == "cant_tell" for finding in run.findings)
    return 6 + firing + unsure + min(2, len(view.notes))


def _status(view: View) -> list[Segment]:
    if view.probing:
        return [(f"probe {view.probing}", "accent")]
    run = view.run
    # before the first step every rule lacks its signals
    if run is None or not run.findings or run.state == "starting":
        return []
    unsure = sum(finding.state == "cant_tell" for finding in run.findings)
    parts = [f"{len(passed(run.findings))} clear", *([f"{unsure} can't tell"] if unsure else [])]
    return [(", ".join(parts), "dim")]


def _top(view: View, width: int, room: int) -> list[Row]:
    """The most urgent facts in full: the answer line has room for their first words only."""
    rows: list[Row] = []
    run = view.run
    if run is not None and run.state == "failed":
        rows += [
            line(width, (text, "alert"))
            for text in wrap(failure(run), width, max(1, min(6, room - 1)))
        ]
    elif view.down:
        rows += [
            line(width, (text, "alert"))
            for text in wrap(f"{sentence(outage(view))}.", width, max(1, min(3, room - 1)))
        ]
    if run is not None and run.state != "failed" and not view.down and doubtful(run):
        rows += [
            line(width, (text, "alert"))
            for text in wrap(f"numbers {verdict(run)}", width, max(1, min(4, room - 1)))
        ]
    for device, why in view.lost.items():
        rows.append(line(width, (f"{device} lost: {why}", "alert")))
    if rows and room >= 10:
        rows.append(blank(width))
    return rows[: max(1, room - 1)]


def _findings(
    view: View, selected: str, width: int, most: int, gaps: bool
) -> tuple[list[Row], list[int], int, list[str]]:
    """All rows of all findings that fire, the indices of their headlines, the index of the selected
    suggestion, and each row's suggestion.

    A summary has at most `most` rows, and the summary of the selected finding at most three: the
    list begins with the first finding where it can. `gaps`: a blank row between two findings.
    """
    run = view.run
    firing = facts.firing(run)
    rows: list[Row] = []
    headlines: list[int] = []
    owners: list[str] = []
    at = 0
    for number, finding in enumerate(firing, 1):
        headlines.append(len(rows))
        rows += _headline(number, finding, width)
        if finding.alternative_to:
            rows += [
                line(width, ("  ", ""), (text, "dim"))
                for text in wrap(one_of(finding, firing).partition(". ")[0], width - 2, 1)
            ]
        own = [facts.suggestion_id(finding, suggestion) for suggestion in finding.suggestions]
        limit = 3 if selected in own else most
        rows += [
            line(width, ("  ", ""), (text, "dim"))
            for text in (wrap(finding.summary, width - 2, limit) if limit else ())
        ]
        owners += (own[:1] or [""]) * (len(rows) - len(owners))
        for suggestion, name in zip(finding.suggestions, own, strict=True):
            chosen = name == selected
            at = len(rows) if chosen else at
            rows.append(
                _suggestion(
                    suggestion,
                    run,
                    chosen,
                    width,
                    free=facts.active(view)
                    and facts.running_trial(view) is None
                    and not view.asked,
                )
            )
            rows += _effect(suggestion, run, width)
            owners += [name] * (len(rows) - len(owners))
        if gaps and number < len(firing):
            rows.append(blank(width))
            owners.append("")
    if run is not None and (words := core_wait_words(run)):
        rows += [line(width, (text, "dim")) for text in wrap(f"{sentence(words)}.", width, 2)]
        owners += [""] * (len(rows) - len(owners))
    said = (
        run is not None
        and bool(run.findings)
        and (state_words(run) == NOTHING_FOUND or bool(_gap_words(run)))
    )
    state = "" if firing or said else _state(view)  # the answer line has said it
    starting = run is not None and run.state == "starting"  # a start may show a long command
    rows += [line(width, (text, "")) for text in wrap(state, width, 8 if starting else 4)]
    return rows, headlines, at, owners


def _headline(number: int, finding: Finding, width: int) -> list[Row]:
    """The number, the whole title, in two rows where it must be, and what is at stake."""
    right: list[Segment] = []
    if not finding.note:
        full = width >= cell_width(finding.title) + 24
        short = " of memory" if finding.resource == "memory" else ""
        share = (
            f"  {units.percent(finding.recoverable_ratio)}{f' {finding.stake}' if full else short}"
        )
        if finding.failed:
            share = f"  {NO_GAIN}" if full else ""
        confidence = f"  {finding.confidence:<6}" if width >= cell_width(finding.title) + 34 else ""
        right = [(share if finding.recoverable_ratio else "", "loss"), (confidence, "dim")]
    style = "title" if finding.note or finding.recoverable_ratio else "alert"
    first, *rest = wrap(finding.title, max(1, width - 2 - row_width(right)), 3) or [""]
    return [
        spread(width, [(f"{number} ", "dim"), (first, style)], right),
        *(line(width, ("  ", ""), (text, style)) for text in rest),
    ]


def _suggestion(
    suggestion: Suggestion, run: Run | None, chosen: bool, width: int, free: bool
) -> Row:
    """The instruction, the flag beside it where there is room, and the predicted gain, or what a
    trial measured. `free`: the run is active without a trial, so Enter starts one."""
    instruction = in_words(suggestion.changes)
    gain = _gain(suggestion, width - cell_width(instruction) - MIN_SECONDARY_WIDTH)
    right: list[Segment] = [gain] if gain is not None else []
    if not facts.can_try(run, suggestion):
        right.append(("  restart", "dim"))
    else:
        right.append(("  [Enter]" if chosen and free else "         ", "key"))
    flag = describe_changes(suggestion.changes, run.settings if run else {})
    room = width - 2 - row_width(right)
    style = "title" if chosen else ""
    for shown, beside in (
        (instruction, f"  {flag}"),
        (instruction, f"  {shorter(flag, 0)}"),
        (instruction, ""),
        (shorter(flag, room), ""),
    ):
        if cell_width(shown) + cell_width(beside) <= room:
            break
    return spread(
        width, [("> " if chosen else "  ", "key"), (shown, style), (beside, "dim")], right
    )


MIN_SECONDARY_WIDTH = 13
"""Columns beside an instruction and its gain: the mark of a selection, spaces and the key."""


def _gain(suggestion: Suggestion, room: int) -> Segment | None:
    """What a trial in this run measured, without its interval where there is no room; else the
    predicted gain."""
    predicted, tried = suggestion.predicted_speedup, suggestion.tried
    if tried is not None:
        whole = f"tried: {units.measured(tried.estimate, tried.low, tried.high)}"
        shown = (
            whole
            if cell_width(whole) <= room
            else f"tried: {units.speedup(tried.estimate).strip()}"
        )
        return f"  {shown}", "good" if tried.gains else "alert"
    return (
        (f"  {units.interval(predicted.low, predicted.high)}", "good")
        if predicted is not None
        else None
    )


def _effect(suggestion: Suggestion, run: Run | None, width: int) -> list[Row]:
    """What the change does to the numbers of the user's own job, in a row; none where that is not
    known."""
    effect, style = effect_on_numbers(run, suggestion.changes)
    if not effect:
        return []
    sentence = next(
        (text for text in (f"{effect}: {EFFECTS[effect]}", effect) if len(text) <= width - 2), ""
    )
    return [line(width, ("  ", ""), (sentence, style))]


def _others(view: View, width: int, room: int) -> list[Row]:
    """The number of rules that found everything in order, which `d` lists, and the rules without a
    conclusion, in at most `room` rows."""
    run = view.run
    if run is None or room <= 0 or run.state == "failed":
        return []
    if not run.findings or (run.state in ("starting", "running") and run.steady_from_s is None):
        return _settings(run, width, room)
    unsure = [
        row
        for finding in run.findings
        if finding.state == "cant_tell"
        for row in _unsure(finding, width)
    ]
    # what the checks were about is left out first
    clear = _passed(run.findings, width)[: max(1, room - len(unsure))]
    rows = unsure + clear if _gap_words(run) else clear + unsure
    if len(rows) > room:
        return [*rows[: room - 1], line(width, (f"  … {len(rows) - room + 1}{MORE}", "dim"))]
    settings = _settings(run, width, room - len(rows) - 1)
    return [*rows, blank(width), *settings] if settings else rows


PASSED = " passed"
MORE = " more: d"
SUBJECTS = {
    "input": "data", "h2d": "copies", "gpu": "device", "host": "host", "comm": "communication",
    "mem": "memory", "hw": "GPU state", "link": "link", "serve": "server", "watch": "server",
    "meta": "measurement",
}  # fmt: skip
"""What the rules are about whose ids begin so."""


def _passed(findings: Sequence[Finding], width: int) -> list[Row]:
    """`✓ 40 checks passed   d lists them`, then how many of them are about what."""
    rules = passed(findings)
    if not rules:
        return []
    counts = Counter(SUBJECTS.get(finding.rule.partition(".")[0], "other") for finding in rules)
    subjects = ", ".join(f"{subject} {count}" for subject, count in counts.items())
    words = f"{len(rules)} {'check' if len(rules) == 1 else 'checks'}{PASSED}"
    head: Row = [("✓ ", "good"), (words, ""), ("   ", ""), ("d", "key"), (" lists them", "dim")]
    if row_width(head) + cell_width(subjects) + 3 <= width:
        return [line(width, *head, (f"   {subjects}", "dim"))]
    return [
        line(width, *head),
        *(line(width, ("  ", ""), (text, "dim")) for text in wrap(subjects, width - 2, 1)),
    ]


def opens_details(row: Row) -> bool:
    """Whether the row stands for rules that only the details list."""
    return any(text.rstrip().endswith((PASSED, MORE)) for text, _ in row)


def _gap_words(run: Run) -> str:
    """The time that no finding explains, in one clause; empty where there is none."""
    gap = unexplained(run)
    return gap.words if gap is not None else ""


def _unsure(finding: Finding, width: int) -> list[Row]:
    """The whole title of a rule without a conclusion, and the reason where there is room beside
    it."""
    named = finding.missing and finding.summary in (NEEDS + finding.missing[0], "")
    why = f"missing {', '.join(finding.missing)}" if named else finding.summary
    room = width - cell_width(finding.title) - 5
    first, *rest = wrap(finding.title, max(1, width - 2)) or [""]
    reason: list[Segment] = [(f"   {cut(why, room)}", "dim")] if why and room > 20 else []
    head = spread(width, [("? ", "dim"), (first, "")], reason)
    return [head, *(line(width, ("  ", ""), (text, "")) for text in rest)]


def _settings(run: Run, width: int, room: int) -> list[Row]:
    """The settings that are measured."""
    if not run.settings or room < 1:
        return []
    settings = ", ".join(f"{name} {show(value)}" for name, value in run.settings.items())
    return [line(width, (text, "dim")) for text in wrap(f"Settings: {settings}.", width, room)]


def _state(view: View) -> str:
    """The state of the diagnosis without a cause."""
    run = view.run
    if run is None:
        return "Nothing is running. Press s to choose a scenario."
    if run.state == "failed":
        return "" if run.error else "Press s to start again, k to see the settings."
    if run.state == "starting":
        return f"{starting(view)}."
    if view.down:
        return f"{NO_ANSWER}."
    return f"{state_words(run)}."


def starting(view: View) -> str:
    """What a run does before its first step."""
    return f"Starting: {view.stage or 'waiting for the worker'}"


def failure(run: Run) -> str:
    """Why a run failed."""
    return f"failed: {run.error or NO_CAUSE}"


def state_words(run: Run) -> str:
    """The state of the diagnosis of a run in which no rule fires, in one clause: the first that
    holds."""
    running = run.state == "running"
    unsteady = running and run.steady_from_s is None and not doubtful(run)
    why, gap = why_no_claim(run) if run.findings else "", unexplained(run)
    due = bool(why) and still_measuring(run)
    states = (
        (unsteady and run.summary.steps, "Measuring: the rate is not steady yet"),
        (
            unsteady,
            f"Measuring: waiting for the first {'request' if run.serves else 'step'} to end",
        ),
        (why and doubtful(run), NO_FIGURES),
        (
            due and gap is not None,
            f"Measuring: {gap.time if gap is not None else ''}; the cause is not known yet",
        ),
        (due, "Measuring: some rules have no data yet"),
        (why, f"No conclusion: {why}"),
        (run.findings, NOTHING_FOUND),
        (running, "Measuring: no diagnosis yet"),
        (run.error, f"No conclusion: {run.error}"),
    )
    return next((clause for holds, clause in states if holds), "The run ended before a diagnosis")


def _window(rows: list[Row], headlines: list[int], at: int, height: int, width: int) -> list[Row]:
    """At most `height` rows with row `at` visible, and the number of rows below. The first row is
    the headline of a finding."""
    if height <= 0:
        return []
    if len(rows) <= height:
        return rows
    own = max((n for n in headlines if n <= at), default=0)
    start = next((n for n in headlines if n <= own and at - n < max(1, height - 1)), None)
    if start is None:  # the finding is taller than the panel
        shown = (
            [rows[own], *rows[at - height + 3 : at + 2]]
            if height >= 3
            else [rows[own], rows[at]][-height:]
        )
        start = at + 2 - height
    else:
        shown = rows[start : start + height]
    below = len(rows) - start - height
    if below > 0 and height >= 4 and at < start + height - 1:
        shown[-1] = line(width, (f"  … {below + 1} more rows below: down, or d", "dim"))
    return shown[:height]


# --- findings in full -----------------------------------------------------------------------------

RULE_COLUMN = 38
WAITS_FOR_CORE = 0.02
"""A wait for a CPU core below this share of the step is within the rounding of a share."""


def paint_details(view: View, width: int) -> list[Row]:
    """All findings of the current run, beginning with the findings that fire; then every figure of
    the run."""
    run = view.run
    if run is None:
        return paragraph("No run: there is nothing to diagnose. Press s on the main screen.", width)
    return lay_out(details_report(run), width)


def details_report(run: Run) -> Report:
    """What went wrong, the findings that fire, the attainable rate, the other findings by state,
    then the figures of the run."""
    cause = cause_report(run)
    report: Report = [heading("What went wrong"), *cause, BLANK] if cause else []
    firing = facts.firing(run)
    if not firing:
        why = why_no_claim(run)
        report += [heading("No conclusion"), text(f"{sentence(why)}.", "alert")] if why else []
        report += (
            []
            if why
            else [
                heading("No rule fires"),
                text("No rule found time that can be recovered.", "dim"),
            ]
        )
        report.append(BLANK)
    for number, finding in enumerate(firing, 1):
        report += [*finding_report(number, finding, run), BLANK]
    report += [text(f"{sentence(words)}.", "dim"), BLANK] if (words := core_wait_words(run)) else []
    for title, words, clauses in open_words(run) if firing else ():
        report += [
            heading(title),
            text(f"{sentence(words)}.", "alert"),
            *(text(clause) for clause in clauses),
            BLANK,
        ]
    if places := places_report(run):
        report += [*places, BLANK]
    if reach := attainable_report(run):
        report += [heading("What this hardware could reach"), *reach, BLANK]
    report += other_rules(run)
    if not run.findings:
        report += [
            text("No rule was evaluated yet: the run has to reach its steady state first.", "dim"),
            BLANK,
        ]
    return [*report, *server_report(run), run_head(run), *validity_report(run), *figures(run)]


def other_rules(run: Run) -> Report:
    """Return the rules that can't tell, those that are clear, and those that say nothing of a run
    on a CPU."""
    unsure = [finding for finding in run.findings if finding.state == "cant_tell"]
    about_gpus = [
        finding
        for finding in run.findings
        if finding.state == "clear" and finding.summary == NOT_ON_GPU
    ]
    groups = (
        ("Can't tell", unsure),
        ("Clear", passed(run.findings)),
        ("Only on a GPU", about_gpus),
    )
    return [part for title, findings in groups for part in _group(title, findings)]


def firing_report(run: Run) -> Report:
    """The findings that fire, or the reason why no finding fires; then the time that no finding
    explains: for the terminal."""
    firing, gap = facts.firing(run), unexplained(run)
    if not firing:
        why = why_no_claim(run)
        result = f"no conclusion: {visible(why)}" if why else _why_none(run.findings)
        explained = gap_clauses(gap) if gap is not None and why.endswith(gap.words) else []
        return [
            Line([("diagnosis: ", ""), (result, "alert" if why else "")]),
            *(text(clause, indent=2) for clause in explained),
        ]
    report: Report = [Line([("findings:", "")])]
    for number, finding in enumerate(firing, 1):
        report += [
            part._replace(indent=part.indent + 2) for part in finding_report(number, finding, run)
        ]
    report += [text(words, "dim", indent=2)] if (words := core_wait_words(run)) else []
    for title, words, clauses in open_words(run):
        report.append(Line([(f"{title[:1].lower()}{title[1:]}: ", ""), (words, "alert")]))
        report += [text(clause, indent=2) for clause in clauses]
    return report


def open_words(run: Run) -> list[tuple[str, str, list[str]]]:
    """Return the open questions below the findings, each with a title, one clause, and the clauses
    that explain it. If all findings are notes, the question is why there is no conclusion. Else it
    is the function that no rule judges, and the time that no finding explains."""
    one, gap = unjudged(run), unexplained(run)
    if question := still_open(run):
        return [("No conclusion", question, gap_clauses(gap) if gap is not None else [])]
    words: list[tuple[str, str, list[str]]] = []
    if one is not None:
        words.append(("Not judged", one.words, []))
    if gap is not None:
        title = "Beyond the findings" if gap.named else "Not explained"
        words.append((title, gap.words, gap_clauses(gap)))
    return words


def gap_clauses(gap: Unexplained) -> list[str]:
    """What time that no finding explains can be, which signals are missing, and how to get them: a
    clause each."""
    missing = f"missing: {', '.join(gap.missing)}" if gap.missing else ""
    causes = "" if gap.named else f"possible causes: {gap.fits}"
    return [clause for clause in (causes, missing, gap.remedy) if clause]


def stake(finding: Finding) -> str:
    """`41 % recoverable`. A note has no loss: its suggestions, if any, are optional:
    `optional: changes numerics, 1.41-1.88x`."""
    if finding.note and finding.suggestions:
        first = finding.suggestions[0]
        gain = first.predicted_speedup
        gains = (
            [promised(first)]
            if first.tried is not None
            else [units.interval(gain.low, gain.high)]
            if gain is not None
            else []
        )
        about = [*side_effects(first.changes), *gains]
        return ": ".join(filter(None, ("optional", ", ".join(about))))
    if finding.note:
        return "nothing to recover" if finding.is_healthy else "a note"
    if finding.failed:
        return NO_GAIN
    return f"{units.percent(finding.recoverable_ratio).strip()} {finding.stake}"


def core_wait(run: Run) -> float:
    """The share of a step for which the training thread waits for a core, in a run on a CPU; 0
    below WAITS_FOR_CORE."""
    delay = (
        run.signals["runq_ratio"].value
        if run.device == "cpu" and "runq_ratio" in run.signals
        else 0.0
    )
    return delay if delay >= WAITS_FOR_CORE else 0.0


def core_wait_words(run: Run) -> str:
    """Why the evidence and the predictions of findings do not agree with the bar; empty where they
    do, and where nothing fires."""
    if not core_wait(run) or not facts.firing(run):
        return ""
    return (
        "the evidence and the predictions of findings leave out the wait for a CPU core"
        f" ({units.percent(core_wait(run)).strip()} of a step); recoverable shares, the bar and the"
        " MFU of the run include it"
    )


def recoverable(finding: Finding, run: Run) -> str:
    """`90.0 of the 167 ms of each step`: the recoverable time of a training step; empty where that
    is not known."""
    whole = run.summary.step_time_s
    if finding.note or finding.failed or finding.resource != "time" or run.serves or whole is None:
        return ""
    lost, step, unit = units.durations(finding.recoverable_ratio * whole.mean, whole.mean)
    return f"{lost.strip()} of the {step.strip()} {unit} of each step"


def one_of(finding: Finding, firing: Sequence[Finding]) -> str:
    """`One of these: 1, 2. They claim the same time, so their shares do not add up.` The numbers
    are those of the findings in `firing`. Empty where no other finding claims the time of this
    one."""
    names = {
        finding.rule,
        *finding.alternative_to,
        *(other.rule for other in firing if finding.rule in other.alternative_to),
    }
    numbers = [str(number) for number, other in enumerate(firing, 1) if other.rule in names]
    return (
        (
            f"One of these: {', '.join(numbers)}. They claim the same time, so their shares do not"
            " add up."
        )
        if len(numbers) > 1
        else ""
    )


def lost_trials(finding: Finding) -> str:
    """Say why trials of the suggested changes lower the confidence of the finding; empty if they do
    not."""
    if finding.lost_trials:
        return (
            f"{finding.lost_trials} trials of this change in this job did not gain, so the"
            " confidence is low: the cause may be another one."
        )
    return (
        "The trial did not gain, so the confidence is low: the cause may be another one."
        if finding.failed
        else ""
    )


def finding_report(number: int, finding: Finding, run: Run) -> Report:
    """Return a finding with its suggestions, then its evidence."""
    right = [(stake(finding), "accent"), (f"  confidence {finding.confidence}", "")]
    report: Report = [
        Line([(f"{number} {finding.title}", "heading")], right=right),
        text(finding.summary, indent=2),
    ]
    if share := recoverable(finding, run):
        report.append(text(f"{sentence(finding.stake)}: {share}.", indent=2))
    if words := one_of(finding, facts.firing(run)):
        report.append(text(words, indent=2))
    if lost := lost_trials(finding):
        report.append(text(lost, indent=2))
    for suggestion in finding.suggestions:
        report += _suggestion_lines(suggestion, run)
    report.append(Line([("rule ", "dim"), (finding.rule, "")], indent=2))
    if finding.evidence:
        report.append(_evidence(finding.evidence))
    return report


def _evidence(evidence: Sequence[Evidence]) -> Table:
    columns = (
        Column("evidence", least=16),
        Column("value", ">"),
        Column("threshold", ">"),
        Column("source", least=8),
    )
    rows = [
        [
            (reading.signal, ""),
            (units.quantity(reading.value, reading.unit), "accent"),
            (
                units.quantity(reading.threshold, reading.unit)
                if reading.threshold is not None
                else "–",
                "dim",
            ),
            (source_of(reading), "dim"),
        ]
        for reading in evidence
    ]
    return Table(columns, rows, indent=2)


def source_of(reading: Evidence) -> str:
    """Return the source of a reading, with the place in the code of this reading."""
    return (
        f"{reading.source}: {placed(reading.place)}"
        if reading.place is not None
        else reading.source
    )


def _suggestion_lines(suggestion: Suggestion, run: Run) -> Report:
    gain, changes = (
        [(promised(suggestion), "accent")],
        describe_changes(suggestion.changes, run.settings),
    )
    report: Report = [Line([("try ", "dim"), (changes, "title")], right=gain, indent=2)]
    report.append(text(suggestion.why.removeprefix(f"{changes}: "), indent=6))
    if effect := run.effect(suggestion.changes):
        report.append(
            text(
                f"{effect}: {EFFECTS[effect]}",
                "alert" if effect in PERMISSIONS else "dim",
                indent=6,
            )
        )
    if reason := run.why_not(suggestion.changes):
        report.append(text(f"not tried from here: {reason}", "dim", indent=6))
    if suggestion.code:
        report.append(text(f"{place(suggestion.changes)}:", "dim", indent=6))
        report += [Line([(row, "code")], indent=8, hang=4) for row in suggestion.code.splitlines()]
    return report


def _group(title: str, findings: list[Finding]) -> Report:
    """A rule in a row. The title of a clear finding is its positive wording."""
    if not findings:
        return []
    report: Report = [heading(f"{title} ({len(findings)})")]
    for finding in findings:
        result = (
            f"{finding.title}: {finding.summary}"
            if finding.summary and finding.state == "clear"
            else finding.summary or finding.title
        )
        report.append(labelled(finding.rule, result, column=RULE_COLUMN, indent=2))
    return [*report, BLANK]


def sentence(clause: str) -> str:
    return clause[:1].upper() + clause[1:]


def passed(findings: Sequence[Finding]) -> list[Finding]:
    """The rules that found everything in order. A rule about GPUs has nothing to say of a run on a
    CPU."""
    return [
        finding
        for finding in findings
        if finding.state == "clear" and finding.summary != NOT_ON_GPU
    ]


def rule_counts(findings: Sequence[Finding]) -> str:
    """`35 rules are clear, 8 have no data`; empty where there is no such rule."""
    clear, unsure = len(passed(findings)), sum(finding.state == "cant_tell" for finding in findings)
    parts = [f"{clear} {'rule is' if clear == 1 else 'rules are'} clear"] if clear else []
    if unsure:
        parts.append(
            f"{unsure} {'has' if unsure == 1 else 'have'} no data"
            if clear
            else f"{unsure} {'rule has' if unsure == 1 else 'rules have'} no data"
        )
    return ", ".join(parts)


def missing_signals(findings: Sequence[Finding]) -> list[str]:
    """The signals that rules lack, each once."""
    return list(
        dict.fromkeys(
            signal
            for finding in findings
            if finding.state == "cant_tell"
            for signal in finding.missing
        )
    )


def _why_none(findings: Sequence[Finding]) -> str:
    """`no fault found: ...`, with the signals that rules lack."""
    missing = sorted(missing_signals(findings))
    counts = rule_counts(findings) or "no steady state was measured"
    return f"no fault found: {counts}" + (f" (missing: {', '.join(missing)})" if missing else "")


def effect_on_numbers(run: Run | None, changes: Knobs) -> Segment:
    """What changes do to the numbers of the user's own job; empty where that is not known."""
    effect = run.effect(changes) if run is not None else ""
    return effect, "alert" if effect in PERMISSIONS else "dim"
