"""What the agent touches in the program: one row for each function, attribute, setting, descriptor, thread and file. Tells what the user gets from a touch,
what the program can notice of it, when it is there, how it is put back, and what happens where it cannot be done.

`docs/make_touches.py` makes a section of `docs/own-job-internals.md` of this table, and `tests/agent/test_touches.py` compares it with a live process. The
agent itself does not read it.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class When(Enum):
    """When a touch is there. In a job of `gpuconsole run`, all but ALWAYS and START need a program that imports torch."""

    ALWAYS = "always"
    START = "from the start of Python until torch is imported"
    OTHERS = "from the import of numpy, jax or tensorflow before torch"
    TORCH = "from the import of torch"
    IMPORT = "from the import of its module"
    MADE = "from the first such object that the program makes"
    STEP = "from the first step"
    FOUND = "from the first step that shows it"
    COUNTED = "once, in one step after the 20th"
    THREE = "once, in three steps after the 20th, on a GPU"
    SLOW = "for 15 s, where a finding says that loading is slow"
    TRIAL = "in a trial, and while its change is kept"
    PROBE = "in a probe: `--probe`, or `P`"
    WINDOW = "in a profiler window: `f`, or a probe"
    MEMORY = "with `--memory`, on a GPU"
    BLOCK = "in a block of `gpuconsole.watch()`"
    RAISED = "where an exception passes through our code"
    ENDS = "at the end of the process"
    NOW_AND_THEN = "for a moment, between two steps"


class Until(Enum):
    """When a touch is gone."""

    ITSELF = "gone when that is over"
    OFF = "gone when the agent goes off"
    LEAVE = "stays when the agent goes off, and does nothing then; gone at the end of a block of `gpuconsole.watch()`"
    CHANGE = "gone when the change is taken back, also where the console ends in a trial; a change that is kept stays"
    EXIT = "stays until the process ends"


class Touch(NamedTuple):
    """A row. Touched are all `names`, with spaces between them, of all `holders`, with commas between them. The holder `C+` stands for the classes derived
    from C, `C()` for the objects of C and of these classes. `gives`: what the user gets. `notices`: what the program can notice. `fails`: what happens
    where it cannot be done. The last two, and `until`, add to what the group says."""

    holders: str
    names: str
    gives: str
    when: When
    notices: str = ""
    until: Until | None = None
    """None: as in the group."""
    fails: str = ""


class Group(NamedTuple):
    """Touches of one kind, and what is true of all of them."""

    title: str
    notices: str
    until: Until
    fails: str
    touches: tuple[Touch, ...]


DATALOADER = "torch.utils.data.dataloader"
BASE_ITERATOR, ITERATORS = f"{DATALOADER}._BaseDataLoaderIter", f"{DATALOADER}._BaseDataLoaderIter()"
CLOUDPICKLES = ("cloudpickle", "joblib.externals.cloudpickle", "ray.cloudpickle", "pyspark.cloudpickle")
OPTIMIZER, MODULE = "torch.optim.optimizer.Optimizer", "torch.nn.modules.module.Module"
DDP, GRAPH = "torch.nn.parallel.distributed.DistributedDataParallel", "torch.cuda.graphs.CUDAGraph"
SETTINGS_OF_TRIAL = "Gone too where the agent itself fails in a trial."

FUNCTIONS = Group(
    "Functions of torch and of libraries",
    "The attribute is another function, with the name, documentation, parameters, defaults and local names of the plain one, which is its `__wrapped__`. Modules"
    " that import the function later get ours. A traceback, a tracer and the depth of recursion see one or two frames more; `warnings.warn` does not count them."
    " A call takes 1 to 5 µs more.",
    Until.LEAVE,
    "Where a version lacks the name, the figure is missing. Where our code in a call fails, the part or the agent is off, and this call goes on as without us."
    " What the program has put in place of ours stays.",
    (
        Touch("torch.autograd", "backward", "phase backward; loss; line of a failed allocation", When.IMPORT),
        Touch("torch.autograd", "grad", "phase backward", When.IMPORT),
        Touch(f"{OPTIMIZER}+", "step", "the end of a step; phase optimizer", When.MADE,
              "A class that inherits `step` gets an attribute of its own, with the mark `_gpuconsole_watched`."
              " The local names of the code of torch's own `step` and `zero_grad`, which take `*args, **kwargs`, are ours.",
              fails="A class that lets nobody set attributes is not watched: its steps are not seen."),
        Touch(f"{OPTIMIZER}()", "step", "the same, where a scheduler of the learning rate has given the object a `step` of its own", When.BLOCK),
        Touch(f"{OPTIMIZER}()", "step", "nothing: a scheduler that the program makes wraps the `step` that it finds", When.MADE,
              "The wrapper is torch's, and keeps ours for good.", Until.EXIT),
        Touch(OPTIMIZER, "__init__ zero_grad", "the line that makes the optimizer; phase optimizer", When.IMPORT),
        Touch("torch.amp.grad_scaler.GradScaler", "step", "a step whose update the scaler leaves out", When.IMPORT),
        Touch(f"{MODULE}+", "__call__", "phases forward and eval; samples and tokens; line of a failed allocation", When.FOUND,
              "The classes of the modules that the program calls get this attribute, those of the program too, with the mark `_gpuconsole_watched`. `__setattr__` of a"
              " metaclass runs.",
              fails="A class that lets nobody set attributes is not watched: its passes are not seen."),
        Touch(MODULE, "zero_grad", "phase optimizer", When.IMPORT),
        Touch(BASE_ITERATOR, "__init__ __next__", "phase data_wait; batches; where an epoch begins", When.IMPORT),
        Touch(f"{DATALOADER}.DataLoader", "__init__ __iter__", "the line that makes the DataLoader; the start of an epoch", When.IMPORT),
        Touch(f"{DATALOADER}.DataLoader", "_get_iterator", "new epochs with the loading processes of a change", When.TRIAL, until=Until.CHANGE),
        Touch("torch.utils.data._utils.worker", "_worker_loop", "which part of loading takes the time: starts a thread in each worker", When.IMPORT,
              "A worker process finds the function by its name."),
        Touch("torch.utils.data._utils.signal_handling", "_set_worker_pids _set_SIGCHLD_handler",
              "torch's SIGCHLD handler does not raise in the program where a worker of a change dies", When.TRIAL, until=Until.ITSELF,
              fails="The change is refused."),
        Touch("torch, torch.serialization", "save", "phase checkpoint", When.IMPORT),
        Touch("torch.distributed.checkpoint.state_dict_saver", "save async_save", "phase checkpoint", When.IMPORT),
        Touch("safetensors.torch", "save_file", "phase checkpoint", When.IMPORT),
        Touch("os, posix", "fsync fdatasync", "phase logging: waits for the disk", When.TORCH,
              "A Python function in place of a built-in one.", Until.OFF),
        Touch("logging.Logger", "handle", "phase logging", When.IMPORT,
              "Our frames have the file name of `logging`, so the caller of a record is found as before."),
        Touch("tqdm.std.tqdm", "refresh", "phase logging", When.IMPORT),
        Touch("torch.utils.tensorboard.writer.SummaryWriter", "add_scalar add_scalars add_histogram add_image flush", "phase logging", When.IMPORT),
        Touch("lightning.pytorch.core.module.LightningModule, pytorch_lightning.core.module.LightningModule", "log log_dict", "phase logging", When.IMPORT),
        Touch("lightning.pytorch.strategies.strategy.Strategy, pytorch_lightning.strategies.strategy.Strategy", "training_step", "phase forward", When.IMPORT),
        Touch("transformers.trainer.Trainer", "compute_loss", "phase forward", When.IMPORT),
        Touch("accelerate.optimizer.AcceleratedOptimizer", "step zero_grad", "phase optimizer", When.IMPORT),
        Touch("torch.distributed.distributed_c10d",
              "all_reduce all_gather all_gather_into_tensor all_gather_single reduce_scatter_tensor reduce_scatter_single broadcast barrier reduce all_gather_object broadcast_object_list",
              "phase comm", When.IMPORT),
        Touch(DDP, "__init__ _sync_buffers", "the exchange of gradients; phase comm", When.IMPORT, "`__init__` has a `__qualname__` of ours."),
        Touch("torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup", "wait_for_unshard", "phase comm: waits for gathered parameters on a GPU",
              When.IMPORT),
        Touch("torch._dynamo.eval_frame._TorchDynamoContext", "__call__", "steps and passes of compiled functions", When.IMPORT,
              "What `torch.compile` returns is wrapped too."),
        Touch(GRAPH, "capture_begin capture_end replay", "steps that are replays of a CUDA graph", When.TORCH),
        Touch("torch.cuda, torch.cuda.memory", "empty_cache", "a failed allocation that the program catches; calls in a few steps, with their line", When.MADE,
              "It has the mark `_gpuconsole_watched`."),
        Touch("torch.cuda", "synchronize", "waits of the host for the GPU, with their line", When.THREE, until=Until.ITSELF),
        Touch("torch._tensor.Tensor", "to cuda item tolist cpu nonzero __bool__ __int__ __float__ __index__",
              "copies from pageable memory; waits of the host for the GPU, with their line", When.THREE, "", Until.ITSELF,
              "Left alone where a tensor class handles these methods itself, or torch warns of synchronisations: a note says so."),
        Touch("torch._tensor.Tensor", "item tolist cpu numpy nonzero to cuda copy_ __bool__ __float__ __int__ __index__ __getitem__",
              "the line of each wait for the GPU in a trace", When.WINDOW, "On a GPU only.", Until.ITSELF,
              "Left alone where a tensor class handles these methods itself, and where the model is compiled."),
        Touch(", ".join(f"{copy}.{module}" for copy in CLOUDPICKLES for module in ("cloudpickle", "cloudpickle_fast")),
              "_extract_class_dict", "nothing: pickles by value hold none of our hooks, and load where there is no agent", When.IMPORT),
        Touch("dill._dill", "_get_typedict_type", "the same", When.IMPORT),
    ),
)  # fmt: skip

OBJECTS = Group(
    "Attributes of the program's objects",
    "`vars()` of the object shows them, and so does a copy or a pickle of it. Objects of other classes get no attribute.",
    Until.LEAVE,
    "The figure is missing, or the change is refused.",
    (
        Touch(ITERATORS, "_gpuconsole_place _gpuconsole_number _gpuconsole_loader _gpuconsole_stand_in",
              "which loader serves the training, and its settings", When.MADE),
        Touch(ITERATORS, "_next_index", "seconds of the sampler before the first batch of an epoch", When.MADE,
              "The method of the class runs again from the second batch on.", Until.ITSELF),
        Touch(ITERATORS, "_next_data _reset _gpuconsole_epoch _sampler_iter _persistent_workers _pin_memory _shutdown",
              "a change of the loader in the middle of an epoch, with the same indices in the same order", When.TRIAL,
              "The sampler is asked earlier than without the change.", Until.CHANGE,
              "Where the new workers fail, the program's own loader serves from the first batch that was not delivered."),
        Touch(f"{GRAPH}()", "_gpuconsole_begun _gpuconsole_captured", "steps and samples of a replay", When.FOUND),
        Touch(f"{OPTIMIZER}()", "_optimizer_step_pre_hooks _optimizer_step_post_hooks _optimizer_state_dict_post_hooks _step_supports_amp_scaling param_groups state",
              "a change of `optim`", When.TRIAL,
              "`fused` and `foreach` differ within an update; a state dict has the program's own. The step counters of Adam move to the device that the update wants.",
              Until.CHANGE, "An update of copies is tried first: where it fails, the change is refused. " + SETTINGS_OF_TRIAL),
        Touch(f"{MODULE}()", "_compiled_call_impl", "a change of `torch_compile`", When.TRIAL, "Passes run compiled code.", Until.CHANGE, SETTINGS_OF_TRIAL),
        Touch(f"{OPTIMIZER}(), {MODULE}(), {DATALOADER}.DataLoader(), {ITERATORS}, torch._tensor.Tensor()", "__weakref__",
              "settings, facts and memory of the objects in use", When.MADE,
              "The objects have weak references, so `weakref.getweakrefcount` is larger.",
              fails="A DataLoader without a hash is known by its class."),
    ),
)  # fmt: skip

SETTINGS = Group(
    "Settings of Python and of torch",
    "The setting has another value for that time, for all threads.",
    Until.ITSELF,
    "The figure is missing, the probe says why, or the change is refused.",
    (
        Touch("os.environ", "GPUCONSOLE_AGENT GPUCONSOLE_TOKEN PYTHONPATH", "the agent in each Python process of the job", When.ALWAYS,
              "Children inherit them. The folder of the job is first in `PYTHONPATH`, and not in `sys.path`.", Until.EXIT,
              "Python with -I, -E or -S loads no agent, and the console says so."),
        Touch("os.environ", "TORCHINDUCTOR_CACHE_DIR TRITON_CACHE_DIR", "compiled code in a private folder, with a change of `torch_compile`", When.TRIAL,
              "A folder that the user chose stays.", Until.CHANGE, "The change is refused where the folder is not private. " + SETTINGS_OF_TRIAL),
        Touch("os.environ", "KINETO_LOG_LEVEL TEARDOWN_CUPTI", "no lines of the profiler on stderr; no slower steps after it", When.WINDOW,
              "Variables that the program has set stay."),
        Touch("torch._inductor.config", "cpp_cache_precompile_headers", "compiled code in a private folder", When.TRIAL, until=Until.CHANGE),
        Touch("torch._inductor.runtime.caching.memoizers", "_disk_cache", "the same", When.TRIAL, until=Until.CHANGE),
        Touch("torch._dynamo.config", "suppress_errors", "a change of `torch_compile`: what cannot be compiled runs as before", When.TRIAL, until=Until.CHANGE),
        Touch("gc", "isenabled", "no collection of the program's objects because of ours, while torch's record of collectives is read", When.NOW_AND_THEN,
              "Another thread sees a garbage collector that is off, for about 28 ms in 32 s."),
        Touch("tempfile", "tempdir", "the check that torch's own folder of compiled code is private", When.TRIAL,
              "A later change of `TMPDIR` has no effect, as after any call of `tempfile.gettempdir`.", Until.EXIT),
        Touch("torch.backends", "cuda.matmul.fp32_precision mkldnn.matmul.fp32_precision cudnn.benchmark",
              "changes of `precision` and `cudnn_benchmark`; a pass in TF32 in a probe", When.TRIAL,
              "Torch's setting is changed in the way in which the program has set it.", Until.CHANGE, SETTINGS_OF_TRIAL),
        Touch("torch.autocast", "bfloat16", "a change of `precision`; a pass in bf16 in a probe", When.TRIAL, "Only within a pass of the model.", Until.CHANGE,
              "Where an output cannot be fp32 again, the change ends."),
        Touch("warnings", "filters", "none of torch's advice about workers of a change", When.TRIAL,
              "Python forgets which warnings it has shown: one with the action `default` may come a second time."),
        Touch("random, numpy.random, torch.default_generator", "state", "passes, and batches of a change, that draw no random number of the program", When.PROBE,
              "Put back bit for bit, in a trial too."),
        Touch("sys", "setswitchinterval", "lines that run between two functions of torch", When.STEP,
              "0.1 ms, or the program's own if that is shorter, in a fifth of the time. A program that sets it itself is left alone from then on; it may read 0.1 ms before."),
        Touch("sys", "setswitchinterval", "stack samples of the thread that loads", When.SLOW,
              "10 to 200 µs while a sample is waited for. A value that the program sets meanwhile is lost."),
        Touch("torch.utils._python_dispatch", "TorchDispatchMode", "FLOPs of a step", When.COUNTED, "A mode is on in the passes of this step.", Until.ITSELF,
              "Not counted where the program has a mode of its own, compiles its model, or has an operator that would round in another way."),
        Touch("torch._C", "DisableTorchFunction", "samples and tokens", When.FOUND, "For some µs at the begin of a pass, in its thread."),
        Touch("torch.cuda.memory", "_record_memory_history", "the lines that hold GPU memory", When.MEMORY,
              "An allocation takes some µs more. A history of the program's own ends.", Until.OFF, "A line says why there is no history."),
        Touch("torch.cuda", "_queued_calls", "the same, from the first allocation on", When.MEMORY, until=Until.OFF),
        Touch(f"{DDP}.reducer", "_set_ddp_runtime_logging_sample_rate", "the exposed part of the exchange of gradients", When.STEP,
              "On a CPU only: an iteration that DDP times takes 10 to 20 µs more.", Until.OFF, "DDP keeps its own rate."),
        Touch("torch._C._dynamo.eval_frame", "skip_code", "nothing: torch.compile compiles no code of ours", When.IMPORT, until=Until.EXIT),
        Touch("torch.profiler", "profile", "what runs in some steps, on the CPU and the GPU", When.WINDOW, "Some steps are slower; they do not count. Before CUDA 12.6, CUPTI stays attached,"
              " and later steps are some percent slower.", Until.ITSELF,
              "Refused where another profiler runs, where the program replays CUDA graphs, and for a probe where several processes train together."),
    ),
)  # fmt: skip

PROCESS = Group(
    "The process",
    "A look at the process from within, or at `/proc`, shows it.",
    Until.OFF,
    "Where the program takes it away (closes all descriptors, empties a list), the agent does without it, or goes off with a note.",
    (
        Touch("sys.meta_path", "_Finder", "the agent, once the program imports torch", When.START, "It stands first, and finds no module itself.", Until.ITSELF),
        Touch("sys.meta_path", "Finder", "hooks of a module that the program imports later", When.TORCH,
              "For a module with hooks, the loader has an `exec_module` of its own until the module runs.", Until.LEAVE,
              "The hooks of later modules are missing."),
        Touch("sys.path_importer_cache", "folder", "the agent", When.ALWAYS, "Python notes the folder of the job here before it is taken out of `sys.path`.",
              Until.EXIT),
        Touch("sys.modules", "agent", "the agent", When.TORCH, "`_gpuconsole_agent` and its modules. The end of a block of `gpuconsole.watch()` drops"
              " `gpuconsole.agent`, except `forks`.", Until.EXIT),
        Touch("sys.modules", "stdlib", "the agent", When.TORCH, "Modules of Python that the agent needs, and the program may not.", Until.EXIT),
        Touch("sys.modules", "torch", "FLOPs of a step", When.COUNTED, "`torch.utils.flop_counter`, and what it imports.", Until.EXIT),
        Touch("sys.modules", "sitecustomize", "the start of the agent", When.ALWAYS,
              "Ours runs first, and the program's own `sitecustomize` takes its place before the program starts.", Until.ITSELF),
        Touch("/proc/self/fd", "socket doorbell", "the connection to the console", When.TORCH,
              "Two descriptors that children do not inherit.", fails="The program may close all descriptors: the agent goes off with a note."),
        Touch("/proc/self/fd", "schedstat stat statm", "waits for a core; what a sampled thread does; memory of the process", When.STEP,
              "Up to four descriptors of /proc that stay open.",
              fails="The figure is missing, also where the program has closed the descriptor."),
        Touch("/proc/self/task", "sampler", "the lines of the program that take the time of each part of a step", When.STEP,
              "One thread that `threading.enumerate` does not know. It reads the stacks 20 times a second, receives no signal, and is gone before a fork and"
              " at the end.", fails="No line is named."),
        Touch("/proc/self/task", "loading", "which part of loading takes the time, without workers", When.SLOW,
              "One thread that `threading.enumerate` does not know, gone before a fork.", Until.ITSELF, "The part of loading is not named."),
        Touch("worker process of a DataLoader", "loading", "which part of loading takes the time, with workers; memory of the worker", When.IMPORT,
              "Each worker has one thread, as long as the folder of the job exists. The thread looks for two files four times a second. It reads"
              " /proc/self/smaps_rollup at most once a second, and for at most 1 % of the time.", Until.EXIT, "The part of loading is not named; the memory is not known."),
        Touch("child processes", "workers", "a change of the loader", When.TRIAL,
              "Unknown to `multiprocessing.active_children` and to torch's SIGCHLD handler. The numbers in the names of later processes are higher.", Until.CHANGE),
        Touch("worker process of a change", "worker_init_fn sys.stdout sys.stderr signal", "a change of the loader with the same output", When.TRIAL,
              "In the worker only: a process group of its own; handlers of the program's signals do not run, and `signal.set_wakeup_fd` is off; the system kills it"
              " with the program; what is printed goes to a file without a name in"
              " /dev/shm. Where something was printed, the program's own settings load the batch again, and the change ends.", Until.EXIT,
              "Without /dev/shm, lines that a worker prints may come in another order, until the change ends."),
        Touch("gc.callbacks", "collected", "Python's garbage collections, and their seconds", When.STEP),
        Touch("atexit", "ended", "the last steps, and why the program ended", When.TORCH, "It runs after the functions that the program has registered later.",
              Until.LEAVE, "The console sees the end of the connection only."),
        Touch("atexit", "note_others", "the note that a job trains with another framework", When.OTHERS, until=Until.EXIT),
        Touch("os.register_at_fork", "before after_in_child", "children that train are processes of the job; others hold no descriptor and no thread of the agent", When.TORCH,
              "One function of each kind, for all agents. A child frees nothing that the agent of its parent held.", Until.EXIT),
        Touch("gc", "collect", "the memory of a probe that failed is free again", When.PROBE, "Objects of the program that are no longer used go earlier.",
              Until.ITSELF),
        Touch("weakref.finalize", "atexit", "workers of a change end with their iterator", When.TRIAL, until=Until.EXIT),
        Touch("page-locked memory", "losses", "losses on a GPU without a wait", When.STEP, "4 KB, allocated once after the first step.", Until.EXIT,
              "There is no loss, and the times are those of the host."),
        Touch("CUDA stream of the model", "events", "phases on the timeline of the GPU", When.STEP, "Events at the marks of sampled steps, at most 256 kept.",
              Until.EXIT, "The times are those of the host."),
        Touch("CUDA device", "tensors kernels empty_cache synchronize", "passes on copies of the last batch; gain of a change", When.PROBE,
              "A probe frees its memory, and then torch's cache. Nothing is reset in the allocator's statistics: its peak may be that of a probe.", Until.ITSELF,
              "Not tried where there is no room."),
        Touch("the folder of the job", "seen loading-PID memory-PID window-N.json compiled", "notes, stack samples and memory of workers, traces, compiled code", When.ALWAYS,
              "Private, made by the console and removed with it. No other file is written.", Until.EXIT, "Nothing is written where the folder is gone."),
    ),
)  # fmt: skip

READS = Group(
    "What the agent only reads",
    "An audit hook (`sys.addaudithook`) sees `gc.get_objects`, `sys._current_frames`, `open`, `socket.connect`, `exec` and `compile`. A trace function (`sys.settrace`) sees"
    " the functions of the agent that run in its thread, as it sees those of torch.",
    Until.ITSELF,
    "The figure is missing. A property or a method of the program that raises counts as absent.",
    (
        Touch("byte code of the program's functions", "co_names", "whether the program waits for any of its child processes; read before workers are added",
              When.TRIAL),
        Touch("gc", "get_objects", "the modules that the program calls, once or twice after the first steps", When.STEP, "One look takes about 60 ms."),
        Touch("sys", "_current_frames", "lines of the program", When.FOUND),
        Touch("threading", "_active _native_id", "another thread that computes in Python, with its function", When.FOUND,
              "The CPU clocks of at most 32 threads are read each second, and the stacks of those that compute. No method of a thread runs."),
        Touch("sys", "last_exc last_value exc_info", "why the program ended; the line of a failed allocation", When.ENDS,
              "Texts and numbers are kept, no frame."),
        Touch("signal", "getsignal", "exceptions of the program's own handlers, which pass through", When.RAISED,
              "The agent has no signal handler. While workers of a change start, Python calls a function that notes the signal, and the program's handlers run"
              " after it: Python drops what they raise during a fork. What the system does with the signal stays."),
        Touch("sys", "stdout stderr", "whether the loading of a batch prints, before workers are added", When.TRIAL,
              "What was printed is flushed, at the batches before the workers start.", Until.ITSELF),
        Touch("call stack and byte code", "f_code f_lineno", "the lines that make loaders and optimizers; which optimizers step together; the framework that runs the loop", When.MADE,
              "No frame is kept."),
        Touch("arguments of a pass", "shape dtype", "samples and tokens", When.FOUND, "A property `shape` of a class of the program runs."),
        Touch(f"{MODULE}()", "__dict__ training", "evaluation without no_grad, which is no pass of training", When.FOUND),
        Touch(f"{MODULE}()", "parameters modules", "device, memory of the model, precision", When.STEP, "A method that the program overrides runs."),
        Touch("parameters and gradients", "device dtype _version grad data_ptr", "memory; steps without torch.optim", When.STEP,
              "Without an optimizer, copies of the four smallest weights are kept until the first update."),
        Touch("a loss", "item", "the loss", When.FOUND, "On a GPU a copy of the loss is queued. Nothing waits.",
              fails="A loss of a class of its own has no figure."),
        Touch("inputs of a pass", "args kwargs", "probes on the last batch", When.PROBE, "Kept alive until the probe has copied them.", Until.ITSELF,
              "Refused where a pass could not be undone: Python state, hooks, several models or devices."),
        Touch(f"{DATALOADER}.DataLoader()", "dataset sampler batch_size num_workers prefetch_factor pin_memory __hash__ __eq__",
              "settings of the loader; loaders told apart", When.MADE, "A property of a subclass of the program runs."),
        Touch("a dataset", "attributes", "open files, connections and tensors on a GPU, which processes cannot share", When.TRIAL,
              "Attributes are read without `__getattr__`. Of three batches, what their loading reads and writes is looked at.", Until.ITSELF, "The change is refused."),
        Touch("a dataset", "tensors __code__", "rows that are fetched one by one; whether an IterableDataset divides its samples", When.STEP,
              "The sizes of the first rows of a TensorDataset, and the names in the methods of an IterableDataset of the program. No method runs."),
        Touch("a batch of a DataLoader", "tensors", "the cost of sending a batch to another process", When.STEP,
              "The number and the sizes of the tensors of one batch. No method of the program runs."),
        Touch("/proc", "self/stat self/status self/fd PID/schedstat meminfo driver/nvidia/gpus", "CPU time of workers; files that workers would share; memory", When.NOW_AND_THEN,
              "A descriptor is open for a moment."),
        Touch("DDP logger", "_get_ddp_logging_data", "the exchange of gradients", When.STEP),
        Touch("torch._C._distributed_c10d", "_dump_fr_trace _dump_nccl_trace", "calls and bytes of the collectives, and the process that comes last, in a job of several processes", When.STEP,
              "A read takes about 14 µs of CPU time for each entry of torch's record, 28 ms for the usual 2000, and at most a thousandth of the time: the larger the record, the rarer the reads. Nothing"
              " waits. No variable is set: torch keeps the record by itself.", fails="Where torch keeps no record, the console says why."),
        Touch("forward of a model, FSDPModule, DDP", "__closure__ __wrapped__ _get_fsdp_state mixed_precision", "the number type in which the model computes", When.STEP,
              "Read in the first four steps. No function is called but torch's own."),
        Touch("torch._dynamo.utils", "counters", "compilations and their seconds", When.STEP),
        Touch("torch", "is_grad_enabled compiler.is_compiling _C._current_graph_task_id cuda.is_current_stream_capturing", "what a call belongs to", When.TORCH),
        Touch("torch", "is_anomaly_enabled is_anomaly_check_nan_enabled are_deterministic_algorithms_enabled _C._autograd._profiler_enabled backends.cudnn.deterministic",
              "modes that slow each step", When.STEP, "Read twice a second."),
        Touch("torch.distributed", "get_rank get_world_size", "the rank", When.STEP),
        Touch("C library", "mallinfo2", "memory of the process", When.STEP),
        Touch("torch.cuda", "memory_stats_as_nested_dict mem_get_info get_device_properties", "owners and peaks of GPU memory", When.STEP, "Nothing waits."),
        Touch("/sys/devices/system/node", "meminfo", "free memory of a GPU whose memory is a NUMA node", When.STEP, "A descriptor is open for a moment."),
        Touch("os", "sched_getaffinity", "whether the training thread may run on cores beside its GPU", When.STEP),
        Touch("wandb, mlflow, IPython", "run active_run get_ipython", "open runs of trackers; cells of a notebook", When.STEP,
              "Never imported by us. Nothing is logged."),
        Touch("sys", "argv orig_argv ps1", "the name of the script; the kind of each Python process", When.ALWAYS),
        Touch("os.environ", "RANK WORLD_SIZE LOCAL_WORLD_SIZE PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF TORCH_FR_BUFFER_SIZE TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_CUDA_EVENT_CACHE CUDA_LAUNCH_BLOCKING PYTORCH_NO_CUDA_MEMORY_CACHING NVIDIA_TF32_OVERRIDE NCCL_P2P_DISABLE TORCH_NCCL_BLOCKING_WAIT",
              "the rank; the allocator's settings; switches that slow a job on a GPU; whether torch's record of collectives can be read", When.TORCH),
        Touch("source files of the program", "crc32", "a patch of the right line after an edit", When.MADE, "16 bits of each line are kept, no text."),
    ),
)  # fmt: skip

GROUPS = (FUNCTIONS, OBJECTS, SETTINGS, PROCESS, READS)


def until(group: Group, touch: Touch) -> Until:
    """When `touch`, a row of `group`, is gone."""
    return touch.until or group.until
