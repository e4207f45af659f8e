"""Experiments on a user's job, with consent: the probes that it allows, and the profiler window.

Passes run on copies of the last inputs of the program. Their gradients come from `torch.autograd.grad`, so the gradients of the parameters stay as
they are. Random state and buffers are put back. The next losses of the program are the same bits with these probes as without.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ... import probes
from ...clock import ThreadTimes, now
from ...loop import Signals
from ...probes import ProbeError, StackSamples, refuse_compiled
from ...protocol import Knobs, Message, Profile, Signal, message
from ...world import World
from ..guard import switch
from ..recorder import BACKWARD, DATA, FORWARD, GAP, OWN, get_ident
from ..watch import program_frame, recorder, watch

Probing = Generator[None, None, Signals]
"""A probe under way: it yields where it waits for further steps of the program, and returns signals."""

# --- the last pass of the program ---------------------------------------------------------------------------

WAIT_STEPS = 50
"""Steps within which the inputs of a pass must come."""
LONGEST_HOLD_S = 1.8
STATE_STEPS = 2
"""Steps between the two looks at the attributes of the modules."""
HELD = ("_parameters", "_buffers", "_modules", "training")
SIMPLE = (int, float, complex, bool, str, bytes, type(None))
MOST_ITEMS = 64


class JobTimed:
    """The program, for timed work on `device`."""

    def __init__(self, account: Any, device: Any) -> None:
        self.account, self.device, self.world = account, device, World()

    def release_cached_memory(self) -> None:
        """The cache belongs to the program."""


class LastPass(JobTimed):
    """The module that the program called last, and copies of its arguments: the subject of probes (see `loop.Subject`)."""

    longest_hold_s = LONGEST_HOLD_S
    pass_note = "; without the loss function of the script"

    def __init__(self, module: Any, arguments: tuple[Any, Any], account: Any, knobs: Knobs) -> None:
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        super().__init__(account, self._parameters[0].device)
        self.model, self.knobs = module, knobs
        self._tensors: list[Any] = []
        self.batch = self._copied(arguments)

    @property
    def passes_per_step(self) -> int:
        return watch.micro_batches

    def repeated(self, batch: Any, factor: int) -> Any:
        import torch

        sizes = [tensor.shape[0] for tensor in self._tensors if tensor.ndim]
        if len(set(sizes)) != 1 or not sizes[0]:
            raise ProbeError("the inputs of the model have different first dimensions, so the batch is not known")
        return mapped(batch, lambda tensor: torch.cat([tensor] * factor) if tensor.ndim else tensor)

    def run_pass(self, batch: Any) -> None:
        import torch

        with torch.enable_grad(), autocast(self.device.type):
            torch.autograd.grad(scalar(self.model(*batch[0], **batch[1])), self._parameters, allow_unused=True)

    def drop_gradients(self) -> None:
        """The gradients of the parameters are those of the program."""

    def silence(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def preserved(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _copied(self, arguments: Any) -> Any:
        def copy(tensor: Any) -> Any:
            copied = tensor.detach().clone().requires_grad_(tensor.requires_grad)
            self._tensors.append(copied)
            return copied

        return mapped(arguments, copy)


def last_pass(loop: Any) -> Generator[None, None, LastPass]:
    """Wait for the next pass of the program, and keep its inputs. Raises ProbeError where a pass must not be repeated."""
    if loop.knobs.get("nproc", 1) != 1:
        raise ProbeError("several processes train together; a pass of one of them alone would disturb their exchange")
    watch.keep_inputs, watch.last_inputs = True, None
    before: dict[str, Any] | None = None
    first = recorder.index
    try:
        while True:
            yield
            kept = watch.last_inputs
            module = kept[0]() if kept is not None else None
            if module is not None and kept is not None:
                if before is None:
                    check(module)
                    before, first = python_state(module), recorder.index
                elif recorder.index - first >= STATE_STEPS:
                    break
            elif recorder.index - first > WAIT_STEPS:
                raise ProbeError("no forward pass was seen")
        changed = [name for name, value in python_state(module).items() if before.get(name) != value]
        if changed:
            raise ProbeError(f"the model keeps Python state that a pass changes ({changed[0]}); it could not be put back")
        return LastPass(module, kept[1:], loop.account, loop.knobs)
    finally:
        watch.keep_inputs, watch.last_inputs = False, None


def check(module: Any) -> None:
    """Raises ProbeError where a pass of `module` alone would not be a step's pass, or would have effects outside of torch."""
    codes = recorder.done[-1][2] if recorder.done else []
    if codes.count(FORWARD) > max(1, codes.count(BACKWARD)):
        raise ProbeError("a step calls several models")
    for name, inner in module.named_modules():
        if inner._forward_hooks or inner._forward_pre_hooks or inner._backward_hooks or inner._backward_pre_hooks:
            raise ProbeError(f"the module {name or type(module).__name__} has hooks, which may keep state")
    if any(parameter._backward_hooks for parameter in module.parameters()):
        raise ProbeError("parameters have gradient hooks, which may keep state")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ProbeError("the model has no parameter to train")


