"""`gpuconsole run -- COMMAND`: the user's own job, on the screen or with --headless. The exit code
is that of the job."""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gpuconsole.cli import output
from gpuconsole.cli.exits import NOT_EXECUTABLE, NOT_FOUND
from gpuconsole.cli.options import UsageError
from gpuconsole.cli.scenario import assignments
from gpuconsole.cli.values import writable
from gpuconsole.model.knobs.knob import nearest
from gpuconsole.model.scenario import job_scenario
from gpuconsole.tui import skeleton
from gpuconsole.tui.terminal import why_no_terminal

if TYPE_CHECKING:
    from gpuconsole.cli.job_work import JobWork

LAUNCHERS = ("python", "python3", "torchrun", "accelerate", "deepspeed", "bash", "sh", "uv")
"""First words of jobs, for a hint where a first word is no program."""
FILES = ("--output", "--snapshot", "--record", "--summary", "--patch")


class NotRunnable(Exception):
    """The command cannot be run. `code` is the exit code that a shell would have."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def run_job(args: argparse.Namespace) -> int:
    """`run -- COMMAND`; returns the exit code of the command. If a signal ends the job, the same
    signal ends this process."""
    check_job(args)
    tries = assignments(args.tries, job_scenario("the job"))
    if args.restart_knobs:
        check_restarts(args, "--try", tries, "trial")
        from gpuconsole.cli.job_work import try_by_restarts

        return run_if_possible(args, lambda: try_by_restarts(args, tries))
    if args.headless:
        from gpuconsole.cli.job_work import TrialOnJob

        return headless_job(args, TrialOnJob(tries) if tries or args.apply_top else None)
    if why := why_no_terminal():
        raise UsageError(f"{why}; add --headless")
    from gpuconsole.cli.console import open_console

    return run_if_possible(args, lambda: open_console(args))


def check_job(args: argparse.Namespace) -> None:
    """Raises UsageError where a scenario is named too, or a file cannot be written."""
    if args.scenario is not None:
        raise UsageError(
            f"{args.command} takes a scenario ({args.scenario}) or a command after --, not both"
        )
    for option in FILES:
        writable(args, option)


def check_restarts(args: argparse.Namespace, option: str, knobs: Iterable[str], work: str) -> None:
    """Raises UsageError where no --restart-knob gives the flag of a knob that `option` changes."""
    mapped = [restart_knob.knob for restart_knob in args.restart_knobs]
    for name in knobs:
        if name not in mapped:
            raise UsageError(
                f"{option} {name}: needs --restart-knob '{name}={{FLAG}}' too, because this {work}"
                " starts the command again"
            )


def headless_job(args: argparse.Namespace, work: JobWork | None = None) -> int:
    """Run the command after `--` without a screen, and do `work` meanwhile. The exit code is as in
    `run_job`."""
    from gpuconsole.cli.headless_job import HeadlessJob

    return run_if_possible(args, HeadlessJob(args, work).run)


def run_if_possible(args: argparse.Namespace, run: Callable[[], int]) -> int:
    """The exit code of `run`, if the command can be run. A negative code is the signal by which
    this process ends."""
    try:
        check_program(args.job)
    except NotRunnable as problem:
        output.problem(str(problem))
        return problem.code
    code = run()
    if code < 0:
        skeleton.restore()
        end_by(-code)
    return code


def check_program(command: list[str]) -> None:
    """Raises NotRunnable where the first word is no program."""
    program = command[0]
    if shutil.which(program) is not None:
        return
    if "/" not in program:
        raise NotRunnable(f"{program}: command not found{_instead(program)}", NOT_FOUND)
    if not os.path.exists(program):
        raise NotRunnable(f"{program}: no such file", NOT_FOUND)
    why = (
        "is a directory"
        if os.path.isdir(program)
        else "permission denied: the file is not executable"
    )
    raise NotRunnable(f"{program}: {why}", NOT_EXECUTABLE)


def _instead(program: str) -> str:
    """What may be meant by a first word that is no program: a file in this folder, or a program
    with a similar name."""
    if os.path.isfile(program):
        return (
            "; it is a file in this folder:"
            f" {f'python {program}' if program.endswith('.py') else f'./{program}'}"
        )
    return nearest(program, [name for name in LAUNCHERS if shutil.which(name)])


def end_by(number: int) -> None:
    """End this process by the signal that ended the job, so that the caller sees the same. Leaves
    no second core file."""
    sys.stdout.flush()
    sys.stderr.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
