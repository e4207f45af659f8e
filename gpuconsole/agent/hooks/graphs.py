"""CUDA graphs of the program: a replay runs what was captured, without any call of the program's
own code within it.

A graph that was captured around an optimizer step makes a step of the program with each replay. A
graph with passes only is one segment. What happens within a replay is not told apart.
"""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any, NamedTuple

from ..protocol import SETTLING
from .borders.border import Border
from .guard import switch
from .optimizer import end_whole, steppers
from .recorder import GAP, WHOLE, get_ident
from .watch import module_name, recorder

WHOLE_STEPS = (
    "the program replays its steps as CUDA graphs: whole steps are timed, the passes within them"
    " are not told apart"
)


class Moment(NamedTuple):
    """Where the account stands: the step, the optimizer steps, passes, samples and tokens so
    far."""

    step: int
    optimizer_steps: int
    passes: int
    samples: int
    tokens: int


class Captured(NamedTuple):
    """What one replay does for the account."""

    ends_step: bool
    samples: int
    tokens: int


def moment() -> Moment:
    """Where the account stands now. Passes, samples and tokens are those of the step under way."""
    return Moment(
        recorder.index,
        steppers.events,
        recorder.passes + recorder.backwards,
        recorder.samples,
        recorder.tokens,
    )


def capture_begins(frame: FrameType) -> bool:
    """The program begins to capture a graph."""
    _present.graph = weakref.ref(frame.f_locals["self"])
    _present.begun = moment() if recorder.thread in (0, get_ident()) else None
    return True


class Present:
    """The graph that is captured or replayed now."""

    def __init__(self) -> None:
        self.graph: Any = None
        """Gives the graph."""
        self.begun: Moment | None = None
        """Where the account stood as its capture began."""
        self.captured: Captured | None = None
        """What the replay under way does for the account."""


_present = Present()


def _of_compiler() -> bool:
    """Whether torch.compile captures the graph that is captured now. torch.compile captures again
    after a change of the weights or the settings."""
    frame = sys._getframe(1)
    while frame is not None and not module_name(frame).startswith("torch._inductor"):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def why_fixed() -> str:
    """Why neither the model nor its optimizer can change; empty where the program has captured no
    graph. A graph keeps the addresses of the weights, and the kernels of the moment at which it was
    captured."""
    return "the program replays a CUDA graph" if _of_program else ""


def are_there() -> bool:
    """Whether a captured graph exists, of the program or of torch.compile."""
    return bool(_captured)


def of_compiler_are_there() -> bool:
    """Whether a captured graph of torch.compile exists."""
    return any(graph not in _of_program for graph in _captured)


def capture_begun(failed: bool) -> None:
    """The capture is under way."""


def capture_ends(frame: FrameType) -> bool:
    """The capture of a graph is about to end."""
    return True


def capture_ended(failed: bool) -> None:
    """A graph is captured."""
    graph = _present.graph() if _present.graph is not None else None
    begun, _present.begun = _present.begun, None
    if graph is None or failed:
        return
    if not _of_compiler():
        _of_program.add(graph)
    _captured.setdefault(graph, None)
    if begun is None or not recorder.thread:
        return
    ended = moment()
    if ended.optimizer_steps > begun.optimizer_steps:
        captured = [step for step in recorder.done if step[0] >= begun.step]
        samples, tokens = captured[-1][4:6] if captured else (ended.samples, ended.tokens)
        _captured[graph] = Captured(True, samples, tokens)
        # nothing ran while it was captured
        recorder.done = [
            (*step[:8], SETTLING, step[9]) if step[0] >= begun.step else step
            for step in recorder.done
        ]
        if not _noted:
            _noted.append(True)
            switch.notes.append(WHOLE_STEPS)
    elif ended.passes > begun.passes and ended.step == begun.step:
        _captured[graph] = Captured(
            False, ended.samples - begun.samples, ended.tokens - begun.tokens
        )


def replay_begins(frame: FrameType) -> bool:
    """Begin the segment of a replay."""
    captured = _captured.get(frame.f_locals["self"])
    if captured is None or not recorder.thread or recorder.stack[-1] != GAP:
        return False
    _present.captured = captured
    recorder.enter(WHOLE)
    recorder.passes += 1
    recorder.samples += captured.samples
    recorder.tokens += captured.tokens
    return True


def replay_ended(failed: bool) -> None:
    """End the segment of a replay, and the step that it makes."""
    captured, _present.captured = _present.captured, None
    if not recorder.thread or captured is None:
        return
    recorder.leave()
    if captured.ends_step:
        end_whole()


def _leave_replay() -> None:
    """A replay that is open is the innermost segment; a framework's training step around it goes
    on."""
    if _present.captured is not None and recorder.stack[-1] == WHOLE:
        recorder.stack.pop()


_of_program: weakref.WeakSet[Any] = weakref.WeakSet()
"""The graphs that the program itself has captured, as long as they exist."""
_captured: weakref.WeakKeyDictionary[Any, Captured | None] = weakref.WeakKeyDictionary()
"""The graphs that were captured, and what a replay does for the account; None: nothing that is
known."""
_noted: list[bool] = []
switch.undo_part["graphs"] = _leave_replay

BORDERS = (
    Border("torch.cuda.graphs", "CUDAGraph.capture_begin", capture_begins, capture_begun, "graphs"),
    Border("torch.cuda.graphs", "CUDAGraph.capture_end", capture_ends, capture_ended, "graphs"),
    Border("torch.cuda.graphs", "CUDAGraph.replay", replay_begins, replay_ended, "graphs"),
)
