"""Experiments on a user's job, with consent: the probes that it allows, and the profiler window.

Passes run on copies of the last inputs of the program. Their gradients come from
`torch.autograd.grad`, so the gradients of the parameters stay as they are. Random state and buffers
are put back. The next losses of the program are the same bits with these probes as without.
"""

from __future__ import annotations

import importlib
import os
import random
import re
import sys
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ReferenceType

from ... import probes
from ...clock import now
from ...free_memory import free_and_total, host_bytes
from ...loop import Signals
from ...probes import ProbeError, refuse_compiled
from ...protocol import Knobs, Message, Profile, RunProbe, message
from ...world import World
from .. import graphs
from ..changes.state import state_of_generator
from ..guard import switch, unseen
from ..modes import has_modes, is_profiled
from ..recorder import BACKWARD, FORWARD
from ..sampler import sampler
from ..watch import recorder, watch

Probing = Generator[None, None, Signals]
"""A probe under way: it yields where it waits for further steps of the program, and returns
signals."""

# --- the last pass of the program -----------------------------------------------------------------

WAIT_STEPS = 50
"""Steps within which the inputs of a pass must come."""
MAX_HOLD_S = 1.8
STATE_STEPS = 2
"""Steps between the two looks at the attributes of the modules."""
HELD = ("_parameters", "_buffers", "_modules", "training")
SIMPLE = (int, float, complex, bool, str, bytes, type(None))
CONSTANT = (
    type,
    FunctionType,
    BuiltinFunctionType,
    MethodType,
    ModuleType,
    re.Pattern,
    Enum,
    PurePath,
    range,
    slice,
    ReferenceType,
)
"""Kinds of objects that a call leaves as they are."""
CONTAINERS = (tuple, list, set, frozenset, deque, dict)
MAX_ITEMS = 64
MAX_BYTES = 2**20


ROOM_MARGIN = 1.25
"""Memory that a pass takes over what it has saved for its backward pass: temporary tensors, and
blocks of the allocator that fit badly."""


class JobTimed:
    """The program, for timed work on `device`."""

    def __init__(self, account: Any, device: Any) -> None:
        self.breakdown, self.device, self.world = account, device, World()

    def release_cached_memory(self) -> None:
        """The cache belongs to the program. What a probe adds to it is freed after the probe:
        `JobLoop.beside_the_peak`."""


