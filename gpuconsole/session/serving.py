"""A serving run while it is measured: its requests, the state of the load generator, and the
reports of the server."""

from __future__ import annotations

import copy
import itertools
import statistics
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from gpuconsole.model.finding import Signal
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import COUNTS, SETTLING, Step, Summary
from gpuconsole.model.serving import Objective, Request
from gpuconsole.session.figures.breakdown import (
    REQUEST_TIMES,
    itl_pairs,
    request_shares,
    request_times,
    server_shares,
    summarize_serving,
)
from gpuconsole.session.figures.distributions import Latencies, of_histogram, percentile
from gpuconsole.session.figures.totals import Totals
from gpuconsole.session.server_signals import (
    OUTCOMES,
    ServerProgress,
    ServerReadings,
    outcomes,
    server_signals,
)
from gpuconsole.wire.events import Count, Requests, ServerState, total_of

MAX_OUTAGES = 1000
MAX_REQUESTS = 20_000
MAX_GAPS = 200_000
"""Gaps between chunks that are kept one by one. While a run has fewer, percentiles of ITL are
exact."""
LIVE_GAPS = 4000
LIVE_REQUESTS = 1000
MAX_STATES = 4000
WHOLE_STATES, FIRST_STATES, GRID_S = 300, 120, 60.0
"""Reports of a watched server that keep their counters and histograms: the newest, the first of the
run, and of the others one a minute."""
MAX_RESTARTS = 1000
PERIODS = 5
CLIENT = "load generator"
NOT_ANSWERED = {"requests_invalid": "refused with HTTP 4xx"}
OF_HISTOGRAMS = ("ttft_s", "itl_s", "e2e_s")
"""The figures that come from a server's histograms in a run that only watches."""
DRAIN_S = 2.0
"""For this time after a probe or a trial, requests of its load still end, and the server's counters
still include them."""


class Outage(msgspec.Struct, frozen=True):
    """A time without an answer of the server, in seconds on the clock of the events. `ended`: None
    while the outage lasts. `why`: the cause."""

    begun: float
    ended: float | None
    why: str


class Outages:
    """The outages of a run, from the messages of the load generator."""

    def __init__(self) -> None:
        self._all: deque[Outage] = deque(maxlen=MAX_OUTAGES)
        self._until = 0.0
        """The time of the newest message."""

    @property
    def current(self) -> Outage | None:
        """The outage that lasts now; None while the server answers."""
        return self._all[-1] if self._all and self._all[-1].ended is None else None

    @property
    def last(self) -> Outage | None:
        """The newest outage, present or past."""
        return self._all[-1] if self._all else None

    def add(self, event: Requests) -> None:
        self._until = event.t
        now = self.current
        if event.down and now is None:
            before = self._all[-1].ended if self._all else None
            begun = event.down_since or event.t
            self._all.append(Outage(max(begun, before or begun), None, event.down))
        elif now is not None:
            self._all[-1] = (
                Outage(now.begun, None, event.down)
                if event.down
                else Outage(now.begun, event.t, now.why)
            )

    def copied(self) -> Outages:
        copied = Outages()
        copied._all, copied._until = self._all.copy(), self._until
        return copied

    def overlap_s(self, begun: float, ended: float) -> float:
        """The seconds between `begun` and `ended` in which the server did not answer."""
        parts = (
            min(ended, outage.ended if outage.ended is not None else ended)
            - max(begun, outage.begun)
            for outage in self._all
        )
        return sum(part for part in parts if part > 0)

    def total_s(self, since: float) -> float:
        """The seconds of all outages after `since`, up to the newest message."""
        return self.overlap_s(since, self._until)

    def ratio(self, since: float) -> float:
        """The share of the time after `since`, up to the newest message, in which the server did
        not answer."""
        return self.total_s(since) / (self._until - since) if self._until > since else 0.0

    def count(self, since: float) -> int:
        """The outages that end after `since`, or last."""
        return sum(outage.ended is None or outage.ended > since for outage in self._all)

    def answered(self, ticks: Sequence[Step]) -> list[Step]:
        """The ticks in which the server answered all the time."""
        return (
            [tick for tick in ticks if self.overlap_s(tick.t - tick.wall_s, tick.t) <= 0]
            if self._all
            else list(ticks)
        )


