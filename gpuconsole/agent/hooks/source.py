"""The source text of a call of the program, as a number for each argument: a file that is edited during the job must not get a patch in another call.

The numbers hold no text. A call may hold a password, and the facts of a job are written into files.
"""

from __future__ import annotations

import ast
import linecache
import zlib
from functools import lru_cache
from itertools import islice
from types import CodeType

FUNCTION = "()"
"""Stands for what is called, beside the names and places of the arguments."""


@lru_cache(64)
def parts_of_call(code: CodeType, at: int) -> dict[str, int]:
    """The parts of the call under way at instruction `at` of `code` (in bytes, as `frame.f_lasti`), as `model.job.Site.parts` describes them. Empty
    where the text is not known: Python older than 3.11, no source, PYTHONNODEBUGRANGES; or where it has a backslash."""
    if not hasattr(code, "co_positions"):
        return {}
    first_line, last_line, begin, end = next(islice(code.co_positions(), at // 2, None), (None, None, None, None))
    if first_line is None or last_line is None or begin is None or end is None:
        return {}
    lines = [line.encode() for line in linecache.getlines(code.co_filename)[first_line - 1 : last_line]]
    if len(lines) <= last_line - first_line:
        return {}
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    text = f"({b''.join(lines).decode(errors='replace')}\n)"
    if "\\" in text:  # Python's parser would warn of an unknown escape sequence, in the program's output
        return {}
    try:
        call = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the file is another one by now
        return {}
    return parts(text, call) if isinstance(call, ast.Call) else {}


def parts(text: str, call: ast.Call) -> dict[str, int]:
    """The parts of `call`, which was parsed from `text`."""
    nodes: dict[str, ast.expr] = {FUNCTION: call.func}
    nodes |= {str(place): argument for place, argument in enumerate(call.args)}
    nodes |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    return {name: zlib.crc32(b"".join((ast.get_source_segment(text, node) or "").encode().split())) for name, node in nodes.items()}
