"""A checksum of each line of the program's files. After an edit of a file during the job, the patch finds the line of a call by these checksums.

The facts of a job are written into files, and a line may hold a password. A checksum has 16 bits: it shows whether a guess may be right, not the text.
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
    """The start of this process, in seconds since 1970. The present time where Linux does not give the start."""
    try:
        with open("/proc/self/stat") as file:
            start_ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + start_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return time.time()


STARTED_S = process_start_s()


def is_interactive() -> bool:
    """Whether the user can edit a file and load the file again in this process."""
    ipython = sys.modules.get("IPython")
    return hasattr(sys, "ps1") or getattr(ipython, "get_ipython", lambda: None)() is not None


def line_digests(file: str) -> str:
    """Four hexadecimal digits for each line of `file`: the lower 16 bits of the CRC-32 of the line. White space at the end of a line does not count.
    EDITED: the file was written after the start of this process. Python may have read the file before. Empty: there is no such file, or it is large."""
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
