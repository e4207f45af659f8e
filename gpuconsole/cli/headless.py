"""`gpuconsole run --headless` and `gpuconsole watch --headless`: the same engine, no terminal
needed."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import shlex
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TextIO

from gpuconsole.cli import output
from gpuconsole.cli.exits import USAGE, exit_code, on_interrupt
from gpuconsole.cli.output import quiet
from gpuconsole.cli.session import ended_before, pause, session
from gpuconsole.diagnosis.engine import in_doubt
from gpuconsole.engine.children.torchrun import MEETING_S
from gpuconsole.engine.children.worker import SERVER_START_S, START_S
from gpuconsole.experiments.session import LiveSession
from gpuconsole.experiments.trial import USUAL
from gpuconsole.model import units
from gpuconsole.model.finding import Interval, Suggestion
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes
from gpuconsole.model.serving import PROBE_REQUESTS, PROBE_S, PROBE_TOKENS
from gpuconsole.model.snapshot import Snapshot, encode
from gpuconsole.model.text import clean, cut, visible, without_credentials
from gpuconsole.report.run.figures import doubtful, outage, verdict
from gpuconsole.report.run.serving import probe_result
from gpuconsole.report.session import session_text, trial_text
from gpuconsole.session import facts
from gpuconsole.session.api import SessionError, View
from gpuconsole.wire.events import AnyEvent, Note, Requests, SamplerEnded

DEFAULT_DURATION_S = 60.0
TICK_S = 0.25
AFTER_TRIAL_S = 5.0
START_REMOTE_S = 7.0
PATIENCE_REMOTE_S = 10.0
"""With --url, seconds in addition to --duration and --wait until measuring ends: the start of the
children. The whole command, with its end, takes at most --duration, --wait and 10 s. Without a
step, it ends after at most 17 s."""
END_S = 6.0
"""Seconds until the end of a run is forced. A worker that does not end in this time is killed."""
NSYS_S = 20
"""Seconds of the run that nsys records."""
TRIAL_LATEST = 0.75
"""A suggestion is tried as soon as the diagnosis is complete, at the latest after this share of the
duration. So it is with a profile, which begins as soon as the run is steady."""


class HeadlessWork(ABC):
    """Measures one run without a terminal, from its start to its summary. `run` returns the exit
    code."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._duration_s: float = args.duration or DEFAULT_DURATION_S
        self._interrupted = asyncio.Event()
        self._progress = ProgressLines(sys.stderr)
        self._down_since: float | None = None

    def run(self) -> int:
        return asyncio.run(self._main())

    async def _main(self) -> int:
        on_interrupt(self._interrupted.set)
        try:
            async with self._session() as engine:
                await self._start(engine)
                await self._measure(engine)
                # a worker that does not end is killed, and the run is closed all the same
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(
                        engine.end_run("stopped" if self._interrupted.is_set() else "finished"),
                        END_S,
                    )
                return self._report(engine)
        finally:
            self._progress.done()

    def _session(self) -> AbstractAsyncContextManager[LiveSession]:
        return session(self._args, prepare=self._listen)

    @abstractmethod
    async def _start(self, engine: LiveSession) -> None:
        """Start the run."""

    @abstractmethod
    async def _measure(self, engine: LiveSession) -> None:
        """Return when the duration is over, the run has ended, or the user interrupts."""

    @abstractmethod
    def _report(self, engine: LiveSession) -> int:
        """Print and write the result. Returns the exit code."""

    def _listen(self, engine: LiveSession) -> None:
        for note in engine.state.notes:
            output.print_note(note)
        engine.listeners.append(self._on_event)

    def _on_event(self, event: AnyEvent) -> None:
        if isinstance(event, Note | SamplerEnded):
            self._progress.line(event.text)
        elif isinstance(event, Requests) and bool(event.down) != (self._down_since is not None):
            self._report_outage(event)

    def _report_outage(self, event: Requests) -> None:
        """Print a line when the server stops to answer, and a line when it answers again."""
        if event.down:
            self._down_since = event.down_since or event.t
            self._progress.line(f"gpuconsole: the server does not answer: {visible(event.down)}")
        elif self._down_since is not None:
            self._progress.line(
                f"gpuconsole: the server answers again after {event.t - self._down_since:.0f} s"
            )
            self._down_since = None

    def _write(self, engine: LiveSession, snapshot: Snapshot) -> bool:
        """Write the snapshot that the options ask for, and print the session. Returns whether the
        file could be written."""
        written = True
        if self._args.snapshot is not None:
            try:
                engine.export(self._args.snapshot)
            except SessionError as error:
                output.problem(str(error))
                written = False
        if self._args.json:
            sys.stdout.buffer.write(encode(snapshot))
        else:
            print(session_text(snapshot, output.paint(sys.stdout)))
        return written


