"""What loading uses that processes cannot share, such as an open file, and what it writes. A
dataset with such a thing gets no new workers."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import os
import random
import sys
import types
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from ..guard import from_outside

MAX_OBJECTS = 1000
DEPTH = 5
ITEMS = 64
"""Objects of a loader that are looked at, levels of attributes, and items of a container."""
HANDLES: dict[str, tuple[str, ...]] = {
    "zipfile": ("ZipFile", "ZipExtFile"),
    "tarfile": ("TarFile",),
    "sqlite3": ("Connection", "Cursor"),
    "socket": ("socket",),
    "h5py": ("File", "Group", "Dataset"),
    "lmdb": ("Environment", "Transaction"),
    "tables": ("File",),
    "netCDF4": ("Dataset",),
    "cv2": ("VideoCapture",),
}
"""Classes whose objects processes cannot share, by the package that defines them."""

# --- what the loader holds ------------------------------------------------------------------------


def cannot_share(name: str) -> str:
    """Why a dataset that holds `name` gets no new workers."""
    return (
        f"the dataset holds {name}, which processes cannot share:"
        f" {'move' if 'tensor' in name else 'open'} it in each worker"
    )


def shared_by(*holders: Any) -> str:
    """What processes cannot share of that which the dataset and the function that collates hold, or
    the globals that their methods name; empty where nothing was found. Reads attributes without the
    program's own `__getattr__`."""
    seen: set[int] = set()
    waiting = [(holder, DEPTH) for holder in holders]
    while waiting and len(seen) < MAX_OBJECTS:
        value, depth = waiting.pop(0)
        if id(value) in seen or isinstance(value, (type, types.ModuleType, str, bytes, int, float)):
            continue
        seen.add(id(value))
        try:
            if name := _name_of_handle(value):
                return name
            if depth:
                waiting += [(part, depth - 1) for part in _parts(value)]
        except Exception as problem:  # an object of an unknown kind may raise anything
            if from_outside(problem):
                raise
    return ""


def _parts(value: Any) -> Iterator[Any]:
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        yield from islice(value, ITEMS)
    elif kind is dict:
        yield from islice(value.values(), ITEMS)
    elif kind is functools.partial:
        yield from (value.func, *value.args, *value.keywords.values())
    elif kind is types.MethodType:
        yield from (value.__self__, value.__func__)
    elif kind is types.FunctionType:
        yield from (
            cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()
        )
        yield from (
            value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__
        )
    else:
        with contextlib.suppress(AttributeError):
            yield from islice(object.__getattribute__(value, "__dict__").values(), ITEMS)
        if kind.__module__.partition(".")[0] not in sys.stdlib_module_names | {
            "torch",
            "numpy",
            "builtins",
        }:
            yield from (
                member for member in vars(kind).values() if type(member) is types.FunctionType
            )


def _name_of_handle(value: Any) -> str:
    """What `value` is, where processes cannot share it; empty for other objects, and for files that
    are closed."""
    kind = type(value)
    if hasattr(kind, "data_ptr") and value.device.type != "cpu":
        return f"a tensor on {value.device}"
    if issubclass(kind, io.IOBase):
        closed = (
            issubclass(kind, (io.BytesIO, io.StringIO))
            or value.closed
            or value in (sys.stdout, sys.stderr)
        )
        return "" if closed else _named("the open file", getattr(value, "name", ""))
    for base in kind.__mro__:
        package = base.__module__.partition(".")[0].lstrip("_")
        if base.__name__ in HANDLES.get(package, ()):
            if package == "zipfile" and base.__name__ == "ZipFile":
                return _named("the open file", value.filename) if value.fp is not None else ""
            if package == "tarfile":
                return _named("the open file", value.name) if not value.closed else ""
            if package == "h5py":
                return (
                    _named("the open file", getattr(getattr(value, "file", None), "filename", ""))
                    if value
                    else ""
                )
            if package == "socket":
                return "an open socket" if value.fileno() >= 0 else ""
            return f"an open {package} {base.__name__}"
    return ""


def _named(what: str, name: Any) -> str:
    return (
        f"{what} {os.path.basename(os.fsdecode(name))}"
        if isinstance(name, (str, bytes)) and name
        else f"{what} of {type(name).__name__}"
    )


