"""`gpuconsole watch --headless`: a model server that runs already, without a terminal."""

from __future__ import annotations

import argparse
import asyncio
import time

from gpuconsole.cli import output
from gpuconsole.cli.exits import USAGE, exit_code
from gpuconsole.cli.headless import AFTER_TRIAL_S, TICK_S, TRIAL_LATEST, HeadlessWork, ready, try_now
from gpuconsole.cli.session import ended_before, pause
from gpuconsole.experiments.session import LiveSession
from gpuconsole.experiments.trial import USUAL
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.serving import PROBE_REQUESTS, PROBE_S, PROBE_TOKENS
from gpuconsole.report.run.figures import outage, verdict
from gpuconsole.report.run.serving import probe_result
from gpuconsole.session.api import SessionError, View


class WatchedRun(HeadlessWork):
    """A server that others load, from the first reading to the summary."""

    def __init__(self, args: argparse.Namespace, tries: Knobs) -> None:
        super().__init__(args)
        self._tries = tries

    async def _start(self, engine: LiveSession) -> None:
        await engine.start(self._args.url, {})

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

    def _report(self, engine: LiveSession) -> int:
        snapshot = engine.snapshot()
        (run,) = snapshot.runs
        if run.state == "failed":
            output.problem(run.error or "nothing could be read")
            return USAGE
        failed = run.validity is not None and run.validity.verdict == "invalid"
        failed = not self._write(engine, snapshot) or failed
        if run.validity is not None and run.validity.verdict != "valid":
            output.problem(f"run {run.id} is {verdict(run)}")
        return exit_code(failed)


def _steady(view: View) -> bool:
    return view.run is not None and view.run.steady_from_s is not None and not view.down
