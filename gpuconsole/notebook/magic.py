"""`%load_ext gpuconsole`: the cell magic `%%gpuconsole`, which runs a cell in the block of
`watch()`."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from types import TracebackType
from typing import Any, NoReturn

from IPython.core.error import UsageError

from gpuconsole.notebook.console import WatchError
from gpuconsole.notebook.session import watch

VARIABLE = "gpuconsole_session"
USAGE = """%%gpuconsole [--apply-top] [--try NAME=VALUE]... [--probe] [--allow-numerics]
[--allow-loader] [--memory] [--log-to TRACKER]... [--record FILE] [--device ID] [--interval S]
[--name NAME] [--quiet]: watch the training in this cell; the session is the variable
gpuconsole_session"""


class MagicParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%gpuconsole: {message}; usage: {USAGE}")


def parser() -> MagicParser:
    """The options of `watch`, as `gpuconsole run` spells them."""
    made = MagicParser(prog="%%gpuconsole", add_help=False, allow_abbrev=False)
    for flag in (
        "--apply-top",
        "--probe",
        "--allow-numerics",
        "--allow-loader",
        "--memory",
        "--quiet",
    ):
        made.add_argument(flag, action="store_true")
    made.add_argument(
        "--try", dest="tries", action="append", default=[], metavar="NAME=VALUE", type=_change
    )
    made.add_argument("--log-to", action="append", default=[], metavar="TRACKER")
    for option in ("--record", "--device", "--interval", "--name"):
        made.add_argument(option)
    return made


def _change(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text}: NAME=VALUE is allowed")
    return name, value


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext gpuconsole`."""

    def gpuconsole(line: str, cell: str) -> Any:
        __tracebackhide__ = True
        options = vars(parser().parse_args(shlex.split(line)))
        with contextlib.ExitStack() as block:
            try:
                session = block.enter_context(watch(**{**options, "tries": dict(options["tries"])}))
            except (ValueError, WatchError) as mistake:
                raise UsageError(f"%%gpuconsole: {mistake}") from None
            shell.push({VARIABLE: session})
            return run_cell(shell, cell)

    shell.register_magic_function(gpuconsole, "cell", "gpuconsole")


def run_cell(shell: Any, cell: str) -> None:
    """Run a cell as ever, and show what it returns. An error of the cell is raised from here, and
    IPython shows it once."""
    __tracebackhide__ = True
    show, show_syntax, count = shell.showtraceback, shell.showsyntaxerror, shell.execution_count
    shell.showtraceback = shell.showsyntaxerror = lambda *args, **kwargs: None
    # IPython 9 has counted on by now, and would call these lines the next cell
    shell.execution_count = _number_of_cell(shell) or count
    try:
        result = shell.run_cell(cell, store_history=False)
    finally:
        shell.showtraceback, shell.showsyntaxerror, shell.execution_count = show, show_syntax, count
    problem = result.error_before_exec or result.error_in_exec
    if problem is not None:
        raise problem.with_traceback(_of_cell(problem.__traceback__))


def _number_of_cell(shell: Any) -> int:
    """The number of the cell that runs; 0 where it is not known."""
    frame = sys._getframe(1)
    while frame is not None:
        named = shell.compile.format_code_name(frame.f_code.co_filename)  # ("Cell", "In[3]")
        if named is not None:
            return int(named[1].strip("In[]") or 0)
        frame = frame.f_back  # type: ignore[assignment]
    return 0


def _of_cell(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback from the lines of the cell on, without the frames of IPython."""
    while traceback is not None and "IPython" in traceback.tb_frame.f_globals.get("__name__", ""):
        traceback = traceback.tb_next
    return traceback
