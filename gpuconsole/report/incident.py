"""What happened around a latency peak, for the terminal."""

from __future__ import annotations

import time

from gpuconsole.diagnosis.incident import LATENCIES
from gpuconsole.model.incident import Incident, Peak
from gpuconsole.model.text import visible
from gpuconsole.model.units import latency
from gpuconsole.report.parts import Report, labelled, text

ASKED = "no latency peak within five minutes of {}"
NONE = (
    "no latency peak in the recording: no mean of ten seconds is half as high again as the 30"
    " minutes before"
)


def incident_report(incident: Incident) -> Report:
    """The peak first, then what changed with it, what did not, and what the recording cannot
    tell."""
    recorded = f"{_moment(incident.begun)} to {_moment(incident.ended)}"
    if incident.peak is None:
        headline = NONE if incident.asked is None else ASKED.format(_moment(incident.asked))
        return [text(headline, "title"), labelled("recorded", recorded), *_lists(incident)]
    causes = [change for change in incident.changes if change.kind == "cause"]
    report: Report = [text(_headline(incident.peak), "title")]
    if not causes:
        report.append(
            text(
                "Nothing that the recording has changed with it, except for what any cause brings."
                if incident.changes
                else "Nothing that the recording has changed with it."
            )
        )
    for label, changes in (
        ("changed", causes),
        ("follows", [change for change in incident.changes if change.kind == "follows"]),
    ):
        for change in changes:
            figures = f": {change.evidence}" if change.evidence else ""
            report.append(
                labelled(
                    label,
                    visible(f"{change.words}{figures}, from {_clock(change.t)}"),
                    "alert" if label == "changed" else "",
                )
            )
    return [*report, *_lists(incident), labelled("recorded", recorded)]


def _lists(incident: Incident) -> Report:
    lists = (
        ("unchanged", ", ".join(incident.unchanged)),
        ("can't tell", "; ".join(incident.cannot_tell)),
    )
    return [
        *(labelled(label, words) for label, words in lists if words),
        *(labelled("note", visible(note), "alert") for note in incident.notes),
    ]


def _headline(peak: Peak) -> str:
    """`TTFT 120 ms -> 2.40 s from 03:14:20 to 03:15:10`."""
    times = " -> ".join(latency(value).strip() for value in (peak.before, peak.value))
    return (
        f"{LATENCIES[peak.latency]} {times} from {_clock(peak.begun)} to {_clock(peak.ended)}"
        " (means of ten seconds; before: the median of 30 minutes)"
    )


def _clock(t: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(t))


def _moment(t: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t))
