"""`gpuconsole run -- COMMAND`: the user's own job, on the screen or with --headless. The exit code is that of the job."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuconsole.cli import output
from gpuconsole.cli.options.console import record_path
from gpuconsole.cli.options.files import writable
from gpuconsole.cli.options.job import NotRunnable, check_options, check_program
from gpuconsole.cli.options.scenario import assignments
from gpuconsole.cli.options.usage import UsageError
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.scenario import job_scenario
from gpuconsole.tui import skeleton
from gpuconsole.tui.terminal import why_no_terminal

if TYPE_CHECKING:
    from gpuconsole.cli.job_work import JobWork


def run_job(args: argparse.Namespace) -> int:
    """`run -- COMMAND`; returns the exit code of the command. If a signal ends the job, the same signal ends this process. Raises UsageError."""
    check_options(args)
    tries = assignments(args.tries, job_scenario(args.job[0]))
    output = writable(args.output, "--output")
    if args.restart_knobs:
        _check_restart(args, tries)
        from gpuconsole.cli.job_work import try_by_restarts

        return run_if_possible(args, lambda: try_by_restarts(args, tries, writable(args.snapshot, "--snapshot")))
    if args.headless:
        from gpuconsole.cli.job_work import TrialOnJob

        return headless_job(args, TrialOnJob(tries) if tries or args.apply_top else None)
    if args.apply_top or args.tries:
        raise UsageError("--apply-top and --try go with --headless; on the screen, press Enter on a suggestion")
    snapshot, recording = writable(args.snapshot, "--snapshot"), record_path(args)
    writable(args.patch, "--patch")
    if why := why_no_terminal():
        raise UsageError(f"{why}; add --headless")
    from gpuconsole.cli.console import open_console

    return run_if_possible(args, lambda: open_console(args, snapshot=snapshot, recording=recording, job=args.job, output=output))


def _check_restart(args: argparse.Namespace, tries: Knobs) -> None:
    """Raises UsageError where --restart-knob does not fit the other options."""
    if not args.headless or not tries:
        raise UsageError("--restart-knob goes with --headless and --try KNOB=VALUE")
    mapped = [one.knob for one in args.restart_knobs]
    if missing := [name for name in tries if name not in mapped]:
        raise UsageError(
            f"--try {missing[0]}: needs --restart-knob '{missing[0]}={{FLAG}}' too, because this trial starts the command again"
        )


def headless_job(args: argparse.Namespace, work: JobWork | None = None) -> int:
    """Run the command after `--` without a screen, and do `work` meanwhile. The exit code is as in `run_job`. Raises UsageError."""
    files = writable(args.snapshot, "--snapshot"), record_path(args), writable(args.summary, "--summary")
    from gpuconsole.cli.headless_job import HeadlessJob

    return run_if_possible(args, HeadlessJob(args, *files, work).run)


def run_if_possible(args: argparse.Namespace, run: Callable[[], int]) -> int:
    """The exit code of `run`, if the command can be run. A negative code is the signal by which this process ends."""
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


def end_by(number: int) -> None:
    """End this process by the signal that ended the job, so that the caller sees the same. Leaves no second core file."""
    sys.stdout.flush()
    sys.stderr.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
