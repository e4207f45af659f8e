"""What several commands share: options, and errors that are the user's to mend."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from gpuconsole.engine.catalog import find_scenario
from gpuconsole.model.files import check_writable
from gpuconsole.model.knobs.catalogue import KnobError, Knobs, parse_assignment
from gpuconsole.model.scenario import Scenario, ScenarioError
from gpuconsole.model.snapshot import Snapshot, SnapshotError, decode

if TYPE_CHECKING:
    from gpuconsole.engine.engine import Engine
    from gpuconsole.engine.watch_baseline import Keeps


class UsageError(Exception):
    """Bad usage: one line on stderr, exit code 2."""


def add_headless_options(parser: argparse.ArgumentParser, snapshot: str, as_json: str) -> None:
    """Of commands that have no screen: what they write, in the words of each."""
    parser.add_argument("--headless", action="store_true", help="what it does anyway: progress on stderr, the result on stdout")
    parser.add_argument("--snapshot", type=Path, metavar="FILE", help=snapshot)
    parser.add_argument("--json", action="store_true", help=as_json)


def add_console_options(parser: argparse.ArgumentParser) -> None:
    """Options of everything that opens the screen or watches devices. Defaults are left to `fill_defaults`, so that
    they may stand before or after the command."""
    parser.add_argument("--interval", type=seconds, default=argparse.SUPPRESS, metavar="S", help="seconds between two samples (default 1)")
    parser.add_argument("--device", default=argparse.SUPPRESS, metavar="ID", help="gpu:N or cpu (default: the first GPU, else the CPU)")
    parser.add_argument("--record", type=Path, default=argparse.SUPPRESS, metavar="FILE", help="record the session for `gpuconsole replay`")
    parser.add_argument(
        "--price", type=price, default=argparse.SUPPRESS, metavar="P", help="what the machine costs per hour, in any currency"
    )
    parser.add_argument(
        "--dcgm", default=argparse.SUPPRESS, metavar="URL", help="a dcgm-exporter's /metrics: SM and tensor activity of GPUs before Hopper"
    )
    parser.add_argument(
        "--serve", default=argparse.SUPPRESS, metavar="HOST:PORT", help="serve the session's metrics to Prometheus meanwhile"
    )
    parser.add_argument(
        "--token-file", type=Path, default=argparse.SUPPRESS, metavar="FILE", help="with --serve: refuse requests without this bearer token"
    )
    parser.add_argument("--eco", action="store_true", default=argparse.SUPPRESS, help="fewer screen updates, for a slow line")


def interval(args: argparse.Namespace) -> float:
    return getattr(args, "interval", 1.0)


def live_engine(args: argparse.Namespace) -> Engine:
    """The engine that the common options ask for; raises UsageError."""
    from gpuconsole.engine.engine import Engine

    keeps: Keeps = "chosen" if not getattr(args, "save_baseline", False) else "all but slower" if args.fail_on_regression else "all"
    from gpuconsole.cli.options.nodes import nodes
    from gpuconsole.cli.options.serving import objective, server_options
    from gpuconsole.processes.serving import ServingChoice

    engine = Engine(
        interval(args),
        device(args),
        price_per_hour=price_per_hour(args),
        dcgm=dcgm(args),
        keeps=keeps,
        nodes=nodes(args),
        serving=ServingChoice(server_options(args), objective(args)),
    )
    engine.profile_dir = getattr(args, "profile_dir", None)
    address = getattr(args, "serve", None)
    if address is not None:
        _serve(engine, address, getattr(args, "token_file", None), interval(args))
    return engine


def _serve(engine: Engine, address: str, token_file: Path | None, interval_s: float) -> None:
    from gpuconsole.engine.publish import publish

    host, port = parse_address(address, "--serve")
    token = read_token(token_file) if token_file else None
    try:
        publish(engine, host, port, token, interval_s)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--serve {address}: {getattr(error, 'strerror', None) or error}") from None


def price_per_hour(args: argparse.Namespace) -> float | None:
    return getattr(args, "price", None)


def dcgm(args: argparse.Namespace) -> str | None:
    """The address of a dcgm-exporter. Raises UsageError when it is none."""
    url: str | None = getattr(args, "dcgm", None)
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise UsageError(f"--dcgm {url}: must be an address such as http://127.0.0.1:9400/metrics")
    return url


def parse_address(text: str, option: str = "--listen") -> tuple[str, int]:
    """`HOST:PORT`, an IPv6 address in brackets; raises UsageError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{option} {text}: must be HOST:PORT, such as 127.0.0.1:9835 or [::1]:9835")
    return host.removeprefix("[").removesuffix("]"), int(port)


def read_token(path: Path) -> bytes:
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise UsageError(f"--token-file {path}: cannot be read: {error.strerror}") from None
    if not token:
        raise UsageError(f"--token-file {path}: is empty")
    return token


def device(args: argparse.Namespace) -> str | None:
    return getattr(args, "device", None)


def record_path(args: argparse.Namespace) -> Path | None:
    return writable(getattr(args, "record", None), "--record")


def seconds(text: str) -> float:
    """A positive number of seconds, for argparse."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0.05 <= value <= 1e7:
        raise argparse.ArgumentTypeError(f"{text} s: allowed are 0.05 s to 10 000 000 s")
    return value


def price(text: str) -> float:
    """A price per hour, for argparse."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a price per hour") from None
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text}: a price per hour is 0 or more")
    return value


def scenario(name: str) -> Scenario:
    """The scenario `name`; raises UsageError."""
    try:
        return find_scenario(name)
    except ScenarioError as error:
        raise UsageError(str(error)) from None


def assignments(texts: list[str], chosen: Scenario) -> Knobs:
    """`--set` and `--try` values checked against the scenario's workload; raises UsageError."""
    try:
        return dict(parse_assignment(text, chosen.workload.knobs, chosen.name) for text in texts)
    except KnobError as error:
        raise UsageError(str(error)) from None


def writable(path: Path | None, option: str) -> Path | None:
    """`path` if it can be written at the end; raises UsageError now, before anything is started."""
    if path is not None:
        try:
            check_writable(path)
        except OSError as error:
            raise UsageError(f"{option} {path}: cannot be written: {error.strerror or error}") from None
    return path


def read_snapshot(path: Path) -> tuple[Snapshot, dict[str, object]]:
    """A snapshot file; raises UsageError."""
    try:
        return decode(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except SnapshotError as error:
        raise UsageError(f"{path}: {error}") from None


def has_screen() -> bool:
    """Whether a full-screen program can run here: keys come from stdin, and the screen is drawn on stderr."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def to_json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
