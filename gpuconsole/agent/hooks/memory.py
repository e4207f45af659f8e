"""GPU memory of the program: who owns how much of it over the run, and at the moment at which an
allocation fails.

Nothing here allocates GPU memory, waits for a GPU or changes an exception. A record of a failed
allocation holds texts and numbers only: a reference to a frame of the traceback would keep the
tensors alive that a program frees before it tries again with a smaller batch.

The first steps after a change of the model or the optimizer are watched: an allocation that fails
in them is a consequence of the change.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from ..clock import now
from ..free_memory import free_and_total
from .borders.border import Border
from .evidence.memory_lines import history
from .guard import from_outside, unseen
from .recorder import (
    BACKWARD,
    COMM,
    DATA,
    EVAL,
    FORWARD,
    LOG,
    OPTIMIZER,
    SAVE,
    WITHOUT_GRADIENTS,
    get_ident,
)
from .structure import children, has_parameters, inner_modules, parameters_of
from .watch import is_program, module_name, program_frame, recorder, watch

OUT_OF_MEMORY = (
    "CUDA out of memory",
    "HIP out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
"""Begins, or is part of, the message of an error of torch: of its allocator, of the driver, of
cuBLAS."""
MAX_MESSAGE_LENGTH = 2000
FIRST_SAMPLE_S = 2.0
SAMPLE_EVERY_S = 60.0
"""Seconds from the first message about the owners to the next, then the longest time between two:
each time is twice the one before."""
MOVES = ("_apply", "to", "cuda")
"""Methods of a module that bring its parameters to a GPU."""
BATCH_KNOWN = 3
"""The step at whose end the batch is known."""
PHASES = {
    FORWARD: "forward",
    **dict.fromkeys(WITHOUT_GRADIENTS, "eval"),
    EVAL: "forward",  # as long as it keeps its tensors for a backward pass, whatever the mode
    BACKWARD: "backward",
    OPTIMIZER: "optimizer",
    SAVE: "checkpoint",
    LOG: "logging",
    COMM: "comm",
    DATA: "data_wait",
}
_INDEX = re.compile(r"\bGPU (\d+) has a total capacity")


class Tensors(NamedTuple):
    """Bytes on one GPU of the tensors that the program keeps from step to step. `trained`: of the
    parameters with gradients, so of all gradients after a backward pass; `elements`: the number of
    these parameters. `optimizer`: of the optimizer states that exist now."""

    parameters: float = 0.0
    trained: float = 0.0
    elements: int = 0
    gradients: float = 0.0
    optimizer: float = 0.0


class OwnerCounts(NamedTuple):
    """Figures of torch's allocator and of the driver for one GPU, in bytes. `split`: the free parts
    of segments that are partly in use. `free`: contains what the kernel can give back, if GPU and
    host share one memory. `retries`: how often an allocation fitted only after torch had freed its
    cache. `was_reset`: the program has reset the peaks."""

    allocated: float
    peak: float
    reserved: float
    split: float
    free: float
    total: float
    reserved_peak: float = 0.0
    retries: float = 0.0
    was_reset: bool = False

    @property
    def others(self) -> float:
        """The used memory that torch's allocator in this process has not reserved: the CUDA
        context, libraries, other processes."""
        return max(0.0, self.total - self.free - self.reserved)


# --- reading --------------------------------------------------------------------------------------


_highest: dict[int, float] = {}
"""The highest peak of the allocated bytes that was read, by GPU; infinite after a reset. A peak
falls only if the program resets it."""


def counted(index: int) -> OwnerCounts:
    """The present figures. Waits for nothing."""
    import torch

    stats = torch.cuda.memory_stats_as_nested_dict(index)
    free, total = free_and_total(index)
    now_and_peak = stats["allocated_bytes"]["all"]
    was_reset = now_and_peak["peak"] < _highest.get(index, 0.0)
    _highest[index] = float("inf") if was_reset else float(now_and_peak["peak"])
    return OwnerCounts(
        float(now_and_peak["current"]),
        float(now_and_peak["peak"]),
        float(stats["reserved_bytes"]["all"]["current"]),
        float(stats["inactive_split_bytes"]["all"]["current"]),
        free,
        total,
        float(stats["reserved_bytes"]["all"]["peak"]),
        float(stats.get("num_alloc_retries", 0)),
        was_reset,
    )


def tensors_of_program(roots: Iterable[Any], index: int | None = None) -> Tensors:
    """The tensors of the modules `roots` and of the program's optimizers, on the GPU `index`; None:
    on whatever device they are. A look at each tensor takes about 2 µs."""
    parameters: dict[int, Any] = {}
    states: list[Any] = []
    for optimizer in watch.alive(watch.optimizers):
        parameters.update({id(p): p for group in optimizer.param_groups for p in group["params"]})
        states += [
            value
            for values in optimizer.state.values()
            for value in values.values()
            if hasattr(value, "element_size")
        ]
    for root in roots:
        parameters.update({id(p): p for p in parameters_of(root)})
    trained = [p for p in parameters.values() if p.requires_grad]
    return Tensors(
        parameters=_bytes(parameters.values(), index),
        trained=_bytes(trained, index),
        elements=sum(tensor.numel() for tensor in local_parts(trained, index)),
        gradients=_bytes((p.grad for p in trained if p.grad is not None), index),
        optimizer=_bytes(states, index),
    )


def local_parts(tensors: Iterable[Any], index: int | None) -> Iterator[Any]:
    """This process's part of each tensor, where it lies on the GPU."""
    torch = sys.modules["torch"]
    place = torch.device("cuda", index) if index is not None else None
    usual = (torch.Tensor, torch.nn.Parameter)
    for tensor in tensors:
        # of a sharded parameter (DTensor)
        part = tensor if type(tensor) in usual else getattr(tensor, "_local_tensor", tensor)
        if place is None or part.device == place:
            yield part