def scalar(output: Any) -> Any:
    """A loss: that of the output, if the model computes one; else the sum of all floating-point outputs."""
    loss = getattr(output, "loss", None)
    if loss is None and isinstance(output, dict):
        loss = output.get("loss")
    if loss is not None and getattr(loss, "ndim", 1) == 0:
        return loss
    tensors: list[Any] = []
    mapped(output, tensors.append)
    with_gradient = [tensor for tensor in tensors if tensor.requires_grad]
    if not with_gradient:
        raise ProbeError("the output of the model has no gradient")
    if len(with_gradient) == 1 and with_gradient[0].ndim == 0:
        return with_gradient[0]
    return sum(tensor.float().sum() for tensor in with_gradient)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with `change` applied to each tensor in its tuples, lists and dictionaries."""
    if hasattr(value, "data_ptr") and hasattr(value, "detach"):
        return change(value)
    if isinstance(value, dict):
        items = {key: mapped(item, change) for key, item in value.items()}
        return items if type(value) is dict else _like(value, items)
    if isinstance(value, (tuple, list)):
        parts = [mapped(item, change) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _like(value: Any, items: dict[Any, Any]) -> Any:
    try:
        return type(value)(items)
    except TypeError:
        return items


def python_state(module: Any) -> dict[str, Any]:
    """What the modules keep beside parameters and buffers: numbers, texts, sizes of containers, versions of tensors."""
    state: dict[str, Any] = {}
    for path, inner in module.named_modules():
        for name, value in inner.__dict__.items():
            if name not in HELD:
                state[f"{path}.{name}".lstrip(".")] = _print_of(value, 2)
    return state


def _print_of(value: Any, depth: int) -> Any:
    if isinstance(value, SIMPLE):
        return value
    if hasattr(value, "_version") and hasattr(value, "data_ptr"):
        return id(value), value._version
    if isinstance(value, (tuple, list, set, frozenset, dict)):
        items = list(value.values() if isinstance(value, dict) else value)
        inner = tuple(_print_of(item, depth - 1) for item in items[:MOST_ITEMS]) if depth else ()
        return id(value), len(items), inner
    held = getattr(value, "__dict__", None)
    if depth and isinstance(held, dict) and not hasattr(value, "named_modules"):
        return id(value), tuple((name, _print_of(item, depth - 1)) for name, item in list(held.items())[:MOST_ITEMS])
    return id(value)


def autocast(kind: str) -> Any:
    """The autocast of the program's own passes, for a device of this kind."""
    import torch

    if not watch.autocast:
        return nullcontext()
    return torch.autocast(kind, dtype=torch.bfloat16 if watch.autocast == "bf16" else torch.float16)


# --- steps of the optimizer on copies -----------------------------------------------------------------------

COPIES = 8
"""Copies of the parameters in memory: for both sides the parameters and two moments, once the gradients, and one to spare."""


