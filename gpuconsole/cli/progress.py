"""The progress of a headless run on stderr: one line that redraws itself on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TextIO

from gpuconsole.cli.output import quiet
from gpuconsole.model import units
from gpuconsole.model.text import clean, cut, without_credentials
from gpuconsole.report.run.figures import doubtful, outage
from gpuconsole.session import facts
from gpuconsole.session.api import View

LINE_EVERY_S = 5.0
BAR = 24
DEFAULT_COLUMNS = 80
"""Width in columns if the terminal does not report its width."""


class Progress:
    """Writes to `stream`. The run continues if the reader of `stream` has ended."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._quiet = quiet()
        self._last = -LINE_EVERY_S
        self._drawn = False
        self._stage = ""

    def show(self, view: View, elapsed: float, duration: float) -> None:
        """The state of the run, `elapsed` of `duration` seconds."""
        if self._quiet:
            return
        text = f"{elapsed:5.0f}/{duration:.0f} s  {clean(describe(view))}"
        with contextlib.suppress(OSError):
            if self._terminal:
                filled = int(BAR * min(1.0, elapsed / duration))
                bar = f"[{'#' * filled}{'.' * (BAR - filled)}] {text}"
                # A line as wide as the terminal would wrap, and the next \r would begin a new row.
                self._write(f"\r\033[K{cut(bar, self._columns() - 1)}")
                self._drawn = True
            elif time.monotonic() - self._last >= LINE_EVERY_S or (view.stage != self._stage and _starting(view)):
                self._last, self._stage = time.monotonic(), view.stage
                self._write(f"{text}\n")

    def line(self, text: str) -> None:
        """Write a permanent line, unless --quiet leaves it out. Control characters are made visible: the text may come from anywhere."""
        if self._quiet:
            return
        with contextlib.suppress(OSError):
            self.done()
            self._write(f"{clean(without_credentials(text))}\n")

    def done(self) -> None:
        """End the line that redraws itself."""
        if self._drawn:
            self._write("\n")
            self._drawn = False

    def _columns(self) -> int:
        """The present width: the window may have been resized."""
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or DEFAULT_COLUMNS
        except (OSError, ValueError):
            return DEFAULT_COLUMNS

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _starting(view: View) -> bool:
    return view.run is not None and view.run.state == "starting"


def describe(view: View) -> str:
    """The current state in half a line. The rate is the rate of the last second."""
    run = view.run
    if run is None:
        return "starting"
    if run.state == "starting":
        stage, _, _ = view.stage.partition("; ")  # the rest is a command for other machines, which was printed before
        return f"{run.scenario} {run.place}: {stage or 'starting'}"
    metric, unit = facts.throughput_metric(view)
    rate = facts.latest(view, metric)
    parts = [f"{run.scenario} {run.place}", f"{units.rate(rate, 0)} {unit}" if rate is not None else "first steps"]
    if view.down:
        return "  ".join([*parts, outage(view)])
    if run.validity is not None and doubtful(run):
        parts.append(run.validity.verdict)
    if view.probing:
        parts.append(f"probe {view.probing}")
    firing = facts.firing(run)
    if firing:
        parts.append(firing[0].rule)
    elif run.steady_from_s is None:
        parts.append("not steady yet")
    return "  ".join(parts)
