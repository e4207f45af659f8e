"""Stamps of a program by torch's public hooks, without gpuconsole: the folder of this file stands
on PYTHONPATH of a run of the corpus.

Each process that makes steps writes PID.json into the folder STAMPS, once a second and at its end:
the number of `optimizer.step()` calls, and the seconds from the stamped step SKIPPED on, in the
thread of the steps: all, and those in the DataLoader while gradients are on, in backward passes,
and in the optimizer, which is also zero_grad and clipping. The variable LAST_STEP ends the program
after so many calls.
"""

from __future__ import annotations

import atexit
import functools
import importlib.machinery
import json
import os
import sys
import threading
import time
from typing import Any

SKIPPED = 8
LAST_STEP = int(os.environ.get("LAST_STEP", 0))
_now = time.perf_counter


class Stamps:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.calls = 0
        self.thread = 0
        self.begun = self.last = self.written = 0.0
        self.seconds = {"data_wait": 0.0, "backward": 0.0, "optimizer": 0.0}
        self.at_last = dict(self.seconds)
        self.batches = 0
        """Batches from a DataLoader while gradients are on."""
        self.updating = self.closure = False
        """Whether an optimizer steps now; whether a backward pass has run within such a step."""

    def add(self, phase: str, begun: float) -> None:
        if self.begun and threading.get_ident() == self.thread:
            self.seconds[phase] += _now() - max(begun, self.begun)

    def stepped(self) -> None:
        if os.getpid() != self.pid:  # a forked child counts for itself
            self.__init__()  # type: ignore[misc]
        self.calls += 1
        self.last = _now()
        if self.calls == SKIPPED:
            self.begun, self.thread = self.last, threading.get_ident()
        self.at_last = dict(self.seconds)
        if self.last - self.written > 1.0:
            self.write()
        if self.calls == LAST_STEP:
            sys.exit()

    def write(self) -> None:
        if self.calls and os.getpid() == self.pid:
            self.written = _now()
            told = {
                "script": sys.argv[0],
                "calls": self.calls,
                "wall_s": self.last - self.begun if self.begun else 0.0,
                **self.at_last,
            }
            told |= {"batches": self.batches, "closure": self.closure}
            with open(
                os.path.join(os.environ["STAMPS"], f"{self.pid}.json"), "w", encoding="utf-8"
            ) as file:
                json.dump(told, file)


stamps = Stamps()


def stamped(phase: str, plain: Any) -> Any:
    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        begun = _now()
        try:
            return plain(*args, **kwargs)
        finally:
            stamps.add(phase, begun)

    return call


def on_modules(module: Any) -> None:
    module.Module.zero_grad = stamped("optimizer", module.Module.zero_grad)


def on_clipping(module: Any) -> None:
    """Clipping stands between the backward pass and the update: gpuconsole counts it as a part of
    the update."""
    module.clip_grad_norm_ = stamped("optimizer", module.clip_grad_norm_)


def on_optimizer(module: Any) -> None:
    begun = [0.0]

    def before(*_: Any) -> None:
        begun[0] = _now()
        stamps.updating = True

    def after(*_: Any) -> None:
        stamps.updating = False
        stamps.add("optimizer", begun[0])
        stamps.stepped()

    module.Optimizer.zero_grad = stamped("optimizer", module.Optimizer.zero_grad)
    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)
    atexit.register(stamps.write)


def on_autograd(module: Any) -> None:
    plain = stamped("backward", module.backward)

    def backward(*args: Any, **kwargs: Any) -> Any:
        stamps.closure |= stamps.updating
        return plain(*args, **kwargs)

    module.backward = backward
    module.grad = stamped("backward", module.grad)


def on_dataloader(module: Any) -> None:
    import torch

    plain = module._BaseDataLoaderIter.__next__

    def __next__(self: Any) -> Any:
        begun = _now()
        try:
            return plain(self)
        finally:
            if torch.is_grad_enabled():
                stamps.batches += 1
                stamps.add("data_wait", begun)

    module._BaseDataLoaderIter.__next__ = __next__


HOOKS = {
    "torch.optim.optimizer": on_optimizer,
    "torch.autograd": on_autograd,
    "torch.nn.modules.module": on_modules,
    "torch.nn.utils.clip_grad": on_clipping,
    "torch.utils.data.dataloader": on_dataloader,
}


class Finder:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in HOOKS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        plain = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            plain(module)
            HOOKS[name](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if os.environ.get("STAMPS"):
    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]
