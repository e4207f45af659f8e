"""`gpuconsole exporter`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gpuconsole.cli.common import UsageError, interval, seconds
from gpuconsole.model.text import visible
from gpuconsole.runtime.child import Child
from gpuconsole.wire.events import Stop

if TYPE_CHECKING:
    from gpuconsole.export.board import Board

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
STUCK_S = 60.0  # a source that has not come back by then is given a fresh process
STARTING_S = 60.0  # a driver without persistence mode takes seconds for each GPU to start
LEAVE_S = 1.0
GONE_S = 3.0


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
    # 0.1 s that other commands need not wait for
    from gpuconsole.export.board import Board
    from gpuconsole.export.metrics_server import MetricsServer

    host, port = parse_address(args.listen)
    token = read_token(args.token_file) if args.token_file else None
    arguments = ["--interval", str(interval(args))]
    if args.dcgm:
        arguments += ["--dcgm", check_url(args.dcgm)]
    board = Board(interval(args))
    try:
        server = MetricsServer(host, port, board, token)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--listen {args.listen}: {getattr(error, 'strerror', None) or error}") from None
    if token is None and not server.is_loopback:
        say("anyone who can reach this address can read the metrics: add --token-file, or listen on 127.0.0.1")
    server.start()
    say(f"serving http://{server.address}/metrics")
    try:
        asyncio.run(Keeper(board, arguments).run())
    finally:
        server.close()
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


# --- the sampler ----------------------------------------------------------------------------------------------


class Keeper:
    """Keeps one sampler running: it is started again when it ends or is stuck, at first soon, then ever later.

    One that waits in the kernel cannot be killed, and another would only hang beside it: it is left to itself, and so are
    the sources of its that still answer.
    """

    def __init__(self, board: Board, arguments: list[str]) -> None:
        self._board = board
        self._arguments = arguments
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        """Until `stop`, SIGINT or SIGTERM."""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.stop)
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
            if not reason and (reason := self._stuck()):
                if child.pid and in_kernel(child.pid):
                    reason = ""
                else:
                    child.kill()
        if self._stop.is_set():
            with contextlib.suppress(TimeoutError):  # it sits in the driver; it is killed, and goes when that lets it
                await asyncio.wait_for(child.stop(Stop(), LEAVE_S), GONE_S)
        if reason:
            return reason
        words = f": {child.last_words[-1]}" if child.last_words else ""
        return f"the sampler ended (exit {codes[0] if codes else '?'}){words}"

    def _stuck(self) -> str:
        """Why the sampler needs to be ended; empty when it does not."""
        limit = STARTING_S if self._board.down else 2 * self._board.stale_s
        if time.monotonic() - self._board.heard > limit:
            return f"the sampler has said nothing for {limit:.0f} s"
        source, stuck_s = self._board.longest_stuck()
        return f"{source} has not answered for {stuck_s:.0f} s" if stuck_s > STUCK_S else ""

    async def _sleep(self, seconds_: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds_)


def in_kernel(pid: int) -> bool:
    """Whether a thread of the process waits where no signal reaches it (state D)."""
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # that thread has ended
            if path.read_bytes().rpartition(b")")[2].split()[:1] == [b"D"]:
                return True
    return False
