"""`gpuconsole run --headless`: the same engine, no terminal needed."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from pathlib import Path

from gpuconsole.cli import output
from gpuconsole.cli.exits import exit_code, on_interrupt
from gpuconsole.cli.options.engine import live_engine
from gpuconsole.cli.options.profile import nsys_line, profile_once
from gpuconsole.cli.options.usage import UsageError
from gpuconsole.cli.progress import Progress
from gpuconsole.cli.trying import nothing_to_try, ready, try_now
from gpuconsole.engine.children.torchrun import MEETING_S
from gpuconsole.engine.children.worker import SERVER_START_S, START_S
from gpuconsole.experiments.session import LiveSession
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.snapshot import Snapshot, encode
from gpuconsole.model.text import visible
from gpuconsole.report.run.figures import outage, verdict
from gpuconsole.report.session import session_text
from gpuconsole.session.api import SessionError, View
from gpuconsole.wire.events import AnyEvent, Note, Requests, SamplerEnded

DEFAULT_DURATION_S = 60.0
TICK_S = 0.25
AFTER_TRIAL_S = 5.0
START_REMOTE_S, PATIENCE_REMOTE_S = 7.0, 10.0
"""With --url, seconds in addition to --duration and --wait until measuring ends: the start of the children. The whole command, with its end,
takes at most --duration, --wait and 10 s. Without a step, it ends after at most 17 s."""
END_S = 6.0
"""Seconds until the end of a run is forced. A worker that does not end in this time is killed."""
TRIAL_LATEST = 0.75
"""A suggestion is tried as soon as the diagnosis is complete, at the latest after this share of the duration."""


class HeadlessRun:
    """One run from start to summary. `run` returns the exit code."""

    def __init__(
        self, args: argparse.Namespace, knobs: Knobs, tries: Knobs, snapshot: Path | None, recording: Path | None, serves: bool = False
    ) -> None:
        """`serves`: the scenario runs a model server, which needs no warm training worker."""
        self._args = args
        self._serves = serves
        self._knobs = knobs
        self._tries = tries
        self._snapshot = snapshot
        self._recording = recording
        self._duration_s: float = args.duration or DEFAULT_DURATION_S
        self._patience_s = (SERVER_START_S if serves else START_S) + (MEETING_S if (args.nnodes or 1) > 1 else 0.0)
        if args.url:  # a server that runs already has nothing to load
            self._patience_s = min(self._duration_s, PATIENCE_REMOTE_S) + START_REMOTE_S + float(getattr(args, "wait", None) or 0.0)
        self._interrupted = asyncio.Event()
        self._progress = Progress(sys.stderr)
        self._remote = bool(args.url)
        self._wait_s = float(getattr(args, "wait", None) or 0.0)
        self._down_since: float | None = None
        self._doubt = "valid"

    def run(self) -> int:
        return asyncio.run(self._main())

    async def _main(self) -> int:
        engine = live_engine(self._args)
        for note in engine.state.notes:
            output.note(note)
        engine.listeners.append(self._on_event)
        on_interrupt(self._interrupted.set)
        warming = asyncio.create_task(_nothing() if self._serves else engine.keep_warm(True))
        try:
            await engine.open()
            await warming
            if self._recording is not None:
                engine.toggle_recording(self._recording)
            await engine.start(self._args.scenario, self._knobs)
            await self._measure(engine)
            with contextlib.suppress(TimeoutError):  # the worker was killed then, and the run is closed
                await asyncio.wait_for(engine.end_run("stopped" if self._interrupted.is_set() else "finished"), END_S)
            return self._report(engine)
        except SessionError as error:
            raise UsageError(str(error)) from None
        finally:
            self._progress.done()
            warming.cancel()
            await engine.close()

    def _on_event(self, event: AnyEvent) -> None:
        if isinstance(event, Note | SamplerEnded):
            self._progress.line(event.text)
        elif isinstance(event, Requests) and bool(event.down) != (self._down_since is not None):
            self._report_outage(event)

    def _report_outage(self, event: Requests) -> None:
        """A line when the server stops to answer, and a line when it answers again."""
        if event.down:
            self._down_since = event.down_since or event.t
            self._progress.line(f"gpuconsole: the server does not answer: {visible(event.down)}")
        elif self._down_since is not None:
            self._progress.line(f"gpuconsole: the server answers again after {event.t - self._down_since:.0f} s")
            self._down_since = None

    def _report_doubt(self, view: View) -> None:
        """A line with the reasons when the figures of the run become degraded or invalid. An outage has lines of its own."""
        found = view.run.validity if view.run is not None else None
        if found is None or view.down or found.verdict == self._doubt:
            return
        self._doubt = found.verdict
        if found.verdict != "valid" and view.run is not None:
            self._progress.line(f"gpuconsole: the figures are {verdict(view.run)}")

    async def _measure(self, engine: LiveSession) -> None:
        """Returns when the duration is over, the run has ended, or the user interrupts."""
        first_step: float | None = None
        begun = time.monotonic()
        tried = not (self._args.apply_top or self._tries)
        profiled = not self._args.profile
        while not self._interrupted.is_set():
            view = engine.view()
            if view.state in ("failed", "finished", "stopped"):
                return
            if first_step is None and view.running_s > 0:
                first_step = time.monotonic() - view.running_s
            if first_step is None and time.monotonic() - begun > self._patience_s:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(engine.end_run("failed", f"no step within {self._patience_s:.0f} s{_why_no_step(view)}"), END_S)
                return
            if self._remote and time.monotonic() - begun > self._wait_s + self._duration_s + START_REMOTE_S:
                break
            elapsed = time.monotonic() - first_step if first_step is not None else 0.0
            self._report_doubt(view)
            self._progress.show(view, elapsed, self._duration_s)
            if not profiled and first_step is not None and self._measurable(view, elapsed):
                profiled = True
                await profile_once(engine, self._args.profile, self._interrupted, self._progress.line)
                continue
            late = elapsed > self._duration_s * TRIAL_LATEST
            if not tried and first_step is not None and ready(view, self._tries, late):
                tried = True
                await try_now(engine, self._tries, self._interrupted, self._progress.line)
                # a kept change is measured too, even if the trial used the whole duration
                self._duration_s = max(self._duration_s, time.monotonic() - first_step + AFTER_TRIAL_S)
                continue
            if first_step is not None and elapsed >= self._duration_s:
                break
            await self._wait(TICK_S)
        if not tried and not self._interrupted.is_set():
            view = engine.view()
            self._progress.line(f"no trial: {outage(view) or nothing_to_try(view)}")

    def _measurable(self, view: View, elapsed: float) -> bool:
        """Whether the run is steady, or the share TRIAL_LATEST of the duration has passed."""
        steady = view.run is not None and view.run.steady_from_s is not None
        return steady or elapsed > self._duration_s * TRIAL_LATEST

    async def _wait(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._interrupted.wait(), seconds)
        except TimeoutError:
            return

    def _report(self, engine: LiveSession) -> int:
        snapshot = engine.snapshot()
        failed = any(run.state == "failed" for run in snapshot.runs)
        if self._snapshot is not None:
            try:
                engine.export(self._snapshot)
            except SessionError as error:
                output.problem(str(error))
                failed = True
        if self._args.json:
            sys.stdout.buffer.write(encode(snapshot))
        else:
            print(session_text(snapshot, output.paint(sys.stdout)))
            self._print_nsys_line(engine)
        report_baselines(engine)
        failed = failed or bool(self._args.save_baseline and engine.baselines.failed)
        if self._args.fail_on_regression:
            failed = regressed(snapshot) or failed
        for run in snapshot.runs:
            if run.state == "failed":
                output.problem(f"run {run.id} failed: {run.error}")
            if run.validity is not None and run.validity.verdict != "valid":
                output.problem(f"run {run.id} is {verdict(run)}")
                failed = failed or run.validity.verdict == "invalid" or self._args.require_valid
        return exit_code(failed)

    def _print_nsys_line(self, engine: LiveSession) -> None:
        line = nsys_line(self._args.scenario, self._knobs, engine.device().id) if self._args.profile else None
        if line is not None:
            print(line)


def report_baselines(engine: LiveSession) -> None:
    """A line for each baseline that was kept, and for each that could not be kept."""
    for line in engine.baselines.kept:
        output.note(line)
    for line in engine.baselines.failed:
        output.problem(line)


def regressed(snapshot: Snapshot) -> bool:
    """Whether any run is slower than its baseline. Prints these runs, and the runs without a baseline."""
    for run in snapshot.runs:
        words = run.baseline.words if run.baseline else "there is no baseline for this scenario"
        if run.baseline is None or run.baseline.change is None:
            output.problem(f"run {run.id} could not be checked for a regression: {words}")
        elif run.baseline.verdict == "slower":
            output.problem(f"run {run.id} has regressed: {words}")
    return any(run.baseline is not None and run.baseline.verdict == "slower" for run in snapshot.runs)


def _why_no_step(view: View) -> str:
    why = outage(view) or view.stage
    return f": {why}" if why else ""


async def _nothing() -> None:
    """An empty warm-up, for scenarios that need no warm worker."""
