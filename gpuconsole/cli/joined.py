"""The console of a process that joins by itself, a notebook or a program with `gpuconsole.watch()`:
the session of `run --headless -- COMMAND`, whose job runs already. The process starts it by
`gpuconsole.cli.detached`. The console ends with that process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket

import msgspec

from gpuconsole.cli import options, output
from gpuconsole.cli.exits import FAILED, OK, USAGE
from gpuconsole.cli.files import patch_of
from gpuconsole.cli.headless_job import HeadlessJob
from gpuconsole.cli.job_work import TrialOnJob
from gpuconsole.cli.options import CommandFailed, Option, UsageError, check
from gpuconsole.cli.parser import CommandParser, Mistake, add_options
from gpuconsole.cli.scenario import assignments
from gpuconsole.cli.session import session
from gpuconsole.engine.children.job import JobCommand, JoinedJob
from gpuconsole.host.settings import SettingsError
from gpuconsole.mcp.control import MAX_LINE_LENGTH, ControlServer
from gpuconsole.mcp.messages import LEAVE, SNAPSHOT, Joined, Leave, Left, Refused, encode
from gpuconsole.mcp.tools import Progress, ToolError, Tools, WaitFor, Whole
from gpuconsole.model.run import RunState
from gpuconsole.model.scenario import job_scenario
from gpuconsole.session.api import SessionError

OPTIONS: options.Options = (
    Option("--pid", "the process that joins", "PID", int, required=True),
    Option("--name", "what it is called", "NAME", required=True),
    options.PROBE,
    options.ALLOW_NUMERICS,
    options.ALLOW_LOADER,
    options.MEMORY,
    options.APPLY_TOP,
    options.TRY,
    options.LOG_TO,
    options.WATCHING,
    options.PRINTING,
)
LEAVES_S = 3.0
"""Seconds that the end of the run may take."""


class JoinedSession(HeadlessJob):
    """One process from its start until it goes. `call` answers the process."""

    def run(self) -> int:
        # the process that joined ends by it, or goes on; so does this one then
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return asyncio.run(self._main())

    async def _main(self) -> int:
        async with session(
            self._args, prepare=lambda engine: engine.listeners.append(self._on_event)
        ) as engine:
            self._engine = engine
            command = JobCommand(
                (self._args.name,),
                joins=self._args.pid,
                memory=self._args.memory,
                allows_numerics=self._args.allow_numerics,
                allows_loader=self._args.allow_loader,
            )
            try:
                job = (await engine.start_job(command)).job
            except SessionError as error:
                raise CommandFailed(str(error)) from None
            assert isinstance(job, JoinedJob)
            self._job, self._tools = job, Tools(engine, patch_of)
            self._working = asyncio.create_task(self._do_work(engine))
            await self._serve(Joined(job.folder, job.token))
            job.leave("stopped", "the process has ended")
            await self._end_work(engine, self._working)
        return OK

    async def _serve(self, joined: Joined) -> None:
        """Serve the process until it goes, or ends: processes that it has forked may keep the
        socket open."""
        reader, writer = await asyncio.open_connection(
            sock=socket.socket(fileno=self._args.fd), limit=MAX_LINE_LENGTH
        )
        writer.write(encode(joined) + b"\n")
        attending = asyncio.create_task(
            ControlServer(self, lambda text: None).attend(reader, writer)
        )
        ended = asyncio.create_task(_end_of(self._args.pid))
        await asyncio.wait([attending, ended], return_when=asyncio.FIRST_COMPLETED)
        for task in (attending, ended):
            task.cancel()

    async def call(self, tool_name: str, arguments: object, progress: Progress) -> object:
        """The answer of a tool; SNAPSHOT and LEAVE are tools of this process alone. Raises
        ToolError."""
        if tool_name == SNAPSHOT:
            return self._engine.snapshot()
        if tool_name == LEAVE:
            given = msgspec.convert(arguments, Leave)
            return await self._leave(given.state, given.error)
        return await self._tools.call(tool_name, arguments, progress)

    async def _leave(self, state: RunState, error: str | None) -> Left:
        """The block of the process is over."""
        self._job.leave(state, error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._job.exited.wait(), LEAVES_S)
        await self._end_work(self._engine, self._working)
        snapshot = self._engine.snapshot()
        status = await self._tools.status(WaitFor(), _no_progress)
        try:
            patch = (await self._tools.patch(Whole(all=True), _no_progress)).text.from_job
        except ToolError:
            patch = ""
        lines = [self._work.report()] if self._work is not None and self._work.report() else []
        return Left(snapshot, status, patch, [*lines, *self._last_lines(snapshot)])


async def _no_progress(seconds: float, limit_s: float | None, text: str) -> None:
    """Nobody waits."""


async def _end_of(pid: int) -> None:
    """Wait until the process `pid` has ended."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(process, ended.set)
    try:
        await ended.wait()
    finally:
        asyncio.get_running_loop().remove_reader(process)
        os.close(process)


def main(fd: int) -> int:
    """`fd`: the socket to the process that joins."""
    parser = CommandParser(prog="gpuconsole", allow_abbrev=False)
    add_options(parser, OPTIONS)
    try:
        args = parser.parse_args()
        args.command, args.job, args.fd = "watch", [args.name], fd
        check(args)
        output.configure(args)
        tries = assignments(args.tries, job_scenario(args.name))
        work = TrialOnJob(tries) if tries or args.apply_top else None
        return JoinedSession(args, work).run()
    except (Mistake, UsageError, SettingsError) as error:
        os.write(fd, encode(Refused(0, str(error))) + b"\n")
        return USAGE
    except CommandFailed as error:
        output.problem(str(error))
        return FAILED