class HeadlessRun(HeadlessWork):
    """A run of a scenario."""

    def __init__(
        self, args: argparse.Namespace, knobs: Knobs, tries: Knobs, serves: bool = False
    ) -> None:
        """`serves`: the scenario runs a model server, which needs no warm training worker."""
        super().__init__(args)
        self._serves = serves
        self._knobs = knobs
        self._tries = tries
        self._wait_s: float = args.wait or 0.0
        self._patience_s = (SERVER_START_S if serves else START_S) + (
            MEETING_S if (args.nnodes or 1) > 1 else 0.0
        )
        if args.url:  # a server that runs already has nothing to load
            self._patience_s = (
                min(self._duration_s, PATIENCE_REMOTE_S) + START_REMOTE_S + self._wait_s
            )
        self._doubt = "valid"

    def _session(self) -> AbstractAsyncContextManager[LiveSession]:
        return session(self._args, prepare=self._listen, warm=not self._serves)

    async def _start(self, engine: LiveSession) -> None:
        await engine.start(self._args.scenario, self._knobs)

    def _report_doubt(self, view: View) -> None:
        """A line with the reasons when the figures of the run become degraded or invalid. An outage
        has lines of its own."""
        validity = view.run.validity if view.run is not None else None
        if validity is None or view.down or validity.verdict == self._doubt:
            return
        self._doubt = validity.verdict
        if validity.verdict != "valid" and view.run is not None:
            self._progress.line(f"gpuconsole: the numbers are {verdict(view.run)}")

    async def _measure(self, engine: LiveSession) -> None:
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
                    await asyncio.wait_for(
                        engine.end_run(
                            "failed", f"no step within {self._patience_s:.0f} s{_why_no_step(view)}"
                        ),
                        END_S,
                    )
                return
            if (
                self._args.url
                and time.monotonic() - begun > self._wait_s + self._duration_s + START_REMOTE_S
            ):
                break
            elapsed = time.monotonic() - first_step if first_step is not None else 0.0
            self._report_doubt(view)
            self._progress.show(view, elapsed, self._duration_s)
            late = elapsed > self._duration_s * TRIAL_LATEST
            steady = view.run is not None and view.run.steady_from_s is not None
            if not profiled and first_step is not None and (steady or late):
                profiled = True
                await profile_once(
                    engine, self._args.profile, self._interrupted, self._progress.line
                )
                continue
            if not tried and first_step is not None and ready(view, self._tries, late):
                tried = True
                await try_now(engine, self._tries, self._interrupted, self._progress.line)
                # a kept change is measured too, even if the trial used the whole duration
                self._duration_s = max(
                    self._duration_s, time.monotonic() - first_step + AFTER_TRIAL_S
                )
                continue
            if first_step is not None and elapsed >= self._duration_s:
                break
            await pause(self._interrupted, TICK_S)
        if not tried and not self._interrupted.is_set():
            view = engine.view()
            self._progress.line(f"no trial: {outage(view) or nothing_to_try(view)}")

    def _report(self, engine: LiveSession) -> int:
        snapshot = engine.snapshot()
        failed = any(run.state == "failed" for run in snapshot.runs)
        failed = not self._write(engine, snapshot) or failed
        if not self._args.json and self._args.profile and shutil.which("nsys"):
            print(f"nsys: {nsys_command(self._args.scenario, self._knobs, engine.device().id)}")
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


def report_baselines(engine: LiveSession) -> None:
    """A line for each baseline that was kept, and for each that could not be kept."""
    for line in engine.baselines.kept:
        output.print_note(line)
    for line in engine.baselines.failed:
        output.problem(line)


