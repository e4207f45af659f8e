"""The event loop of what handles many small messages: uvloop's where it is installed, which takes a third off the cost of each."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

Result = TypeVar("Result")


def run(main: Coroutine[None, None, Result]) -> Result:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
