"""A command of the user's own after `--`: whether it can be run, and which options make sense with it."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from gpuconsole.cli.options.nodes import NODE_OPTIONS
from gpuconsole.cli.options.serving import OPTIONS as SERVING_OPTIONS
from gpuconsole.cli.options.usage import UsageError, given, refuse_given, written
from gpuconsole.model.job import RestartKnob, parse_restart_knob
from gpuconsole.model.knobs.knob import KnobError

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of a shell for a command that cannot be run."""
REFUSED = {
    "knobs": "the program sets its own knobs; give the new value to the command",
    "duration": "the job runs until its own end",
    "json": "stdout belongs to the job; --snapshot FILE writes the session",
    "profile": "not for a job of your own; on the screen, press f",
    "resume": "a job starts anew",
    **dict.fromkeys(NODE_OPTIONS, "start torchrun itself as the command"),
    **dict.fromkeys(("require_valid", *SERVING_OPTIONS), "only for serving scenarios"),
}
"""Options that make no sense with a command, by their names in the parser, each with the reason."""
JOB_OPTIONS = ("restart_knobs", "store_command", "probe", "summary", "patch", "allow_numerics", "output")
"""Options that make sense only with a command."""
NOT_WITH_RESTARTS = (
    "record", "patch", "summary", "probe", "allow_numerics", "apply_top", "save_baseline", "fail_on_regression", "stop_settled", "price"
)  # fmt: skip
NO_SCREEN = "goes with the screen, not with --headless"


class NotRunnable(Exception):
    """The command cannot be run. `code` is the exit code that a shell would have."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def add_job_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a job of your own (-- COMMAND ARGS...)")
    group.add_argument("--output", type=Path, metavar="FILE", help="on the screen: append all output of the job to FILE")
    add_restart_option(group)
    group.add_argument(
        "--store-command", action="store_true", help="store the command line in the snapshot and the recording, not only its digest"
    )
    add_probe_option(group)
    add_summary_option(group)
    add_change_options(group)


def add_probe_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--probe", action="store_true", help="a job of your own: allow short experiments in it, extra passes on copies of its last batch"
    )


def add_restart_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--restart-knob", action="append", default=[], type=_restart_knob, metavar="KNOB={FLAG}", dest="restart_knobs",
        help="a job of your own: the flag of the command that sets this knob. A headless --try, or a sweep, starts the command again for each value",
    )  # fmt: skip


def add_summary_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--summary", type=Path, metavar="FILE", help="a job of your own, without a screen: write the summary to FILE, not to stderr"
    )


def _restart_knob(text: str) -> RestartKnob:
    try:
        return parse_restart_knob(text)
    except KnobError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_change_options(parser: argparse._ActionsContainer) -> None:
    """Options of the commands that change a job."""
    parser.add_argument(
        "--patch", type=Path, metavar="FILE", help="a job of your own: write kept changes as a patch of your code (git apply)"
    )
    parser.add_argument(
        "--allow-numerics",
        action="store_true",
        help="a job of your own: allow changes that alter its numbers (bf16, torch.compile, other random numbers in a random dataset)",
    )


def refuse_job_options(args: argparse.Namespace) -> None:
    """Raises UsageError where an option makes sense only with a command of the user's own."""
    refuse_given(args, f"goes with a command of your own: gpuconsole {args.command} -- COMMAND ARGS...", *JOB_OPTIONS)


def check_options(args: argparse.Namespace) -> None:
    """Raises UsageError where an option makes no sense with a command of the user's own."""
    for name, why in REFUSED.items():
        if given(args, name):
            raise UsageError(f"{written(name)} does not go with a command after --: {why}")
    if getattr(args, "scenario", None) is not None:
        raise UsageError(f"{args.command} takes a scenario ({args.scenario}) or a command after --, not both")
    if args.command == "run" and args.headless and args.output is not None:
        raise UsageError("--output is for the screen; with --headless, the shell can redirect the output of the job")
    if args.command == "run" and not args.headless:
        refuse_given(args, "goes with --headless", "summary", "fail_on_regression", "restart_knobs")
    else:
        refuse_given(args, NO_SCREEN, "eco")
        refuse_given(args, "goes with the screen, where key f profiles", "profile_dir")
    if given(args, "restart_knobs"):
        refuse_given(args, "does not go with --restart-knob, which starts the command again for each block", *NOT_WITH_RESTARTS)


def check_program(words: list[str]) -> None:
    """Raises NotRunnable where the first word is no program."""
    program = words[0]
    if shutil.which(program) is not None:
        return
    if "/" not in program:
        raise NotRunnable(f"{program}: command not found", NOT_FOUND)
    if not os.path.exists(program):
        raise NotRunnable(f"{program}: no such file", NOT_FOUND)
    why = "is a folder" if os.path.isdir(program) else "permission denied: the file is not executable"
    raise NotRunnable(f"{program}: {why}", NOT_EXECUTABLE)
