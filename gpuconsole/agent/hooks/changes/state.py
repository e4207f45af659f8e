"""The state of a dataset: a bounded print of its attributes, and what its processes cannot share, such as an open file."""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import io
import logging
import math
import os
import random
import sys
import types
import weakref
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any, NamedTuple

from ...free_memory import host_bytes
from ..guard import from_outside
from ..watch import is_program

MOST, DEPTH = 1500, 8
"""Objects of a dataset that are looked at, and levels of attributes."""
ITEMS = 32
"""Items of a container that are looked at, at each end."""
EXACT = (int, bool, str, bytes, type(None), range, type(...))
"""Classes whose objects are equal only if they hold the same."""
PLAIN = (*EXACT, float, complex, slice)
_EXACT, _PLAIN = frozenset(map(id, EXACT)), frozenset(map(id, PLAIN))
"""By identity: the class of an object of the program may have no hash, or one of its own."""
WHOLE, WHOLE_BYTES = 2_000_000, 64e6
"""Items of a container and bytes of an array that a whole look takes: about 50 ms."""
BUILTIN = (list, tuple, dict, set, frozenset)
"""Containers without attributes."""
BY_IDENTITY = (type, types.ModuleType, types.BuiltinFunctionType, logging.Logger, logging.LoggerAdapter, logging.Handler)
"""What is not looked into. Workers may write to the files of a logger."""
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
CODE = (type, types.FunctionType, types.ModuleType, types.MethodType, staticmethod, classmethod, property)
COMPILED = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType)
CONSTANT = ("torch", "numpy", "typing", "re")
"""Packages whose objects never change if they have no attributes, for example a dtype."""
NUMBERS = (int, float, complex, bool)
OBJECT_BYTES = 1e6
"""The memory of a cached object of an unknown class, such as an image: a guess on the safe side."""


class Contents(NamedTuple):
    """A list or a dictionary at one moment. `first` and `last`: the identities of some of its values, 0 for None."""

    holder: Any
    length: int
    first: tuple[int, ...]
    last: tuple[int, ...]

    def has_grown_since(self, before: Contents) -> bool:
        """Whether there are more values than `before`, or values in place of None, and whether the others are still there."""
        if self[1:] == before[1:] or self.length < before.length:
            return False
        pairs = list(zip(before.first, self.first, strict=False))
        if self.length == before.length:
            pairs += zip(before.last, self.last, strict=True)
        return all(was in (0, value) for was, value in pairs)

    def value_bytes(self) -> float:
        """The memory of one value, about; 0 where a number is among the values."""
        values = self.holder.values() if isinstance(self.holder, dict) else self.holder
        sizes = [_bytes_of(value) for value in (*islice(values, 2 * ITEMS), *islice(reversed(values), ITEMS)) if value is not None]
        return max(sizes) if sizes and all(sizes) else 0.0


class State(NamedTuple):
    """`print`: equal for two equal states. `complete`: whether the print has all that the attributes hold. `shared`: what processes cannot share, with its
    name; empty where there is nothing. `contents`: of the lists and dictionaries, by identity."""

    print: tuple[Any, ...]
    complete: bool
    shared: str
    contents: dict[int, Contents]

    def differs(self, before: State) -> bool:
        """Whether this state is another one than `before`. A cache, which has no print, may have grown only."""
        return self.print != before.print or any(
            contents.length < before.contents[key].length for key, contents in self.contents.items() if key in before.contents
        )

    def filled_since(self, before: State) -> dict[int, float]:
        """The lists and dictionaries that got more data since `before` and have lost none, by identity, with the bytes of a value. Data is no number: a
        dictionary of numbers may count how often a sample was used, and the next one may depend on that."""
        grown = [
            contents for key, contents in self.contents.items() if key in before.contents and contents.has_grown_since(before.contents[key])
        ]
        sizes = {id(contents.holder): contents.value_bytes() for contents in grown}
        return {key: size for key, size in sizes.items() if size}


