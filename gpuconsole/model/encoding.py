"""JSON of any text. Names of files, commands and processes are bytes on Linux: Python holds bytes
that are no UTF-8 as surrogates, which JSON does not have."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that are no JSON, or not the JSON that was expected."""

MAX_NUMBER = 1e40
"""Larger numbers are damage: the squares of figures would have no number."""
_PERHAPS_LARGE = re.compile(rb"[eE]\+?0*[1-9][0-9]|[0-9]{40}")


def has_large_number(data: bytes) -> bool:
    """Return whether the JSON in `data` has a number beyond MAX_NUMBER: arithmetic with it would
    end with an error. Also true for a number of so many digits that it cannot be decoded."""
    if not _PERHAPS_LARGE.search(data):
        return False
    try:
        return _is_large(msgspec.json.decode(data))
    except UNREADABLE:
        return False  # the caller decodes the data too, and has the reason
    except ValueError:
        return True


def _is_large(value: Any) -> bool:
    match value:
        case int() | float():
            return not -MAX_NUMBER <= value <= MAX_NUMBER
        case list():
            return any(map(_is_large, value))
        case dict():
            return any(map(_is_large, value.values()))
        case _:
            return False


def utf8(text: str) -> str:
    """`text` with surrogates as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def encode(value: object) -> bytes:
    """`value` as JSON; surrogates become escapes."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(_as_utf8(msgspec.to_builtins(value)))


def without_surrogates(data: bytes | str) -> bytes | None:
    """JSON that Python has written, with escapes for its surrogates; None where it has none."""
    if b"\\ud" not in (data.encode() if isinstance(data, str) else data):
        return None
    try:
        return _encode(_as_utf8(json.loads(data)))
    except (ValueError, RecursionError):
        return None


def _as_utf8(value: Any) -> Any:
    match value:
        case str():
            return utf8(value)
        case dict():
            return {_as_utf8(key): _as_utf8(item) for key, item in value.items()}
        case list() | tuple():
            return [_as_utf8(item) for item in value]
        case _:
            return value
