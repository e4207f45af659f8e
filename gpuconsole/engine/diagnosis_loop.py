"""Evaluates the rules on the running workload about once a second, and runs the probes that the
rules ask for."""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections.abc import Callable, Collection
from pathlib import Path

from gpuconsole.diagnosis.claims import share_out
from gpuconsole.diagnosis.engine import Hysteresis, about, evaluate, wanted_probes
from gpuconsole.diagnosis.probes import (
    ADDS_WORDS,
    ALWAYS,
    ASKS_FIRST,
    DECISIVE,
    NO_CONSENT,
    PASSIVE,
)
from gpuconsole.diagnosis.rule import Case
from gpuconsole.diagnosis.signals.hardware import HardwareWatch
from gpuconsole.diagnosis.signals.run import run_signals
from gpuconsole.engine.children.worker import WorkerGone, WorkerHandle
from gpuconsole.engine.run_control import RunLock
from gpuconsole.host.cores import cores
from gpuconsole.host.load import OwnProcesses
from gpuconsole.model.finding import Finding
from gpuconsole.session.api import Busy
from gpuconsole.session.figures.summary import peaks_of
from gpuconsole.session.run import RunRecord
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import run_now
from gpuconsole.wire.events import AnyEvent, Found, Note, ProbeDone

EVERY_S = 1.0
SOON_S = 0.5
"""Seconds to the next evaluation while a finding waits for its second evaluation, while the run is
not steady yet, and after a finding was shown for the first time: a tuner, which reads the state
every 0.25 s, then finds the workload free."""
BETWEEN_PROBES_S = 0.25
"""Seconds between two probes: as many ordinary steps as one report holds."""
WINDOW_S = 30.0
"""The signals are computed over the steps of so many seconds."""
ALLOWED = "allowed; it has not run yet"
PROBES_ALLOWED = "probes are allowed in your job"


