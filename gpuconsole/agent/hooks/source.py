"""The lines of a file of the program as short numbers: a patch must not change another call after an edit of the file during the job.

A number says whether a line is the same. It holds no text: a line may hold a password, and the facts of a job are written into files.
"""

from __future__ import annotations

import os
import stat
import sys
import time
import zlib

BOM = b"\xef\xbb\xbf"
EDITED = "edited"
MOST_BYTES = 1_000_000
SLACK_S = 2.0
"""The clock of a file server may be ahead of the clock of this machine."""


def process_start_s() -> float:
    """When this process began, in seconds since 1970: Python has read the script since then. Where Linux does not say it: now."""
    try:
        with open("/proc/self/stat") as file:
            start_ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + start_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return time.time()


STARTED_S = process_start_s()


def is_interactive() -> bool:
    """Whether a user may edit a file and load it in this process afterwards."""
    ipython = sys.modules.get("IPython")
    return hasattr(sys, "ps1") or getattr(ipython, "get_ipython", lambda: None)() is not None


def line_digests(file: str) -> str:
    """Four hexadecimal digits for each line of `file`: half of the CRC-32 of its bytes without white space at its end. EDITED: the file was written
    after the start of this process, which may have read it before.
    Empty: not known, because there is no such file, or it is large."""
    try:
        state = os.stat(file)
        if not stat.S_ISREG(state.st_mode) or state.st_size > MOST_BYTES:  # the text of a pipe can be read only once
            return ""
        if max(state.st_mtime, state.st_ctime) > STARTED_S + SLACK_S and not is_interactive():
            return EDITED
        with open(file, "rb") as source:
            text = source.read(MOST_BYTES)
    except (OSError, ValueError):  # a cell of a notebook, a file in an archive, a name that no file can have
        return ""
    return "".join(f"{zlib.crc32(line.rstrip()) & 0xFFFF:04x}" for line in text[len(BOM) * text.startswith(BOM) :].splitlines())
