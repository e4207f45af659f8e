"""The flags of a watched server that are worth a restart, for the terminal."""

from __future__ import annotations

from gpuconsole.diagnosis.advice import Advice, Advised
from gpuconsole.model import units
from gpuconsole.model.knobs.catalogue import describe_changes
from gpuconsole.model.run import Run
from gpuconsole.model.text import visible
from gpuconsole.report.parts import Report, labelled, text

MEETS = {"yes": "meets the objective", "perhaps": "may meet the objective", "no": "misses the objective", "unknown": "no prediction"}
COARSE = "predicted by a model of the batch: it ranks changes and proves none"
JUDGE = "record before and after (--record FOLDER, some hours each), then: gpuconsole explain FOLDER --restart"


def advice_report(advised: Advised, run: Run, command: str) -> Report:
    """The objective and what holds now, then each change, the best first, and the command of the restart."""
    report: Report = [text("advice", "title")]
    for bound, value in advised.now:
        present = "not reported" if value is None else units.latency(value).strip()
        kept = "" if value is None else ": kept" if value <= bound.limit_s else ": missed"
        report.append(labelled("objective", f"{bound.name} below {units.latency(bound.limit_s).strip()}; now {present}{kept}"))
    if advised.lacks:
        report.append(labelled("can't tell", f"the model predicts nothing: {advised.lacks}"))
    for number, entry in enumerate(advised.advice, 1):
        report.append(labelled(f"{number}.", f"{describe_changes(entry.changes, run.settings)}: {_predicted(entry, bool(advised.now))}"))
        report.append(labelled("", visible(entry.why)))
    if not advised.advice:
        report.append(labelled("", "no change of a flag is worth a restart, as far as the figures tell"))
    if any(entry.tokens for entry in advised.advice):
        report.append(labelled("note", COARSE))
    if command:
        report += [labelled("restart", visible(command)), labelled("then", JUDGE)]
    return report


def _predicted(entry: Advice, objective: bool) -> str:
    parts = [MEETS[entry.meets]] if objective or entry.tokens is None else []
    for bound, present, low, high in entry.bounds:
        parts.append(f"{bound.name} {units.latency(present).strip()} -> {units.latency(low).strip()} to {units.latency(high).strip()}")
    if entry.tokens is not None:
        parts.append(f"tokens/s {units.interval(*entry.tokens)}")
    return "; ".join(parts)
