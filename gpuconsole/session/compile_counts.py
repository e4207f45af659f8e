"""What torch.compile does while a run lasts. The first report is the base: what was compiled for the first step is as it must be."""

from __future__ import annotations

from collections import Counter

from gpuconsole.model.finding import Signal
from gpuconsole.session.counters import is_ordinary
from gpuconsole.wire.events import Steps

SOURCE = "torch._dynamo's counters, since the first step"


class CompileCounts:
    """Fed with the worker's messages; `signals` are there from the second one on, also while the run is not steady.

    What a probe or a trial had compiled, for a larger batch say, is not the job's: only what happens between two messages of ordinary steps counts.
    """

    def __init__(self) -> None:
        self._before: Steps | None = None
        self._gained: Counter[str] = Counter()
        self._passed_s = 0.0
        self._steps = 0
        self._breaks = 0.0
        self._given_up = 0.0
        self._not_ours: float | None = None

    def add(self, event: Steps) -> None:
        if "compile.graphs" not in event.counters:
            return
        given_up = event.counters["compile.given_up"]
        if self._not_ours is None:
            self._not_ours = given_up  # what is left uncompiled from the first step on is as it must be
        ordinary = is_ordinary(event)
        if ordinary and self._before is not None:
            before = self._before.counters
            self._gained.update({name: value - before[name] for name, value in event.counters.items() if name in before})
            self._passed_s += event.t - self._before.t
            self._steps += len(event.steps)
        if not ordinary:
            self._not_ours += given_up - self._given_up if self._given_up else 0.0
        self._given_up = given_up
        self._before = event if ordinary else None
        self._breaks = event.counters["compile.graph_breaks"]

    def carry_on(self, before: CompileCounts) -> None:
        """The same process goes on under other knobs: what it has given up stays given up."""
        self._given_up, self._not_ours = before._given_up, before._not_ours

    def signals(self) -> dict[str, Signal]:
        if not self._steps:
            return {}
        gained = self._gained
        return {
            "compile.recompiles": Signal(gained["compile.graphs"], "", SOURCE),
            "compile.steps": Signal(float(self._steps), "steps", "step account, since the first step"),
            "compile.time_ratio": Signal(
                min(1.0, gained["compile.total_s"] / max(self._passed_s, 1e-9)), "ratio", f"{SOURCE}, over wall time"
            ),
            "compile.given_up": Signal(self._given_up - (self._not_ours or 0.0), "", f"{SOURCE}: frames left uncompiled"),
            "compile.graph_breaks": Signal(self._breaks, "", "torch._dynamo's counters"),
        }
