"""In which number type a pass of the program multiplies, as far as its settings say: autocast around the pass or within it, and the mixed precision of FSDP
and DDP. The counted step knows better where there is one (`evidence.arithmetic`)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

from .guard import ask, unseen
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
    wrapped = [module, *children(module)[:1]]  # DDP holds the model of the program, whose forward function accelerate has wrapped
    return next((found for one in wrapped if (found := _of_shards(one) or _of_wrappers(one, kind))), "")


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
    return next((found for holder in holders if (found := BY_DTYPE.get(str(ask(holder, "param_dtype")), ""))), "")


def _of_wrappers(module: Any, kind: str) -> str:
    """The type of an autocast that was put around the forward function of a module, as accelerate does it: `model.forward = autocast(...)(model.forward)`."""
    autocast = sys.modules["torch"].autocast
    waiting, seen = [ask(module, "__dict__", {}).get("forward")], set[int]()
    while waiting and len(seen) < MOST_WRAPPERS:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if issubclass(type(one), autocast):
            if one.device == kind and one._enabled:
                return BY_DTYPE.get(str(one.fast_dtype), "")
        else:
            waiting += _inside(one)
    return ""


def _inside(one: Any) -> Iterator[Any]:
    """What a function holds: the function of a method, the variables around it, and the function that it wraps."""
    if type(one) is MethodType:
        yield one.__func__
    elif type(one) is FunctionType:
        for cell in one.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # a variable that has no value yet
                continue
        yield one.__dict__.get("__wrapped__")
    elif "model_forward" in (held := ask(one, "__dict__", {})):  # accelerate's ConvertOutputsToFp32
        yield held["model_forward"]
