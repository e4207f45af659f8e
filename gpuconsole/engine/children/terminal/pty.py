"""Open the pseudo-terminal of a user's job, start the process that holds the terminal, and collect
the output that the console receives."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from gpuconsole.engine.children.terminal.lines import OutputLines
from gpuconsole.host.files import open_own

_HERE = Path(__file__).parent
LAST_S = 1.5
"""Seconds to wait for further output after the end of the job. A child process that outlives the
job may keep the terminal open."""
MAX_LAST_S = 10.0
"""Most seconds to wait for the last output in all: a child process that outlives the job may print
on and on."""


class JobTerminal:
    """A pseudo-terminal for one job. `slave` is the job's stdin, stdout and stderr; `lines` is its
    output as text.

    The terminal belongs to a process of its own (`holder.py`). So the job keeps its terminal when
    the console ends, and its output then goes to the file `log`, unless all of it goes to the file
    `output` anyway. The terminal leaves newlines as they are: a file gets the bytes that the job
    wrote.
    """

    def __init__(
        self, columns: int, rows: int, output: Path | None, log: Path, new: bool = False
    ) -> None:
        """`new`: `output` must not exist, see `open_own`. Raises OSError for `output`, and where
        the system gives no pseudo-terminal."""
        self.lines = OutputLines()
        self.output, self.log = output, log
        self._file = open_own(output, new=new, append=True) if output is not None else -1
        try:
            self._master, self.slave = os.openpty()
        except OSError:
            self._close_file()
            raise
        self.resize(columns, rows)
        mode = termios.tcgetattr(self.slave)
        mode[1] &= ~termios.ONLCR
        termios.tcsetattr(self.slave, termios.TCSANOW, mode)
        self._reading: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._slave_open = True
        self._last_until = 0.0

    @property
    def leader(self) -> tuple[str, ...]:
        """The words in front of the job's command by which the job becomes the leader of this
        terminal. Its process must lead a new session, with `slave` as stdin."""
        return (sys.executable, "-I", "-S", str(_HERE / "lead.py"))

    async def hold(self) -> None:
        """Start the process that holds the terminal, and read the output. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            files = [self._master, theirs.fileno(), self._file]
            self._holder = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    str(_HERE / "holder.py"),
                    *map(str, files),
                    str(self.log),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[file for file in files if file >= 0],
                start_new_session=True,
            )
        self._close_file()
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._reading = asyncio.create_task(self._read(reader))

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def job_started(self) -> None:
        """Close the job's side of the terminal in this process. Then the terminal ends with the
        job."""
        if self._slave_open:
            self._slave_open = False
            os.close(self.slave)

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of the terminal; the job gets SIGWINCH."""
        with contextlib.suppress(OSError):
            fcntl.ioctl(
                self._master,
                termios.TIOCSWINSZ,
                struct.pack("HHHH", max(1, rows), max(1, columns), 0, 0),
            )

    def type(self, text: str) -> None:
        """Send `text` to the job's stdin, as if it were typed. Nothing happens when the job reads
        nothing and the terminal is full."""
        os.set_blocking(self._master, False)
        with contextlib.suppress(OSError):
            os.write(self._master, text.encode())

    async def last_output(self) -> list[str]:
        """Wait for the last output of a job that has ended, and return the lines of the output."""
        self._last_until = self._last_until or time.monotonic() + MAX_LAST_S
        version = -1
        while self._reading is not None and version != self.lines.version:
            version = self.lines.version
            await asyncio.wait([self._reading], timeout=LAST_S)
            if self._reading.done() or time.monotonic() > self._last_until:
                break
        return self.lines.text()

    async def close(self, ended: bool) -> None:
        """Leave the terminal to the process that holds it. `ended`: the job has ended, and this
        method waits for its last output. Otherwise further output goes to a file."""
        self.job_started()
        if self._reading is not None and self._writer is not None:
            if ended:
                self._writer.write(b"e")
                await self.last_output()
            self._reading.cancel()
            self._writer.close()
        self._close_file()
        with contextlib.suppress(OSError):
            os.close(self._master)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(1 << 16):
                self.lines.feed(chunk)
