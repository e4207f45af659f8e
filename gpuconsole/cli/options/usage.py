"""Bad usage: the error that ends a command with one line, and the checks that argparse applies to single values."""

from __future__ import annotations

import argparse

from gpuconsole.machine import settings


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
