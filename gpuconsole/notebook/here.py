"""The agent in this process. It is the agent of `gpuconsole run -- COMMAND`, loaded by its own
name: gpuconsole is installed here. Its state belongs to one training, so each block gets a fresh
copy of its modules."""

from __future__ import annotations

import importlib
import sys
import threading
from types import ModuleType

import gpuconsole
import gpuconsole.agent
from gpuconsole.mcp.messages import Joined

AGENT = "gpuconsole.agent"
STAY = (f"{AGENT}.forks", f"{AGENT}.protocol")
"""The modules that stay: Python never forgets what was registered for forks, and the console's own
modules use the types of the protocol."""
OF_RUN = "_gpuconsole_agent"
"""The agent's name where `gpuconsole run` has started this process
(agent/inject/sitecustomize.py)."""


def is_watched() -> bool:
    """Whether `gpuconsole run` watches this process."""
    return OF_RUN in sys.modules


class BlockAgent:
    """The agent of one block, from its begin to `leave`."""

    def __init__(self, joined: Joined) -> None:
        self._install: ModuleType = importlib.import_module(f"{AGENT}.hooks.install")
        try:
            self._install.begin(joined.folder, joined.token, joined=True)
        except BaseException:
            self.leave(None)
            raise

    @property
    def trains_elsewhere(self) -> bool:
        """Whether another thread trains."""
        return bool(self._install.trains_elsewhere())

    @property
    def trains_here(self) -> bool:
        """Whether the present thread trains."""
        return bool(self._install.recorder.thread == threading.get_ident())

    @property
    def is_off(self) -> bool:
        return bool(self._install.is_off())

    def leave(self, problem: BaseException | None) -> None:
        """End the agent. `problem`: what the program has raised."""
        try:
            self._install.leave(problem)
        finally:
            forget()


def forget() -> None:
    """Let the next block load the agent anew. Nothing keeps the modules of this one alive."""
    for name in [name for name in sys.modules if name.startswith(f"{AGENT}.") and name not in STAY]:
        vars(gpuconsole.agent).pop(name.removeprefix(f"{AGENT}."), None)
        del sys.modules[name]