def updates_on_copies(optimizers: list[Any]) -> tuple[Any, Callable[[], None], Callable[[], None]]:
    """The device of the parameters, and steps of AdamW on copies of them: in the implementation of the last of `optimizers`, and fused. The
    optimizer is only read. Raises ProbeError where there is no fused form of it, or no room for the copies."""
    import torch

    update: Any = importlib.import_module("torch.optim.adamw").adamw  # the function form: no optimizer object that hooks would see
    adamw = [optimizer for optimizer in optimizers if type(optimizer) is torch.optim.AdamW]
    if not adamw:
        raise ProbeError("the optimizer is not AdamW, and the probe knows no fused form of it")
    groups = [group for group in adamw[-1].param_groups if group["params"]]
    if any(group.get("fused") for group in groups):
        raise ProbeError("the optimizer is fused already")
    if any(group.get("amsgrad") or group.get("capturable") or group.get("differentiable") for group in groups):
        raise ProbeError("amsgrad, capturable or differentiable AdamW has no fused form here")
    parameters = [parameter for group in groups for parameter in group["params"] if parameter.grad is not None or parameter.requires_grad]
    if any(parameter.is_sparse or parameter.is_complex() for parameter in parameters):
        raise ProbeError("parameters are sparse or complex")
    device = parameters[0].device
    needed, free = COPIES * sum(p.numel() * p.element_size() for p in parameters), free_bytes(device)
    if free is not None and needed > free:
        raise ProbeError(f"the copies need {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free")
    group = groups[0]
    beta1, beta2 = group["betas"]
    settings = {
        "amsgrad": False,
        "beta1": beta1,
        "beta2": beta2,
        "lr": float(group["lr"]),
        "weight_decay": group["weight_decay"],
        "eps": group["eps"],
        "maximize": bool(group.get("maximize")),
    }
    gradients = [torch.full_like(parameter, 1e-3) for parameter in parameters]  # the cost does not depend on the values

    def side(**form: bool) -> Callable[[], None]:
        copies = [parameter.detach().clone() for parameter in parameters]
        moments = [[torch.zeros_like(copy) for copy in copies] for _ in range(2)]
        steps = [torch.zeros((), dtype=torch.float32, device=device if form.get("fused") else "cpu") for _ in copies]

        def step() -> None:
            with torch.no_grad():
                update(copies, gradients, *moments, [], steps, **settings, **form)

        return step

    foreach = bool(group["foreach"]) if group.get("foreach") is not None else device.type == "cuda"
    return device, side(foreach=foreach, fused=False), side(foreach=False, fused=True)


