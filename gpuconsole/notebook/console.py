"""The console of this process: a process of its own (`gpuconsole/cli/joined.py`), which is no child
of this one, and the socket to it. No thread is started here."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
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

MODULE = "gpuconsole.cli.detached"
START_S = 30.0
"""Seconds until a console that says nothing is given up."""
END_S = 5.0
"""Seconds until a console that does not end is killed."""
OF_RUN = ("GPUCONSOLE_AGENT", "GPUCONSOLE_TOKEN")


class WatchError(RuntimeError):
    """Something cannot be done. The message is one line."""


class ConsoleLost(WatchError):
    """The console has ended, or does not answer. The training goes on without it."""


class Detached:
    """A process that is no child of this one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._fd = os.pidfd_open(pid)
        except ProcessLookupError:  # it has ended
            self._fd = -1

    def end(self, limit_s: float) -> None:
        """Wait for the end of the process; kill it after `limit_s`."""
        if self._fd < 0:
            return
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if not poll.poll(limit_s * 1000):
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)
            poll.poll()
        # the first process of a container is the parent of all that have lost theirs
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class Console:
    """The console's process from its start to `close`. Several threads may call it."""

    def __init__(self, options: Sequence[str]) -> None:
        """Raises ConsoleLost where the console does not start, ValueError for an option that it
        refuses."""
        ours, theirs = socket.socketpair()
        self._socket, self._errors = ours, tempfile.TemporaryFile()  # noqa: SIM115  # closed with the console
        self._pid = os.getpid()
        self._pending = b""
        self._numbers = itertools.count(1)
        self._answers: dict[int, Answered | Refused] = {}
        self._state = threading.Condition()
        self._reading = False
        self._process: Detached | None = None
        self.lost = ""
        """Why the console is gone, in one line; empty while it answers."""
        try:
            with theirs:
                self._start(theirs.fileno(), options)
            until = time.monotonic() + START_S
            self._process = Detached(int(self._line(until)))
            answer = msgspec.json.decode(self._line(until), type=Joined | Refused)
        except ConsoleLost as problem:
            words = self._end()
            raise ConsoleLost(words or str(problem)) from None
        except BaseException:  # an interrupt
            self.close()
            raise
        if isinstance(answer, Refused):
            self.close()
            raise ValueError(answer.why)
        self.joined = answer

    def _start(self, fd: int, options: Sequence[str]) -> None:
        """Start the console. Returns once the child process that starts it has ended."""
        subprocess.run(
            [sys.executable, "-P", "-m", MODULE, str(fd), "--pid", str(self._pid), *options],
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            pass_fds=[fd],
            # Ctrl-C, and the interrupt of a notebook's kernel, go to a whole process group
            start_new_session=True,
            env=_environment(),
            check=False,
        )

    def call(self, tool: str, arguments: object = None, limit_s: float = 10.0) -> Any:
        """The answer of a tool as plain data. Raises WatchError with the reason of a refusal, and
        ConsoleLost."""
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
        """End the console. In a process forked from this one, only the descriptors are closed."""
        self._end()

    def _end(self) -> str:
        """As `close`. Returns the console's last line."""
        self._socket.close()
        self.lost = self.lost or "the block is over"
        is_ours, last_words = os.getpid() == self._pid, ""
        if is_ours and self._process is not None:
            self._process.end(END_S)
        if is_ours and not self._errors.closed:
            last_words = self._last_words()
        if self._process is not None:
            self._process.close()
        self._errors.close()
        return last_words

    def _send(self, line: bytes) -> None:
        if self.lost:
            raise ConsoleLost(self.lost)
        try:
            self._socket.settimeout(END_S)
            self._socket.sendall(line)
        except OSError:
            self._is_gone()

    def _read(self, until: float) -> None:
        """Read one message, for whichever thread waits for it. The other threads may send
        meanwhile."""
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
        """The last line that the console has printed."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("gpuconsole: ") if lines else ""


def _environment() -> dict[str, str]:
    """The variables of the console. A notebook may have put the folder of gpuconsole on its path by
    a line of code."""
    env = {
        name: value for name, value in os.environ.items() if name not in OF_RUN
    } | own_environment()
    folder = Path(gpuconsole.__file__).parent.parent
    if folder.name not in ("site-packages", "dist-packages"):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), env["PYTHONPATH"])))
    return env
