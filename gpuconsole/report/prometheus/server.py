"""The HTTP server of the exporter: `/metrics`, `/healthz` and `/`, on separate threads."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

from gpuconsole import __version__
from gpuconsole.report.prometheus.collector import ScrapeCollector
from gpuconsole.report.prometheus.scrape import NoAnswer, Scrape

REQUEST_S = 10.0
"""Limit for one piece of a request."""
CLIENT_S = 20.0
"""Limit for a whole request and its answer."""
MOST_CLIENTS = 32
STOP_POLL_S = 0.1
"""How often the listening thread checks whether to end: the longest time that `close` takes."""
ABOUT = f"""gpuconsole {__version__} exporter

/metrics   for Prometheus, text or OpenMetrics
/healthz   200 while samples are fresh
"""

Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]


class MetricsServer:
    """Listens from the construction on, and answers after `start`. Raises OSError, UnicodeError for a bad address."""

    def __init__(self, host: str, port: int, take: Callable[[], Scrape], token: bytes | None = None) -> None:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        server_class = type("_Server", (_Server,), {"address_family": family})
        self._server: WSGIServer = server_class(address[:2], _Handler)
        self._server.set_app(application(take, token))
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """Host and port as in a URL, with the port that the system chose."""
        host, port = self._server.server_name, self._server.server_port
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self._server.server_name.partition("%")[0]).is_loopback

    def start(self) -> None:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(STOP_POLL_S,), name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening. The thread ends first: with a closed socket `serve_forever` would retry without a pause and use a whole core."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """Limits the number of clients and the time of each client, so that slow clients do not block other clients or use all file descriptors."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._slots = threading.BoundedSemaphore(MOST_CLIENTS)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        deadline = threading.Timer(CLIENT_S, _hang_up, (request,))
        deadline.daemon = True
        deadline.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            deadline.cancel()
            self._slots.release()

    def server_bind(self) -> None:
        # HTTPServer's own method asks DNS for the name of the address, which can take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up or is too slow is no error of the server."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: a line for every scrape would fill the journal."""


def application(take: Callable[[], Scrape], token: bytes | None) -> Wsgi:
    """Every page needs the token, where there is one. `take` may raise NoAnswer."""
    registry = CollectorRegistry()
    registry.register(ScrapeCollector(take))
    ProcessCollector(namespace="gpuconsole_exporter", registry=registry)
    metrics: Wsgi = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        def answer(status: str, text: str, *headers: tuple[str, str]) -> list[bytes]:
            start_response(status, [("Content-Type", "text/plain; charset=utf-8"), *headers])
            return [text.encode()]

        if token is not None and not _authorized(environ.get("HTTP_AUTHORIZATION", ""), token):
            return answer("401 Unauthorized", "a bearer token is needed\n", ("WWW-Authenticate", 'Bearer realm="gpuconsole"'))
        try:
            match environ["PATH_INFO"]:
                case "/metrics":
                    return metrics(environ, start_response)
                case "/healthz":
                    reason = take().not_fresh
                    return answer("503 Service Unavailable", f"{reason}\n") if reason else answer("200 OK", "ok\n")
                case "/":
                    return answer("200 OK", ABOUT)
                case _:
                    return answer("404 Not Found", "see /\n")
        except NoAnswer as problem:
            return answer("503 Service Unavailable", f"{problem}\n")

    return app


def _authorized(header: str, token: bytes) -> bool:
    scheme, _, given = header.partition(" ")
    # Headers are latin-1. The comparison takes the same time for every wrong token.
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1", "replace"), token)
