"""Samples of the training thread's stack, and the places of the program that they show."""

from __future__ import annotations

import msgspec

from gpuconsole.agent.protocol import CodePlace

PYTHON, NATIVE, WAITS = "python", "native", "waits"
"""What the thread does in a sample: it runs Python, or operators too short to tell; it runs code
without the interpreter's lock, such as an operator of torch; it waits for a lock, for input or
output, or sleeps."""
ANOMALY = "torch.anomaly_mode"
"""The callee of a sample in which anomaly mode keeps the stack of an operator."""
THREAD = "thread"
"""In place of a part of a step, for a stack of another thread of the program."""
PARTS = {
    "data_wait": "loading",
    "feed": "between batch and model",
    "forward": "forward",
    "no_grad": "passes without gradients",
    "eval": "passes in eval mode",
    "loss": "loss",
    "backward": "backward",
    "clip": "after the backward pass",
    "optimizer": "optimizer",
    "comm": "comm",
    "logging": "logging",
    "checkpoint": "checkpoint",
    "between": "between two steps",
}
"""The parts of a step, and their words."""
WITHIN = PARTS | {
    "data_wait": "in loading",
    "forward": "in the forward pass",
    "no_grad": "in passes without gradients",
    "eval": "in passes in eval mode",
    "loss": "in the loss",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer",
    "comm": "in collectives",
    "logging": "in logging",
    "checkpoint": "in checkpoints",
}
"""The words for the parts of a step in a sentence."""


def placed(place: CodePlace) -> str:
    """Return the place as the end of a sentence: `step at train.py:12, called by train.py:30 main,
    in the optimizer`."""
    return ", ".join(
        filter(
            None,
            (
                " at ".join(filter(None, (place.function, place.line))),
                f"called by {place.caller}" if place.caller else "",
                WITHIN.get(place.part, ""),
            ),
        )
    )


class StackSample(msgspec.Struct, frozen=True, array_like=True):
    """Samples with the same stack. `weight`: their number; a sample that came late, because code in
    C held the interpreter's lock, counts for those that it has hidden. `callee`: the library
    function that the innermost line of the program calls; empty where the line is all. `lines`: the
    lines of the program as `file:line function`, the innermost first."""

    part: str
    kind: str
    weight: float
    callee: str
    lines: list[str]


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function of the program, and its share of the time in one part of a step. `line`: the line
    with most of it, as `file:line`. `callee`: the library function that this line calls most often.
    `caller`: the line of the program that calls the function, where one line makes nearly all of
    the calls."""

    part: str
    function: str
    line: str
    share_ratio: float
    waits_ratio: float = 0.0
    native_ratio: float = 0.0
    samples: int = 0
    callee: str = ""
    caller: str = ""

    @property
    def code(self) -> CodePlace:
        """Return the place of the function, without the figures."""
        return CodePlace(self.line, self.function, self.part, self.caller)