def state_of_samplers(loader: Any, whole: bool = False) -> State | None:
    """The state of what gives the indices of `loader`, as far as it is the program's own; None for torch's samplers, which look at nothing but their
    generator. `whole`: with all numbers of long lists and arrays."""
    batches = getattr(loader, "batch_sampler", None)
    samplers = [getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)]
    own = {id(sampler): sampler for sampler in samplers if sampler is not None and _package(type(sampler)) != "torch"}
    if not own:
        return None
    look = _Look((), whole, strict=True)
    try:
        for sampler in own.values():
            look.add(sampler, DEPTH)
        look.add_used_by_all()
    except Exception as problem:  # as in `state_of`
        if from_outside(problem):
            raise
        look.complete = False
    return State(tuple(look.print), look.complete, look.shared, look.contents)


def state_of(dataset: Any, caches: Collection[int] = ()) -> State:
    """Look at the attributes of `dataset`, and at their attributes, without the program's own `__getattr__`. `caches`: the identities of lists and
    dictionaries whose contents do not count."""
    look = _Look(caches)
    try:
        look.add(dataset, DEPTH)
        look.add_used(type(dataset))
    except Exception as problem:  # a class may define what equality of its classes is
        if from_outside(problem):
            raise
        look.complete = False
    return State(tuple(look.print), look.complete, look.shared, look.contents)


