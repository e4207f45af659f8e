"""Text that several layers write: untrusted text, made safe for the screen, and the one spelling of a share."""

from __future__ import annotations

import unicodedata


def visible(text: str) -> str:
    """`text` with control, format and bidirectional characters replaced by escapes (`\\x1b`, `\\u202e`); newlines and tabs as spaces."""
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character in "\n\t":
        return " "
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return character


def percent(ratio: float, places: int = 0) -> str:
    """`31 %`: a share in a sentence. `report.units` has the forms for columns."""
    return f"{ratio * 100:.{places}f} %"
