"""Stamps by hand: what a careful user would write into a loop to account for its time. Exclusive phases, contiguous."""

import contextlib
import json
import os
from time import perf_counter as now

SKIPPED = 8
"""Steps at the start that do not count: the agent looks at the program there."""


class Stamps:
    """`shares` of the steps after the first SKIPPED ones, up to the last whole step."""

    def __init__(self):
        self.steps = 0
        self._sums, self._kept = {}, {}
        self._stack, self._last = ["other"], now()
        self.silent = False

    def step(self):
        """The end of a step: the optimizer has stepped."""
        self._book()
        self.steps += 1
        if self.steps == SKIPPED:
            self._sums.clear()
        self._kept = dict(self._sums)

    @contextlib.contextmanager
    def phase(self, name):
        """The block belongs to `name`; while `silent`, to the phase around it."""
        if self.silent:
            yield
            return
        self._book()
        self._stack.append(name)
        try:
            yield
        finally:
            self._book()
            self._stack.pop()

    @contextlib.contextmanager
    def only(self, name):
        """The block belongs to `name`, whatever stamps are inside."""
        with self.phase(name):
            self.silent = True
            try:
                yield
            finally:
                self.silent = False

    def goes_on_as(self, name):
        """What is left of the present block belongs to `name`."""
        if self.silent:
            return
        self._book()
        self._stack[-1] = name

    def write(self, name):
        """Write the account into the folder STAMPS."""
        total = sum(self._kept.values())
        shares = {phase: seconds / total for phase, seconds in self._kept.items()} if total else {}
        with open(os.path.join(os.environ["STAMPS"], name + ".json"), "w") as file:
            json.dump({"steps": self.steps, "total_s": total, "shares": shares}, file)

    def _book(self):
        t = now()
        self._sums[self._stack[-1]] = self._sums.get(self._stack[-1], 0.0) + t - self._last
        self._last = t


stamps = Stamps()
phase, step = stamps.phase, stamps.step


def answered(output):
    """The last call of the model in a step has ended: what is left of the block is the loss. Returns `output`."""
    stamps.goes_on_as("loss")
    return output
