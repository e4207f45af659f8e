"""Names for fixed columns: names of other programs, and short names for many devices."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache

_UNSURE = (
    (0x1160, 0x11FF), (0x3164, 0x3164), (0xD7B0, 0xD7FF), (0xFFA0, 0xFFA0),  # parts of Hangul syllables, and fillers that show nothing
    (0x1F1E6, 0x1F1FF), (0x1F3FB, 0x1F3FF),  # flags and skin tones: two make one
    (0x2630, 0x2637), (0x268A, 0x268F), (0x4DC0, 0x4DFF), (0x1D300, 0x1D37F),  # symbols that became wide in Unicode 16
)  # fmt: skip
"""Characters whose number of cells differs between terminals."""


def plain(text: str, right_to_left: bool = False) -> str:
    """`text` without characters that control a terminal, hide or reorder text, or have an uncertain width.

    Such characters, and line breaks, are shown as escapes. Right-to-left letters would reorder the figures
    on the same line. They are kept only with `right_to_left`, for lines with only this text.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(char, right_to_left) for char in unicodedata.normalize("NFC", text))


@lru_cache(maxsize=4096)
def _shown(char: str, right_to_left: bool) -> str:
    code = ord(char)
    if 0x20 <= code < 0x7F:
        return char
    kept = unicodedata.category(char)[0] in "LNPS" and not any(low <= code <= high for low, high in _UNSURE)
    if kept and (right_to_left or unicodedata.bidirectional(char) not in ("R", "AL", "AN")):
        return char
    named = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char)
    return named or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def spans(devices: Iterable[str]) -> str:
    """`gpu:0-3,5` for the ids of devices, in the order of their numbers."""
    texts: list[str] = []
    before = ""
    for head, low, high in _runs(sorted(_parts(device) for device in devices)):
        number = f"{low}-{high}" if high > low else str(low) if low >= 0 else ""
        texts.append(f"{',' if texts else ''}{number}" if head == before and number else f"{' ' if texts else ''}{head}{number}")
        before = head
    return "".join(texts)


def _parts(device: str) -> tuple[str, int]:
    """`gpu:` and 3. -1: the id has no number."""
    head, colon, tail = device.rpartition(":")
    return (head + colon, int(tail)) if tail.isdecimal() else (device, -1)


def _runs(parts: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int, int]]:
    """Ranges of consecutive numbers with the same prefix."""
    run: tuple[str, int, int] | None = None
    for head, number in parts:
        if run is not None and head == run[0] and number == run[2] + 1 and number > 0:
            run = (head, run[1], number)
            continue
        if run is not None:
            yield run
        run = (head, number, number)
    if run is not None:
        yield run
