"""Is it slower? The throughput of sessions against that of other sessions: one answer for
`compare`, for the gate and for baselines.

The rate of a run is that of its summary: work over wall time. Its error comes from the points of
its steady part, outside of trials. On a CPU the rates are without the run-queue delay of the
training thread, where every run has this figure. The ratio and its interval: see `runs`. If the
load of other programs differs between the sides, this load can explain a difference of its own
size.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from gpuconsole.experiments import clients
from gpuconsole.experiments.runs import RunRate, ratio_of, unix_s
from gpuconsole.experiments.statistics import MIN_BLOCKS, NORMAL_975, always_valid, rate_verdict
from gpuconsole.model.comparison import BaselineVerdict, GateRatio, RateChange
from gpuconsole.model.metrics import series_key
from gpuconsole.model.run import Run, Validity
from gpuconsole.model.snapshot import Snapshot
from gpuconsole.model.text import percent, visible
from gpuconsole.session.figures.rate import RateBlock, contention_free, estimate, mean_rate

RUN_QUEUE_DIFFERS = 0.15
"""The threshold of rule host.cpu_contention. Below this share, verdicts on contention-free time are
correct."""
OTHERS_DIFFER = WAITING_DIFFERS = 0.20
"""Minimum load that the signals of rule host.cpu_contention count as contention
(docs/diagnosis.md)."""
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


class ThroughputRatio(NamedTuple):
    """The throughput of the new runs over that of the base runs.

    `rates`: the rates of both sides. `free`: they are without run-queue delay. `excused`: the
    additional share of time that contention took from one side (above 0: from the new runs);
    `contention` says so in words. `doubt`: why the figures of a run cannot be trusted; empty if all
    can.
    """

    ratio: GateRatio
    rates: tuple[list[RunRate], list[RunRate]]
    free: bool
    excused: float
    contention: str
    doubt: str

    @property
    def change(self) -> RateChange:
        return self.ratio.change

    @property
    def verdict(self) -> BaselineVerdict:
        """Whether the new runs are slower. Figures that cannot be trusted have no verdict: the
        difference may come from what degraded the run."""
        return "undecided" if self.doubt else rate_verdict(self.change, self.excused)


def throughput(
    base: Sequence[MeasuredRun],
    new: Sequence[MeasuredRun],
    live: bool = False,
    free: bool | None = None,
) -> ThroughputRatio | None:
    """Compare the throughput of `new` with that of `base`; None where a run has no rate, or counts
    something else. `live`: the new run goes on. `free`: None where the runs decide."""
    if free is None:
        free = all(
            side.run.device == "cpu" and side.run.summary.runq_ratio is not None
            for side in (*base, *new)
        )
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
    return ThroughputRatio(ratio, rates, free, excused, why, doubt)


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
    """The rate of a run; None for a run that has none. `free`: without the run-queue delay of the
    training thread. `live`: the run goes on, and its rate is compared again and again: it is the
    rate of all its points, and its error holds at every moment."""
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
    return _of_run(
        side, math.log(contention_free(mean, run.summary.runq_ratio if free else None)), error
    )


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


def _contention(
    base: Sequence[MeasuredRun], new: Sequence[MeasuredRun], free: bool
) -> tuple[float, str]:
    """The additional load during the new runs, if the difference matters; and a description in
    words.

    Other programs slow a run down even if no task waits: through the other hyperthread of a core,
    or through memory bandwidth. If their load is not known, the share of waiting is used instead.
    Contention-free time does not contain the wait of the training thread.
    """
    load = (others_of, OTHERS_DIFFER, "other programs used {} of the CPUs")
    waiting = (waiting_of, WAITING_DIFFERS, "some task waited for a CPU {} of the time")
    queue = (_queued, RUN_QUEUE_DIFFERS, "the training thread waited for a CPU {} of the time")
    increases = [(0.0, "")]
    for read, least, cause in (
        load if _both(others_of, base, new) else waiting,
        *(() if free else (queue,)),
    ):
        if (means := _both(read, base, new)) and abs(means[1] - means[0]) >= least:
            there, here = map(percent, means)
            increases.append(
                (means[1] - means[0], f"contention: {cause.format(here)} ({there} in the baseline)")
            )
    return max(increases, key=lambda increase: abs(increase[0]))


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
