"""The process that holds the pseudo-terminal of a user's job, so that the job does not depend on
the console.

Run as `python -I -S holder.py MASTER SOCKET OUTPUT LOG`. MASTER, SOCKET and OUTPUT are file
descriptors; OUTPUT is -1 without a file. LOG is a path. This file imports the standard library
only. If the master side of a pseudo-terminal is closed, the terminal sends SIGHUP to the job and
refuses the output of the job. This process reads the master side until the job and all its children
have closed their side. It never keeps the job waiting for the console.

- Each byte goes to OUTPUT, if there is one.
- The console gets the bytes through the socket, at most SEND_BYTES in PERIOD_S seconds. If the job
  prints more, the console gets the newest KEPT_BYTES, and a line with the number of bytes that are
  left out.
- When the console has gone, and there is no OUTPUT, the newest TAIL_BYTES and everything that
  follows go to LOG. The byte `e` on the socket means that the job has ended. After this byte, the
  output of remaining child processes does not go to LOG.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time

PERIOD_S = 0.05
SEND_BYTES = 1 << 16
KEPT_BYTES = 1 << 21
TAIL_BYTES = 1 << 16
MAX_SILENT_S = 5.0
"""Seconds to wait for a console that takes none of the last bytes."""
JOB_ENDED = b"e"
MAX_NAMES = 100
MODE = 0o600
"""Only the user may read the output, as with nohup."""


class Holder:
    def __init__(self, master: int, console: socket.socket, output: int, log: str) -> None:
        self._master, self._console, self._log = master, console, log
        self._file = output
        self._kept = output >= 0
        self._connected = True
        self._pending = bytearray()
        self._tail = bytearray()
        self._left_out = 0
        self._next_send = 0.0
        # the bytes that `select` saw may be gone at the read: the read must not wait for more
        # output
        os.set_blocking(master, False)
        console.setblocking(False)

    def run(self) -> None:
        """Return when the job and its children have closed the terminal."""
        while True:
            now = time.monotonic()
            wait = None
            writes: list[socket.socket] = []
            if self._pending and self._connected:
                if now >= self._next_send:
                    writes = [self._console]
                else:
                    wait = self._next_send - now
            reads: list[int] = [self._master]
            if self._connected:
                reads.append(self._console.fileno())
            readable, writable, _ = select.select(reads, writes, [], wait)
            if self._connected and self._console.fileno() in readable:
                self._listen()
            if self._master in readable and not self._read():
                break
            if writable and self._connected:
                self._send()
        self._send_rest()

    def _read(self) -> bool:
        """Read the output of the job. Return False when no process can print any more."""
        try:
            chunk = os.read(self._master, 1 << 16)
        except BlockingIOError:
            # nothing to read now: the terminal was closed and opened again, or its output was
            # discarded
            return True
        except OSError:  # EIO: no process has the terminal open
            return False
        if not chunk:
            return False
        if self._file >= 0:
            self._write(chunk)
        if not self._connected:
            return True
        self._pending += chunk
        if len(self._pending) > KEPT_BYTES:
            cut = self._pending.find(b"\n", KEPT_BYTES // 2) + 1 or KEPT_BYTES // 2
            self._left_out += cut
            del self._pending[:cut]
        return True

    def _listen(self) -> None:
        """Read from the console, which sends only the byte `e`. The end of the stream means that
        the console has gone."""
        try:
            said = self._console.recv(64)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if JOB_ENDED in said:
            self._kept = True
        elif not said:
            self._lose()

    def _lose(self) -> None:
        """Note that the console has gone. From now on write the output to the log, unless another
        file keeps the output, or the job has ended."""
        self._connected = False
        if not self._kept:
            self._file = _create(self._log)
            self._write(bytes(self._tail + self._pending))
        self._pending.clear()

    def _send(self) -> None:
        self._say_what_is_left_out()
        try:
            sent = self._console.send(self._pending[:SEND_BYTES])
        except BlockingIOError:
            return
        except OSError:
            self._lose()
            return
        self._tail += self._pending[:sent]
        del self._tail[:-TAIL_BYTES]
        del self._pending[:sent]
        self._next_send = time.monotonic() + PERIOD_S

    def _send_rest(self) -> None:
        if self._connected and self._pending:
            self._say_what_is_left_out()
            self._console.settimeout(MAX_SILENT_S)
            try:
                while self._pending:
                    del self._pending[: self._console.send(self._pending[:SEND_BYTES])]
            except OSError:
                self._lose()

    def _say_what_is_left_out(self) -> None:
        if self._left_out:
            self._pending[:0] = b"\r\n... %d bytes of output are not shown ...\r\n" % self._left_out
            self._left_out = 0

    def _write(self, data: bytes) -> None:
        """Append to the file. After a failed write (a full disk), stop writing to the file: the job
        must not suffer."""
        if self._file < 0:
            return
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:
            os.close(self._file)
            self._file = -1


def _create(path: str) -> int:
    """Create the file `path`, or `path` with a number if that name is taken. Return its descriptor;
    -1 if no file can be created.

    Other users can guess the name, and they may be able to write in the folder. So this function
    never writes to an existing file or through a link, which may lead anywhere.
    """
    stem, suffix = os.path.splitext(path)
    for name in (path, *(f"{stem}-{number}{suffix}" for number in range(2, MAX_NAMES))):
        try:
            return os.open(
                name,
                os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_APPEND | os.O_CLOEXEC,
                MODE,
            )
        except FileExistsError:
            continue
        except OSError:
            break
    return -1


def main(words: list[str]) -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    master, console, output, log = words
    Holder(int(master), socket.socket(fileno=int(console)), int(output), log).run()


if __name__ == "__main__":
    main(sys.argv[1:])
