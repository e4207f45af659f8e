"""The probe of a watched server: a few small requests of ours, beside its traffic, show how long a
client waits for a token before the engine counts.

The page is read before and after each request. So what its histogram of TTFT gained is our request,
and those of others that got their first token in the same time. Where ours is alone, the engine's
TTFT is exact; else it lies within the buckets of those that came.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import aiohttp

from gpuconsole.agent.clock import now
from gpuconsole.model.finding import Signal
from gpuconsole.model.serving import (
    PROBE_CHARACTERS,
    PROBE_PAUSE_S,
    PROBE_REQUESTS,
    PROBE_S,
    PROBE_TOKENS,
    Request,
)
from gpuconsole.wire.events import ServerState
from gpuconsole.workloads.serving.load.client import Client
from gpuconsole.workloads.serving.load.traffic import Prompts
from gpuconsole.workloads.serving.servers import KEY_ADVICE

NO_ENDPOINT = ("HTTP 404:", "HTTP 405:", "HTTP 501:")
NO_KEY = ("HTTP 401:", "HTTP 403:")


class AnsweredRequest(NamedTuple):
    """A request of ours that was answered, and the readings of the page before and after it."""

    request: Request
    before: ServerState
    after: ServerState


class ClientWait:
    """One probe. `sent`: how many requests went to the model so far."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        model: str,
        read: Callable[[], Awaitable[ServerState]],
        note: Callable[[str], None],
    ) -> None:
        """`read` reads the metrics page, and raises ValueError."""
        self._client = Client(session, url, model, chat=None, timeout_s=PROBE_S, note=note)
        self._url, self._has_key, self._read = url, "Authorization" in session.headers, read
        self._prompts = Prompts(time.time_ns())  # a prefix cache holds none of them
        self._answered: list[AnsweredRequest] = []
        self.sent = 0

    async def run(self) -> dict[str, Signal]:
        """Send the requests, one after another; the signals. Raises ValueError with one line."""
        try:
            async with asyncio.timeout(PROBE_S):
                before = await self._read()
                for _ in range(PROBE_REQUESTS):
                    request = await self._ask()
                    await asyncio.sleep(PROBE_PAUSE_S)
                    after = await self._read()
                    self._answered.append(AnsweredRequest(request, before, after))
                    before = after
        except TimeoutError:
            if not self._answered:
                raise ValueError(f"no answer to a request of ours within {PROBE_S:.0f} s") from None
        return self._signals()

    async def _ask(self) -> Request:
        """One request, to the API that the server has. Raises ValueError."""
        prompt = self._prompts.sample(PROBE_CHARACTERS)
        self.sent += 1
        request = await self._client.ask(prompt, PROBE_TOKENS, now(), lambda tokens: None)
        refusal = request.error
        if not refusal:
            return request
        if refusal.startswith((*NO_ENDPOINT, *NO_KEY)):
            self.sent -= 1  # it did not reach the model
        if refusal.startswith(NO_KEY):
            advice = KEY_ADVICE[self._has_key][1]
            raise ValueError(f"{self._url} takes no request of ours ({refusal}): {advice}")
        if self._answered or not refusal.startswith(NO_ENDPOINT):
            raise ValueError(f"a request of ours failed: {refusal}")
        raise ValueError(
            f"{self._url} has no /v1/completions and no /v1/chat/completions for a request of ours"
            f" ({refusal})"
        )

    def _signals(self) -> dict[str, Signal]:
        requests = [entry.request for entry in self._answered]
        source = (
            f"{len(requests)} requests of ours, one after another, until"
            f" {time.strftime('%H:%M:%S')}"
        )
        signals: dict[str, Signal] = {}

        def add(name: str, values: list[float], unit: str = "s", how: str = "median of ") -> None:
            if values:
                signals[f"probe.{name}"] = Signal(statistics.median(values), unit, how + source)

        # an answer in one piece has its first token with its last
        first = [request.ttft_s or request.e2e_s or 0.0 for request in requests]
        add("client_ttft_s", first)
        add("client_itl_s", [tpot for request in requests if (tpot := request.tpot_s) is not None])
        add("chunks", [len(request.gaps) + 1 for request in requests], "chunks")
        add(
            "requests_beside",
            [entry.before.gauges.get("requests_running", math.nan) for entry in self._answered],
            "requests",
        )
        engine = [engine_ttft(entry.before, entry.after) for entry in self._answered]
        if known := [
            (client, *span) for client, span in zip(first, engine, strict=True) if span is not None
        ]:
            lower, upper = (
                [min(client, low) for client, low, _ in known],
                [min(client, high) for client, _, high in known],
            )
            seen = [client for client, _, _ in known]
            how = "the server's histogram of TTFT around each of "
            add("engine_ttft_lower_s", lower, how=how)
            add("engine_ttft_upper_s", upper, how=how)
            add(
                "before_engine_s",
                [client - high for client, high in zip(seen, upper, strict=True)],
                how="at least: " + how,
            )
            add(
                "before_engine_upper_s",
                [client - low for client, low in zip(seen, lower, strict=True)],
                how="at most: " + how,
            )
        last, begun = self._answered[-1].after.totals, self._answered[0].before.totals
        count, total = (
            last.get(f"itl_s_{end}", 0.0) - begun.get(f"itl_s_{end}", 0.0)
            for end in ("count", "sum")
        )
        if count > 0 and total >= 0:
            signals["probe.engine_itl_s"] = Signal(
                total / count,
                "s",
                f"the server's histogram of ITL during {source}, of all requests",
            )
        return {name: signal for name, signal in signals.items() if not math.isnan(signal.value)}


def engine_ttft(before: ServerState, after: ServerState) -> tuple[float, float] | None:
    """The bounds of the engine's TTFT of a request, which is one of those that the histogram
    gained; None where it gained none."""
    count, total = (
        after.totals.get(f"ttft_s_{end}", 0.0) - before.totals.get(f"ttft_s_{end}", 0.0)
        for end in ("count", "sum")
    )
    if count < 1 or total < 0:
        return None
    if count == 1:
        return total, total
    old = dict(before.buckets.get("ttft_s", ()))
    gained = [
        (bound, number - old.get(bound, 0.0)) for bound, number in after.buckets.get("ttft_s", ())
    ]
    low = max((bound for bound, number in gained if number <= 0), default=0.0)
    high = min((bound for bound, number in gained if number >= count), default=math.inf)
    return max(low, total - (count - 1) * high), min(high, total - (count - 1) * low)
