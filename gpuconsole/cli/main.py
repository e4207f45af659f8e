"""`gpuconsole`: parse the command line and run one command. `exits.py` has the exit codes.

The other imports are inside the functions, so that the console can paint its first picture before
them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from io import TextIOWrapper

from gpuconsole.cli.exits import FAILED, INTERRUPTED, USAGE, ending_at_once

UNWRITABLE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""What a write to a stream answers whose reader, disk or terminal is gone or full."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    _prepare_streams()
    with ending_at_once():
        from gpuconsole.tui import skeleton

        try:
            if not argv and skeleton.fits():  # an empty command line has no mistakes
                skeleton.paint(overview=True)
                _import_asyncio()
            return _run(argv)
        except OSError as error:  # the result cannot be written; other files have their own lines
            if error.errno not in UNWRITABLE:
                raise
            skeleton.restore()
            return _without_stdout(error)
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            skeleton.restore()


def _run(argv: list[str]) -> int:
    from gpuconsole.cli.options import CommandFailed, UsageError
    from gpuconsole.cli.output import configure, problem
    from gpuconsole.cli.parser import parse
    from gpuconsole.host.settings import SettingsError
    from gpuconsole.tui import skeleton

    try:
        args = parse(argv)
        if args.command is None:
            from gpuconsole.cli.console import run_console

            args.handler = run_console
        configure(args)  # a mistake in the settings is reported before anything starts
        code = int(args.handler(args))
        sys.stdout.flush()
        return code
    except (UsageError, SettingsError) as error:
        skeleton.restore()
        problem(str(error))
        return USAGE
    except CommandFailed as error:
        problem(str(error))
        return FAILED


def _import_asyncio() -> None:
    """Import asyncio without TLS, which the console does not use: OpenSSL takes 4 MB. Other modules
    can import `ssl` later."""
    if "asyncio" not in sys.modules and "ssl" not in sys.modules:
        sys.modules["ssl"] = None  # type: ignore[assignment]
        try:
            import asyncio as asyncio
        finally:
            del sys.modules["ssl"]


def _prepare_streams() -> None:
    """Open /dev/null in place of a stream that the caller has closed: else the next socket gets its
    number, and children lose the socket. Letters that the locale does not have are written as
    escapes."""
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(number)
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout, sys.stderr = sys.stdout or os.fdopen(1, "w"), sys.stderr or os.fdopen(2, "w")
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _without_stdout(error: OSError) -> int:
    """Report that the result could not be written, unless its reader has gone; the exit code. What
    waits in the buffer is dropped: Python would try again at its end."""
    from gpuconsole.cli.output import problem

    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    if not isinstance(error, BrokenPipeError):
        problem(
            f"{error.filename}: {error.strerror}"
            if error.filename
            else str(error.strerror or error)
        )
    return FAILED
