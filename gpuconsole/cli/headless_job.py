"""`gpuconsole run --headless -- COMMAND`: the user's own job runs as ever, and the summary follows
on stderr or in a file."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys

import msgspec

from gpuconsole.cli import output
from gpuconsole.cli.exits import FAILED, NOT_EXECUTABLE
from gpuconsole.cli.files import patch_lines, save
from gpuconsole.cli.headless import regressed, report_baselines
from gpuconsole.cli.hints import job_hints
from gpuconsole.cli.job_work import JobWork, TrialOnJob
from gpuconsole.cli.session import session
from gpuconsole.engine.children.job import JobChild, JobCommand
from gpuconsole.experiments.session import LiveSession
from gpuconsole.host.files import write_whole
from gpuconsole.model.snapshot import Snapshot
from gpuconsole.model.text import clean
from gpuconsole.report.cells import plain
from gpuconsole.report.session import session_text
from gpuconsole.session.api import SessionError
from gpuconsole.wire.events import AnyEvent, Note

PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Signals that go to the job."""
OF_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
"""Signals that a terminal sends to all processes in its foreground: the job has such a signal
already."""
HARDER = {2: signal.SIGTERM, 3: signal.SIGKILL}
"""What a further Ctrl-C adds for a job that has not ended."""

TRIAL_ENDS_S = 2.0
"""Seconds that a trial has to report its end after the end of the job."""


class HeadlessJob:
    """One job from its start to the summary. `run` returns the exit code of the job."""

    def __init__(self, args: argparse.Namespace, work: JobWork | None = None) -> None:
        """`work` is done while the job runs."""
        self._args, self._work = args, work
        self._notes: list[str] = []
        self._interrupts = 0

    def run(self) -> int:
        """The job's exit code, or minus the signal that ended the job."""
        return asyncio.run(self._main())

    async def _main(self) -> int:
        stored, numerics, loader, memory = (
            getattr(self._args, name, False)
            for name in ("store_command", "allow_numerics", "allow_loader", "memory")
        )
        async with session(
            self._args, prepare=lambda engine: engine.listeners.append(self._on_event)
        ) as engine:
            try:
                command = JobCommand(
                    tuple(self._args.job),
                    stored=stored,
                    memory=memory,
                    allows_numerics=numerics,
                    allows_loader=loader,
                )
                worker = await engine.start_job(command)
            except SessionError as error:
                output.problem(str(error))
                return NOT_EXECUTABLE
            job = worker.job
            assert job is not None
            self._pass_signals_on(job)
            working = asyncio.create_task(self._do_work(engine))
            await job.exited.wait()
            await self._end_work(engine, working)
            assert job.returncode is not None
            return FAILED if self._report(engine) and job.returncode == 0 else job.returncode

    async def _do_work(self, engine: LiveSession) -> None:
        if self._work is not None:
            try:
                await self._work.run(engine, output.print_note)
            except SessionError as error:
                self._notes.append(str(error))

    async def _end_work(self, engine: LiveSession, working: asyncio.Task[None]) -> None:
        """The job has ended: end what was done on it."""
        if (
            self._work is not None
            and self._work.settles
            and any(trial.state == "running" for trial in engine.snapshot().trials)
        ):
            await asyncio.wait([working], timeout=TRIAL_ENDS_S)
        working.cancel()
        await asyncio.wait([working])
        await engine.settled()

    def _pass_signals_on(self, job: JobChild) -> None:
        loop = asyncio.get_running_loop()
        for number in PASSED_ON:
            loop.add_signal_handler(number, self._pass_on, number, job)

    def _pass_on(self, number: signal.Signals, job: JobChild) -> None:
        """Pass a signal on to the job, unless the terminal has sent it to the job too. Further
        Ctrl-C add what HARDER says."""
        if number not in OF_THE_TERMINAL or not in_foreground():
            job.signal(number)
        if number == signal.SIGINT and job.returncode is None:
            self._interrupts += 1
            if harder := HARDER.get(min(self._interrupts, max(HARDER))):
                output.problem(f"{harder.name} sent to the job")
                job.signal(harder)

    def _on_event(self, event: AnyEvent) -> None:
        if isinstance(event, Note) and event.level != "info":
            self._notes.append(event.text)

    def _report(self, engine: LiveSession) -> bool:
        """Write the summary and the snapshot. Returns whether --fail-on-regression or
        --save-baseline asks for the exit code 1.

        A file that cannot be written does not change the exit code of the job."""
        snapshot = engine.snapshot()
        lines = [
            session_text(
                snapshot, output.paint(sys.stderr) if self._args.summary is None else plain
            )
        ]
        if self._work is not None:
            snapshot = msgspec.structs.replace(
                snapshot.with_tuning(self._work.certificate), sweeps=self._work.sweeps()
            )
            self._work.certificate = snapshot.tuning
            lines.append(self._work.report())
        lines += self._last_lines(snapshot)
        save(snapshot, self._args.snapshot)
        self._write_summary("\n".join(lines) + "\n")
        report_baselines(engine)
        slower = getattr(self._args, "fail_on_regression", False) and regressed(snapshot)
        return bool(
            slower or (getattr(self._args, "save_baseline", False) and engine.baselines.failed)
        )

    def _last_lines(self, snapshot: Snapshot) -> list[str]:
        """What a person should read after the report: problems, the patch, what could be tried."""
        patch = patch_lines(
            snapshot, getattr(self._args, "patch", None), getattr(self._args, "snapshot", None)
        )
        hints = job_hints(
            snapshot, self._work.tries if isinstance(self._work, TrialOnJob) else None
        )
        problems = [
            *(run.error for run in snapshot.runs if run.error),
            *self._notes,
            *patch,
            *hints,
        ]
        # it may come from the job
        return [f"gpuconsole: {clean(text.expandtabs())}" for text in problems]

    def _write_summary(self, text: str) -> None:
        if self._args.summary is None:
            output.on_stderr(text)
            return
        try:
            write_whole(self._args.summary, text.encode())
        except OSError as error:
            output.problem(f"{self._args.summary}: {error.strerror}")


def in_foreground() -> bool:
    """Whether this process is in the foreground of a terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
