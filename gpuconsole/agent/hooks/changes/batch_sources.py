"""Servers of batches: iterators of torch that draw their indices from a feed, in place of the
iterator that the program holds. The indices of an epoch are one stream, from which all servers draw
in turn. The program notices nothing of the worker processes of a server, which are its children.

They use private names of torch.utils.data. `missing_names` finds out whether this torch has them
(2.4 to 2.13 do).
"""

from __future__ import annotations

import ctypes
import functools
import io
import multiprocessing
import multiprocessing.process
import os
import queue
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, NamedTuple

from ...forks import in_forked_children
from ..guard import from_outside
from ..identity import ByIdentity
from .change import ChangeRefused

# --- the indices of an epoch ----------------------------------------------------------------------

UNKNOWN = object()
"""An index that was drawn before the stream was followed."""


class Indices:
    """The one stream of indices. What was drawn in vain is drawn again. `error`: of the sampler. It
    is raised after the last batch of the indices before it, as without workers."""

    def __init__(self, draws: Iterator[Any]) -> None:
        self._draws = draws
        self._ahead: deque[Any] = deque()
        self._ended = False
        self.error: Exception | None = None

    def __iter__(self) -> Indices:
        return self

    def __next__(self) -> Any:
        if self._ahead:
            return self._ahead.popleft()
        if self._ended:
            raise StopIteration
        try:
            return next(self._draws)
        except StopIteration:
            self._ended = True
            raise
        except Exception as problem:
            if from_outside(problem):
                raise
            self.error, self._ended = problem, True
            raise StopIteration from None

    def give_back(self, drawn: list[Any]) -> None:
        """Put what was drawn in front again."""
        self._ahead.extendleft(reversed(drawn))

    def rest(self) -> Iterator[Any]:
        """What the program's own iterator draws from when nothing is changed any longer."""
        return self if self._ahead or self._ended else self._draws


class IndexFeed:
    """The indices that one server may draw. `drawn`: those whose batch it has not delivered yet, in
    order."""

    def __init__(self, indices: Iterator[Any], drawn: int = 0) -> None:
        """`drawn`: how many indices the server drew before its draws were followed."""
        self._indices = indices
        self.drawn: deque[Any] = deque([UNKNOWN] * drawn)
        self.closed = False

    def __iter__(self) -> IndexFeed:
        return self

    def __next__(self) -> Any:
        if self.closed:
            raise StopIteration
        index = next(self._indices)
        # a sampler may fill one list again and again, and the queue of a worker pickles it later
        if type(index) is list:
            index = list(index)
        self.drawn.append(index)
        return index


# --- what the program would notice ----------------------------------------------------------------


def handles_children() -> bool:
    """Whether the program has a handler of SIGCHLD, also one that torch's handler calls."""
    handler: Any = signal.getsignal(signal.SIGCHLD)
    while str(getattr(handler, "__module__", "")).startswith("torch."):
        handler = next(
            (
                cell.cell_contents
                for cell in getattr(handler, "__closure__", None) or ()
                if callable(cell.cell_contents)
            ),
            None,
        )
    return callable(handler)


# --- what the workers keep to themselves ----------------------------------------------------------

OF_TORCH = (signal.SIGTERM, signal.SIGBUS, signal.SIGSEGV, signal.SIGFPE)
"""Signals for which torch's workers have handlers of their own."""

PR_SET_PDEATHSIG = 1


def begin_worker(program_own: Any, ready: Any, ends_with_thread: bool, number: int) -> None:
    """Prepare a worker. Runs in place of the program's `worker_init_fn`, and calls it. The worker
    leaves the process group of the program, so a signal to that group does not reach it, and it
    runs no signal handler of the program. It prints into a file in memory, whose length
    `printed_by` reads. `ready`: a semaphore that is released in the end. `ends_with_thread`: the
    system kills the worker once the thread that started it has ended."""
    with suppress(OSError):
        os.setpgid(0, 0)
    # else a signal that ends the whole group of the program leaves the worker for 5 s, with the
    # program's sockets
    if ends_with_thread:
        with suppress(AttributeError, OSError):  # a system without this function
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    signal.set_wakeup_fd(-1)  # the other end is in the program
    for number_of_signal in signal.valid_signals():
        if number_of_signal not in OF_TORCH and callable(signal.getsignal(number_of_signal)):
            signal.signal(number_of_signal, _handle_nothing)
    hidden = _hide_output()
    try:
        if program_own is not None:
            program_own(number)
    finally:
        # the program's function may have closed it, or put a file of the program in its place
        with suppress(OSError):
            if hidden is not None and os.path.samestat(hidden, os.fstat(1)):
                # what the beginning of a worker prints is no output of the program
                os.lseek(1, 0, os.SEEK_SET)
                os.ftruncate(1, 0)
        ready.release()