def regressed(snapshot: Snapshot) -> bool:
    """Whether any run is slower than its baseline. Prints these runs, and the runs without a
    baseline."""
    for run in snapshot.runs:
        comparison = (
            run.baseline.words if run.baseline else "there is no baseline for this scenario"
        )
        if run.baseline is None or run.baseline.change is None:
            output.problem(f"run {run.id} could not be checked for a regression: {comparison}")
        elif run.baseline.verdict == "slower":
            output.problem(f"run {run.id} has regressed: {comparison}")
    return any(
        run.baseline is not None and run.baseline.verdict == "slower" for run in snapshot.runs
    )


def _why_no_step(view: View) -> str:
    why = outage(view) or view.stage
    return f": {why}" if why else ""


async def profile_once(
    engine: LiveSession, steps: int, interrupted: asyncio.Event, say: Callable[[str], None]
) -> None:
    """Profile `steps` steps; report the reason if there is no profile. Ends early when
    `interrupted` is set."""
    say(f"profiling {steps} steps")
    window = asyncio.create_task(engine.profile(steps))
    if not await ended_before(interrupted, window):
        return
    try:
        window.result()
    except SessionError as error:
        say(f"profile: {error}")


def nsys_command(scenario: str, changes: Knobs, device: str) -> str:
    """The command that records this scenario with Nsight Systems.

    nsys saves CUDA's data twice a second. When the worker is stopped, it ends immediately, and data
    in the buffer is lost.
    """
    values = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in changes.items()
    }
    settings = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
    output = f"gpuconsole-nsys-{re.sub(r'[^A-Za-z0-9._-]+', '-', Path(scenario).stem)}"
    return shlex.join(
        [
            "nsys",
            "profile",
            "--trace=cuda,nvtx,osrt,cublas,cudnn",
            "--sample=none",
            "--cuda-flush-interval=500",
            f"--output={output}",
            "gpuconsole",
            "run",
            scenario,
            *settings,
            "--device",
            device,
            "--headless",
            "--duration",
            str(NSYS_S),
        ]
    )


# --- the progress of a headless run on stderr -----------------------------------------------------
# One line that redraws itself on a terminal, a plain line every few seconds elsewhere.

LINE_EVERY_S = 5.0
BAR = 24
DEFAULT_COLUMNS = 80
"""Width in columns if the terminal does not report its width."""


