"""`gpuconsole watch --headless`: a model server that runs already, without a terminal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import shlex
import time
from collections.abc import Iterable, Sequence

import psutil

from gpuconsole.cli import output
from gpuconsole.cli.exits import USAGE, exit_code
from gpuconsole.cli.headless import AFTER_TRIAL_S, TICK_S, TRIAL_LATEST, HeadlessWork
from gpuconsole.cli.session import ended_before, pause
from gpuconsole.cli.trying import ready, try_now
from gpuconsole.diagnosis.advice import Advised, advise, restart_words
from gpuconsole.diagnosis.families.serving import flag_of
from gpuconsole.experiments.session import LiveSession
from gpuconsole.experiments.trial import USUAL
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import Run
from gpuconsole.model.serving import PROBE_REQUESTS, PROBE_S, PROBE_TOKENS
from gpuconsole.report.advice import advice_report
from gpuconsole.report.run.figures import outage, verdict
from gpuconsole.report.run.serving import probe_result
from gpuconsole.session.api import SessionError, View
from gpuconsole.wire.events import AnyEvent, ServerKnown, ServerState


class WatchedRun(HeadlessWork):
    """A server that others load, from the first reading to the summary."""

    def __init__(self, args: argparse.Namespace, tries: Knobs) -> None:
        super().__init__(args)
        self._tries = tries
        self._processes: list[int] = []

    async def _start(self, engine: LiveSession) -> None:
        await engine.start(self._args.url, {})

    def _on_event(self, event: AnyEvent) -> None:
        super()._on_event(event)
        if isinstance(event, ServerKnown):
            self._processes = event.processes

    async def _measure(self, engine: LiveSession) -> None:
        begun: float | None = None
        tries, probes = self._tries, bool(self._args.probe_server)
        while not self._interrupted.is_set():
            view = engine.view()
            if view.state in ("failed", "finished", "stopped"):
                return
            if begun is None and view.state == "running":
                begun = time.monotonic()
            elapsed = time.monotonic() - begun if begun is not None else 0.0
            self._progress.show(view, elapsed, self._duration_s)
            if probes and begun is not None and (_steady(view) or elapsed > self._duration_s * TRIAL_LATEST):
                await self._probe(engine)
                self._duration_s, probes = max(self._duration_s, time.monotonic() - begun + AFTER_TRIAL_S), False
                continue
            if tries and begun is not None and ready(view, tries, elapsed > self._duration_s * TRIAL_LATEST):
                self._progress.line(
                    f"the trial takes at most {USUAL.traffic_cap_s / 60:.0f} minutes and the rest of its last blocks; Ctrl-C ends it, and the limit goes back"
                )
                await try_now(engine, tries, self._interrupted, self._progress.line)
                self._duration_s, tries = max(self._duration_s, time.monotonic() - begun + AFTER_TRIAL_S), {}
                continue
            if elapsed >= self._duration_s:
                if tries:
                    self._progress.line(f"no trial: {outage(view) or 'nothing was measured'}")
                return
            await pause(self._interrupted, TICK_S)

    async def _probe(self, engine: LiveSession) -> None:
        """Send the requests of the probe, and print what they show. An interrupt breaks it off."""
        self._progress.line(f"probe: {PROBE_REQUESTS} requests of ours, {PROBE_TOKENS} tokens each, {PROBE_S:.0f} s at most")
        probe = asyncio.create_task(engine.probe_server())
        if not await ended_before(self._interrupted, probe):
            return
        try:
            self._progress.line(probe_result(probe.result()))
        except SessionError as error:
            self._progress.line(str(error))

    def _advise(self, engine: LiveSession, run: Run) -> None:
        """Print the flags that are worth a restart, and the command of the best."""
        record = engine.state.record
        states = record.serving.states if record is not None and record.serving is not None else ()
        advised = advise(run, self._args.bounds or (), course_of(states))
        output.show(advice_report(advised, run, command_of(self._processes, advised, run)))

    def _report(self, engine: LiveSession) -> int:
        snapshot = engine.snapshot()
        (run,) = snapshot.runs
        if run.state == "failed":
            output.problem(run.error or "nothing could be read")
            return USAGE
        failed = run.validity is not None and run.validity.verdict == "invalid"
        failed = not self._write(engine, snapshot) or failed
        if self._args.advise:
            self._advise(engine, run)
        if run.validity is not None and run.validity.verdict != "valid":
            output.problem(f"run {run.id} is {verdict(run)}")
        return exit_code(failed)


def _steady(view: View) -> bool:
    return view.run is not None and view.run.steady_from_s is not None and not view.down


def course_of(states: Iterable[ServerState]) -> list[tuple[float, float]]:
    """Running requests, and the mean time between tokens, from one reading to the next."""
    course = []
    for before, after in itertools.pairwise(states):
        count = after.totals.get("itl_s_count", 0.0) - before.totals.get("itl_s_count", 0.0)
        if count > 0 and "requests_running" in after.gauges:
            running = (before.gauges.get("requests_running", 0.0) + after.gauges["requests_running"]) / 2
            course.append((running, (after.totals["itl_s_sum"] - before.totals["itl_s_sum"]) / count))
    return course


def command_of(processes: Sequence[int], advised: Advised, run: Run) -> str:
    """The command that restarts the server with the best change: its own command line, where its process is on this machine and can be seen; else the flag alone. Empty
    where nothing is advised."""
    best = next((entry for entry in advised.advice if entry.code and entry.meets != "no"), None)
    if best is None:
        return ""
    ((name, _),) = best.changes.items()
    engine = str(run.settings.get("server", ""))
    with contextlib.suppress(psutil.Error, IndexError):
        words = psutil.Process(processes[0]).cmdline()
        if engine != "embedded" and any(word.startswith("--") for word in words):
            return shlex.join(restart_words(words, best.changes, flag_of(engine, name)))
    return best.code
