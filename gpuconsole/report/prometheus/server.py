"""The HTTP server of the exporter: `/metrics`, `/healthz` and `/`, in the event loop that applies
the events of the session."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import socket
import time
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from gpuconsole import __version__
from gpuconsole.model.text import visible
from gpuconsole.report.prometheus.collector import ScrapeCollector
from gpuconsole.report.prometheus.scrape import scrape, unreadable_gpus
from gpuconsole.session.freshness import why_not_fresh
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import states_now

CLIENT_S = 20.0
"""Limit for a whole request and its answer."""
MAX_CLIENTS = 32
END_S = 1.0
"""How long the end of the server waits for answers under way."""
THREAD_BYTES = 1 << 15
"""An answer of this size is compressed on a thread."""
ABOUT = f"""gpuconsole {__version__} exporter

/metrics   for Prometheus, text or OpenMetrics
/healthz   200 while samples are fresh; it names GPUs that are lost, sick or give no value
"""

LOGGER = logging.getLogger(__name__)
# A line for every malformed request would fill the journal, or cover the screen.
LOGGER.addFilter(
    lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
)


class MetricsServer:
    """Listens from the construction on, and answers while `serve` runs. Raises OSError,
    UnicodeError for a bad address."""

    def __init__(
        self, host: str, port: int, state: SessionState, token: bytes | None = None
    ) -> None:
        """With `token`, every page needs this bearer token."""
        self._state, self._token = state, token
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
            self._socket.listen()
        except OSError:
            self._socket.close()
            raise
        self._host, self._port = self._socket.getsockname()[:2]

    @property
    def address(self) -> str:
        """Host and port as in a URL, with the port that the system chose."""
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self._host.partition("%")[0]).is_loopback

    async def serve(self) -> None:
        """Answer until this task is cancelled. Runs on the event loop that changes the state: no
        page contains half an event."""
        clients = _Clients(self._answer, access_log=None, logger=LOGGER, lingering_time=0)
        listener = await asyncio.get_running_loop().create_server(clients, sock=self._socket)
        try:
            await asyncio.Event().wait()
        finally:
            listener.close()
            clients.pre_shutdown()
            await clients.shutdown(END_S)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        """One answer for each connection. What a client sends after its first request is not read,
        so it uses no memory."""
        if request.transport is not None and not request.transport.is_closing():
            request.transport.pause_reading()
        response = await self._page(request)
        response.force_close()
        return response

    async def _page(self, request: web.BaseRequest) -> web.Response:
        if self._token is not None and not _authorized(
            request.headers.get("Authorization", ""), self._token
        ):
            return web.Response(
                status=401,
                text="a bearer token is needed\n",
                headers={"WWW-Authenticate": 'Bearer realm="gpuconsole"'},
            )
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="use GET\n", headers={"Allow": "GET, HEAD"})
        match request.path:
            case "/metrics":
                return await self._metrics(request)
            case "/healthz":
                return self._health()
            case "/":
                return web.Response(text=ABOUT)
            case _:
                return web.Response(status=404, text="see /\n")

    def _health(self) -> web.Response:
        """503 while samples are not fresh. A dead or sick GPU is named, but does not fail the
        check: a restart of the exporter would not help, and the other GPUs report."""
        now = self._state.session_time(time.monotonic())
        if reason := why_not_fresh(self._state, now):
            return web.Response(status=503, text=f"{reason}\n")
        dead = {device: f"lost: {why}" for device, why in self._state.lost.items()}
        dead |= {device: f"n/a: {why}" for device, why in unreadable_gpus(self._state, now).items()}
        dead |= {
            device: f"{gpu.kind}: {gpu.reason}"
            for device, gpu in states_now(self._state, now).items()
            if gpu.kind in ("sick", "silent") and "/" not in device
        }
        return web.Response(
            text="".join(
                ["ok\n", *(f"{device} is {visible(why)}\n" for device, why in dead.items())]
            )
        )

    async def _metrics(self, request: web.BaseRequest) -> web.Response:
        """The text is made on a thread: eight GPUs with their links take 14 ms, in which the screen
        would not answer keys."""
        registry = CollectorRegistry()
        registry.register(ScrapeCollector(scrape(self._state, time.monotonic())))
        ProcessCollector(namespace="gpuconsole_exporter", registry=registry)
        encode, content_type = choose_encoder(",".join(request.headers.getall("Accept", [])))
        text = await asyncio.to_thread(encode, registry)
        response = web.Response(
            body=text, headers={"Content-Type": content_type}, zlib_executor_size=THREAD_BYTES
        )
        response.enable_compression()
        return response


class _Clients(web.Server):
    """Limits the number and the time of clients, so that slow clients do not block other clients or
    use all file descriptors."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._deadlines: dict[web.RequestHandler, asyncio.TimerHandle] = {}

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._deadlines) < MAX_CLIENTS:
            self._deadlines[handler] = asyncio.get_running_loop().call_later(
                CLIENT_S, transport.abort
            )
        else:
            # once aiohttp has begun to serve it: before, that would fail, with a traceback for each
            # client
            asyncio.get_running_loop().call_soon(transport.abort)

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        super().connection_lost(handler, exc)
        if deadline := self._deadlines.pop(handler, None):
            deadline.cancel()


def _authorized(header: str, token: bytes) -> bool:
    scheme, _, given = header.partition(" ")
    # aiohttp decodes headers so. The comparison takes the same time for every wrong token.
    return scheme.lower() == "bearer" and hmac.compare_digest(
        given.strip().encode("utf-8", "surrogateescape"), token
    )
