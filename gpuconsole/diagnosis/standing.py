"""Decides whether the diagnosis of a run is final or may still change. Pure: the caller passes the time."""

from __future__ import annotations

from collections.abc import Collection

from gpuconsole.diagnosis.engine import SEEN_ONCE, about
from gpuconsole.diagnosis.probes import PROBE_OF
from gpuconsole.model.run import Run

SETTLED_S = 1.0
"""A diagnosis is final if it has not changed for this time and no probe is running or expected."""
DOUBT_S = 25.0
"""After this time in steady state without a running probe, the diagnosis is final even if rules still lack a signal."""
NOT_STEADY_S = 60.0
"""If a run without a running probe is not steady after this time, waiting ends."""
SERVING_S = 10.0
"""The queue and the cache of a model server take some seconds to fill. The first seconds are not typical."""


class Standing:
    """Whether a diagnosis is final. Call `evaluate` several times a second; it returns True if the diagnosis is final or waiting longer is useless."""

    def __init__(self, started_s: float, tunable: Collection[str] = ()) -> None:
        """`started_s`: the time now. `tunable`: only findings that can change one of these knobs count; (): all findings."""
        self._tunable = tunable
        self._running_s = self._idle_s = self._same_since_s = started_s
        self._firing: list[str] = []

    def evaluate(self, run: Run, probing: bool, now_s: float) -> bool:
        """`probing`: a probe is running. `now_s`: monotonic seconds, on the clock of `started_s`."""
        steady = run.steady_from_s is not None
        judged = steady and (run.serves or "step_s" in run.signals)  # findings before this are not based on steady steps
        firing = [finding.rule for finding in about(run.findings, self._tunable) if finding.state == "fires"]
        quiet = bool(self._tunable) or not probing
        if not judged or firing != self._firing or not quiet or in_doubt(run, self._tunable):
            self._same_since_s = now_s
        self._firing = firing
        if run.state == "starting":
            self._running_s = now_s
        if not steady or probing:  # a compiled run needs long to become steady, and some probes cause another compilation
            self._idle_s = now_s
        settled = now_s - self._same_since_s >= SETTLED_S or now_s - self._idle_s > DOUBT_S
        filled = not run.serves or run.duration_s - (run.steady_from_s or 0.0) >= SERVING_S
        given_up = now_s - (self._idle_s if steady else self._running_s) > NOT_STEADY_S
        return run.state != "starting" and ((judged and bool(run.findings) and settled and filled) or given_up)


def why_no_claim(run: Run) -> str:
    """The reason why a run without a firing rule cannot be called healthy; empty if it can. One clause for the user."""
    if run.steady_from_s is None and not run.summary.steps:
        return "nothing was measured"
    if run.is_job and run.state not in ("starting", "running") and run.steady_from_s is None:
        return f"the job ended before its step time was steady, after {run.summary.steps} step{'' if run.summary.steps == 1 else 's'}"
    if run.validity is not None and run.validity.verdict != "valid":
        return f"the figures are {run.validity.verdict}: {run.validity.reasons[0]}"
    return ""


def in_doubt(run: Run, tunable: Collection[str] = ()) -> bool:
    """Whether a rule waits for a probe that has not failed, or for its second evaluation. `tunable`: see Standing."""
    findings = about(run.findings, tunable)
    probes = {PROBE_OF[signal] for finding in findings for signal in finding.missing if signal in PROBE_OF}
    waiting = any(f"probe.{probe}" not in run.unavailable for probe in probes)
    return waiting or any(finding.summary == SEEN_ONCE for finding in findings)
