"""One run while it is measured: its steps, the facts about its workload, and the signals that the rules work on."""

from __future__ import annotations

import itertools
import statistics
from collections import deque

from gpuconsole.model.finding import Signal
from gpuconsole.model.knobs.knob import NO_EFFECT
from gpuconsole.model.machine.device import Device
from gpuconsole.model.run import COUNTS, PHASES, Run, Step
from gpuconsole.model.serving import Objective, served_precision
from gpuconsole.session.compile_counts import CompileCounts
from gpuconsole.session.counters import WorkCounts
from gpuconsole.session.figures.account import add_bandwidth, contention_free_shares, runq_ratio, steady_from, summarize, wall_shares
from gpuconsole.session.figures.efficiency import NO_POWER, NO_PRICE, cost_per_million_tokens
from gpuconsole.session.figures.serving_account import add_served_work
from gpuconsole.session.ranks import Ranks
from gpuconsole.session.serving import ServingRecord
from gpuconsole.wire.events import ProbeDone, Profiled, RunClosed, Started, Steps

MAX_STEPS = 20_000
"""Steps kept per run: a finished run's summary is over its last 20 000 steady ones."""
LIVE_STEPS = 1500
"""Steps that a live summary looks at. All 20 000 would cost 28 ms at every look, and a console must be cheap to watch."""
DATA_WAIT = PHASES.index("data_wait")
LOOK_EVERY_S = 0.5


