"""The table that a notebook shows while the training runs. A thread updates it about once a second."""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable
from typing import Any

EVERY_S = 1.0
STOP_S = 2.0


class LiveTable:
    """One output of a cell, which is replaced."""

    def __init__(self, shown: Callable[[], object]) -> None:
        """`shown`: what the output is now."""
        self._shown = shown
        self._handle: Any = None
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    @staticmethod
    def wanted(asked: bool | None) -> bool:
        """Whether there is a notebook to show it in, unless the caller has decided."""
        if asked is not None:
            return asked
        ipython = sys.modules.get("IPython")
        return hasattr(ipython.get_ipython() if ipython is not None else None, "kernel")

    def begin(self) -> None:
        from IPython.display import display

        self._handle = display(self._shown(), display_id=True)  # type: ignore[no-untyped-call]
        # what a thread shows belongs to a cell by the context of the thread
        self._thread = threading.Thread(target=contextvars.copy_context().run, args=(self._update,), name="gpuconsole-table", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        if self._thread is not None:
            self._thread.join(STOP_S)

    def show(self) -> None:
        """Show the state as it is now."""
        if self._handle is not None:
            self._handle.update(self._shown())

    def _update(self) -> None:
        while not self._ends.wait(EVERY_S):
            self.show()
