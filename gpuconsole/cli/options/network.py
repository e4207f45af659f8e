"""Network addresses and bearer tokens on the command line."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from gpuconsole.cli.options.usage import UsageError


def parse_address(text: str, option: str = "--listen") -> tuple[str, int]:
    """Host and port of `HOST:PORT`, an IPv6 address in brackets; raises UsageError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{option} {text}: must be HOST:PORT, such as 127.0.0.1:9835 or [::1]:9835")
    return host.removeprefix("[").removesuffix("]"), int(port)


def check_url(url: str | None, option: str, example: str) -> None:
    """Raises UsageError if `url` is not an http or https address."""
    if url is None:
        return
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise UsageError(f"{option} {url}: must be an address such as {example}")


def read_token(path: Path) -> bytes:
    """The bearer token in the file `path`, without white space around it; raises UsageError."""
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise UsageError(f"--token-file {path}: cannot be read: {error.strerror}") from None
    if not token:
        raise UsageError(f"--token-file {path}: is empty")
    return token