class Gained(NamedTuple):
    """The increase of each total and of each bucket of a histogram, over `wall_s` seconds."""

    totals: dict[str, float]
    buckets: dict[tuple[str, float], float]
    wall_s: float


class ServingRecord:
    """The requests of the ordinary run (not of trials, not of the warm-up), newest last."""

    def __init__(self, watched: bool = False) -> None:
        """`watched`: the load is that of other clients, so everything comes from the server's own
        reports."""
        self.watched = watched
        self.requests: deque[Request] = deque()
        self.states: deque[ServerState] = deque(maxlen=MAX_STATES)
        self.load: deque[Requests] = deque(maxlen=MAX_STATES)
        self.failures: Counter[str] = Counter()
        self.answered = 0
        """Answered requests of the whole run. `requests` holds only the newest."""
        self.in_one_piece = 0
        """Answers that came in one piece: their TTFT and ITL are not known."""
        self.failed_in_outages = 0
        """Counted requests that failed while the server did not answer. They are in `failures`
        too."""
        self.uncounted: Counter[str] = Counter()
        """Requests of the warm-up and of the times after a change, by error; an empty error:
        answered."""
        self.counted_from: float | None = None
        """The time of the message with the first counted request; None during the warm-up."""
        self.outages = Outages()
        self.passed = Totals()
        """The sums of the steady ticks that are no longer stored; of all such ticks, while no tick
        is steady. The ticks in which the server did not answer are not in them."""
        self._gaps = 0
        self._itl = Latencies()
        self._spilled = False
        self._probes: list[tuple[float, float]] = []
        self.progress = ServerProgress()
        self._restarts: deque[float] = deque(maxlen=MAX_RESTARTS)
        """The times of the first report after each restart of the server."""
        self._again: dict[float, frozenset[str]] = {}
        """The totals that began again at 0, by the time of the first report after that."""
        self._latest: ServerState | None = None
        """The newest report, with the newest value of each total that a later report lacks."""
        self._passed = 0
        """How many reports are no longer among the newest."""
        self._whole_t = 0.0
        """The time of the last of them that has its counters."""

    @staticmethod
    def counted(event: Requests) -> list[Request]:
        """The requests of the ordinary load: not of a trial's other side, of a probe, or of the
        time after a change."""
        return [
            request for request in event.requests if request.arm == 0 and request.kind == COUNTS
        ]

    def copied(self) -> ServingRecord:
        """A copy of the present record; later messages do not change the copy."""
        copied = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, deque | list | dict):
                setattr(copied, name, value.copy())
        copied.outages = self.outages.copied()
        return copied

    def add_requests(self, event: Requests) -> None:
        counted = self.counted(event)
        self.outages.add(event)
        self.uncounted.update(
            request.error
            for request in event.requests
            if request.arm == 0 and request.kind == SETTLING
        )
        if counted and self.counted_from is None:
            self.counted_from = event.t
        for request in counted:
            if request.error:
                self.failures[request.error] += 1
                self.failed_in_outages += bool(event.down)
            else:
                self.answered += 1
                self.in_one_piece += request.ttft_s is None
            self.requests.append(request)
            self._gaps += len(request.gaps)
            for value, weight in itl_pairs([request]):
                self._itl.add(value, weight)
        while len(self.requests) > MAX_REQUESTS or (
            self._gaps > MAX_GAPS and len(self.requests) > 1
        ):
            self._gaps -= len(self.requests.popleft().gaps)
            self._spilled = True
        self.load.append(msgspec.structs.replace(event, requests=[]))

    def add_state(self, event: ServerState) -> None:
        before, self._latest = self._latest, event
        if "replicas" in event.gauges:
            if before is not None and "replicas" not in before.gauges:
                self._forget_totals()
        elif before is not None:
            if again := event.began_again(before):
                self._again[event.t] = again
                if len(self._again) > MAX_RESTARTS:
                    del self._again[next(iter(self._again))]
            if event.restarted_since(before):
                self._restarts.append(event.t)
            else:
                totals = {**before.totals, **event.totals}
                self._latest = msgspec.structs.replace(event, totals=totals)
        if self.is_own(event.t):
            self.progress = self.progress.after(event)
        self.states.append(event)
        self._thin_out()

    def _thin_out(self) -> None:
        """Drop the counters of the report that has just become old: they take most of the memory,
        and an increase needs the first and the last of them only."""
        place = len(self.states) - WHOLE_STATES - 1
        if place < 0 or not self.watched:
            return
        self._passed += 1
        state, following = self.states[place], self.states[place + 1]
        if (
            self._passed <= FIRST_STATES
            or state.t - self._whole_t >= GRID_S
            or not self._again.keys().isdisjoint((state.t, following.t))
        ):
            self._whole_t = state.t
        else:
            self.states[place] = msgspec.structs.replace(state, totals={}, buckets={})

    def _is_whole(self, state: ServerState) -> bool:
        return bool(state.totals) or not self.states[-1].totals

    def _forget_totals(self) -> None:
        """Drop what the totals have told so far: several servers have told it, each its own."""
        for place, state in enumerate(self.states):
            self.states[place] = msgspec.structs.replace(state, totals={}, buckets={})
        self._restarts.clear()
        self._again.clear()

    def probed(self, begun: float, ended: float) -> None:
        """Exclude the server's reports between these times: they are about another load."""
        self._probes.append((begun, ended))

    def recent(self, since: float, most_gaps: int = MAX_GAPS) -> list[Request]:
        """Requests that ended after `since`, oldest first. If they have more than `most_gaps` gaps,
        only the newest requests."""
        newest: list[Request] = []
        gaps = 0
        for request in reversed(self.requests):
            gaps += len(request.gaps)
            if request.t < since or (gaps > most_gaps and newest):
                break
            newest.append(request)
        return newest[::-1]

    def summary(self, ticks: Sequence[Step], objective: Objective | None, live: bool) -> Summary:
        """The summary over the steady `ticks`. A live summary uses only the last LIVE_REQUESTS
        requests and the last LIVE_GAPS gaps."""
        since = ticks[0].t - ticks[0].wall_s if ticks else float("inf")
        if self.watched:
            return self._watched_summary(ticks, since, Totals() if live else self.passed)
        requests = self.recent(since)
        if live:
            summary = summarize_serving(
                requests[-LIVE_REQUESTS:], ticks, objective, self.recent(since, LIVE_GAPS)
            )
            summary.requests = sum(1 for request in requests if not request.error)
            summary.failed_requests = len(requests) - summary.requests
        else:
            summary = summarize_serving(requests, ticks, objective, earlier=self.passed)
        if self._spilled and not live:
            summary.itl_s = self._itl.distribution()
        summary.phases_ratio = request_shares(requests, self.means(since))
        summary.failures = dict(self.failures.most_common(5))
        summary.client_runq_ratio = self.runq_ratio(since)
        return summary

    def _watched_summary(self, ticks: Sequence[Step], since: float, earlier: Totals) -> Summary:
        """The same from the server's own reports. What the server does not count is None."""
        summary = summarize_serving([], ticks, None, earlier=earlier)
        gained, buckets, _ = self._gained(since)
        totals = self.states[-1].totals if self.states else {}
        if "generation_tokens" not in totals:
            summary.tokens_per_s = None
        if "requests" not in totals:
            summary.requests_per_s = None
        summary.samples_per_s = None
        summary.requests = round(gained.get("requests", 0.0))
        ends = self.outcomes(since)
        not_answered = {
            NOT_ANSWERED.get(name, name.removeprefix("requests_")): round(ends[name])
            for name in OUTCOMES[1:]
        }
        summary.failures = {
            f"{name} (by the server's count)": count
            for name, count in not_answered.items()
            if count
        }
        summary.failed_requests = sum(not_answered.values())
        for name in OF_HISTOGRAMS:
            setattr(
                summary,
                name,
                of_histogram(
                    name,
                    gained,
                    {bound: count for (of, bound), count in buckets.items() if of == name},
                ),
            )
        means = self.means(since)
        if {"queue_s", "prefill_s", "decode_s"} <= means.keys() and means.get("e2e_s"):
            summary.phases_ratio = server_shares(means)
        return summary

    def runq_ratio(self, since: float) -> float | None:
        """The share of the time after `since` in which the load generator was ready to run and
        waited for a CPU; None where it is not known."""
        waited = wall = 0.0
        for before, after in itertools.pairwise(
            tick for tick in self.load if tick.t >= since and tick.runq_s is not None
        ):
            if self.is_own(before.t) and self.is_own(after.t):
                waited += (after.runq_s or 0.0) - (before.runq_s or 0.0)
                wall += after.t - before.t
        return max(0.0, waited / wall) if wall > 0 else None

    @property
    def dropped(self) -> int:
        """Messages of the load generator that were lost."""
        return self.load[-1].dropped if self.load else 0

    @property
    def period_s(self) -> float:
        """The usual seconds between two reports of the server: the median of the last gaps. 0
        before there are two reports."""
        last = list(itertools.islice(reversed(self.states), PERIODS + 1))
        return (
            statistics.median(later.t - earlier.t for later, earlier in itertools.pairwise(last))
            if len(last) > 1
            else 0.0
        )

    @property
    def restarts(self) -> int:
        """How often the totals of the server began again."""
        return sum(map(self.is_own, self._restarts))

    def outcomes(self, since: float) -> dict[str, float]:
        """How many requests ended after `since`, by the server's own counts, and how."""
        gained = self._gained(since).totals
        return outcomes([state for state in self.states if state.t >= since], gained)

    @property
    def several_servers(self) -> bool:
        """Whether several servers answer behind the address, so that no total is known."""
        return bool(self.states) and "replicas" in self.states[-1].gauges

    def means(self, since: float) -> dict[str, float]:
        """Means that the server reports, over the requests, tokens and iterations that it finished
        after `since`."""
        gained = self._gained(since).totals
        counts = {
            key.removesuffix("_count"): count
            for key, count in gained.items()
            if key.endswith("_count") and count > 0
        }
        return {name: gained.get(f"{name}_sum", 0.0) / count for name, count in counts.items()}

    def rates(self, since: float) -> dict[str, float]:
        """The increase per second of each total of the server after `since`."""
        gained, _, wall = self._gained(since)
        return {name: amount / wall for name, amount in gained.items()} if wall > 0 else {}

    def signals(self, since: float, knobs: Knobs, facts: dict[str, float]) -> dict[str, Signal]:
        """The signals that rules read, from the requests and states after `since`. While the server
        does not answer: none, because the last reports describe another situation."""
        if self.outages.current is not None:
            return {}
        client = {} if self.watched else _client_signals(self, since, knobs)
        return client | self._server_signals(since, knobs, facts)

    def _server_signals(
        self, since: float, knobs: Knobs, facts: dict[str, float]
    ) -> dict[str, Signal]:
        states = [state for state in self.states if state.t >= since and self.is_own(state.t)]
        if len(states) < 2:
            return {}
        gained, buckets, wall = self._gained(since)
        return server_signals(
            ServerReadings(states, gained, buckets, wall, self.progress), knobs, facts
        )

    def _gained(self, since: float) -> Gained:
        """The increase of each count since the last report before `since`. Times of other loads and
        outages are excluded.

        Ignore old reports without their counters: an increase begins with a report that has
        counters, up to GRID_S before `since`."""
        states = [state for state in self.states if self._is_whole(state)]
        before = sum(1 for _ in itertools.takewhile(lambda state: state.t < since, states))
        gains: Counter[Count] = Counter()
        wall = 0.0
        for own, stretch in itertools.groupby(
            itertools.islice(states, max(0, before - 1), None),
            lambda state: self.is_own(state.t),
        ):
            reports = list(stretch)
            if not own:
                continue
            wall += (
                reports[-1].t - reports[0].t - self.outages.overlap_s(reports[0].t, reports[-1].t)
            )
            first = reports[0].counts()
            for earlier, later in itertools.pairwise(reports) if self._again else ():
                if again := self._again.get(later.t):
                    ended = {**first, **earlier.counts()}
                    ended = {key: ended[key] for key in ended if total_of(key) in again}
                    gains.update(_increase(first, ended))
                    first |= dict.fromkeys(ended, 0.0)
            gains.update(_increase(first, reports[-1].counts()))
        return Gained(
            {key: count for key, count in gains.items() if isinstance(key, str)},
            {key: count for key, count in gains.items() if not isinstance(key, str)},
            wall,
        )

    def is_own(self, t: float) -> bool:
        """Whether the load at `t` is the load of the run, not of a probe or a trial."""
        return not any(begun <= t <= ended + DRAIN_S for begun, ended in self._probes)