class LastPass(JobTimed):
    """The module that the program called last, and copies of its arguments: the subject of probes
    (see `loop.Subject`).

    Raises ProbeError where there is no room for gradients beside those of the program.
    """

    longest_hold_s = MAX_HOLD_S
    pass_note = "; without the loss function of the script"

    def __init__(self, module: Any, arguments: tuple[Any, Any], account: Any, knobs: Knobs) -> None:
        self._parameters = [
            parameter for parameter in module.parameters() if parameter.requires_grad
        ]
        super().__init__(account, self._parameters[0].device)
        self.model, self.knobs = module, knobs
        self._precision = watch.autocast
        """The autocast of the passes."""
        self._saved_bytes: float | None = None
        """Device memory that the forward pass of the first pass has left for its backward pass;
        None before it, and on a CPU."""
        self._tensors: list[Any] = []
        check_room(self._parameters, self.device)
        self.batch = self._copied(arguments)

    @property
    def passes_per_step(self) -> int:
        return watch.micro_batches

    def repeated(self, batch: Any, factor: int) -> Any:
        import torch

        sizes = [tensor.shape[0] for tensor in self._tensors if tensor.ndim]
        if len(set(sizes)) != 1 or not sizes[0]:
            raise ProbeError(
                "the inputs of the model have different first dimensions, so the batch is not known"
            )
        return mapped(batch, lambda tensor: torch.cat([tensor] * factor) if tensor.ndim else tensor)

    def make_room(self, factor: int) -> bool:
        """A pass that does not fit is not tried: the allocator would empty the program's cache, and
        would count a retry, before it gives up."""
        if self._saved_bytes is None:
            return True
        import torch

        needed, free = factor * self._saved_bytes * ROOM_MARGIN, free_and_total(self.device)[0]
        if needed > free + torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(
            self.device
        ):
            return False
        if needed > free:
            torch.cuda.empty_cache()
        return True

    def run_pass(self, batch: Any) -> None:
        import torch

        arguments, keywords = batch
        first = self._saved_bytes is None and self.device.type == "cuda"
        held = torch.cuda.memory_allocated(self.device) if first else 0
        with torch.enable_grad():
            with autocast(self.device.type, self._precision):
                loss = scalar(self.model(*arguments, **keywords))
            if first:
                self._saved_bytes = float(max(0, torch.cuda.memory_allocated(self.device) - held))
            torch.autograd.grad(loss, self._parameters, allow_unused=True)

    def drop_gradients(self) -> None:
        """The gradients of the parameters are those of the program."""

    def silence(self) -> AbstractContextManager[Any]:
        return nullcontext()

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """The random state of Python and of numpy, the generators of the modules, and what the
        modules refer to: a pass with another precision or another size may put other tensors into a
        cache of the model."""
        kept = [
            (inner, dict(inner.__dict__), dict(inner._buffers), _containers(inner))
            for inner in self.model.modules()
        ]
        generators = [
            (value, value.get_state())
            for _, attributes, _, _ in kept
            for value in attributes.values()
            if _is_generator(value)
        ]
        numbers = sys.modules.get("numpy.random")
        python, numpy = random.getstate(), numbers.get_state() if numbers is not None else None
        try:
            yield
        finally:
            random.setstate(python)
            if numbers is not None:
                numbers.set_state(numpy)
            for generator, state in generators:
                generator.set_state(state)
            for inner, attributes, buffers, containers in kept:
                put_back(inner.__dict__, attributes)
                put_back(inner._buffers, buffers)
                for container, content in containers:
                    if isinstance(container, dict):
                        put_back(container, content)
                    else:
                        container[:] = content

    def _copied(self, arguments: Any) -> Any:
        def copy(tensor: Any) -> Any:
            copied = tensor.detach().clone().requires_grad_(tensor.requires_grad)
            self._tensors.append(copied)
            return copied

        return mapped(arguments, copy)


def _is_generator(value: Any) -> bool:
    return type(value).__name__ == "Generator" and hasattr(value, "get_state")


def _containers(module: Any) -> list[tuple[Any, Any]]:
    """The dictionaries and lists that a module keeps as attributes, each with a copy of it."""
    attributes = [value for name, value in module.__dict__.items() if name not in HELD]
    return [(value, value.copy()) for value in attributes if type(value) in (dict, list)]


def put_back(present: dict[str, Any], before: dict[str, Any]) -> None:
    """Give `present` the entries of `before`. Entries that are the same objects are not written."""
    for name in [name for name in present if name not in before]:
        del present[name]
    for name, value in before.items():
        if name not in present or present[name] is not value:
            present[name] = value


def check_room(parameters: Iterable[Any], device: Any) -> None:
    """Raises ProbeError where a pass does not fit beside the gradients that the program holds.
    Otherwise it fits where a step of the program fits."""
    if device.type != "cuda":
        return
    import torch

    gradients = sum(
        parameter.grad.numel() * parameter.grad.element_size()
        for parameter in parameters
        if parameter.grad is not None
    )
    figures = torch.cuda.memory_stats_as_nested_dict(device)
    never_used = (
        figures["reserved_bytes"]["all"]["current"] - figures["allocated_bytes"]["all"]["peak"]
    )
    require_room(gradients - max(0, never_used), device, "gradients beside those of the program")


def require_room(needed: float, device: Any, what: str) -> None:
    """Raises ProbeError where `what`, of so many bytes, does not fit into the memory that nobody
    uses."""
    free = free_bytes(device)
    if free is not None and needed > free:
        raise ProbeError(
            f"no room for {what}: {needed / 1e9:.2g} GB are needed, and {free / 1e9:.2g} GB are"
            " free"
        )


