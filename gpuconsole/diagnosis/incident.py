"""What happened around a latency peak of a model server: what changed with it, and what did not.

A peak is a time in which the mean of a latency (of the requests that ended within ten seconds) is
half as high again as its median over the 30 minutes before, above it by five times the usual
spread, and above 98 % of the windows before, in two windows or far in one. What changed is compared
over the peak and the half minute before it with the same 30 minutes: a signal counts as changed if
it moved by its threshold, and further than in 19 of 20 windows before.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from gpuconsole.model.incident import Incident, IncidentChange, Peak
from gpuconsole.model.units import plain, quantity
from gpuconsole.session.history import WINDOW_S, History, Series

LATENCIES = {
    "ttft_s": "TTFT",
    "e2e_s": "E2E",
    "itl_s": "time between tokens",
    "queue_s": "time in the queue",
}
BEFORE_S = 1800.0
QUIET_S = 60.0
LEAD_S = 30.0
"""The time before a peak that it is compared with, the last part of it that is left out, and how
long before a peak its cause may begin."""
NEAR_S = 300.0
"""A peak belongs to the time that was asked about where it is at most this far away."""
MIN_WINDOWS = 12
EARLY_S = QUIET_S + MIN_WINDOWS * WINDOW_S
"""In this time after its begin, a recording has no peaks."""
RISE = 1.5
SPREADS = 5.0
RARE = 0.98
ALONE = 2.0
"""A high window is above this share of the windows before; one alone is a peak where it is above
its limit by this factor."""
MIN_REQUESTS = 2.0
JOIN = 3
"""Windows of one peak: at most this many apart."""
BEYOND = 0.95
"""A signal that changed is further than in this share of the windows before."""


_High = tuple[int, float, float, float]
"""A high window: its number, its value over its limit, its value, and the median before."""


MIN_SHARE = 1 / 3
"""Of nine windows in which nothing changed, three are beyond BEYOND with a chance of 1 in 120."""


class Sign(NamedTuple):
    """A signal that may change with a latency: the `subject` of `words`. `ratio`: by which factor
    it must move (below 1: fall); `least`: and by how much at least; `enough`: and beyond which
    value. `read`: its values by window, for each device that has it."""

    name: str
    subject: str
    words: str
    unit: str
    ratio: float
    least: float
    read: Callable[[History], dict[str, Series]]
    kind: Literal["cause", "follows"] = "cause"
    enough: float = -math.inf


def _series_of(
    name: str, make: Callable[[History], Series]
) -> Callable[[History], dict[str, Series]]:
    return lambda history: {name: found} if (found := make(history)) else {}


def _on_gpus(name: str) -> Callable[[History], dict[str, Series]]:
    return lambda history: {
        key.partition(" ")[2]: history.mean(key)
        for key in sorted(history.names)
        if key.partition(" ")[0] == name
    }


def _arrivals(history: History) -> Series:
    """Requests that came per second: those that ended, and the growth of those that run or wait."""
    running, waiting, ended = (
        history.mean("requests_running"),
        history.mean("requests_waiting"),
        history.rate("requests"),
    )
    inside = {window: value + waiting.get(window, 0.0) for window, value in running.items()}
    return {
        window: max(0.0, value + (inside[window] - inside[window - 1]) / WINDOW_S)
        for window, value in ended.items()
        if {window, window - 1} <= inside.keys()
    }


def _mean_tokens(own: str, total: str) -> Callable[[History], Series]:
    """Mean tokens of a request: by the server's own histogram, else tokens over requests."""
    return lambda history: (
        history.per(f"{own}_sum", f"{own}_count", MIN_REQUESTS)
        or history.per(total, "requests", MIN_REQUESTS)
    )


