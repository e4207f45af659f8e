"""Plain data that the agent exchanges with the console: steps, messages, commands.

The console defines the same data in `gpuconsole.model.run` and `gpuconsole.wire.events`. The agent cannot import those modules, because it
also runs where gpuconsole is not installed. `tests/agent/test_protocol.py` checks that both sides agree on every name, order and default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

PHASES = ("data_wait", "h2d", "forward", "backward", "optimizer", "comm", "logging", "checkpoint", "eval", "other")
"""The exclusive parts of a step. A mark names a phase by its index here."""

COUNTS, SETTLING, PROBE = 0, 1, 2
"""Kinds of a step: it counts; it follows a change or a pause; it belongs to a probe."""

Value: TypeAlias = bool | int | float | str
Knobs: TypeAlias = dict[str, Value]
Message: TypeAlias = dict[str, Any]
"""An event on the wire. The key `event` holds its tag, the key `t` its time in seconds on CLOCK_MONOTONIC."""


class MarkedStep(NamedTuple):
    """One step: its start, and for each mark the phase that ended there and the time. All times in seconds on CLOCK_MONOTONIC.

    `runq`: cumulative run-queue seconds of the training thread, at the start and at each mark; empty where they were not read.
    """

    index: int  # type: ignore[assignment]  # hides the method tuple.index
    start: float
    ended: list[int]
    times: list[float]
    runq: list[float]
    samples: int
    tokens: int
    loss: float | None
    arm: int
    kind: int


# --- messages to the console --------------------------------------------------------------------------------


def marked_steps(
    t: float,
    steps: list[MarkedStep],
    cpu_s: float,
    runq_s: float,
    overhead_s: float,
    memory_bytes: float,
    dropped: int,
    rank: int,
    counters: dict[str, float],
) -> Message:
    """Steps since the last message, and cumulative figures of the process at `t`."""
    return {
        "event": "markedsteps",
        "t": t,
        "steps": steps,
        "cpu_s": cpu_s,
        "runq_s": runq_s,
        "overhead_s": overhead_s,
        "memory_bytes": memory_bytes,
        "dropped": dropped,
        "rank": rank,
        "counters": counters,
    }


def segments(
    t: float,
    packed: str,
    cpu_s: float,
    runq_s: float,
    overhead_s: float,
    memory_bytes: float,
    dropped: int,
    rank: int,
    counters: dict[str, float],
) -> Message:
    """Steps of a user's job since the last message, as raw segments (`hooks.recorder.pack`)."""
    return {
        "event": "segments",
        "t": t,
        "packed": packed,
        "cpu_s": cpu_s,
        "runq_s": runq_s,
        "overhead_s": overhead_s,
        "memory_bytes": memory_bytes,
        "dropped": dropped,
        "rank": rank,
        "counters": counters,
    }


def job_process(
    t: float, pid: int, parent: int, script: str, python: str, torch: str = "", rank: int = 0, world_size: int = 1, token: str = ""
) -> Message:
    """The first message of a process of a user's job."""
    return {
        "event": "jobprocess",
        "t": t,
        "pid": pid,
        "parent": parent,
        "script": script,
        "python": python,
        "torch": torch,
        "rank": rank,
        "world_size": world_size,
        "token": token,
    }


def rank_joined(t: float, rank: int, host: str, pid: int, leads: bool, world_size: int) -> Message:
    """The process has made its first optimizer step."""
    return {"event": "rankjoined", "t": t, "rank": rank, "host": host, "pid": pid, "leads": leads, "world_size": world_size}


def job_known(t: float, rank: int, facts: Mapping[str, Any]) -> Message:
    """What is known about the program; `facts` are the fields of `model.job.JobFacts`."""
    return {"event": "jobknown", "t": t, "rank": rank, "facts": facts}


def started(t: float, knobs: Knobs, facts: dict[str, float], notes: dict[str, str]) -> Message:
    """The observed knobs, with facts about the workload."""
    return {"event": "started", "t": t, "knobs": knobs, "facts": facts, "notes": notes}