def _handle_nothing(*_: Any) -> None:
    """Take the place of a handler of the program. SIG_IGN would also hold for the programs that the
    worker starts, and would lose their exit codes."""


def _hide_output() -> os.stat_result | None:
    """Let descriptors 1 and 2 be a file in memory without a name, and let streams write to it at
    once. None where this is not possible."""
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


def printed_by(pid: int) -> int:
    """The bytes that a worker has printed since the end of `begin_worker`; 0 where the output is
    not hidden."""
    hidden, own = _of_descriptor(f"/proc/{pid}/fd/1"), _of_descriptor(1)
    return (
        hidden.st_size
        if hidden is not None and (own is None or not os.path.samestat(hidden, own))
        else 0
    )


def _of_descriptor(file: str | int) -> os.stat_result | None:
    """Return the status of an open file; None where the descriptor is closed."""
    try:
        return os.stat(file)
    except OSError:
        return None


# --- servers --------------------------------------------------------------------------------------

PREFETCH = 2
"""torch's own default of prefetch_factor."""
POLL_S = 0.25
"""Between two looks whether the workers of a server are alive, while a batch is waited for."""
HANG_S = 60.0
"""Without a batch for this time, the workers of a server hang. The program's own loader serves
again then."""
NAMES = (
    "_dataset _dataset_kind _auto_collation _drop_last _index_sampler _sampler_iter _num_workers"
    " _collate_fn _num_yielded _base_seed"
)
NAMES_OF_WORKERS = (
    "_workers _data_queue _tasks_outstanding _task_info _send_idx _rcvd_idx _prefetch_factor"
    " _persistent_workers _try_put_index _shutdown _worker_result_queue _index_queues"
    " _workers_done_event"
)


class BatchSourceFailed(RuntimeError):
    """The workers of a server died or hang."""


class LoaderSettings(NamedTuple):
    """How a DataLoader loads. `prefetch_factor` is 0 without workers."""

    num_workers: int
    prefetch_factor: int
    pin_memory: bool

    def with_(self, **changes: Any) -> LoaderSettings:
        """These settings with `changes`."""
        new = self._replace(**changes)
        return new._replace(
            prefetch_factor=(new.prefetch_factor or PREFETCH) if new.num_workers else 0
        )


def settings_of(loader: Any) -> LoaderSettings:
    """The settings with which the program made `loader`."""
    return LoaderSettings(
        loader.num_workers,
        loader.prefetch_factor or PREFETCH if loader.num_workers else 0,
        bool(loader.pin_memory),
    )


def missing_names(module: Any, iterator: Any) -> list[str]:
    """Private names that this version of torch lacks. `module`: torch.utils.data.dataloader."""
    classes = (
        "_BaseDataLoaderIter",
        "_SingleProcessDataLoaderIter",
        "_MultiProcessingDataLoaderIter",
        "_DatasetKind",
        "_utils",
    )
    missing = [name for name in classes if not hasattr(module, name)]
    names = NAMES.split() + (
        NAMES_OF_WORKERS.split() if getattr(iterator, "_num_workers", 0) else []
    )
    return missing + [name for name in names if not hasattr(iterator, name)]


def start_method(context: Any) -> str:
    """How worker processes start: fork, forkserver or spawn. `context`: the
    `multiprocessing_context` of a DataLoader. Python 3.14 uses forkserver by default, earlier
    versions use fork. Reading the default here does not set it."""
    if context is not None:
        return str(context.get_start_method())
    return (
        multiprocessing.get_start_method(allow_none=True)
        or multiprocessing.get_all_start_methods()[0]
    )


class Spec(SimpleNamespace):
    """What an iterator of torch reads of its DataLoader. A class of its own, because instances of
    SimpleNamespace have no weak references."""


NAMES_OF_LOADER = (
    "dataset sampler batch_sampler batch_size drop_last collate_fn generator num_workers"
    " prefetch_factor pin_memory pin_memory_device timeout worker_init_fn multiprocessing_context"
    " persistent_workers in_order _dataset_kind"
)
"""What the changes and the descriptions read of a DataLoader. `in_order` is new in torch 2.6."""


class Origin:
    """The DataLoader of an iterator. Once the program has dropped the loader, as in
    `for batch in DataLoader(...)`: what `belongs_to` has noted of the loader, as long as the
    iterator lives. None after that. Keeps neither alive."""

    def __init__(self, loader: Any, placeholder: Spec) -> None:
        self._loader, self._placeholder = weakref.ref(loader), weakref.ref(placeholder)

    def __call__(self) -> Any:
        loader = self._loader()
        return loader if loader is not None else self._placeholder()


