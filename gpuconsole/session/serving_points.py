"""The live series of a serving run: one point a second of what the client measured, one per reading of what the server told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuconsole.model.serving import Request
from gpuconsole.session.figures.account import percentile
from gpuconsole.session.figures.serving_account import itl_pairs
from gpuconsole.wire.events import Requests, ServerState

EVERY_S = 1.0
SERVER = "server"
RATES = ("preemptions", "prompt_tokens", "generation_tokens", "flops", "read_bytes")


class ServingPoints:
    """`add(metric, device, t, value)` is called for each point."""

    def __init__(self, add: Callable[[str, str, float, float], None]) -> None:
        self._add = add
        self._since: float | None = None
        self._fresh: list[Request] = []
        self._last: ServerState | None = None

    def requests(self, device: str, counted: Sequence[Request], event: Requests) -> None:
        self._add("workload.active_requests", device, event.t, float(event.active))
        self._fresh += counted
        self._since = event.t if self._since is None else self._since
        span = event.t - self._since
        if span < EVERY_S:
            return
        good = [request for request in self._fresh if not request.error]
        gaps = sorted(itl_pairs(good))
        for metric, values in (
            ("workload.ttft_s", [r.ttft_s for r in good if r.ttft_s is not None]),
            ("workload.tpot_s", [r.tpot_s for r in good if r.tpot_s is not None]),
            ("workload.e2e_s", [r.e2e_s for r in good if r.e2e_s is not None]),
            ("workload.itl_s", [gap for gap, _ in gaps]),
        ):
            if values:
                self._add(metric, device, event.t, percentile(sorted(values), 0.5))
        self._add("workload.failed_requests_per_s", device, event.t, (len(self._fresh) - len(good)) / span)
        self._fresh, self._since = [], event.t

    def state(self, event: ServerState) -> None:
        """Gauges as they are; totals as rates since the reading before, unless the server began anew in between."""
        for name, value in event.gauges.items():
            self._add(f"server.{name}", SERVER, event.t, value)
        last, self._last = self._last, event
        if last is None or event.t <= last.t:
            return
        deltas = {name: value - last.totals.get(name, 0.0) for name, value in event.totals.items()}
        if any(delta < 0 for delta in deltas.values()):
            return
        for name in RATES:
            if name in deltas and name in last.totals:
                self._add(f"server.{name}_per_s", SERVER, event.t, deltas[name] / (event.t - last.t))
        if deltas.get("prefix_queries"):
            self._add("server.prefix_hit_ratio", SERVER, event.t, deltas.get("prefix_hits", 0.0) / deltas["prefix_queries"])
