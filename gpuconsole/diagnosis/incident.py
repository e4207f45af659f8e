"""What happened at a time, or around a latency peak, of a model server: what changed with it, and
what did not.

A peak is a time in which the mean of a latency (of the requests that ended within ten seconds) is
half as high again as its median over the 30 minutes before, above it by five times the usual
spread and by FLOORS, and above 98 % of the windows before, in two windows or far in one. Earlier
peaks do not count as usual. What changed is compared over the peak and the half minute before it
with the same 30 minutes: a signal counts as changed if it moved by its threshold, and further than
in 19 of 20 windows before.

An outage, a standstill (requests run, and no token comes) and a restart are named with or without a
peak. What begins together is one episode.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal, NamedTuple, cast

from gpuconsole.model.incident import Episode, Incident, IncidentChange, Part, Peak
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
"""What is nearest to the time that was asked about is explained where it is at most this far
away."""
TOGETHER_S = 60.0
"""What begins at most this long before or after an episode is a part of it."""
MIN_WINDOWS = 12
EARLY_S = QUIET_S + MIN_WINDOWS * WINDOW_S
"""In this time after its begin, a recording has no peaks."""
RISE = 1.5
SPREADS = 5.0
FLOORS = {"ttft_s": 0.1, "e2e_s": 0.25, "itl_s": 0.01, "queue_s": 0.1}
"""A user does not notice a smaller rise, whatever its ratio."""
RARE = 0.98
ALONE = 2.0
"""A high window is above this share of the windows before; one alone is a peak where it is above
its limit by this factor."""
MIN_REQUESTS = 2.0
MAX_RISE_WINDOWS = int(BEFORE_S / WINDOW_S)
"""After so many windows a peak may be the new usual level: further peaks upon it are looked for."""
MAX_LEFT_OUT = 1 / 3
"""Earlier peaks are left out of what is usual, unless they are a larger share of it."""
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
    "restart": "restarts", "down": "outages", "standstill": "standstills", "setting": "settings",
    "xid": "errors of a GPU", "lost": "lost GPUs", "process": "other processes on the GPUs",
}  # fmt: skip


KIND_OF = {"down": "outage", "standstill": "standstill", "restart": "restart"}
"""The happenings that are parts of an episode."""
GRAVE = ("outage", "standstill", "restart", "peak")
"""What is named first of several things at one time."""


def explain(history: History, asked: float | None, until: float | None = None) -> Incident:
    """What happened between `asked` and `until` (Unix seconds), or in the episode in which users
    lost most, and what changed with it."""
    incident = Incident(history.begun or 0.0, history.ended, asked, until)
    measured = [
        title
        for name, title in LATENCIES.items()
        if history.per(f"{name}_sum", f"{name}_count", MIN_REQUESTS)
    ]
    incident.cannot_tell = [
        f"{title}: not in the recording" for title in LATENCIES.values() if title not in measured
    ]
    found = episodes(history)
    if asked is None:
        incident.episode = max(found, key=lambda episode: episode.lost_s, default=None)
        incident.others = [episode for episode in found if episode is not incident.episode]
    else:
        _at(history, found, asked, asked if until is None else until, incident)
    if incident.episode is None:
        if (incident.ended if asked is None else asked) < incident.begun + EARLY_S:
            incident.cannot_tell.append(
                f"peaks in the first {EARLY_S / 60:.0f} minutes of a recording: there is too little"
                " before them to compare with"
            )
        return incident
    episode = incident.episode
    incident.peak = max(episode.peaks, key=_lost_s, default=None)
    incident.changes = [
        *_happened(history, episode, incident.found),
        *sorted(_moved(history, episode, found, incident), key=lambda change: change.kind),
    ]
    known = {change.name for change in incident.changes} | _named(episode, incident.found)
    incident.unchanged += [
        words
        for name, words in HAPPENINGS.items()
        if name not in known
        and (name != "process" or history.processes_known)
        and (name != "standstill" or history.counts_progress)
    ]
    if not history.processes_known:
        incident.cannot_tell.append(f"{HAPPENINGS['process']}: not in the recording")
    if not history.counts_progress:
        incident.cannot_tell.append(f"{HAPPENINGS['standstill']}: not in the recording")
    return incident


def _at(
    history: History, found: Sequence[Episode], asked: float, until: float, incident: Incident
) -> None:
    """Return the part of an episode that the asked time lies in; else the nearest part, if it is
    near."""
    parts = [(part, episode) for episode in found for part in episode.parts]

    def away_s(entry: tuple[Part, Episode]) -> float:
        return max(0.0, entry[0].begun - until, asked - entry[0].ended)

    inside = [entry for entry in parts if not away_s(entry)]
    if inside:
        part, incident.episode = min(
            inside, key=lambda entry: (GRAVE.index(entry[0].kind), entry[0].ended - entry[0].begun)
        )
        incident.found = part.kind
    elif any(begun <= asked and until <= ended for begun, ended in history.silences):
        incident.found = "no readings"
    else:
        incident.found = "nothing"
        nearest = min(parts, key=away_s, default=None)
        if nearest is not None and away_s(nearest) <= NEAR_S:
            incident.episode = nearest[1]
    if incident.episode is None or not incident.episode.peaks:
        peaks = [entry for entry in parts if entry[0].kind == "peak"]
        incident.others = [episode for _, episode in sorted(peaks, key=away_s)[:1]]


def episodes(history: History) -> list[Episode]:
    """All that went wrong, in the order of time."""
    parts = [Part("peak", peak.begun, peak.ended, peak=peak) for peak in peaks(history)] + [
        Part(
            cast(Literal["outage", "standstill", "restart"], KIND_OF[event.name]),
            event.t,
            event.ended,
            event.words,
        )
        for event in [*history.events, *history.standstills()]
        if event.name in KIND_OF
    ]
    together: list[list[Part]] = []
    for part in sorted(parts, key=lambda part: (part.begun, GRAVE.index(part.kind))):
        near = [group for group in together if _belongs(part, group)]
        if near:
            min(near, key=lambda group: abs(part.begun - group[0].begun)).append(part)
        else:
            together.append([part])
    return [Episode(tuple(group), max(_part_lost_s(part) for part in group)) for group in together]


def _belongs(part: Part, group: Sequence[Part]) -> bool:
    """Whether a part is of the same episode. Two peaks of one latency never are."""
    if part.peak is not None and any(
        other.peak is not None and other.peak.latency == part.peak.latency for other in group
    ):
        return False
    first = group[0]
    return part.begun <= min(first.ended, first.begun + BEFORE_S) + TOGETHER_S


def _part_lost_s(part: Part) -> float:
    return part.ended - part.begun if part.peak is None else _lost_s(part.peak)


def _lost_s(peak: Peak) -> float:
    """The seconds that a user lost. The time in the queue is a part of TTFT: it counts where it is
    alone."""
    return peak.rise_s * (1e-3 if peak.latency == "queue_s" else 1.0)


def peaks(history: History) -> list[Peak]:
    """The peaks of each latency, in the order of time."""
    found: list[Peak] = []
    for name in LATENCIES:
        found += _of_latency(name, history.per(f"{name}_sum", f"{name}_count", MIN_REQUESTS))
    return sorted(found, key=lambda peak: peak.begun)


def _of_latency(name: str, series: Series) -> Iterator[Peak]:
    earlier: set[int] = set()
    """The windows of the peaks so far: they are not what is usual."""
    high: list[_High] = []
    long: list[_High] = []
    """A peak that has lasted for MAX_RISE_WINDOWS, and the level that it exceeds."""
    long_limit = 0.0
    for window in sorted(series):
        value = series[window]
        if long:
            if value > long_limit:
                long.append((window, value / long_limit, value, long[0][3]))
            elif window - long[-1][0] > JOIN:
                yield _peak(name, long)
                long = []
        if high and window - high[-1][0] > JOIN:
            if _lasts(high):
                yield _peak(name, high)
                earlier.update(range(high[0][0], high[-1][0] + 1))
            high = []
        elif high and window - high[0][0] >= MAX_RISE_WINDOWS:
            # the time since is what is usual from now on
            if not long:
                long, long_limit = high, high[0][2] / high[0][1]
            high = []
        before = sorted(_before(series, high[0][0] if high else window, earlier))
        if len(before) < MIN_WINDOWS:
            continue
        middle = statistics.median(before)
        rare = before[math.ceil(RARE * len(before)) - 1]
        limit = max(RISE * middle, middle + FLOORS[name], rare)
        if value > limit and middle > 0:
            spread = 1.4826 * statistics.median(abs(usual - middle) for usual in before)
            limit = max(limit, middle + SPREADS * spread)
            if value > limit:
                high.append((window, value / limit, value, middle))
    if long:
        yield _peak(name, long)
    if _lasts(high):
        yield _peak(name, high)


def _lasts(high: Sequence[_High]) -> bool:
    """Whether high windows are a peak: two of them, or one that is far above its limit. A few
    requests with long answers can fill one window."""
    return len(high) > 1 or any(above > ALONE for _, above, _, _ in high)


def _peak(name: str, high: Sequence[_High]) -> Peak:
    value = max(value for _, _, value, _ in high)
    return Peak(name, high[0][0] * WINDOW_S, (high[-1][0] + 1) * WINDOW_S, high[0][3], value)


def _before(series: Series, window: int, without: Collection[int] = ()) -> list[float]:
    """The values of the time before a peak that begins in `window`, less those of the windows
    `without`, unless these are too many."""
    first, last = window - int(BEFORE_S / WINDOW_S), window - int(QUIET_S / WINDOW_S)
    known = [number for number in range(first, last) if number in series]
    kept = [number for number in known if number not in without]
    if len(kept) < (1 - MAX_LEFT_OUT) * len(known):
        kept = known
    return [series[number] for number in kept]


def _named(episode: Episode, found: str) -> set[str]:
    """The happenings that the headline names: what happened at the asked time, and all of an
    episode without a peak."""
    kinds = {found} if episode.peaks else {part.kind for part in episode.parts}
    return {name for name, kind in KIND_OF.items() if kind in kinds}


def _happened(history: History, episode: Episode, found: str) -> list[IncidentChange]:
    """Each kind of event from shortly before the episode to its end: the first one, and how
    many."""
    near = [
        event
        for event in sorted([*history.events, *history.standstills()], key=lambda event: event.t)
        if event.ended >= episode.begun - QUIET_S and event.t <= episode.ended
    ]
    firsts = {event.name: event for event in reversed(near)}
    changes = []
    for name in HAPPENINGS:
        if name in firsts and name not in _named(episode, found):
            count, first = sum(event.name == name for event in near), firsts[name]
            lasted = f"{first.ended - first.t:.0f} s" if name in ("down", "standstill") else ""
            evidence = f"{count} times" if count > 1 else lasted
            changes.append(IncidentChange(name, first.words, "cause", first.t, evidence))
    return changes


def _moved(
    history: History, episode: Episode, others: Sequence[Episode], incident: Incident
) -> Iterator[IncidentChange]:
    """The signals that changed; adds the others to `unchanged` or `cannot_tell`."""
    core = min(
        (part for part in episode.parts if bool(episode.peaks) == (part.peak is not None)),
        key=lambda part: list(LATENCIES).index(part.peak.latency) if part.peak else part.begun,
    )
    first, last = int(core.begun // WINDOW_S), math.ceil(core.ended / WINDOW_S)
    lead = int(LEAD_S / WINDOW_S)
    without = {
        window
        for other in others
        if other is not episode and other.ended - other.begun < BEFORE_S
        for window in range(
            int(other.begun // WINDOW_S) - lead, math.ceil(other.ended / WINDOW_S) + 1
        )
    }
    for sign in SIGNS:
        known = False
        changed = None
        recorded = sign.read(history)
        for device, series in recorded.items():
            before = _before(series, first, without)
            during = {
                window: series[window] for window in range(first - lead, last) if window in series
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
            why = "too little of it to compare with" if recorded else "not in the recording"
            incident.cannot_tell.append(f"{sign.subject}: {why}")


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
