"""Steps of a program that updates its weights itself, without an optimizer: `p -= lr * p.grad`, or a class that is none of torch's optimizers.

Such a program zeroes its gradients, or changes its weights, between two backward passes of different steps. Backward passes that add to the same
gradients are one step. The end of a step is known at the next backward pass only: it is where the next batch or forward pass began.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from typing import Any

from ...clock import now
from ..recorder import BACKWARD, COMPILED, DATA, FORWARD, GAP, LOADER, NO_GRAD, OPTIMIZER, WHOLE, Mark
from ..watch import recorder, watch

MOST_BACKWARDS = 64
"""Backward passes without an update after which the program counts as one that does not train. Once it has trained, other weights are tracked."""
LONGEST_STEP = 1024
"""Backward passes without an update that are no step: their segments are dropped."""
ELSEWHERE = 8
"""Backward passes in a row that give the tracked weights no gradient, after which other weights are tracked. More than the five steps that a critic
makes between two of a generator."""
TRACKED = 4
"""Weights that are looked at before each backward pass."""
READ, VALUE_BYTES = 2, 64
"""Of so many of the tracked weights, if they are on the CPU, so many bytes are compared: an update through `.data` may change no version."""
FREE_LOOKS = 8
"""Looks at all objects after the first one, which need not be rare."""
LOOK_SHARE = 0.01
"""The share of time that further looks may take."""
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
        self._choosing = False
        """Whether all weights with gradients are tracked, until some of them change."""
        self._stale = False
        """Whether other weights, or new copies, are due after the next backward pass."""
        self._before: list[tuple[Any, ...]] = []
        """The states before the last backward pass."""
        self._seen: list[tuple[Any, ...]] = []
        """The states after the last backward pass."""
        self._end: Mark | None = None
        """The end of the last backward pass."""
        self._backwards = self._elsewhere = 0
        self._tries = 0
        """Backward passes after which the account might have begun."""
        self._looks, self._looked_t, self._look_s = 0, 0.0, 0.0

    def may_begin(self) -> bool:
        """Whether a backward pass that has just ended may be the first of a program without an optimizer. Where the first passes
        show no weights, the 2nd, 4th, 8th and so on of the next ones are looked at."""
        if self.over or recorder.index or watch.optimizers:
            return False
        self._tries += 1
        return self._tries & (self._tries - 1) == 0

    def begin(self) -> None:
        """Begin the account after the first backward pass that leaves gradients."""
        weights = [] if capturing() else with_gradients()
        if not weights:
            self.over = self._tries >= MOST_BACKWARDS
            return
        self._track(weights)
        self.on = True
        recorder.begin([BACKWARD])
        recorder.leave()
        self._stale = False
        self.backward_ended()

    def _track(self, weights: list[Any]) -> None:
        """Track the smallest of the weights, and keep copies of them."""
        watch.weights = [weakref.ref(weight) for weight in weights]
        smallest = sorted(weights, key=lambda weight: weight.numel())[:TRACKED]
        self._tracked = [weakref.ref(weight) for weight in smallest]
        self._copies = [weight.detach().clone() for weight in smallest]

    def backward_ended(self) -> None:
        """Remember where the backward pass has ended, and what the gradients are."""
        states = self._states()
        self._elsewhere = self._elsewhere + 1 if states == self._before else 0
        tracked = self._tracked
        if self._choosing:
            self._choose(states)
        self._end = recorder.mark()
        self._backwards += 1
        if not self.confirmed:
            if self._backwards > MOST_BACKWARDS:
                self.give_up()
            elif self._stale and not capturing():
                self._stale = False
                self._track(with_gradients())
        else:
            self._stale |= self._elsewhere >= ELSEWHERE or self._backwards % MOST_BACKWARDS == 0
            if self._stale and self._may_look():
                self._look()
        if self._backwards >= LONGEST_STEP:
            self._drop()
        self._seen = states if self._tracked is tracked else self._states()

    def backward_begins(self) -> bool:
        """Whether a step has ended since the last backward pass; it is split off then. Gradients that are zeroed are no update: a program may look at
        gradients only."""
        self._before = self._states()
        if self._end is None or self._before == self._seen or not (self.confirmed or self._updated()):
            return False
        if self._choosing:
            self._choose(self._before)
        self._stale |= () in self._before
        self._split(self._end)
        return True

    def _updated(self) -> bool:
        """Whether the weights have changed since the start. Where they do not exist any more, they were no weights, or the program makes new tensors:
        the account may begin again."""
        import torch

        weights = watch.alive(self._tracked)
        if len(weights) < len(self._tracked):
            self.give_up()
            self.over = self._tries >= MOST_BACKWARDS
            return False
        if any(kind(weight) != kind(copy) for weight, copy in zip(weights, self._copies, strict=True)):
            self._stale = True  # the program has moved or cast its model
            return False
        if capturing():
            return False
        return not all(torch.equal(weight, copy) for weight, copy in zip(weights, self._copies, strict=True))

    def _may_look(self) -> bool:
        return self._looks < FREE_LOOKS or now() - self._looked_t >= self._look_s / LOOK_SHARE

    def _look(self) -> None:
        """Track all weights with gradients until some of them change: the program trains others than before, a second model perhaps."""
        begun = now()
        self._tracked = [weakref.ref(weight) for weight in with_gradients()]
        self._looked_t = now()
        self._look_s, self._looks = self._looked_t - begun, self._looks + 1
        self._choosing, self._stale, self._elsewhere = bool(self._tracked), False, 0

    def _choose(self, states: list[tuple[Any, ...]]) -> None:
        """Track the smallest of the weights that have changed since they were seen, or whose gradients have."""
        changed = [ref for ref, seen, state in zip(self._tracked, self._seen, states, strict=True) if state and state != seen]
        if not changed:
            return
        watch.weights = changed
        smallest = sorted(watch.alive(changed), key=lambda weight: weight.numel())[:TRACKED]
        self._tracked, self._choosing = [weakref.ref(weight) for weight in smallest], False
        self._before = self._states()

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
        """The program does not train in a way that is seen. What it did so far belongs to no step, not to those of a later optimizer either."""
        self.on, self.over, self._copies = False, True, []
        self._drop()
        recorder.off()

    def _drop(self) -> None:
        """Forget the step under way. The next one begins now."""
        recorder.codes, recorder.times, recorder.start = [], [], now()
        recorder.samples = recorder.tokens = recorder.passes = recorder.backwards = 0
        recorder.loss = None
        self._end, self._backwards = None, 0

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

    def _states(self) -> list[tuple[Any, ...]]:
        """The versions and the places of the tracked weights and their gradients, and some bytes of the smallest weights; empty for a weight that does
        not exist any more."""
        import torch

        strided, plain = torch.strided, (torch.nn.Parameter, torch.Tensor)
        found: list[tuple[Any, ...]] = []
        for ref in self._tracked:
            weight = ref()
            if weight is None:
                found.append(())
                continue
            gradient = weight.grad
            read = weight.is_cpu and len(found) < READ and type(weight) in plain and weight.layout == strided and weight.is_contiguous()
            state: tuple[Any, ...] = weight._version, some_bytes(weight) if read else b""
            if gradient is not None:  # a sparse gradient has no address
                state += (gradient.data_ptr() if gradient.layout == strided else 0, gradient._version)
            found.append(state)
        return found


def some_bytes(weight: Any) -> bytes:
    """The first bytes of a weight on the CPU, read without an operator: a dispatch mode of the program would see an operator."""
    storage, size = weight.untyped_storage(), weight.element_size()
    offset, length = weight.storage_offset() * size, min(VALUE_BYTES, weight.numel() * size)
    if storage.nbytes() < offset + length:  # a program may free a storage
        return b""
    return ctypes.string_at(storage.data_ptr() + offset, length)


def kind(tensor: Any) -> tuple[Any, ...]:
    return tensor.device, tensor.dtype, tensor.shape


def capturing() -> bool:
    """Whether the program captures a CUDA graph. A wait for the device would break the capture."""
    import torch

    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def with_gradients() -> list[Any]:
    """All weights that have a gradient: parameters of modules if there are any, else other tensors. One look at all objects (60 ms)."""
    import torch

    everything = gc.get_objects()
    kinds = {kind for kind in set(map(type, everything)) if issubclass(kind, torch.Tensor)}
    tensors = [one for one in everything if type(one) in kinds and one.requires_grad and one.is_leaf and one.grad is not None]
    return [one for one in tensors if isinstance(one, torch.nn.Parameter)] or tensors


own_updates = OwnUpdates()