class RunRecord:
    """Builds a `Run` from its events."""

    def __init__(self, run: Run, t: float) -> None:
        self.run = run
        self.opened_t = t
        self.closed_t: float | None = None
        self.first_step_t: float | None = None
        self.steady_t: float | None = None
        self.notes: dict[str, str] = {}
        self.steps: deque[Step] = deque(maxlen=MAX_STEPS)
        self.probe_signals: dict[str, Signal] = {}
        self.probe_errors: dict[str, str] = {}
        self.error_detail = ""
        self.ranks = Ranks()
        self.serving = ServingRecord() if run.serves else None
        self.objective: Objective | None = None
        self._compiled = CompileCounts()
        self._work = WorkCounts()
        self.others_ratio: float | None = None
        """Share of the cores that this console may use which other programs keep busy, where it is known."""
        self._overhead_s = 0.0
        self._overhead_start: tuple[float, int] | None = None
        self._seen_steps = 0
        self._looked_t = 0.0
        self._energy: tuple[float, float] | None = None
        self._energy_tokens = self._tokens_since = 0
        self._summarized: tuple[int, int | None] = (-1, None)
        self._unsteady_since: float | None = None

    @property
    def facts(self) -> dict[str, float]:
        """What the workload told of itself."""
        return self.run.facts

    def carry_on(self, before: RunRecord) -> None:
        """A kept change: the same worker goes on under new knobs."""
        self.run.facts, self.notes = before.facts, before.notes
        self.ranks.carry_on(before.ranks)
        self._compiled.carry_on(before._compiled)
        self.run.state = "running"

    def started(self, event: Started) -> None:
        """Facts about the workload; those of a trial's other side are not this run's."""
        if event.knobs == self.run.knobs:
            self.run.facts, self.notes = event.facts, event.notes
            self.run.unavailable |= {
                f"knob.{name.removeprefix(NO_EFFECT)}": why for name, why in event.notes.items() if name.startswith(NO_EFFECT)
            }
        if self.run.state == "starting":
            self.run.state = "running"

    def add_steps(self, event: Steps) -> None:
        counted = [step for step in event.steps if step.kind == COUNTS and step.arm == 0]
        self._seen_steps += len(event.steps)
        self._overhead_s = event.overhead_s
        self._compiled.add(event)
        self._work.add(event)
        if self._overhead_start is None:
            self._overhead_start = (event.overhead_s, self._seen_steps)
        self.run.summary.memory_peak_bytes = event.memory_bytes or None
        if counted and self.first_step_t is None:
            self.first_step_t = self._unsteady_since = counted[0].t
        self.steps.extend(counted)
        self.run.duration_s = event.t - (self.first_step_t if self.first_step_t is not None else event.t)
        if self._energy is not None:
            self._tokens_since += sum(step.tokens for step in event.steps)
        if self.steady_t is None and event.t - self._looked_t >= LOOK_EVERY_S:
            self._looked_t = event.t
            self._look_for_steady()

    def tried(self, begun: float, ended: float) -> None:
        """A trial is over: what a model server tells of that time is of both sides."""
        if self.serving is not None:
            self.serving.probed(begun, ended)

    def probe_done(self, event: ProbeDone) -> None:
        self.probe_signals |= event.signals
        if self.serving is not None:
            self.serving.probed(event.t - event.cost_s, event.t)
        if event.error:
            self.probe_errors[event.probe] = event.error
        self.run.unavailable |= {f"probe.{event.probe}": event.error} if event.error else {}

    def profiled(self, event: Profiled) -> None:
        """The last window stands; why one could not be had is told only where there is none."""
        if event.report is not None:
            self.run.profile = event.report
            self.run.unavailable.pop("profile", None)
        elif self.run.profile is None and event.error:
            self.run.unavailable["profile"] = event.error

    def note_energy(self, joules: float) -> None:
        """The device's energy counter, from the moment the run was steady; tokens are counted between the same two readings."""
        if self.steady_t is None:
            return
        if self._energy is None:
            self._energy = (joules, joules)
            self._energy_tokens = self._tokens_since = 0
        else:
            self._energy = (self._energy[0], joules)
            self._energy_tokens = self._tokens_since

    def forget_energy(self) -> None:
        """The counter is another GPU's from here on."""
        self._energy = None

    def close(self, event: RunClosed) -> None:
        if self.closed_t is not None:
            return
        self.closed_t = event.t
        self.run.state = event.state
        if event.error:
            self.run.error = event.error
        if self._energy is not None and self._energy[1] > self._energy[0]:
            self.run.summary.energy_j = self._energy[1] - self._energy[0]
            if self._energy_tokens:
                self.run.summary.tokens_per_j = self._energy_tokens / self.run.summary.energy_j

    def add_cost(self, price_per_hour: float | None) -> None:
        """What the work cost: from the energy and the price, where they are known; else the reason why not."""
        summary, missing = self.run.summary, self.run.unavailable
        if summary.energy_j is None:
            missing["workload.tokens_per_j"] = missing["workload.flops_per_j"] = NO_POWER
        elif summary.tokens_per_j and summary.flops_per_s and summary.tokens_per_s:
            summary.flops_per_j = summary.flops_per_s / summary.tokens_per_s.mean * summary.tokens_per_j
        if summary.tokens_per_s is None:
            return
        if price_per_hour is None:
            missing["workload.cost_per_million_tokens"] = NO_PRICE
        else:
            summary.cost_per_million_tokens = cost_per_million_tokens(summary.tokens_per_s.mean, price_per_hour)

    def steady_steps(self, limit: int | None = None, since_s: float | None = None) -> list[Step]:
        """Steady steps, oldest first: the last `limit` of them, of the last `since_s` seconds."""
        if self.steady_t is None:
            return []
        start = self.steady_t if since_s is None else max(self.steady_t, self.steps[-1].t - since_s)
        found = list(itertools.takewhile(lambda step: step.t >= start, itertools.islice(reversed(self.steps), limit)))
        found.reverse()
        return found

    def peak(self, devices: list[Device]) -> tuple[float, str] | None:
        """The FLOP/s to hold this run against: a GPU's dense datasheet peak, else the matrix product measured here."""
        precision = served_precision(self.run.knobs) if self.run.serves else str(self.run.knobs.get("precision", "fp32"))
        device = next((device for device in devices if device.id == self.run.device), None)
        if device is not None and device.is_gpu:
            datasheet = getattr(device.peaks, f"{precision}_flops_per_s", None)
            if datasheet:
                count = int(self.facts.get("world_size", 1))
                return datasheet * count, f"{f'{count} x ' if count > 1 else ''}{precision} dense, {device.peaks.source}"
        measured = self.facts.get("peak_flops_per_s")
        threads = self.facts.get("threads", 1)
        return (measured, f"{self.notes.get('peak', precision)} measured here, {threads:.0f} threads") if measured else None

    def memory_peak(self, devices: list[Device]) -> tuple[float, str] | None:
        """The bytes/s to hold this run against: a GPU's datasheet figure, else a copy measured here."""
        device = next((device for device in devices if device.id == self.run.device), None)
        if device is not None and device.is_gpu and device.peaks.memory_bytes_per_s:
            return device.peaks.memory_bytes_per_s, device.peaks.source
        measured = self.facts.get("peak_bytes_per_s")
        what = "the model's own layers" if self.run.serves else "a copy"
        return (measured, f"{what} measured here") if measured else None

    def refresh_summary(self, devices: list[Device], limit: int | None = None) -> None:
        """Recompute the figures where steps have come in: over the last `limit` steady ones, or all before any is steady."""
        state = (self._seen_steps, limit)
        if self.serving is not None and limit is not None and self.steps:
            state = (int(self.steps[-1].t), limit)  # percentiles of thousands of gaps: once a second is enough
        if state == self._summarized:
            return
        self._summarized = state
        steps = self.steady_steps(limit) or list(self.steps)[-(limit or MAX_STEPS) :]
        old = self.run.summary
        if self.serving is not None:
            self._summarize_serving(self.serving, steps, devices, limit is not None)
            return
        summary = summarize(steps, self.facts.get("flops_per_sample"), self.peak(devices))
        add_bandwidth(summary, steps, self.facts.get("bytes_per_sample"), self.memory_peak(devices))
        for kept in ("memory_peak_bytes", "energy_j", "tokens_per_j", "flops_per_j", "cost_per_million_tokens"):
            setattr(summary, kept, getattr(old, kept))
        if self._overhead_start is not None and self._seen_steps > self._overhead_start[1]:
            summary.overhead_s_per_step = (self._overhead_s - self._overhead_start[0]) / (self._seen_steps - self._overhead_start[1])
        if self.steps:
            first = [step.loss for step in itertools.islice(self.steps, 5) if step.loss is not None]
            summary.loss_first = sum(first) / len(first) if first else summary.loss_first
        self.run.summary = summary
        self.run.ranks = self.ranks.summaries(limit)

    def _summarize_serving(self, serving: ServingRecord, ticks: list[Step], devices: list[Device], live: bool) -> None:
        old, summary = self.run.summary, serving.summary(ticks, self.objective, live)
        if ticks:
            add_served_work(summary, serving.rates(ticks[0].t - ticks[0].wall_s), self.peak(devices), self.memory_peak(devices))
        for kept in ("energy_j", "tokens_per_j", "cost_per_million_tokens"):
            setattr(summary, kept, getattr(old, kept))
        self.run.summary = summary

    def signals(self, cores: int, memory: tuple[float, float] | None, window_s: float | None = None) -> dict[str, Signal]:
        """What the rules work on, over the steady steps (of the last `window_s`, where given)."""
        steps = self.steady_steps(since_s=window_s)
        found = self._compiled.signals()
        if self._unsteady_since is not None and self.steps:
            waited = 0.0 if self.steady_t is not None else self.steps[-1].t - self._unsteady_since
            found["seconds_not_steady"] = Signal(waited, "s", "step account")
        if not steps:
            return found
        if self.serving is not None:
            summary = self.run.summary
            for name, ratio, source in (
                ("mfu_ratio", summary.mfu_ratio, summary.mfu_peak_source),
                ("mbu_ratio", summary.mbu_ratio, summary.mbu_peak_source),
            ):
                if ratio is not None:
                    found[name] = Signal(ratio, "ratio", f"the server's counters over {source}")
            return found | self.serving.signals(steps[0].t - steps[0].wall_s, self.run.knobs, self.facts) | self.probe_signals
        n = len(steps)
        on_cpu = self.run.device == "cpu"
        # on a GPU the account is the stream's timeline, in which the host's run-queue delay is mostly hidden
        clock = f"step account, run-queue delay taken off, n={n}" if on_cpu else f"step account on the CUDA stream, n={n}"
        for name, share in (contention_free_shares(steps) if on_cpu else wall_shares(steps)).items():
            found[f"{name}_ratio"] = Signal(share, "ratio", clock)
        delay = runq_ratio(steps)
        if delay is not None:
            found["runq_ratio"] = Signal(delay, "ratio", "/proc/thread-self/schedstat on sampled steps")
        found |= self._waits(steps)
        mean_s = sum(step.wall_s for step in steps) / n
        lost_to_others = (delay or 0.0) if on_cpu else 0.0
        found["step_s"] = Signal(mean_s * (1 - lost_to_others), "s", f"{clock}, mean")
        found["samples_per_step"] = Signal(sum(step.samples for step in steps) / n, "samples", "step account")
        found["cores"] = Signal(cores, "cores", "os.sched_getaffinity")
        threads = self.facts.get("threads", 1.0) if on_cpu else 1.0
        if self.others_ratio is not None:
            found["host.others_cpu_ratio"] = Signal(
                self.others_ratio, "ratio", "/proc: cores that are busy, less this console and its children"
            )
        found["threads"] = Signal(threads, "threads", "torch.get_num_threads" if on_cpu else "the thread that feeds the GPU")
        found["is_gpu"] = Signal(float(self.run.device != "cpu"), "", "device")
        if self.run.summary.mfu_ratio is not None:
            mfu = self.run.summary.mfu_ratio / max(0.05, 1 - lost_to_others)
            found["mfu_ratio"] = Signal(mfu, "ratio", f"step account over {self.run.summary.mfu_peak_source}")
        if self.run.summary.mbu_ratio is not None:
            mbu = self.run.summary.mbu_ratio / max(0.05, 1 - lost_to_others)
            found["mbu_ratio"] = Signal(mbu, "ratio", f"step account over {self.run.summary.mbu_peak_source}")
        for name, value in self.facts.items():
            if name.startswith("embedding."):
                found[name] = Signal(value, "ratio" if name.endswith("_ratio") else "B", "the workload")
        if memory is not None:
            found["memory_used_ratio"] = Signal(memory[0] / memory[1], "ratio", "device memory in use, all processes")
            if on_cpu:
                found["host.memory_available_bytes"] = Signal(memory[1] - memory[0], "B", "host memory less what is in use")
        return found | self._work.signals(steps[0].t, self.steady_t) | self.ranks.signals() | self.probe_signals

    def _waits(self, steps: list[Step]) -> dict[str, Signal]:
        """How the wait for data is spread over steps: what the median one waits, and what all wait beyond that."""
        waits = [step.phases[DATA_WAIT] for step in steps]
        typical, wall = statistics.median(waits), sum(step.wall_s for step in steps)
        beyond = [max(0.0, wait - typical) for wait in waits]
        excess = sum(beyond)
        source = f"step account, n={len(steps)}"
        found = {
            "data_wait_typical_ratio": Signal(typical * len(steps) / wall, "ratio", f"{source}: the median step's wait"),
            "data_wait_excess_ratio": Signal(excess / wall, "ratio", f"{source}: waits beyond the median one's, summed"),
        }
        if excess:
            long_s = sum(wait**2 for wait in beyond) / excess  # of a second of such waiting: how long the wait is that it is part of
            found["data_wait_long_s"] = Signal(long_s, "s", f"{source}: mean of those waits, weighted by their own length")
            found["data_wait_long_steps"] = Signal(excess / long_s, "steps", f"{source}: so many waits of that length add up to as much")
        return found

    def _look_for_steady(self) -> None:
        steps = list(self.steps)
        start = steady_from(steps)
        if start is not None:
            self.steady_t = steps[start].t
            self.run.steady_from_s = steps[start].t - (self.first_step_t or steps[start].t)
