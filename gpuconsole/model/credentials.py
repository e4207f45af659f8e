"""Cuts passwords, keys and tokens out of texts of errors. A library puts into its error what the program gave it: an address with a password, a query, a header.

All such texts pass here: `wire.events.decode_event` and `Engine.emit` for what is recorded and shown, `SessionError` for refusals, `cli.output` for stderr.
What looks like a credential is cut, also where it is none: an error is still clear without the value.
"""

from __future__ import annotations

import re

CUT = "***"
_NAME = r"(?:token|secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|credentials?)"
_RULES = (
    # https://docs.python.org/3/library/urllib.parse.html: user information stands before the last @ of the part after //
    (re.compile(r"(?<=://)[^/\s?#'\"<>]*@"), ""),
    # the query of an address, with or without the host before it: requests writes "Max retries exceeded with url: /v1?key=..."
    (re.compile(r"(?<=[\w/])\?[\w.%\[\]-]+=[^\s'\"<>)]*"), "?" + CUT),
    (re.compile(r"(?<![\w-])((?:proxy-)?authorization|(?:set-)?cookie|private-token|x-[\w-]{0,60}(?:key|token|secret))(['\"]?\s*[:=]\s*['\"]?)(?:(?:bearer|basic|token)\s+)?[^\s'\",;)}]+", re.I), rf"\1\2{CUT}"),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{8,}", re.I), rf"\1 {CUT}"),
    # NAME=value, --name=value, --name value is not known to be one; 'name': 'value' of a dict
    (re.compile(rf"({_NAME}['\"]?\]?=['\"]?)(?!\d+\b)[^\s'\",;&)}}]{{4,}}", re.I), rf"\1{CUT}"),
    (re.compile(rf"({_NAME}['\"]\s*:\s*['\"])[^'\"]{{4,}}", re.I), rf"\1{CUT}"),
    # forms of tokens: Hugging Face, OpenAI and its like, GitHub, GitLab, Slack, AWS, JSON web tokens
    (re.compile(r"(?<![\w-])(?:hf_\w{16,}|sk-[\w-]{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|A(?:KIA|SIA)[A-Z0-9]{16}|eyJ[\w-]{8,2000}\.[\w-]{1,4000}\.[\w-]+)"), CUT),
)  # fmt: skip


def without_credentials(text: str) -> str:
    """`text` without what looks like a credential."""
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    return text
