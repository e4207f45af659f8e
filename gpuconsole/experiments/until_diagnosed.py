"""Waits until the diagnosis of a run is final: for the tuner and for benchmarks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection

from gpuconsole.diagnosis.standing import Standing
from gpuconsole.model.run import Run
from gpuconsole.session.api import SessionApi, SessionError, View

READ_EVERY_S = 0.25


async def until_diagnosed(
    api: SessionApi, enough: Callable[[], bool], seen: Callable[[View], None] = lambda view: None, tunable: Collection[str] = ()
) -> Run:
    """The run, as soon as its diagnosis is final (see `Standing`) or `enough` returns True. `seen` receives every state that was read.

    With `tunable`, only rules and probes for one of these knobs delay the result. Raises SessionError when the run ends.
    """
    standing = Standing(time.monotonic(), tunable)
    while True:
        await asyncio.sleep(READ_EVERY_S)
        view = api.view()
        run = view.run
        if run is None or run.state not in ("starting", "running"):
            raise SessionError(run.error or f"the run has {run.state}" if run else "nothing is running")
        seen(view)
        if standing.evaluate(run, bool(view.probing), time.monotonic()) or (run.state != "starting" and enough()):
            return run
