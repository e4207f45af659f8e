"""The segments of the step under way, and their packed form.

A segment is a stretch of the training thread's time with one code: what the thread did. The recorder does not judge; the console makes phases
of the segments (session/job/segments.py). Segments of a step are contiguous: the step's start, then for each segment its code and its end.
"""

from __future__ import annotations

import array
import base64
import struct
import threading
from collections.abc import Callable
from typing import Any

from ..clock import now

DATA, FORWARD, NO_GRAD, BACKWARD, OPTIMIZER, ZERO, SAVE, LOG, COMM, GAP, OWN, COMPILED = range(12)
"""Codes: a function of the program that makes a batch; a pass of a root module with gradients, and without; backward; optimizer step; zero_grad;
saving; logging; a collective; anything else; the agent's own work; a function under torch.compile."""
LOADER, LOADERS = 16, 8
"""Code LOADER + n: a batch from the DataLoader number n (of the last LOADERS)."""
MAY_HOLD_FORWARD = frozenset((GAP, OPTIMIZER))
"""A pass is a segment only directly within these: a closure runs in the optimizer's step, a pass within a save is the save's."""
HEAD = struct.Struct("<IdIIdBBHI")
"""Of a packed step: index, start, samples, tokens, loss (NaN: none), arm, kind, 0, number of segments. Then the codes (a byte each) and the
ends (8 bytes each, seconds on CLOCK_MONOTONIC)."""

RawStep = tuple[int, float, list[int], list[float], int, int, Any, int, int]
"""index, start, codes, ends, samples, tokens, loss (a number, a tensor or None), arm, kind."""

get_ident = threading.get_ident


class Recorder:
    """`stack` holds what is going on, the innermost last. Only the training thread writes."""

    def __init__(self) -> None:
        self.on = False
        self.reset()

    def reset(self) -> None:
        """As in a process that has not trained yet."""
        self.on = False
        self.thread = 0
        self.stack = [GAP]
        self.codes: list[int] = []
        self.times: list[float] = []
        self.start = 0.0
        self.index = 0
        self.done: list[RawStep] = []
        self.samples = self.tokens = 0
        self.loss: Any = None
        self.arm = self.kind = 0
        self.passes = self.backwards = 0
        """Passes and backward passes of the step under way."""
        self.own_s = 0.0
        self.at_end: Callable[[], None] | None = None
        """Called after each step, within an OWN segment."""

    def begin(self) -> None:
        """The first step's account begins now, on this thread."""
        self.thread = get_ident()
        self.stack, self.codes, self.times = [GAP], [], []
        self.start = now()
        self.on = True

    def watches(self) -> bool:
        """Whether this moment of this thread belongs to the account."""
        return self.on and get_ident() == self.thread

    def enter(self, code: int) -> None:
        self.codes.append(self.stack[-1])
        self.times.append(now())
        self.stack.append(code)

    def leave(self) -> None:
        self.codes.append(self.stack.pop())
        self.times.append(now())

    def cut(self) -> None:
        """The step ends here, within whatever is going on."""
        end = now()
        self.codes.append(self.stack[-1])
        self.times.append(end)
        self.done.append((self.index, self.start, self.codes, self.times, self.samples, self.tokens, self.loss, self.arm, self.kind))
        self.index += 1
        self.start, self.codes, self.times = end, [], []
        self.samples = self.tokens = self.passes = self.backwards = 0
        self.loss = None

    def take(self) -> list[RawStep]:
        """The steps that have ended since the last call."""
        done, self.done = self.done, []
        return done


def pack(steps: list[RawStep]) -> str:
    """Steps as base64 text. As JSON numbers the times would take 22 µs a step, packed they take 1 µs."""
    parts = []
    for index, start, codes, times, samples, tokens, loss, arm, kind in steps:
        value = float("nan") if loss is None else float(loss)
        parts.append(HEAD.pack(index, start, samples & 0xFFFFFFFF, tokens & 0xFFFFFFFF, value, arm, kind, 0, len(codes)))
        parts.append(bytes(codes))
        parts.append(array.array("d", times).tobytes())
    return base64.b64encode(b"".join(parts)).decode("ascii")
