"""The private socket of an open console (`run --control`): an agent works on the session of the
screen, and the person can take the control back.

One client at a time, of the same user. `messages.py` has what both say.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from gpuconsole.host.folders import Scratch, runtime_folder
from gpuconsole.mcp.answers import name
from gpuconsole.mcp.messages import (
    Answered,
    Call,
    Cancel,
    Message,
    Progressed,
    Refused,
    Welcome,
    decode_message,
    decode_request,
    encode,
)
from gpuconsole.mcp.tools import BY_NAME, Progress, ToolError
from gpuconsole.session.api import RemoteApi

SOCKET = "control"
MAX_LINE_LENGTH = 1 << 20
"""Bytes of one message."""
MAX_CALLS = 16
"""Calls of a client at the same time."""
TAKEN_BACK = "the person has taken the control"
_PEER = struct.Struct("3i")
"""pid, uid and gid, as SO_PEERCRED has them."""


def is_own(connection: socket.socket) -> bool:
    """Whether the process at the other end belongs to the same user."""
    _, uid, _ = _PEER.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    )
    return bool(uid == os.geteuid())


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A path of the socket by way of a descriptor of its folder: the address of a Unix socket has
    at most 107 bytes. Raises OSError."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


# --- in the console -------------------------------------------------------------------------------


class Called(Protocol):
    """What answers the calls of a client: `Tools`, or more than these."""

    async def call(self, tool_name: str, arguments: object, progress: Progress) -> object: ...


class ControlServer(RemoteApi):
    """Serves the tools to one client at a time. `serve` runs until it is cancelled."""

    def __init__(self, tools: Called, note: Callable[[str], None]) -> None:
        """`note`: a line for the person, which a recording keeps too."""
        self._tools, self._note = tools, note
        self._client: asyncio.StreamWriter | None = None
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._doing: dict[int, str] = {}
        self._taken_back = False

    # --- for the screen ---------------------------------------------------------------------------

    @property
    def activity(self) -> str:
        if self._taken_back:
            return "you have the control: agents are refused"
        if self._client is None:
            return ""
        return f"an agent is connected: {', '.join(self._doing.values()) or 'it waits'}"

    def switch(self) -> str:
        self._taken_back = not self._taken_back
        if not self._taken_back:
            self._note("agents may connect again")
            return "agents may connect again"
        for call in self._calls.values():
            call.cancel()
        self._note(TAKEN_BACK)
        return "you have taken the control; the agent is refused until you press the key again"

    # --- the socket -------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Raises OSError where no private socket can be made."""
        scratch = Scratch(runtime_folder())
        try:
            path = scratch.path / SOCKET
            with short_path(path) as address:
                server = await asyncio.start_unix_server(
                    self.attend, address, limit=MAX_LINE_LENGTH
                )
            os.chmod(path, 0o600)  # nobody else could reach it before: its folder has mode 0700
            async with server:
                await server.serve_forever()
        finally:
            if self._client is not None:
                self._client.close()
            scratch.close()

    async def attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a client until it goes."""
        with contextlib.suppress(asyncio.CancelledError, OSError):
            try:
                if not is_own(writer.get_extra_info("socket")):
                    return
                why = (
                    TAKEN_BACK
                    if self._taken_back
                    else "another agent has the control"
                    if self._client is not None
                    else ""
                )
                if why:
                    self._send(writer, Refused(0, why))
                    await writer.drain()
                    return
                self._client = writer
                self._send(writer, Welcome())
                self._note("an agent has connected")
                await self._listen(reader, writer)
            finally:
                writer.close()
                if self._client is writer:
                    await self._gone()

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take requests until the client goes, or sends something that is none."""
        with contextlib.suppress(ValueError):  # msgspec.DecodeError, a line that is too long
            while line := await reader.readline():
                request = decode_request(line)
                call = self._calls.get(request.id)
                if isinstance(request, Cancel):
                    if call is not None:
                        call.cancel()
                elif call is None and len(self._calls) < MAX_CALLS:
                    self._calls[request.id] = asyncio.create_task(self._answer(request, writer))
                else:
                    self._send(writer, Refused(request.id, "too many calls at the same time"))

    async def _gone(self) -> None:
        """The client has gone: what it left running is taken back."""
        running = list(self._calls.values())
        for call in running:
            call.cancel()
        if running:
            await asyncio.wait(running)
        self._client = None
        self._note("the agent has gone")

    async def _answer(self, request: Call, writer: asyncio.StreamWriter) -> None:
        async def progress(seconds: float, limit_s: float | None, text: str) -> None:
            self._send(writer, Progressed(request.id, seconds, limit_s, text))

        tool = BY_NAME.get(request.tool)
        self._doing[request.id] = clause = _clause(request)
        answer: Message = Refused(request.id, TAKEN_BACK)
        try:
            # `_listen` notes the call first: from Python 3.12 on, Textual has tasks begin within
            # `create_task`
            await asyncio.sleep(0)
            if not self._taken_back:
                if tool is not None and tool.changes:
                    self._note(f"the agent: {clause}")
                answer = Answered(
                    request.id, await self._tools.call(request.tool, request.arguments, progress)
                )
        except ToolError as error:
            answer = Refused(request.id, str(error))
        except Exception as problem:  # the screen goes on, whatever a call does
            answer = Refused(request.id, f"internal error: {name(repr(problem))}")
        except asyncio.CancelledError:
            answer = Refused(request.id, TAKEN_BACK if self._taken_back else "cancelled")
        finally:
            del self._calls[request.id], self._doing[request.id]
            self._send(writer, answer)

    def _send(self, writer: asyncio.StreamWriter, message: Message) -> None:
        """A client that reads nothing for a megabyte of answers is dropped."""
        if writer.transport.get_write_buffer_size() > MAX_LINE_LENGTH:
            writer.transport.abort()
        elif not writer.is_closing():
            writer.write(encode(message) + b"\n")


