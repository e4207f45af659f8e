"""Starts and ends the agent in a process, and shows it the functions of each module that the
program imports."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from ..forks import in_forked_children
from . import calls, data, graphs, memory, optimizer, passes
from .borders import older
from .borders.border import Border, NotedCall
from .changes import loader
from .evidence import communication, loading_parts
from .evidence.memory_lines import CONSENT_FILE, history
from .guard import put_back, switch, wrappers_without_level
from .job import Agent
from .recorder import get_ident
from .sampler import sampler
from .watch import recorder

if sys.version_info >= (3, 12):
    from .borders.monitor import Monitor

BORDERS: dict[str, list[Border | NotedCall]] = {
    "torch.autograd.profiler": [],
    "torch.nn.modules.module": [],
}
"""What is to be seen of a module, by the module's name."""
for _part in (calls, passes, optimizer, data, graphs, memory, communication, loading_parts):
    for _border in _part.BORDERS:
        BORDERS.setdefault(_border.module, []).append(_border)
AT_IMPORT: dict[str, Callable[[Any], None]] = {
    "torch": calls.on_torch,
    "torch._dynamo.eval_frame": calls.on_dynamo,
}
"""What else is done once a module is imported."""

HELPERS = ("--multiprocessing-fork", "compile_worker", "resource_tracker", "forkserver")
"""Words in the command line of helper processes: they connect only if they train."""


class Imports:
    """What happens as the program imports a module. `see` shows the functions of a module to what
    sees borders; None where nothing does."""

    def __init__(self) -> None:
        self.see: Callable[[Any, Iterable[Border | NotedCall]], None] | None = None
        self.hooks: dict[str, Callable[[Any], None]] = dict(AT_IMPORT)
        self._known: set[str] = set()

    def imported(self, name: str, module: Any) -> None:
        """The program has imported a module."""
        if (
            (name not in BORDERS and name not in self.hooks)
            or name in self._known
            or not isinstance(module, ModuleType)
        ):
            return
        self._known.add(name)
        if self.see is not None and name in BORDERS:
            self.see(module, BORDERS[name])
        if name in self.hooks:
            self.hooks[name](module)
        if name == "torch" and not any(
            word in argument for word in HELPERS for argument in sys.orig_argv
        ):
            history.begin_with_cuda(module.cuda)
            _connect()


class Finder:
    """On Python 3.11: lets the import system find a module as ever, and runs `imported` once the
    module's code has run."""

    def __init__(self, imports: Imports) -> None:
        self._imports = imports

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        if name not in self._imports.hooks:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                _hook_into(spec, name, self._imports)
                return spec
        return None


@wrappers_without_level
def _hook_into(spec: Any, name: str, imports: Imports) -> None:
    """Make the loader of `spec` call `imports`, once. A loader of a kind that we do not know stays
    as it is."""
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
        try:
            imports.imported(name, module)
        except Exception as problem:
            if switch.off("install.imported", problem):
                raise

    try:
        loader.exec_module = exec_module
    except AttributeError:  # the loader takes no attributes
        return


_agent: list[Agent] = []
_monitors: list[Any] = []


def begin(folder: str, token: str, joined: bool = False) -> Any:
    """Start the agent; `folder` is the job's private folder. Called when the program is about to
    import torch. `joined`: the program itself has started the agent, and ends it by `leave`; it may
    have imported torch, and made its model, optimizer and DataLoaders. Returns what finds torch in
    place of Python's own finders, where that is needed; else None."""
    agent = Agent(folder, token, joined)
    loading_parts.begin_in_worker(folder)
    history.wanted = os.path.exists(os.path.join(folder, CONSENT_FILE))
    _agent.append(agent)
    recorder.at_end = agent.step_ended
    switch.on_off = agent.report_off
    switch.undo += [
        _recorder_off,
        sampler.stop,
        sampler.close,
        agent.close,
        agent.forget_program,
        history.stop,
    ]
    in_forked_children(agent.forked)
    atexit.register(agent.ended)
    imports = Imports()
    finder = None if _monitor(imports) else _older(imports)
    # with torch the agent connects
    for name in sorted([*BORDERS, *imports.hooks], key=lambda name: name == "torch"):
        if name in sys.modules:
            imports.imported(name, sys.modules[name])
    return finder


def _monitor(imports: Imports) -> bool:
    """Whether Python shows the agent the borders by itself."""
    if sys.version_info < (3, 12):
        return False
    monitor = Monitor(imports.imported)
    if not monitor.begin():
        return False
    imports.see = monitor.see
    switch.undo.append(monitor.end)
    _monitors.append(monitor)
    return True


def _older(imports: Imports) -> Finder:
    """See the borders that Python 3.11 can show."""
    imports.hooks |= older.HOOKS
    switch.notes.append(older.COARSER)
    finder = Finder(imports)
    sys.meta_path.insert(0, finder)
    switch.undo.append(lambda: sys.meta_path.remove(finder) if finder in sys.meta_path else None)
    return finder


def trains_elsewhere() -> bool:
    """Whether another thread than the present one trains."""
    return recorder.thread not in (0, get_ident())


def is_off() -> bool:
    return switch.failed


def leave(problem: BaseException | None) -> None:
    """End the agent. The program goes on: its own settings are in force again, and its modules and
    classes are as before. `problem`: what the program has raised. Not while another thread
    trains."""
    try:
        _agent[0].leave(problem)
    finally:
        switch.off("", None)
        served = loader.leave()
        put_back(lambda holder: served and getattr(holder, "__module__", "") == loader.DATALOADER)
        atexit.unregister(_agent[0].ended)


def _recorder_off() -> None:
    recorder.off()
    recorder.at_end = None


def _connect() -> None:
    try:
        _agent[0].connect()
    except OSError:  # the console has ended: the program runs unwatched
        switch.off("connection", None)
