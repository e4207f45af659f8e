"""Steps of a program that updates its weights itself, without an optimizer: `p -= lr * p.grad`, or a class that is none of torch's optimizers.

Such a program zeroes its gradients, or changes its weights, between two backward passes of different steps. Backward passes that add to the same
gradients are one step. The end of a step is known at the next backward pass only: it is where the next batch or forward pass began.
"""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

from ..recorder import BACKWARD, COMPILED, DATA, FORWARD, GAP, LOADER, NO_GRAD, OPTIMIZER, WHOLE, Mark
from ..watch import recorder, watch

MOST_BACKWARDS = 64
"""Backward passes without an update after which the program is taken for one that does not train."""
TRACKED = 4
"""Weights that are looked at before each backward pass."""
NEXT_STEP = (DATA, FORWARD, NO_GRAD, COMPILED, WHOLE)
"""Segments that belong to the next step, as do those of a DataLoader. What comes before them updates the weights."""


class OwnUpdates:
    """`on`: whether the account was begun by a backward pass of a program without an optimizer. `confirmed`: whether an update was seen."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As in a process that has not trained yet."""
        self.on = self.confirmed = self.over = False
        self._tracked: list[weakref.ref[Any]] = []
        self._copies: list[Any] = []
        """The tracked weights as they were at the start; empty once an update was seen."""
        self._seen: list[tuple[int, ...]] = []
        """The gradients after the last backward pass."""
        self._end: Mark | None = None
        """The end of the last backward pass."""
        self._backwards = 0

    def may_begin(self) -> bool:
        """Whether a backward pass that has just ended may be the first of a program without an optimizer."""
        return not (self.over or recorder.index or watch.optimizers)

    def begin(self) -> None:
        """Begin the account after the first backward pass."""
        weights = with_gradients()
        if not weights:
            self.over = True
            return
        watch.weights = [weakref.ref(weight) for weight in weights]
        smallest = sorted(weights, key=lambda weight: weight.numel())[:TRACKED]
        self._tracked = [weakref.ref(weight) for weight in smallest]
        self._copies = [weight.detach().clone() for weight in smallest]
        self.on = True
        recorder.begin([BACKWARD])
        recorder.leave()
        self.backward_ended()

    def backward_ended(self) -> None:
        """Remember where the backward pass has ended, and what the gradients are."""
        self._seen = self._states()
        self._end = recorder.mark()
        self._backwards += 1
        if self._backwards > MOST_BACKWARDS and not self.confirmed:
            self.give_up()

    def backward_begins(self) -> bool:
        """Whether a step has ended since the last backward pass; it is split off then. Gradients that are zeroed are no update: a program may look at
        gradients only."""
        if self._end is None or self._states() == self._seen or not (self.confirmed or self._updated()):
            return False
        self._split(self._end)
        return True

    def _updated(self) -> bool:
        """Whether the weights have changed since the start. Gives up where they do not exist any more: the program makes new tensors."""
        import torch

        weights = watch.alive(self._tracked)
        if len(weights) < len(self._tracked):
            self.give_up()
            return False
        return not all(torch.equal(weight, copy) for weight, copy in zip(weights, self._copies, strict=True))

    def optimizer_made(self) -> None:
        """The program has an optimizer, which shows the steps from now on."""
        if self.on and not self.confirmed:
            self.give_up()
        elif self.on:
            self.backward_begins()
        self.on, self.over = False, True

    def close(self) -> None:
        """The process ends: the last update has been made, unless an exception came before it."""
        if not (self.on and self.confirmed):
            return
        if hasattr(sys, "last_value"):
            self.backward_begins()
        elif self._end is not None:
            self._split(self._end)

    def give_up(self) -> None:
        """The program does not train in a way that is seen."""
        self.on, self.over, self._copies = False, True, []
        recorder.off()

    def _split(self, end: Mark) -> None:
        """End the step where the next one began: the lines after the last backward pass of the step are its update."""
        codes, first = recorder.codes, end.segments
        following = (i for i in range(first, len(codes)) if codes[i] >= LOADER or codes[i] in NEXT_STEP)
        last = next(following, first)
        for i in range(first, last):
            if codes[i] == GAP:
                codes[i] = OPTIMIZER
        recorder.split(end._replace(segments=last))
        recorder.passes = recorder.backwards = 0
        watch.micro_batches = self._backwards
        self.confirmed, self._backwards, self._end, self._copies = True, 0, None, []

    def _states(self) -> list[tuple[int, ...]]:
        """The place and the versions of the tracked weights and their gradients."""
        found = []
        for weight in watch.alive(self._tracked):
            gradient = weight.grad
            found.append((weight._version, *(() if gradient is None else (gradient.data_ptr(), gradient._version))))
        return found


def with_gradients() -> list[Any]:
    """All weights that have a gradient: parameters of modules if there are any, else other tensors. One look at all objects (60 ms)."""
    import torch

    everything = gc.get_objects()
    kinds = {kind for kind in set(map(type, everything)) if issubclass(kind, torch.Tensor)}
    tensors = [one for one in everything if type(one) in kinds and one.requires_grad and one.is_leaf and one.grad is not None]
    return [one for one in tensors if isinstance(one, torch.nn.Parameter)] or tensors


own_updates = OwnUpdates()