class ProgressLines:
    """Writes to `stream`. The run continues if the reader of `stream` has ended."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._quiet = quiet()
        self._last = -LINE_EVERY_S
        self._drawn = False
        self._stage = ""

    def show(self, view: View, elapsed: float, duration: float) -> None:
        """The state of the run, `elapsed` of `duration` seconds."""
        if self._quiet:
            return
        text = f"{elapsed:5.0f}/{duration:.0f} s  {clean(describe(view))}"
        with contextlib.suppress(OSError):
            if self._terminal:
                filled = int(BAR * min(1.0, elapsed / duration))
                bar = f"[{'#' * filled}{'.' * (BAR - filled)}] {text}"
                # A line as wide as the terminal would wrap, and the next \r would begin a new row.
                self._write(f"\r\033[K{cut(bar, self._columns() - 1)}")
                self._drawn = True
            elif time.monotonic() - self._last >= LINE_EVERY_S or (
                view.stage != self._stage and _starting(view)
            ):
                self._last, self._stage = time.monotonic(), view.stage
                self._write(f"{text}\n")

    def line(self, text: str) -> None:
        """Write a permanent line, unless --quiet leaves it out. Control characters are made
        visible: the text may come from anywhere."""
        if self._quiet:
            return
        with contextlib.suppress(OSError):
            self.done()
            self._write(f"{clean(without_credentials(text))}\n")

    def done(self) -> None:
        """End the line that redraws itself."""
        if self._drawn:
            self._write("\n")
            self._drawn = False

    def _columns(self) -> int:
        """The present width: the window may have been resized."""
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or DEFAULT_COLUMNS
        except (OSError, ValueError):
            return DEFAULT_COLUMNS

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _starting(view: View) -> bool:
    return view.run is not None and view.run.state == "starting"


def describe(view: View) -> str:
    """The current state in half a line. The rate is the rate of the last second."""
    run = view.run
    if run is None:
        return "starting"
    if run.state == "starting":
        # the rest is a command for other machines, which was printed before
        stage, _, _ = view.stage.partition("; ")
        return f"{run.scenario} {run.place}: {stage or 'starting'}"
    metric, unit = facts.throughput_metric(view)
    rate = facts.latest(view, metric)
    parts = [
        f"{run.scenario} {run.place}",
        f"{units.rate(rate, 0)} {unit}" if rate is not None else "first steps",
    ]
    if view.down:
        return "  ".join([*parts, outage(view)])
    if run.validity is not None and doubtful(run):
        parts.append(run.validity.verdict)
    if view.probing:
        parts.append(f"probe {view.probing}")
    firing = facts.firing(run)
    if firing:
        parts.append(firing[0].rule)
    elif run.steady_from_s is None:
        parts.append("not steady yet")
    return "  ".join(parts)


# --- the trial of a headless run (`--try`, `--apply-top`) -----------------------------------------


def ready(view: View, tries: Knobs, late: bool) -> bool:
    """Whether the diagnosis is complete: the run is steady, no probe runs and no rule is in doubt.
    Without `tries` there must be a suggestion too. `late`: the trial begins without a complete
    diagnosis."""
    run = view.run
    if view.down:
        return False  # a trial on a server that does not answer measures nothing
    if not tries and top_suggestion(view) is None:
        return False  # a later evaluation may suggest a change
    if run is None or run.steady_from_s is None:
        return late
    # a job runs no probe without the user's consent, so a doubt may stay
    settled = run.is_job or not in_doubt(run)
    return (bool(run.findings) and not view.probing and settled) or late


async def try_now(
    engine: LiveSession, tries: Knobs, interrupted: asyncio.Event, say: Callable[[str], None]
) -> None:
    """Try `tries`, or the top suggestion without them, and report by `say`. An interrupt breaks the
    trial off."""
    view = engine.view()
    changes: Knobs = tries
    predicted: Interval | None = None
    if not changes:
        top = top_suggestion(view)
        assert top is not None
        changes, predicted = top.changes, top.predicted_speedup
    say(f"trial: {describe_changes(changes, view.run.settings if view.run else None)}")
    trial = asyncio.create_task(engine.try_change(changes, predicted))
    if not await ended_before(interrupted, trial):
        return
    try:
        for line in trial_text(trial.result(), engine.snapshot()).splitlines():
            say(line)
    except SessionError as error:
        say(f"trial: {error}")


def top_suggestion(view: View) -> Suggestion | None:
    """The first suggestion that can be tried, of the highest-ranked finding that has such a
    suggestion."""
    return next((suggestion for _, suggestion in facts.suggestions(view).values()), None)


def nothing_to_try(view: View) -> str:
    """Why --apply-top has tried nothing."""
    suggested = [
        suggestion.changes
        for finding in facts.firing(view.run)
        for suggestion in finding.suggestions
    ]
    reason = view.run.why_not(suggested[0]) if view.run is not None and suggested else ""
    return (
        f"the suggestion cannot be tried from here: {reason}"
        if reason
        else "no finding suggests a change"
    )


# --- gpuconsole watch --headless: a model server that runs already --------------------------------


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
            if (
                probes
                and begun is not None
                and (_steady(view) or elapsed > self._duration_s * TRIAL_LATEST)
            ):
                await self._probe(engine)
                self._duration_s, probes = (
                    max(self._duration_s, time.monotonic() - begun + AFTER_TRIAL_S),
                    False,
                )
                continue
            if (
                tries
                and begun is not None
                and ready(view, tries, elapsed > self._duration_s * TRIAL_LATEST)
            ):
                self._progress.line(
                    f"the trial takes at most {USUAL.traffic_cap_s / 60:.0f} minutes and the rest"
                    " of its last blocks; Ctrl-C ends it, and the limit goes back"
                )
                await try_now(engine, tries, self._interrupted, self._progress.line)
                self._duration_s, tries = (
                    max(self._duration_s, time.monotonic() - begun + AFTER_TRIAL_S),
                    {},
                )
                continue
            if elapsed >= self._duration_s:
                if tries:
                    self._progress.line(f"no trial: {outage(view) or 'nothing was measured'}")
                return
            await pause(self._interrupted, TICK_S)

    async def _probe(self, engine: LiveSession) -> None:
        """Send the requests of the probe, and print what they show. An interrupt breaks it off."""
        self._progress.line(
            f"probe: {PROBE_REQUESTS} requests of ours, {PROBE_TOKENS} tokens each, {PROBE_S:.0f} s"
            " at most"
        )
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
