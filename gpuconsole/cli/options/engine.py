"""The engine that the options of a command describe."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gpuconsole.cli.options.console import dcgm, device, interval, price_per_hour
from gpuconsole.cli.options.network import parse_address, read_token
from gpuconsole.cli.options.nodes import nodes
from gpuconsole.cli.options.serving import objective, server_options
from gpuconsole.cli.options.usage import UsageError

if TYPE_CHECKING:
    from gpuconsole.engine.engine import Engine
    from gpuconsole.engine.watch_baseline import Keeps


def live_engine(args: argparse.Namespace) -> Engine:
    """The engine, not yet opened; raises UsageError."""
    # The console's first picture does not wait for these imports.
    from gpuconsole.engine.engine import Engine
    from gpuconsole.processes.serving import ServingChoice

    keeps: Keeps = "chosen" if not getattr(args, "save_baseline", False) else "all but slower" if args.fail_on_regression else "all"
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
    _serve(engine, getattr(args, "serve", None), getattr(args, "token_file", None), interval(args))
    return engine


def _serve(engine: Engine, address: str | None, token_file: Path | None, interval_s: float) -> None:
    if address is None:
        return
    from gpuconsole.engine.publish import publish

    host, port = parse_address(address, "--serve")
    token = read_token(token_file) if token_file else None
    try:
        publish(engine, host, port, token, interval_s)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--serve {address}: {getattr(error, 'strerror', None) or error}") from None
