"""The console of this process: a child process (`gpuconsole/cli/joined.py`) and the socket to it. No thread is started here."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import gpuconsole
from gpuconsole.engine.children.environment import own_environment
from gpuconsole.mcp.messages import Answered, Call, Joined, Refused, decode_message, encode

MODULE = "gpuconsole.cli.joined"
START_S = 30.0
"""Seconds until a console that says nothing is given up."""
END_S = 5.0
"""Seconds until a console that does not end is killed."""
USAGE = 2
"""The exit code of bad usage."""
OF_RUN = ("GPUCONSOLE_AGENT", "GPUCONSOLE_TOKEN")


class WatchError(RuntimeError):
    """Something cannot be done. The message is one line."""


class ConsoleLost(WatchError):
    """The console has ended, or does not answer. The training goes on without it."""


class Console:
    """The child process from its start to `close`. Several threads may call it."""

    def __init__(self, options: Sequence[str]) -> None:
        """Raises ConsoleLost where the console does not start, ValueError for an option that it refuses."""
        ours, theirs = socket.socketpair()
        self._socket, self._errors = ours, tempfile.TemporaryFile()  # noqa: SIM115  # closed with the console
        command = [sys.executable, "-P", "-m", MODULE, "--fd", str(theirs.fileno()), "--pid", str(os.getpid()), *options]
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C, and the interrupt of a notebook's kernel, go to a whole process group
                env=_environment(),
            )
        self._pid = os.getpid()
        self._pending = b""
        self._numbers = itertools.count(1)
        self._answers: dict[int, Answered | Refused] = {}
        self._state = threading.Condition()
        self._reading = False
        self.lost = ""
        """Why the console is gone, in one line; empty while it answers."""
        try:
            self.joined = msgspec.json.decode(self._line(time.monotonic() + START_S), type=Joined)
        except ConsoleLost as problem:
            self.close()
            if self._process.returncode == USAGE:
                raise ValueError(self._last_words()) from None
            raise ConsoleLost(self._last_words() or str(problem)) from None
        except BaseException:  # an interrupt
            self.close()
            raise

    def call(self, tool: str, arguments: object = None, limit_s: float = 10.0) -> Any:
        """The answer of a tool as plain data. Raises WatchError with the reason of a refusal, and ConsoleLost."""
        number = next(self._numbers)
        until = time.monotonic() + limit_s
        with self._state:
            self._send(encode(Call(number, tool, {} if arguments is None else arguments)) + b"\n")
            while number not in self._answers:
                if self.lost:
                    raise ConsoleLost(self.lost)
                if self._reading:
                    self._state.wait(max(0.0, until - time.monotonic()))
                else:
                    self._read(until)
            answer = self._answers.pop(number)
        if isinstance(answer, Refused):
            raise WatchError(answer.why)
        return answer.answer

    def close(self) -> None:
        """End the console. In a process forked from this one, only the descriptor is closed."""
        self._socket.close()
        self.lost = self.lost or "the block is over"
        if os.getpid() != self._pid:
            return
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, line: bytes) -> None:
        if self.lost:
            raise ConsoleLost(self.lost)
        try:
            self._socket.settimeout(END_S)
            self._socket.sendall(line)
        except OSError:
            self._is_gone()

    def _read(self, until: float) -> None:
        """Read one message, for whichever thread waits for it. The other threads may send meanwhile."""
        self._reading = True
        self._state.release()
        try:
            message = decode_message(self._line(until))
        finally:
            self._state.acquire()
            self._reading = False
            self._state.notify_all()
        if isinstance(message, Answered | Refused):
            self._answers[message.id] = message
        if isinstance(message, Refused) and not message.id:
            self.lost = message.why

    def _line(self, until: float) -> bytes:
        while b"\n" not in self._pending:
            try:
                self._socket.settimeout(max(0.01, until - time.monotonic()))
                chunk = self._socket.recv(1 << 16)
            except TimeoutError:
                self._is_gone("the console does not answer")
            except OSError:
                chunk = b""
            if not chunk:
                self._is_gone()
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _is_gone(self, why: str = "") -> None:
        if not self.lost:
            last_words = self._last_words() if os.getpid() == self._pid else ""
            self.lost = why or f"the console has ended{f': {last_words}' if last_words else ''}"
        raise ConsoleLost(self.lost)

    def _last_words(self) -> str:
        """The last line that the child process has printed."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("gpuconsole: ") if lines else ""


def _environment() -> dict[str, str]:
    """The variables of the console. A notebook may have put the folder of gpuconsole on its path by a line of code."""
    env = {name: value for name, value in os.environ.items() if name not in OF_RUN} | own_environment()
    folder = Path(gpuconsole.__file__).parent.parent
    if folder.name not in ("site-packages", "dist-packages"):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), env["PYTHONPATH"])))
    return env
