"""Train, then print as JSON which names of modules, classes and objects hold something of the agent: {"names": [...], "objects": [...]}.

Not only for a test: `gpuconsole run --headless --quiet --summary /dev/null -- python tests/agent/programs/replaced.py` prints the list of a watched job.
"""

import contextlib
import functools
import gc
import importlib
import json
import sys
import types
import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

LIBRARIES = ("accelerate", "cloudpickle", "dill", "lightning", "logging", "safetensors.torch", "torch.distributed.checkpoint")
LIBRARIES += ("torch.utils.tensorboard", "tqdm", "transformers")
for library in LIBRARIES:
    with contextlib.suppress(ImportError):
        importlib.import_module(library)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, inputs):
        return self.layer(inputs)


def is_the_agents(value):
    """Whether a value is a function, a class or an object of the agent, or holds one as a wrapper does."""
    if isinstance(value, (staticmethod, classmethod, types.MethodType)):
        return is_the_agents(value.__func__)
    if isinstance(value, functools.partial):
        return is_the_agents(value.func)
    if isinstance(value, property):
        return any(is_the_agents(one) for one in (value.fget, value.fset, value.fdel) if one is not None)
    if isinstance(value, types.FunctionType):
        code, module = value.__code__, str(value.__globals__.get("__name__", ""))
        file = "_gpuconsole_agent" in code.co_filename or "<gpuconsole" in code.co_filename
        marks = any(str(name).startswith("_gpuconsole") for name in (*vars(value), *value.__globals__, *code.co_names))
        return file or module.startswith("_gpuconsole") or marks
    return any(str(module).startswith("_gpuconsole") for module in (type(value).__module__, isinstance(value, type) and value.__module__))


def in_modules_and_classes():
    found, seen = set(), set()
    for name, module in list(sys.modules.items()):
        if name.startswith("_gpuconsole") or not isinstance(module, types.ModuleType):
            continue
        for key, value in list(vars(module).items()):
            if key.startswith("_gpuconsole") or is_the_agents(value):
                found.add(f"{name}.{key}")
            if isinstance(value, type) and value not in seen:
                seen.add(value)
                inner = [k for k, v in list(vars(value).items()) if k.startswith("_gpuconsole") or is_the_agents(v)]
                found |= {f"{value.__module__}.{value.__qualname__}.{k}" for k in inner}
    return found


def in_objects():
    found = set()
    for value in gc.get_objects():
        if isinstance(value, (types.ModuleType, type, types.FunctionType, functools._lru_cache_wrapper)) or str(
            type(value).__module__
        ).startswith("_gpuconsole"):
            continue
        try:
            space = object.__getattribute__(value, "__dict__")
        except (AttributeError, TypeError):
            continue
        if type(space) is dict and not str(space.get("__name__", "")).startswith("_gpuconsole"):
            inner = [k for k, v in list(space.items()) if str(k).startswith("_gpuconsole") or is_the_agents(v)]
            found |= {f"{type(value).__module__}.{type(value).__qualname__}.{k}" for k in inner}
    return found


model = Net()
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.ones(640, 8)), batch_size=4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
for _ in range(3):
    for (inputs,) in loader:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
iterator = iter(loader)
next(iterator)
print(json.dumps({"names": sorted(in_modules_and_classes()), "objects": sorted(in_objects())}))
