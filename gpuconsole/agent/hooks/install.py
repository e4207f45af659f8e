"""Installs each hook when the program itself has imported the module that the hook is for."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..forks import in_forked_children
from . import calls, data, graphs, optimizer, passes, pickles
from .changes import loader
from .evidence import communication, loading_parts
from .evidence.memory_lines import CONSENT_FILE, history
from .guard import entry, put_back, put_under_other_names, switch, wrappers_without_level
from .job import Agent
from .recorder import get_ident
from .sampler import sampler
from .watch import recorder

AFTER_IMPORT: dict[str, list[Callable[[Any], None]]] = {}
for _module in (calls, passes, optimizer, data, graphs, pickles, communication, loading_parts):
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


def begin(folder: str, token: str, joined: bool = False) -> Finder:
    """Start the agent; `folder` is the job's private folder. Called when the program is about to import torch. It may have imported other modules that
    have hooks. `joined`: the program itself has started the agent, and ends it by `leave`."""
    agent = Agent(folder, token, joined)
    loading_parts.begin(folder)
    history.wanted = os.path.exists(os.path.join(folder, CONSENT_FILE))
    _agent.append(agent)
    recorder.at_end = agent.step_ended
    switch.on_off = agent.report_off
    switch.undo += [_recorder_off, sampler.stop, sampler.close, agent.close, agent.forget_program, history.stop]
    in_forked_children(agent.forked)
    atexit.register(agent.ended)
    finder = Finder()
    sys.meta_path.insert(0, finder)
    present = [name for name in AFTER_IMPORT if name in sys.modules]
    for name in sorted(present, key=lambda name: name == "torch"):  # torch itself takes names of its parts
        installed(name, sys.modules[name])
    return finder


def begin_here(folder: str, token: str) -> None:
    """Start the agent in a program that may have imported torch, and made its model, optimizer and DataLoaders. `leave` ends the agent."""
    begin(folder, token, joined=True)
    put_under_other_names()
    if "torch" in sys.modules:
        _adopt_objects()


@entry("install.adopt")
def _adopt_objects() -> None:
    """Watch what the program has made before; one look at all objects. Modules are found after the first step, as ever."""
    torch = sys.modules["torch"]
    dataloader, ddp = (sys.modules.get(name) for name in ("torch.utils.data.dataloader", "torch.nn.parallel.distributed"))
    bases = [torch.optim.Optimizer]
    bases += [dataloader.DataLoader, dataloader._BaseDataLoaderIter] if dataloader is not None else []
    bases += [ddp.DistributedDataParallel] if ddp is not None else []
    everything = gc.get_objects()
    kinds = {id(kind) for kind in {id(kind): kind for kind in map(type, everything)}.values() if issubclass(kind, tuple(bases))}
    objects = [candidate for candidate in everything if id(type(candidate)) in kinds]
    del everything
    for earlier in objects:
        if isinstance(earlier, torch.optim.Optimizer):
            optimizer.had_made(earlier)
        elif ddp is not None and isinstance(earlier, ddp.DistributedDataParallel):
            communication.exchanges.made(earlier)
    if dataloader is not None:
        loaders = [earlier for earlier in objects if isinstance(earlier, dataloader.DataLoader)]
        data.had_made(loaders, [earlier for earlier in objects if isinstance(earlier, dataloader._BaseDataLoaderIter)])


def trains_elsewhere() -> bool:
    """Whether another thread than the present one trains."""
    return recorder.thread not in (0, get_ident())


def is_off() -> bool:
    return switch.failed


def leave(problem: BaseException | None) -> None:
    """End the agent. The program goes on: its own settings are in force again, and its modules and classes are as before. `problem`: what the program
    has raised. Not while another thread trains."""
    try:
        _agent[0].leave(problem)
    finally:
        switch.off("", None)
        served = loader.leave()
        data.forget_iterators()
        graphs.forget()
        put_back(lambda holder: served and getattr(holder, "__module__", "") == loader.DATALOADER)
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Finder)]
        atexit.unregister(_agent[0].ended)


def _recorder_off() -> None:
    recorder.off()
    recorder.at_end = None


def _connect() -> None:
    try:
        _agent[0].connect()
    except OSError:  # the console has ended: the program runs unwatched
        switch.off("connection", None)