SIGNS = (
    Sign(
        "preemptions",
        "preemptions",
        "preemptions",
        "/s",
        2.0,
        0.05,
        _series_of("", lambda history: history.rate("preemptions")),
    ),
    Sign(
        "kv_cache",
        "KV cache",
        "the KV cache filled",
        "ratio",
        1.1,
        0.05,
        _series_of("", lambda history: history.mean("kv_cache_usage_ratio")),
        enough=0.9,
    ),
    Sign(
        "prompts",
        "prompt lengths",
        "longer prompts",
        "tokens",
        1.4,
        16,
        _series_of("", _mean_tokens("request_prompt_tokens", "prompt_tokens")),
    ),
    Sign(
        "answers",
        "answer lengths",
        "longer answers",
        "tokens",
        1.4,
        16,
        _series_of("", _mean_tokens("request_output_tokens", "generation_tokens")),
    ),
    Sign(
        "arrivals",
        "request rate",
        "more requests came",
        "requests/s",
        1.4,
        0.2,
        _series_of("", _arrivals),
    ),
    Sign(
        "prefix",
        "prefix hits",
        "fewer prefix hits",
        "ratio",
        0.7,
        0.1,
        _series_of("", lambda history: history.per("prefix_hits", "prefix_queries")),
    ),
    Sign(
        "clock",
        "GPU clocks",
        "the clock of a GPU fell",
        "Hz",
        0.9,
        5e7,
        _on_gpus("gpu.sm_clock_hz"),
    ),
    Sign(
        "thermal",
        "heat of the GPUs",
        "a GPU slowed down for heat",
        "ratio",
        1.5,
        0.1,
        _on_gpus("gpu.thermal_time_ratio"),
    ),
    Sign(
        "power",
        "power limits of the GPUs",
        "a GPU was at its power limit",
        "ratio",
        1.5,
        0.2,
        _on_gpus("gpu.power_cap_time_ratio"),
    ),
    Sign(
        "cores",
        "CPU",
        "tasks of the host waited for a CPU",
        "ratio",
        1.5,
        0.15,
        _series_of("", lambda history: history.mean("host.run_queue_delay_ratio")),
    ),
    Sign(
        "memory",
        "memory of the host",
        "the host was short of memory",
        "ratio",
        1.5,
        0.1,
        _series_of("", lambda history: history.mean("host.memory_pressure_ratio")),
    ),
    Sign(
        "disk",
        "storage",
        "tasks of the host waited for storage",
        "ratio",
        1.5,
        0.15,
        _series_of("", lambda history: history.mean("host.io_pressure_ratio")),
    ),
    Sign(
        "queue",
        "queue",
        "requests waited",
        "requests",
        2.0,
        2,
        _series_of("", lambda history: history.mean("requests_waiting")),
        "follows",
    ),
    Sign(
        "running",
        "running requests",
        "more requests ran at a time",
        "requests",
        1.4,
        2,
        _series_of("", lambda history: history.mean("requests_running")),
        "follows",
    ),
)
"""The causes in the order in which they are named, then what follows from any of them. Thresholds:
our choice; a smaller change hardly raises a mean latency by half."""
HAPPENINGS = {
    "restart": "restarts", "down": "outages", "setting": "settings", "xid": "errors of a GPU",
    "lost": "lost GPUs", "process": "other processes on the GPUs",
}  # fmt: skip


def explain(history: History, asked: float | None) -> Incident:
    """What changed around the peak at the time `asked` (Unix seconds), or around the highest
    peak."""
    incident = Incident(history.begun or 0.0, history.ended, asked)
    found = [
        peak
        for peak in peaks(history)
        if asked is None or peak.begun - NEAR_S <= asked <= peak.ended + NEAR_S
    ]
    measured = [
        title
        for name, title in LATENCIES.items()
        if history.per(f"{name}_sum", f"{name}_count", MIN_REQUESTS)
    ]
    incident.cannot_tell = [
        f"{title}: not in the recording" for title in LATENCIES.values() if title not in measured
    ]
    if not found:
        if (incident.ended if asked is None else asked) < incident.begun + EARLY_S:
            incident.cannot_tell.append(
                f"peaks in the first {EARLY_S / 60:.0f} minutes of a recording: there is too little"
                " before them to compare with"
            )
        return incident
    incident.peak = peak = max(found, key=lambda peak: peak.ratio)
    incident.changes = [
        *_happened(history, peak),
        *sorted(_moved(history, peak, incident), key=lambda change: change.kind),
    ]
    known = {change.name for change in incident.changes}
    incident.unchanged += [
        words
        for name, words in HAPPENINGS.items()
        if name not in known and (name != "process" or history.processes_known)
    ]
    if not history.processes_known:
        incident.cannot_tell.append(f"{HAPPENINGS['process']}: not in the recording")
    return incident


def peaks(history: History) -> list[Peak]:
    """The peaks of each latency, in the order of time."""
    found: list[Peak] = []
    for name in LATENCIES:
        found += _of_latency(name, history.per(f"{name}_sum", f"{name}_count", MIN_REQUESTS))
    return sorted(found, key=lambda peak: peak.begun)


