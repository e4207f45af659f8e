"""One live change in all processes of a user's job, before one step that they all make.

Each process first prepares the change, for example starts the workers of a loader. Then the console
names a step that no process has reached yet. A process that was past it, or that was not ready, has
changed nothing and says so: all processes go back, and prepare again for a step that lies further
ahead. Where one process refuses, all go back.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import msgspec

from gpuconsole.wire.events import KnobsSet, SetKnobs

PREPARE, UNDO = "prepare", "undo"
"""Stages of a change; see agent/protocol.py."""
AHEAD_S = 0.2
"""Seconds of steps from the last answer to the step of the change. The console takes some
milliseconds for its command, and a loaded machine more."""
MIN_STEPS_AHEAD = 2
TRIES = 4
"""Each try looks twice as far ahead as the one before it."""
NO_COMMON_STEP = "the processes of the job could not make the change before the same step"
ALL_LEFT = "the processes of the job ended before the change"


class Agreement:
    """The stages of one change. `command`: what the console wants."""

    def __init__(self, command: SetKnobs) -> None:
        self._command = command
        self._ahead_s, self._tries = AHEAD_S, 0
        self._undoing = False
        self._refusal: str | None = None
        self._refused = set[int]()
        self._last: dict[int, KnobsSet] = {}

    def prepare(self) -> SetKnobs:
        """The first command of a try, for all processes."""
        return dataclasses.replace(self._command, stage=PREPARE)

    def next(self, answers: Mapping[int, KnobsSet], step_s: float) -> SetKnobs | KnobsSet:
        """What follows once all processes have answered the last command: the next command for all
        of them, or the answer of the job. `step_s`: the time of a step in seconds. `answers`: by
        rank; empty where all processes have left."""
        if not answers:
            return self.ended()
        self._last = dict(sorted(answers.items()))
        if self._undoing:
            return self._after_undo()
        given = self._last.values()
        self._refusal = next((answer.error for answer in given if answer.error), None)
        self._refused = {rank for rank, answer in self._last.items() if answer.error}
        if all(answer.error for answer in given):
            return self._settled(self._last, self._refusal)
        if self._refusal or any(answer.late for answer in given):
            self._undoing = True
            return dataclasses.replace(self._command, stage=UNDO)
        if any(answer.prepared for answer in given):
            ahead = MIN_STEPS_AHEAD + math.ceil(self._ahead_s / step_s)
            return dataclasses.replace(
                self._command, at_step=max(answer.step for answer in given) + ahead
            )
        return self._settled(self._last, None)

    def ended(self) -> KnobsSet:
        """The answer where all processes have left between two stages."""
        return self._settled(self._last, self._refusal or ALL_LEFT)

    def _after_undo(self) -> SetKnobs | KnobsSet:
        self._undoing = False
        self._tries += 1
        self._ahead_s *= 2
        kept = [
            f"rank {rank} could not go back: {answer.error}"
            for rank, answer in self._last.items()
            if answer.error and rank not in self._refused
        ]
        if kept:
            return self._settled(self._last, "; ".join([self._refusal or NO_COMMON_STEP, *kept]))
        if self._refusal is None and self._tries < TRIES:
            return self.prepare()
        return self._settled(self._last, self._refusal or NO_COMMON_STEP)

    def _settled(self, answers: Mapping[int, KnobsSet], error: str | None) -> KnobsSet:
        """The leader's answer for all. A change is in force from the last of the ranks' first steps
        with it: a loader may have older batches under way. All ranks count the same steps, because
        each step needs all of them."""
        given = list(answers.values())
        leader = msgspec.structs.replace(given[0], error=error, prepared=False, late=False)
        if error:
            return leader
        steps = {rank: answer.at_step for rank, answer in answers.items()}
        return msgspec.structs.replace(
            leader,
            step=max(answer.step for answer in given),
            at_step=max(steps.values()),
            steps=steps if leader.at_step else {},
        )
