"""Network addresses and bearer tokens on the command line."""

from __future__ import annotations

from pathlib import Path

from gpuconsole.cli.options.usage import UsageError
from gpuconsole.machine import settings


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
        raise UsageError(f"{option} {url}: {problem}") from None


def read_token(path: Path) -> bytes:
    """The bearer token in the file `path`, without white space around it; raises UsageError."""
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise UsageError(f"--token-file {path}: cannot be read: {error.strerror}") from None
    if not token:
        raise UsageError(f"--token-file {path}: is empty")
    return token
