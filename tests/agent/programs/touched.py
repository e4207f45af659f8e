"""A program that looks at itself: what it can see of the agent, at some moments. It knows nothing of the agent but the begin of its names, and prints a
line of JSON for each moment. `leave`: it ends the agent at last."""

import atexit
import contextlib
import functools
import gc
import json
import linecache
import logging
import os
import signal
import socket
import sys
import threading
import types
import warnings
import weakref

WORD, FOLDER = "_gpuconsole", os.environ.get("GPUCONSOLE_AGENT", "\0")
TREE = f"{FOLDER}{os.sep}{WORD}_agent"
classes: dict[int, tuple[type, bool]] = {}
"""Each class by its identity, and whether it is one of the agent."""


def is_foreign(value, depth=4):
    """Whether a value is, or runs, code of the agent. Nothing of the value's own class runs: it may be a proxy."""
    kind = type(value)
    if issubclass(kind, (staticmethod, classmethod)):
        return is_foreign(value.__func__, depth)
    if issubclass(kind, property):
        return is_foreign(value.fget, depth)
    if issubclass(kind, functools.partial):
        return is_foreign(value.func, depth)
    if issubclass(kind, functools._lru_cache_wrapper):
        return is_foreign(value.__wrapped__, depth)
    if issubclass(kind, types.MethodType):
        return is_foreign(value.__func__, depth) or is_class_of_agent(type(value.__self__))
    if not issubclass(kind, types.FunctionType):
        return is_class_of_agent(value if issubclass(kind, type) else kind)
    code = value.__code__
    if code.co_filename.startswith((TREE, "<gpuconsole")) or any(name.startswith(WORD) for name in code.co_names):
        return True
    held = [value.__wrapped__] if "__wrapped__" in vars(value) else []
    held += [content for cell in value.__closure__ or () if type(content := inside(cell)) is types.FunctionType]
    return bool(depth) and any(is_foreign(inner, depth - 1) for inner in held)


def is_class_of_agent(cls):
    if id(cls) not in classes:
        classes[id(cls)] = cls, str(type.__getattribute__(cls, "__dict__").get("__module__")).startswith(f"{WORD}_agent")
    return classes[id(cls)][1]


def inside(cell):
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def name_of(cls):
    return f"{cls.__module__}.{cls.__qualname__}"


def all_classes():
    """The classes of the program and of its libraries."""
    found, waiting = {}, [object]
    while waiting:
        cls = waiting.pop()
        if id(cls) not in found:
            found[id(cls)] = cls
            waiting += type.__subclasses__(cls)
    return [cls for cls in found.values() if not is_class_of_agent(cls)]


def touched():
    """Where the program holds something of the agent: the names of the holder, the attribute, and what shows that two of them are the same."""
    for name, module in list(sys.modules.items()):
        if issubclass(type(module), types.ModuleType) and not name.startswith(f"{WORD}_agent"):
            yield from (([name], *rest) for rest in attributes(vars(module)))
    for cls in all_classes():
        yield from (([name_of(base) + "+" * (base is not cls) for base in cls.__mro__], *rest) for rest in attributes(vars(cls)))
    for instance in gc.get_objects():
        kind = type(instance)
        if not kind.__dictoffset__ or issubclass(kind, (type, types.ModuleType)):
            continue
        try:
            own = object.__getattribute__(instance, "__dict__")
        except Exception:
            continue
        if type(own) is dict and (found := list(attributes(own))) and not is_foreign(instance):
            yield from (([name_of(base) + "()" for base in kind.__mro__], *rest) for rest in found)


def attributes(held):
    for name, value in list(held.items()):
        if str(name).startswith(WORD) or is_foreign(value):
            yield str(name), id(value)


def descriptors():
    for number in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # that of the list itself
            continue
        yield path.partition(":")[0] if path.startswith(("socket", "pipe")) else os.path.basename(path)


class Registered:
    """The functions of `atexit`: Python compares each with the one that is to be taken away."""

    def __init__(self):
        self.functions = []
        atexit.unregister(self)

    def __eq__(self, function):
        self.functions.append(function)
        return False


def named(function):
    return str(getattr(function, "__name__", function))


def picture():
    """What the program can see of the process."""
    torch = sys.modules.get("torch")
    return {
        "touched": sorted(touched()),
        "/proc/self/fd": sorted(descriptors()),
        "/proc/self/task": len(os.listdir("/proc/self/task")),
        "threads": [thread.name for thread in threading.enumerate()],
        "os.environ": dict(os.environ),
        "sys.meta_path": [getattr(finder, "__qualname__", type(finder).__qualname__) for finder in sys.meta_path],
        "sys.path_importer_cache": sorted(sys.path_importer_cache),
        "sys.path": sys.path,
        "sys.modules": sorted(sys.modules),
        "gc.callbacks": [named(callback) for callback in gc.callbacks],
        "signals": [named(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "warnings": [str(row) for row in warnings.filters],
        "atexit": [named(function) for function in Registered().functions],
        "weakref.finalize": weakref.finalize._registered_with_atexit,
        "linecache": sorted(linecache.cache),
        "sys": sys.getswitchinterval(),
        "functions of Python": [
            named(function) for function in (sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile())
        ],
        "hooks of Python": [
            named(hook) for hook in (sys.excepthook, sys.displayhook, sys.breakpointhook, sys.unraisablehook, threading.excepthook)
        ],
        "tools": [monitoring.get_tool(number) for number in range(6)] if (monitoring := getattr(sys, "monitoring", None)) else [],
        "limits": [sys.getrecursionlimit(), socket.getdefaulttimeout(), list(gc.get_threshold()), gc.isenabled(), sys.flags.optimize],
        "modes": [torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()] if torch else [],
        "torch": [torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.is_grad_enabled(), torch.initial_seed()]
        if torch
        else [],
    }


def look(moment):
    found = picture()
    print(json.dumps({"moment": moment, **found}), flush=True)


look("before torch")

import torch  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

for library in ("tqdm", "safetensors.torch", "torch.utils.tensorboard", "cloudpickle", "dill", "torch.distributed.checkpoint"):
    with contextlib.suppress(ImportError):
        __import__(library)

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.inner(x)


look("after torch")
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
loader = DataLoader(TensorDataset(torch.randn(400, 8), torch.randint(0, 4, (400,))), batch_size=8, shuffle=True)
log = logging.getLogger("train")
log.addHandler(logging.NullHandler())
for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    log.warning("loss %f", loss)
    if step == 40:
        look("in training")
del step, x, y

if "leave" in sys.argv:
    agent = sys.modules.get(f"{WORD}_agent.hooks.install")
    if agent is not None:
        agent.switch.off("", None)
    look("off")
    if agent is not None:
        agent.leave(None)
    del agent
    gc.collect()
    look("left")
