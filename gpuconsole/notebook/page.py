"""A session as a small table in HTML, for the output of a cell: what limits the training, the step
breakdown, throughput, findings, trials.

No script, no style sheet and no request. Every text is escaped: names of the program may hold
anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from gpuconsole.mcp.answers import Conclusion, Status, SuggestedChange, TrialAnswer
from gpuconsole.model import units
from gpuconsole.model.finding import HEALTHY, stake_of
from gpuconsole.model.knobs.catalogue import describe_changes
from gpuconsole.model.text import clean
from gpuconsole.report.run.breakdown import LOOKS, NAMES, visible_parts

COLORS = {
    "wait": "#e3a21a",
    "work": "#7b93ad",
    "forward": "#5f87d7",
    "backward": "#875faf",
    "optimizer": "#af87af",
}
"""Those of the page to share (report/share/page.html), by the style of a part."""
DIM = "opacity:.7"


class SessionPage:
    """A session as it was at one moment, for IPython."""

    def __init__(self, status: Status, lines: Sequence[str]) -> None:
        self._status, self._lines = status, lines

    def __repr__(self) -> str:
        return f"<gpuconsole session: {clean(self._status.answer)}>"

    def _repr_html_(self) -> str:
        return session_html(self._status, self._lines)


def session_html(status: Status, lines: Sequence[str] = ()) -> str:
    """`lines`: what to read beside it, at the end."""
    rows = [
        f'<div style="font-weight:600">{_text(status.answer)}</div>',
        _bar(status),
        _figures(status),
    ]
    table = [_finding(finding) for finding in status.findings]
    table += (
        [_row("kept", describe_changes(status.kept_changes), status.gain_since_start)]
        if status.kept_changes
        else []
    )
    table += [_trial(status.trial)] if status.trial is not None else []
    if any(table):
        rows.append(
            f'<table style="border-collapse:collapse;margin:4px 0">{"".join(table)}</table>'
        )
    rows += [f'<div style="{DIM}">{_text(line)}</div>' for line in lines]
    return f'<div class="gpuconsole" style="max-width:60em;line-height:1.5">{"".join(rows)}</div>'


def _text(text: str) -> str:
    return escape(clean(text))


def _bar(status: Status) -> str:
    """The step breakdown as a bar, and its legend."""
    parts = visible_parts(status.step_breakdown_ratio)
    if not parts:
        return ""
    pieces, legend = [], []
    for name, ratio in parts:
        color, label = (
            COLORS[LOOKS[name][1]],
            f"{NAMES.get(name, name)} {units.percent(ratio).strip()}",
        )
        pieces.append(
            f'<div style="width:{100 * ratio:.1f}%;background:{color}"'
            f' title="{escape(label)}"></div>'
        )
        legend.append(
            f'<span style="white-space:nowrap"><span style="color:{color}">&#9632;</span>'
            f" {escape(label)}</span>"
        )
    return (
        '<div style="display:flex;gap:1px;height:14px;margin:4px'
        f' 0">{"".join(pieces)}</div><div>{" &ensp; ".join(legend)}</div>'
    )


def _figures(status: Status) -> str:
    """Throughput, step time, device and the state of the diagnosis in one line."""
    shown = []
    if status.throughput is not None:
        shown.append(f"{units.rate(status.throughput.mean).strip()} {status.throughput.unit}")
    if status.step_time is not None:
        shown.append(f"step {units.duration(status.step_time.p50_s).strip()}")
    if status.attainable_ratio is not None:
        shown.append(f"{units.percent(status.attainable_ratio).strip()} of attainable")
    shown += [
        text
        for text in (
            status.device,
            f"diagnosis: {status.diagnosis}" if status.diagnosis else "",
            status.measuring,
        )
        if text
    ]
    return f'<div style="{DIM}">{_text(" · ".join(shown))}</div>' if shown else ""


def _finding(finding: Conclusion) -> str:
    share = (
        (
            f"{units.percent(finding.recoverable_ratio).strip()}"
            f" {stake_of('memory' if finding.of == 'memory' else 'time', finding.alternative_to)}"
        )
        if finding.recoverable_ratio
        else "nothing to recover"
        if finding.rule.endswith(HEALTHY)
        else "a note"
    )
    first = next((change for change in finding.suggestions), None)
    return _row(
        share,
        f"{finding.title} ({finding.rule}, {finding.confidence} confidence)",
        _suggestion(first) if first is not None else "",
    )


def _suggestion(change: SuggestedChange) -> str:
    predicted = change.predicted_speedup
    gain = (
        f": {units.interval(predicted.low, predicted.high)} predicted"
        if predicted is not None
        else ""
    )
    if (tried := change.tried) is not None:
        gain = f": {units.measured(tried.estimate, tried.low, tried.high)} measured"
    return f"{describe_changes(change.changes)}{gain}" + (
        f" ({change.not_possible})" if change.not_possible else ""
    )


def _trial(trial: TrialAnswer) -> str:
    speedup = trial.speedup
    measured = (
        units.measured(speedup.estimate, speedup.low, speedup.high)
        if speedup is not None
        else f"{trial.blocks} blocks"
    )
    return _row(
        "trial", describe_changes(trial.changes), f"{trial.verdict or trial.state}, {measured}"
    )


def _row(*cells: str) -> str:
    style = "text-align:left;padding:1px 14px 1px 0;vertical-align:top"
    return (
        "<tr>"
        f"{''.join(f'<td style={chr(34)}{style}{chr(34)}>{_text(cell)}</td>' for cell in cells)}</"
        "tr>"
    )
