"""`gpuconsole`: parse the command line and run one command. Exit codes: 0 ok, 1 the workload failed, 2 bad usage, 130 interrupted
before there was a result (see `interrupt.py`).

The imports are inside the functions, so that the console can paint its first picture before them.
"""

from __future__ import annotations

import sys


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    from gpuconsole.tui import skeleton

    try:
        if not words and skeleton.fits():  # a command line without words has no mistakes
            skeleton.paint()
        return _run(words)
    except KeyboardInterrupt:
        from gpuconsole.cli.interrupt import INTERRUPTED

        return INTERRUPTED
    finally:
        skeleton.restore()


def _run(words: list[str]) -> int:
    from gpuconsole.cli.options.usage import UsageError
    from gpuconsole.cli.parser import parse
    from gpuconsole.machine.settings import SettingsError, settings
    from gpuconsole.tui import skeleton

    args = parse(words)
    if args.command is None:
        from gpuconsole.cli.console import run_console

        args.handler = run_console
    try:
        settings()  # a mistake in the file is reported before anything starts
        return int(args.handler(args))
    except (UsageError, SettingsError) as error:
        skeleton.restore()
        print(f"gpuconsole: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 1
