"""Network addresses and bearer tokens on the command line."""

from __future__ import annotations

import stat
from pathlib import Path

from gpuconsole.cli import output
from gpuconsole.cli.options.usage import UsageError
from gpuconsole.engine.machine import settings


def parse_address(text: str, option: str = "--listen") -> tuple[str, int]:
    """Host and port of `HOST:PORT`, an IPv6 address in brackets; raises UsageError."""
    try:
        return settings.address(text)
    except ValueError as problem:
        raise UsageError(f"{option} {text}: {problem}") from None


def check_url(url: str | None, option: str, example: str) -> None:
    """Raises UsageError if `url` is not an http or https address."""
    if url is None:
        return
    try:
        settings.url(url, example)
    except ValueError as problem:
        shown = f" {url}" if "@" not in url else ""  # it may hold a password
        raise UsageError(f"{option}{shown}: {problem}") from None


def read_token(path: Path) -> bytes:
    """The bearer token in the file `path`, without white space around it; raises UsageError."""
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise UsageError(f"--token-file {path}: cannot be read: {error.strerror}") from None
    if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        output.note(f"--token-file {path}: other users can read the token (chmod 600 {path})")
    if not token:
        raise UsageError(f"--token-file {path}: is empty")
    return token
