"""`gpuconsole exporter`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from typing import TYPE_CHECKING

from gpuconsole.cli import output
from gpuconsole.cli.exits import INTERRUPTED, OK, exit_code, on_interrupt
from gpuconsole.cli.options import DCGM, INTERVAL, TOKEN_FILE, Option, UsageError
from gpuconsole.cli.values import dcgm, interval, parse_address, token
from gpuconsole.engine.children.sampler import SamplerSupervisor
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import AnyEvent, SamplerEnded

if TYPE_CHECKING:
    from gpuconsole.report.prometheus.server import MetricsServer

HELP = "serve the metrics of this machine to Prometheus"
DESCRIPTION = """Serve the metrics of all GPUs and of the host to Prometheus: at /metrics, under
gpuconsole's names and DCGM's.

/healthz answers 200 while samples are fresh, else 503 and the reason. With --token-file every
request needs `Authorization: Bearer TOKEN`. Choose --interval as long as Prometheus' scrape
interval: the shares of time then cover all of it. SIGTERM ends it with exit code 0, as a service
manager expects. See docs/exporter.md."""
EXAMPLES = """examples:
  gpuconsole exporter
  gpuconsole exporter --listen 0.0.0.0:9835 --token-file /etc/gpuconsole/token --interval 15
  gpuconsole exporter --dcgm http://127.0.0.1:9400/metrics
      what NVML cannot report (before Hopper), from dcgm-exporter
"""
DEFAULT_LISTEN = "127.0.0.1:9835"


OPTIONS = (
    Option(
        "--listen",
        f"where to listen (default {DEFAULT_LISTEN}; port 0: any free one)",
        "HOST:PORT",
        default=DEFAULT_LISTEN,
    ),
    TOKEN_FILE._replace(help="refuse requests without this bearer token"),
    INTERVAL,
    DCGM._replace(help="a running dcgm-exporter's metrics, for what NVML cannot report"),
)


def run(args: argparse.Namespace) -> int:
    # This import takes 0.3 s. It is here so that other commands do not wait for it.
    from gpuconsole.report.prometheus.server import MetricsServer

    host, port = parse_address(args.listen, "--listen")
    secret, dcgm_url = token(args), dcgm(args)
    state = SessionState(interval(args), history=False)
    try:
        server = MetricsServer(host, port, state, secret)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"--listen {args.listen}: {getattr(error, 'strerror', None) or error}"
        ) from None
    if secret is None and not server.is_loopback:
        output.problem(
            "anyone who can reach this address can read the metrics: add --token-file, or listen on"
            " 127.0.0.1"
        )
    asyncio.run(keep_reading(state, server, dcgm_url))
    return exit_code() if exit_code() == INTERRUPTED else OK


async def keep_reading(state: SessionState, server: MetricsServer, dcgm_url: str | None) -> None:
    """Serve the metrics that the sampler reports, until SIGINT, SIGTERM or SIGHUP."""
    over = asyncio.Event()
    on_interrupt(over.set)

    def on_event(event: AnyEvent) -> None:
        state.apply(event)
        if isinstance(event, SamplerEnded):
            output.problem(event.text)

    output.print_note(f"serving http://{server.address}/metrics")
    sampler = SamplerSupervisor(state.interval_s, dcgm_url, on_event)
    serving = asyncio.create_task(server.serve())
    serving.add_done_callback(lambda task: over.set())
    try:
        await sampler.start()
        await over.wait()
    finally:
        serving.cancel()
        await sampler.close()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
