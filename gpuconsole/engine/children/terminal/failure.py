"""Why a job failed, in one line of its own output."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuconsole.model.text import cut, plain, without_credentials

UNCAUGHT = 1
"""The exit code of Python after an exception that nothing catches."""
SEARCHED = 200
"""Lines at the end of the output. A traceback above them is not the end of the job; a launcher prints up to 60 lines below it."""
LONGEST = 300
"""Cells of the answer: more does not fit on the screen."""
HEADER = "Traceback (most recent call last):"
LAUNCHER = re.compile(r"(\S+\.)?(ChildFailedError|CalledProcessError)\b")
"""What torchrun and accelerate raise because a process of theirs has failed. The cause is in the traceback of that process."""
_RANK = re.compile(r"\[rank\d+\]:\s?")
"""The prefix by which torch marks the lines of a rank."""
IGNORED = "Exception ignored in"
"""Python prints the traceback of such an exception, for example of `__del__` at its end, and goes on."""


def failure_words(code: int, lines: Sequence[str]) -> str:
    """The exception that ended a Python program, or `last output: ...`; empty without output.

    `code`: the exit code. `lines`: the output, the oldest first. The text is safe for the screen. Of several ranks, the answer is the exception
    of the rank that failed first: the other ranks lose their connection to it.
    """
    end = lines[-SEARCHED:]
    if code == UNCAUGHT and (raised := _exceptions(end)):
        return _shown(next((exception for exception in raised if not LAUNCHER.match(exception)), raised[0]))
    last = next((line for line in reversed(end) if line.strip()), "")
    return f"last output: {_shown(last)}" if last else ""


def _exceptions(lines: Sequence[str]) -> list[str]:
    """For each rank the line that names its last exception: the first line below the header of the traceback that is not indented. An exception
    that Python ignored ended nothing."""
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


def _shown(line: str) -> str:
    return cut(without_credentials(plain(line.strip())), LONGEST)
