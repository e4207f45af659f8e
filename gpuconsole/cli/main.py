"""`gpuconsole`: parse the command line and run one command. `exits.py` has the exit codes.

The other imports are inside the functions, so that the console can paint its first picture before them.
"""

from __future__ import annotations

import sys

from gpuconsole.cli.exits import FAILED, INTERRUPTED, USAGE, ending_at_once


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    with ending_at_once():
        from gpuconsole.tui import skeleton

        try:
            if not argv and skeleton.fits():  # an empty command line has no mistakes
                skeleton.paint(overview=True)
            return _run(argv)
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            skeleton.restore()


def _run(argv: list[str]) -> int:
    from gpuconsole.cli.options import CommandFailed, UsageError
    from gpuconsole.cli.output import configure, problem
    from gpuconsole.cli.parser import parse
    from gpuconsole.engine.machine.settings import SettingsError
    from gpuconsole.tui import skeleton

    try:
        args = parse(argv)
        if args.command is None:
            from gpuconsole.cli.console import run_console

            args.handler = run_console
        configure(args)  # a mistake in the settings is reported before anything starts
        return int(args.handler(args))
    except (UsageError, SettingsError) as error:
        skeleton.restore()
        problem(str(error))
        return USAGE
    except CommandFailed as error:
        problem(str(error))
        return FAILED
    except BrokenPipeError:
        return FAILED