_origins = ByIdentity()
"""Of each iterator of the program: its DataLoader, and what stands in for it."""


def belongs_to(iterator: Any, loader: Any) -> Origin:
    """Note that `iterator` is one of `loader`.

    The iterator does not keep the loader itself: many loaders keep their iterator, and their
    workers end with the last reference to the loader.
    """
    placeholder = Spec(
        **{name: getattr(loader, name) for name in NAMES_OF_LOADER.split() if hasattr(loader, name)}
    )
    origin = Origin(loader, placeholder)
    _origins.put(iterator, (origin, placeholder))
    return origin


def loader_of(iterator: Any) -> Any:
    """The DataLoader of an iterator, or what stands in for it; None where it is not known."""
    noted = _origins.get(iterator)
    return noted[0]() if noted is not None else None


class SourceFactory:
    """What is needed to start workers for one loader of the program. Holds neither the loader nor
    an iterator of it."""

    def __init__(self, module: Any, loader: Any, iterator: Any) -> None:
        """`iterator`: one that the program holds."""
        self.module = module
        self.dataset, self.collate = iterator._dataset, iterator._collate_fn
        self._made = 0
        self._seed = int(iterator._base_seed)
        self._fields: dict[str, Any] = {
            "dataset": self.dataset,
            "_dataset_kind": iterator._dataset_kind,
            "_IterableDataset_len_called": None,
            "_auto_collation": iterator._auto_collation,
            "drop_last": iterator._drop_last,
            "collate_fn": self.collate,
            "pin_memory_device": getattr(loader, "pin_memory_device", ""),
            "multiprocessing_context": loader.multiprocessing_context,
            "in_order": True,
            "persistent_workers": True,
            "timeout": loader.timeout,
            "_gpuconsole_server": True,  # the hook of iterators leaves these alone
        }
        self._worker_init = loader.worker_init_fn

    def server(self, settings: LoaderSettings) -> BatchSource:
        """Workers with an empty feed. Raises ChangeRefused where they cannot be started."""
        import torch

        self._made += 1
        ready = (self._fields["multiprocessing_context"] or multiprocessing).Semaphore(0)
        spec = Spec(
            **self._fields,
            _index_sampler=IndexFeed(iter(())),
            generator=torch.Generator().manual_seed(
                (self._seed + 7919 * self._made) % 2**62
            ),  # nothing is drawn from the program's generators
            num_workers=settings.num_workers,
            prefetch_factor=settings.prefetch_factor,
            pin_memory=settings.pin_memory and _has_accelerator(),  # else torch warns
            worker_init_fn=functools.partial(
                begin_worker,
                self._worker_init,
                ready,
                threading.current_thread() is threading.main_thread(),
            ),
        )
        kind = self.module._MultiProcessingDataLoaderIter
        iterator = kind.__new__(kind)
        try:
            # the filters of warnings stay as they are: after a change of a filter Python shows
            # warnings again that it shows once
            with unregistered(self.module), signals_wait():
                iterator.__init__(spec)
            _keep_to_us(iterator)
            iterator.__dict__["_worker_pids_set"] = False
        except BaseException as problem:
            discard(iterator)
            if from_outside(problem):
                raise
            raise ChangeRefused(f"workers could not be started: {in_one_line(problem)}") from None
        return BatchSource(iterator, settings, ready=ready)


def _has_accelerator() -> bool:
    """Whether memory can be page-locked for a device."""
    import torch

    accelerator = getattr(torch, "accelerator", None)  # torch 2.6 and newer
    return bool(
        accelerator.is_available() if accelerator is not None else torch.cuda.is_available()
    )


START_S = 60.0
"""New workers must be ready within this time. By spawn each one imports the modules of the program
first: torch alone takes seconds."""


