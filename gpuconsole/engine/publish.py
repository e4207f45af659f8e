"""A live session's metrics for Prometheus, those of its workload included."""

from __future__ import annotations

from gpuconsole.engine.engine import Engine
from gpuconsole.report.prometheus.board import Board
from gpuconsole.report.prometheus.server import MetricsServer
from gpuconsole.wire.events import AnyEvent, Sample, Steps

_READER = "workload"


def publish(engine: Engine, host: str, port: int, token: bytes | None, interval_s: float) -> MetricsServer:
    """Serve what `engine` knows from now on. Raises OSError, UnicodeError for a bad address."""
    board = Board(interval_s)
    server = MetricsServer(host, port, board, token)

    def on_event(event: AnyEvent) -> None:
        board.take(event)
        if isinstance(event, Steps):
            board.take(_workload(engine, event.t))

    engine.listeners.append(on_event)
    server.start()
    engine.note(f"serving http://{server.address}/metrics")
    return server


def _workload(engine: Engine, t: float) -> Sample:
    """The workload's present values, as a reader of its own tells them."""
    state = engine.state
    device = state.record.run.device if state.record else ""
    ending = f"{{device={device}}}"
    values = {
        key.removesuffix(ending): value for key, value in state.latest.items() if key.startswith("workload.") and key.endswith(ending)
    }
    return Sample(t, device, values, dict.fromkeys(values, _READER))
