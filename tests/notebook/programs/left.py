"""What this process holds, for the programs of the tests."""

import gc
import os
import sys
import threading
from types import ModuleType


def left():
    """Descriptors, functions of the garbage collector, threads, modules of gpuconsole, and by name the objects and modules of agents."""
    gc.collect()
    objects = {}
    for candidate in gc.get_objects():
        kind = type(candidate)
        module = candidate.__name__ if kind is ModuleType else kind.__module__
        if isinstance(module, str) and module.startswith("gpuconsole.agent.hooks"):
            name = module if kind is ModuleType else kind.__name__
            objects[name] = objects.get(name, 0) + 1
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "callbacks": len(gc.callbacks),
        "threads": threading.active_count(),
        "modules": [name for name in sys.modules if name.startswith("gpuconsole")],
        "agent": objects,
    }