def _bytes(tensors: Iterable[Any], index: int | None) -> float:
    # `nbytes` fails for sparse gradients
    return float(sum(part.numel() * part.element_size() for part in local_parts(tensors, index)))


def repeated_blocks(roots: Iterable[Any]) -> int:
    """The length of the longest list of modules of one class: the layers that activation
    checkpointing would recompute. 0: there is none."""
    longest = 0
    for root in roots:
        for module in inner_modules([root]):
            kinds = [type(child) for child in children(module) if has_parameters(child)]
            longest = max([longest, *(kinds.count(kind) for kind in set(kinds))])
    return longest if longest > 1 else 0


def moments(optimizer: Any) -> int:
    """Values that an optimizer keeps for each trained value, by its settings; -1: not known."""
    settings, name = optimizer.defaults, type(optimizer).__name__
    if "8bit" in name or "4bit" in name or "Lion" in name:
        return -1
    if "betas" in settings:
        return 2 + bool(settings.get("amsgrad"))
    if name == "SGD":
        return int(bool(settings.get("momentum")))
    return -1


def works_on_lists(optimizer: Any) -> bool:
    """Whether the update works on lists of tensors, which is torch's default on a GPU. The update
    then has temporary tensors as large as the gradients."""
    settings = optimizer.defaults
    return "foreach" in settings and settings["foreach"] is not False and not settings.get("fused")


# --- a failed allocation --------------------------------------------------------------------------


def is_out_of_memory(problem: BaseException | None) -> bool:
    """Whether a GPU had no memory for `problem`'s allocation. Ours are RuntimeErrors in all
    versions of torch."""
    if not isinstance(problem, RuntimeError):
        return False
    text = str(problem)
    return any(part in text for part in OUT_OF_MEMORY)


class AllocationPlace(NamedTuple):
    """A line of the program. `within`: the line of a library, other than torch, that ran for it;
    empty where there is none."""

    file: str = ""
    line: int = 0
    function: str = ""
    within: str = ""


def place_of(problem: BaseException, outside: FrameType | None) -> AllocationPlace:
    """The innermost line of the program in the traceback. `outside`: the frame that caught the
    exception; it and its callers count where the traceback has no line of the program, as in a
    backward pass."""
    place, within = AllocationPlace(), ""
    trace = problem.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if is_program(frame.f_code.co_filename):
            place, within = _place(frame, trace.tb_lineno), ""
        elif _is_library(frame):
            within = f"{_short(frame.f_code.co_filename)}:{trace.tb_lineno} {_name(frame)}"
        trace = trace.tb_next
    if not place.file:
        around = program_frame(outside)
        place = _place(around, around.f_lineno) if around is not None else place
    return place._replace(within=within)


