"""gpuconsole: run a GPU workload, see where its time goes, apply a fix live, and prove that it
helped."""

# the types are in __init__.pyi
__all__ = ["Session", "WatchError", "__version__", "load_ipython_extension", "watch"]
__version__ = "0.1.0"

_MODULES = {
    "Session": "session",
    "WatchError": "console",
    "load_ipython_extension": "magic",
    "watch": "session",
}
"""What a program or a notebook finds here, by name: the module in `gpuconsole.notebook`. It is
imported when it is asked for: the console needs none of it."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'gpuconsole' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"gpuconsole.notebook.{_MODULES[name]}"), name)
