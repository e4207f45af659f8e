"""Gives the simulated device to torch.cuda: loads the library, and replaces the functions of
torch.cuda that need CUDA.

sitecustomize.py runs it in every process that imports torch. SIMULATED_CUDA names the library,
SIMULATED_CUDA_MACHINE the configuration, SIMULATED_CUDA_CARDS the facts that only Python shows
(JSON), and SIMULATED_CUDA_SYNCS a file that gets a line for each synchronisation.

SIMULATED_CUDA_COMPILE names what compiling does: the seconds that each graph takes, and `forward`
or `backward` where that pass cannot be compiled.

docs/simulated.md lists what the device does, and where it differs from a GPU. Gaps: torch.compile
runs Dynamo's graphs operator by operator (there is no Inductor for this device), CUPTI
(torch.profiler) does not exist, and a CUDA graph does not compute its values again. In the modes
with CUDA graphs a call writes over the outputs of the call before.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import json
import os
import pickle
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CLOCK_HZ = 1.98e9
"""For torch.cuda._sleep, which counts cycles."""
MEMORY_FIGURES = (
    "allocated",
    "reserved",
    "allocated_peak",
    "reserved_peak",
    "inactive_split",
    "retries",
    "ooms",
    "free",
    "total",
)

CAN_FAIL = (
    "sim_launch",
    "sim_synchronize",
    "sim_set_device",
    "sim_need_context",
    "sim_memory",
    "sim_reset_peaks",
    "sim_set_fraction",
    "sim_empty_cache",
    "sim_clock",
    "sim_resize_storage",
    "sim_graph_reset",
    "sim_graph_replay",
    "sim_capture_begin",
    "sim_capture_end",
)
"""Functions of the library that return the text of their error, or nothing."""
library: Any = None
_keep: list[object] = []


def load() -> None:
    """Load the library. It registers itself with torch's libraries, so it must come before anything
    asks torch for CUDA."""
    global library
    library = ctypes.CDLL(os.environ["SIMULATED_CUDA"], ctypes.RTLD_GLOBAL)
    for name in CAN_FAIL:
        function = getattr(library, name)
        function.restype, function.errcheck = ctypes.c_char_p, _raise_error
    for name in ("sim_launch", "sim_set_fraction"):
        getattr(library, name).argtypes = [ctypes.c_int, ctypes.c_double]
    library.sim_total_memory.restype = ctypes.c_double
    library.sim_collectives.restype = ctypes.c_char_p
    library.sim_graph_new.restype, library.sim_graph_pool.restype, library.sim_new_pool.restype = (
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.c_uint64,
    )
    for name in (
        "sim_graph_reset",
        "sim_graph_delete",
        "sim_graph_replay",
        "sim_graph_pool",
        "sim_capture_end",
    ):
        getattr(library, name).argtypes = [ctypes.c_void_p]
    library.sim_capture_begin.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p]
    library.sim_set_kernel_s.argtypes, library.sim_queued_s.restype = (
        [ctypes.c_double],
        ctypes.c_double,
    )
    library.sim_resize_storage.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.sim_configure(os.environ["SIMULATED_CUDA_MACHINE"].encode())


def _raise_error(text: bytes | None, *_: object) -> None:
    if text is None:
        return
    message = text.decode()
    raise (
        sys.modules["torch"].AcceleratorError(message)
        if "device-side assert" in message
        else RuntimeError(message)
    )


def memory(index: int) -> dict[str, float]:
    """The figures of one card's allocator in this process, in bytes."""
    found = (ctypes.c_double * len(MEMORY_FIGURES))()
    library.sim_memory(index, found)
    return dict(zip(MEMORY_FIGURES, found, strict=True))


def clock(index: int = 0) -> dict[str, float]:
    """Kernels launched, and the seconds that all of them take."""
    found = (ctypes.c_double * 2)()
    library.sim_clock(index, found)
    return {"kernels": found[0], "busy_s": found[1]}


def visible() -> list[int]:
    """The cards of the machine that this process sees, in its own order."""
    found = (ctypes.c_int * 8)()
    return list(found[: library.sim_visible(found)])


