"""The start of the agent in a Python process of a user's job. The folder of this file is first on PYTHONPATH; the console made it for one job.

This file imports nothing that Python has not loaded by now: most Python processes of a job never train. The rest of the agent is loaded when the
program imports torch. The module gives way to the `sitecustomize` that it hides.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _note(what: str) -> None:
    """Append a line to the file `seen`: the console reports from it what the job's Python processes are, also where nothing else works."""
    version = ".".join(map(str, sys.version_info[:3]))
    line = f"{os.getpid()}\t{what}\t{version}\t{' '.join(getattr(sys, 'orig_argv', ())[1:3])}\n"
    target = os.open(os.path.join(_FOLDER, "seen"), os.O_WRONLY | os.O_APPEND)
    try:
        os.write(target, line.encode("utf-8", "replace"))
    finally:
        os.close(target)


def _try_note(what: str) -> None:
    try:
        _note(what)
    except OSError:  # the console has ended
        return


_OTHERS = ("jax", "tensorflow", "numpy")
"""With these a program may train without torch; the agent cannot watch such a program."""


class _Finder:
    """Loads the agent when the program imports torch. Notes an import of _OTHERS."""

    def __init__(self) -> None:
        self._looked_for: list[str] = []

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name == "torch":
            return _load_agent(self)
        if name in _OTHERS and name not in self._looked_for:
            import atexit

            self._looked_for.append(name)
            atexit.register(self.note_others)
        elif self._looked_for:
            self.note_others()
        return None

    def note_others(self) -> None:
        """Note which of _OTHERS the program has imported: libraries look for these modules without importing them, to learn whether they exist."""
        for name in [name for name in self._looked_for if name in sys.modules]:
            self._looked_for.remove(name)
            _try_note(name)


def _load_agent(finder: "Any") -> "Any":
    """Load the agent as the package `_gpuconsole_agent`, without a trace in `sys.path`. Returns the spec of torch where the agent must
    change it (Python 3.11); else None, and Python's own finders go on."""
    try:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        import importlib.util

        name = "_gpuconsole_agent"
        folder = os.path.join(_FOLDER, name)
        spec = importlib.util.spec_from_file_location(name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])
        assert spec is not None and spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules[name] = package
        spec.loader.exec_module(package)
        token = os.environ.get("GPUCONSOLE_TOKEN", "")
        finds_torch = importlib.import_module(name + ".hooks.install").begin(_FOLDER, token)
        return finds_torch.find_spec("torch") if finds_torch is not None else None
    except Exception as problem:  # the program comes first, whatever is wrong with the agent
        _try_note(f"failed: {problem!r}")
        return None


def _start() -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _FOLDER]
    try:
        if os.environ.get("GPUCONSOLE_AGENT") == _FOLDER:
            _note("python")
            if hasattr(sys, "orig_argv"):  # Python 3.10 or newer, which the agent needs; the note says the version
                sys.meta_path.insert(0, _Finder())
    except Exception:  # the console has ended and its folder is gone: the program runs as without us
        pass


def _give_way() -> None:
    """Run the `sitecustomize` that this file hides, under its own name. Raises what that module raises; Python reports it as usual."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find("sitecustomize", None) if find is not None else None
        if spec is not None and spec.loader is not None:
            import importlib.util

            module = importlib.util.module_from_spec(spec)
            sys.modules["sitecustomize"] = module
            spec.loader.exec_module(module)
            return
    raise ImportError("there is no sitecustomize", name="sitecustomize")  # as without us: `site` ignores this error


_start()
_give_way()
