"""The table of runs with the trials that were not kept, and every figure of a run, one row each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from gpuconsole.model import units
from gpuconsole.model.experiments import Speedup, Trial
from gpuconsole.model.job import AGENT
from gpuconsole.model.knobs.catalogue import describe_changes
from gpuconsole.model.run import Run
from gpuconsole.model.text import cell_width, clean, cut, percent, visible
from gpuconsole.report.cells import Row, Segment, fit, inner_width, line, panel, shorter, wrap
from gpuconsole.report.parts import Column, Line, Report, Table, labelled
from gpuconsole.report.run.breakdown import breakdown_segments, share_text
from gpuconsole.report.run.figures import (
    doubtful,
    figure_rows,
    figure_text,
    throughput,
    work,
)
from gpuconsole.report.run.memory import memory_report
from gpuconsole.report.run.serving import latency_report, request_report, watched_report
from gpuconsole.session.api import View
from gpuconsole.session.facts import continues

# --- the table of runs, with the trials that were not kept ----------------------------------------


class RunEntry(NamedTuple):
    """A row. `unit` is the unit of `rate`, because one table can contain runs of different
    workloads."""

    number: str
    change: str
    rate: str
    gain: float | None
    verdict: str
    style: str = ""
    unit: str = ""
    speedup: Speedup | None = None

    def gain_text(self, full: bool) -> str:
        """`2.24x [2.10, 2.40]`, or the estimate alone."""
        speedup = self.speedup
        if speedup is not None and full:
            return units.measured(speedup.estimate, speedup.low, speedup.high)
        return units.speedup(self.gain).strip() if self.gain is not None else ""


def entries(view: View) -> list[RunEntry]:
    """Runs in order; after each run the trials on it that were not kept."""
    return run_entries(view.runs, view.trials)


def run_entries(runs: Sequence[Run], trials: Sequence[Trial]) -> list[RunEntry]:
    rows: list[RunEntry] = []
    before: Run | None = None
    for run in runs:
        rows.append(_run(run, before, trials))
        rows += [
            _trial(trial, run)
            for trial in trials
            if trial.baseline_run == run.id and not trial.began_run
        ]
        before = run
    return rows


def _run(run: Run, before: Run | None, trials: Sequence[Trial]) -> RunEntry:
    rate, unit = run.throughput
    text = units.spread(rate.mean, rate.std if rate.n > 1 else None, 0) if rate else units.NA
    live = (
        run.state
        if run.state != "finished"
        else run.validity.verdict
        if run.validity is not None and doubtful(run)
        else ""
    )
    style = (
        "alert"
        if run.state == "failed" or live in ("degraded", "invalid")
        else "title"
        if run.state in ("starting", "running")
        else ""
    )
    unit = unit if rate else ""
    if before is None or not continues(run, before):
        return RunEntry(
            run.id,
            f"baseline {run.scenario}" if before else "baseline",
            text,
            None,
            live,
            style,
            unit,
        )
    changes = run.changes or {
        name: value for name, value in run.knobs.items() if before.knobs.get(name) != value
    }
    proof = next(
        (
            trial
            for trial in trials
            if trial.began_run and trial.baseline_run == before.id and trial.changes == changes
        ),
        None,
    )
    change = describe_changes(changes, before.knobs)
    if proof is None:
        return RunEntry(run.id, change, text, None, live or "no trial", style, unit)
    gain = proof.speedup.estimate if proof.speedup else None
    return RunEntry(
        run.id,
        change,
        text,
        gain,
        "failed" if run.state == "failed" else proof.fate,
        style,
        unit,
        proof.speedup,
    )


def _trial(trial: Trial, run: Run) -> RunEntry:
    gain = trial.speedup.estimate if trial.speedup else None
    if trial.state == "running":
        return RunEntry(
            "–",
            describe_changes(trial.changes, run.knobs),
            "",
            gain,
            "on trial",
            "accent",
            "",
            trial.speedup,
        )
    change = describe_changes(trial.changes, run.knobs)
    return RunEntry("–", change, "", gain, trial.fate, "dim", "", trial.speedup)


def runs_table(runs: Sequence[Run], trials: Sequence[Trial]) -> Table:
    """All rows, for the terminal."""
    columns = (
        Column("run"),
        Column("change", least=12),
        Column("throughput", ">"),
        Column("speedup", ">"),
        Column("verdict"),
    )
    rows = []
    for entry in run_entries(runs, trials):
        gain = units.speedup(entry.gain).strip() if entry.gain is not None else ""
        rate = f"{entry.rate} {entry.unit}".strip()
        rows.append(
            [
                (entry.number, ""),
                (entry.change, entry.style),
                (rate, ""),
                (gain, ""),
                (entry.verdict, entry.style),
            ]
        )
    return Table(columns, rows)


SAME = 0.02
"""Two equal runs differ by about 2 %: a smaller difference needs no explanation."""


def rates_differ(speedup: Speedup | None, before: Run, after: Run, clock: str) -> str:
    """Say both ratios where the rates before and after a change do not have the ratio that its
    trial measured. The cause was not measured. Empty where they have it, or are not known.

    `clock`: the clock of the trial.
    """
    (first, unit), (last, last_unit) = before.throughput, after.throughput
    estimate = 0.0 if speedup is None else speedup.estimate
    if (
        estimate <= 0
        or first is None
        or last is None
        or unit != last_unit
        or first.mean <= 0
        or after.steady_from_s is None
    ):
        return ""
    ratio = last.mean / first.mean
    if abs(ratio / estimate - 1) <= SAME:
        return ""
    paired, rates = units.speedup(estimate).strip(), units.speedup(ratio).strip()
    waits = ", without waits for a CPU core" if clock == "contention_free" else ""
    return f"{paired} in alternating blocks{waits}; the rates before and after differ by {rates}"


def all_differences(runs: Sequence[Run], trials: Sequence[Trial]) -> list[str]:
    """`rates_differ` for each kept change."""
    pairs = (
        (trial, *pair)
        for pair in itertools.pairwise(runs)
        for trial in trials
        if _began(trial, *pair)
    )
    return list(
        filter(
            None,
            (
                rates_differ(trial.speedup, before, after, trial.clock)
                for trial, before, after in pairs
            ),
        )
    )


def _began(trial: Trial, before: Run, after: Run) -> bool:
    """Whether `after` continues `before` with the change of the trial."""
    return trial.began_run and trial.baseline_run == before.id and trial.changes == after.changes


def runs_report(runs: Sequence[Run], trials: Sequence[Trial]) -> Report:
    """The table, and the rates and speedups in it that differ."""
    return [
        runs_table(runs, trials),
        *(Line([(sentence, "dim")]) for sentence in all_differences(runs, trials)),
    ]


# --- on the main screen ---------------------------------------------------------------------------

NUMBER = 2
VERDICT = 9
INTERVAL = 18
SPEEDUP = 7
MIN_CHANGE = 20
APART_ROWS = 3
"""Rows of the sentence about rates and speedups in a table of the usual width."""


def tried_rows(view: View) -> int:
    """The rows that the whole table takes, without its box; with the rows of its explanation, if it
    needs one."""
    return (
        1 + max(1, len(entries(view))) + APART_ROWS * bool(all_differences(view.runs, view.trials))
    )


def paint_runs(view: View, width: int, height: int, boxed: bool) -> list[Row]:
    """The table; if not all rows fit, the newest rows. The unit is in the head if it is the same
    for all rows, otherwise in each row.

    In a narrow table the gain has no interval; in a very narrow one the rate has no standard
    deviation either.
    """
    if height <= 0:
        return []
    inner, room = inner_width(width, boxed), height - (2 if boxed else 1)
    shown = entries(view)
    used = {entry.unit for entry in shown if entry.unit}
    unit = next(iter(used)) if len(used) == 1 else "rate"
    if len(used) > 1:
        shown = [entry._replace(rate=f"{entry.rate} {entry.unit}".strip()) for entry in shown]
    full = _change_width(shown, unit, True, inner) >= MIN_CHANGE
    # too narrow for the standard deviation
    if not full and _change_width(shown, unit, False, inner) < 12:
        shown = [entry._replace(rate=_mean_alone(entry.rate)) for entry in shown]
    change, rates = _change_width(shown, unit, full, inner), _rates_width(shown, unit)
    gains = INTERVAL if full else SPEEDUP
    rows: list[Row] = []
    if room >= 2:
        head = (
            f"{'#':<{NUMBER}} {fit('change', change)}  {fit(unit, rates, '>')}"
            f"  {'speedup':<{gains}}  {'verdict':<{VERDICT}}"
        )
        rows.append(line(inner, (head, "dim")))
    rows += [
        _row(entry, change, rates, full, inner)
        for entry in shown[-(room - len(rows)) :]
        if room > len(rows)
    ]
    if not shown:
        rows.append(line(inner, ("nothing was tried yet", "dim")))
    why = [
        row
        for sentence in all_differences(view.runs, view.trials)[-1:]
        for row in wrap(sentence, inner)
    ]
    if len(rows) + len(why) <= room:
        rows += [line(inner, (row, "dim")) for row in why]
    return panel("tried", _against_baseline(view.run, inner - 12), rows, width, height, boxed)


def _rates_width(shown: Sequence[RunEntry], unit: str) -> int:
    return max([len(unit), *(len(entry.rate) for entry in shown)])


def _change_width(shown: Sequence[RunEntry], unit: str, full: bool, width: int) -> int:
    """The columns that are left for the change."""
    return (
        width
        - NUMBER
        - 1
        - _rates_width(shown, unit)
        - 2
        - (INTERVAL if full else SPEEDUP)
        - 2
        - VERDICT
        - 2
    )


def _mean_alone(rate: str) -> str:
    """`18 240 ± 210 tokens/s` without the standard deviation; the unit stays."""
    mean, _, rest = rate.partition(" ± ")
    unit = "".join(word for word in rest.split() if not word.isdecimal() and word[:1].isalpha())
    return f"{mean} {unit}".strip()


def _against_baseline(run: Run | None, width: int) -> list[Segment]:
    """The current run compared with its baseline, in the longest wording that fits. Red: the run is
    slower beyond noise."""
    baseline = run.baseline if run is not None else None
    if baseline is None:
        return []
    style = {"slower": "alert", "faster": "good"}.get(baseline.verdict or "", "dim")
    wordings = (baseline.words, baseline.words.split("; ")[0], cut(baseline.short, width))
    return [(next((text for text in wordings if cell_width(text) <= width), ""), style)]


def _row(entry: RunEntry, change: int, rates: int, full: bool, width: int) -> Row:
    style = "good" if entry.verdict == "kept" else entry.style
    text = (
        f"{entry.number:<{NUMBER}} {fit(shorter(entry.change, change), change)}"
        f"  {fit(entry.rate, rates, '>')}  "
    )
    return line(
        width,
        (text, entry.style),
        (fit(entry.gain_text(full), INTERVAL if full else SPEEDUP), style),
        (f"  {entry.verdict:<{VERDICT}}", style),
    )


# --- every figure of a run, one row each ----------------------------------------------------------


def cause_report(run: Run) -> Report:
    """Why a run failed, or why the agent of a job is off, with the last lines of the traceback, and
    where GPU memory ran out; empty where nothing went wrong."""
    report: Report = [labelled("error", visible(run.error), "alert")] if run.error else []
    if run.is_job and run.traceback:
        report.append(labelled("agent", visible(run.unavailable.get(AGENT, "")), "alert"))
    return [
        *report,
        *(Line([(clean(row.expandtabs()), "dim")], indent=2) for row in run.traceback),
        *memory_report(run),
    ]


def _processes(run: Run) -> str:
    """`, of 8 processes` where the rate is the sum over them."""
    return f", of {len(run.ranks)} processes" if run.summary.whole_ratio > 1 else ""


WORTH_SAYING = 0.01
"""The least share of the agent's own time that is named beside a rate."""


