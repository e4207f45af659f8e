"""Text that several layers write: untrusted text, made safe for the screen and without credentials,
and the one spelling of a share."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache


def visible(text: str) -> str:
    """`text` with control, format and bidirectional characters replaced by escapes (`\\x1b`,
    `\\u202e`); newlines and tabs as spaces."""
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character in "\n\t":
        return " "
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        code = ord(character)
        return (
            f"\\x{code:02x}"
            if code < 0x100
            else f"\\u{code:04x}"
            if code < 0x10000
            else f"\\U{code:08x}"
        )
    return character


def percent(ratio: float, places: int = 0) -> str:
    """`31 %`: a share in a sentence. `units` has the forms for columns."""
    return f"{ratio * 100:.{places}f} %"


_UNSURE = (
    # parts of Hangul syllables, and fillers that show nothing
    (0x1160, 0x11FF),
    (0x3164, 0x3164),
    (0xD7B0, 0xD7FF),
    (0xFFA0, 0xFFA0),
    (0x1F1E6, 0x1F1FF),
    (0x1F3FB, 0x1F3FF),  # flags and skin tones: two make one
    # symbols that became wide in Unicode 16
    (0x2630, 0x2637),
    (0x268A, 0x268F),
    (0x4DC0, 0x4DFF),
    (0x1D300, 0x1D37F),
)
"""Characters whose number of cells differs between terminals."""


def plain(text: str, right_to_left: bool = False) -> str:
    """`text` without characters that control a terminal, hide or reorder text, or have an uncertain
    width.

    Such characters, and line breaks, are shown as escapes. Right-to-left letters would reorder the
    figures on the same line. They are kept only with `right_to_left`, for lines with only this
    text.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _printable_char(char, right_to_left) for char in unicodedata.normalize("NFC", text)
    )


@lru_cache(maxsize=4096)
def _printable_char(char: str, right_to_left: bool) -> str:
    code = ord(char)
    if 0x20 <= code < 0x7F:
        return char
    kept = unicodedata.category(char)[0] in "LNPS" and not any(
        low <= code <= high for low, high in _UNSURE
    )
    if kept and (right_to_left or unicodedata.bidirectional(char) not in ("R", "AL", "AN")):
        return char
    named = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char)
    return named or (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )


ELLIPSIS = "…"


def clean(text: str) -> str:
    """`text` without any character that controls a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "·" for char in visible(text))


def cell_width(text: str) -> int:
    """The number of terminal cells of `text`."""
    return (
        len(text)
        if text.isascii() or not _WIDE.search(text)
        else sum(char_width(char) for char in text)
    )


_WIDE = re.compile("[^\u0000-\u02ff\u2010-\u2027\u2190-\u22ff\u2500-\u25fc]")
"""A character that may not have one cell. Latin letters, arrows, boxes and blocks have one."""


@lru_cache(4096)
def char_width(char: str) -> int:
    if char < "\u0300":
        return 1
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def cut(text: str, width: int) -> str:
    """The first `width` cells of `text`, with an ellipsis at the end where text was cut off."""
    if cell_width(text) <= width:
        return text
    if width <= 0:
        return ""
    used, kept = 0, []
    for char in text:
        used += char_width(char)
        if used > width - 1:
            break
        kept.append(char)
    return "".join(kept) + ELLIPSIS


# --- passwords, keys and tokens in texts of errors ------------------------------------------------
# A library puts into its error what the program gave it: an address with a password, a query, a
# header. All such texts pass here: `wire.events.decode_event` and `Engine.emit` for what is
# recorded and shown, `SessionError` for refusals, `cli.output` for stderr. What looks like a
# credential is cut, also where it is none: an error is still clear without the value.

CUT = "***"
_NAME = (
    r"(?:token|secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|"
    r"credentials?)"
)
_RULES = (
    # https://docs.python.org/3/library/urllib.parse.html: user information stands before the last @
    # of the part after //
    (re.compile(r"(?<=://)[^/\s?#'\"<>]*@"), ""),
    # the query of an address, with or without the host before it: requests writes "Max retries
    # exceeded with url: /v1?key=..."
    (re.compile(r"(?<=[\w/])\?[\w.%\[\]-]+=[^\s'\"<>)]*"), "?" + CUT),
    (
        re.compile(
            (
                r"(?<![\w-])((?:proxy-)?authorization|(?:set-)?cookie|private-token|x-[\w-]{0,60}(?"
                r":key|token|secret))(['\"]?\s*[:=]\s*['\"]?)(?:(?:bearer|basic|token)\s+)?"
                r"[^\s'\",;)}]+"
            ),
            re.I,
        ),
        rf"\1\2{CUT}",
    ),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{8,}", re.I), rf"\1 {CUT}"),
    # NAME=value, --name=value, --name value is not known to be one; 'name': 'value' of a dict
    (re.compile(rf"({_NAME}['\"]?\]?=['\"]?)(?!\d+\b)[^\s'\",;&)}}]{{4,}}", re.I), rf"\1{CUT}"),
    (re.compile(rf"({_NAME}['\"]\s*:\s*['\"])[^'\"]{{4,}}", re.I), rf"\1{CUT}"),
    # forms of tokens: Hugging Face, OpenAI and its like, GitHub, GitLab, Slack, AWS, JSON web
    # tokens
    (
        re.compile(
            r"(?<![\w-])(?:hf_\w{16,}|sk-[\w-]{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|"
            r"glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|A(?:KIA|SIA)[A-Z0-9]{16}|eyJ[\w-]{8,"
            r"2000}\.[\w-]{1,4000}\.[\w-]+)"
        ),
        CUT,
    ),
)


def without_credentials(text: str) -> str:
    """`text` without what looks like a credential."""
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    return text