def agent_off(t: float, pid: int, rank: int, where: str, cause: str, detail: str) -> Message:
    """The agent has switched itself off, and the program continues; or the process ends."""
    return {"event": "agentoff", "t": t, "pid": pid, "rank": rank, "where": where, "cause": cause, "detail": detail}


def knobs_set(t: float, request: int, step: int, knobs: Knobs, error: str | None = None) -> Message:
    """The answer to SetKnobs: in force from `step` on, or refused with `error` and nothing changed."""
    return {"event": "knobsset", "t": t, "request": request, "step": step, "knobs": knobs, "error": error}


def probe_done(
    t: float, request: int, probe: str, signals: Mapping[str, Any] | None = None, error: str | None = None, cost_s: float = 0.0
) -> Message:
    """The answer to RunProbe. Each signal encodes as an object with `value`, `unit` and `source`."""
    return {"event": "probedone", "t": t, "request": request, "probe": probe, "signals": signals or {}, "error": error, "cost_s": cost_s}


def paused(t: float, request: int) -> Message:
    """The answer to Pause: the last step is done, on the device too."""
    return {"event": "paused", "t": t, "request": request}


def not_profiled(t: float, request: int, error: str) -> Message:
    """The answer to Profile where there is no profiler window."""
    return {"event": "profiled", "t": t, "request": request, "error": error}


def profiled(t: float, request: int, trace: str, keep: str, gpu: bool, cost_s: float) -> Message:
    """The answer to Profile in a user's job: the trace is at the path `trace`, and the console analyses it. `gpu`: the work ran on a GPU."""
    return {"event": "profiled", "t": t, "request": request, "trace": trace, "keep": keep, "gpu": gpu, "cost_s": cost_s}


def encode(message: Message) -> bytes:
    """`message` as one JSON line, without the newline. A faster encoder may take its place: see `Channel`."""
    return json.dumps(message, separators=(",", ":")).encode()


class Channel(Protocol):
    """The connection to the console. It must not block: what a full pipe has no room for is dropped and counted, or waits."""

    dropped: int

    def send(self, message: Message, /) -> None: ...

    def flush(self) -> bool:
        """Send what waits, as far as the pipe has room. Returns whether nothing waits any longer."""
        ...


# --- commands from the console ------------------------------------------------------------------------------


@dataclass(frozen=True)
class SetKnobs:
    """Change live knobs between two steps. Later steps carry `arm`.

    `at_step`: a user's job does not begin the change before this step; 0: the next step.
    `numerics`: the user has agreed to changes that alter the numbers of the user's own job.
    """

    request: int
    changes: Knobs
    arm: int = 0
    at_step: int = 0
    numerics: bool = False


@dataclass(frozen=True)
class RunProbe:
    request: int
    probe: str


@dataclass(frozen=True)
class Profile:
    """Run `steps` steps under the profiler. The trace goes, gzipped, to the path `keep`."""

    request: int
    steps: int
    keep: str


@dataclass(frozen=True)
class Pause:
    """Stop between two steps until Resume, so that another worker has the device to itself."""

    request: int = 0


@dataclass(frozen=True)
class Resume:
    arm: int = 0


@dataclass(frozen=True)
class Stop:
    """End the run after the present step."""


Command: TypeAlias = SetKnobs | RunProbe | Profile | Pause | Resume | Stop
COMMANDS: dict[str, type[Command]] = {kind.__name__.lower(): kind for kind in (SetKnobs, RunProbe, Profile, Pause, Resume, Stop)}
"""Commands by their tag on the wire, which stands under the key `command`."""


def command_of(fields: Mapping[str, Any]) -> Command:
    """The command that a decoded JSON line holds. Raises KeyError for an unknown tag, TypeError for other fields."""
    rest = dict(fields)
    return COMMANDS[rest.pop("command")](**rest)
