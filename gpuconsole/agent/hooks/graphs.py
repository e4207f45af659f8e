"""CUDA graphs of the program: a replay runs what was captured, without any call of the program's own code within it.

A graph that was captured around an optimizer step makes a step of the program with each replay. A graph with passes only is one segment. What happens
within a replay is not told apart.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any, NamedTuple

from ..protocol import SETTLING
from .guard import entry, put, switch, wrappers_without_level
from .optimizer import end_whole, steppers
from .recorder import GAP, WHOLE, get_ident
from .watch import module_name, recorder

WHOLE_STEPS = "the program replays its steps as CUDA graphs: whole steps are timed, the passes within them are not told apart"


class Moment(NamedTuple):
    """Where the account stands: the step, the optimizer steps, passes, samples and tokens so far."""

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
    return Moment(recorder.index, steppers.events, recorder.passes + recorder.backwards, recorder.samples, recorder.tokens)


@wrappers_without_level
def watch_class(cls: Any) -> None:
    """Note what each graph of class `cls` (torch.cuda.CUDAGraph) captures, and account for its replays."""
    plain_begin, plain_end, plain_replay = cls.capture_begin, cls.capture_end, cls.replay

    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        capture_begins(self)
        return plain_begin(self, *args, **kwargs)

    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain_end(self, *args, **kwargs)
        capture_ended(self)
        return result

    def replay(self: Any, *args: Any, **kwargs: Any) -> Any:
        captured = replay_begins(self) if recorder.thread else None
        try:
            return plain_replay(self, *args, **kwargs)
        finally:
            if captured is not None:
                replay_ended(captured)

    for wrapper, plain in ((capture_begin, plain_begin), (capture_end, plain_end), (replay, plain_replay)):
        functools.update_wrapper(wrapper, plain)
        put(cls, wrapper.__name__, wrapper)


@entry("graphs.capture_begins")
def capture_begins(graph: Any) -> None:
    if recorder.thread in (0, get_ident()):
        graph.__dict__["_gpuconsole_begun"] = moment()


def _of_compiler() -> bool:
    """Whether torch.compile captures the graph that is captured now. torch.compile captures again after a change of the weights or the settings."""
    frame = sys._getframe(1)
    while frame is not None and not module_name(frame).startswith("torch._inductor"):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def why_fixed() -> str:
    """Why neither the model nor its optimizer can change; empty where the program has captured no graph. A graph keeps the addresses of the weights,
    and the kernels of the moment at which it was captured."""
    return "the program replays a CUDA graph" if _of_program else ""


def are_there() -> bool:
    """Whether a captured graph exists, of the program or of torch.compile."""
    return bool(_captured)


@entry("graphs.capture_ended")
def capture_ended(graph: Any) -> None:
    if not _of_compiler():
        _of_program.add(graph)
    _captured.add(graph)
    begun: Moment | None = graph.__dict__.pop("_gpuconsole_begun", None)
    if begun is None or not recorder.thread:
        return
    ended = moment()
    if ended.optimizer_steps > begun.optimizer_steps:
        captured = [step for step in recorder.done if step[0] >= begun.step]
        samples, tokens = captured[-1][4:6] if captured else (ended.samples, ended.tokens)
        graph.__dict__["_gpuconsole_captured"] = Captured(True, samples, tokens)
        # nothing ran while it was captured
        recorder.done = [(*step[:8], SETTLING, step[9]) if step[0] >= begun.step else step for step in recorder.done]
        if not _noted:
            _noted.append(True)
            switch.notes.append(WHOLE_STEPS)
    elif ended.passes > begun.passes and ended.step == begun.step:
        graph.__dict__["_gpuconsole_captured"] = Captured(False, ended.samples - begun.samples, ended.tokens - begun.tokens)


@entry("graphs.replay_begins")
def replay_begins(graph: Any) -> Captured | None:
    """Begin the segment of a replay. Returns what it does for the account; None where there is no segment to end."""
    captured: Captured | None = graph.__dict__.get("_gpuconsole_captured")
    if captured is not None and recorder.light == get_ident():
        recorder.mark_all()
    if captured is None or recorder.thread != get_ident() or recorder.stack[-1] != GAP:
        return None
    recorder.enter(WHOLE)
    _open.append(captured)
    recorder.passes += 1
    recorder.samples += captured.samples
    recorder.tokens += captured.tokens
    return captured


@entry("graphs.replay_ended")
def replay_ended(captured: Captured) -> None:
    _open.clear()
    if not recorder.thread:
        return
    recorder.leave()
    if captured.ends_step:
        end_whole()


def _leave_replay() -> None:
    """A replay that is open is the innermost segment; a framework's training step around it goes on."""
    if _open and recorder.stack[-1] == WHOLE:
        recorder.stack.pop()


_of_program: weakref.WeakSet[Any] = weakref.WeakSet()
"""The graphs that the program itself has captured, as long as they exist."""
_captured: weakref.WeakSet[Any] = weakref.WeakSet()
"""The graphs that have an attribute of the agent's."""
_noted: list[bool] = []
_open: list[Captured] = []
"""The replay under way."""
switch.undo_part["graphs"] = _leave_replay


def forget() -> None:
    """The agent leaves the program: no graph has an attribute of the agent's."""
    for graph in _captured:
        for name in ("_gpuconsole_begun", "_gpuconsole_captured"):
            graph.__dict__.pop(name, None)


def on_torch(module: Any) -> None:
    """The class as the program will find it; a torch without CUDA has a stand-in."""
    if hasattr(module.cuda, "CUDAGraph"):
        watch_class(module.cuda.CUDAGraph)


HOOKS = {"torch": on_torch}