class BatchSource:
    """An iterator that serves batches of the indices that its feed gives: workers of ours, or the
    iterator that the program holds."""

    def __init__(
        self, iterator: Any, settings: LoaderSettings, *, own: bool = False, ready: Any = None
    ) -> None:
        """`own`: the iterator that the program holds. It is not kept alive. `ready`: a semaphore
        that each worker of ours releases."""
        self._iterator = weakref.ref(iterator) if own else lambda: iterator
        self.settings, self.own = settings, own
        _of_parent.put(iterator, True)
        self.feed = IndexFeed(iter(()))
        self.began = self.idle_since = time.monotonic()
        self._ready, self._missing = ready, 0 if own else settings.num_workers
        self._printed: dict[int, int] = {}
        """The bytes that each worker had printed at its last batch, by pid."""
        if not own:
            self.limit_s = float(iterator._timeout or HANG_S)
            iterator._get_data = functools.partial(
                _receive, weakref.ref(iterator), weakref.ref(self)
            )

    @property
    def iterator(self) -> Any:
        return self._iterator()

    @property
    def workers(self) -> list[Any]:
        return list(getattr(self.iterator, "_workers", None) or ())

    def is_ready(self) -> bool:
        """Whether all workers have begun. Raises ChangeRefused where they do not begin."""
        while self._missing and self._ready.acquire(block=False):
            self._missing -= 1
        if self._missing and not all(worker.is_alive() for worker in self.workers):
            raise ChangeRefused("a new worker died before it was ready")
        if self._missing and time.monotonic() - self.began > START_S:
            raise ChangeRefused(f"the new workers were not ready within {START_S:.0f} s")
        return not self._missing

    def begin(self, feed: IndexFeed) -> None:
        """Serve `feed` from its beginning. Batches under way are discarded. Workers begin at once.
        Raises BatchSourceFailed, RuntimeError."""
        self.feed = feed
        if not self.settings.num_workers:
            self.iterator._sampler_iter = feed
            return
        with signals_wait():  # the first index of a worker starts a thread
            self._begin(self.iterator, feed)

    def _begin(self, iterator: Any, feed: IndexFeed) -> None:
        if iterator._tasks_outstanding or iterator._task_info:
            sampler = iterator._index_sampler
            iterator._index_sampler = feed
            try:
                type(iterator)._reset(iterator, Spec(_IterableDataset_len_called=None))
            finally:
                iterator._index_sampler = sampler
            return
        iterator._sampler_iter = feed
        self.fill()

    def fill(self) -> None:
        """Give the workers as many indices as they keep ready."""
        iterator = self.iterator
        if not self.settings.num_workers:
            return
        for _ in range(
            iterator._prefetch_factor * iterator._num_workers - iterator._tasks_outstanding
        ):
            iterator._try_put_index()

    def next(self) -> tuple[Any, Any]:
        """The next index, and its batch. Raises StopIteration, what the dataset raises, and
        BatchSourceFailed."""
        iterator = self.iterator
        try:
            batch = type(iterator)._next_data(iterator)
        except StopIteration:
            raise
        except BaseException:
            if self.own and self.feed.drawn:
                # as in the program: an index that raised does not come again
                self.feed.drawn.popleft()
            raise
        return (self.feed.drawn.popleft() if self.feed.drawn else None), batch

    def has_printed(self) -> bool:
        """Whether the worker that made the last batch has printed something since its batch
        before."""
        if self.own:
            return False
        pid = self.workers[(self.iterator._rcvd_idx - 1) % self.settings.num_workers].pid
        before, self._printed[pid] = self._printed.get(pid, 0), printed_by(pid)
        return self._printed[pid] > before

    def close(self, kill: bool = False) -> None:
        """End the workers. `kill`: at once, for workers that hang."""
        iterator = self.iterator
        if iterator is None or self.own:
            return
        try:
            if not kill:
                iterator._shutdown_workers()
                return
        except Exception as problem:  # the program goes on in any case
            if from_outside(problem):
                discard(iterator)
                raise
        discard(iterator)


def _receive(iterator_ref: Any, server_ref: Any) -> Any:
    """In place of `_get_data`: finds out soon that a worker died, without torch's signal handler,
    which would end the program."""
    iterator, server = iterator_ref(), server_ref()
    until = time.monotonic() + server.limit_s
    while True:
        try:
            return iterator._data_queue.get(timeout=POLL_S)
        except queue.Empty:
            if not all(worker.is_alive() for worker in iterator._workers):
                raise BatchSourceFailed("a worker died") from None
            if time.monotonic() > until:
                raise BatchSourceFailed(
                    f"no batch from the workers within {server.limit_s:.0f} s"
                ) from None
        except (ConnectionError, EOFError) as problem:  # tensors come by a socket of the worker
            raise BatchSourceFailed(f"a worker died ({type(problem).__name__})") from None


def _keep_to_us(iterator: Any) -> None:
    """Hide the workers from the program, which may join all children that multiprocessing knows.
    They end with the iterator, and at the end of Python."""
    for worker in iterator._workers:
        multiprocessing.process._children.discard(worker)  # type: ignore[attr-defined]
    weakref.finalize(iterator, _kill, list(iterator._workers), os.getpid())


