"""Functions of torch and of other libraries that are a segment of their own: saving, logging,
collectives, compiled functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any

from . import tracing
from .borders.border import Border
from .guard import OWN, switch
from .recorder import BACKWARD, COMM, COMPILED, GAP, LOG, OPTIMIZER, SAVE, WHOLE, ZERO
from .recorder import OWN as OWN_WORK
from .watch import count_samples, recorder, watch

COLLECTIVES = (
    "all_reduce all_gather all_gather_into_tensor all_gather_single reduce_scatter_tensor"
    " reduce_scatter_single broadcast barrier reduce all_gather_object broadcast_object_list"
)


def segment(module: str, path: str, code: int, hot: bool = False, records: bool = False) -> Border:
    """A function whose calls are segments with `code`."""

    def begin(frame: FrameType) -> bool:
        stack = recorder.stack
        if not recorder.thread or code in stack or stack[-1] == OWN_WORK or tracing.is_compiling():
            return False
        if code == WHOLE:
            if not tracing.grad_enabled():
                return False
            recorder.passes += 1
        recorder.enter(code)
        return True

    return Border(module, path, begin, _end_call, "calls", hot, records)


def _end_call(failed: bool) -> None:
    if recorder.thread:
        recorder.leave()


def _leave_calls() -> None:
    """These segments are not ended any longer. Raises RuntimeError where one may be open that could
    as well be of an optimizer or a backward pass."""
    recorder.drop((ZERO, SAVE, LOG, COMM, WHOLE))
    if OPTIMIZER in recorder.stack or BACKWARD in recorder.stack:
        raise RuntimeError("it failed within an optimizer step or a backward pass")


switch.undo_part["calls"] = _leave_calls


def on_torch(module: Any) -> None:
    """Take the functions of torch that say what it does now."""

    def capturing() -> bool:
        return bool(module.cuda.is_current_stream_capturing())

    compiler = module.compiler
    tracing.use(compiler.is_compiling, module.is_grad_enabled, capturing)


# --- torch.compile --------------------------------------------------------------------------------


class Compiled:
    """Compiled functions. torch.compile leaves out the hooks of an optimizer that steps within one:
    the weights then show that a step ended."""

    def __init__(self) -> None:
        self.end_step: Callable[[], None] | None = None
        """Ends a step of the program, and begins the account if need be."""
        self.stepped = False
        """Whether an optimizer has stepped within the function, where torch.compile left it out."""
        self.used = False
        """Whether a compiled function has run."""
        self.on_use: Callable[[], None] | None = None
        """Called before one runs."""
        self._first = self._index = self._version = 0
        """Of the call under way: the segments before it, the number of the step, and the version of
        the weights."""
        self._entered = False

    def begin(self, frame: FrameType) -> bool:
        """A compiled function begins. It is a segment where no other border is around it."""
        self.used = True
        recorder.mark_rest()
        if self.on_use is not None:
            self.on_use()
        if recorder.thread and recorder.stack[-1] != GAP:
            return False
        if not recorder.thread and recorder.index:
            return False
        self._index, self._version, self._entered = (
            recorder.index,
            weights_version(),
            recorder.thread != 0,
        )
        if self._entered:
            recorder.enter(COMPILED)
            recorder.passes += 1
            self._first, self.stepped = len(recorder.codes), False
            if not recorder.samples:
                names = frame.f_locals
                count_samples(names.get("args", ()), names.get("kwargs", {}))
        return True

    def end(self, failed: bool) -> None:
        """The compiled function has returned."""
        if self._entered:
            if not recorder.thread:
                return
            recorder.leave()
        if (
            recorder.index == self._index
            and self.end_step is not None
            and (self.stepped or weights_version() != self._version)
        ):
            # a whole step: its parts are not told apart, also where torch.compile left some of them
            # out
            if self._entered:
                recorder.join_segments(self._first)
            self.end_step()


def weights_version() -> int:
    """Changes whenever an optimizer that is known has stepped, in whatever way."""
    version = 0
    for optimizer in watch.alive(watch.optimizers):
        for group in optimizer.param_groups[-1:]:
            parameters = group["params"]
            version += sum(
                parameter._version for parameter in parameters[:: 1 + len(parameters) // 4]
            )
    return version


def on_dynamo(module: Any) -> None:
    """Make torch.compile leave out the agent's code: after a graph break it would compile what
    Python calls at a border."""
    skip = getattr(module, "skip_code", None)
    if skip is not None:
        for code in own_code():
            skip(code)


def own_code() -> set[CodeType]:
    """All code of the agent."""
    package = __name__.partition(".hooks")[0]
    codes: set[CodeType] = set()
    waiting: list[Any] = [
        value
        for name, module in list(sys.modules.items())
        if name.startswith(package) and module is not None
        for value in vars(module).values()
    ]
    while waiting:
        value = waiting.pop()
        if isinstance(value, CodeType):
            if value not in codes:
                codes.add(value)
                waiting.extend(value.co_consts)
        elif isinstance(value, FunctionType):
            waiting += [value.__code__, getattr(value, "__wrapped__", None)]
        elif isinstance(value, type) and value.__module__.startswith(package):
            waiting.extend(vars(value).values())
        elif isinstance(value, property):
            waiting.append(value.fget)
    return {code for code in codes if code.co_filename.startswith(OWN)}


compiled = Compiled()

_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
_WRITER = "add_scalar add_scalars add_histogram add_image flush"
BORDERS = (
    Border(
        "torch._dynamo.eval_frame",
        "_TorchDynamoContext.__call__",
        compiled.begin,
        compiled.end,
        inner=("compile_wrapper", "_fn"),
    ),
    segment("torch.optim.optimizer", "Optimizer.zero_grad", ZERO, hot=True, records=True),
    segment("torch.nn.modules.module", "Module.zero_grad", ZERO, hot=True),
    segment("torch.serialization", "save", SAVE),
    *(segment("torch.distributed.distributed_c10d", name, COMM) for name in COLLECTIVES.split()),
    *(
        segment("torch.distributed.checkpoint.state_dict_saver", name, SAVE)
        for name in ("save", "async_save")
    ),
    segment("safetensors.torch", "save_file", SAVE),
    *(
        segment("torch.utils.tensorboard.writer", f"SummaryWriter.{name}", LOG)
        for name in _WRITER.split()
    ),
    segment("tqdm.std", "tqdm.refresh", LOG),
    segment("logging", "Logger.handle", LOG),
    segment("accelerate.optimizer", "AcceleratedOptimizer.step", OPTIMIZER),
    segment("accelerate.optimizer", "AcceleratedOptimizer.zero_grad", ZERO),
    segment("transformers.trainer", "Trainer.compute_loss", WHOLE, hot=True),
    *(
        segment(f"{name}.strategies.strategy", "Strategy.training_step", WHOLE, hot=True)
        for name in _LIGHTNING
    ),
    *(
        segment(f"{name}.core.module", f"LightningModule.{call}", LOG)
        for name in _LIGHTNING
        for call in ("log", "log_dict")
    ),
)
