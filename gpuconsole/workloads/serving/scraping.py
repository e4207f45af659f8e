"""Reads the /metrics page of a model server again and again, at most as often as its cost allows."""

from __future__ import annotations

import time
from collections import deque
from urllib.parse import quote

import aiohttp
from prometheus_client.metrics_core import Metric

from gpuconsole.agent.clock import now
from gpuconsole.wire.events import ServerState
from gpuconsole.workloads.serving.http import read_body, redirection
from gpuconsole.workloads.serving.problems import explain
from gpuconsole.workloads.serving.server_metrics import NAMES, read_families, server_state

SHARE = 0.01
"""The share of the time that readings may take: below the noise of a measurement on a shared machine (2 to 5 %)."""
SHORTEST_S, LONGEST_S = 0.5, 4.0
"""Bounds of the time between two readings. The screen marks values as old after 5 s (session.freshness)."""
QUICK = 4
"""The first readings follow each other by SHORTEST_S, so that the screen fills."""
LAST = 5
"""The cost is the smallest of this many readings: other load on the machine only adds to a time."""
TIMEOUT_S = 2.0


class Scraper:
    """The metrics page at `url`.

    vLLM answers `/metrics/?name[]=...` with the named metrics only: 4 KB in 3 ms instead of 49 KB in 12 ms (vLLM 0.32 on a CPU), and reading
    the answer takes 1 ms instead of 13 ms. A server that has no such filter is asked for the whole page.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url
        self._filtered = True
        self._costs: deque[float] = deque(maxlen=LAST)
        self._read = 0

    @property
    def interval_s(self) -> float:
        """Seconds until the next reading."""
        if self._read < QUICK:
            return SHORTEST_S
        return min(LONGEST_S, max(SHORTEST_S, min(self._costs, default=0.0) / SHARE))

    async def read(self) -> tuple[ServerState, list[Metric]]:
        """One reading: the state, and the metrics by families. Raises ValueError, with the address and one line, where there is no such page."""
        try:
            return await self._read_once()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as problem:
            raise ValueError(f"{self._url}: {explain(problem)}; the state of the server is unknown") from None

    async def _read_once(self) -> tuple[ServerState, list[Metric]]:
        if self._filtered:
            found = await self._page(f"{self._url}/?{'&'.join(f'name[]={quote(name)}' for name in NAMES)}")
            if found is not None and found[1]:
                return found
            self._filtered = False
            self._costs.clear()
        found = await self._page(self._url)
        if found is None:
            raise ValueError("it contains no known metric")
        return found

    async def _page(self, url: str) -> tuple[ServerState, list[Metric]] | None:
        """The page at `url`, and its cost: the time of the request, and the CPU time of reading the answer. None without a known metric."""
        asked = time.perf_counter()
        async with self._session.get(url, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), allow_redirects=False) as answer:
            status, text, t = answer.status, (await read_body(answer)).decode(errors="replace"), now()
            elsewhere = redirection(answer)
        cost, begun = time.perf_counter() - asked, time.thread_time()
        if status != 200:
            if self._filtered:
                return None
            raise ValueError(elsewhere or f"HTTP {status}")
        families = read_families(text)
        state = server_state(families, t)
        self._costs.append(cost + time.thread_time() - begun)
        self._read += 1
        return (state, families) if state.gauges or state.totals else None
