"""`gpuconsole exporter`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import ipaddress
import signal
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from gpuconsole import __version__
from gpuconsole.cli.common import UsageError, interval, seconds
from gpuconsole.model.text import visible
from gpuconsole.runtime.child import Child
from gpuconsole.wire.events import Stop

if TYPE_CHECKING:
    from gpuconsole.export.prometheus import Board

DESCRIPTION = """Serve the metrics of all GPUs and of the host to Prometheus: at /metrics, under gpuconsole's names and DCGM's.

/healthz answers 200 while samples are fresh, else 503 and the reason. With --token-file every request needs
`Authorization: Bearer TOKEN`. Choose --interval as long as Prometheus' scrape interval: the shares of time then cover all of it.
Ctrl-C ends it. Exit code: 0 ok, 2 bad usage. See docs/exporter.md."""
EXAMPLES = """examples:
  gpuconsole exporter
  gpuconsole exporter --listen 0.0.0.0:9835 --token-file /etc/gpuconsole/token --interval 15
  gpuconsole exporter --dcgm http://127.0.0.1:9400/metrics     what NVML cannot tell (before Hopper), from dcgm-exporter
"""
DEFAULT_LISTEN = "127.0.0.1:9835"
SAMPLER = "gpuconsole.telemetry.sampler"
POLL_S = 0.25
FIRST_RESTART_S, LAST_RESTART_S = 0.5, 60.0
STARTING_S = 60.0  # a driver without persistence mode takes seconds for each GPU to start
LEAVE_S = 1.0
GONE_S = 3.0
REQUEST_S = 10.0
ABOUT = f"""gpuconsole {__version__} exporter

/metrics   for Prometheus, text or OpenMetrics
/healthz   200 while samples are fresh
"""

Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "exporter",
        help="serve metrics to Prometheus",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--listen", default=DEFAULT_LISTEN, metavar="HOST:PORT", help=f"where to listen (default {DEFAULT_LISTEN}; port 0: any free one)"
    )
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="refuse requests without this bearer token")
    parser.add_argument("--interval", type=seconds, default=argparse.SUPPRESS, metavar="S", help="seconds between two samples (default 1)")
    parser.add_argument("--dcgm", metavar="URL", help="a running dcgm-exporter's metrics, for what NVML cannot report")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    from gpuconsole.export.prometheus import Board  # 0.1 s that other commands need not wait for

    host, port = parse_address(args.listen)
    token = read_token(args.token_file) if args.token_file else None
    arguments = ["--interval", str(interval(args))]
    if args.dcgm:
        arguments += ["--dcgm", check_url(args.dcgm)]
    board = Board(interval(args))
    server = open_server(host, port, application(board, token))
    if token is None and not is_loopback(server.server_name):
        say("anyone who can reach this address can read the metrics: add --token-file, or listen on 127.0.0.1")
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    say(f"serving http://{address_text(server)}/metrics")
    try:
        asyncio.run(Keeper(board, arguments).run())
    finally:
        server.server_close()
    return 0


def say(text: str) -> None:
    print(f"gpuconsole: {visible(text)}", file=sys.stderr, flush=True)


# --- the command line -----------------------------------------------------------------------------------------


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`, an IPv6 address in brackets; raises UsageError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--listen {text}: must be HOST:PORT, such as {DEFAULT_LISTEN} or [::1]:9835")
    return host.removeprefix("[").removesuffix("]"), int(port)


def read_token(path: Path) -> bytes:
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise UsageError(f"--token-file {path}: cannot be read: {error.strerror}") from None
    if not token:
        raise UsageError(f"--token-file {path}: is empty")
    return token


def check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise UsageError(f"--dcgm {url}: must be an address such as http://127.0.0.1:9400/metrics")
    return url


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


# --- HTTP -----------------------------------------------------------------------------------------------------


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        # Not HTTPServer's: it asks DNS for the address's name, which can take seconds, and nobody needs it.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up or dawdles is its own affair; anything else is ours."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S

    def log_message(self, format: str, *args: object) -> None:
        """A line for every scrape would fill the journal."""


def open_server(host: str, port: int, app: Wsgi) -> WSGIServer:
    """A server that listens already; raises UsageError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        server_class = type("_Server", (_Server,), {"address_family": family})
        server: WSGIServer = server_class(address[:2], _Handler)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"--listen {host}:{port}: {why}") from None
    server.set_app(app)
    return server


