"""What torch.compile does while a run lasts. The first report is the base: what was compiled for the first step is as it must be."""

from __future__ import annotations

from gpuconsole.model.finding import Signal
from gpuconsole.wire.events import Steps

SOURCE = "torch._dynamo's counters, since the first step"


class CompileCounts:
    """Fed with the worker's messages; `signals` are there from the second one on, also while the run is not steady."""

    def __init__(self) -> None:
        self._first: Steps | None = None
        self._last: Steps | None = None
        self._steps = 0

    def add(self, event: Steps) -> None:
        if "compile.graphs" not in event.counters:
            return
        if self._first is None:
            self._first = event
        else:
            self._steps += len(event.steps)
            self._last = event

    def signals(self) -> dict[str, Signal]:
        if self._first is None or self._last is None or not self._steps:
            return {}
        first, last = self._first.counters, self._last.counters
        seconds = last["compile.total_s"] - first["compile.total_s"]
        passed = max(self._last.t - self._first.t, 1e-9)
        return {
            "compile.recompiles": Signal(last["compile.graphs"] - first["compile.graphs"], "", SOURCE),
            "compile.steps": Signal(float(self._steps), "steps", "step account, since the first step"),
            "compile.time_ratio": Signal(min(1.0, seconds / passed), "ratio", f"{SOURCE}, over wall time"),
            "compile.given_up": Signal(last["compile.given_up"], "", "torch._dynamo's counters: frames left uncompiled"),
            "compile.graph_breaks": Signal(last["compile.graph_breaks"], "", "torch._dynamo's counters"),
        }
