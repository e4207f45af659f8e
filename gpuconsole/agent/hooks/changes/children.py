"""Keeps the program from noticing the worker processes of a change, which are children of the program."""

from __future__ import annotations

import ctypes
import dis
import functools
import io
import os
import signal
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, cast

from ..watch import is_program, place_name
from .state import written, written_by_worker

# --- what the program would notice ---------------------------------------------------------------------------

WAITS = frozenset(("wait", "wait3", "waitpid", "wait4", "waitid"))
"""Functions of `os` that wait for child processes."""
OF_ONE = frozenset(("waitpid", "wait4"))
"""The functions among WAITS that wait for one process, unless the process ID is -1."""
ANY_KIND = frozenset(("P_ALL", "P_PGID"))
"""The kinds of ID with which `os.waitid` waits for more than one process."""


def handles_children() -> bool:
    """Whether the program has a handler of SIGCHLD, also one that torch's handler calls."""
    handler: Any = signal.getsignal(signal.SIGCHLD)
    while str(getattr(handler, "__module__", "")).startswith("torch."):
        handler = next((cell.cell_contents for cell in getattr(handler, "__closure__", None) or () if callable(cell.cell_contents)), None)
    return callable(handler)


def waits_for_children() -> str:
    """Find the line where the program waits for any of its child processes, as with `os.wait()`; empty without such a line. Does not look at code of
    libraries, or of modules that are loaded later."""
    seen: set[int] = set()
    for code, names in _code_of_program():
        if id(code) not in seen and (place := _wait_in(code, names, seen)):
            return place
    return ""


def _code_of_program() -> Iterator[tuple[types.CodeType, dict[str, Any]]]:
    """The code that runs now, in all threads, and the functions of the program's modules; each with its global variables."""
    for frame in list(sys._current_frames().values()):
        here: types.FrameType | None = frame
        while here is not None:
            yield here.f_code, here.f_globals
            here = here.f_back
    for name, module in list(sys.modules.items()):
        names = _held_by(module)
        if name == "__main__" or is_program(str(names.get("__file__") or "<")):
            for value in list(names.values()):
                members = (
                    list(_held_by(value).values())
                    if issubclass(type(value), type) and _held_by(value).get("__module__") == name
                    else [value]
                )
                for function in map(_plain_function, members):
                    if function is not None:
                        yield function.__code__, function.__globals__


def _held_by(holder: Any) -> Mapping[str, Any]:
    """The names in a module or a class. No code of the program runs: a module that is loaded at its first use stays as it is."""
    if issubclass(type(holder), type):
        return cast("Mapping[str, Any]", type.__dict__["__dict__"].__get__(holder))
    return cast("Mapping[str, Any]", object.__getattribute__(holder, "__dict__")) if issubclass(type(holder), types.ModuleType) else {}


def _plain_function(value: Any) -> types.FunctionType | None:
    """Return the function behind a class or static method, a property or a wrapper; None for other objects."""
    for _ in range(8):
        if type(value) in (types.FunctionType, functools._lru_cache_wrapper) and "__wrapped__" in vars(value):
            value = vars(value)["__wrapped__"]
        elif type(value) is types.FunctionType:
            return value
        elif type(value) in (staticmethod, classmethod):
            value = value.__func__
        elif type(value) is property:
            value = value.fget
        else:
            return None
    return None


def _wait_in(code: types.CodeType, names: dict[str, Any], seen: set[int]) -> str:
    """Return the line in `code`, or in a function that `code` defines, that waits for any child; empty without such a line."""
    if id(code) in seen or not is_program(code.co_filename):
        return ""
    seen.add(id(code))
    if not WAITS.isdisjoint(code.co_names):
        line, before = code.co_firstlineno, ""
        names = dict(names)
        for instruction in dis.get_instructions(code):
            line = _line_of(instruction) or line
            if instruction.argval in WAITS and _is_of_os(instruction, before, names) and _is_for_any(instruction.argval, code):
                return place_name(code.co_filename, line)
            if before == "os" and instruction.opname.startswith("STORE_"):  # `import os as system` in a function
                names[instruction.argval] = os
            before = instruction.argval if instruction.opname.startswith(("LOAD_", "IMPORT_NAME")) else ""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType) and (place := _wait_in(constant, names, seen)):
            return place
    return ""