def _watch_syncs(path: str) -> None:
    """Write the reason, file and line of each synchronisation that waits for the device. Calls by
    C++ threads have no line."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    here = str(Path(__file__).parent)

    def note(why: bytes) -> None:
        frame = sys._getframe(1)
        while frame is not None and (
            "/torch/" in frame.f_code.co_filename
            or frame.f_code.co_filename.startswith((here, "<"))
        ):
            frame = frame.f_back  # type: ignore[assignment]
        site = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "-"
        os.write(file, f"{time.perf_counter():.6f}\t{why.decode()}\t{site}\n".encode())

    callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(note)
    _keep.append(callback)
    library.sim_on_sync(callback)


def _nested(index: int) -> dict[str, Any]:
    """As torch._C._cuda_memoryStats: nested dictionaries."""
    m = memory(index)
    kinds = {
        "allocated_bytes": (m["allocated"], m["allocated_peak"]),
        "active_bytes": (m["allocated"], m["allocated_peak"]),
        "reserved_bytes": (m["reserved"], m["reserved_peak"]),
        "inactive_split_bytes": (m["inactive_split"], m["inactive_split"]),
    }
    stats: dict[str, Any] = {
        name: {"all": {"current": int(now), "peak": int(peak)}}
        for name, (now, peak) in kinds.items()
    }
    return stats | {"num_alloc_retries": int(m["retries"]), "num_ooms": int(m["ooms"])}


def _flat(nested: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in nested.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def recorded_collectives(
    includeCollectives: bool = True, includeStackTraces: bool = True, onlyActive: bool = False
) -> bytes:
    """As torch's `_dump_nccl_trace`: durations are there only where the user asks for them."""
    distributed, timed = (
        sys.modules["torch.distributed"],
        os.environ.get("TORCH_NCCL_ENABLE_TIMING", "0") == "1",
    )
    entries = []
    for line in library.sim_collectives().decode().splitlines():
        number, turn, size, created_ns, lasts_ms, kind, name, description = line.split("\t")
        entry = {
            "record_id": int(number),
            "collective_seq_id": int(turn),
            "p2p_seq_id": 0,
            "is_p2p": False,
            "process_group": (name, description),
            "profiling_name": f"nccl:{kind}",
            "input_sizes": [[int(size)]],
            "input_dtypes": ["Byte"],
            "output_sizes": [[int(size)]],
            "output_dtypes": ["Byte"],
            "time_created_ns": int(created_ns),
            "duration_ms": float(lasts_ms) if timed and float(lasts_ms) >= 0 else None,
        }
        entries.append(entry)
    groups = distributed.distributed_c10d._world.pg_names.items()
    config = {
        name: {"name": name, "desc": "", "ranks": str(distributed.get_process_group_ranks(group))}
        for group, name in groups
    }
    return pickle.dumps({"version": "2.10", "pg_config": config, "entries": entries})


class Graph:
    """What torch._C._CUDAGraph does: the base of torch's own torch.cuda.CUDAGraph."""

    def __new__(cls, keep_graph: bool = False) -> Any:
        graph = object.__new__(cls)
        graph._handle = library.sim_graph_new()
        return graph

    def __init__(self, keep_graph: bool = False) -> None:
        self._handle: int
        weakref.finalize(self, library.sim_graph_delete, self._handle).atexit = False

    def capture_begin(
        self, pool: tuple[int, int] | None = None, capture_error_mode: str = "global"
    ) -> None:
        library.sim_capture_begin(self._handle, pool[1] if pool else 0, capture_error_mode.encode())

    def capture_end(self) -> None:
        library.sim_capture_end(self._handle)

    def instantiate(self) -> None:
        """A captured graph can be replayed at once."""

    def replay(self) -> None:
        library.sim_graph_replay(self._handle)

    def reset(self) -> None:
        library.sim_graph_reset(self._handle)

    def pool(self) -> tuple[int, int]:
        return (0, library.sim_graph_pool(self._handle))

    def enable_debug_mode(self) -> None:
        """There is nothing to dump."""


WITH_GRAPHS = ("reduce-overhead", "max-autotune")
POOL_BYTES = 32 * 2**20
"""What the CUDA graphs of torch.compile keep at least, as long as the compiled code exists."""


