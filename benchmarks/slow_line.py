"""A terminal line with a limited number of bytes per second, as the reader of a pty."""

from __future__ import annotations

import os
import time

PIECE = 256
"""Bytes read at a time: what the line holds. The pty's own buffer of some KB stays between it and
the program."""


class SlowLine:
    """Reads a piece and returns it once the line would have delivered it."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free = 0.0

    def __call__(self, file: int) -> bytes:
        chunk = os.read(file, PIECE)
        self._free = max(self._free, time.monotonic()) + len(chunk) / self._bytes_per_s
        time.sleep(max(0.0, self._free - time.monotonic()))
        return chunk
