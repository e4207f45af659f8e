"""Installs each hook when the program itself has imported the module that the hook is for."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import calls, data, graphs, optimizer, passes
from .evidence import communication, loading_parts
from .evidence.memory_lines import CONSENT, history
from .guard import entry, switch, wrappers_without_level
from .job import Agent
from .watch import recorder

AFTER_IMPORT: dict[str, list[Callable[[Any], None]]] = {}
for _module in (calls, passes, optimizer, data, graphs, communication, loading_parts):
    for _name, _hook in _module.HOOKS.items():
        AFTER_IMPORT.setdefault(_name, []).append(_hook)

HELPERS = ("--multiprocessing-fork", "compile_worker", "resource_tracker", "forkserver")
"""Words in the command line of helper processes: they connect only if they train."""


class Finder:
    """Lets the import system find a module as ever, and runs our hooks once the module's code has run."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        if name not in AFTER_IMPORT:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                _hook_into(spec, name)
                return spec
        return None


@wrappers_without_level
def _hook_into(spec: Any, name: str) -> None:
    """Make the loader of `spec` run our hooks, once. A loader of a kind that we do not know stays as it is."""
    loader = spec.loader
    plain = getattr(loader, "exec_module", None)
    if plain is None:
        return

    def exec_module(module: ModuleType) -> None:
        try:
            del loader.exec_module
        except AttributeError:
            loader.exec_module = plain
        plain(module)
        installed(name, module)

    try:
        loader.exec_module = exec_module
    except AttributeError:  # the loader takes no attributes
        return


@entry("install.installed")
def installed(name: str, module: ModuleType) -> None:
    """Install the hooks of a module that has just been imported."""
    if switch.failed:
        return
    for hook in AFTER_IMPORT[name]:
        hook(module)
    if name == "torch" and not any(word in argument for word in HELPERS for argument in sys.orig_argv):
        history.begin_with_cuda(module.cuda)
        _connect()


_agent: list[Agent] = []


def begin(folder: str) -> Finder:
    """Start the agent; `folder` is the job's private folder. Called when the program is about to import torch."""
    agent = Agent(folder)
    loading_parts.begin(folder)
    history.wanted = os.path.exists(os.path.join(folder, CONSENT))
    _agent.append(agent)
    recorder.at_end = agent.step_ended
    switch.on_off = agent.report_off
    switch.undo.append(_recorder_off)
    os.register_at_fork(after_in_child=agent.forked)
    atexit.register(agent.ended)
    finder = Finder()
    sys.meta_path.insert(0, finder)
    return finder


def _recorder_off() -> None:
    recorder.off()
    recorder.at_end = None


def _connect() -> None:
    try:
        _agent[0].connect()
    except OSError:  # the console has ended: the program runs unwatched
        switch.off("connection", None)