def _of_latency(name: str, series: Series) -> Iterator[Peak]:
    high: list[_High] = []
    windows = sorted(series)
    for window in windows:
        before = _before(series, window if not high else high[0][0])
        if len(before) < MIN_WINDOWS:
            continue
        middle = statistics.median(before)
        spread = 1.4826 * statistics.median(abs(value - middle) for value in before)
        if high and window - high[-1][0] > JOIN:
            if _lasts(high):
                yield _peak(name, high)
            high = []
        rare = sorted(before)[math.ceil(RARE * len(before)) - 1]
        limit = max(RISE * middle, middle + SPREADS * spread, rare)
        if series[window] > limit and middle > 0:
            high.append((window, series[window] / limit, series[window], middle))
    if _lasts(high):
        yield _peak(name, high)


def _lasts(high: Sequence[_High]) -> bool:
    """Whether high windows are a peak: two of them, or one that is far above its limit. A few
    requests with long answers can fill one window."""
    return len(high) > 1 or any(above > ALONE for _, above, _, _ in high)


def _peak(name: str, high: Sequence[_High]) -> Peak:
    value = max(value for _, _, value, _ in high)
    return Peak(name, high[0][0] * WINDOW_S, (high[-1][0] + 1) * WINDOW_S, high[0][3], value)


def _before(series: Series, window: int) -> list[float]:
    """The values of the time before a peak that begins in `window`."""
    first, last = window - int(BEFORE_S / WINDOW_S), window - int(QUIET_S / WINDOW_S)
    return [series[number] for number in range(first, last) if number in series]


def _happened(history: History, peak: Peak) -> list[IncidentChange]:
    """Each kind of event from shortly before the peak to its end: the first one, and how many."""
    near = [event for event in history.events if peak.begun - QUIET_S <= event.t <= peak.ended]
    firsts = {event.name: event for event in reversed(near)}
    changes = []
    for name in HAPPENINGS:
        if name in firsts:
            count = sum(event.name == name for event in near)
            changes.append(
                IncidentChange(
                    name,
                    firsts[name].words,
                    "cause",
                    firsts[name].t,
                    f"{count} times" if count > 1 else "",
                )
            )
    return changes


def _moved(history: History, peak: Peak, incident: Incident) -> Iterator[IncidentChange]:
    """The signals that changed; adds the others to `unchanged` or `cannot_tell`."""
    first, last = int(peak.begun // WINDOW_S), int(peak.ended // WINDOW_S)
    for sign in SIGNS:
        known = False
        changed = None
        for device, series in sign.read(history).items():
            before = _before(series, first)
            during = {
                window: series[window]
                for window in range(first - int(LEAD_S / WINDOW_S), last)
                if window in series
            }
            if len(before) < MIN_WINDOWS or not during:
                continue
            known = True
            if (t := _since(sign, before, during)) is not None and changed is None:
                old, new = (
                    statistics.fmean(before),
                    (min if sign.ratio < 1 else max)(during.values()),
                )
                figures = " -> ".join(_figure(value, sign.unit) for value in (old, new))
                changed = IncidentChange(
                    sign.name,
                    f"{sign.words} ({device})" if device else sign.words,
                    sign.kind,
                    t * WINDOW_S,
                    figures,
                )
        if changed is not None:
            yield changed
        elif known and sign.kind == "cause":
            incident.unchanged.append(sign.subject)
        elif sign.kind == "cause":
            incident.cannot_tell.append(f"{sign.subject}: not in the recording")


def _since(sign: Sign, before: Sequence[float], during: Series) -> int | None:
    """The first window in which the signal was beyond its threshold; None where it was so in less
    than MIN_SHARE of the windows of the peak."""
    usual, ordered = statistics.fmean(before), sorted(before)
    falls = sign.ratio < 1
    edge = ordered[
        math.floor((1 - BEYOND) * len(ordered))
        if falls
        else min(len(ordered) - 1, math.ceil(BEYOND * len(ordered)) - 1)
    ]

    def beyond(value: float) -> bool:
        if falls:
            return value < usual * sign.ratio and usual - value >= sign.least and value <= edge
        return (
            value > usual * sign.ratio
            and value - usual >= sign.least
            and value >= edge
            and value >= sign.enough
        )

    windows = [window for window, value in during.items() if beyond(value)]
    return min(windows) if len(windows) >= max(1, MIN_SHARE * len(during)) else None


def _figure(value: float, unit: str) -> str:
    return (
        quantity(value, unit)
        if unit in ("ratio", "Hz")
        else f"{plain(value)} {unit}"
        if not unit.startswith("/")
        else f"{plain(value)}{unit}"
    )
