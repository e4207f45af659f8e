"""What the hooks have seen of the program in this process, and a checksum of each line of the
program's files.

After an edit of a file during the job, the patch finds the line of a call by these checksums. The
facts of a job are written into files, and a line may hold a password. A checksum has 16 bits: it
shows whether a guess may be right, not the text.
"""

from __future__ import annotations

import os
import stat
import sys
import time
import weakref
import zlib
from collections import UserDict
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, NamedTuple

from ..clock import now
from ..protocol import CodePlace
from .borders.border import opened
from .guard import OWN as OWN
from .guard import ask, from_outside, switch
from .recorder import StepRecorder, get_ident

# --- the lines of the program's files -------------------------------------------------------------

BOM = b"\xef\xbb\xbf"
EDITED = "edited"
MAX_BYTES = 1_000_000
SLACK_S = 2.0
"""The clock of a file server may be ahead of the clock of this machine."""


def process_start_s() -> float:
    """The start of this process, in seconds since 1970. The present time where Linux does not give
    the start."""
    try:
        with open("/proc/self/stat") as file:
            start_ticks = int(file.read().rpartition(")")[2].split()[19])
        return (
            time.time()
            - time.clock_gettime(time.CLOCK_BOOTTIME)
            + start_ticks / os.sysconf("SC_CLK_TCK")
        )
    except (OSError, ValueError, IndexError, AttributeError):
        return time.time()


STARTED_S = process_start_s()


def is_interactive() -> bool:
    """Whether the user can edit a file and load the file again in this process."""
    ipython = sys.modules.get("IPython")
    return hasattr(sys, "ps1") or getattr(ipython, "get_ipython", lambda: None)() is not None


def line_digests(file: str) -> str:
    """Four hexadecimal digits for each line of `file`: the lower 16 bits of the CRC-32 of the line.
    White space at the end of a line does not count. EDITED: the file was written after the start of
    this process. Python may have read the file before. Empty: there is no such file, or it is
    large."""
    try:
        state = os.stat(file)
        # the text of a pipe can be read only once
        if not stat.S_ISREG(state.st_mode) or state.st_size > MAX_BYTES:
            return ""
        if max(state.st_mtime, state.st_ctime) > STARTED_S + SLACK_S and not is_interactive():
            return EDITED
        with open(file, "rb") as source:
            text = source.read(MAX_BYTES)
    except (OSError, ValueError):
        # a cell of a notebook, a file in an archive, a name that no file can have
        return ""
    return "".join(
        f"{zlib.crc32(line.rstrip()) & 0xFFFF:04x}"
        for line in text[len(BOM) * text.startswith(BOM) :].splitlines()
    )


# --- what the hooks have seen ---------------------------------------------------------------------

ARRAYS = ("numpy", "tensordict")
"""Libraries whose objects have a shape that may be asked for."""
LIBRARIES = ("site-packages", "dist-packages", "<frozen", os.path.dirname(os.__file__) + os.sep)
"""Paths with one of these parts are no code of the program itself."""
CELL = "<ipython-input"
"""The begin of the file name of lines typed into IPython in a terminal. A cell of a notebook has
the name of a file that does not exist."""


class Made(NamedTuple):
    """`ref`: gives the newest object that a line of the program made; None once that is gone. The
    other fields are those of `model.job.Site`."""

    ref: Callable[[], Any]
    function: str
    library: str = ""
    again: bool = False


