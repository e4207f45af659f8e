"""Convert the output of a job to lines of text: the last KEPT lines that a terminal would show,
without colours.

A full terminal emulator is too costly here: pyte takes 5 s of CPU time and 170 MB for 12 000 lines.
This file handles carriage return, backspace, tab, moves of the cursor (progress bars that use
several lines), and sequences that erase text. It drops colours and titles. Other control characters
stay, and the screen makes them visible.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Sequence

from gpuconsole.model.text import cut, plain, without_credentials

KEPT = 10_000
MAX_COLUMNS = 10_000
"""Characters of a line that are kept."""
HIGH = 200
"""Lines above the last line that the cursor can reach. A terminal is not higher."""
TAB = 8
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SEQUENCE = re.compile(
    r"\x1b\[(?P<args>[0-?]*)[ -/]*(?P<final>[@-~])"  # CSI: moves, erasing, colours, modes
    # OSC, DCS and the like: titles, links; bounded, or a job's output could take seconds
    r"|\x1b[\]PX^_][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)"
    r"|\x1b[ -/]+[0-~]|\x1b[0-Z\\`-~]",  # character sets, save and restore, resets
    re.DOTALL,
)
_BEGUN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)?\Z")
"""The beginning of a sequence at the end of a piece of output."""
MAX_SEQUENCE_LENGTH = 4096


class OutputLines:
    """Takes output in pieces. The cursor is at column `_x` of the line that is `_up` lines above
    the last line."""

    def __init__(self, kept: int = KEPT) -> None:
        self.version = 0
        """The number of pieces of output so far."""
        self.dropped = 0
        """The number of lines that are no longer kept."""
        self._lines: deque[str] = deque([""], maxlen=kept)
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._rest = ""
        self._x = self._up = 0

    def __len__(self) -> int:
        """Return the number of lines that are kept. An empty last line does not count."""
        return len(self._lines) - (not self._lines[-1])

    def __getitem__(self, n: int) -> str:
        return self._lines[n]

    def text(self) -> list[str]:
        """Return all lines that are kept, the oldest first."""
        return list(self._lines)[: len(self)]

    @property
    def last(self) -> str:
        """Return the last line that is not empty; an empty text if all lines are empty."""
        return next((line.rstrip() for line in reversed(self._lines) if line.strip()), "")

    def feed(self, data: bytes) -> None:
        """Add a piece of output. A character or a sequence may be split between two pieces."""
        text = self._rest + self._decode(data)
        self._rest = ""
        if (begun := _BEGUN.search(text, max(0, len(text) - MAX_SEQUENCE_LENGTH))) is not None:
            text, self._rest = text[: begun.start()], begun[0]
        self.version += 1
        at = 0
        while at < len(text):
            control = _CONTROL.search(text, at)
            end = control.start() if control else len(text)
            if end > at:
                self._put(text[at:end])
            if control is None:
                return
            at = self._control(text, end)

    def _control(self, text: str, at: int) -> int:
        """Apply the control character or sequence at `at`. Return the position after it."""
        match text[at]:
            case "\n" | "\v" | "\f":
                self._new_line()
            case "\r":
                self._x = 0
            case "\b":
                self._x = max(0, self._x - 1)
            case "\t":
                self._x += TAB - self._x % TAB
            case "\x1b" if (sequence := _SEQUENCE.match(text, at)) is not None:
                if sequence["final"]:
                    self._sequence(sequence["final"], sequence["args"])
                return sequence.end()
            case "\x07" | "\x00":
                pass
            case other:
                self._put(other)
        return at + 1

    def _sequence(self, final: str, args: str) -> None:
        first = args.split(";")[0]
        count = int(first) if first.isdecimal() and len(first) < 6 else 0
        match final:
            case "A" | "F":
                self._up = min(self._up + max(1, count), len(self._lines) - 1, HIGH)
            case "B" | "E":
                self._up = max(0, self._up - max(1, count))
            case "C":
                self._x = min(MAX_COLUMNS, self._x + max(1, count))
            case "D":
                self._x = max(0, self._x - max(1, count))
            case "G":
                self._x = min(MAX_COLUMNS, max(1, count) - 1)
            case "K":
                line = self._line
                self._line = (
                    line[: self._x]
                    if count == 0
                    else ""
                    if count == 2
                    else " " * min(self._x + 1, len(line)) + line[self._x + 1 :]
                )
            case "J" if count == 0:
                self._line = self._line[: self._x]
                while self._up:
                    self._lines.pop()
                    self._up -= 1
            # a program that draws a whole screen: each picture follows the one before
            case "H" | "f":
                self._up = 0
                if self._line:
                    self._new_line()
        if final in "EF":
            self._x = 0

    @property
    def _line(self) -> str:
        return self._lines[-1 - self._up]

    @_line.setter
    def _line(self, text: str) -> None:
        self._lines[-1 - self._up] = text

    def _put(self, text: str) -> None:
        """Write `text` at the cursor. Leave out text beyond MAX_COLUMNS at once, because output
        without line ends must not cost much time."""
        if self._x >= MAX_COLUMNS:
            return
        line = self._line
        if len(line) < self._x:
            line += " " * (min(self._x, MAX_COLUMNS) - len(line))
        self._line = (line[: self._x] + text + line[self._x + len(text) :])[:MAX_COLUMNS]
        self._x = min(MAX_COLUMNS, self._x + len(text))

    def _new_line(self) -> None:
        self._x = 0
        if self._up:
            self._up -= 1
            return
        if len(self._lines) == self._lines.maxlen:
            self.dropped += 1
        self._lines.append("")


# --- why a job failed, in one line of its own output ----------------------------------------------

UNCAUGHT = 1
"""The exit code of Python after an exception that nothing catches."""
SEARCHED = 200
"""Number of lines at the end of the output that are searched. An earlier traceback did not end the
job. A launcher prints up to 60 lines below the traceback that ended the job."""
MAX_ANSWER = 300
"""Most cells of the answer: a longer text does not fit on the screen."""
HEADER = "Traceback (most recent call last):"
LAUNCHER = re.compile(r"(\S+\.)?(ChildFailedError|CalledProcessError)\b")
"""Exceptions of torchrun and accelerate after one of their processes has failed. The traceback of
that process names the cause."""
_RANK = re.compile(r"\[rank\d+\]:\s?")
"""The prefix by which torch marks the lines of a rank."""
IGNORED = "Exception ignored in"
"""After these words Python prints the traceback of an exception that it ignores, and continues. An
example is an exception in `__del__`."""


def failure_words(code: int, lines: Sequence[str]) -> str:
    """Return the exception that ended a Python program, or `last output: ...`; empty without
    output.

    `code`: the exit code. `lines`: the output, the oldest first. The text is safe for the screen.
    With several ranks, the answer is the exception of the rank that failed first. The other ranks
    fail because they lose their connection to that rank.
    """
    end = lines[-SEARCHED:]
    if code == UNCAUGHT and (raised := _exceptions(end)):
        return _printable_line(
            next((exception for exception in raised if not LAUNCHER.match(exception)), raised[0])
        )
    last = next((line for line in reversed(end) if line.strip()), "")
    return f"last output: {_printable_line(last)}" if last else ""


def _exceptions(lines: Sequence[str]) -> list[str]:
    """Return, for each rank, the line that names the last exception of the rank. This line is the
    first line below the header of a traceback that is not indented. Exceptions that Python ignored
    do not count."""
    by_rank: dict[str, str] = {}
    inside: set[str] = set()
    ignored: set[str] = set()
    for line in lines:
        rank = match[0].strip() if (match := _RANK.match(line)) else ""
        text = line[match.end() :] if match else line
        if text.startswith(IGNORED):
            ignored.add(rank)
        elif text.rstrip().endswith(HEADER):
            inside.add(rank)
        elif rank in inside and text.strip() and not text[0].isspace():
            inside.remove(rank)
            if rank in ignored:
                ignored.remove(rank)
            elif not (rank in by_rank and LAUNCHER.match(text)):
                by_rank[rank] = text
    return list(by_rank.values())


def _printable_line(line: str) -> str:
    return cut(without_credentials(plain(line.strip())), MAX_ANSWER)
