"""A child process and its wire: started, listened to, and ended with everything it started itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gpuconsole.wire.events import AnyEvent, Command, decode_event, encode

LINE_LIMIT = 64 * 1024 * 1024
LAST_WORDS = 40
STOP_S = 3.0


class Child:
    """One child that speaks the wire. `on_event` gets its events, `on_exit` its exit code, once.

    Its stdout and stderr never reach the terminal; the last lines are kept in `last_words`. It leads its own
    process group, so that ending it ends what it started.
    """

    def __init__(self, module: str, arguments: list[str], on_event: Callable[[AnyEvent], None], on_exit: Callable[[int], None]) -> None:
        self.last_words: deque[str] = deque(maxlen=LAST_WORDS)
        self._module = module
        self._arguments = arguments
        self._on_event = on_event
        self._on_exit = on_exit
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.exited = asyncio.Event()

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            await self._spawn([self._module, "--fd", str(theirs.fileno()), *self._arguments], pass_fds=[theirs.fileno()])
        finally:
            theirs.close()
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=LINE_LIMIT)
        self._watch([asyncio.create_task(self._read_events(reader))])

    async def _spawn(self, module: list[str], *, pass_fds: Sequence[int] = (), env: Mapping[str, str] | None = None) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *module,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=pass_fds,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
        )

    def _watch(self, readers: list[asyncio.Task[None]]) -> None:
        """Read the child's words, and see to its end."""
        readers = [*readers, asyncio.create_task(self._read_words())]
        self._tasks = [*readers, asyncio.create_task(self._wait(readers))]

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        return self._process is not None and not self.exited.is_set()

    def send(self, command: Command) -> None:
        """Queue a command; nothing happens when the child is gone."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode(command) + b"\n")

    async def stop(self, command: Command, patience_s: float = STOP_S) -> None:
        """Ask politely, then kill the whole group. Returns when the child is gone."""
        if not self.alive:
            return
        self.send(command)
        try:
            await asyncio.wait_for(self.exited.wait(), patience_s)
        except TimeoutError:
            self.kill()
            await self.exited.wait()

    def kill(self) -> None:
        """End the child and its own children at once."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _read_events(self, reader: asyncio.StreamReader, hear: Callable[[AnyEvent], None] | None = None) -> None:
        while line := await _line(reader):
            try:
                event = decode_event(line)
            except msgspec.DecodeError:
                self.last_words.append(f"not understood on the wire: {line[:200]!r}")
                continue
            (hear or self._hear)(event)

    def _hear(self, event: AnyEvent) -> None:
        self._on_event(event)

    async def _read_words(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while chunk := await self._process.stdout.read(65536):
            self.last_words.extend(chunk.decode(errors="replace").splitlines())

    async def _wait(self, readers: list[asyncio.Task[None]]) -> None:
        assert self._process is not None
        code = await self._process.wait()
        self.kill()  # what it started and left behind, loader workers for instance
        await asyncio.wait(readers, timeout=1.0)
        for task in readers:
            task.cancel()
        if self._writer is not None:
            self._writer.close()
        self.exited.set()
        self._on_exit(code)


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await reader.readline()
    except (OSError, ValueError):
        return b""
    return line if line.endswith(b"\n") else b""
