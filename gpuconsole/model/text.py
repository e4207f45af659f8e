"""Text from outside (device names, process names, error messages), made safe to print."""

from __future__ import annotations

import unicodedata

# Cc control, Cf format (bidi overrides, zero width), Cs lone surrogates, Zl and Zp line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def visible(text: str) -> str:
    r"""`text` with every control and bidi character as its escape: `\x1b`, `\u202e`, `\U000e0001`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(char) if unicodedata.category(char) in _HIDDEN else char for char in text)


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
