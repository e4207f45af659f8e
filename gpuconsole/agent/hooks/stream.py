"""The CUDA stream of the model's device: events at the marks of sampled steps, and the loss, both
read once the stream has passed them.

Nothing here waits for the device in a steady step, allocates memory in it, or touches another
device. While a stream is captured into a CUDA graph there are no events: a query or an allocation
would break the capture.
"""

from __future__ import annotations

import itertools
from typing import Any

from . import tracing
from .guard import switch
from .recorder import COMM, DATA, LOADER, LOADERS, RawStep
from .watch import recorder

KEPT_EVENTS = 256
LOSSES = 1024
"""Losses whose copies may be under way at once: a sampled step has one for each backward pass. A
further loss is not read."""
MAX_PASSES = 64
"""Backward passes of a step whose losses are added; with more the step has no loss."""
BESIDE = frozenset((COMM, DATA, *range(LOADER, LOADER + LOADERS)))
"""Segments that may have a stream of their own: collectives of FSDP 2, batches that a program
copies ahead."""
STREAM_TIMES: list[float] = []
"""In place of the readings of a step: its times are those of the stream."""


class StreamClock:
    """Records events in the present stream of `device`, and resolves them. Must be made between two
    steps: it allocates page-locked memory."""

    def __init__(self, device: Any) -> None:
        import torch

        self._cuda, self.device = torch.cuda, torch.device(device)
        self._free: list[Any] = []
        self._stream: Any = None
        """The stream of the last mark."""
        self.steps = self.caught_up = 0
        """Steps with events, and those of them at whose end the device had done all work but that
        of the last segment: it waits for the host."""
        self.ahead_s = self.caught_up_s = 0.0
        self.ahead_steps = 0
        """Of the steps at whose end the device had caught up: how far the host was ahead of the
        device at most in each, and their length. A host that was ahead within a step has waited for
        the device: a synchronisation, in whatever function."""
        self._caught_up: set[int] = set()
        """The numbers of these steps, until their times are known."""
        self._losses = torch.empty(LOSSES, dtype=torch.float32, device="cpu", pin_memory=True)
        self._free_losses = list(range(LOSSES))
        recorder.on_stream, recorder.read, recorder.settle = True, self.record, self.settle
        recorder.caught_up, recorder.copy_loss = self._look, self.copied
        switch.undo_part["stream"] = self._off

    def record(self) -> Any:
        """An event at this place of the stream. None while a stream is being captured, after a
        failure, and where the program has changed its stream since the last mark: events of two
        streams make no timeline. A collective or a batch that has a stream of its own is marked in
        the stream of the computation, which goes on meanwhile."""
        try:
            if tracing.capturing():
                return None
            stream = self._cuda.current_stream(self.device)
            if self._stream is None:  # torch's streams say that they do not differ from None
                self._stream = stream
            elif stream != self._stream:
                if BESIDE.isdisjoint((recorder.stack[-1], *recorder.codes[-1:])):
                    self._stream = stream
                    return None
                stream = self._stream
            event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
            event.record(stream)
            return event
        except Exception as problem:
            if switch.part_off("stream.record", problem):
                raise
            return None

    def _look(self, events: list[Any]) -> None:
        """A step with `events` ends now, on the host."""
        try:
            if len(events) > 1 and events[-1] is not None and events[-2] is not None:
                if events[-2].query():
                    self.caught_up += 1
                    self._caught_up.add(recorder.index)
                self.steps += 1
        except Exception as problem:
            if switch.part_off("stream.look", problem):
                raise

    def copied(self, loss: Any, before: Any) -> Any:
        """The loss, copied to the host behind the work that makes it, plus the loss `before`; None
        where it cannot be read without waiting."""
        if (
            loss.device != self.device
            or tracing.capturing()
            or self._cuda.current_stream(self.device) != self._stream
        ):
            return None
        if not self._free_losses or (before is not None and len(before.places) == MAX_PASSES):
            return None
        return CopiedLoss(
            self._losses,
            before.places if before is not None else (),
            PinnedPlace(self._free_losses),
            loss,
        )

    def settle(
        self, steps: list[RawStep], wait: bool = False
    ) -> tuple[list[RawStep], list[RawStep]]:
        """Steps that are known, and steps from the first one on whose events are not passed yet.
        `wait`: wait for all events."""
        try:
            return self._settled(steps, wait)
        except Exception as problem:
            if switch.part_off("stream.settle", problem):
                raise
            return [_without_events(step) for step in steps], []

    def _settled(self, steps: list[RawStep], wait: bool) -> tuple[list[RawStep], list[RawStep]]:
        settled: list[RawStep] = []
        for position, step in enumerate(steps):
            events: Any = step[9]
            if not events:
                settled.append(_without_events(step))
            elif any(event is None for event in events):
                settled.append((*step[:6], None, *step[7:9], None))
            else:
                if wait:
                    events[-1].synchronize()
                elif not events[-1].query():
                    return settled, steps[position:]
                has_all = len(events) == len(step[2]) + 1
                settled.append(
                    self._resolved(step, events) if has_all else self._with_loss(step, events)
                )
            self._caught_up.discard(step[0])
        return settled, []

    def _resolved(self, step: RawStep, events: list[Any]) -> RawStep:
        """The step with the times of the stream and with its loss. It ends when the host ended
        it."""
        spans = [
            before.elapsed_time(after) * 1e-3 if before is not after else 0.0
            for before, after in itertools.pairwise(events)
        ]
        elapsed = list(itertools.accumulate(spans))
        start = step[3][-1] - elapsed[-1]
        if step[0] in self._caught_up:
            self.ahead_s += max(
                0.0, *(start + t - ended for t, ended in zip(elapsed, step[3], strict=True))
            )
            self.caught_up_s += elapsed[-1]
            self.ahead_steps += 1
        # the last event may begin the next step
        distinct = {id(event): event for event in events[:-1]}
        self._free.extend(list(distinct.values())[: max(0, KEPT_EVENTS - len(self._free))])
        loss = None if step[6] is None else float(step[6])
        return (
            step[0],
            start,
            step[2],
            [start + t for t in elapsed],
            step[4],
            step[5],
            loss,
            step[7],
            step[8],
            STREAM_TIMES,
        )

    def _with_loss(self, step: RawStep, events: list[Any]) -> RawStep:
        """A step of a trial, which has events at its start and its end only: it has the times of
        the host, and its loss is known now."""
        self._free.extend(events[: max(0, KEPT_EVENTS - len(self._free))])
        return (*step[:6], None if step[6] is None else float(step[6]), *step[7:9], None)

    def _off(self) -> None:
        """Steps have the times of the host from now on."""
        recorder.read = recorder.readings = recorder.caught_up = recorder.copy_loss = None
        recorder.on_stream = False
        recorder.settle = lambda steps, wait=False: ([_without_events(step) for step in steps], [])


def _without_events(step: RawStep) -> RawStep:
    """The step with the times of the host. Whether its loss has been copied is not known."""
    loss = step[6] if isinstance(step[6], float) else None
    return (*step[:6], loss, *step[7:9], step[9] if step[9] is STREAM_TIMES else None)


class PinnedPlace:
    """A place in the page-locked memory. It is free again when nothing refers to it. `free`: the
    places that no loss uses."""

    def __init__(self, free: list[int]) -> None:
        self._free, self.index = free, free.pop()

    def __del__(self) -> None:
        self._free.append(self.index)


class CopiedLoss:
    """The sum of the losses of a step so far, in page-locked memory: they are there once the stream
    has passed the copies. `before`: the places of the earlier losses of the step."""

    def __init__(
        self, values: Any, before: tuple[PinnedPlace, ...], place: PinnedPlace, loss: Any
    ) -> None:
        import torch

        self._values, self.places = values, (*before, place)
        # converted on the device: a copy between two types would go through memory of its own, and
        # the host would read that too early
        values[place.index].copy_(loss.detach().to(torch.float32), non_blocking=True)

    def __float__(self) -> float:
        return float(sum(float(self._values[place.index]) for place in self.places))