class Replayed:
    """A graph of Dynamo, as CUDA graphs replay it: its outputs lie in a pool, and the next call
    writes over them."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run, self._pool = run, None
        self._outputs: list[Any] = []

    def __call__(self, *inputs: Any) -> Any:
        torch = sys.modules["torch"]
        given = [value for value in inputs if isinstance(value, torch.Tensor)]
        if (
            self._pool is None
            and (on_card := next((tensor for tensor in given if tensor.is_cuda), None)) is not None
        ):
            self._pool = torch.empty(POOL_BYTES, dtype=torch.uint8, device=on_card.device)
        with torch.no_grad():
            for output in self._outputs:
                output.fill_(float("nan"))
        outputs = self._run(*inputs)
        of_inputs = {tensor.untyped_storage()._cdata for tensor in given}
        self._outputs = [
            value.data
            for value in outputs
            if isinstance(value, torch.Tensor)
            and value.is_floating_point()
            and value.untyped_storage()._cdata not in of_inputs
        ]
        return outputs


@functools.cache
def compiler(mode: str | None, trouble: str) -> Callable[..., Any]:
    """The compiler of a mode: Dynamo compiles again for another one."""

    def compile_graph(module: Any, inputs: Any) -> Callable[..., Any]:
        torch = sys.modules["torch"]
        for word in trouble.split():
            if word.replace(".", "", 1).isdigit():
                time.sleep(float(word))
        at_once = "backward" in trouble and torch._functorch.config.force_non_lazy_backward_lowering
        if "forward" in trouble or at_once:
            raise RuntimeError("this graph cannot be compiled (simulated)")
        run = Replayed(module) if mode in WITH_GRAPHS else module

        def call(*inputs: Any) -> Any:
            outputs = run(*inputs)
            for output in outputs if "backward" in trouble else ():
                if isinstance(output, torch.Tensor) and output.requires_grad:
                    output.register_hook(fail)
            return outputs

        return call

    def fail(gradient: Any) -> Any:
        raise RuntimeError("the backward pass cannot be compiled (simulated)")

    return compile_graph


def install(torch: Any) -> None:
    """Replace what a CPU build of torch lacks, and what a CUDA build would ask CUDA."""
    cards = json.loads(os.environ["SIMULATED_CUDA_CARDS"])
    cuda = torch.cuda
    if path := os.environ.get("SIMULATED_CUDA_SYNCS"):
        _watch_syncs(path)

    def index_of(device: Any = None) -> int:
        if device is None:
            return library.sim_device()
        if isinstance(device, int):
            return device if device >= 0 else library.sim_device()
        index = torch.device(device).index
        return library.sim_device() if index is None else index

    class Event:
        """Makes generic events: torch compares their exact type."""

        def __new__(
            cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
        ) -> Any:
            return torch.Event(
                torch.device("cuda", library.sim_device()), enable_timing=enable_timing
            )

    class Stream:
        """Makes generic streams."""

        def __new__(cls, device: Any = None, priority: int = 0) -> Any:
            return torch.Stream(torch.device("cuda", index_of(device)), priority=priority)

    class StreamContext:
        """The chosen stream is current inside; none changes nothing."""

        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def __enter__(self) -> None:
            if self.stream is None:
                return
            self._device = library.sim_device()
            self._before = torch.accelerator.current_stream(self.stream.device)
            torch.accelerator.set_stream(self.stream)  # its device becomes the current one

        def __exit__(self, *_: object) -> None:
            if self.stream is None:
                return
            torch.accelerator.set_stream(self._before)
            library.sim_set_device(self._device, 0)

    def exchange(index: int) -> int:
        before = library.sim_device()
        if index >= 0:
            lazy_init()
            library.sim_set_device(index, 1)
        return before

    def exchange_back(index: int) -> int:
        """Without a context on the device, if there is none yet."""
        before = library.sim_device()
        library.sim_set_device(index, 0)
        return before

    def properties(device: Any = None) -> types.SimpleNamespace:
        lazy_init()
        seen = visible()
        index = index_of(device)
        if index >= len(seen):
            raise AssertionError("Invalid device id")
        card = cards[seen[index]]
        return types.SimpleNamespace(
            total_memory=int(library.sim_total_memory(seen[index])),
            name=card["name"],
            uuid=card["uuid"].removeprefix("GPU-"),
            major=card["capability"][0],
            minor=card["capability"][1],
            multi_processor_count=card["processors"],
            is_integrated=int(card["is_integrated"]),
        )

    def is_available() -> bool:
        """As torch: this asks the driver, which forked children then cannot use, unless torch is
        told to ask NVML."""
        if os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") != "1":
            library.sim_poison_forks()
        return bool(visible())

    def is_initialized() -> bool:
        return bool(cuda._initialized) and not library.sim_in_bad_fork()

    waiting_seeds: list[Callable[[], None]] = []

    def lazy_init() -> None:
        if is_initialized():
            return
        if library.sim_in_bad_fork():
            raise RuntimeError(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing,"
                " you must use the 'spawn' start method"
            )
        if not visible():
            raise RuntimeError("No CUDA GPUs are available")
        library.sim_initialise()
        cuda._initialized = True
        if not cuda.default_generators:
            cuda.default_generators = tuple(
                torch.Generator(device=f"cuda:{index}") for index in range(len(visible()))
            )
        for call in waiting_seeds:
            call()
        waiting_seeds.clear()

    def generator(device: Any = None) -> Any:
        lazy_init()
        return cuda.default_generators[index_of(device)]

    def nested(device: Any = None) -> dict[str, Any]:
        return _nested(index_of(device)) if is_initialized() else {}

    def figure(name: str) -> Callable[..., int]:
        """A figure of the allocator, as torch: 0 before the initialisation and in forked
        children."""
        return lambda device=None: int(memory(index_of(device))[name]) if is_initialized() else 0

    def initialised(function: Callable[..., Any]) -> Callable[..., Any]:
        """torch initialises CUDA in these functions, or refuses to in a forked child."""

        def call(*args: Any, **kwargs: Any) -> Any:
            lazy_init()
            return function(*args, **kwargs)

        return call

    def free_and_total(device: Any = None) -> tuple[int, int]:
        library.sim_need_context(index_of(device))
        found = memory(index_of(device))
        return int(found["free"]), int(found["total"])

    def seed(value: int, every_card: bool) -> None:
        """As torch: a seed does not initialise CUDA, it waits."""

        def give() -> None:
            for generator in (
                cuda.default_generators
                if every_card
                else [cuda.default_generators[library.sim_device()]]
            ):
                generator.manual_seed(int(value))

        if is_initialized():
            give()
        else:
            waiting_seeds.append(give)

    def is_capturing() -> bool:
        return bool(library.sim_is_capturing())

    replaced = {
        "is_available": is_available,
        "_is_in_bad_fork": lambda: bool(library.sim_in_bad_fork()),
        "device_count": lambda: len(visible()),
        "is_initialized": is_initialized,
        "_lazy_init": lazy_init,
        "init": lazy_init,
        "current_device": initialised(lambda: library.sim_device()),
        "set_device": initialised(lambda device: library.sim_set_device(index_of(device), 1)),
        "_exchange_device": exchange,
        "_maybe_exchange_device": exchange_back,
        "get_device_properties": properties,
        "get_device_name": lambda device=None: properties(device).name,
        "get_device_capability": lambda device=None: (
            properties(device).major,
            properties(device).minor,
        ),
        "is_bf16_supported": lambda including_emulation=True: True,
        "synchronize": initialised(lambda device=None: library.sim_synchronize(index_of(device))),
        "Event": Event,
        "Stream": Stream,
        "stream": lambda chosen: StreamContext(chosen),
        "StreamContext": StreamContext,
        "current_stream": initialised(
            lambda device=None: torch.accelerator.current_stream(
                torch.device("cuda", index_of(device))
            )
        ),
        "default_stream": initialised(
            lambda device=None: torch.Stream(
                stream_id=0, device_index=index_of(device), device_type=1
            )
        ),
        "set_stream": lambda chosen: torch.accelerator.set_stream(chosen),
        "memory_stats": lambda device=None: collections.OrderedDict(sorted(_flat(nested(device)))),
        "memory_stats_as_nested_dict": nested,
        "memory_allocated": figure("allocated"),
        "memory_reserved": figure("reserved"),
        "max_memory_allocated": figure("allocated_peak"),
        "max_memory_reserved": figure("reserved_peak"),
        "reset_peak_memory_stats": initialised(
            lambda device=None: library.sim_reset_peaks(index_of(device))
        ),
        "set_per_process_memory_fraction": initialised(
            lambda fraction, device=None: library.sim_set_fraction(index_of(device), fraction)
        ),
        "mem_get_info": initialised(free_and_total),
        "is_current_stream_capturing": is_capturing,
        "get_rng_state": lambda device="cuda": generator(device).get_state(),
        "set_rng_state": lambda state, device="cuda": generator(device).set_state(state),
        "manual_seed": lambda value: seed(value, every_card=False),
        "manual_seed_all": lambda value: seed(value, every_card=True),
        "initial_seed": lambda: generator().initial_seed(),
        "seed": lambda: generator().seed(),
        "_sleep": initialised(lambda cycles: library.sim_launch(-1, cycles / CLOCK_HZ)),
    }
    for name, value in replaced.items():
        for module in (cuda, cuda.memory, cuda.random):
            if module is cuda or hasattr(module, name):
                setattr(module, name, value)

    def refuse_profile(profile: Any) -> None:
        if torch.profiler.ProfilerActivity.CUDA in profile.activities:
            raise RuntimeError("the simulated device has no CUPTI")
        start(profile)

    def clone(storage: Any) -> Any:
        if storage.device.type != "cuda":
            return clone_storage(storage)
        bytes_of = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        return bytes_of.clone().untyped_storage()

    def without_nccl(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        """Gloo carries the collectives of the cards (see device.cpp)."""
        backend = backend or "cpu:gloo,cuda:gloo"
        init_process_group(backend.replace("nccl", "gloo"), *args, **kwargs | {"device_id": None})

    if torch.distributed.is_available():
        init_process_group, torch.distributed.init_process_group = (
            torch.distributed.init_process_group,
            without_nccl,
        )
        torch.distributed.is_nccl_available = lambda: True
        torch._C._distributed_c10d._dump_nccl_trace = recorded_collectives
        if not library.sim_has_values():
            # it would compare shapes that a card has exchanged
            torch.distributed._verify_params_across_processes = lambda *_: None

    def without_compiler(
        model: Any = None,
        *,
        backend: Any = "inductor",
        mode: Any = None,
        options: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Dynamo traces, guards, compiles again and breaks graphs as ever; its graphs run operator
        by operator in place of Inductor's kernels."""
        if backend in ("inductor", "cudagraphs"):
            trouble = os.environ.get("SIMULATED_CUDA_COMPILE", "")
            backend = (
                compiler("reduce-overhead" if backend == "cudagraphs" else mode, trouble)
                if trouble or mode in WITH_GRAPHS
                else "eager"
            )
            settings = {
                "triton.cudagraphs": mode in WITH_GRAPHS,
                "max_autotune": mode == "max-autotune",
            }
            compiled = compile_with(model, backend=backend, **kwargs)
            if hasattr(compiled, "dynamo_ctx"):  # which keeps the settings of Inductor
                compiled.dynamo_ctx.compiler_config = settings
            return compiled
        return compile_with(model, backend=backend, mode=mode, options=options, **kwargs)

    def resize(storage: Any, size: int) -> Any:
        if storage.device.type != "cuda":
            return resize_storage(storage, size)
        library.sim_resize_storage(storage._cdata, size)
        return storage

    resize_storage, torch.UntypedStorage.resize_ = torch.UntypedStorage.resize_, resize
    clone_storage, torch.storage._StorageBase.clone = torch.storage._StorageBase.clone, clone
    start, torch.profiler.profile.start = torch.profiler.profile.start, refuse_profile
    torch_python = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_python.so"))
    library.sim_on_fork(
        torch_python._ZN5torch5utils37register_fork_handler_for_device_initEN3c1010DeviceTypeE
    )
    cuda.default_generators = ()
    torch._C._cuda_memoryStats = nested
    torch._C._cuda_isCurrentStreamCapturing = cuda.graphs._cuda_isCurrentStreamCapturing = (
        is_capturing
    )
    torch._C._graph_pool_handle = cuda.graphs._graph_pool_handle = lambda: (
        0,
        library.sim_new_pool(),
    )
    torch._C._host_emptyCache = lambda: None
    # no frame of ours: the line is that of the program
    torch._C._cuda_emptyCache = functools.partial(library.sim_empty_cache)
    # a class of C++: an object is made its way, empty (no_kernels.cpp)
    if torch.version.cuda is not None:
        new, init = torch._C._CUDAGraph.__new__, torch._C._CUDAGraph.__init__
        Graph.__new__ = lambda cls, keep_graph=False: new(cls)
        begin = Graph.__init__

        def both(graph: Any, keep_graph: bool = False) -> None:
            init(graph, keep_graph)
            graph._handle = library.sim_graph_new()
            begin(graph)

        Graph.__init__ = both
    for name, method in vars(Graph).items():
        if callable(method) or isinstance(method, staticmethod):
            setattr(torch._C._CUDAGraph, name, method)
    compile_with, torch.compile = torch.compile, without_compiler
    torch.simulated_cuda = sys.modules[__name__]
