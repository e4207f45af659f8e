"""In which number type a pass multiplies, by the settings of the program: autocast around the pass or within the model, and mixed precision of FSDP and DDP."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from gpuconsole.agent.hooks.precision import autocast_around, precision_within


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


class ConvertOutputsToFp32:
    """As in accelerate/utils/operations.py."""

    def __init__(self, model_forward: Callable[..., Any]) -> None:
        self.model_forward = model_forward

    def __call__(self, *args: Any) -> Any:
        return self.model_forward(*args).float()


def as_accelerate(dtype: torch.dtype, enabled: bool = True) -> nn.Module:
    """As Accelerator.prepare_model wraps a model, and so Hugging Face's Trainer with bf16=True."""
    made: Any = model()
    inner = torch.autocast("cpu", dtype=dtype, enabled=enabled)(made.forward.__func__)
    converting = ConvertOutputsToFp32(inner)

    def forward(*args: Any) -> Any:
        return converting(*args)

    forward.__wrapped__ = converting  # type: ignore[attr-defined]
    made.forward = MethodType(forward, made)
    return made  # type: ignore[no-any-return]


def with_decorated_forward() -> nn.Module:
    made = model()
    made.forward = torch.autocast("cpu", torch.bfloat16)(made.forward)
    return made


def in_a_wrapper() -> nn.Module:
    """DDP holds the model whose forward function accelerate has wrapped."""
    outer = nn.Module()
    outer.module = as_accelerate(torch.bfloat16)
    return outer


def with_mixed_precision() -> nn.Module:
    outer: Any = nn.Module()
    outer.module, outer.mixed_precision = model(), SimpleNamespace(param_dtype=torch.bfloat16)
    return outer  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (model, ""),
        (functools.partial(as_accelerate, torch.bfloat16), "bf16"),
        (functools.partial(as_accelerate, torch.float16), "fp16"),
        (functools.partial(as_accelerate, torch.bfloat16, enabled=False), ""),
        (with_decorated_forward, "bf16"),
        (in_a_wrapper, "bf16"),
        (with_mixed_precision, "bf16"),
    ],
)
def test_what_is_set_within_a_model(make: Callable[[], nn.Module], expected: str) -> None:
    import torch.distributed  # noqa: F401 (the settings of FSDP and DDP count where a program has loaded it)

    made = make()
    before = dict(vars(made))
    assert precision_within(made) == expected
    assert autocast_around(made) == "" and vars(made).keys() == before.keys()


@pytest.mark.slow
def test_the_policy_of_fsdp_2(tmp_path: Any) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        sharded = fully_shard(
            model(), mesh=torch.distributed.init_device_mesh("cpu", (1,)), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        )
        assert precision_within(sharded) == "bf16"
        assert precision_within(fully_shard(model(), mesh=torch.distributed.init_device_mesh("cpu", (1,)))) == ""
    finally:
        torch.distributed.destroy_process_group()


def test_autocast_around_a_pass() -> None:
    made = model()
    with torch.autocast("cpu", torch.bfloat16):
        assert autocast_around(made) == "bf16"
    assert autocast_around(made) == ""


def test_a_forward_function_that_holds_itself_ends_the_search() -> None:
    made: Any = model()

    def forward(x: Any) -> Any:
        return forward(x)

    made.forward = forward
    assert precision_within(made) == ""


class Hostile:
    """Raises whatever it is asked."""

    def __getattribute__(self, name: str) -> Any:
        raise KeyError(name)


def test_an_object_that_raises_costs_the_figure_only() -> None:
    made: Any = model()
    made.__dict__["forward"] = Hostile()
    made.__dict__["mixed_precision"] = Hostile()
    assert precision_within(made) == ""
