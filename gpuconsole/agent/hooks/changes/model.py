"""Settings of how the model computes: precision, torch.compile, memory layout, and cuDNN's choice
of algorithms. Only TF32 and cuDNN's choice change live."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ...protocol import Value
from .. import graphs
from ..guard import ask, unseen
from ..structure import is_compiled, parameters_of, structure
from .change import CHANGES_NUMERICS, SAME_SAMPLES, Change, ChangeRefused, TriedChange, why_bound

if TYPE_CHECKING:
    from ..watch import Watch

HALF = ("torch.bfloat16", "torch.float16")
BY_RESTART = (
    "it cannot change while the program runs. Set it in the code, or let a trial restart the"
    " program (--restart-knob)"
)
BF16_CODE = "with torch.autocast(device_type, dtype=torch.bfloat16): loss = model(batch)"
COMPILE_CODE = "model = torch.compile(model)"


def _roots(watch: Watch) -> list[Any]:
    return [root for ref in watch.roots if (root := ref()) is not None]


def device_of(watch: Watch) -> str:
    """`cpu` or `cuda`, where the parameters of the model are."""
    for root in _roots(watch):
        parameter = next(parameters_of(root), None)
        if parameter is not None:
            return str(parameter.device.type)
    return ""


class MatmulPrecision:
    """TF32 for matrix products in fp32. torch 2.9 has a second interface for it, and each raises
    where the program has used the other."""

    @staticmethod
    def is_tf32() -> bool:
        """Torch 2.9 warns where the former interface is read, and has a second one."""
        import torch

        present = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
        return (
            bool(torch.get_float32_matmul_precision() != "highest")
            if present is None
            else str(present) == "tf32"
        )

    @staticmethod
    def set_tf32(on: bool) -> Callable[[], None]:
        """Switch it on or off by the interface that the program uses. Returns what puts it back."""
        import torch

        try:
            before = torch.get_float32_matmul_precision()
        except RuntimeError:
            matmul = torch.backends.cuda.matmul
            former = matmul.fp32_precision
            matmul.fp32_precision = "tf32" if on else "ieee"
            return lambda: setattr(matmul, "fp32_precision", former)
        torch.set_float32_matmul_precision("high" if on else "highest")
        return lambda: torch.set_float32_matmul_precision(before)


def convolutions_in_tf32() -> bool:
    """Whether cuDNN may use TF32 for convolutions in fp32: torch's default."""
    import torch

    convolutions = getattr(torch.backends.cudnn, "conv", None)  # torch 2.9, as above
    return (
        bool(torch.backends.cudnn.allow_tf32)
        if convolutions is None
        else str(convolutions.fp32_precision) == "tf32"
    )


def _of_passes(watch: Watch) -> str:
    """`bf16` or `fp16` where the passes compute in it: by the counted step, or by autocast around
    them."""
    counted = watch.counted_precision if watch.counted_precision in ("bf16", "fp16") else ""
    return counted or watch.autocast


class Precision(TriedChange):
    """TF32 for matrix products, on a GPU. Another precision is a matter of a restart."""

    knob, effect = "precision", CHANGES_NUMERICS

    def __init__(self) -> None:
        self._put_back: Callable[[], None] | None = None
        """What puts the program's own setting back, after a change."""

    def read(self, watch: Watch) -> Value | None:
        import torch

        if found := _of_passes(watch):
            return found
        parameter = next((weight for root in _roots(watch) for weight in parameters_of(root)), None)
        if parameter is not None and str(parameter.dtype) in HALF:
            return "bf16" if parameter.dtype is torch.bfloat16 else "fp16"
        if parameter is not None and parameter.dtype is torch.float64:
            return "fp64"
        return "tf32" if device_of(watch) == "cuda" and MatmulPrecision.is_tf32() else "fp32"

    def why_fixed(self, watch: Watch) -> str:
        if not _roots(watch):
            return "no call of a model was seen"
        if reason := why_bound():
            return reason
        if watch.autocast:
            return "the program calls its model inside autocast: the precision is set there"
        if found := _of_passes(watch):
            return (
                f"the passes of the model compute in {found}: the precision is set within the model"
            )
        if (
            bits := 8
            * next(
                weight for root in _roots(watch) for weight in parameters_of(root)
            ).dtype.itemsize
        ) != 32:
            return (
                f"the weights of the model are in {bits} bits: the precision was chosen when the"
                " model was made"
            )
        return "" if device_of(watch) == "cuda" else f"{BY_RESTART}: {BF16_CODE}"

    @unseen
    def set(self, watch: Watch, value: Value) -> None:
        if reason := self.why_fixed(watch):
            raise ChangeRefused(reason)
        if value not in ("tf32", "fp32"):
            raise ChangeRefused(f"{BY_RESTART}: {BF16_CODE}")
        if value == self.read(watch):
            return
        if self._put_back is not None:
            self._put_back()
            self._put_back = None
        if value != self.read(watch):
            self._put_back = MatmulPrecision.set_tf32(value == "tf32")


