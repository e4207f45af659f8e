"""The real program in a real pseudo-terminal, its output replayed into a terminal emulator."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pyte

KEYS = {"enter": b"\r", "escape": b"\x1b", "up": b"\x1b[A", "down": b"\x1b[B"}


def seen(char: pyte.screens.Char) -> tuple[object, ...]:
    shape = (char.bg, char.underscore, char.strikethrough, char.reverse)
    if char.data == " " and shape == ("default", False, False, False):
        return (" ",)
    return (char.data, char.fg, char.bold, char.italics, *shape)


class Terminal:
    """`gpuconsole ARGS`, or another module, at `columns` x `rows`. Use as a context manager: the
    program is killed at the end."""

    def __init__(
        self,
        *args: str,
        cwd: Path,
        columns: int = 120,
        rows: int = 40,
        env: dict[str, str] | None = None,
        module: str = "gpuconsole",
        stderr: Path | None = None,
    ) -> None:
        """`stderr`: a file for the program's stderr in place of the terminal."""
        self.raw = bytearray()
        self.columns, self.rows = columns, rows
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._master, slave = pty.openpty()
        self._set_size(slave)
        environment = {
            **os.environ,
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "LANG": "C.UTF-8",
            **(env or {}),
        }
        command = [sys.executable, "-m", module, *args]

        def take_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        with contextlib.ExitStack() as files:
            errors = files.enter_context(stderr.open("w")) if stderr is not None else slave
            self.process = subprocess.Popen(
                command,
                stdin=slave,
                stdout=slave,
                stderr=errors,
                cwd=cwd,
                env=environment,
                preexec_fn=take_terminal,
            )
        os.close(slave)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        self.hang_up()

    @property
    def text(self) -> str:
        """What is on the screen now."""
        return "\n".join(self._screen.display)

    @property
    def cells(self) -> list[list[tuple[object, ...]]]:
        """What can be seen of each cell: of a blank neither colour nor weight."""
        return [
            [seen(self._screen.buffer[y][x]) for x in range(self.columns)] for y in range(self.rows)
        ]

    @property
    def cursor(self) -> tuple[int, int]:
        return self._screen.cursor.x, self._screen.cursor.y

    @property
    def before_cursor(self) -> str:
        """What stands on the cursor's row to the left of it."""
        x, y = self.cursor
        return str(self._screen.display[y][:x])

    @property
    def echoes(self) -> bool:
        """Whether the terminal shows the keys that are pressed, as a shell has it."""
        return bool(termios.tcgetattr(self._master)[3] & termios.ECHO)

    def scribble(self) -> None:
        """What another program leaves on the screen."""
        self._stream.feed(
            b"".join(
                b"\x1b[%d;1H\x1b[0;7;35m" % (y + 1) + b"#" * self.columns for y in range(self.rows)
            )
            + b"\x1b[m"
        )

    def press(self, *keys: str) -> None:
        for key in keys:
            os.write(self._master, KEYS.get(key, key.encode()))

    def read(self, timeout_s: float = 0.1, most: int = 1 << 16) -> bool:
        """Take what the program has written; False once it has closed the terminal."""
        if not select.select([self._master], [], [], timeout_s)[0]:
            return True
        try:
            chunk = os.read(self._master, most)
        except OSError:
            return False
        self.raw += chunk
        # pyte knows no private DECRQM or kitty queries; they draw nothing
        self._stream.feed(
            chunk.replace(b"\x1b[?2026$p", b"")
            .replace(b"\x1b[?2048$p", b"")
            .replace(b"\x1b[>1u", b"")
            .replace(b"\x1b[<u", b"")
        )
        return True

    def unread(self) -> int:
        """Bytes that the program has written and nobody has read."""
        return struct.unpack("i", fcntl.ioctl(self._master, termios.FIONREAD, bytes(4)))[0]

    def settle(self) -> bool:
        """Read until nothing comes for a moment: a frame may come in parts. False once the program
        has closed the terminal."""
        while self.read(0.0):
            if not select.select([self._master], [], [], 0.03)[0]:
                return True
        return False

    def wait_for(self, *words: str, timeout_s: float = 60.0) -> str:
        """Read until all `words` are on the screen at once."""
        deadline = time.monotonic() + timeout_s
        while self.settle() and not all(word in self.text for word in words):
            assert time.monotonic() < deadline, f"never saw {words}; the screen:\n{self.text}"
            self.read()
        assert all(word in self.text for word in words), (
            f"the program ended without {words}:\n{self.text}"
        )
        return self.text

    def wait_gone(self, *words: str, timeout_s: float = 30.0) -> str:
        """Read until none of `words` is on the screen."""
        deadline = time.monotonic() + timeout_s
        while any(word in self.text for word in words):
            assert time.monotonic() < deadline, f"still there: {words}; the screen:\n{self.text}"
            self.read()
        return self.text

    def wait_exit(self, timeout_s: float = 10.0) -> int:
        """Read until the program has ended; its exit code."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"still running; the screen:\n{self.text}"
            self.read(0.05)
        while self.read(0) and select.select([self._master], [], [], 0)[0]:
            pass
        return int(self.process.wait())

    def resize(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._screen.resize(rows, columns)
        self._set_size(self._master)
        os.killpg(os.getpgid(self.process.pid), signal.SIGWINCH)

    def hang_up(self) -> None:
        """Close the terminal, as a dropped SSH connection does."""
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def _set_size(self, fd: int) -> None:
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", self.rows, self.columns, 0, 0))
