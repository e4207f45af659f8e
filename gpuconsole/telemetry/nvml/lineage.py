"""The job that a process belongs to: how far up its parents are parts of the same work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import psutil

from gpuconsole.model.programs import program_of
from gpuconsole.model.text import command_line

MAX_PARENTS = 12
SHELLS = frozenset(("sh", "bash", "dash", "ash", "zsh", "fish", "ksh", "csh", "tcsh", "busybox"))
PARTS = ("multiprocessing", "VLLM::", "sglang::")


class Relative(NamedTuple):
    """A process or one of its parents: its pid, its name and its command line."""

    pid: int
    name: str
    command: str


class Lineage(NamedTuple):
    """`parents`: those of the same job, the nearest first. `launcher`: the command line of the last
    of these. `console`: the gpuconsole above the job; 0: none."""

    parents: tuple[int, ...] = ()
    launcher: str = ""
    console: int = 0


def lineage_of(own: Relative, parents: Iterable[Relative]) -> Lineage:
    """Go up the parents of a process, to the one that has started its job.

    A launcher of processes, a server and the kernel of a notebook have started all below them.
    Another program counts only if what it has started is a part of it (`_is_part`).
    """
    passed: list[Relative] = []
    count = console = 0
    child, are_parts = own, True
    for parent in () if _kind(own) == "notebook" else parents:
        kind = _kind(parent)
        if kind == "console":
            console = parent.pid
        if kind == "console" or parent.pid <= 1 or _is_typed_into(parent):
            break
        passed.append(parent)
        are_parts = are_parts and _is_part(child, parent)
        if kind in ("launcher", "server", "notebook") or are_parts:
            count = len(passed)
        if kind == "notebook":
            break
        child = parent
    same = passed[:count]
    launcher = same[-1].command if same else ""
    return Lineage(tuple(parent.pid for parent in same), launcher, console)


def _is_part(child: Relative, parent: Relative) -> bool:
    """Whether a process is a part of its parent: of Python's multiprocessing, a fork with the same
    command line, or one that has a title of its engine's parts."""
    return any(word in child.command for word in PARTS) or (
        bool(child.command) and child.command == parent.command
    )


def _kind(relative: Relative) -> str:
    program = program_of(relative.command)
    return program.kind if program is not None else ""


def _is_typed_into(parent: Relative) -> bool:
    """Whether a parent is a shell in which a person starts one job after another."""
    return parent.name in SHELLS and all(
        word.startswith("-") and word != "-c" for word in parent.command.split()[1:]
    )


def parents_from(pid: int) -> Iterator[Relative]:
    """The process `pid` and its parents, as far as they can be read."""
    for _ in range(MAX_PARENTS):
        try:
            facts = psutil.Process(pid).as_dict(["name", "cmdline", "ppid"], ad_value=None)
        except psutil.Error:
            return
        yield Relative(pid, facts["name"] or "", command_line(facts["cmdline"] or []))
        if not (pid := facts["ppid"] or 0):
            return
