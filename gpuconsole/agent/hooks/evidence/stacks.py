"""The lines in which the program spends its time between the segments, from a second of stack samples.

A thread takes the samples and ends with them. It also ends before the process forks: Python warns where a process with threads forks.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Generator
from typing import Any

from ...clock import now
from ...probes import ProbeError
from ..recorder import FORWARD, GAP, OWN
from ..watch import program_frame, recorder

EVERY_S = 0.01
LENGTH_S = 1.0
LEAST_STEPS = 4
MOST_S = 10.0
_running: list[StackSamples] = []
_registered: list[bool] = []


class StackSamples:
    """Samples of the training thread until `stop`. `places`: file, line and function; empty within a segment."""

    def __init__(self) -> None:
        self.places: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpuconsole-stacks", daemon=True)
        if not _registered:
            _registered.append(True)
            os.register_at_fork(before=stop_all)
        _running.append(self)
        self._thread.start()

    def stop(self) -> None:
        if self in _running:
            _running.remove(self)
            self._stop.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            try:
                code = recorder.stack[-1]
                if code != OWN:
                    self.places.append(self._place() if code == GAP else "")
            except Exception:  # the training thread has just changed the list: the next sample will do
                continue

    def _place(self) -> str:
        if recorder.codes and recorder.codes[-1] == FORWARD:
            return ""  # the loss, most often
        frame = program_frame(sys._current_frames().get(recorder.thread))
        if frame is None:
            return ""
        code = frame.f_code
        return f"{os.path.basename(code.co_filename)}:{frame.f_lineno} {code.co_name}"


def stop_all() -> None:
    """End all sampling threads."""
    for samples in list(_running):
        samples.stop()


def script_lines() -> Generator[None, None, dict[str, Any]]:
    """The share of time in the program's own lines between the segments, and the line with most of it. Ordinary steps go on meanwhile."""
    samples, start, first = StackSamples(), now(), recorder.index
    try:
        while now() - start < LENGTH_S or (recorder.index - first < LEAST_STEPS and now() - start < MOST_S):
            yield
    finally:
        samples.stop()
    places = samples.places
    if not places:
        raise ProbeError("no stack sample was possible: a step never lets another thread run")
    counted = Counter(place for place in places if place)
    place, most = counted.most_common(1)[0] if counted else ("nowhere", 0)
    source = f"{len(places)} stack samples of ordinary steps"
    return {
        "stack.script_ratio": {
            "value": counted.total() / len(places),
            "unit": "ratio",
            "source": f"{source}: in the script, outside of named phases",
        },
        "stack.line_ratio": {"value": most / len(places), "unit": "ratio", "source": f"{source}, most of them at {place}"},
    }