def free_bytes(device: Any) -> float | None:
    """Memory that new tensors may use; None where it is not known."""
    if device.type == "cuda":
        import torch

        return float(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(float(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None


# --- the lines of the script --------------------------------------------------------------------------------

LOOK_S = 0.001
"""Length of a look at the CPU time of the training thread, after a sample within the script's own lines."""
LEAST_LOOKED_S = 0.005
"""Seconds of such looks at one line, below which nothing is said about its CPU time."""
LENGTH_S = 1.0
LEAST_STEPS = 4
MOST_S = 10.0
_running: list[JobSamples] = []
_registered: list[bool] = []


class JobSamples(StackSamples):
    """Stack samples of the program. A function of the program that makes batches counts as the script's own lines. The samples also end before the
    process forks: Python warns where a process with threads forks.

    `looked`: by place, the seconds that the samples looked at the thread, and the seconds in which it used a core or waited for one. A look that
    lasts into another segment does not count. `times`: those of the training thread, which makes this object.
    """

    def __init__(self, times: ThreadTimes) -> None:
        self.looked: dict[str, tuple[float, float]] = {}
        self._times = times
        self._cpu_clock = time.pthread_getcpuclockid(get_ident()) if times.available else 0
        if not _registered:
            _registered.append(True)
            os.register_at_fork(before=stop_all)
        super().__init__()
        _running.append(self)

    def stop(self) -> None:
        if self in _running:
            _running.remove(self)
            super().stop()

    def sample(self) -> None:
        code = recorder.stack[-1]
        if code != OWN:
            place = self._place() if code in (GAP, DATA) else ""
            self.places.append(place)
            if place and self._times.available:
                self._look(place)

    def _place(self) -> str:
        if recorder.codes and recorder.codes[-1] == FORWARD:
            return ""  # the loss, most often
        frame = program_frame(sys._current_frames().get(recorder.thread))
        if frame is None:
            return ""
        code = frame.f_code
        return f"{os.path.basename(code.co_filename)}:{frame.f_lineno} {code.co_name}"

    def _look(self, place: str) -> None:
        segment, begun, busy = _segment(), now(), self._busy_s()
        self.stopping.wait(LOOK_S)
        seconds, busy = now() - begun, self._busy_s() - busy
        if _segment() == segment:
            total, used = self.looked.get(place, (0.0, 0.0))
            self.looked[place] = total + seconds, used + busy

    def _busy_s(self) -> float:
        """Seconds of the training thread on a core or on a run queue. /proc counts the time on a core only at the ticks of the scheduler while the
        thread runs, so its CPU clock tells it."""
        return time.clock_gettime(self._cpu_clock) + self._times.runq_s()


def _segment() -> tuple[int, int]:
    """The present segment: the step, and how many segments of the step have ended."""
    return recorder.index, len(recorder.codes)


def stop_all() -> None:
    """End all sampling threads."""
    for samples in list(_running):
        samples.stop()


def script_lines(times: ThreadTimes) -> Probing:
    """P15: the share of time in the program's own lines between the segments, the line with most of it, and whether this line computes or waits.
    Ordinary steps go on meanwhile. `times`: those of the training thread."""
    samples, start, first = JobSamples(times), now(), recorder.index
    try:
        while now() - start < LENGTH_S or (recorder.index - first < LEAST_STEPS and now() - start < MOST_S):
            yield
    finally:
        samples.stop()
    signals, place = samples.signals()
    looked_s, used_s = samples.looked.get(place, (0.0, 0.0))
    if looked_s >= LEAST_LOOKED_S:
        source = f"CPU time and run-queue delay of the training thread in this line, over {looked_s * 1e3:.0f} ms"
        signals["stack.line_cpu_ratio"] = Signal(min(used_s / looked_s, 1.0), "ratio", source)
    return signals


# --- the probes that a job allows ---------------------------------------------------------------------------


def cached_batch(loop: Any) -> Probing:
    return probes.cached_batch((yield from last_pass(loop)))


def batch_elasticity(loop: Any) -> Probing:
    refuse_compiled(loop.knobs, "other batch sizes")
    return probes.batch_elasticity((yield from last_pass(loop)))


def swap_optim(loop: Any) -> Probing:
    yield
    device, present, fused = updates_on_copies(watch.alive(watch.optimizers))
    return probes.swap_optim(JobTimed(loop.account, device), present, fused)


PROBES: dict[str, Callable[[Any], Probing]] = {
    "script_lines": lambda loop: script_lines(loop.account.times),
    "cached_batch": cached_batch,
    "batch_elasticity": batch_elasticity,
    "swap_optim": swap_optim,
}

NEVER = {
    "side_work_off": "the program's own logging, checkpoints and evaluation are never left out",
    "exposed_communication": "processes of a job wait for each other; a probe in one of them would stop them all",
    "exchange_sizes": "processes of a job wait for each other; a probe in one of them would stop them all",
    "swap_threads": "the threads of the program stay as they are; a trial can change them",
    "swap_attention": "the attention of the program is its own code",
}
UNKNOWN = "not possible in a job of your own"


def why_refused(probe: str) -> str:
    """Why this probe never runs in a user's job; empty where it may."""
    return "" if probe in PROBES else NEVER.get(probe, UNKNOWN)


# --- the profiler window ------------------------------------------------------------------------------------

QUIET = "KINETO_LOG_LEVEL", "99"
"""Kineto writes lines about its start and end to stderr, which belongs to the program. It reads this variable when it starts for the first time."""
TEARDOWN = "TEARDOWN_CUPTI", "1"
"""Makes Kineto detach CUPTI at its end; otherwise the program stays some percent slower (pytorch#144455). Before CUDA 12.6 it breaks CUDA graphs."""


class Window:
    """A warm-up step, then `command.steps` steps under torch.profiler. Raises ProbeError where the profiler does not start."""

    def __init__(self, command: Profile, folder: str, device: Any) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile, schedule

        if torch._C._autograd._profiler_enabled():
            raise ProbeError("another profiler is running in this process")
        self._command, self._device, self._start = command, device, now()
        self._path = os.path.join(folder, "window.json")
        self._left = command.steps + 1
        self._torch = torch
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self._on_gpu else [])
        cuda = tuple(int(part) for part in (torch.version.cuda or "0").split("."))
        wanted = [QUIET, TEARDOWN] if self._on_gpu and cuda >= (12, 6) else [QUIET]
        self._ours = {name: value for name, value in wanted if name not in os.environ}
        """Variables that are set for the time of the window."""
        os.environ.update(self._ours)
        self._profile = profile(
            activities=activities,
            record_shapes=True,
            schedule=schedule(wait=0, warmup=1, active=command.steps, repeat=1),
            on_trace_ready=lambda done: done.export_chrome_trace(self._path),
        )
        self._profile.start()
        self._on = True
        switch.undo.append(self.stop)

    @property
    def _on_gpu(self) -> bool:
        return bool(self._device.type == "cuda")

    def step(self) -> bool:
        """Count a step of the program that has ended. Returns True once the window is over and its trace is written."""
        self._left -= 1
        if self._on_gpu and self._left in (0, self._command.steps):
            self._torch.cuda.synchronize(self._device)
        self._profile.step()
        if self._left:
            return False
        self.stop()
        return True

    def stop(self) -> None:
        """End the window. A second call changes nothing."""
        if not self._on:
            return
        self._on = False
        self._profile.stop()
        for name in self._ours:
            os.environ.pop(name, None)

    def answer(self) -> Message:
        return message(
            "profiled",
            now(),
            request=self._command.request,
            trace=self._path,
            keep=self._command.keep,
            gpu=self._on_gpu,
            cost_s=now() - self._start,
        )