# --- the inputs of a pass -------------------------------------------------------------------------


def last_pass(loop: Any) -> Generator[None, None, LastPass]:
    """Wait for the next pass of the program, and keep its inputs. Raises ProbeError where a pass
    must not be repeated."""
    refuse_several(loop.knobs)
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
        if unknown := unknown_state(module):
            raise ProbeError(
                f"a pass calls an object of the model whose state is not known ({unknown}); it"
                " could not be put back"
            )
        changed = [
            name for name, value in python_state(module).items() if before.get(name) != value
        ]
        if changed:
            raise ProbeError(
                f"the model keeps Python state that a pass changes ({changed[0]}); it could not be"
                " put back"
            )
        return LastPass(module, kept[1:], loop.breakdown, loop.knobs)
    finally:
        watch.keep_inputs, watch.last_inputs = False, None


def refuse_several(knobs: Knobs) -> None:
    """Raise ProbeError in a job of several processes: the other processes would wait for this
    one."""
    if knobs.get("nproc", 1) != 1:
        raise ProbeError(
            "several processes train together; a pass of one of them alone would disturb their"
            " exchange"
        )


def check(module: Any) -> None:
    """Raises ProbeError where a pass of `module` alone would not be a step's pass, or would have
    effects outside of torch."""
    codes = recorder.done[-1][2] if recorder.done else []
    if codes.count(FORWARD) > max(1, codes.count(BACKWARD)):
        raise ProbeError("a step calls several models")
    for name, inner in module.named_modules():
        if (
            inner._forward_hooks
            or inner._forward_pre_hooks
            or inner._backward_hooks
            or inner._backward_pre_hooks
        ):
            raise ProbeError(
                f"the module {name or type(module).__name__} has hooks, which may keep state"
            )
    if any(parameter._backward_hooks for parameter in module.parameters()):
        raise ProbeError("parameters have gradient hooks, which may keep state")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ProbeError("the model has no parameter to train")
    if len({parameter.device for parameter in module.parameters()}) > 1:
        raise ProbeError(
            "the model is on several devices, and the random state of one device is put back"
        )
    if getattr(module, "find_unused_parameters", False):
        raise ProbeError(
            "DistributedDataParallel looks for unused parameters in each pass, and a pass alone"
            " would stop the next one"
        )


def scalar(output: Any) -> Any:
    """A loss: that of the output, if the model computes one; else the sum of all floating-point
    outputs."""
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


@unseen
def python_state(module: Any) -> dict[str, Any]:
    """Return what the modules keep besides parameters and buffers: numbers, texts, contents of
    containers, versions of tensors, and states of random generators. This includes the random
    generators that their classes use as global variables.

    Parameters and buffers count by identity only, also in an attribute such as `_flat_weights` of
    nn.LSTM, because the steps change their values. A container or a small tensor counts by its
    content: if a pass replaces such an object by an equal object, `LastPass.preserved` gives the
    module the former object back.
    """
    state: dict[str, Any] = {}
    own = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    for path, inner in module.named_modules():
        for name, value in inner.__dict__.items():
            if name not in HELD:
                state[f"{path}.{name}".lstrip(".")] = _print_of(value, 2, own, True)
        for function in _functions(type(inner)):
            for name in function.__code__.co_names:
                value = function.__globals__.get(name)
                if (numbers := state_of_generator(value)) is not None:
                    state[name] = numbers
    return state


def unknown_state(module: Any) -> str:
    """The name of an object whose state cannot be read, such as an iterator, and that a pass may
    call: an attribute that the functions of its module's class name. Empty where there is none."""
    for path, inner in module.named_modules():
        own = {
            name: value
            for name, value in inner.__dict__.items()
            if name not in HELD and not _is_known(value, 2)
        }
        if own:
            named = {
                name for function in _functions(type(inner)) for name in function.__code__.co_names
            }
            if found := next((name for name in own if name in named), ""):
                return f"{path}.{found}".lstrip(".")
    return ""


