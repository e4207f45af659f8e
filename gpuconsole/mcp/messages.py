"""The messages between a console and a client of its tools: lines of JSON. A client sends a `Call`,
or a `Cancel`; the answers are `Progressed`, `Answered` and `Refused`. The client imports nothing
else of the console."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuconsole.mcp.answers import Status
from gpuconsole.model.run import RunState
from gpuconsole.model.snapshot import Snapshot


class Call(msgspec.Struct, tag="call"):
    id: int
    tool: str
    arguments: Any = None


class Cancel(msgspec.Struct, tag="cancel"):
    id: int


class Progressed(msgspec.Struct, tag="progress"):
    id: int
    seconds: float
    limit_s: float | None
    text: str


class Answered(msgspec.Struct, tag="answer"):
    id: int
    answer: Any


class Refused(msgspec.Struct, tag="refused"):
    """A call is refused; with the id 0 the whole connection."""

    id: int
    why: str


class Welcome(msgspec.Struct, tag="welcome"):
    """The first line to a client that has the control."""


Message = Progressed | Answered | Refused | Welcome
decode_request = msgspec.json.Decoder(Call | Cancel).decode
decode_message = msgspec.json.Decoder(Message).decode
encode = msgspec.json.encode


# --- of a process that has joined (gpuconsole/cli/joined.py, gpuconsole/notebook) -----------------

SNAPSHOT, LEAVE = "snapshot", "leave"
"""Tools that only such a process has: the session so far as a `Snapshot`; and the end of the run,
with a `Left` as the answer."""


class Joined(msgspec.Struct, tag="joined"):
    """The answer to a process that joins: what its agent needs. A `Refused` names a wrong
    option."""

    folder: str
    token: str


class Leave(msgspec.Struct, forbid_unknown_fields=True):
    """How the run of a process that has joined ends."""

    state: RunState
    error: str | None = None


class Left(msgspec.Struct):
    """The session after the end of the run. `patch`: the kept changes as a diff; `lines`: what else
    a person should read."""

    snapshot: Snapshot
    status: Status
    patch: str
    lines: list[str]
