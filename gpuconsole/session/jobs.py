"""The jobs on a machine: the processes on its GPUs, grouped by the process that has started
them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from gpuconsole.model.machine import Listener, Process
from gpuconsole.model.programs import program_of

JobKind = Literal["gpuconsole", "notebook", "server", "launcher", "graphics", "listens", "unknown"]
"""`gpuconsole`: a gpuconsole runs it. `launcher`: processes of torchrun or its like. `listens`: an
unknown program that listens at a port."""
Ports = Mapping[int, tuple[Listener, ...] | None]
"""The TCP ports at which processes listen, by pid; None: this user cannot read them. A pid that is
missing has not been read."""
_NUMBERS = re.compile(r"\d+")
_OF_PROGRAMS: tuple[JobKind, ...] = ("notebook", "server", "launcher")
TEMPORARY_PORTS = range(32768, 61000)
"""The ports that Linux gives to a program that asks for any: torch and NCCL listen there."""
PORTS_NOT_READ = "not read"
PORTS_REFUSED = "only its user and root can read it"


class Job(NamedTuple):
    """`pid`: the process that has started the job, or its only process. `title`: the program, if
    known. `listener`: the port of a server; without one, `why_no_port` says why."""

    pid: int
    processes: tuple[Process, ...]
    kind: JobKind
    title: str = ""
    listener: Listener | None = None
    why_no_port: str = ""

    @property
    def devices(self) -> list[str]:
        return sorted({process.device for process in self.processes})

    @property
    def address(self) -> str:
        """The address of a server; empty where its port is not known."""
        return f"http://{self.listener.host}:{self.listener.port}" if self.listener else ""

    @property
    def users(self) -> list[str]:
        """The users of the processes, their numbers where they have no name."""
        names = {
            process.user or ("" if process.uid is None else str(process.uid))
            for process in self.processes
        }
        return sorted(names - {""})

    @property
    def console(self) -> int:
        """The gpuconsole that runs the job; 0: none."""
        return self.processes[0].console

    @property
    def command(self) -> str:
        """The command line that has started the job; the name of its process without one."""
        first = self.processes[0]
        return first.launcher or first.command or first.name

    @property
    def started(self) -> float:
        """When the oldest process on a GPU began; 0: not known."""
        return min((process.started for process in self.processes if process.started), default=0.0)

    @property
    def memory_bytes(self) -> int | None:
        known = [
            process.memory_bytes for process in self.processes if process.memory_bytes is not None
        ]
        return sum(known) if known else None

    @property
    def sm_ratio(self) -> float | None:
        """The share of the SM time of its GPUs; None where the driver tells none."""
        known = [process.sm_ratio for process in self.processes if process.sm_ratio is not None]
        return sum(known) / len(self.devices) if known else None


def jobs_of(processes: Iterable[Process], ports: Ports) -> list[Job]:
    """The jobs, those with most memory first."""
    listed = list(processes)
    job_of = starters_of(listed)
    groups: dict[int, list[Process]] = {}
    for process in listed:
        groups.setdefault(job_of[process.pid], []).append(process)
    jobs = [_job(pid, tuple(group), ports) for pid, group in groups.items()]
    return sorted(jobs, key=lambda job: (-(job.memory_bytes or 0), job.pid))


def starters_of(processes: Sequence[Process]) -> dict[int, int]:
    """The process that has started the job of each process, by pid; itself if no other is known.
    Processes of one parent with the same command line but for numbers are one job."""
    alike: dict[tuple[int, str], set[int]] = {}
    for process in processes:
        alike.setdefault(_likeness(process), set()).add(process.pid)
    return {
        process.pid: process.lineage[-1]
        if process.lineage
        else process.parent
        if process.parent > 1 and process.command and len(alike[_likeness(process)]) > 1
        else process.pid
        for process in processes
    }


def _likeness(process: Process) -> tuple[int, str]:
    return process.parent, _NUMBERS.sub("", process.command)


def pids_of(processes: Iterable[Process]) -> set[int]:
    """The processes of all jobs, with the parents that belong to them."""
    return {
        pid for process in processes if process.started for pid in (process.pid, *process.lineage)
    }


def _job(pid: int, processes: tuple[Process, ...], ports: Ports) -> Job:
    programs = [
        program
        for command in dict.fromkeys(
            text
            for process in processes
            for text in (process.launcher, process.command or process.name)
        )
        if (program := _program_of(command)) is not None
    ]
    listener, why = _listener_of(processes, ports)
    titles: dict[str, str] = {program.kind: program.title for program in reversed(programs)}
    kind = next((kind for kind in _OF_PROGRAMS if kind in titles), None)
    if processes[0].console:
        return Job(pid, processes, "gpuconsole")
    if kind is not None:
        served = (listener, why) if kind == "server" else (None, "")
        return Job(pid, processes, kind, titles[kind], *served)
    if all(process.kind == "graphics" for process in processes):
        return Job(pid, processes, "graphics")
    if listener is not None and listener.port not in TEMPORARY_PORTS:
        return Job(pid, processes, "listens", listener=listener)
    return Job(pid, processes, "unknown")


_program_of = lru_cache(maxsize=1024)(program_of)


def _listener_of(processes: tuple[Process, ...], ports: Ports) -> tuple[Listener | None, str]:
    """The port of a job, and why it is not known. Ports that the kernel gave come last."""
    pids = pids_of(processes)
    found = [listener for pid in pids for listener in ports.get(pid) or ()]
    if found:
        return min(found, key=lambda one: (one.port in TEMPORARY_PORTS, one)), ""
    if not pids or not pids <= set(ports):
        return None, PORTS_NOT_READ
    return None, PORTS_REFUSED if any(ports[pid] is None for pid in pids) else "it listens at none"