def _functions(cls: type) -> list[Any]:
    """The functions of a module's class that a pass may call, without those of torch."""
    own = [base for base in cls.__mro__ if base.__module__.partition(".")[0] != "torch"]
    return [
        value
        for base in own
        for name, value in vars(base).items()
        if isinstance(value, FunctionType) and name != "__init__"
    ]


def _owner(value: Any) -> Any:
    """The object whose bound method `value` is; else `value`."""
    return (
        getattr(value, "__self__", None) or value
        if isinstance(value, (MethodType, BuiltinFunctionType))
        else value
    )


def _content(value: Any) -> Any:
    """The numbers of a small array of numpy; None for another object."""
    numpy = sys.modules.get("numpy")
    if (
        numpy is None
        or not isinstance(value, (numpy.ndarray, numpy.generic))
        or value.dtype.hasobject
        or value.nbytes > MAX_BYTES
    ):
        return None
    return value.tobytes()


def _is_known(value: Any, depth: int) -> bool:
    """Whether `_print_of` sees each change of `value`, or nothing in it changes."""
    value = _owner(value)
    if (
        isinstance(value, (*SIMPLE, *CONSTANT))
        or hasattr(value, "data_ptr")
        or _is_generator(value)
        or hasattr(value, "named_modules")
    ):
        return True
    if isinstance(value, CONTAINERS):
        items = list(value.values() if isinstance(value, dict) else value)
        return not depth or all(_is_known(item, depth - 1) for item in items[:MAX_ITEMS])
    if (
        type(value).__module__.partition(".")[0] == "torch"
        or state_of_generator(value) is not None
        or _content(value) is not None
    ):
        return True
    held = getattr(value, "__dict__", None)
    return isinstance(held, dict) and (
        not depth or all(_is_known(item, depth - 1) for item in list(held.values())[:MAX_ITEMS])
    )


class SmallTensor:
    """Keeps a tensor with its values. Equal to the same unchanged tensor, and to another tensor
    with the same values."""

    def __init__(self, tensor: Any) -> None:
        self.key, self.version, self.values = (
            id(tensor),
            _version_of(tensor),
            tensor.detach().clone(),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SmallTensor):
            return False
        if self.key == other.key and self.version is not None:
            return bool(self.version == other.version)
        mine, others = self.values, other.values
        return (
            mine.dtype == others.dtype and mine.shape == others.shape and bool(mine.equal(others))
        )

    __hash__ = None  # type: ignore[assignment]


def _version_of(tensor: Any) -> int | None:
    """None for a tensor made in `torch.inference_mode`. Outside of that mode, torch refuses to
    change it in place."""
    return None if tensor.is_inference() else int(tensor._version)


def _is_small(tensor: Any) -> bool:
    """Return whether the values of a tensor can be compared: only those of a small, plain tensor on
    the host. A comparison of values on a GPU would wait for the GPU."""
    plain = (
        type(tensor) is sys.modules["torch"].Tensor
        and tensor.layout is sys.modules["torch"].strided
    )
    return (
        plain
        and tensor.device.type == "cpu"
        and not tensor.is_quantized
        and tensor.numel() * tensor.element_size() <= MAX_BYTES
    )


