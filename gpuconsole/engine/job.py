"""The user's own job on a terminal of its own, as a screen sees it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from gpuconsole.engine.children.job import JobCommand
from gpuconsole.engine.children.terminal.pty import JobTerminal
from gpuconsole.engine.children.worker import WorkerHandle
from gpuconsole.engine.diagnosis_loop import DiagnosisLoop
from gpuconsole.host.files import unused
from gpuconsole.host.folders import make_private, user_folder
from gpuconsole.session.api import JobApi, Output, SessionError

HARDER = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
"""What each Ctrl-C sends to the job."""


class ScreenJob(JobApi):
    """A job whose process and terminal have been started."""

    def __init__(
        self, worker: WorkerHandle, terminal: JobTerminal, diagnosis: DiagnosisLoop
    ) -> None:
        """`worker`: the handle of the job. `diagnosis`: runs the probes that the user allows."""
        assert worker.job is not None
        self.child = worker.job
        self._worker = worker
        self._diagnosis = diagnosis
        self._name, self._terminal = self.child.command.name, terminal
        self._interrupts = 0
        self._left = False

    @property
    def lines(self) -> Output:
        return self._terminal.lines

    @property
    def ended(self) -> bool:
        return self._left or self.child.returncode is not None

    @property
    def about(self) -> str:
        if self._left:
            return f"{self._name} continues without the console"
        code = self.child.returncode
        return f"{self._name} (pid {self.child.pid})" if code is None else f"{self._name} has ended"

    @property
    def kept_in(self) -> Path:
        return self._terminal.output or self._terminal.log

    @property
    def exit_code(self) -> int | None:
        """The exit code of the job, or minus the signal that ended it; None while it runs."""
        return self.child.returncode

    def interrupt(self) -> str:
        number = HARDER[min(self._interrupts, len(HARDER) - 1)]
        self._interrupts += 1
        self.signal(number)
        harder = (
            f"; ctrl+c again sends {HARDER[self._interrupts].name}"
            if self._interrupts < len(HARDER)
            else ""
        )
        return f"{number.name} sent to {self._name}{harder}"

    def signal(self, number: int) -> None:
        self.child.signal(number)

    @property
    def allows_numerics(self) -> bool:
        return self._worker.allows_numerics

    def allow_numerics(self) -> None:
        self._worker.allows_numerics = True

    @property
    def allows_loader(self) -> bool:
        return self._worker.allows_loader

    def allow_loader(self) -> None:
        self._worker.allows_loader = True

    @property
    def allows_probes(self) -> bool:
        return self._diagnosis.may_probe_jobs

    def allow_probes(self) -> None:
        self._diagnosis.allow_probes()

    def type(self, text: str) -> None:
        self._terminal.type(text)

    def resize(self, columns: int, rows: int) -> None:
        self._terminal.resize(columns, rows)

    def leave(self) -> None:
        self._left = True
        self.child.detach()

    async def close(self) -> None:
        """Read the last output of a job that has ended; leave a job that runs."""
        ended = self.child.returncode is not None
        if not ended:
            self.leave()
        await self._terminal.close(ended)


async def start_on_terminal(
    start: Callable[[JobCommand], Awaitable[WorkerHandle]],
    command: JobCommand,
    columns: int,
    rows: int,
    output: Path | None,
    new: bool,
    diagnosis: DiagnosisLoop,
) -> ScreenJob:
    """Start a job by `start` on a new terminal of so many columns and rows; all its output goes to
    the file `output`, if there is one.

    `new`: `output` must not exist yet, not even as a link: nobody has named it. `diagnosis` runs
    the probes that the user allows in the job. Raises SessionError.
    """
    try:
        terminal = JobTerminal(columns, rows, output, log_path(), new)
        await terminal.hold()
    except OSError as error:
        what = (
            f"{error.filename}: cannot be written" if error.filename else "no terminal for the job"
        )
        raise SessionError(f"{what}: {error.strerror}") from None
    try:
        slave = terminal.slave
        own = msgspec.structs.replace(
            command,
            leader=terminal.leader,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            last_output=terminal.last_output,
        )
        worker = await start(own)
    except SessionError:
        await terminal.close(ended=True)
        raise
    terminal.job_started()
    return ScreenJob(worker, terminal, diagnosis)


def log_path() -> Path:
    """The file for the output of a job that the console has left: in the current folder, as with
    nohup; in the user's folder for state (`~/.local/state/gpuconsole`) where the current folder
    cannot be written."""
    try:
        folder: Path | None = Path.cwd()
    except OSError:  # it has been removed
        folder = None
    if folder is None or not os.access(folder, os.W_OK):
        folder = make_private(user_folder("state"))
    return unused(folder / f"gpuconsole-output-{time.strftime('%Y%m%d-%H%M%S')}.txt")