class TorchCompile(Change):
    """torch.compile of the model. Observed, and never changed here: what it compiles, and the
    settings and caches of torch for it, stay in the process."""

    knob, effect = "torch_compile", CHANGES_NUMERICS

    def read(self, watch: Watch) -> Value | None:
        return mode_of(filter(is_compiled, _roots(watch)))

    def why_fixed(self, watch: Watch) -> str:
        if any(map(is_compiled, _roots(watch))):
            return "the program compiles its model itself"
        return f"{BY_RESTART}: {COMPILE_CODE}"

    def set(self, watch: Watch, value: Value) -> None:
        raise ChangeRefused(self.why_fixed(watch))


def mode_of(compiled: Iterable[Any]) -> str:
    """Return the mode of torch.compile for the compiled modules; `off` if there are none. A mode
    with CUDA graphs wins over `default`. Such a mode is known from the settings that Dynamo keeps
    with the module, or from existing graphs."""
    modes = {_mode(module) for module in compiled}
    if modes and graphs.of_compiler_are_there():
        modes.add("reduce-overhead")
    ranked = ("max-autotune", "reduce-overhead", "default")
    return next((mode for mode in ranked if mode in modes), "off")


def _mode(module: Any) -> str:
    attributes = ask(module, "__dict__", {})  # a module may have a `__getattr__` of the program's
    settings = ask(attributes.get("dynamo_ctx"), "compiler_config")
    if settings is None:
        read = ask(attributes.get("_compiled_call_impl"), "get_compiler_config")
        settings = read() if read is not None else None
    # only the Inductor backend has such settings
    if not isinstance(settings, dict) or not settings.get("triton.cudagraphs"):
        return "default"
    return "max-autotune" if settings.get("max_autotune") else "reduce-overhead"


class ChannelsLast(Change):
    """NHWC layout of the convolutions' weights. Never changed here: the strides of a weight would
    differ, and `weight.view(-1)` of the program would fail."""

    knob, effect = "channels_last", SAME_SAMPLES

    def read(self, watch: Watch) -> Value | None:
        weights = _weights_of_convolutions(watch)
        return None if not weights else all(map(_is_channels_last, weights))

    def why_fixed(self, watch: Watch) -> str:
        return (
            "the weights would have other strides, and code such as weight.view(-1) would fail:"
            " model.to(memory_format=torch.channels_last)"
        )

    def set(self, watch: Watch, value: Value) -> None:
        raise ChangeRefused(self.why_fixed(watch))


def _weights_of_convolutions(watch: Watch) -> list[Any]:
    """The weights whose layout matters: 1x1 convolutions with one channel are the same in both
    layouts."""
    return [
        weight
        for weight in structure(watch).images
        if weight.shape[1] > 1 and weight.shape[2] * weight.shape[3] > 1
    ]


def _is_channels_last(weight: Any) -> bool:
    import torch

    return bool(weight.is_contiguous(memory_format=torch.channels_last))


class CudnnBenchmark(TriedChange):
    """cuDNN times its algorithms for each new shape and takes the fastest. Another algorithm may
    round in another way."""

    knob, effect = "cudnn_benchmark", SAME_SAMPLES

    def read(self, watch: Watch) -> Value | None:
        torch = sys.modules.get("torch")
        if torch is None or not _weights_of_convolutions(watch):
            return None
        return bool(torch.backends.cudnn.benchmark)

    def why_fixed(self, watch: Watch) -> str:
        if device_of(watch) != "cuda":
            return "no GPU: cuDNN is not used"
        import torch

        return (
            "the program asks for deterministic algorithms"
            if torch.backends.cudnn.deterministic
            else graphs.why_fixed()
        )

    @unseen
    def set(self, watch: Watch, value: Value) -> None:
        import torch

        if reason := self.why_fixed(watch):
            raise ChangeRefused(reason)
        torch.backends.cudnn.benchmark = bool(value)