def _print_of(value: Any, depth: int, own: Collection[int], is_put_back: bool) -> Any:
    """Return a fingerprint of `value`: two fingerprints are equal unless a pass has changed `value`
    between them. `own`: the identities of the parameters and buffers. `is_put_back`: another object
    with the same content is no change."""
    value = _owner(value)
    if isinstance(value, SIMPLE):
        return value
    if (numbers := state_of_generator(value) or _content(value)) is not None:
        return id(value), numbers
    if id(value) in own:
        return id(value)
    if isinstance(value, ReferenceType):
        return id(value()) if is_put_back else id(value)
    if isinstance(value, sys.modules["torch"].Tensor):
        return (
            SmallTensor(value)
            if is_put_back and _is_small(value)
            else (id(value), _version_of(value))
        )
    if isinstance(value, CONTAINERS):
        items = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
        inner = (
            tuple(_print_of(item, depth - 1, own, is_put_back) for item in items[:MAX_ITEMS])
            if depth
            else ()
        )
        whole = is_put_back and depth and len(items) <= MAX_ITEMS
        return type(value) if whole else id(value), len(items), inner
    held = getattr(value, "__dict__", None)
    if depth and isinstance(held, dict) and not hasattr(value, "named_modules"):
        return id(value), tuple(
            (name, _print_of(item, depth - 1, own, False))
            for name, item in list(held.items())[:MAX_ITEMS]
        )
    return id(value)


def autocast(kind: str, precision: str) -> Any:
    """Autocast to `precision` ("" for none) for a device of this kind. Within an autocast of the
    program, casts of weights are not kept: they would outlive the next update of the weights."""
    import torch

    if not precision:
        return nullcontext()
    cached = not torch.is_autocast_enabled(kind)
    return torch.autocast(
        kind, dtype=torch.bfloat16 if precision == "bf16" else torch.float16, cache_enabled=cached
    )


def free_bytes(device: Any) -> float | None:
    """Memory that new tensors may use; None where it is not known."""
    if device.type == "cuda":
        return free_and_total(device)[0]
    host = host_bytes()
    return None if host is None else host[0]


# --- the lines of the script ----------------------------------------------------------------------

LENGTH_S = 1.0
MIN_STEPS = 4
MAX_S = 10.0


def script_lines() -> Probing:
    """P15: more samples of the stack for a second or more, while ordinary steps go on. The console
    finds the lines in them."""
    sampler.faster(MAX_S)
    start, first = now(), recorder.index
    try:
        while now() - start < LENGTH_S or (
            recorder.index - first < MIN_STEPS and now() - start < MAX_S
        ):
            yield
    finally:
        sampler.faster(0.0)
    return {}


# --- steps of the optimizer on copies -------------------------------------------------------------

COPIES = 8
"""How many times the bytes of the parameters the probe needs: parameters and two moments for each
of the two sides, the gradients once, and one copy in reserve."""


def swap_optim(loop: Any) -> Probing:
    """Run P5: time updates of Adam or AdamW on copies of the parameters, in the program's
    implementation and in the fused one."""
    refuse_several(loop.knobs)
    yield
    if has_modes() or is_profiled():
        raise ProbeError("a mode or a profiler of the program would see the updates of copies")
    device, present, fused = updates_on_copies(watch.alive(watch.optimizers))
    return probes.swap_optim(JobTimed(loop.breakdown, device), present, fused, MAX_HOLD_S)


