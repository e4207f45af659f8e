"""Segments on the timeline of the CUDA stream, and losses without a synchronisation: in sampled steps only, because events cost more than stamps.

A mark of a sampled step records an event. The events are read when the stream has passed them, some steps later. Nothing is recorded in a stream
that is being captured.
"""

from __future__ import annotations

import itertools
from typing import Any

from ..recorder import RawStep

KEPT_EVENTS = 256
STREAM_TIMES: list[float] = []
"""In place of the readings of a step: its times are those of the stream."""


class PinnedLoss:
    """The value of a loss, copied to host memory behind the work that makes it. The value is there when the stream has passed the copy."""

    def __init__(self, loss: Any, before: Any) -> None:
        import torch

        self._before = before
        self._value = torch.empty((), dtype=loss.dtype, pin_memory=True)
        self._value.copy_(loss.detach(), non_blocking=True)

    def __float__(self) -> float:
        return float(self._value) + (float(self._before) if self._before is not None else 0.0)


class StreamClock:
    """Records events in the program's present stream, and resolves them."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda
        self._free: list[Any] = []

    def record(self) -> Any:
        """An event at this place of the stream; None while the stream is being captured."""
        if self._cuda.is_current_stream_capturing():
            return None
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def settle(self, steps: list[RawStep], wait: bool = False) -> tuple[list[RawStep], list[RawStep]]:
        """Steps that are known, and steps from the first one on whose events are not passed yet. `wait`: wait for all events."""
        known: list[RawStep] = []
        for position, step in enumerate(steps):
            events: Any = step[9]
            if not events:
                known.append(step)
            elif any(event is None for event in events):
                known.append((*step[:9], None))
            else:
                if wait:
                    events[-1].synchronize()
                elif not events[-1].query():
                    return known, steps[position:]
                known.append(self._resolved(step, events))
        return known, []

    def _resolved(self, step: RawStep, events: list[Any]) -> RawStep:
        """The step with the times of the stream. It ends when the host ended it."""
        spans = [before.elapsed_time(after) * 1e-3 if before is not after else 0.0 for before, after in itertools.pairwise(events)]
        elapsed = list(itertools.accumulate(spans))
        start = step[3][-1] - elapsed[-1]
        distinct = {id(event): event for event in events[:-1]}  # the last event may begin the next step
        self._free.extend(list(distinct.values())[: max(0, KEPT_EVENTS - len(self._free))])
        return (step[0], start, step[2], [start + t for t in elapsed], *step[4:9], STREAM_TIMES)