class Watch:
    """One per process. The hooks write, and the changes read.

    `iterators`: DataLoader iterators, the newest last. `optimizers`: those that were made or have
    stepped. `roots`: modules that the program called itself. `last_inputs`: arguments of the last
    training pass, where `keep_inputs` asks for them.
    """

    def __init__(self) -> None:
        self.iterators: list[weakref.ref[Any]] = []
        self.optimizers: list[weakref.ref[Any]] = []
        self.roots: list[weakref.ref[Any]] = []
        self.weights: list[weakref.ref[Any]] = []
        """What a program without an optimizer trains."""
        self.keys: set[int] = set()
        """The identities of `optimizers`."""
        self.made: dict[tuple[str, str, int], Made] = {}
        """Where loaders, optimizers and DDP modules were made, by kind, file and line."""
        self.lines: dict[str, str] = {}
        """`line_digests` of the files in `made`."""
        self.loader: Callable[[], Any] | None = None
        """The DataLoader of the last training pass."""
        self.last_loader: Callable[[], Any] | None = None
        """The DataLoader of the last batch."""
        self.allows_numerics = False
        """Whether the user has agreed to changes that alter the numbers of the program."""
        self.allows_loader = False
        """Whether the user has agreed to workers that load ahead, from copies of the dataset."""
        self.last_inputs: tuple[Any, ...] | None = None
        self.keep_inputs = False
        self.autocast = ""
        """The precision of autocast in the last training pass: bf16 or fp16; empty without
        autocast."""
        self.counted_precision = ""
        """The number type of most FLOPs of the counted step; empty before it, and where no step was
        counted."""
        self.newest_batch = 0
        """The samples of the newest training pass that counted."""
        self.batch_size = 0
        """The largest first dimension of the first tensor of a training pass."""
        self.counted: tuple[Any, ...] = ()
        """Of the last training pass: the shape and the number type of its first tensor, the size of
        the loader's batches, and the samples and the tokens that were counted."""
        self.loader_batch = 0
        """The size of the batches of the DataLoader that the training uses; 0: not known."""
        self.micro_batches = 1
        """Backward passes of the last step."""
        self.most_micro_batches = 1
        """Of any step. The last step of an epoch may have fewer."""

    def add(self, refs: list[weakref.ref[Any]], target: Any) -> None:
        """Add a weak reference to `target`. Those to objects that are gone are dropped at each
        power of two: a program that makes such objects in a loop leaves a short list, and a look at
        the whole list is rare."""
        if len(refs).bit_count() <= 1:
            refs[:] = [ref for ref in refs if ref() is not None]
        refs.append(weakref.ref(target))

    def alive(self, refs: list[weakref.ref[Any]]) -> list[Any]:
        """The objects that still exist, in order."""
        return [target for ref in refs if (target := ref()) is not None]

    def note_made(self, kind: str, target: Any) -> None:
        """Remember the line of the program that made an object. Called as the object's `__init__`
        returns."""
        frame = program_frame(sys._getframe(1))
        if frame is not None:
            file = frame.f_code.co_filename
            file = file if file.startswith(CELL) else os.path.abspath(file)
            place, library = (kind, file, frame.f_lineno), library_of(sys._getframe(1), frame)
            # before, a function of the program may make those of training and validation
            again = place in self.made and recorder.index > 0
            if place not in self.made:
                self._note_lines(file)
            self.made[place] = Made(weakref.ref(target), frame.f_code.co_name, library, again)

    def _note_lines(self, file: str) -> None:
        """Remember the lines of a file, as they were at its first object. An interactive Python may
        have loaded an edited file again."""
        if file not in self.lines:
            self.lines[file] = line_digests(file)
        elif is_interactive() and self.lines[file] != line_digests(file):
            self.lines[file] = EDITED

    def note_origin(self, loader: Any, origin: Callable[[], Any]) -> None:
        """An epoch of `loader` begins. `origin` gives what stands in for the loader once the
        program has dropped it: the line that made it stays known."""
        for place, record in self.made.items():
            if record.ref() is loader:
                self.made[place] = record._replace(ref=origin)


def is_program(file: str) -> bool:
    """Whether a file belongs to the program itself, not to Python, to a library or to the agent.
    The lines that are typed into IPython do."""
    if file.startswith(CELL):
        return True
    return not file.startswith(("<", OWN)) and not any(part in file for part in LIBRARIES)


