"""Fake servers in processes of their own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def address_of(fake: str, *arguments: str) -> Iterator[str]:
    """Run `python -m tests.fakes.FAKE ARGUMENTS`. Yields the address that this server prints in its
    first line, as `serving URL`; the server ends afterwards."""
    command = [sys.executable, "-m", f"tests.fakes.{fake}", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[1]
    finally:
        process.kill()
        process.wait()
