"""The figures of the C library's heap: memory that it has taken from the system, and the part of that which is in use.

glibc 2.33 and newer reports both figures for all its arenas (mallinfo2); blocks that glibc maps individually count as in use.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache


class _MallInfo(ctypes.Structure):
    """struct mallinfo2 of glibc's malloc.h.

    `arena`: bytes of all heaps; `hblkhd`: bytes in individually mapped blocks; `uordblks`: in use.
    """

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


@cache
def glibc() -> ctypes.CDLL | None:
    """The C library, if it is a glibc that has mallinfo2."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        return None
    library.mallinfo2.restype = _MallInfo
    return library


def heap_stats() -> dict[str, float]:
    """`heap_allocated_bytes` and `heap_reserved_bytes` of the whole process, libraries included; empty where the C library has no
    figures."""
    library = glibc()
    if library is None:
        return {}
    info = library.mallinfo2()
    return {"heap_allocated_bytes": float(info.uordblks + info.hblkhd), "heap_reserved_bytes": float(info.arena + info.hblkhd)}