def address_text(server: WSGIServer) -> str:
    host, port = server.server_name, server.server_port
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def application(board: Board, token: bytes | None) -> Wsgi:
    """`/metrics`, `/healthz` and `/`, all behind the token where there is one."""
    from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

    from gpuconsole.export.prometheus import BoardCollector

    registry = CollectorRegistry()
    registry.register(BoardCollector(board))
    ProcessCollector(namespace="gpuconsole_exporter", registry=registry)
    metrics: Wsgi = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        def answer(status: str, text: str, *headers: tuple[str, str]) -> list[bytes]:
            start_response(status, [("Content-Type", "text/plain; charset=utf-8"), *headers])
            return [text.encode()]

        if token is not None and not _authorized(environ.get("HTTP_AUTHORIZATION", ""), token):
            return answer("401 Unauthorized", "a bearer token is needed\n", ("WWW-Authenticate", 'Bearer realm="gpuconsole"'))
        match environ["PATH_INFO"]:
            case "/metrics":
                return metrics(environ, start_response)
            case "/healthz":
                reason = board.health()
                return answer("503 Service Unavailable", f"{reason}\n") if reason else answer("200 OK", "ok\n")
            case "/":
                return answer("200 OK", ABOUT)
            case _:
                return answer("404 Not Found", "see /\n")

    return app


def _authorized(header: str, token: bytes) -> bool:
    scheme, _, given = header.partition(" ")
    # Headers come as latin-1. The comparison takes as long for a nearly right token as for a wrong one.
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1", "replace"), token)


# --- the sampler ----------------------------------------------------------------------------------------------


class Keeper:
    """Keeps one sampler running: it is started again when it ends or falls silent, at first soon, then ever later.

    A sampler that cannot even be killed sits in a driver call; another one would only hang beside it, so there is
    none before it is gone.
    """

    def __init__(self, board: Board, arguments: list[str]) -> None:
        self._board = board
        self._arguments = arguments
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Until SIGINT or SIGTERM."""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        wait_s = FIRST_RESTART_S
        while not self._stop.is_set():
            began = time.monotonic()
            reason = await self._one_life()
            if self._stop.is_set():
                return
            if time.monotonic() - began > LAST_RESTART_S:
                wait_s = FIRST_RESTART_S
            self._board.stopped(reason)
            say(f"{reason}; starting it again in {wait_s:g} s")
            await self._sleep(wait_s)
            wait_s = min(2 * wait_s, LAST_RESTART_S)

    async def _one_life(self) -> str:
        """Start a sampler and wait for its end, or make it end; returns why."""
        codes: list[int] = []
        child = Child(SAMPLER, self._arguments, self._board.take, codes.append)
        self._board.starting()
        try:
            await child.start()
        except OSError as error:
            return f"the sampler does not start: {error}"
        reason = ""
        while child.alive and not self._stop.is_set():
            await self._sleep(POLL_S)
            limit = STARTING_S if self._board.down else 2 * self._board.stale_s
            if not reason and time.monotonic() - self._board.heard > limit:
                reason = f"the sampler has said nothing for {limit:.0f} s"
                child.kill()
        if self._stop.is_set():
            with contextlib.suppress(TimeoutError):  # it sits in the driver; it is killed, and goes when that lets it
                await asyncio.wait_for(child.stop(Stop(), LEAVE_S), GONE_S)
        if reason:
            return reason
        words = f": {child.last_words[-1]}" if child.last_words else ""
        return f"the sampler ended (exit {codes[0] if codes else '?'}){words}"

    async def _sleep(self, seconds_: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds_)
