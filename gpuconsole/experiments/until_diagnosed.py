"""Waiting for a diagnosis that stands: what a tuner or a benchmark goes by."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Protocol

from gpuconsole.diagnosis.engine import PROBE_OF, about
from gpuconsole.model.run import Run
from gpuconsole.session.api import SessionError, View

LOOK_S = 0.25
SETTLED_S = 1.0
"""A diagnosis that has stood for so long is believed, where no probe is under way or waited for."""
DOUBT_S = 25.0
"""After so long in steady state without a probe under way rules that still lack a signal are waited for no longer."""
NOT_STEADY_S = 60.0
SERVING_S = 10.0
"""A model server's queue and cache take some seconds to fill: what the first of them show is not how it goes on."""


class Shows(Protocol):
    def view(self) -> View: ...


async def until_diagnosed(
    api: Shows, enough: Callable[[], bool], seen: Callable[[View], None] = lambda view: None, tunable: Collection[str] = ()
) -> Run:
    """The run, once its diagnosis stands, or `enough` says so. `seen` is shown every look. Raises SessionError when the run has ended.

    With `tunable`, as far as it may lead to a change of one of these knobs; other rules' doubts and probes are not waited for.
    """
    running_at = idle_at = time.monotonic()
    stood = 0.0
    before: list[str] = []
    while True:
        await asyncio.sleep(LOOK_S)
        view = api.view()
        run = view.run
        if run is None or run.state not in ("starting", "running"):
            raise SessionError(run.error or f"the run has {run.state}" if run else "nothing is running")
        seen(view)
        now_s, steady = time.monotonic(), run.steady_from_s is not None
        judged = steady and (run.serves or "step_s" in run.signals)  # what was found before is not about its steady steps
        now = [one.rule for one in about(run.findings, tunable) if one.state == "fires"]
        quiet = tunable or not view.probing
        stood = stood + LOOK_S if judged and now == before and quiet and not in_doubt(run, tunable) else 0.0
        before = now
        if run.state == "starting":
            running_at = now_s
        if not steady or view.probing:  # what is compiled takes long to be steady, and is compiled again for some probes
            idle_at = now_s
        stands = judged and run.findings and (stood >= SETTLED_S or now_s - idle_at > DOUBT_S)
        if run.serves and run.duration_s - (run.steady_from_s or 0.0) < SERVING_S:
            stands = False
        given_up = now_s - (idle_at if steady else running_at) > NOT_STEADY_S
        if run.state != "starting" and (stands or given_up or enough()):
            return run


def in_doubt(run: Run, tunable: Collection[str] = ()) -> bool:
    """A rule (with `tunable`, one that turns such a knob) waits for a probe that has not failed, or for its second look."""
    findings = about(run.findings, tunable)
    probes = {PROBE_OF[signal] for one in findings for signal in one.missing if signal in PROBE_OF}
    return any(f"probe.{probe}" not in run.unavailable for probe in probes) or any("second look" in one.summary for one in findings)
