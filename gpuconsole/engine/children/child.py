"""A child process and its wire: start it, read its events, send it commands, and end it with all
that it has started."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import socket
import subprocess
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gpuconsole.engine.children.early import EarlyChild
from gpuconsole.engine.children.environment import child_command, child_environment
from gpuconsole.engine.children.signals import kill_group, kill_leftovers
from gpuconsole.wire.events import AnyEvent, Command, Note, decode_event, encode

LINE_LIMIT = 64 * 1024 * 1024
"""Bytes of the longest line that is accepted."""
CHUNK = 1 << 16
LAST_WORDS = 40
"""Lines of a child's output that are kept."""
LAST_WORDS_CHARS = 10_000
"""Characters that are kept of a line without an end."""
HANG_UP_S = 3.0
"""Seconds that a child may take to end its own children after its connection has been closed. The
child itself takes CLEAN_UP_S at most."""
STOP_S = 3.0
"""Seconds between the request to stop and the kill."""


class Child:
    """A child process that sends events and receives commands, as JSON lines over one socket.

    `on_event` receives each event; `on_exit` receives the exit code, once. The child's stdout and
    stderr never reach the terminal: `last_words` keeps the last lines. The child leads a process
    group of its own, so that ending the child ends its children too.
    """

    def __init__(
        self,
        module: str,
        arguments: list[str],
        on_event: Callable[[AnyEvent], None],
        on_exit: Callable[[int], None],
        env: Mapping[str, str] | None = None,
        early: EarlyChild | None = None,
    ) -> None:
        """`env`: variables of the child, beside those of this process. Every user of the machine
        can read a command line, but not the variables. `early`: the child runs already."""
        self.last_words: deque[str] = deque(maxlen=LAST_WORDS)
        self._env = dict(env or {})
        self._module = module
        self._arguments = arguments
        self._on_event = on_event
        self._on_exit = on_exit
        self._early = early
        self._process: asyncio.subprocess.Process | subprocess.Popen[bytes] | None = None
        self._output: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = asyncio.Event()
        self.exited = asyncio.Event()
        """Set once the child has ended and all its events have been received."""

    async def start(self) -> None:
        if self._early is not None:
            ours = self._early.socket
            await self._take_over(self._early.process)
        else:
            ours, theirs = socket.socketpair()
            with theirs:
                await self._spawn(
                    [self._module, "--fd", str(theirs.fileno()), *self._arguments],
                    pass_fds=[theirs.fileno()],
                )
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=LINE_LIMIT)
        self._watch([asyncio.create_task(self._read_events(reader))])

    async def _spawn(self, module: list[str], *, pass_fds: Sequence[int] = ()) -> None:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.subprocess_exec(
            lambda: EndProtocol(self._ended),
            *child_command(*module),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=pass_fds,
            start_new_session=True,
            env=child_environment(self._env),
        )
        self._process = asyncio.subprocess.Process(transport, protocol, loop)
        self._output = self._process.stdout

    async def _take_over(self, process: subprocess.Popen[bytes]) -> None:
        loop, output = asyncio.get_running_loop(), asyncio.StreamReader()

        def wait() -> None:
            process.wait()
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._ended.set)

        threading.Thread(target=wait, name="early child", daemon=True).start()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(output), process.stdout)
        self._process, self._output = process, output

    def _watch(self, readers: list[asyncio.Task[None]]) -> None:
        """Read the child's output, and clean up when the child ends."""
        readers = [*readers, asyncio.create_task(self._read_output())]
        self._tasks = [*readers, asyncio.create_task(self._wait(readers))]

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        return self._process is not None and not self.exited.is_set()

    def send(self, command: Command) -> None:
        """Queue a command; nothing happens when the child has ended."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode(command) + b"\n")

    async def stop(self, command: Command, patience_s: float = STOP_S) -> None:
        """Send `command`, wait `patience_s` seconds for the end, then kill the whole group. Returns
        when the child has ended."""
        if not self.alive:
            return
        self.send(command)
        try:
            await asyncio.wait_for(self.exited.wait(), patience_s)
        except TimeoutError:
            self.kill()
            await self.exited.wait()

    def hang_up(self) -> None:
        """Close the connection: the child ends its own children in good order, and itself
        (`wire.channel.kill_own_group`). After HANG_UP_S the whole group is killed. Nothing happens
        when the child has ended."""
        if not self.alive or self._writer is None:
            return self.kill()
        self._writer.transport.abort()
        asyncio.get_running_loop().call_later(HANG_UP_S, self.kill)

    def kill(self) -> None:
        """End the child and its own children at once; nothing happens when the child has ended."""
        if self._process is not None and self._process.returncode is None:
            kill_group(self._process.pid)

    async def _read_events(
        self, reader: asyncio.StreamReader, on_event: Callable[[AnyEvent], None] | None = None
    ) -> None:
        """Read until the end, or until a line is too long."""
        rest = bytearray()
        with contextlib.suppress(OSError):
            while len(rest) <= LINE_LIMIT and (chunk := await reader.read(CHUNK)):
                rest += chunk
                if b"\n" in chunk:
                    *lines, rest = rest.split(b"\n")
                    for line in lines:
                        self._take_line(bytes(line), on_event or self._on_event)

    def _take_line(self, line: bytes, on_event: Callable[[AnyEvent], None]) -> None:
        try:
            event = decode_event(line)
        except (msgspec.DecodeError, RecursionError):
            self.last_words.append(f"not understood on the wire: {line[:200]!r}")
            return
        try:
            on_event(event)
        except Exception as problem:  # one message must not end the reading of the others
            where = traceback.extract_tb(problem.__traceback__)[-1]
            text = f"{type(problem).__name__} at {where.name}:{where.lineno}: {problem}"
            if text not in self.last_words:
                self.last_words.append(text)
                self._on_event(Note(event.t, f"a message was left out: {text}", "error"))

    async def _read_output(self) -> None:
        assert self._output is not None
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        rest = ""
        try:
            while chunk := await self._output.read(65536):
                *lines, rest = (rest + decoder.decode(chunk)).split("\n")
                self.last_words.extend(line.rstrip("\r") for line in lines)
                rest = rest[-LAST_WORDS_CHARS:]
        finally:
            if rest:
                self.last_words.append(rest)

    async def _wait(self, readers: list[asyncio.Task[None]]) -> None:
        assert self._process is not None
        await self._ended.wait()
        kill_leftovers(self._process.pid)  # loader workers, for instance
        await asyncio.wait(readers, timeout=1.0)
        for task in readers:
            task.cancel()
        if self._writer is not None:
            self._writer.close()
        self.exited.set()
        assert self._process.returncode is not None
        self._on_exit(self._process.returncode)


class EndProtocol(asyncio.subprocess.SubprocessStreamProtocol):
    """Sets `ended` when the process ends. `Process.wait` would wait for the end of its output too,
    and a grandchild may keep that open."""

    def __init__(self, ended: asyncio.Event) -> None:
        super().__init__(limit=2**16, loop=asyncio.get_running_loop())
        self._ended = ended

    def process_exited(self) -> None:
        super().process_exited()
        self._ended.set()


async def read_line(reader: asyncio.StreamReader, most_bytes: int) -> bytes:
    """The next line, also a longer one than `reader` holds at a time; empty at the end. Raises
    ValueError for more than `most_bytes`, OSError."""
    line = bytearray()
    while True:
        try:
            line += await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError as overrun:
            line += await reader.readexactly(overrun.consumed)
            if len(line) <= most_bytes:
                continue
        except asyncio.IncompleteReadError:
            return b""
        if len(line) > most_bytes:
            raise ValueError(f"a line of more than {most_bytes} bytes")
        return bytes(line)
