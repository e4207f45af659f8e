"""The table of jobs on this machine, and what a person can do with the selected one."""

from __future__ import annotations

from gpuconsole.model import units
from gpuconsole.model.text import plain
from gpuconsole.report.cells import Row, Segment, blank, fill, line, spans, wrap
from gpuconsole.report.machine.processes import (
    ORDINARY,
    ProcessFilter,
    short_command,
    state_in_words,
    why_empty,
)
from gpuconsole.report.page import Lines, paragraph, text_lines
from gpuconsole.report.parts import Column, Table, lay_out
from gpuconsole.session.api import View
from gpuconsole.session.jobs import Job

COLUMNS = (
    Column("job", ">"),
    Column("kind"),
    Column("user", least=8),
    Column("age", ">", drop=2),
    Column("on", least=8),
    Column("memory", ">"),
    Column("SM %", ">", drop=3),
    Column("processes", ">", drop=4),
    Column("command", least=10),
)
FOOT_ROWS = 4
COMMAND = 400
"""Characters of a command that are drawn."""


def job_lines(view: View, jobs: list[Job], width: int, height: int) -> Lines:
    """A row for each job, and below the rows what the selected one is."""
    if not jobs:
        empty = why_empty(view, ProcessFilter())
        return text_lines([row for text in empty for row in paragraph(text, width)])
    heads, *rows = lay_out([Table(COLUMNS, [_cells(view, job) for job in jobs])], width)
    by_pid = {job.pid: job for job in jobs}

    def row(n: int, selected: bool) -> Row:
        return [("".join(text for text, _ in rows[n]), "mark")] if selected else rows[n]

    def foot(pid: int) -> list[Row]:
        return fill([blank(width), *_about(by_pid[pid], width)], width, FOOT_ROWS)

    return Lines(list(by_pid), row, [heads], foot if height > 3 * FOOT_ROWS else None)


def _cells(view: View, job: Job) -> list[Segment]:
    known = view.wall and job.started
    cells = (
        str(job.pid),
        kind_in_words(job),
        plain(", ".join(job.users)[:64]),
        units.age(view.wall - job.started) if known else "",
        spans(job.devices),
        "" if job.memory_bytes is None else units.size_bytes(job.memory_bytes).strip(),
        "" if job.sm_ratio is None else f"{job.sm_ratio * 100:.0f}",
        str(len({process.pid for process in job.processes})),
        command_of(job),
    )
    return [(text, "") if text else (units.NA, "dim") for text in cells]


def kind_in_words(job: Job) -> str:
    """`vLLM :8000`, `gpuconsole 812`, `notebook`, `torchrun`, `listens :8123`, `unknown`."""
    if job.kind == "gpuconsole":
        return f"gpuconsole {job.console}"
    name = job.title if job.kind in ("server", "launcher") else job.kind
    return f"{name} :{job.listener.port}" if job.listener else name


def command_of(job: Job) -> str:
    """The command that has started the job without Python and folders, after states of its
    processes that are not ordinary; or why the job is not seen."""
    states = sorted({process.state for process in job.processes} - set(ORDINARY))
    before = "".join(f"{state_in_words(state)}: " for state in states)
    program, _, rest = job.command.partition(" ")
    is_python = program.rpartition("/")[2].startswith("python") and rest
    command = rest.removeprefix("-m ") if is_python else job.command
    return plain(job.processes[0].unseen) or before + short_command(command, COMMAND)


def watch_command(job: Job) -> str:
    """What watches the server of a job, to be copied; empty where its port is not known."""
    return f"gpuconsole watch {job.address}" if job.address else ""


def what_next(job: Job) -> str:
    """What shows more of a job, in a sentence or two."""
    own = "gpuconsole run -- COMMAND in place of COMMAND shows where the time of its steps goes."
    match job.kind:
        case "server" if not job.listener:
            return (
                f"Its port is n/a: {job.why_no_port}. gpuconsole watch http://HOST:PORT shows what"
                " limits it."
            )
        case "server":
            return f"Enter watches what limits it, as {watch_command(job)} (y copies it)."
        case "listens":
            return f"If it is a model server: {watch_command(job)} (y copies this command)."
        case "gpuconsole":
            return f"Process {job.console} is its console: that terminal shows where its time goes."
        case "notebook":
            return (
                "%load_ext gpuconsole, then %%gpuconsole above a cell, shows where its time goes."
            )
        case "graphics":
            return ""
        case _:
            return "" if job.processes[0].unseen else f"Not under gpuconsole. {own}"


def _about(job: Job, width: int) -> list[Row]:
    """The command in a row, and what shows more of the job."""
    return [
        line(width, (f"{job.pid}  ", "heading"), command_of(job)),
        *(line(width, (part, "dim")) for part in wrap(what_next(job), max(8, width), 2)),
    ]