def _without_agent(run: Run) -> str:
    """`, without the agent's 1.4 % of the time`."""
    share = run.summary.agent_ratio
    if not run.is_job or share < WORTH_SAYING:
        return ""
    return f", without the agent's {percent(share, 1)} of the time"


def figures(run: Run) -> Report:
    """Return every measured figure of a run with its label."""
    summary = run.summary
    report: Report = []
    rate, _ = run.throughput
    if rate:
        report.append(
            labelled(
                "throughput",
                [
                    (throughput(run), "title"),
                    (f" (n={rate.n}{_processes(run)}{_without_agent(run)})", "dim"),
                    (f"   {share}" if (share := share_text(run)) else "", ""),
                ],
            )
        )
    elif run.is_job and summary.steps:
        reason = run.unavailable.get(
            "workload.samples_per_s", "the number of samples in a batch is not known"
        )
        report.append(labelled("throughput", f"{units.NA}: {visible(reason)}"))
    if run.baseline is not None:
        report.append(labelled("baseline", run.baseline.words))
    report += [*request_report(run), *watched_report(run)]
    if summary.step_time_s is not None:
        p50, p99 = units.p50_p99(summary.step_time_s.p50, summary.step_time_s.p99)
        report.append(
            labelled("step time", f"mean {figure_text(run, 'step_time_s')}   p50 {p50}   p99 {p99}")
        )
    if summary.phases_ratio:
        report.append(labelled("request" if run.serves else "step", breakdown_segments(run)))
    return [*report, *latency_report(run), *figure_rows(run)]


def run_head(run: Run) -> Line:
    """The identity and the duration of a run."""
    change = describe_changes(run.changes) if run.changes else "baseline"
    facts = (
        f"  {run.scenario}  {run.place}  {run.state}"
        f"  ({'' if run.watched else f'{change}; '}{run.duration_s:.1f} s, {work(run)})"
    )
    style = "alert" if run.state == "failed" else ""
    return Line([(f"run {run.id}", "heading"), (facts, style)])