def _line_of(instruction: dis.Instruction) -> int | None:
    if sys.version_info >= (3, 13):
        return instruction.line_number
    return instruction.starts_line


def _is_of_os(instruction: dis.Instruction, before: Any, names: dict[str, Any]) -> bool:
    """Return whether an instruction loads a function of `os`, and not a method of another object with the same name. `before`: the name that the previous
    instruction loaded."""
    if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
        return instruction.argval != "wait" or before in ("os", "posix") or (isinstance(before, str) and names.get(before) is os)
    return instruction.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME")) and names.get(instruction.argval) is getattr(os, instruction.argval)


def _is_for_any(name: str, code: types.CodeType) -> bool:
    if name in OF_ONE:
        return -1 in code.co_consts
    return name != "waitid" or not ANY_KIND.isdisjoint(code.co_names)


# --- what the workers keep to themselves ---------------------------------------------------------------------

OF_TORCH = (signal.SIGTERM, signal.SIGBUS, signal.SIGSEGV, signal.SIGFPE)
"""Signals for which torch's workers have handlers of their own."""

PR_SET_PDEATHSIG = 1


def begin_worker(program_own: Any, hides: bool, ends_with_thread: bool, number: int) -> None:
    """Prepare a worker. Runs in place of the program's `worker_init_fn`, and calls it. The worker leaves the process group of the program, so a signal to
    that group does not reach it, and it runs no signal handler of the program. `hides`: the worker prints into a file in memory, which `output_of` reads.
    `ends_with_thread`: the system kills the worker once the thread that started it has ended."""
    with suppress(OSError):
        os.setpgid(0, 0)
    if ends_with_thread:  # else a signal that ends the whole group of the program leaves the worker for 5 s, with the program's sockets
        with suppress(AttributeError, OSError):  # a system without this function
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    signal.set_wakeup_fd(-1)  # the other end is in the program
    for number_of_signal in signal.valid_signals():
        if number_of_signal not in OF_TORCH and callable(signal.getsignal(number_of_signal)):
            signal.signal(number_of_signal, _handle_nothing)
    hidden = _hide_output() if hides else None
    if program_own is not None:
        program_own(number)
    with suppress(OSError):  # the program's function may have closed it, or put a file of the program in its place
        if hidden is not None and os.path.samestat(hidden, os.fstat(1)):
            os.lseek(1, 0, os.SEEK_SET)  # what the beginning of a worker prints is no output of the program
            os.ftruncate(1, 0)
            os.utime(1, ns=(written() or 0, 0))  # the time of the last access says it: nobody else looks at this file


def _handle_nothing(*_: Any) -> None:
    """Take the place of a handler of the program. SIG_IGN would also hold for the programs that the worker starts, and would lose their exit codes."""


def _hide_output() -> os.stat_result | None:
    """Let descriptors 1 and 2 be a file in memory without a name, and let streams write to it at once. None where this is not possible."""
    try:
        file = os.open("/dev/shm", os.O_RDWR | os.O_TMPFILE, 0o600)
    except (OSError, AttributeError):
        return None
    os.dup2(file, 1)
    os.dup2(file, 2)
    if file > 2:  # 1 or 2 where the program has closed its own
        os.close(file)
    for stream in (sys.stdout, sys.__stdout__, sys.stderr, sys.__stderr__):
        if type(stream) is io.TextIOWrapper:
            with suppress(ValueError, OSError):  # closed, or detached
                stream.reconfigure(write_through=True)
    return os.fstat(1)


class Output(NamedTuple):
    """What a worker has printed and written since the end of `begin_worker`. `printed`: bytes. `written`: the bytes that its main thread has written, also to
    files; 0 where the system does not count them."""

    printed: int = 0
    written: int = 0


def output_of(pid: int) -> Output:
    """The output of a worker whose output is hidden."""
    printed = before = 0
    hidden = _of_descriptor(f"/proc/{pid}/fd/1")
    own = _of_descriptor(1)
    if hidden is not None and (own is None or not os.path.samestat(hidden, own)):
        printed, before = hidden.st_size, hidden.st_atime_ns
    return Output(printed, (written_by_worker(pid) or before) - before)


def _of_descriptor(file: str | int) -> os.stat_result | None:
    """Return the status of an open file; None where the descriptor is closed."""
    try:
        return os.stat(file)
    except OSError:
        return None
