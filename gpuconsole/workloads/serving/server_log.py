"""The cause of a model server's end, from the last lines of its log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gpuconsole.model.text import visible

MOST_CHARACTERS = 300
PREFIX = re.compile(r"^\([\w-]+( [\w=]+)* pid=\d+\) ?|^(DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?")
"""What vLLM writes before a message: the process, then level, date and place in the code."""
ERROR = re.compile(r"^(\w+\.)*\w*(Error|Exception)\b\s*:\s*\S")
"""The last line of a traceback."""
USAGE = re.compile(r"^\S+: error: ")
"""argparse's message."""
FATAL = re.compile(r"(EngineCore|WorkerProc) (failed to|encountered a fatal error|hit an exception)|Worker failed with error")
"""vLLM's message before the traceback of the process that failed first."""
ENGINE_FAILED = re.compile(r"EngineCore encountered a fatal error")
CONSEQUENCE = re.compile(
    r"root cause|EngineDeadError|EngineCore encountered an issue|^(\w+\.)*(CancelledError|BrokenPipeError|EOFError)\b|cancelled$"
)
"""Errors of the processes that noticed the failure of another process."""
DIED = re.compile(r"engine core exited unexpectedly|Engine core proc \S+ died unexpectedly|Worker proc \S+ died unexpectedly")
"""vLLM's messages about a process of its own that ended without an error."""
CHAINED = re.compile(r"^(The above exception was the direct cause of|During handling of the above exception)")
CHAIN_LINES = 3
"""Number of lines after an error within which Python announces a later error of the same traceback."""
NOISE = re.compile(r"warn|resource_tracker", re.IGNORECASE)
DETAILS = re.compile(r"^\d+ validation errors? for \w+$")
"""pydantic's headline. The reason is on the next line."""
KILLED = (
    "its engine process exited unexpectedly without an error: it was killed, or it crashed (the kernel's out-of-memory killer does this)"
)


def cause(log: Iterable[str]) -> str:
    """The cause of the end in one line; empty for an empty log.

    vLLM has several processes. The error of the process that failed first is the cause, and the errors of the others follow from this error. Within one
    traceback the last error counts. Without any error: the message about a process that died, otherwise the last line that is no warning.
    """
    lines = [_message(line) for line in log]
    errors = [n for n, line in enumerate(lines) if _is_error(line) and not _leads_to_another(lines, n)]
    marks = [n for n, line in enumerate(lines) if FATAL.search(line) and not ERROR.match(line)]
    if marks and (after := [n for n in errors if n > marks[0]]):
        return _text(lines, after[0])
    if any(DIED.search(line) for line in lines):
        return KILLED
    if errors:
        return _text(lines, errors[-1])
    rest = [line for line in lines if line and not NOISE.search(line)]
    return visible(rest[-1])[:MOST_CHARACTERS] if rest else ""


def is_fatal(line: str) -> bool:
    """Whether a line of the log says that the engine has failed. vLLM's API process answers for some seconds more, with errors."""
    return bool(DIED.search(line) or ENGINE_FAILED.search(line))


def _message(line: str) -> str:
    """`line` without the names of process, level and place."""
    line = line.rstrip()
    while found := PREFIX.match(line):
        line = line[found.end() :]
    return line.strip()


def _is_error(line: str) -> bool:
    return bool(ERROR.match(line) or USAGE.match(line)) and not CONSEQUENCE.search(line)


def _leads_to_another(lines: Sequence[str], n: int) -> bool:
    return any(CHAINED.match(line) for line in lines[n + 1 : n + 1 + CHAIN_LINES])


def _text(lines: Sequence[str], n: int) -> str:
    """The error in line `n`, with its reason where that is on the next line."""
    name, _, what = lines[n].partition(": ")
    if DETAILS.match(what) and n + 1 < len(lines):
        return visible(f"{name.rpartition('.')[2]}: {lines[n + 1].removeprefix('Value error, ')}")[:MOST_CHARACTERS]
    return visible(lines[n])[:MOST_CHARACTERS]
