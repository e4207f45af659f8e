"""The metrics of a live session for Prometheus, with those of its workload."""

from __future__ import annotations

from gpuconsole.experiments.session import LiveSession
from gpuconsole.report.prometheus.scrape import LoopScraper
from gpuconsole.report.prometheus.server import MetricsServer
from gpuconsole.wire.events import AnyEvent, Hello


def publish(engine: LiveSession, host: str, port: int, token: bytes | None) -> MetricsServer:
    """Serve the state of `engine` from now on. Raises OSError, UnicodeError for a bad address."""
    scraper = LoopScraper(engine.state)
    server = MetricsServer(host, port, scraper, token)

    def on_event(event: AnyEvent) -> None:
        if isinstance(event, Hello):  # the engine's own: it is open, on its event loop
            scraper.attach()

    engine.listeners.append(on_event)
    server.start()
    engine.note(f"serving http://{server.address}/metrics")
    return server