def _place(frame: FrameType, line: int) -> AllocationPlace:
    return AllocationPlace(os.path.abspath(frame.f_code.co_filename), line, _name(frame))


def _name(frame: FrameType) -> str:
    return str(getattr(frame.f_code, "co_qualname", frame.f_code.co_name))


def _is_library(frame: FrameType) -> bool:
    """Whether a frame is that of a package other than torch, Python and the agent."""
    file, package = frame.f_code.co_filename, module_name(frame).partition(".")[0]
    return ("site-packages" in file or "dist-packages" in file) and package not in (
        "torch",
        __name__.partition(".")[0],
    )


def _short(file: str) -> str:
    """A path below the folder of packages."""
    return re.split(r"(?:site|dist)-packages[/\\]", file)[-1]


def phase_of(problem: BaseException) -> str:
    """Return what the program did: the segment under way, else by the functions of torch in the
    traceback. `move`: a module goes to the GPU."""
    if recorder.thread == get_ident():
        for code in reversed(recorder.stack):
            if code in PHASES:
                return PHASES[code]
    phase, trace = "other", problem.__traceback__
    while trace is not None:
        module, function = module_name(trace.tb_frame), trace.tb_frame.f_code.co_name
        if module.startswith("torch.autograd") or (module, function) == (
            "torch._tensor",
            "backward",
        ):
            return "backward"
        if module.startswith("torch.nn.modules") and (
            function in MOVES or function.endswith("_call_impl")
        ):
            phase = "move" if function in MOVES else "forward"
        elif module.startswith("torch.optim"):
            phase = "optimizer"
        trace = trace.tb_next
    return phase


