"""The live series of a run: one point per second from the worker, and one point per reading of a
model server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gpuconsole.model.run import PROBE, Step
from gpuconsole.model.serving import Request
from gpuconsole.session.figures.breakdown import REQUEST_TIMES, itl_pairs, request_times
from gpuconsole.session.figures.distributions import percentile
from gpuconsole.session.figures.peak import Peak, utilization
from gpuconsole.session.figures.summary import cost_per_million_tokens, rates_per_watt, work_of
from gpuconsole.session.figures.totals import Totals
from gpuconsole.session.machine import SERVER, WORKLOAD
from gpuconsole.session.run import RunRecord
from gpuconsole.session.serving import OF_HISTOGRAMS
from gpuconsole.wire.events import Requests, ServerState, Steps

EVERY_S = 1.0
LOSS = "workload.loss"
COST = "workload.cost_per_million_tokens"
COUNTED_BY = {"workload.requests_per_s": "requests", "workload.tokens_per_s": "generation_tokens"}
"""The count of a watched server that a rate needs."""
SERVER_RATES = ("preemptions", "prompt_tokens", "generation_tokens", "flops", "read_bytes")


class Add(Protocol):
    """Adds a point. `weight`: for a rate, the seconds over which it was measured."""

    def __call__(
        self, metric: str, device: str, t: float, value: float, reader: str, weight: float = 1.0, /
    ) -> None: ...


class Rates(NamedTuple):
    """References for the rates of a run: the FLOP/s peak, the watts of all its devices, and the
    price per hour."""

    peak: Peak | None
    power_w: float | None
    price_per_hour: float | None


class RunPoints:
    """`add` is called for each point."""

    def __init__(self, add: Add) -> None:
        self._add = add
        self._steps: list[Step] = []
        self._steps_since = 0.0
        self._counted: set[str] = set()
        """The rates that have been above 0 in this run."""
        self._requests: list[Request] = []
        self._requests_since: float | None = None
        self._last: ServerState | None = None

    def drop_steps(self) -> None:
        """Delete the steps that are in no point yet: they belong to the previous run."""
        self._steps = []

    def take_steps(self, event: Steps) -> list[Step]:
        """The ordinary steps since the last point if a second has passed; otherwise no steps."""
        self._steps += [step for step in event.steps if step.kind != PROBE]
        if not self._steps or event.t - self._steps_since < EVERY_S:
            return []
        steps, self._steps = self._steps, []
        self._steps_since = event.t
        return steps

    def add_steps(
        self, record: RunRecord, event: Steps, steps: Sequence[Step], rates: Rates
    ) -> None:
        """Points of `steps`, which are ordinary steps of the run."""
        device = record.run.device
        totals, whole = Totals(steps), record.whole_ratio
        # `totals` are those of one process
        samples, tokens = (totals.per_s(work) * whole for work in (totals.samples, totals.tokens))
        if record.serving is not None:
            points = {"workload.requests_per_s": samples, "workload.tokens_per_s": tokens}
            if record.serving.watched:
                counted = record.serving.states[-1].totals if record.serving.states else {}
                points = {
                    metric: rate for metric, rate in points.items() if COUNTED_BY[metric] in counted
                }
        else:
            points = {"workload.memory_bytes": event.memory_bytes}
            for metric, rate in (
                ("workload.samples_per_s", samples),
                ("workload.tokens_per_s", tokens),
            ):
                # a second without work counts where there was work before
                if rate or metric in self._counted:
                    points[metric] = rate
                    self._counted.add(metric)
            points["workload.step_time_s"] = percentile(sorted(step.wall_s for step in steps), 0.5)
        loss = next((step.loss for step in reversed(steps) if step.loss is not None), None)
        if loss is not None:
            points[LOSS] = loss
        work = work_of(record, totals)
        flops = work.full * samples if work is not None else 0.0
        if flops:
            points["workload.flops_per_s"] = flops
            if rates.peak and (mfu := utilization(flops / whole, rates.peak)) is not None:
                points["workload.mfu_ratio"] = mfu
        points |= rates_per_watt(tokens, samples or None, flops, rates.power_w)
        if rates.price_per_hour is not None and tokens:
            points[COST] = cost_per_million_tokens(tokens, rates.price_per_hour)
        for metric, value in points.items():
            weight = totals.wall_s * (tokens if metric == COST else 1)
            self._add(metric, device, event.t, value, WORKLOAD, weight)

    def add_requests(self, device: str, counted: Sequence[Request], event: Requests) -> None:
        """Medians over the requests that ended in the last second."""
        self._add("workload.active_requests", device, event.t, float(event.active), WORKLOAD)
        self._requests += counted
        self._requests_since = event.t if self._requests_since is None else self._requests_since
        span = event.t - self._requests_since
        if span < EVERY_S:
            return
        good = [request for request in self._requests if not request.error]
        times = {field: request_times(good, field) for field in REQUEST_TIMES} | {
            "itl_s": [gap for gap, _ in itl_pairs(good)]
        }
        for field, seconds in times.items():
            if seconds:
                self._add(
                    f"workload.{field}", device, event.t, percentile(sorted(seconds), 0.5), WORKLOAD
                )
        self._add(
            "workload.failed_requests_per_s",
            device,
            event.t,
            (len(self._requests) - len(good)) / span,
            WORKLOAD,
        )
        self._requests, self._requests_since = [], event.t

    def add_server_state(self, event: ServerState, watched: str = "") -> None:
        """Points of a server's state: gauges unchanged, totals as rates since the last reading. No
        rates after a restart of the server. `watched`: the device of a run that only watches; its
        latencies are the means since the last reading."""
        for name, value in event.gauges.items():
            self._add(f"server.{name}", SERVER, event.t, value, SERVER)
        last, self._last = self._last, event
        if last is None or event.t <= last.t:
            return
        again = event.began_again(last)
        deltas = {
            name: value - last.totals.get(name, 0.0)
            for name, value in event.totals.items()
            if name not in again
        }
        for name in OF_HISTOGRAMS if watched else ():
            if deltas.get(f"{name}_count") and f"{name}_sum" in deltas:
                self._add(
                    f"workload.{name}",
                    watched,
                    event.t,
                    deltas[f"{name}_sum"] / deltas[f"{name}_count"],
                    WORKLOAD,
                )
        for name in SERVER_RATES:
            if name in deltas and name in last.totals:
                self._add(
                    f"server.{name}_per_s",
                    SERVER,
                    event.t,
                    deltas[name] / (event.t - last.t),
                    SERVER,
                )
        if deltas.get("prefix_queries") and "prefix_hits" in deltas:
            self._add(
                "server.prefix_hit_ratio",
                SERVER,
                event.t,
                deltas["prefix_hits"] / deltas["prefix_queries"],
                SERVER,
            )
