"""The lines in which the program spends its time between the segments, from a second of stack samples.

A thread takes the samples and ends with them. It also ends before the process forks: Python warns where a process with threads forks.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator
from typing import Any

from ...clock import ThreadTimes, now
from ...probes import ProbeError
from ..recorder import DATA, FORWARD, GAP, OWN
from ..watch import program_frame, recorder

EVERY_S = 0.01
LOOK_S = 0.001
"""Length of a look at the CPU time of the training thread, after a sample within the script's own lines."""
LEAST_LOOKED_S = 0.005
"""Seconds of such looks at one line, below which nothing is said about its CPU time."""
LENGTH_S = 1.0
LEAST_STEPS = 4
MOST_S = 10.0
_running: list[StackSamples] = []
_registered: list[bool] = []


class StackSamples:
    """Samples of the training thread until `stop`. `places`: file, line and function; empty within a segment. A function of the program that makes
    batches counts as the script's own lines.

    `looked`: by place, the seconds that the samples looked at the thread, and the seconds in which it used a core or waited for one. A look that
    lasts into another segment does not count. `times`: those of the training thread, which makes this object.
    """

    def __init__(self, times: ThreadTimes) -> None:
        self.places: list[str] = []
        self.looked: dict[str, tuple[float, float]] = {}
        self._times = times
        self._cpu_clock = time.pthread_getcpuclockid(threading.get_ident()) if times.available else 0
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
                    place = self._place() if code in (GAP, DATA) else ""
                    self.places.append(place)
                    if place and self._times.available:
                        self._look(place)
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

    def _look(self, place: str) -> None:
        segment, begun, busy = _segment(), now(), self._busy_s()
        self._stop.wait(LOOK_S)
        seconds, busy = now() - begun, self._busy_s() - busy
        if _segment() == segment:
            total, used = self.looked.get(place, (0.0, 0.0))
            self.looked[place] = total + seconds, used + busy

    def _busy_s(self) -> float:
        """Seconds of the training thread on a core or on a run queue. /proc counts the time on a core only at the ticks of the scheduler while the
        thread runs, so its CPU clock tells it."""
        return time.clock_gettime(self._cpu_clock) + self._times.runq_s()


def _segment() -> tuple[int, int]:
    """The present segment: the step, and how many segments of the step have ended."""
    return recorder.index, len(recorder.codes)


def stop_all() -> None:
    """End all sampling threads."""
    for samples in list(_running):
        samples.stop()


def script_lines(times: ThreadTimes) -> Generator[None, None, dict[str, Any]]:
    """The share of time in the program's own lines between the segments, the line with most of it, and whether this line computes or waits.
    Ordinary steps go on meanwhile. `times`: those of the training thread. Raises ProbeError where no sample was possible."""
    samples, start, first = StackSamples(times), now(), recorder.index
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
    found = {
        "stack.script_ratio": {
            "value": counted.total() / len(places),
            "unit": "ratio",
            "source": f"{source}: in the script, outside of named phases",
        },
        "stack.line_ratio": {"value": most / len(places), "unit": "ratio", "source": f"{source}, most of them at {place}"},
    }
    looked_s, used_s = samples.looked.get(place, (0.0, 0.0))
    if looked_s >= LEAST_LOOKED_S:
        source = f"CPU clock and schedstat of the training thread within that line, {looked_s * 1e3:.0f} ms: time on a core or a run queue"
        found["stack.line_cpu_ratio"] = {"value": min(used_s / looked_s, 1.0), "unit": "ratio", "source": source}
    return found