class OwnedMemory:
    """The owners of GPU memory in this process. `send(failure)` reports a failed allocation,
    `send_lines(held)` what lines hold; None: nobody listens."""

    def __init__(self) -> None:
        self.send: Callable[[dict[str, Any]], None] | None = None
        self.send_lines: Callable[[dict[str, Any]], None] | None = None
        self.reset()

    def reset(self) -> None:
        """As in a process that has not trained yet."""
        self.off = ""
        """Why nothing is read any longer; empty: it is."""
        self.step_peak = 0.0
        """The peak of the allocated memory at the end of the last step that was looked at."""
        self.step_batch = 0
        """The largest batch of those steps."""
        self.pass_peak = 0.0
        """The peak of the passes before the first update."""
        self._failed_peak = 0.0
        """The peak when an allocation last failed: a peak that is not above it says nothing about
        the steps after it."""
        self.figures: OwnerCounts | None = None
        """The figures of the last look."""
        self._due = 0.0
        self._period = FIRST_SAMPLE_S
        self._tensors = Tensors()
        self._last = ("", -1)
        """The message of the last failed allocation that was sent, and its step."""

    @property
    def has_failed(self) -> bool:
        """Whether a failed allocation was sent."""
        return bool(self._last[0])

    # --- over the run -----------------------------------------------------------------------------

    def due(self, t: float) -> bool:
        """Whether the owners are to be looked at after the step that ended at `t`: after the first
        and the third step, which is the first with its batch known, then ever more rarely."""
        return not self.off and (t >= self._due or recorder.index == BATCH_KNOWN)

    @property
    def peak_failed(self) -> bool:
        """Whether the peak of the last look is that of an allocation that failed."""
        return self.figures is not None and self.figures.peak <= self._failed_peak

    @property
    def states(self) -> float:
        """Bytes of parameters, their gradients and optimizer states on the GPU, as they were last
        looked at."""
        return self._tensors.parameters + self._tensors.trained + self._tensors.optimizer

    def owners(self, index: int) -> dict[str, float]:
        """As `sample`; empty where that fails, and nothing is read any longer then. The rest of the
        agent goes on."""
        try:
            return self.sample(index)
        except Exception as problem:
            if from_outside(problem):
                raise
            self.off = f"{type(problem).__name__}: {problem}"
            return {}

    def sample(self, index: int) -> dict[str, float]:
        """Bytes by owner on the GPU `index`, at the largest allocation so far: an entry for each of
        OWNERS in `gpuconsole.model.memory`."""
        figures, tensors = counted(index), tensors_of_program(watch.alive(watch.roots), index)
        self._tensors = tensors
        self._due, self._period = now() + self._period, min(SAMPLE_EVERY_S, 2 * self._period)
        states = self.states
        owners = {
            "parameters": tensors.parameters,
            "gradients": tensors.trained,
            "optimizer": tensors.optimizer,
            "others": figures.others,
            "kept": max(0.0, figures.allocated - states),
            "total": figures.total,
        }
        self.figures = figures
        if self.peak_failed:
            return owners | {"unknown": max(0.0, figures.reserved - states)}
        self.step_peak, self.step_batch = figures.peak, watch.batch_size
        return owners | {
            "activations": max(0.0, figures.peak - states),
            "cache": max(0.0, figures.reserved - figures.peak),
        }

    @unseen
    def first_update(self, optimizer: Any) -> None:
        """The first update of the process begins: its optimizer has no states yet."""
        try:
            place = next(
                (p.device for group in optimizer.param_groups for p in group["params"]), None
            )
            if place is not None and place.type == "cuda":
                self.pass_peak = float(sys.modules["torch"].cuda.max_memory_allocated(place))
        except Exception as problem:
            if from_outside(problem):
                raise
            self.off = f"{type(problem).__name__}: {problem}"

    # --- an allocation fails ----------------------------------------------------------------------

    def failed(self, problem: BaseException, outside: FrameType | None) -> None:
        """Send what is known about a failed allocation, once for each. `outside`: the frame that
        caught the exception."""
        text = str(problem)[:MAX_MESSAGE_LENGTH]
        if self.send is None or self.off or self._last == (text, recorder.index):
            return
        self._last = (text, recorder.index)
        phase = phase_of(problem)
        failure: dict[str, Any] = {
            "message": text,
            **place_of(problem, outside)._asdict(),
            "phase": phase,
            "steps": recorder.index,
            "batch_size": watch.newest_batch if recorder.samples else watch.loader_batch,
            "step_peak_bytes": self.step_peak,
            "step_batch": self.step_batch,
            "pass_peak_bytes": self.pass_peak,
            "change": first_steps.failed(text),
            "settings": os.environ.get("PYTORCH_ALLOC_CONF")
            or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
            or "",
            **_read(text),
        }
        self._failed_peak, self.step_peak = failure.get("peak_bytes", 0.0), 0.0
        self.send(failure)
        if history.wanted and self.send_lines is not None:
            self.send_lines(
                history.report(int(failure["device"].partition(":")[2]), True, is_program)
            )

    def end(self, index: int | None) -> None:
        """The process ends: report the lines that held the memory of the GPU `index` at its largest
        allocation. None: the program used no GPU."""
        if not history.wanted or self.send_lines is None:
            return
        if index is None:
            self.send_lines({"device": "", "reason": "the job has trained on no GPU"})
            return
        self.send_lines(history.report(index, False, is_program))


def _read(text: str) -> dict[str, Any]:
    """What the allocator, the driver and the tensors say about the GPU that `text` names."""
    import torch

    match = _INDEX.search(text)
    index = int(match[1]) if match else _index_of_model()
    figures: dict[str, Any] = {"device": f"cuda:{index}"}
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        read = counted(index)
        figures |= {
            "allocated_bytes": read.allocated,
            "peak_bytes": read.peak,
            "reserved_bytes": read.reserved,
            "split_bytes": read.split,
            "free_bytes": read.free,
            "total_bytes": read.total,
        }
    roots, optimizers = watch.alive(watch.roots), watch.alive(watch.optimizers)
    tensors = tensors_of_program(roots, index)
    # they hold all gradients, also after zero_grad
    buckets = any(type(root).__name__ == "DistributedDataParallel" for root in roots)
    return figures | {
        "parameters_bytes": tensors.parameters,
        "trained_bytes": tensors.trained,
        "trained": tensors.elements,
        "gradients_bytes": tensors.trained if buckets else tensors.gradients,
        "optimizer_bytes": tensors.optimizer,
        "optimizer": ", ".join(sorted({type(each).__name__ for each in optimizers})),
        "moments": max(map(moments, optimizers))
        if optimizers and min(map(moments, optimizers)) >= 0
        else -1,
        "foreach": any(map(works_on_lists, optimizers)),
        "blocks": repeated_blocks(roots),
        "evaluates": bool(roots) and not any(root.training for root in roots),
        "autocast": watch.autocast,
    }