def updates_on_copies(
    optimizers: list[Any],
) -> tuple[Any, Callable[[], None], Callable[[], None]]:
    """Return the device of the parameters and two updates of copies of the parameters: one in the
    implementation of the last Adam or AdamW of `optimizers`, one fused. The function only reads the
    optimizer. Raises ProbeError if the optimizer has no fused form, or memory has no room for the
    copies."""
    import torch

    of_adam = [
        optimizer
        for optimizer in optimizers
        if type(optimizer) in (torch.optim.Adam, torch.optim.AdamW)
    ]
    if not of_adam:
        raise ProbeError("the optimizer is neither Adam nor AdamW: it has no fused form here")
    groups = [group for group in of_adam[-1].param_groups if group["params"]]
    if any(group.get("fused") for group in groups):
        raise ProbeError("the optimizer is fused already")
    special = ("amsgrad", "capturable", "differentiable")
    if any(group.get(setting) for group in groups for setting in special):
        raise ProbeError("amsgrad, capturable and differentiable have no fused form here")
    parameters = [
        parameter
        for group in groups
        for parameter in group["params"]
        if parameter.grad is not None or parameter.requires_grad
    ]
    if any(type(parameter.data) is not torch.Tensor for parameter in parameters):
        raise ProbeError("parameters are shards of a class of their own")
    if any(parameter.is_sparse or parameter.is_complex() for parameter in parameters):
        raise ProbeError("parameters are sparse or complex")
    device, group = parameters[0].device, groups[0]
    size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    require_room(COPIES * size, device, "copies of the parameters")
    settings = {
        "amsgrad": False,
        "beta1": float(group["betas"][0]),
        "beta2": float(group["betas"][1]),
        "lr": float(group["lr"]),
        "weight_decay": group["weight_decay"],
        "eps": group["eps"],
        "maximize": bool(group.get("maximize")),
    }
    # calls the function: hooks of the program would see a new optimizer object
    name = type(of_adam[-1]).__name__.lower()
    update: Any = getattr(importlib.import_module(f"torch.optim.{name}"), name)
    # the cost of an update does not depend on the values
    gradients = [torch.full_like(parameter, 1e-3) for parameter in parameters]

    def side(**form: bool) -> Callable[[], None]:
        copies = [parameter.detach().clone() for parameter in parameters]
        moments = [[torch.zeros_like(copy) for copy in copies] for _ in range(2)]
        counters = parameters[0].device if form["fused"] else "cpu"
        steps = [torch.zeros((), dtype=torch.float32, device=counters) for _ in copies]

        def step() -> None:
            with torch.no_grad():
                update(copies, gradients, *moments, [], steps, **settings, **form)

        return step

    foreach = group.get("foreach")
    present = side(foreach=device.type == "cuda" if foreach is None else bool(foreach), fused=False)
    return device, present, side(foreach=False, fused=True)


# --- the probes that a job allows -----------------------------------------------------------------


def cached_batch(loop: Any) -> Probing:
    subject = yield from last_pass(loop)
    # with CUDA graphs a pass of ours would replay into the memory of the program's last outputs
    if subject.device.type == "cuda":
        refuse_compiled(loop.knobs, "a pass in between")
    return probes.cached_batch(subject)


def batch_elasticity(loop: Any) -> Probing:
    refuse_compiled(loop.knobs, "other batch sizes")
    return probes.batch_elasticity((yield from last_pass(loop)))


def launch(loop: Any) -> Probing:
    refuse_compiled(loop.knobs, "a pass alone")
    return probes.launch((yield from last_pass(loop)))


PROBES: dict[str, Callable[[Any], Probing]] = {
    "script_lines": lambda loop: script_lines(),
    "cached_batch": cached_batch,
    "batch_elasticity": batch_elasticity,
    "launch": launch,
    "swap_optim": swap_optim,
}

LOADING_PARTS = "loading_parts"
"""It needs no step of its own and nothing waits for it: see evidence/loading_parts.py."""
WINDOWED = ("op_mix", "sync_gaps")
"""Probes for which the agent takes a profiler window. The console reads the trace, and makes the
answer of it."""

NEVER = {
    "side_work_off": "the program's own logging, checkpoints and evaluation are never left out",
    "exposed_communication": (
        "processes of a job wait for each other; a probe in one of them would stop them all"
    ),
    "exchange_sizes": (
        "processes of a job wait for each other; a probe in one of them would stop them all"
    ),
    "swap_threads": "the threads of the program stay as they are; a trial can change them",
    "swap_attention": "the attention of the program is its own code",
    "swap_precision": (
        "passes run as the program runs them; another precision is a setting to try, with your"
        " permission"
    ),
    "swap_layout": (
        "passes run as the program runs them; a profiler window (f) shows the kernels that only"
        " convert layouts"
    ),
}
UNKNOWN = "not possible in a job of your own"


def why_refused(probe: str) -> str:
    """Why this probe never runs in a user's job; empty where it may."""
    return (
        "" if probe in PROBES or probe in (*WINDOWED, LOADING_PARTS) else NEVER.get(probe, UNKNOWN)
    )


