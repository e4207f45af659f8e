"""What happened at a time, or around a latency peak, for the terminal."""

from __future__ import annotations

import time

from gpuconsole.diagnosis.incident import LATENCIES
from gpuconsole.model.incident import Episode, Incident
from gpuconsole.model.text import visible
from gpuconsole.model.units import latency
from gpuconsole.report.parts import Report, labelled, text

NONE = (
    "no latency peak, outage, standstill or restart in the recording: no mean of ten seconds is"
    " half as high again as the 30 minutes before"
)
NOTHING = "no latency peak, outage, standstill or restart at {}"
NO_READINGS = "no reading of the server at {}: the recording has a gap"
HAPPENED = ("outage", "standstill", "restart")
MEANS = " (means of ten seconds; before: the median of 30 minutes)"
MAX_LISTED = 30


def incident_report(incident: Incident) -> Report:
    """What happened first, then what changed with it, what did not, and what the recording cannot
    tell."""
    recorded = labelled("recorded", f"{_moment(incident.begun)} to {_moment(incident.ended)}")
    absent = {"nothing": NOTHING, "no readings": NO_READINGS}.get(incident.found)
    asked = "" if incident.asked is None else _moment(incident.asked)
    report: Report = [text(absent.format(asked), "title")] if absent else []
    if incident.episode is None:
        report = report or [text(NONE, "title")]
        return [*report, *_others(incident), *_lists(incident), recorded]
    headlines = _headlines(incident, incident.episode)
    if absent:
        report.append(labelled("nearest", visible(headlines[0])))
    else:
        report.append(text(visible(headlines[0]), "title"))
    report += [labelled("with it", visible(line)) for line in headlines[1:]]
    causes = [change for change in incident.changes if change.kind == "cause"]
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
    return [*report, *_lists(incident), *_others(incident), recorded]


def _others(incident: Incident) -> Report:
    """One line for each other episode, the newest last; of too many the largest."""
    largest = sorted(incident.others, key=lambda episode: -episode.lost_s)[:MAX_LISTED]
    label = "also" if incident.asked is None else "nearest peak"
    report: Report = [
        labelled(label, visible("; ".join([*_of_peaks(episode, short=True), *_of_parts(episode)])))
        for episode in incident.others
        if episode in largest
    ]
    if more := len(incident.others) - len(largest):
        report.append(labelled(label, f"{more} smaller ones: --json lists all"))
    return report


def _lists(incident: Incident) -> Report:
    lists = (
        ("unchanged", ", ".join(incident.unchanged)),
        ("can't tell", "; ".join(incident.cannot_tell)),
    )
    return [
        *(labelled(label, words) for label, words in lists if words),
        *(labelled("note", visible(note), "alert") for note in incident.notes),
    ]


def _headlines(incident: Incident, episode: Episode) -> list[str]:
    """What happened at the asked time, then the peaks: `TTFT 120 ms -> 2.40 s from 03:14:20 to
    03:15:10`. Where an episode has none, its parts."""
    peaks = _of_peaks(episode, short=False)
    asked = _of_parts(episode, incident.found) if incident.found in HAPPENED else []
    return [*asked, *peaks] or _of_parts(episode)


def _of_peaks(episode: Episode, *, short: bool) -> list[str]:
    """The peaks of the episode in one line, the one in which users lost most first."""
    peaks = sorted(episode.peaks, key=lambda peak: -peak.rise_s)
    if not peaks:
        return []
    rises = ", ".join(
        f"{LATENCIES[peak.latency]} "
        + " -> ".join(latency(value).strip() for value in (peak.before, peak.value))
        for peak in peaks
    )
    begun, ended = min(peak.begun for peak in peaks), max(peak.ended for peak in peaks)
    return [f"{rises} {_span(begun, ended, dated=short)}{'' if short else MEANS}"]


def _of_parts(episode: Episode, kind: str = "") -> list[str]:
    return [
        f"{part.words} {_span(part.begun, part.ended, dated=True)}"
        for part in episode.parts
        if part.peak is None and kind in ("", part.kind)
    ]


def _span(begun: float, ended: float, *, dated: bool) -> str:
    seconds = f" ({ended - begun:.0f} s)" if dated else ""
    return f"from {(_moment if dated else _clock)(begun)} to {_clock(ended)}{seconds}"


def _clock(t: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(t))


def _moment(t: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t))
