"""Looks at the running workload once a second: rules on fresh signals, and the probes that they ask for."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterator

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.engine import Steadied, about, evaluate, wanted_probes
from gpuconsole.diagnosis.probes import ALWAYS, DECISIVE
from gpuconsole.diagnosis.signals.hardware import HardwareWatch
from gpuconsole.diagnosis.signals.run import run_signals
from gpuconsole.machine.environment import cores
from gpuconsole.machine.own_processes import OwnProcesses
from gpuconsole.model.finding import Finding
from gpuconsole.processes.worker import WorkerGone, WorkerHandle
from gpuconsole.session.figures.summary import peaks_of
from gpuconsole.session.run import RunRecord
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import run_now
from gpuconsole.wire.events import AnyEvent, Found

EVERY_S = 1.0
SOON_S = 0.5
"""Where a finding only waits for its second look, or the run has yet to be steady; and where something is shown for the first time, so that who
acts on it (a tuner looks every 0.25 s) finds the workload free."""
BETWEEN_PROBES_S = 0.25
"""Ordinary steps, as many as are told at a time."""
WINDOW_S = 30.0


class Diagnosing:
    """Drives diagnosis for the engine. `busy` is held by whoever intervenes in the workload.

    `tunable`: where somebody waits to turn some knobs and no others, no probes are made but those that may lead to that.
    """

    def __init__(
        self, state: SessionState, emit: Callable[[AnyEvent], None], worker: Callable[[], WorkerHandle | None], busy: asyncio.Lock
    ) -> None:
        self.probing = ""
        self.tunable: Collection[str] = ()
        self._state = state
        self._emit = emit
        self._worker = worker
        self._busy = busy
        self._hardware = HardwareWatch(OwnProcesses().has)
        self._steadied = Steadied()
        self._probed: set[str] = set()
        self._more_due = False

    def begin(self) -> None:
        """A new run: what was found and probed before no longer holds."""
        self._steadied = Steadied()
        self._probed.clear()

    async def forever(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s())
            if self._busy.locked():
                continue
            record, worker = self._state.record, self._worker()
            if record is None or worker is None or record.closed_t is not None:
                continue
            await self.look(record, worker)

    def _pause_s(self) -> float:
        if self._steadied.waiting or self._to_act_on:
            return SOON_S
        if self._more_due:
            return BETWEEN_PROBES_S
        record = self._state.record
        return SOON_S if record is not None and record.steady_t is None else EVERY_S

    async def look(self, record: RunRecord, worker: WorkerHandle) -> None:
        """One window: evaluate, then run the first of the probes that are asked for and evaluate again.

        A finding that waits for its second look is not kept waiting by a probe, nor is who wants to act on one that was just shown.
        """
        findings = self._judge(record)  # what fires needs no probe to be shown, only to be predicted
        if record.steady_t is not None and not self._steadied.waiting and not self._to_act_on:
            due = self._due(findings)
            first = [one for one in due if one in ALWAYS]
            for probe in first if due[:1] == first[:1] else due[:1]:
                await self._run_probe(probe, worker)
                if self._state.record is not record:
                    return
            if due:
                findings = self._judge(record)
        self._more_due = bool(self._due(findings)) and record.steady_t is not None

    @property
    def _to_act_on(self) -> bool:
        """Whether something was just shown that somebody may want to act on."""
        return any(finding.suggestions for finding in about(self._steadied.opened, self.tunable))

    def _judge(self, record: RunRecord) -> list[Finding]:
        """What the rules say now. Those findings that stand are shown, with the very signals that they were made from."""
        case = self._case(record)
        findings = evaluate(case)
        self._emit(Found(time.monotonic(), record.run.id, self._steadied.update(findings), case.signals))
        return findings

    def _due(self, findings: list[Finding]) -> list[str]:
        record = self._state.record
        first = () if record is None or record.run.serves or self.tunable else ALWAYS
        wanted = wanted_probes(about(findings, self.tunable))
        order = dict.fromkeys((*(probe for probe in wanted if probe in DECISIVE), *first, *wanted))
        return [probe for probe in order if probe not in self._probed]

    def _case(self, record: RunRecord) -> Case:
        memory = self._state.memory_used(record.run.device)
        summary = run_now(self._state, record).summary
        _, bandwidth = peaks_of(record, self._state.devices, self._state.environment)
        signals = run_signals(record, summary, cores(), memory, WINDOW_S, bandwidth) | self._hardware.signals(self._state, record)
        return Case(record.run.knobs, signals, record.run.serves)

    @contextlib.contextmanager
    def showing(self, what: str) -> Iterator[None]:
        """Tell the screen what is being measured meanwhile."""
        self.probing = what
        try:
            yield
        finally:
            self.probing = ""

    async def _run_probe(self, probe: str, worker: WorkerHandle) -> None:
        self._probed.add(probe)
        with contextlib.suppress(WorkerGone):  # the run has failed, and that is told elsewhere
            async with self._busy:
                with self.showing(probe):
                    await worker.probe(probe)
