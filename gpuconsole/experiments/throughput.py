"""Is it slower? The throughput of sessions against that of other sessions: one answer for
`compare`, for the gate and for baselines.

The rate of a run is that of its summary: work over wall time. Its error comes from the points of
its steady part, outside of trials. The ratio and its interval: see `runs`. If the load of other
programs differs between the sides, this load can explain a difference of its own size.

**Two clocks.** On a CPU the training thread may wait for a core, because of other programs or of
the job's own threads. What a job does to itself on its cores is its own. So where every run has the
share of this wait, the rates are without that part of it that other programs explain: no larger
share of the time than the share of the CPUs that they kept busy (`rate.waited_for_others`). A part
of this may still be the job's own. If more was taken off on one side, and the load of other
programs is not higher there by at least EXPLAINED of this difference, the wall clock must agree.
If the wall clock decides otherwise, or decides nothing while the difference is large, the answer is
undecided, with the ratios on both clocks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from gpuconsole.experiments import clients
from gpuconsole.experiments.runs import RunRate, ratio_of, unix_s
from gpuconsole.experiments.statistics import (
    MIN_BLOCKS,
    MINIMUM_EFFECT,
    NORMAL_975,
    always_valid,
    rate_verdict,
)
from gpuconsole.model.comparison import BaselineVerdict, GateRatio, RateChange
from gpuconsole.model.metrics import series_key
from gpuconsole.model.run import Run, Validity
from gpuconsole.model.snapshot import Snapshot
from gpuconsole.model.text import percent, visible
from gpuconsole.session.figures.rate import (
    RateBlock,
    contention_free,
    estimate,
    mean_rate,
    waited_for_others,
)

FREE = "without waits for other programs"
"""The clock that is not the wall clock, in words."""
RUN_QUEUE_DIFFERS = 0.15
"""The threshold of rule host.cpu_contention. Below this share, verdicts on contention-free time are
correct."""
OTHERS_DIFFER = WAITING_DIFFERS = 0.20
"""Minimum load that the signals of rule host.cpu_contention count as contention
(docs/diagnosis.md)."""
EXPLAINED = 0.5
"""Our choice. Other programs that used idle cores before make a thread wait for more than the
increase of their load."""
MIN_REQUESTS = 20
"""Fewer answered requests are no measurement of a server by another client."""
DIGEST = 8
"""Letters of the digest in a name."""


class MeasuredRun(NamedTuple):
    """A run, the session that it comes from, and its name for messages."""

    name: str
    run: Run
    session: Snapshot

    @property
    def device_name(self) -> str:
        """The name of the run's device; empty where the session does not have it."""
        return next(
            (
                device.name
                for device in self.session.environment.devices
                if device.id == self.run.device
            ),
            "",
        )

    @property
    def alone(self) -> Snapshot:
        """The session with only this run and its trials."""
        trials = [trial for trial in self.session.trials if trial.baseline_run == self.run.id]
        return msgspec.structs.replace(self.session, runs=[self.run], trials=trials, sweeps=[])


Decide = Callable[[GateRatio, float], str]
"""Gives the verdict of a ratio; the number is `excused` (see `ThroughputRatio`)."""


def _decide(ratio: GateRatio, excused: float) -> BaselineVerdict:
    return rate_verdict(ratio.change, excused)


class ThroughputRatio(NamedTuple):
    """The throughput of the new runs over that of the base runs.

    `rates`: the rates of both sides. `excused`: the additional share of time that contention took
    from one side (above 0: from the new runs); `contention` says so in words. `doubt`: why the
    figures of a run cannot be trusted; empty if all can. `wall`: the answer on the wall clock,
    where `rates` are without waits for other programs; else None. `unexplained`: how much larger
    the share of time is that was taken off on one side, where the load of other programs does not
    explain it; `clocks` says so in words.
    """

    ratio: GateRatio
    rates: tuple[list[RunRate], list[RunRate]]
    excused: float
    contention: str
    doubt: str
    wall: ThroughputRatio | None = None
    unexplained: float = 0.0
    clocks: str = ""

    @property
    def free(self) -> bool:
        """Whether the rates are without waits for other programs."""
        return self.wall is not None

    @property
    def change(self) -> RateChange:
        return self.ratio.change

    def why_open(self, decide: Decide = _decide) -> str:
        """Why there is no verdict, however small the noise is; empty where nothing forbids that of
        `decide`. Figures that cannot be trusted have none: the difference may come from what
        degraded the run. For the clocks, see "Two clocks"."""
        if self.doubt or self.wall is None or not self.unexplained:
            return self.doubt
        here, there = decide(self.ratio, self.excused), decide(self.wall.ratio, self.wall.excused)
        open_there = there == "undecided" and self.unexplained < RUN_QUEUE_DIFFERS
        return "" if here in ("undecided", there) or open_there else self.clocks

    @property
    def verdict(self) -> BaselineVerdict:
        """Whether the new runs are slower."""
        return "undecided" if self.why_open() else _decide(self.ratio, self.excused)


