"""In which number type a pass of the program multiplies, as far as its settings say: autocast around the pass or within it, and the mixed precision of FSDP
and DDP. The counted step knows better where there is one (`evidence.arithmetic`)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

from .guard import ask, unseen, without_failures
from .structure import children, parameters_of

MOST_WRAPPERS = 16
"""Functions around the forward function of a module that are looked at."""
BY_DTYPE = {"torch.bfloat16": "bf16", "torch.float16": "fp16"}


@unseen
def autocast_around(module: Any) -> str:
    """`bf16` or `fp16` where a pass of `module` that begins now is within autocast; empty otherwise."""
    import torch

    kind = _kind_of_device(module)
    return BY_DTYPE.get(str(torch.get_autocast_dtype(kind)), "") if torch.is_autocast_enabled(kind) else ""


@unseen
def precision_within(module: Any) -> str:
    """`bf16` or `fp16` where a pass of `module` is set to it within the module: by autocast around its forward function, or by the mixed precision of FSDP or
    DDP. Empty otherwise."""
    kind = _kind_of_device(module)
    models = [module, *children(module)[:1]]  # DDP holds the model of the program, whose forward function accelerate has wrapped
    with without_failures():
        return next((precision for model in models if (precision := _of_shards(model) or _of_wrappers(model, kind))), "")
    return ""


def _kind_of_device(module: Any) -> str:
    parameter = next(parameters_of(module), None)
    return parameter.device.type if parameter is not None else "cpu"


def _of_shards(module: Any) -> str:
    """The type that the mixed precision of FSDP or DDP casts weights to."""
    if "torch.distributed" not in sys.modules:
        return ""
    holders = [ask(module, "mixed_precision")]
    if any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__):
        state = getattr(module, "_get_fsdp_state", lambda: None)()  # FSDP 2 has no public way to its policy (torch 2.13)
        holders.append(getattr(state, "_mp_policy", None))
    return next((precision for holder in holders if (precision := BY_DTYPE.get(str(ask(holder, "param_dtype")), ""))), "")


def _of_wrappers(module: Any, kind: str) -> str:
    """The type of an autocast that was put around the forward function of a module, as accelerate does it: `model.forward = autocast(...)(model.forward)`."""
    autocast = sys.modules["torch"].autocast
    waiting, seen = [ask(module, "__dict__", {}).get("forward")], set[int]()
    while waiting and len(seen) < MOST_WRAPPERS:
        wrapper = waiting.pop()
        if id(wrapper) in seen:
            continue
        seen.add(id(wrapper))
        if issubclass(type(wrapper), autocast):
            if wrapper.device == kind and wrapper._enabled:
                return BY_DTYPE.get(str(wrapper.fast_dtype), "")
        else:
            waiting += _inside(wrapper)
    return ""


def _inside(wrapper: Any) -> Iterator[Any]:
    """Yield what a wrapper holds: the function of a method, the variables around a function, and the function that it wraps."""
    if type(wrapper) is MethodType:
        yield wrapper.__func__
    elif type(wrapper) is FunctionType:
        for cell in wrapper.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # a variable that has no value yet
                continue
        yield wrapper.__dict__.get("__wrapped__")
    elif "model_forward" in (held := ask(wrapper, "__dict__", {})):  # accelerate's ConvertOutputsToFp32
        yield held["model_forward"]
