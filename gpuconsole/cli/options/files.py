"""Files that commands read and write: `--snapshot`, `--json`, snapshots as input."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from gpuconsole.cli.options.usage import UsageError
from gpuconsole.model.files import check_writable, read_limited
from gpuconsole.model.snapshot import MOST_BYTES, Snapshot, SnapshotError, decode


def add_headless_options(parser: argparse.ArgumentParser, snapshot: str, as_json: str) -> None:
    """Output options of a command that has no screen. `snapshot` and `as_json` are the help texts of --snapshot and --json."""
    parser.add_argument("--headless", action="store_true", help="accepted, and always on: progress on stderr, the result on stdout")
    parser.add_argument("--snapshot", type=Path, metavar="FILE", help=snapshot)
    parser.add_argument("--json", action="store_true", help=as_json)


def writable(path: Path | None, option: str) -> Path | None:
    """`path`, if the file can be written. Otherwise raises UsageError, so the command fails before it starts work."""
    if path is not None:
        try:
            check_writable(path)
        except OSError as error:
            raise UsageError(f"{option} {path}: cannot be written: {error.strerror or error}") from None
    return path


def read_snapshot(path: Path) -> tuple[Snapshot, dict[str, object]]:
    """A snapshot file, decoded and as plain JSON data; raises UsageError."""
    try:
        return decode(read_limited(path, MOST_BYTES))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except SnapshotError as error:
        raise UsageError(f"{path}: {error}") from None


def to_json(value: object) -> str:
    """`value` as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