def throughput(
    base: Sequence[MeasuredRun], new: Sequence[MeasuredRun], live: bool = False
) -> ThroughputRatio | None:
    """Compare the throughput of `new` with that of `base`; None where a run has no rate, or counts
    something else. `live`: the new run goes on."""
    wall = _on_clock(base, new, live, False)
    if wall is None or any(
        side.run.device != "cpu" or _queued(side) is None for side in (*base, *new)
    ):
        return wall
    answer = _on_clock(base, new, live, True)
    assert answer is not None  # the same runs
    unexplained = _unexplained(base, new)
    clocks = (
        f"{wall.ratio.estimate:.3f}x on the wall clock, {answer.ratio.estimate:.3f}x {FREE}:"
        f" {_waits(base, new)}"
    )
    return answer._replace(wall=wall, unexplained=unexplained, clocks=clocks)


def _on_clock(
    base: Sequence[MeasuredRun], new: Sequence[MeasuredRun], live: bool, free: bool
) -> ThroughputRatio | None:
    rates = (
        [rate for side in base if (rate := rate_of(side, free)) is not None],
        [rate for side in new if (rate := rate_of(side, free, live)) is not None],
    )
    units = {side.run.throughput[1] for side in (*base, *new)}
    if (len(rates[0]), len(rates[1])) != (len(base), len(new)) or len(units) > 1:
        return None
    return _answer(base, new, rates, free)


def answer_speed(base: Sequence[MeasuredRun], new: Sequence[MeasuredRun]) -> ThroughputRatio | None:
    """Compare how fast requests are answered, 1 / mean E2E: in an open loop, where the client sets
    the throughput. None where a run has no E2E."""
    rates = (
        [rate for side in base if (rate := _speed_of(side)) is not None],
        [rate for side in new if (rate := _speed_of(side)) is not None],
    )
    if (len(rates[0]), len(rates[1])) != (len(base), len(new)):
        return None
    return _answer(base, new, rates, False)


def _answer(
    base: Sequence[MeasuredRun],
    new: Sequence[MeasuredRun],
    rates: tuple[list[RunRate], list[RunRate]],
    free: bool,
) -> ThroughputRatio:
    doubt = next(
        (
            f"{side.name}: {why}"
            for side in (*base, *new)
            if (why := doubts(side.run.validity) or clients.load_unknown(side.run))
        ),
        "",
    )
    ratio = ratio_of(*rates)
    excused, why = _contention(base, new, free)
    if not why:
        share, why = clients.excuse([side.run for side in base], [side.run for side in new])
        excused = share if ratio.estimate < 1 else -share
    return ThroughputRatio(ratio, rates, excused, why, doubt)


def _speed_of(side: MeasuredRun) -> RunRate | None:
    """1 / mean E2E as a rate; None where the run has no E2E."""
    run, e2e = side.run, side.run.summary.e2e_s
    if e2e is None or e2e.mean <= 0:
        return None
    points = steady_points(side, series_key("workload.e2e_s", run.device))
    error = (
        estimate(points).error
        if len(points) >= MIN_BLOCKS and any(point.rate > 0 for point in points)
        else 0.0
    )
    return _of_run(side, -math.log(e2e.mean), error)


def _of_run(side: MeasuredRun, log_rate: float, error: float) -> RunRate:
    begun = unix_s(side.run.started)
    return RunRate(
        log_rate,
        error,
        side.session.environment.host,
        begun,
        None if begun is None else begun + side.run.duration_s,
    )


