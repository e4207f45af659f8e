"""Why something failed, in words for the user."""

from __future__ import annotations

UNEXPECTED = "an unexpected error"


class PlainError(RuntimeError):
    """An error whose message is a sentence of ours for the user."""


def reason(problem: BaseException) -> str:
    """Say in one line why something failed, without the name of an exception class. If the message alone says nothing, as for a missing key, the line calls
    the error unexpected."""
    lines = str(problem).strip().splitlines()
    if not lines:
        return UNEXPECTED
    if isinstance(problem, PlainError) or (" " in lines[0] and not isinstance(problem, KeyError)):
        return lines[0]
    return f"{UNEXPECTED}: {lines[0]}"