# --- the profiler window --------------------------------------------------------------------------

QUIET = "KINETO_LOG_LEVEL", "99"
"""Kineto writes lines about its start and end to stderr, which belongs to the program. It reads
this variable when it starts for the first time."""
TEARDOWN = "TEARDOWN_CUPTI", "1"
"""Makes Kineto detach CUPTI at its end; otherwise the program stays some percent slower
(pytorch#144455). Before CUDA 12.6 it breaks CUDA graphs."""


BESIDE_GRAPHS = (
    "the program replays CUDA graphs, and a profiler has crashed such programs (pytorch#75504,"
    " #112507)"
)
WINDOW_STEPS = 3, 12
"""Least and most steps of the window of a probe."""
WINDOW_S = 0.1
"""Seconds after which a window of a probe has enough steps: in a few short steps one pause of the
thread would be a large part of the time."""


class ProfilerWindow:
    """A warm-up step, then some steps under torch.profiler: as many as the user asks for; for a
    probe WINDOW_STEPS. Raises ProbeError where the profiler does not start."""

    def __init__(self, command: Profile | RunProbe, folder: str, device: Any) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        if torch._C._autograd._profiler_enabled():
            raise ProbeError("another profiler is running in this process")
        if graphs.are_there():
            raise ProbeError(BESIDE_GRAPHS)
        if isinstance(command, RunProbe) and command.probe == "sync_gaps":
            probes.needs_gpu(JobTimed(None, device))
        self._command, self._device, self._start = command, device, now()
        self._path = os.path.join(folder, f"window-{command.request}.json")
        self._least, self._most = (
            (command.steps, command.steps) if isinstance(command, Profile) else WINDOW_STEPS
        )
        self._ended = 0
        """Steps that have ended, the warm-up step too."""
        self._is_last = False
        """Whether the step under way is the last one."""
        self._recorded_from = 0.0
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
            schedule=self._action,
            on_trace_ready=lambda done: done.export_chrome_trace(self._path),
        )
        try:
            self._profile.start()
        except Exception:
            self._forget_variables()
            raise
        self._on = True
        switch.undo.append(self.stop)

    @property
    def _on_gpu(self) -> bool:
        return bool(self._device.type == "cuda")

    def _action(self, number: int) -> Any:
        """What torch.profiler does in the step `number`, which begins now; 0 is the warm-up
        step."""
        action = self._torch.profiler.ProfilerAction
        if number == 0:
            return action.WARMUP
        if self._is_last:
            return action.NONE
        if number == 1:
            self._recorded_from = now()
        each = (now() - self._recorded_from) / max(1, number - 1)
        self._is_last = number >= self._most or (
            number >= self._least and number * each >= WINDOW_S
        )
        return action.RECORD_AND_SAVE if self._is_last else action.RECORD

    def step(self) -> bool:
        """Count a step of the program that has ended. Returns True once the window is over and its
        trace is written."""
        over = self._is_last
        if self._on_gpu and (over or not self._ended):
            self._torch.cuda.synchronize(self._device)
        self._ended += 1
        self._profile.step()
        if over:
            self.stop()
        return over

    def stop(self) -> None:
        """End the window. A second call changes nothing."""
        if not self._on:
            return
        self._on = False
        switch.undo.remove(self.stop)
        self._profile.stop()
        self._forget_variables()

    def forget(self) -> None:
        """In a forked child: the profiler belongs to the parent."""
        self._on = False

    def _forget_variables(self) -> None:
        for name in self._ours:
            os.environ.pop(name, None)

    def answer(self) -> Message:
        command = self._command
        return message(
            "profiled",
            now(),
            request=command.request,
            trace=self._path,
            keep=command.keep if isinstance(command, Profile) else "",
            gpu=self._on_gpu,
            cost_s=now() - self._start,
            probe=command.probe if isinstance(command, RunProbe) else "",
        )
