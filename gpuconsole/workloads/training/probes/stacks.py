"""Probe P15: the lines in which the training thread spends its time outside of all named phases, from samples of its stack."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

from gpuconsole.agent.counters import ProcessCounters
from gpuconsole.agent.loop import Signals
from gpuconsole.agent.probes import ProbeError, rounds
from gpuconsole.model.finding import Signal
from gpuconsole.model.run import PROBE
from gpuconsole.workloads.training.loop import loop as loop_module
from gpuconsole.workloads.training.loop.loop import TrainingLoop

EVERY_S = 0.01
BUDGET_S = 1.0
STEP = TrainingLoop.step.__code__
COLLECTED = ProcessCounters.collected.__code__
BETWEEN_PHASES = TrainingLoop.script_work.__code__


def script_lines(loop: TrainingLoop) -> Signals:
    """Ordinary steps with a hundred stack samples a second: the share of time in the script's own work, and the line with most of it."""
    thread, stop = threading.get_ident(), threading.Event()
    samples: list[str] = []

    def sample() -> None:
        while not stop.wait(EVERY_S):
            samples.append(_place(sys._current_frames().get(thread)))

    sampler = threading.Thread(target=sample, daemon=True)
    loop.account.restart()
    sampler.start()
    kind, loop.kind = loop.kind, PROBE
    try:
        for _ in rounds(loop, BUDGET_S, 4, 200):
            loop.step()
    finally:
        loop.kind = kind
        stop.set()
        sampler.join()
    if not samples:
        raise ProbeError("no stack sample was possible: a step never lets another thread run")
    places = Counter(place for place in samples if place)
    place, most = places.most_common(1)[0] if places else ("nowhere", 0)
    source = f"{len(samples)} stack samples of ordinary steps"
    return {
        "stack.script_ratio": Signal(sum(places.values()) / len(samples), "ratio", f"{source}: in the script, outside of named phases"),
        "stack.line_ratio": Signal(most / len(samples), "ratio", f"{source}, most of them at {place}"),
    }


def _place(frame: FrameType | None) -> str:
    """`file:line function` of the script's own work in which `frame` runs; empty in a named phase and between steps."""
    inner: list[FrameType] = []
    while frame is not None:
        if frame.f_code is BETWEEN_PHASES:
            called = inner[-1] if inner else frame
            ours = called.f_code is COLLECTED or not called.f_code.co_filename.startswith(str(_SOURCES))
            own = frame if ours else called
            name = Path(own.f_code.co_filename).relative_to(_SOURCES)
            return f"{name}:{own.f_lineno} {own.f_code.co_name}"
        if frame.f_code is STEP:
            return ""
        inner.append(frame)
        frame = frame.f_back
    return ""


_SOURCES = Path(loop_module.__file__).parents[3]
