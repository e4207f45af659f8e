"""Creates the engine from the options of a command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gpuconsole.cli.options.console import dcgm, device, interval, price_per_hour
from gpuconsole.cli.options.network import parse_address, read_token
from gpuconsole.cli.options.nodes import nodes
from gpuconsole.cli.options.serving import objective, server_options
from gpuconsole.cli.options.usage import UsageError
from gpuconsole.engine.machine.settings import settings

if TYPE_CHECKING:
    from gpuconsole.experiments.session import LiveSession
    from gpuconsole.experiments.watch_baseline import Keeps


def live_engine(args: argparse.Namespace) -> LiveSession:
    """The engine, not yet opened; raises UsageError."""
    # The console's first picture does not wait for these imports.
    from gpuconsole.engine.children.serving import ServingChoice
    from gpuconsole.experiments.session import LiveSession

    keeps: Keeps = "chosen" if not getattr(args, "save_baseline", False) else "all but slower" if args.fail_on_regression else "all"
    engine = LiveSession(
        interval(args),
        device(args),
        price_per_hour=price_per_hour(args),
        dcgm=dcgm(args),
        keeps=keeps,
        nodes=nodes(args),
        serving=ServingChoice(server_options(args), objective(args)),
    )
    if getattr(args, "probe", False):
        engine.diagnosis.may_probe_jobs = True
    engine.profile_dir = getattr(args, "profile_dir", None)
    served = serve_address(args)
    if served is not None:
        serve_metrics(engine, *served)
    return engine


def serve_metrics(engine: LiveSession, host: str, port: int, token: bytes | None) -> None:
    """Serve the metrics of the session, with those of its workload, while the engine is open. Raises UsageError for a bad address."""
    from gpuconsole.report.prometheus.server import MetricsServer

    try:
        server = MetricsServer(host, port, engine.state, token)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--serve {host}:{port}: {getattr(error, 'strerror', None) or error}") from None
    engine.services.append(server.serve)
    engine.note(f"serving http://{server.address}/metrics")


def serve_address(args: argparse.Namespace) -> tuple[str, int, bytes | None] | None:
    """Host, port and bearer token of --serve and --token-file; None without --serve. Raises UsageError."""
    address: str | None = getattr(args, "serve", settings().serve)
    token_file: Path | None = getattr(args, "token_file", settings().token_file)
    if address is None:
        if getattr(args, "token_file", None) is not None:
            raise UsageError(f"--token-file {token_file}: needs --serve HOST:PORT")
        return None
    host, port = parse_address(address, "--serve")
    return host, port, read_token(token_file) if token_file else None


async def open_engine(engine: LiveSession, recording: Path | None = None) -> None:
    """Open the engine, and begin to record into `recording`. Raises UsageError if the device does not exist or the recording cannot be
    written."""
    from gpuconsole.session.api import SessionError

    await engine.open()
    try:
        engine.device()
        if recording is not None:
            engine.toggle_recording(recording)
    except SessionError as error:
        raise UsageError(str(error)) from None
