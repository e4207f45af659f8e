"""The table of runs, with the trials that were turned down in between."""

from __future__ import annotations

from typing import NamedTuple

from gpuconsole.model.experiments.trial import Trial
from gpuconsole.model.knobs.catalogue import describe_changes
from gpuconsole.model.run import Run
from gpuconsole.report import units as format
from gpuconsole.report.cells import Row, Segment, cell_width, cut, fit, inner_width, line, panel
from gpuconsole.report.facts import shorter
from gpuconsole.session.api import View


class Entry(NamedTuple):
    number: str
    change: str
    rate: str
    gain: float | None
    verdict: str
    style: str = ""


def entries(view: View) -> list[Entry]:
    """Runs in order; after each the trials on it that were not kept."""
    rows: list[Entry] = []
    before: Run | None = None
    for run in view.runs:
        rows.append(_run(run, before, view.trials))
        rows += [_trial(trial, run) for trial in view.trials if trial.baseline_run == run.id and not trial.kept]
        before = run
    return rows


def _run(run: Run, before: Run | None, trials: tuple[Trial, ...]) -> Entry:
    rate, _ = run.throughput
    text = format.spread(rate.mean, rate.std if rate.n > 1 else None, 0) if rate else format.NA
    live = {"starting": "starting", "running": "running", "failed": "failed", "stopped": "stopped"}.get(run.state, "")
    style = "alert" if run.state == "failed" else "title" if run.state in ("starting", "running") else ""
    if before is None or not _continues(run, before):
        return Entry(run.id, f"baseline {run.scenario}" if before else "baseline", text, None, live, style)
    changes = run.changes or {name: value for name, value in run.knobs.items() if before.knobs.get(name) != value}
    proof = next((trial for trial in trials if trial.kept and trial.baseline_run == before.id and trial.changes == changes), None)
    if proof is not None:
        return Entry(
            run.id, describe_changes(changes, before.knobs), text, proof.speedup.estimate if proof.speedup else None, "kept", style
        )
    return Entry(run.id, describe_changes(changes, before.knobs), text, None, live or "unproven", style)


def _continues(run: Run, before: Run) -> bool:
    return bool(run.changes) and run.scenario == before.scenario


def _trial(trial: Trial, run: Run) -> Entry:
    gain = trial.speedup.estimate if trial.speedup else None
    if trial.state == "running":
        return Entry("–", describe_changes(trial.changes, run.knobs), "", gain, "on trial", "")
    verdict = "failed" if trial.state == "failed" else "reverted"
    return Entry("–", describe_changes(trial.changes, run.knobs), "", gain, verdict, "dim")


def paint_runs(view: View, width: int, height: int, boxed: bool) -> list[Row]:
    """The newest rows when not all fit."""
    if height <= 0:
        return []
    inner, room = inner_width(width, boxed), height - (2 if boxed else 1)
    found = entries(view)
    numbers = max([1, *(len(entry.number) for entry in found)])
    unit = view.run.throughput[1] if view.run else "rate"
    rates = max([len(unit), *(len(entry.rate) for entry in found)])
    change = inner - numbers - rates - 5 - 8 - 8
    if change < 12:  # too narrow for the spread: the mean alone
        found = [entry._replace(rate=entry.rate.split(" ± ")[0]) for entry in found]
        rates = max([len(unit), *(len(entry.rate) for entry in found)])
        change = inner - numbers - rates - 5 - 8 - 8
    rows: list[Row] = []
    if room >= 3:
        head = f"{'#':<{numbers}}  {fit('change', change)}  {fit(unit, rates, '>')}  {'gain':>5}  {'verdict':<8}"
        rows.append(line(inner, (head, "dim")))
    rows += [_row(entry, numbers, change, rates, inner) for entry in found[-(room - len(rows)) :] if room > len(rows)]
    if not found:
        rows.append(line(inner, ("no runs yet", "dim")))
    return panel("Runs", _against_baseline(view.run, inner - 12), rows, width, height, boxed)


def _against_baseline(run: Run | None, width: int) -> list[Segment]:
    """The current run beside its baseline: all of it where there is room; red only for what is slower beyond noise."""
    found = run.baseline if run is not None else None
    if found is None:
        return []
    style = {"slower": "alert", "faster": "good"}.get(found.verdict or "", "dim")
    wordings = (found.words, found.words.split("; ")[0], cut(found.short, width))
    return [(next((text for text in wordings if cell_width(text) <= width), ""), style)]


def _row(entry: Entry, numbers: int, change: int, rates: int, width: int) -> Row:
    gain = format.speedup(entry.gain) if entry.gain is not None else " " * 5
    verdict = "good" if entry.verdict == "kept" else "alert" if entry.verdict == "failed" and entry.style == "alert" else entry.style
    text = f"{entry.number:<{numbers}}  {fit(shorter(entry.change, change), change)}  {fit(entry.rate, rates, '>')}  "
    return line(width, (text, entry.style), (gain, "good" if entry.verdict == "kept" else entry.style), (f"  {entry.verdict:<8}", verdict))