class DiagnosisLoop:
    """Evaluates the rules and runs probes, as long as a run is active. It holds `lock` during a
    probe.

    `tunable`: the knobs that a tuner may change. Only probes that can lead to such a change are run
    then; empty: all probes.
    """

    def __init__(
        self,
        state: SessionState,
        emit: Callable[[AnyEvent], None],
        worker: Callable[[], WorkerHandle | None],
        lock: RunLock,
    ) -> None:
        """`worker` returns the worker of the current run."""
        self.tunable: Collection[str] = ()
        self.may_probe_jobs = False
        """Whether the user has allowed probes in the user's own job."""
        self._state, self._emit, self._worker, self._lock = state, emit, worker, lock
        self._hardware = HardwareWatch(OwnProcesses().has)
        self._record: RunRecord | None = None
        self._steadied = Hysteresis()
        self._probed: set[str] = set()
        self._failures: set[str] = set()
        self._more_due = False
        self._background = set[asyncio.Task[None]]()

    def allow_probes(self) -> None:
        """The user allows probes in the user's own job. Those that waited for this are run by the
        next evaluations."""
        self.may_probe_jobs = True
        t, record = time.monotonic(), self._state.record
        self._emit(Note(t, PROBES_ALLOWED))
        for key, why in list(record.run.unavailable.items()) if record is not None else ():
            if why == NO_CONSENT:
                self._emit(ProbeDone(t, 0, key.removeprefix("probe."), error=ALLOWED))

    async def run(self) -> None:
        """Evaluate until cancelled. An exception is reported as a note, once for each run, and the
        loop goes on."""
        while True:
            await asyncio.sleep(EVERY_S if self._state.record is None else self._pause_s())
            if self._lock.locked():
                continue
            record, worker = self._state.record, self._worker()
            if record is None or worker is None or record.closed_t is not None:
                continue
            try:
                await self.evaluate(record, worker)
            except Exception as error:
                # a bug in a rule or a signal must not end the diagnosis of the session
                self._report_failure(error)

    def ended(self, record: RunRecord) -> None:
        """A job has ended by itself: evaluate its last messages, which may have come after the last
        evaluation. Runs no probe."""
        if not record.run.is_job or record is not self._record:
            return
        try:
            self._find(record)
        except Exception as error:  # as in `run`
            self._report_failure(error)

    def _pause_s(self) -> float:
        if self._steadied.waiting or self._to_act_on:
            return SOON_S
        if self._more_due:
            return BETWEEN_PROBES_S
        record = self._state.record
        return SOON_S if record is not None and record.steady_t is None else EVERY_S

    async def evaluate(self, record: RunRecord, worker: WorkerHandle) -> None:
        """Evaluate the rules, run the first of the probes that are due, and evaluate again.

        No probe is run while a finding waits for its second evaluation, or right after a finding
        was shown for the first time: the user or a tuner may act on it.
        """
        if record is not self._record:  # findings and probes of the run before do not count
            self._record, self._steadied, self._more_due = record, Hysteresis(), False
            self._probed.clear()
            self._failures.clear()
        # show a firing rule before its probe has run: only the predicted gain needs the probe
        findings = self._find(record)
        # a probe of a server that is down measures nothing
        answers = record.serving is None or record.serving.outages.current is None
        if (
            record.steady_t is not None
            and answers
            and not self._steadied.waiting
            and not self._to_act_on
        ):
            due = self._due(findings)
            first = [probe for probe in due if probe in ALWAYS]
            for probe in first if due[:1] == first[:1] else due[:1]:
                await self._run_probe(probe, worker)
                if self._state.record is not record:
                    return
            if due:
                findings = self._find(record)
        self._more_due = bool(self._due(findings)) and record.steady_t is not None

    @property
    def _to_act_on(self) -> bool:
        """Whether a finding with a suggestion was shown for the first time in the last
        evaluation."""
        return any(finding.suggestions for finding in about(self._steadied.opened, self.tunable))

    def _find(self, record: RunRecord) -> list[Finding]:
        """Evaluate all rules; emit the findings that have been confirmed, with the signals that
        they were made from."""
        case = self._case(record)
        findings = evaluate(case)
        shown = share_out(self._state.with_trials(record, self._steadied.update(findings)), case)
        self._emit(Found(time.monotonic(), record.run.id, shown, case.signals))
        return findings

    def _due(self, findings: list[Finding]) -> list[str]:
        """The probes to run, in order."""
        record = self._state.record
        first = () if record is None or record.run.serves or self.tunable else ALWAYS
        wanted = wanted_probes(about(findings, self.tunable))
        if self.tunable:  # a tuner would wait for them, and needs no words
            wanted = [probe for probe in wanted if probe not in ADDS_WORDS]
        order = dict.fromkeys((*(probe for probe in wanted if probe in DECISIVE), *first, *wanted))
        due = [probe for probe in order if probe not in self._probed]
        if record is not None and record.run.watched:  # the user asks for each probe
            self._report_consent(record.run.unavailable, wanted, ASKS_FIRST)
            return []
        if record is None or not record.run.is_job or self.may_probe_jobs:
            return due
        self._report_consent(
            record.run.unavailable, [probe for probe in wanted if probe not in PASSIVE], NO_CONSENT
        )
        return [probe for probe in due if probe in PASSIVE]

    def _report_consent(self, reported: Collection[str], probes: Collection[str], why: str) -> None:
        """Report why these probes do not run, each once: a rule that needs one is final without
        it."""
        for probe in probes:
            if f"probe.{probe}" not in reported:
                self._emit(ProbeDone(time.monotonic(), 0, probe, error=why))

    def _case(self, record: RunRecord) -> Case:
        memory = self._state.memory_used(record.run.device)
        run = run_now(self._state, record)
        _, bandwidth = peaks_of(record, self._state.devices, self._state.environment)
        host_memory = self._state.memory_used("cpu")
        signals = run_signals(
            record, run.summary, cores(), memory, WINDOW_S, bandwidth, host_memory
        ) | self._hardware.signals(self._state, record)
        return Case.of(run, signals)

    async def _run_probe(self, probe: str, worker: WorkerHandle) -> None:
        self._probed.add(probe)
        if probe in ADDS_WORDS:  # it only watches, and a change ends it: the user need not wait
            self._background.add(task := asyncio.create_task(self._ask(probe, worker)))
            task.add_done_callback(self._background.discard)
            return
        # the run has ended, and its end is reported elsewhere
        with contextlib.suppress(WorkerGone, Busy):
            async with self._lock.probe(probe):
                await worker.probe(probe)

    async def _ask(self, probe: str, worker: WorkerHandle) -> None:
        with contextlib.suppress(WorkerGone):
            await worker.probe(probe)

    def _report_failure(self, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        place = next(
            (frame for frame in reversed(frames) if "/diagnosis/" in frame.filename), frames[-1]
        )
        text = (
            f"diagnosis failed in {Path(place.filename).name}, line {place.lineno}: {error!r}; it"
            " goes on"
        )
        if text not in self._failures:
            self._failures.add(text)
            self._emit(Note(time.monotonic(), text, "error"))