def state_of_generator(value: Any) -> Any:
    """The state of a random generator of Python or numpy; None for another object."""
    if isinstance(value, random.Random):
        return value.getstate()
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and isinstance(value, numpy.Generator):
        return repr(value.bit_generator.state)
    if numpy is not None and isinstance(value, numpy.RandomState):
        return repr(value.get_state())
    return None


# --- what the loading of a batch reads and writes -------------------------------------------------

WRITES = "loading prints, or writes files: workers would write in another order"


class Use(NamedTuple):
    """This process before the loading of a batch. `sockets`: the bytes that each TCP connection has
    received."""

    files: dict[str, tuple[str, int]]
    sockets: dict[tuple[int, int], int]
    written: int | None

    def reads(self) -> tuple[str, set[tuple[int, int]]]:
        """A file that was read since then and stays open, and the connections that have received
        something."""
        received = {
            key for key, count in _received().items() if count > self.sockets.get(key, count)
        }
        return _moved(self.files, _positions()), received

    def wrote(self) -> bool:
        """Whether this thread has written something since then."""
        after = _written_here()
        return self.written is not None and after is not None and after > self.written


def use() -> Use:
    """What this process has read and written until now."""
    return Use(_positions(), _received(), _written_here())


def _descriptors() -> list[str]:
    try:
        return os.listdir("/proc/self/fd")
    except OSError:
        return []


def _positions() -> dict[str, tuple[str, int]]:
    """The path and the position of each regular file that this process has open for reading, by its
    number. Empty where the system does not tell."""
    found = {}
    for number in _descriptors():
        with contextlib.suppress(OSError, ValueError, KeyError):  # closed meanwhile
            path = os.readlink(f"/proc/self/fd/{number}")
            if not path.startswith("/") or path.startswith(("/dev/", "/proc/", "/sys/", "/memfd:")):
                continue
            with open(f"/proc/self/fdinfo/{number}", encoding="ascii") as info:
                fields = dict(line.split(":\t", 1) for line in info if ":\t" in line)
            if int(fields["flags"], 8) & 3 != os.O_WRONLY:
                found[number] = (path, int(fields["pos"]))
    return found


def _moved(before: dict[str, tuple[str, int]], after: dict[str, tuple[str, int]]) -> str:
    """The name of a file whose position differs, or that was opened and read; empty where there is
    none."""
    for number, (path, position) in after.items():
        if before.get(number, (path, 0)) != (path, position):
            return os.path.basename(path)
    return ""


IPPROTO_TCP = 6
TCP_INFO = 11
RECEIVED_AT = 128
"""The field tcpi_bytes_received of Linux."""


def _received() -> dict[tuple[int, int], int]:
    """The bytes that each TCP connection of this process has received, by descriptor and inode. No
    socket object is made: Python would set its mode."""
    found: dict[tuple[int, int], int] = {}
    if sys.platform != "linux":
        return found
    library, information = ctypes.CDLL(None), ctypes.create_string_buffer(RECEIVED_AT + 8)
    for number in map(int, _descriptors()):
        size = ctypes.c_uint32(len(information))
        if library.getsockopt(
            number, IPPROTO_TCP, TCP_INFO, information, ctypes.byref(size)
        ) == 0 and size.value == len(information):
            with contextlib.suppress(OSError):
                found[number, os.fstat(number).st_ino] = int.from_bytes(
                    information.raw[RECEIVED_AT:], sys.byteorder
                )
    return found


def _written_here() -> int | None:
    """The bytes that this thread has written to files, pipes and terminals, with what was printed
    until now, without writes of one byte, with which multiprocessing wakes threads. None where the
    system does not tell. Streams of the program's own classes are left alone."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(
            OSError, ValueError
        ):  # nobody reads the pipe any longer: the program's own next line says so; or it is closed
            if type(stream) is io.TextIOWrapper:
                stream.flush()
    with (
        contextlib.suppress(OSError, ValueError, KeyError),
        open("/proc/thread-self/io", encoding="ascii") as file,
    ):
        fields = dict(line.split(": ", 1) for line in file)
        return int(fields["wchar"]) - int(fields["syscw"])
    return None