def _increase(before: Mapping[Count, float], after: Mapping[Count, float]) -> dict[Count, float]:
    """The increase of each count between two reports without a restart of the server between
    them."""
    return {key: count - before.get(key, 0.0) for key, count in after.items()}


def _client_signals(record: ServingRecord, since: float, knobs: Knobs) -> dict[str, Signal]:
    """The signals about the load generator and its requests."""
    recent = record.recent(since)
    requests = [request for request in recent if not request.error]
    load = [tick for tick in record.load if tick.t >= since and record.is_own(tick.t)]
    signals: dict[str, Signal] = {}
    if len(load) > 1:
        wall = load[-1].t - load[0].t
        signals["client.cpu_ratio"] = Signal(
            (load[-1].cpu_s - load[0].cpu_s) / wall, "ratio", f"{CLIENT}, CPU time of one core"
        )
        late = sorted(tick.lateness_s for tick in load)
        signals["client.lateness_s"] = Signal(
            percentile(late, 0.5),
            "s",
            f"{CLIENT}, how late its event loop wakes, p95, median of ticks",
        )
        if (waited := record.runq_ratio(since)) is not None:
            signals["client.runq_ratio"] = Signal(
                waited,
                "ratio",
                f"{CLIENT}, /proc/self/schedstat: time in the run queue over wall time",
            )
        signals["client.active"] = Signal(
            statistics.fmean(tick.active for tick in load), "requests", f"{CLIENT}, on their way"
        )
    rate = float(knobs["request_rate"])
    signals["client.request_rate"] = Signal(rate, "/s", "setting request_rate (0: closed loop)")
    shared = next(
        (
            tick.shared_prefix_ratio
            for tick in reversed(load)
            if tick.shared_prefix_ratio is not None
        ),
        None,
    )
    if shared is not None:
        signals["client.shared_prefix_ratio"] = Signal(
            shared, "ratio", f"{CLIENT}, the text of its prompts"
        )
    if recent:
        signals["client.requests_ended"] = Signal(float(len(recent)), "requests", CLIENT)
        signals["client.failed_ratio"] = Signal(
            1 - len(requests) / len(recent), "ratio", f"{CLIENT}, n={len(recent)}"
        )
    if not requests:
        return signals
    n = f"{CLIENT}, n={len(requests)}"
    for field in REQUEST_TIMES:
        if seconds := request_times(requests, field):
            signals[f"client.{field}"] = Signal(statistics.fmean(seconds), "s", f"{n}, mean")
            signals[f"client.{field.removesuffix('_s')}_p99_s"] = Signal(
                percentile(sorted(seconds), 0.99), "s", f"{n}, p99"
            )
    gaps = sorted(gap for request in requests for gap in request.gaps)
    if gaps:
        signals["client.chunk_gap_s"] = Signal(
            statistics.fmean(gaps), "s", f"{CLIENT}, mean of {len(gaps)} gaps"
        )
        signals["client.chunk_gap_p50_s"] = Signal(
            percentile(gaps, 0.5), "s", f"{CLIENT}, {len(gaps)} gaps"
        )
        signals["client.chunk_gap_p99_s"] = Signal(
            percentile(gaps, 0.99), "s", f"{CLIENT}, {len(gaps)} gaps"
        )
    if counted := [request.prompt_tokens for request in requests if request.prompt_tokens]:
        signals["client.prompt_tokens"] = Signal(
            statistics.fmean(counted), "tokens", f"{n}, usage, mean"
        )
    signals["client.output_tokens"] = Signal(
        statistics.fmean(r.output_tokens for r in requests), "tokens", f"{n}, usage, mean"
    )
    return signals
