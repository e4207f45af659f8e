"""Text that several layers write: untrusted text, made safe for the screen and without credentials,
and the one spelling of a share."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise


def visible(text: str) -> str:
    """`text` with control, format and bidirectional characters replaced by escapes (`\\x1b`,
    `\\u202e`); newlines and tabs as spaces."""
    return "".join(_visible(character) for character in text)


def is_unseen(character: str) -> bool:
    """Whether a character is not visible: it controls a terminal, or changes the order of the
    text."""
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def _visible(character: str) -> str:
    if character in "\n\t":
        return " "
    if is_unseen(character):
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
# credential is cut, also where it is none: an error is still clear without the value. The secrets
# of the job's own command line are known (`hide_secrets`), and cut whatever they look like.

CUT = "***"
_NAME = (
    r"(?:token|secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|"
    r"account[_-]?key|credentials?)"
)
MARK = r"(?:<[^<>\s]{1,40}>|\[[A-Z]{2,9}\])"
"""A mark of a tokenizer, as in `pad_token=<|endoftext|>`."""
_RULES = (
    # https://docs.python.org/3/library/urllib.parse.html: user information stands before the last @
    # of the part after //
    (re.compile(r"(?<=://)[^/\s?#'\"<>]*@"), ""),
    # a password with / or ?; a port is no password
    (re.compile(r"(?<=://)[^/\s?#'\"<>:@]{0,99}:(?!\d+[/?#])[^\s'\"<>]{1,200}@"), ""),
    # webhooks: the path is the secret
    (
        re.compile(r"(hooks\.slack\.com|discord(?:app)?\.com/api/webhooks)/[\w/-]+", re.I),
        rf"\1/{CUT}",
    ),
    (
        re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]*(?:-----END[A-Z ]{0,40}-----)?"),
        CUT,
    ),
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
    # --name value, also as two words of a list
    (
        re.compile(
            rf"((?<![\w-])--?[\w-]{{0,60}}{_NAME}['\"]?,?\s+['\"]?)(?!\d+\b|-|{MARK}(?!\S))[^\s'\",;]{{4,}}",
            re.I,
        ),
        rf"\1{CUT}",
    ),
    # name: value, as in YAML; a parser says "unexpected token: word"
    (
        re.compile(
            r"(\b(?:passw(?:or)?d|passphrase|pwd|secret|(?:api|access|account)[_-]?key):\s+)"
            r"(?!\d+\b)[^\s'\",;)}]{4,}",
            re.I,
        ),
        rf"\1{CUT}",
    ),
    (re.compile(r"(\bpwd=)(?!/)[^\s'\",;&)}]{4,}", re.I), rf"\1{CUT}"),
    # NAME=value, --name=value; 'name': 'value' of a dict
    (
        re.compile(rf"({_NAME}['\"]?\]?=['\"]?)(?!\d+\b|{MARK}(?!\S))[^\s'\",;&)}}]{{4,}}", re.I),
        rf"\1{CUT}",
    ),
    (re.compile(rf"({_NAME}['\"]\s*:\s*['\"])[^'\"]{{4,}}", re.I), rf"\1{CUT}"),
    # forms of tokens: Hugging Face, OpenAI and its like, GitHub, GitLab, Slack, AWS, Databricks,
    # Google, npm, JSON web tokens
    (
        re.compile(
            r"(?<![\w-])(?:hf_\w{16,}|sk-[\w-]{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|"
            r"glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|A(?:KIA|SIA)[A-Z0-9]{16}|dapi[0-9a-f]{32}|"
            r"AIza[\w-]{30,}|ya29\.[\w-]{16,}|npm_\w{30,}|eyJ[\w-]{8,"
            r"2000}\.[\w-]{1,4000}\.[\w-]+)"
        ),
        CUT,
    ),
)


def without_credentials(text: str) -> str:
    """`text` without what looks like a credential, and without the secrets of the job's command
    line."""
    text = _without(text, _secrets)
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    return text


_SECRET = re.compile(
    r"(?:key|keys|token|secrets?|passw(?:or)?d|passphrase|pwd|credentials?)$", re.I
)
_ABOUT = {"file", "path", "dir", "env", "name", "id", "ids", "type", "size", "length", "len"}
"""A last part of a name after which no secret comes: `--token-file`, `--pad-token-id`."""
_ASSIGNED = re.compile(
    r"(?<![\w.-])([\w.-]{1,99})['\"]?\s{0,9}[=:]\s{0,9}"
    # looked at only: a value may hold a name, as in the query of an address
    r"(?=\"([^\"]{1,200})\"|'([^']{1,200})'|([^\s'\",;&}]{1,200}))"
)
_NAMED = re.compile(r"[\w.-]{1,99}")
_USER = re.compile(r"://[^\s:@/]{0,99}:(\S{1,200})@")
_USUAL = {"true", "false", "none", "null", "auto", "default"}
_MAYBE_COLUMN = re.compile(r"keys?$", re.I)
_SURELY_KEY = re.compile(r"(?:api|access|secret|private|account)[-_.]?keys?$", re.I)
_COLUMN = re.compile(r"[a-z_]{1,15}(?:[./][a-z_]{1,20}){0,9}")
"""The name of a column, as in `--text-key caption` and `data.key=observation.images`."""
_MARK = re.compile(MARK)
MAX_LINE_LENGTH = 4096
MIN_SECRET_LENGTH, MIN_SECRET_DIGITS = 4, 6
"""The least length of a secret. A shorter text may stand elsewhere with another meaning, and
must not be cut there."""
MIN_INSIDE = 8
"""A secret of this length is also cut inside a word."""
_secrets: list[str] = []
"""The longest first: a secret may hold another one."""


def hide_secrets(words: Iterable[str]) -> None:
    """Cut the secrets of this command line from all texts of this process from now on."""
    import json  # the console's first picture does not wait for them
    from urllib.parse import quote

    found = {*_secrets}
    for secret in secrets_of(list(words)):
        found |= {secret, repr(secret)[1:-1], json.dumps(secret)[1:-1], quote(secret, safe="")}
    _secrets[:] = sorted(found, key=len, reverse=True)


def command_line(words: Iterable[str]) -> str:
    """Return the words of a command line in one line, without their secrets."""
    line = " ".join(words := list(words))
    return _without(line, sorted(secrets_of(words), key=len, reverse=True))


def _without(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        if secret in text:
            text = (
                text.replace(secret, CUT)
                if len(secret) >= MIN_INSIDE
                else re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", CUT, text)
            )
    return text


def secrets_of(words: Sequence[str]) -> set[str]:
    """Return the secrets of a command line: words after an option with key, token, secret or
    password in its name, values of such names (`NAME=value`, JSON, the query of an address), and
    passwords in addresses. A word that is itself a line for a shell counts too."""
    named = [
        (name, value) for name, value in pairwise(words) if name.startswith("-") and "=" not in name
    ]
    found = set[str]()
    for word in words:
        name, _, whole = word.partition("=")
        if _NAMED.fullmatch(name) and (name[0] == "-" or " " not in whole):
            named.append((name, whole))
        named += [
            (name, value) for name, *values in _ASSIGNED.findall(word) for value in values if value
        ]
        found.update(_USER.findall(word))
        if len(inner := _inner(word)) > 1:
            found |= secrets_of(inner)
    found.update(value for name, value in named if value and _is_secret(name, value))
    return {value for value in found if len(value) >= MIN_SECRET_LENGTH}


def _inner(word: str) -> list[str]:
    """Return the words of a line for a shell."""
    try:
        return shlex.split(word) if len(word) <= MAX_LINE_LENGTH else word.split()
    except ValueError:  # a quote has no end
        return [part.strip("'\"") for part in word.split()]


def _is_secret(name: str, value: str) -> bool:
    *_, last = parts = re.split(r"[-_.]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name))
    kind = next(filter(None, map(_SECRET.search, parts)), None)
    if kind is None or last.lower() in _ABOUT or value[0] in "-$" or value.lower() in _USUAL:
        return False
    if value.isdigit():
        return len(value) >= MIN_SECRET_DIGITS
    if _MARK.fullmatch(value) and re.fullmatch("tokens?", last, re.I):
        return False
    if _MAYBE_COLUMN.fullmatch(kind[0]) and not any(map(_SURELY_KEY.search, (name, *parts))):
        return bool(_MAYBE_COLUMN.search(last)) and not _COLUMN.fullmatch(value)
    return True
