"""`gpuconsole mcp`: the engine of `run`, driven by an agent on stdin and stdout."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
from pathlib import Path

from gpuconsole.cli import output
from gpuconsole.cli.exits import NOT_EXECUTABLE, exit_code, on_interrupt
from gpuconsole.cli.files import patch_lines, patch_of
from gpuconsole.cli.options import UsageError
from gpuconsole.cli.session import session
from gpuconsole.engine.children.job import JobCommand
from gpuconsole.engine.job import log_path
from gpuconsole.experiments.session import LiveSession
from gpuconsole.host.files import unused
from gpuconsole.mcp.control import ControlClient, NoConsole
from gpuconsole.mcp.server import Descriptors, claim, run_mcp_server
from gpuconsole.mcp.tools import PROBES, Tools
from gpuconsole.model.job import LOADER, NUMERICS
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.session.api import SessionError

COLUMNS = 120
ROWS = 40
"""The terminal of the job."""


class AgentSession:
    """One session from its start until the client goes. `run` returns the exit code: that of a job
    that has ended."""

    def __init__(self, args: argparse.Namespace, knobs: Knobs) -> None:
        """`knobs`: the settings that the person gave for a scenario."""
        self._args, self._knobs = args, knobs

    def run(self) -> int:
        ends = claim()
        return asyncio.run(self._main(ends))

    async def _main(self, ends: Descriptors) -> int:
        async with session(self._args) as engine:
            file = None
            if self._args.job:
                file = (self._args.output or _own_file()).absolute()
                try:
                    await engine.start_job_on_terminal(
                        self._command(), COLUMNS, ROWS, file, new=self._args.output is None
                    )
                except SessionError as error:
                    output.problem(str(error))
                    return NOT_EXECUTABLE
            else:
                await engine.start(self._args.scenario, self._knobs)
            await self._serve(engine, ends, file)
            await self._end(engine)
        job = engine.job
        if job is None:
            return exit_code()
        if job.exit_code is None:
            output.print_note(f"{job.about}; its output goes to {file}")
            return exit_code()
        return job.exit_code

    def _command(self) -> JobCommand:
        return JobCommand(
            tuple(self._args.job), stored=self._args.store_command, memory=self._args.memory
        )

    async def _serve(self, engine: LiveSession, ends: Descriptors, file: Path | None) -> None:
        """Serve the client until it goes, or until a signal ends this process."""
        granted = {
            PROBES: self._args.may_probe,
            NUMERICS: self._args.may_change_numerics,
            LOADER: self._args.may_change_loader,
        }
        tools = Tools(
            engine, patch_of, frozenset(what for what, given in granted.items() if given), file
        )
        serving = asyncio.create_task(run_mcp_server(tools.call, ends))
        on_interrupt(serving.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    async def _end(self, engine: LiveSession) -> None:
        """Write the files that the person asked for."""
        for line in patch_lines(engine.snapshot(), self._args.patch):
            output.print_note(line)
        if self._args.snapshot is not None:
            try:
                engine.export(self._args.snapshot)
            except SessionError as error:
                output.problem(str(error))


def connect(path: Path) -> int:
    """Serve the tools of an open console until the client goes. `path`: the socket of the console.
    Raises UsageError where the console refuses."""
    ends = claim()

    async def main() -> int:
        try:
            console = await ControlClient.connect(path)
        except NoConsole as problem:
            raise UsageError(f"--connect: {problem}") from None
        serving = asyncio.create_task(run_mcp_server(console.call, ends))
        on_interrupt(serving.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        await console.close()
        return exit_code()

    return asyncio.run(main())


def _own_file() -> Path:
    """A file for the output of the job; the pid tells sessions apart that start in the same
    second."""
    usual = log_path()
    return unused(usual.with_name(f"{usual.stem}-{os.getpid()}{usual.suffix}"))