def _index_of_model() -> int:
    """The GPU of the first parameter that is on one; 0 where there is none. The current device may
    be a GPU that the program does not use."""
    places = (
        parameter.device for model in watch.alive(watch.roots) for parameter in parameters_of(model)
    )
    return next((int(place.index) for place in places if place.type == "cuda"), 0)


memory = OwnedMemory()


def raised(problem: BaseException) -> None:
    """An exception leaves a block that is watched, or is handled as the program empties the cache.
    Raises nothing of its own."""
    try:
        if is_out_of_memory(problem):
            memory.failed(problem, sys._getframe(1))
    except Exception as own:  # the explanation is lost; the program and the rest of the agent go on
        if from_outside(own):
            raise
        memory.off = f"{type(own).__name__}: {own}"


def at_end() -> str:
    """The process ends: report the exception that ends it, if no hook has seen it. Python keeps it
    in `sys.last_value` before it prints it. Returns the type of an exception that has nothing to do
    with a failed allocation; empty where there is none."""
    problem = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if problem is None:
        return ""
    raised(problem)
    return "" if any(map(is_out_of_memory, _with_causes(problem))) else type(problem).__name__


def _with_causes(problem: BaseException | None) -> Iterator[BaseException]:
    """An exception, and those during whose handling it was raised."""
    seen: set[int] = set()  # a program can make a circle of them
    while problem is not None and id(problem) not in seen:
        seen.add(id(problem))
        yield problem
        problem = problem.__cause__ or problem.__context__


class Emptied:
    """Who hears of calls of torch.cuda.empty_cache, with their seconds, as long as they are
    counted."""

    note: Callable[[float], None] | None = None
    begun = 0.0
    """When the call under way began."""


emptied = Emptied()


def begin_emptying(frame: FrameType) -> bool:
    """The program empties the cache of the allocator, which is seen for two reasons. Its calls are
    counted in a few steps. And a program that catches an error of memory calls it before the
    program tries again, so the agent sees the error there."""
    problem = sys.exc_info()[1]
    if problem is not None:
        raised(problem)
        problem = None  # this frame must not keep the tensors of the traceback
    emptied.begun = now()
    return emptied.note is not None


def end_emptying(failed: bool) -> None:
    """The cache is empty."""
    if emptied.note is not None:
        emptied.note(now() - emptied.begun)


BORDERS = (Border("torch.cuda.memory", "empty_cache", begin_emptying, end_emptying, "copies"),)


# --- the first steps after a change ---------------------------------------------------------------

FIRST_STEPS = 2
"""Steps after a change of the model or the optimizer in which an allocation that fails is taken for
a consequence of the change."""


class FirstSteps:
    """The first steps of the newest change that may need memory of the GPU."""

    def __init__(self) -> None:
        self._change = self._failed = ""
        self._take_back: Callable[[], object] = lambda: None
        self._end = 0

    def begin(self, change: str, take_back: Callable[[], object]) -> None:
        """`change`: `precision=bf16`. `take_back` takes it back."""
        self._change, self._take_back, self._failed, self._end = (
            change,
            take_back,
            "",
            recorder.index + FIRST_STEPS,
        )

    def end(self) -> None:
        """The program's own setting is back."""
        self._change = self._failed = ""

    @property
    def under_way(self) -> bool:
        return bool(self._change) and recorder.index < self._end

    def failed(self, problem: str) -> str:
        """An allocation has failed. The change goes at once: the program may try again, and would
        fail again. Returns the change; empty where its first steps are over."""
        if not self.under_way:
            return ""
        self._failed = problem.partition("\n")[0]
        try:
            self._take_back()
        except Exception as own:
            # there is no room for that either: `why_failed` tells that the change has failed
            if from_outside(own):
                raise
        return self._change

    def why_failed(self) -> str:
        """Why the change failed, once; empty where no allocation has failed in its first steps."""
        if not self._failed:
            return ""
        why = f"out of memory in the first steps with {self._change}: {self._failed}"
        self.end()
        return why


first_steps = FirstSteps()