def _clause(call: Call) -> str:
    """What a call does, in a clause for the screen."""
    given = call.arguments if isinstance(call.arguments, dict) else {}
    changes = given.get("changes")
    shown = (
        changes
        if isinstance(changes, dict)
        else {key: value for key, value in given.items() if key in ("finding", "what", "steps")}
    )
    return name(" ".join([call.tool, *(f"{key}={value}" for key, value in shown.items())]), 60)


# --- in the process of the client -----------------------------------------------------------------


class NoConsole(Exception):
    """There is no console to connect to. The message is one line."""


def open_consoles() -> dict[int, Path]:
    """The sockets of this user's consoles by pid. Raises OSError."""
    sockets = {}
    for path in runtime_folder().glob(f"scratch-*/{SOCKET}"):
        pid = path.parent.name.split("-")[-2]
        if pid.isdecimal() and Path("/proc", pid).exists():
            sockets[int(pid)] = path
    return sockets


def choose_console(pid: int) -> Path:
    """The socket of the console `pid`; 0: of the only one. Raises NoConsole."""
    try:
        consoles = open_consoles()
    except OSError as error:
        raise NoConsole(str(error)) from None
    if pid:
        if pid not in consoles:
            raise NoConsole(
                f"no console with the pid {pid} was started with --control; there are:"
                f" {_pids(consoles)}"
            )
        return consoles[pid]
    if len(consoles) != 1:
        text = (
            f"several consoles are open: name one of {_pids(consoles)}"
            if consoles
            else "no console is open that was started with --control"
        )
        raise NoConsole(text)
    return next(iter(consoles.values()))


def _pids(consoles: dict[int, Path]) -> str:
    return ", ".join(map(str, sorted(consoles))) or "none"


class ControlClient:
    """The tools of an open console. `call` is used as `Tools.call`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._number = 0
        self._waiting: dict[int, tuple[asyncio.Future[Any], Progress]] = {}
        self._lost = "the console has ended"
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, path: Path) -> ControlClient:
        """Raises NoConsole, also where the console refuses."""
        try:
            with short_path(path) as address:
                reader, writer = await asyncio.open_unix_connection(address, limit=MAX_LINE_LENGTH)
            first = decode_message(await reader.readline())
        except (OSError, ValueError):
            raise NoConsole("the console does not answer") from None
        if isinstance(first, Refused):
            raise NoConsole(first.why)
        return cls(reader, writer)

    async def call(self, tool: str, arguments: object, progress: Progress) -> object:
        """The answer of a tool as plain data. Raises ToolError."""
        if self._reading.done():
            raise ToolError(self._lost)
        self._number += 1
        number, answer = self._number, asyncio.get_running_loop().create_future()
        self._waiting[number] = answer, progress
        self._writer.write(encode(Call(number, tool, arguments)) + b"\n")
        try:
            return await answer
        except asyncio.CancelledError:
            self._writer.write(encode(Cancel(number)) + b"\n")
            raise
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        self._writer.close()
        self._reading.cancel()
        await asyncio.wait([self._reading])

    async def _read(self) -> None:
        try:
            with contextlib.suppress(OSError, ValueError):
                while line := await self._reader.readline():
                    await self._take(decode_message(line))
        finally:
            for answer, _ in self._waiting.values():
                if not answer.done():
                    answer.set_exception(ToolError(self._lost))

    async def _take(self, message: Message) -> None:
        if isinstance(message, Welcome) or message.id not in self._waiting:
            return
        answer, progress = self._waiting[message.id]
        if isinstance(message, Progressed):
            await progress(message.seconds, message.limit_s, message.text)
        elif not answer.done():
            if isinstance(message, Answered):
                answer.set_result(message.answer)
            else:
                answer.set_exception(ToolError(message.why))