def rate_of(side: MeasuredRun, free: bool = False, live: bool = False) -> RunRate | None:
    """The rate of a run; None for a run that has none. `free`: without the wait for other programs.
    `live`: the run goes on, and its rate is compared again and again: it is the rate of all its
    points, and its error holds at every moment."""
    if why_no_rate(side, live):
        return None
    run, (rate, unit) = side.run, side.run.throughput
    assert rate is not None  # see why_no_rate
    points = steady_points(side, series_key(f"workload.{unit.partition('/')[0]}_per_s", run.device))
    known = len(points) >= MIN_BLOCKS and any(point.rate > 0 for point in points)
    if live and not known:
        return None
    mean, error, worth = (
        estimate(points) if known else (rate.mean, rate.std / rate.mean / math.sqrt(rate.n), rate.n)
    )
    if live:
        error *= always_valid(worth) / NORMAL_975
    else:
        mean = rate.mean
    if free:
        mean = contention_free(mean, run.summary.runq_ratio, others_of(side))
    return _of_run(side, math.log(mean), error)


def why_no_rate(side: MeasuredRun, live: bool = False) -> str:
    """Why a run has no rate of its steady part; empty where it has one. `live`: its summary is that
    of its last steps, which may be few blocks."""
    run, rate = side.run, side.run.throughput[0]
    if run.state == "failed":
        return f"the run failed: {visible(run.error or 'without a reason')}"
    if run.validity is not None and run.validity.verdict == "invalid":
        return doubts(run.validity)
    if rate is None and run.summary.step_time_s is not None:
        return "the run has steps and no rate: the samples of a step are not known"
    if run.client and run.summary.requests < MIN_REQUESTS:
        return f"only {run.summary.requests} answered requests: at least {MIN_REQUESTS} make a rate"
    if run.client and rate is not None and rate.mean > 0:
        return ""  # the client has printed its rate, and need not have blocks
    if (
        rate is None
        or rate.mean <= 0
        or run.steady_from_s is None
        or (rate.n < MIN_BLOCKS and not live)
    ):
        return "too few steady steps for a rate: measure longer"
    return ""


def keyed(title: str, parts: Iterable[str]) -> str:
    """A name for the work and the machine that `parts` describe: letters and digits of `title`, and
    a digest. A file name, and the key of a cache."""
    import hashlib  # it loads OpenSSL, which the machine view does not need

    letters = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in title)
    short = "-".join(part for part in letters.split("-") if part)[:60]
    whole = chr(0).join(parts).encode(errors="surrogatepass")
    return f"{short}-{hashlib.blake2s(whole, digest_size=DIGEST // 2).hexdigest()}"


def doubts(validity: Validity | None) -> str:
    """Why the figures of a serving run cannot be trusted: `its numbers are degraded: ...`; empty if
    they can."""
    if validity is None or validity.verdict == "valid":
        return ""
    return visible(f"its numbers are {validity.verdict}: {'; '.join(validity.reasons)}")


def steady_points(side: MeasuredRun, key: str) -> list[RateBlock]:
    """The values of a series in the steady part of the run with their weights, outside of its
    trials. Empty where the run does not have the series."""
    run, data = side.run, side.run.series.get(key)
    if data is None:
        return []
    begun_s = run.begun_s
    since = begun_s + (run.steady_from_s or 0.0) if begun_s is not None else -math.inf
    tried = [
        (trial.begun_s, trial.ended_s)
        for trial in side.session.trials
        if trial.baseline_run == run.id
    ]
    windows = [(begun, ended) for begun, ended in tried if begun is not None and ended is not None]
    return [
        RateBlock(value, weight)
        for t, value, weight in zip(data.t, data.v, data.weights, strict=True)
        if t >= since and not any(begun <= t <= ended for begun, ended in windows)
    ]


# --- contention -----------------------------------------------------------------------------------


def others_of(side: MeasuredRun) -> float | None:
    """The share of the CPUs that other programs kept busy."""
    signal = side.run.signals.get("host.others_cpu_ratio")
    return signal.value if signal is not None else None


