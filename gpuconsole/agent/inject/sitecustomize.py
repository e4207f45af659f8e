"""The start of the agent in a Python process of a user's job. The folder of this file is first on
PYTHONPATH; the console made it for one job.

This file imports nothing that Python has not loaded by now: most Python processes of a job never
train. The rest of the agent is loaded when the program imports torch. The module gives way to the
`sitecustomize` that it hides.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _note(what: str) -> None:
    """Append a line to the file `seen`: the console reports from it what the job's Python processes
    are, also where nothing else works."""
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
            return _unseen(_load_agent, self)
        if name in _OTHERS and name not in self._looked_for:
            import atexit

            self._looked_for.append(name)
            atexit.register(self.note_others)
        elif self._looked_for:
            self.note_others()
        return None

    def note_others(self) -> None:
        """Note which of _OTHERS the program has imported: libraries look for these modules without
        importing them, to learn whether they exist."""
        for name in [name for name in self._looked_for if name in sys.modules]:
            self._looked_for.remove(name)
            _try_note(name)


def _unseen(function: "Any", *arguments: "Any") -> "Any":
    """Call a function so that no trace function, profiler or coverage of the program sees it:
    Python shows a tool of sys.monitoring nothing of what runs while it calls a tool. Before Python
    3.12, and where no id for a tool is free, the function is just called."""
    monitoring = getattr(sys, "monitoring", None)
    tool = (
        next((tool for tool in (5, 3, 4) if monitoring.get_tool(tool) is None), None)
        if monitoring is not None
        else None
    )
    if monitoring is None or tool is None:
        return function(*arguments)
    results: list[Any] = []

    def door() -> None: ...

    start = monitoring.events.PY_START
    monitoring.use_tool_id(tool, "gpuconsole")
    try:
        monitoring.register_callback(
            tool, start, lambda code, offset: results.append(function(*arguments))
        )
        monitoring.set_local_events(tool, door.__code__, start)
        door()
    finally:
        monitoring.set_local_events(tool, door.__code__, 0)
        monitoring.register_callback(tool, start, None)
        monitoring.free_tool_id(tool)
    return results[0] if results else function(*arguments)


def _renamed(code: "Any", file: str) -> "Any":
    """Return a copy of a code object, and of the code objects within it, with `file` as the name of
    its file."""
    constants = tuple(
        _renamed(constant, file) if hasattr(constant, "co_code") else constant
        for constant in code.co_consts
    )
    return code.replace(co_filename=file, co_consts=constants)


def _loader_of(folder: str) -> "Any":
    """The loader of the modules in the agent's folder. It gives their code names of files that do
    not exist: coverage and debuggers leave such code out."""
    from importlib.machinery import SourceFileLoader

    class Loader(SourceFileLoader):
        def get_code(self, fullname: str) -> "Any":
            return _renamed(super().get_code(fullname), "<gpuconsole>" + self.path[len(folder) :])

    return Loader


def _load_agent(finder: "Any") -> "Any":
    """Load the agent as the package `_gpuconsole_agent`, without a trace in `sys.path`. Returns the
    spec of torch where the agent must change it (Python 3.11); else None, and Python's own finders
    go on."""
    try:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        import importlib.util
        from importlib.machinery import FileFinder

        name = "_gpuconsole_agent"
        folder = os.path.join(_FOLDER, name)
        loader = _loader_of(folder)
        for place, _, _ in os.walk(folder):
            sys.path_importer_cache[place] = FileFinder(place, (loader, [".py"]))
        spec = importlib.util.spec_from_file_location(
            name,
            loader=loader(name, os.path.join(folder, "__init__.py")),
            submodule_search_locations=[folder],
        )
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
            # Python 3.10 or newer, which the agent needs; the note says the version
            if hasattr(sys, "orig_argv"):
                for function in (
                    _Finder.__init__,
                    _Finder.find_spec,
                    _Finder.note_others,
                    _unseen,
                    _renamed,
                    _loader_of,
                    _load_agent,
                    _note,
                    _try_note,
                ):
                    function.__code__ = _renamed(
                        function.__code__, "<gpuconsole>" + os.sep + "sitecustomize.py"
                    )
                sys.meta_path.insert(0, _Finder())
    except Exception:
        # the console has ended and its folder is gone: the program runs as without us
        pass


def _give_way() -> None:
    """Run the `sitecustomize` that this file hides, under its own name. Raises what that module
    raises; Python reports it as usual."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find("sitecustomize", None) if find is not None else None
        if spec is not None and spec.loader is not None:
            import importlib.util

            module = importlib.util.module_from_spec(spec)
            sys.modules["sitecustomize"] = module
            spec.loader.exec_module(module)
            return
    # as without us: `site` ignores this error
    raise ImportError("there is no sitecustomize", name="sitecustomize")


_start()
_give_way()
