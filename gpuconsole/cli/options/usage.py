"""Bad usage: the error that ends a command with one line, and the checks that argparse applies to single values."""

from __future__ import annotations

import argparse

from gpuconsole.engine.machine import settings


class UsageError(Exception):
    """Bad usage. The command prints one line on stderr and exits with code 2."""


def seconds(text: str) -> float:
    """A duration in seconds, 0.05 to 10 000 000; a `type` for argparse."""
    try:
        return settings.seconds(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def price(text: str) -> float:
    """A price per hour, 0 or more, in any currency; a `type` for argparse."""
    try:
        return settings.price(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


WRITTEN = {"knobs": "set", "tries": "try", "restart_knobs": "restart-knob"}
"""Options whose name in the parser is not their own name."""


def given(args: argparse.Namespace, name: str) -> bool:
    """Whether the user gave the option with this name in the parser. The option must not have a default value."""
    value = getattr(args, name, None)
    return value is not None and value is not False and value != []


def written(name: str) -> str:
    """The option with this name in the parser, as a user writes it."""
    return "--" + WRITTEN.get(name, name).replace("_", "-")


def refuse_given(args: argparse.Namespace, why: str, *names: str) -> None:
    """Raises UsageError where the user gave one of these options, which the command would ignore. `why` is the rest of the sentence."""
    for name in names:
        if given(args, name):
            raise UsageError(f"{written(name)} {why}")