class _Look:
    def __init__(self, caches: Collection[int], whole: bool = False, strict: bool = False) -> None:
        """`strict`: the look also compares the objects other than data that the functions of a class use. An object that cannot be compared makes the look
        incomplete."""
        self.print: list[Any] = []
        self.complete, self.shared = True, ""
        self._whole, self._strict = whole, strict
        self._users: list[Any] = []
        """The functions and the classes that a strict look has met."""
        self.contents: dict[int, Contents] = {}
        self._caches = caches
        self._seen: dict[int, int] = {}
        self._held: list[Any] = []
        """Objects whose identity was noted, so that no other object gets it meanwhile."""

    def add(self, value: Any, depth: int) -> None:
        kind = type(value)
        if kind in PLAIN:
            self.print.append((kind, repr(value) if kind in (float, complex, slice) else value))  # nan is not equal to itself
            return
        if kind is tuple and len(value) <= ITEMS and _all_exact(value):  # such as a path with its label: a dataset has many
            self._print_all(value)
            return
        if id(value) in self._seen:
            self.print.append(self._seen[id(value)])
            return
        if len(self._seen) >= MOST or not depth:
            self.complete = False
            return
        self._seen[id(value)] = len(self._seen)
        self._held.append(value)
        self.print.append(id(value) if issubclass(kind, BY_IDENTITY) else id(kind))
        try:
            self._add(value, kind, depth - 1)
        except Exception as problem:  # an object of an unknown kind may raise anything
            if from_outside(problem):
                raise
            self.complete = False

    def add_used(self, user: Any) -> None:
        """Look at the attributes of a class of the program, and at the global variables that its functions name: numbers, containers and random generators.
        `user`: the class, or a function."""
        used = _used(user)
        self.complete = self.complete and not (self._strict and used.more)
        for holder, name in used.names:
            value = _value_of(holder, name)
            if _is_data(value):
                self.print.append(name)
                self.add(value, 2)
            elif self._strict and value is not None:
                self.print.append(name)
                self._add_other(value)

    def add_used_by_all(self) -> None:
        """Call `add_used` for all functions and classes that the look has met, and for those that it meets meanwhile."""
        done: set[int] = set()
        while (user := next((user for user in self._users if id(user) not in done), None)) is not None:
            if len(done) >= FUNCTIONS:
                self.complete = False
                return
            done.add(id(user))
            self.add_used(user)

    def _add_other(self, value: Any) -> None:
        """Look at an object other than data that a function uses. A function counts by its identity, because the look goes on to what that function uses;
        another object counts by its content."""
        kind = type(value)
        if issubclass(kind, CODE):
            self.print.append(id(value))
            if issubclass(kind, type):
                self._users.append(value)
        elif issubclass(kind, COMPILED):
            self.complete = self.complete and _is_known(str(getattr(value, "__module__", None) or "builtins"))
        elif _package(kind) in CONSTANT and not self._has_attributes(value, kind) and not hasattr(kind, "__array_interface__"):
            self.print.append(id(value))
        else:
            self.add(value, DEPTH)

    def _add(self, value: Any, kind: type, depth: int) -> None:
        if kind not in BUILTIN and _of_class(kind).may_be_handle and (name := _name_of_handle(value, kind)):
            self.shared = self.shared or name
        elif issubclass(kind, BY_IDENTITY):
            return
        elif issubclass(kind, enum.Enum):
            self.print.append(value._name_)
        elif issubclass(kind, (list, tuple, collections.deque)):
            base = next(base for base in (list, tuple, collections.deque) if issubclass(kind, base))
            length = base.__len__(value)
            first = list(islice(base.__iter__(value), 2 * ITEMS))
            last = list(islice(base.__reversed__(value) if base is not tuple else reversed(tuple(value)), ITEMS))
            if base is tuple or not self._is_cache(value, length, first, last):
                self._ends(value, length, first, last, depth)
        elif issubclass(kind, dict):
            length = dict.__len__(value)
            first = list(islice(dict.items(value), 2 * ITEMS))
            last = list(islice(reversed(dict.items(value)), ITEMS))
            if not self._is_cache(value, length, [item for _, item in first], [item for _, item in last]):
                self._ends(value, length, _flat(first), _flat(last), depth)
        elif issubclass(kind, (set, frozenset)):
            self._ends(value, len(value), iter(value), iter(()), depth)
        elif issubclass(kind, types.FunctionType):
            self._function(value, depth)
            return
        elif issubclass(kind, types.MethodType):
            self.add(value.__func__, depth)
            self.add(value.__self__, depth)
        elif issubclass(kind, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self.add(part, depth)
        elif hasattr(kind, "data_ptr"):
            self._tensor(value)
        elif hasattr(kind, "__array_interface__"):
            self._array(value)
        elif issubclass(kind, (bytearray, memoryview)):
            self.print.append((len(value), bytes(value[:ITEMS]), bytes(value[-ITEMS:])))
            self.complete = self.complete and len(value) <= 2 * ITEMS
        elif issubclass(kind, sys.modules["torch"].Generator):
            self.print.append(str(value.get_state().tolist()))
        elif (state := state_of_generator(value)) is not None:
            self.print.append(hash(state))
        elif not self._has_attributes(value, kind):
            self.complete = False
            return
        if kind not in BUILTIN:
            self._attributes(value, kind, depth)

    @staticmethod
    def _has_attributes(value: Any, kind: type) -> bool:
        return kind is object or any("__dict__" in base.__dict__ or "__slots__" in base.__dict__ for base in kind.__mro__)

    def _attributes(self, value: Any, kind: type, depth: int) -> None:
        if self._strict:
            self._users.append(kind)
        own = _attribute(value, "__dict__")
        if type(own) is dict:
            if len(own) > 4 * ITEMS:
                self.complete = False
            for name, attribute in islice(own.items(), 4 * ITEMS):
                self.print.append(name)
                self.add(attribute, depth)
        for name in _of_class(kind).slots:
            self.add(_attribute(value, name), depth)

    def _is_cache(self, value: Any, length: int, first: list[Any], last: list[Any]) -> bool:
        """Note the contents of a list or a dictionary. Returns whether they do not count."""
        identities = (tuple(0 if item is None else id(item) for item in items) for items in (first, last))
        self.contents[id(value)] = Contents(value, length, *identities)
        return id(value) in self._caches

    def _ends(self, holder: Any, length: int, first: Iterable[Any], last: Iterable[Any], depth: int) -> None:
        self.print.append(length)
        if self._whole and 2 * ITEMS < length <= WHOLE and type(holder) in BUILTIN:
            parts = (holder.keys(), holder.values()) if type(holder) is dict else (holder,)
            if all(_PLAIN.issuperset(map(id, set(map(type, part)))) for part in parts):
                self.print += [hash(tuple(part)) for part in parts]
                return
        if length > 2 * ITEMS:
            self.complete = False
        for items in (list(islice(first, 2 * ITEMS)), list(islice(last, ITEMS if length > 2 * ITEMS else 0))):
            if _all_exact(items):
                self._print_all(items)
            else:
                for item in items:
                    self.add(item, depth)

    def _print_all(self, values: Collection[Any]) -> None:
        self.print.append((tuple(map(type, values)), tuple(values)))

    def _function(self, function: Any, depth: int) -> None:
        self.print.append(function.__code__)
        if self._strict:
            self._users.append(function)
        for cell in function.__closure__ or ():
            self.add(_attribute(cell, "cell_contents"), depth)
        self.add(function.__defaults__, depth)
        self.add(function.__kwdefaults__, depth)

    def _tensor(self, tensor: Any) -> None:
        """torch counts the changes of a tensor. A change by a numpy array on the same memory is not among them."""
        if tensor.device.type != "cpu":
            self.shared = self.shared or f"a tensor on {tensor.device}"
            return
        self.print.append((str(tensor.dtype), tuple(tensor.shape), 0 if tensor.is_inference() else tensor._version))
        if tensor.layout is not sys.modules["torch"].strided:
            self.complete = False
            return
        values = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach()[:1].reshape(-1)[: 2 * ITEMS]
        step = max(1, values.numel() // (2 * ITEMS))
        self.print.append(str(values[::step][: 2 * ITEMS].tolist()))

    def _array(self, array: Any) -> None:
        self.print.append((str(array.dtype), tuple(array.shape)))
        if self._whole and array.nbytes <= WHOLE_BYTES and not array.dtype.hasobject:
            self.print.append(hash(array.tobytes()))
            return
        values = array.reshape(-1) if array.flags.contiguous else array[:1].reshape(-1)
        self.complete = self.complete and (values.size == array.size <= 2 * ITEMS or not array.flags.writeable)
        if array.dtype.hasobject:
            self.complete = False
            return
        self.print.append(values[:: max(1, values.size // (2 * ITEMS))][: 2 * ITEMS].tobytes())


def _bytes_of(value: Any, depth: int = 2) -> float:
    """The memory of a value, about; 0 for a number."""
    kind = type(value)
    if kind in NUMBERS:
        return 0.0
    if kind in (str, bytes, bytearray):
        return float(sys.getsizeof(value))
    if kind in (list, tuple, dict) and depth:
        items = value.values() if kind is dict else value
        some = [_bytes_of(item, depth - 1) or sys.getsizeof(item) for item in islice(items, 2 * ITEMS)]
        return sys.getsizeof(value) + sum(some) * len(value) / max(1, len(some))
    if hasattr(kind, "data_ptr"):
        return float(value.numel() * value.element_size()) or 1.0
    if hasattr(kind, "__array_interface__"):
        return float(value.nbytes) or 1.0
    return OBJECT_BYTES


def free_host_bytes() -> float:
    """The memory of the machine that is free; infinite where the system does not tell."""
    host = host_bytes()
    return math.inf if host is None else host[0]


def _flat(pairs: Iterable[tuple[Any, Any]]) -> Iterable[Any]:
    return (part for pair in pairs for part in pair)


def _attribute(value: Any, name: str) -> Any:
    """An attribute of `value` without the program's own `__getattr__`; None where there is none."""
    try:
        return object.__getattribute__(value, name)
    except (AttributeError, ValueError):  # an empty cell of a closure has no contents
        return None


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


def _all_exact(values: Collection[Any]) -> bool:
    return _EXACT.issuperset(map(id, map(type, values)))


class OfClass(NamedTuple):
    """Facts about a class. `slots`: the names of the attributes that its objects keep without a dictionary. `may_be_handle`: whether they may be something
    that processes cannot share."""

    slots: list[str]
    may_be_handle: bool


class Used(NamedTuple):
    """`names`: what functions use, each as the owner of the object and the object's name there. `more`: whether some functions were not looked at."""

    names: list[tuple[Any, str]]
    more: bool


_used_by: weakref.WeakKeyDictionary[Any, Used] = weakref.WeakKeyDictionary()
FUNCTIONS = 64
"""Functions of the program that are followed from the functions of a class."""
LIBRARIES = ("torch", "torchvision", "builtins", "typing", "abc", "collections", "numpy")


def _used(user: Any) -> Used:
    """Return the owners and the names of the data that `user` uses, apart from attributes of an object. `user`: a function, or a class with its functions.
    The owner is the class, the dictionary of global variables, or, for a variable of an enclosing function, the function that uses it. Functions that these
    functions call by name, or as `module.function`, count too."""
    cached = _used_by.get(user)
    if cached is None:
        if isinstance(user, type):
            bases = [base for base in user.__mro__ if not _is_known(base.__module__)]
            names = [(vars(base), name) for base in bases for name in vars(base) if not name.startswith("__")]
            used = _used_by_functions(
                [_attribute(value, "fget") or _attribute(value, "func") or value for base in bases for value in vars(base).values()]
            )
            cached = Used(names + used.names, used.more)
        else:
            cached = _used_by_functions([user])
        _used_by[user] = cached
    return cached


def _used_by_functions(functions: list[Any]) -> Used:
    used: dict[tuple[int, str], tuple[Any, str]] = {}
    seen: set[int] = set()
    while functions and len(seen) < FUNCTIONS:
        function = _plain(functions.pop(0))
        if not isinstance(function, types.FunctionType) or id(function) in seen or _is_known(str(function.__module__)):
            continue
        seen.add(id(function))
        of_code = _names(function.__code__)
        names: list[tuple[Any, str]] = [(function.__globals__, name) for name in of_code]
        names += [(function, name) for name in function.__code__.co_freevars]
        for module in [value for holder, name in names if isinstance(value := _value_of(holder, name), types.ModuleType)]:
            if not _is_known(module.__name__):
                names += [(vars(module), name) for name in of_code]
        used.update({(id(holder), name): (holder, name) for holder, name in names})
        functions += [_value_of(holder, name) for holder, name in names]
    return Used(list(used.values()), bool(functions))


def _plain(function: Any) -> Any:
    """Return the function behind a class or static method, a `functools.partial` or a `functools.lru_cache`."""
    if isinstance(function, (staticmethod, classmethod)):
        function = function.__func__
    if isinstance(function, functools.partial):
        function = function.func
    return vars(function).get("__wrapped__", function) if isinstance(function, functools._lru_cache_wrapper) else function


def _is_known(module: str) -> bool:
    """Return whether a module belongs to Python, torch or numpy. Only the random generators of such a module can change the samples, and they are compared
    elsewhere."""
    name = module.partition(".")[0]
    if _root(module) in LIBRARIES or name not in sys.stdlib_module_names:
        return _root(module) in LIBRARIES
    return not is_program(str(getattr(sys.modules.get(name), "__file__", None) or "<"))  # the program may have a `code.py`


def _names(code: types.CodeType) -> set[str]:
    """The names of the global variables that a function may use, also those in the functions that it makes."""
    made = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_names, made))


def _value_of(holder: Any, name: str) -> Any:
    """The value of `name` in a dictionary, or of a variable around a function; None where there is none."""
    if isinstance(holder, types.FunctionType):
        place = holder.__code__.co_freevars.index(name)
        return _attribute((holder.__closure__ or ())[place], "cell_contents")
    return holder.get(name)


def _is_data(value: Any) -> bool:
    kind = type(value)
    if kind in PLAIN or kind in BUILTIN or issubclass(kind, (collections.deque, collections.Counter)):
        return True
    return state_of_generator(value) is not None or issubclass(kind, sys.modules["torch"].Generator)


_classes: weakref.WeakKeyDictionary[type, OfClass] = weakref.WeakKeyDictionary()


def _of_class(kind: type) -> OfClass:
    known = _classes.get(kind)
    if known is None:
        may_be_handle = issubclass(kind, io.IOBase) or any(base.__name__ in HANDLES.get(_package(base), ()) for base in kind.__mro__)
        known = _classes[kind] = OfClass(_slots(kind), may_be_handle)
    return known


def _slots(kind: type) -> list[str]:
    slots = [base.__dict__.get("__slots__", ()) for base in kind.__mro__]
    names = [name for of_base in slots for name in ((of_base,) if isinstance(of_base, str) else of_base)]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _package(kind: type) -> str:
    return _root(kind.__module__)


def _root(module: Any) -> str:
    """The package of a module, by its name."""
    return str(module).partition(".")[0].lstrip("_")


def _name_of_handle(value: Any, kind: type) -> str:
    """What `value` is, where processes cannot share it; empty for other objects, and for files that are closed."""
    if issubclass(kind, io.IOBase):
        if issubclass(kind, (io.BytesIO, io.StringIO)) or value.closed or value in (sys.stdout, sys.stderr):
            return ""
        return _named("the open file", getattr(value, "name", ""))
    for base in kind.__mro__:
        package = _package(base)
        if base.__name__ in HANDLES.get(package, ()):
            if package == "zipfile" and base.__name__ == "ZipFile":
                return _named("the open file", value.filename) if value.fp is not None else ""
            if package == "tarfile":
                return _named("the open file", value.name) if not value.closed else ""
            if package == "h5py":
                return _named("the open file", getattr(getattr(value, "file", None), "filename", "")) if value else ""
            if package == "socket":
                return "an open socket" if value.fileno() >= 0 else ""
            return f"an open {package} {base.__name__}"
    return ""


def _named(what: str, name: Any) -> str:
    return (
        f"{what} {os.path.basename(os.fsdecode(name))}" if isinstance(name, (str, bytes)) and name else f"{what} of {type(name).__name__}"
    )


def cannot_share(name: str) -> str:
    """Why a dataset that holds `name` gets no new workers."""
    return f"the dataset holds {name}, which processes cannot share: {'move' if 'tensor' in name else 'open'} it in each worker"


# --- open files by their position ----------------------------------------------------------------------------


def positions() -> dict[str, tuple[str, int]]:
    """The path and the position of each regular file that this process has open for reading, by its number. Empty where the system does not tell."""
    found = {}
    try:
        numbers = os.listdir("/proc/self/fd")
    except OSError:
        return {}
    for number in numbers:
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
            if not path.startswith("/") or path.startswith(("/dev/", "/proc/", "/sys/", "/memfd:")):
                continue
            with open(f"/proc/self/fdinfo/{number}", encoding="ascii") as info:
                fields = dict(line.split(":\t", 1) for line in info if ":\t" in line)
            if int(fields["flags"], 8) & 3 != os.O_WRONLY:
                found[number] = (path, int(fields["pos"]))
        except (OSError, ValueError, KeyError):  # closed meanwhile
            continue
    return found


def moved(before: dict[str, tuple[str, int]], after: dict[str, tuple[str, int]]) -> str:
    """The name of a file whose position differs, or that was opened and read; empty where there is none."""
    for number, (path, position) in after.items():
        if before.get(number, (path, 0)) != (path, position):
            return os.path.basename(path)
    return ""


# --- what a thread has written -------------------------------------------------------------------------------


def written(thread: str = "thread-self") -> int | None:
    """The bytes that a thread has written to files, pipes and terminals, without writes of one byte, with which multiprocessing wakes threads; None where
    the system does not tell. `thread`: as in /proc."""
    try:
        with open(f"/proc/{thread}/io", encoding="ascii") as file:
            fields = dict(line.split(": ", 1) for line in file)
        return int(fields["wchar"]) - int(fields["syscw"])
    except (OSError, ValueError, KeyError):
        return None


def written_here() -> int | None:
    """What this thread has written, with what was printed until now. Streams of the program's own classes are left alone."""
    for stream in (sys.stdout, sys.stderr):
        if type(stream) is io.TextIOWrapper and not stream.closed:
            with contextlib.suppress(OSError):  # nobody reads the pipe any longer: the program's own next line says so
                stream.flush()
    return written()


def written_by(workers: Iterable[Any]) -> list[int]:
    """What the main thread of each worker of a DataLoader has written, where that is known."""
    return [bytes_written for worker in workers if (bytes_written := written_by_worker(worker.pid)) is not None]


def written_by_worker(pid: int) -> int | None:
    """What the main thread of a worker of a DataLoader has written. None where torch itself writes there, as it does to share tensors by files."""
    if sys.modules["torch"].multiprocessing.get_sharing_strategy() != "file_descriptor":
        return None
    return written(f"{pid}/task/{pid}")
