"""`gpuconsole run -- COMMAND`: the user's own job, on the screen or with --headless. The exit code is that of the job."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys

from gpuconsole.cli.options.console import record_path
from gpuconsole.cli.options.files import writable
from gpuconsole.cli.options.job import NotRunnable, check_options, check_program
from gpuconsole.cli.options.usage import UsageError
from gpuconsole.tui import skeleton
from gpuconsole.tui.driver.terminal import why_no_terminal


def run_job(args: argparse.Namespace) -> int:
    """Run the command after `--`; returns its exit code. If a signal ends the job, the same signal ends this process. Raises UsageError."""
    check_options(args)
    snapshot, recording = writable(args.snapshot, "--snapshot"), record_path(args)
    summary, output = writable(args.summary, "--summary"), writable(args.output, "--output")
    if not args.headless:
        if args.apply_top or args.tries:
            raise UsageError("--apply-top and --try go with --headless; on the screen, press Enter on a suggestion")
        if why := why_no_terminal():
            raise UsageError(f"{why}; add --headless")
    try:
        check_program(args.job)
    except NotRunnable as problem:
        print(f"gpuconsole: {problem}", file=sys.stderr)
        return problem.code
    if args.headless:
        from gpuconsole.cli.headless_job import HeadlessJob

        code = HeadlessJob(args, snapshot, recording, summary).run()
    else:
        from gpuconsole.cli.console import open_console

        code = open_console(args, snapshot=snapshot, recording=recording, job=args.job, output=output)
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
