"""Bad usage: the error that ends a command with one line, and the checks that argparse applies to single values."""

from __future__ import annotations

import argparse


class UsageError(Exception):
    """Bad usage. The command prints one line on stderr and exits with code 2."""


def seconds(text: str) -> float:
    """A duration in seconds, 0.05 to 10 000 000; a `type` for argparse."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0.05 <= value <= 1e7:
        raise argparse.ArgumentTypeError(f"{text} s: allowed are 0.05 s to 10 000 000 s")
    return value


def price(text: str) -> float:
    """A price per hour, 0 or more, in any currency; a `type` for argparse."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a price per hour") from None
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text}: a price per hour is 0 or more")
    return value