def _kill(workers: list[Any], parent: int) -> None:
    if os.getpid() == parent:
        for worker in workers:
            worker.kill()


class unregistered:
    """Workers started in this block are unknown to torch's SIGCHLD handler, which would raise in
    the program when one of them dies."""

    def __init__(self, module: Any) -> None:
        self._signals = module._utils.signal_handling

    def __enter__(self) -> None:
        signals = self._signals
        self._plain = signals._set_worker_pids, signals._set_SIGCHLD_handler
        signals._set_worker_pids = signals._set_SIGCHLD_handler = lambda *_: None

    def __exit__(self, *_: Any) -> None:
        self._signals._set_worker_pids, self._signals._set_SIGCHLD_handler = self._plain


class Waiting(NamedTuple):
    """`handler`: the program's own. `action`: what the system does with the signal, as it was
    before; None where it could not be read."""

    handler: Any
    action: Any


_waiting: dict[int, Waiting] = {}
"""The program's own handlers of signals, while workers start."""
ACTION_BYTES = 512
"""More than the `struct sigaction` of any system takes. It is kept and put back as it is."""


@contextmanager
def signals_wait() -> Iterator[None]:
    """The program's own handlers of signals run after this block: Python drops what they raise
    while it forks, and a thread may be half started.

    In the block, Python calls another function for each signal. Nothing else changes: the flags of
    `signal.siginterrupt`, the handlers of C libraries, and the byte that Python writes to the
    descriptor of `signal.set_wakeup_fd` when a signal arrives.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread only
        return
    arrived: list[int] = []
    handlers: dict[int, Any] = {
        number: handler
        for number in signal.valid_signals()
        if callable(handler := signal.getsignal(number))
    }
    try:
        for number, handler in handlers.items():
            _waiting[number] = Waiting(handler, _action(number))
            _call(number, lambda number, _: arrived.append(number))
        yield
    finally:
        _put_handlers_back()
        _run(arrived, handlers)


def _call(number: int, handler: Any) -> None:
    """Let Python call `handler`. The action of the system stays."""
    action = _waiting[number].action
    signal.signal(number, handler)
    if action is not None:
        _sigaction(number, action, None)


def _run(arrived: list[int], handlers: dict[int, Any]) -> None:
    """Call the program's handlers of the signals that have arrived, also after one has raised. A
    signal sent again would write a second byte to the program's wakeup descriptor."""
    if not arrived:
        return
    try:
        handlers[arrived[0]](arrived[0], sys._getframe())
    finally:
        _run(arrived[1:], handlers)


def _action(number: int) -> Any:
    """The action of the system for a signal, as it is; None where it cannot be read."""
    action = ctypes.create_string_buffer(ACTION_BYTES)
    return action if _sigaction(number, None, action) == 0 else None


def _sigaction(number: int, new: Any, old: Any) -> int:
    try:
        return int(ctypes.PyDLL(None).sigaction(number, new, old))
    except (AttributeError, OSError):  # a system without this function
        return -1


def _put_handlers_back() -> None:
    """After the block, and in a worker."""
    for number, waiting in list(_waiting.items()):
        _call(number, waiting.handler)
        _waiting.pop(number, None)


in_forked_children(_put_handlers_back)


def discard(iterator: Any) -> None:
    """Kill the workers of an iterator, also of one that was not made completely."""
    iterator._shutdown = True  # nothing is left to do for __del__
    workers = iterator.__dict__.get("_workers") or []
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join(timeout=1.0)
    done = iterator.__dict__.get("_pin_memory_thread_done_event")
    if done is not None:
        done.set()
    for messages in (
        *iterator.__dict__.get("_index_queues", ()),
        iterator.__dict__.get("_worker_result_queue"),
    ):
        if hasattr(messages, "cancel_join_thread"):
            messages.cancel_join_thread()
            messages.close()


_of_parent = ByIdentity()
"""Iterators whose workers belong to this process, not to a worker that is forked from it: those
made here, and those that the program holds."""


def _forked() -> None:
    """In a forked child: there is nothing to shut down."""
    for iterator in _of_parent:
        iterator.__dict__["_shutdown"] = True


in_forked_children(_forked)


def in_one_line(problem: BaseException) -> str:
    """The type and the message of an error. The message of a worker's error is a traceback, and its
    last line holds the type and the message."""
    name, lines = type(problem).__name__, str(problem).strip().splitlines()
    if not lines:
        return name
    is_named = lines[-1].partition(":")[0].rpartition(".")[2] == name
    return lines[-1] if is_named else f"{name}: {lines[-1]}"