def cell_of(file: str) -> str:
    """`In[3]` for the file that stands for a cell of a notebook, or of IPython; empty for another
    file."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    # IPython 8 and newer
    named = getattr(getattr(shell, "compile", None), "format_code_name", None)
    return (named(file) or ("", ""))[1] if named is not None else ""


def place_name(file: str, line: int) -> str:
    """A line of the program for people: `train.py:12`, `In[3]:12`."""
    return f"{cell_of(file) or os.path.basename(file)}:{line}"


def module_name(frame: FrameType) -> str:
    """The name of the module whose code a frame runs; empty where it has none. It runs no code of
    the program: the globals of `exec` may be a class of the program's own, and the name any
    object."""
    name = dict.get(frame.f_globals, "__name__")
    return name if type(name) is str else ""


def library_of(frame: FrameType | None, program: FrameType) -> str:
    """The package, other than torch, whose code the line of the program called to make an
    object."""
    package = ""
    while frame is not None and frame is not program:
        name = module_name(frame).partition(".")[0]
        if name not in ("", "torch", __name__.partition(".")[0], "functools", "contextlib"):
            package = package or name
        frame = frame.f_back
    return package


def program_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the program's own code."""
    while frame is not None and not is_program(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def program_place(frame: FrameType | None, part: str = "") -> CodePlace | None:
    """The innermost line of the program's own code, with its function; None without such a
    line."""
    if (program := program_frame(frame)) is None:
        return None
    code = program.f_code
    function = getattr(code, "co_qualname", code.co_name)
    return CodePlace(place_name(code.co_filename, program.f_lineno), function, part)


recorder = StepRecorder()
watch = Watch()


def _begin_anew() -> None:
    """Forget the step under way: an exception of the program has interrupted the agent's code."""
    if recorder.thread != get_ident():
        return
    opened.forget()
    recorder.start, recorder.codes, recorder.times, recorder.readings = now(), [], [], None
    del recorder.stack[1:]
    recorder.samples = recorder.tokens = recorder.passes = recorder.backwards = 0
    recorder.loss, recorder.partial = None, False
    if recorder.done:
        recorder.index = max(recorder.index, recorder.done[-1][0] + 1)


switch.begin_anew.append(_begin_anew)


def count_samples(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Add the samples and tokens of a micro-batch, by the first tensor of the pass: its first
    dimension; integers of two dimensions are tokens. Where the size of the loader's batches is
    known, a list of as many tensors, and a second dimension of that size, are such a batch. Where
    an argument raises an exception, or torch.jit traces the pass, the pass has no samples that are
    known."""
    try:
        torch = sys.modules["torch"]
        # torch.jit warns if a size is compared while it traces
        if torch._C._get_tracing_state() is not None:
            return
        value: Any = args[0] if args else None
        # the usual pass has the shape of the pass before
        if type(value) is torch.Tensor and not torch._C._len_torch_function_stack():
            counted = watch.counted
            if (
                counted
                and counted[0] == value.shape
                and counted[1] is value.dtype
                and counted[2] == watch.loader_batch
            ):
                recorder.samples += counted[3]
                recorder.tokens += counted[4]
                watch.newest_batch = counted[3]
                return
        # a mode or a tensor class of the program would see that tensors are asked
        with torch._C.DisableTorchFunction():
            _count_samples(args, kwargs)
    except Exception as problem:
        if from_outside(problem):
            raise


def batch_taken(iterator: Any) -> None:
    """Note the samples of a batch by the settings of its loader, where the pass that uses it is not
    seen. `iterator`: the one that gives the batch."""
    size = getattr(iterator._index_sampler, "batch_size", None)
    watch.newest_batch = size if type(size) is int else 0


def count_batch() -> None:
    """Add the samples that `batch_taken` has noted: a backward pass uses them."""
    size, watch.newest_batch = watch.newest_batch, 0
    recorder.samples += size
    watch.batch_size = max(watch.batch_size, size)


def rows(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The samples of a pass without gradients, as `count_samples` counts them; 0 where they are not
    known."""
    try:
        torch = sys.modules["torch"]
        if torch._C._get_tracing_state() is not None:
            return 0
        with torch._C.DisableTorchFunction():
            samples = _samples_of(args, kwargs)[0]
            return samples if type(samples) is int else 0
    except Exception as problem:
        if from_outside(problem):
            raise
        return 0


def _count_samples(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    samples, value, shape = _samples_of(args, kwargs)
    if not shape:
        return
    recorder.samples += samples
    if type(samples) is int:  # a symbol of torch.export
        watch.newest_batch = samples
        watch.batch_size = max(watch.batch_size, samples)
    dtype = ask(value, "dtype")
    tokens = (
        shape[0] * shape[1] if len(shape) == 2 and ask(dtype, "is_floating_point") is False else 0
    )
    recorder.tokens += tokens
    if type(samples) is int and args and value is args[0]:
        watch.counted = (shape, dtype, watch.loader_batch, samples, tokens)


def _samples_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The samples of a pass, its first tensor, and the shape of this tensor; without a shape there
    are no samples."""
    value: Any = args[0] if args else None
    if not has_shape(value):
        value = _first_tensor(args, kwargs)
        if value is None:
            return 0, value, ()
    shape = value.shape
    samples, batch = shape[0], watch.loader_batch
    if batch and samples != batch:
        given: Any = args[0] if args else None
        if (type(given) in (list, tuple) and len(given) == batch) or (
            len(shape) > 1 and shape[1] == batch
        ):
            samples = batch  # a list of images; or the first dimension is that of time
    return samples, value, shape


def _first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the first argument with a shape. In a container or an object, the first element stands
    for all. No code of the program runs: a mapping of the program may make its parts when it is
    asked for them."""
    for value in (*args, *kwargs.values()):
        for _ in range(2):
            if has_shape(value):
                return value
            value = _first_of(value)
        if has_shape(value):
            return value
    return None


def _first_of(value: Any) -> Any:
    """Return the first element of a container; of an object such as a dataclass, the first
    attribute that is a tensor; None without one."""
    inside = within(value)
    if issubclass(type(value), UserDict):
        inside = next((within(held) for held in inside if type(held) is dict), ())
    elif not issubclass(type(value), (dict, list, tuple)):
        inside = (held for held in inside if has_shape(held))
    return next(iter(inside), None)


def within(value: Any) -> Iterable[Any]:
    """Return what a container or an object holds. No code of the program runs, not even a method of
    the container that its class has overridden."""
    for kind in (list, tuple):
        if issubclass(type(value), kind):
            return kind.__iter__(value)
    if issubclass(type(value), dict):
        return dict.values(value)
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return ()
    return list(held.values()) if type(held) is dict else ()


def has_shape(value: Any) -> bool:
    """Return whether a value is a tensor, an array or a TensorDict with at least one dimension. A
    proxy of torch.fx is none of these: a look at the shape of the proxy would change the graph that
    torch.fx traces."""
    kind = type(value)
    if not issubclass(kind, sys.modules["torch"].Tensor) and not any(
        str(of.__module__).partition(".")[0] in ARRAYS for of in kind.__mro__
    ):
        return False
    shape = ask(value, "shape")
    return issubclass(type(shape), tuple) and bool(shape)