def waiting_of(side: MeasuredRun) -> float | None:
    """The share of time in which some task of the host waited for a CPU."""
    points = steady_points(side, series_key("host.run_queue_delay_ratio", "cpu"))
    return mean_rate(points) if points else None


def _queued(side: MeasuredRun) -> float | None:
    return side.run.summary.runq_ratio


def taken_off(side: MeasuredRun) -> float:
    """The share of the time that the rate without waits for other programs leaves out."""
    return waited_for_others(_queued(side), others_of(side))


def _left_in(side: MeasuredRun) -> float | None:
    """The wait that this rate contains, as a share of its time."""
    waited = _queued(side)
    return None if waited is None else 1 - (1 - min(1.0, waited)) / (1 - taken_off(side))


def _unexplained(base: Sequence[MeasuredRun], new: Sequence[MeasuredRun]) -> float:
    """How much larger the share of the time is that is taken off on one side; 0 where the load of
    other programs is higher there by at least EXPLAINED of it."""
    before, after = (statistics.fmean(map(taken_off, sides)) for sides in (base, new))
    load = _both(others_of, base, new) or (0.0, 0.0)
    more = (load[1] - load[0]) * (1 if after > before else -1)
    return abs(after - before) if more < EXPLAINED * abs(after - before) else 0.0


def _waits(base: Sequence[MeasuredRun], new: Sequence[MeasuredRun]) -> str:
    """How long the training threads waited for a CPU, and what is known of other programs."""
    load = _both(others_of, base, new)
    waited = "waited for a CPU {1} of the time ({0} in the baseline)".format(
        *map(percent, _both(_queued, base, new) or (0.0, 0.0))
    )
    return f"the training thread {waited}, and " + (
        "other programs used {1} of the CPUs ({0})".format(*map(percent, load))
        if load
        else "the load of other programs is not known"
    )


def _contention(
    base: Sequence[MeasuredRun], new: Sequence[MeasuredRun], free: bool
) -> tuple[float, str]:
    """The additional load during the new runs, if the difference matters; and a description in
    words.

    Other programs slow a run down even if no task waits: through the other hyperthread of a core,
    or through memory bandwidth. If their load is not known, the share of waiting is used instead.
    `free`: the time is without waits for other programs (see `_perhaps_others`).
    """
    load = (others_of, OTHERS_DIFFER, "other programs used {} of the CPUs")
    waiting = (waiting_of, WAITING_DIFFERS, "some task waited for a CPU {} of the time")
    queue = (_queued, RUN_QUEUE_DIFFERS, "the training thread waited for a CPU {} of the time")
    increases = [(0.0, "")]
    for read, least, cause in (
        load if _both(others_of, base, new) else waiting,
        *(() if free else (queue,)),
    ):
        if means := _both(read, base, new):
            there, here = map(percent, means)
            words = f"contention: {cause.format(here)} ({there} in the baseline)"
            more, wait = means[1] - means[0], 0.0
            if free and read is others_of:
                wait = _perhaps_others(base, new, more)
            increases += [(more, words)] if abs(more) >= least else []
            increases += [(wait, words)] if abs(wait) >= MINIMUM_EFFECT else []
    return max(increases, key=lambda increase: abs(increase[0]))


def _perhaps_others(base: Sequence[MeasuredRun], new: Sequence[MeasuredRun], more: float) -> float:
    """The additional wait in the rates of one side that more load of other programs there may
    explain, although it is more than their share of the CPUs: all of their load may have been on
    the core of the training thread. `more`: the increase of their load during the new runs. Below
    0: in the base runs."""
    left = _both(_left_in, base, new) or (0.0, 0.0)
    wait, most = left[1] - left[0], abs(more) * (base[0].session.environment.cores or 1)
    return math.copysign(min(most, abs(wait)), wait) if more * wait > 0 else 0.0


def _both(
    read: Callable[[MeasuredRun], float | None],
    base: Sequence[MeasuredRun],
    new: Sequence[MeasuredRun],
) -> tuple[float, float] | None:
    """The means of both sides over the runs that have the figure; None where a side has none."""
    before, after = (
        [value for side in sides if (value := read(side)) is not None] for sides in (base, new)
    )
    return (statistics.fmean(before), statistics.fmean(after)) if before and after else None
