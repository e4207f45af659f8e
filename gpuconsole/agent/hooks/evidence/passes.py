"""Passes on copies of the last inputs of the program: what a step costs without input, and with a larger batch.

Gradients come from `torch.autograd.grad`, so the gradients of the parameters stay as they are. Random state and buffers are put back. The
next losses of the program are the same bits with these probes as without.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from ...clock import now
from ...loop import Signals
from ...probes import ProbeError, half_width
from ..recorder import BACKWARD, FORWARD
from ..watch import recorder, watch

WAIT_STEPS = 50
"""Steps within which the inputs of a pass must come."""
BUDGET_S = 1.8
LEAST_ROUNDS = 2
STATE_STEPS = 2
"""Steps between the two looks at the attributes of the modules."""
HELD = ("_parameters", "_buffers", "_modules", "training")
SIMPLE = (int, float, complex, bool, str, bytes, type(None))
MOST_ITEMS = 64


def cached_batch(loop: Any) -> Generator[None, None, Signals]:
    """P1: forward and backward on the last batch: the cost of a step without input."""
    kept = yield from last_pass(loop)
    times: list[float] = []
    with untouched(kept.module):
        kept.run(kept.arguments)
        end = now() + 0.8
        while len(times) < 3 or (now() < end and len(times) < 30):
            times.append(kept.run(kept.arguments))
    seconds = statistics.median(times) * watch.micro_batches
    return {"probe.cached_pass_s": {"value": seconds, "unit": "s", "source": f"probe P1, median of {len(times)}"}}


def batch_elasticity(loop: Any) -> Generator[None, None, Signals]:
    """P2: one forward and backward pass at 1x, 2x and, where passes are short, 4x the batch, in turn, until the budget is used."""
    import torch

    if loop.knobs.get("torch_compile", "off") != "off":
        raise ProbeError("the model is compiled, and other batch sizes would compile it again")
    kept = yield from last_pass(loop)
    sizes = {tensor.shape[0] for tensor in kept.tensors if tensor.ndim}
    size = next(iter(tensor.shape[0] for tensor in kept.tensors if tensor.ndim), 0)
    if not size or sizes != {size}:
        raise ProbeError("the inputs of the model have different first dimensions, so the batch is not known")
    times: dict[int, list[float]] = {1: [], 2: [], 4: []}
    with untouched(kept.module):
        end = now() + BUDGET_S
        batches = {factor: kept.repeated(factor) for factor in factors_in_time(kept.run(kept.arguments))}
        for factor in [factor for factor in batches if factor > 1]:
            try:
                kept.run(batches[factor])  # the first pass of a size allocates
            except torch.OutOfMemoryError:
                batches = {known: value for known, value in batches.items() if known < factor}
                break
        if 2 not in batches:
            raise ProbeError("twice the batch does not fit into memory")
        largest = max(batches)
        while len(times[1]) < LEAST_ROUNDS or (now() < end and len(times[1]) < 25):
            for factor, batch in batches.items():
                times[factor].append(kept.run(batch))
    spread = [many / (largest * one) for one, many in zip(times[1], times[largest], strict=True)]
    signals = {
        f"probe.pass_{factor}x_s": {
            "value": statistics.median(times[factor]),
            "unit": "s",
            "source": f"probe P2, median of {len(times[factor])}",
        }
        for factor in batches
    }
    source = f"probe P2: t({largest}b) / {largest} t(b), n={len(spread)}; without the loss function of the script"
    signals["probe.batch_cost_ratio"] = {"value": statistics.median(spread), "unit": "ratio", "source": source}
    signals["probe.batch_cost_spread"] = {
        "value": half_width(spread),
        "unit": "ratio",
        "source": "probe P2: 2 standard errors of that median",
    }
    fits = "largest factor that fits into memory, and whose passes fit into the time of the probe"
    signals["probe.batch_factor"] = {"value": largest, "unit": "x", "source": f"probe P2: {fits}"}
    return signals


def factors_in_time(pass_s: float) -> tuple[int, ...]:
    """The factors of P2 for a pass of `pass_s` seconds. The program waits meanwhile, so 4x is left out where its passes would take longer than
    the budget: a first pass at 2x and 4x, and LEAST_ROUNDS rounds of all."""
    return (1, 2, 4) if pass_s * (2 + 4 + LEAST_ROUNDS * (1 + 2 + 4)) <= BUDGET_S else (1, 2)


# --- the kept pass ------------------------------------------------------------------------------------------


class KeptPass:
    """The module that the program called last, and copies of its arguments."""

    def __init__(self, module: Any, arguments: tuple[Any, Any], times: Any) -> None:
        self.module, self._times = module, times
        self.tensors: list[Any] = []
        self.arguments = self._copied(arguments)
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]

    def repeated(self, factor: int) -> tuple[Any, Any]:
        """The arguments with `factor` times the batch."""
        import torch

        return mapped(self.arguments, lambda tensor: torch.cat([tensor] * factor) if tensor.ndim else tensor)

    def run(self, arguments: tuple[Any, Any]) -> float:
        """Seconds of one forward and backward pass; on a CPU less the run-queue delay of the thread."""
        import torch

        device = self._parameters[0].device
        _wait_for(device)
        start, runq = now(), self._times.runq_s()
        with torch.enable_grad(), autocast(device.type):
            torch.autograd.grad(scalar(self.module(*arguments[0], **arguments[1])), self._parameters, allow_unused=True)
        _wait_for(device)
        delay = self._times.runq_s() - runq if device.type == "cpu" else 0.0
        return max(1e-9, now() - start - delay)

    def _copied(self, arguments: Any) -> Any:
        def copy(tensor: Any) -> Any:
            made = tensor.detach().clone().requires_grad_(tensor.requires_grad)
            self.tensors.append(made)
            return made

        return mapped(arguments, copy)


def last_pass(loop: Any, alone: bool = True) -> Generator[None, None, KeptPass]:
    """Wait for the next pass of the program, and keep its inputs. Raises ProbeError where a pass must not be repeated.

    `alone`: the pass would run in this process alone.
    """
    if alone and loop.knobs.get("nproc", 1) != 1:
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
        return KeptPass(module, kept[1:], loop.account.times)
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


@contextmanager
def untouched(module: Any) -> Iterator[None]:
    """After the block, the buffers of the model and the random state of torch are as before."""
    import torch

    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    device = next(module.parameters()).device
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def scalar(output: Any) -> Any:
    """A loss: that of the output, if the model computes one; else the sum of all floating-point outputs."""
    loss = getattr(output, "loss", None)
    if loss is None and isinstance(output, dict):
        loss = output.get("loss")
    if loss is not None and getattr(loss, "ndim", 1) == 0:
        return loss
    found: list[Any] = []
    mapped(output, found.append)
    with_gradient = [tensor for tensor in found if tensor.requires_grad]
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
        items = {key: mapped(one, change) for key, one in value.items()}
        return items if type(value) is dict else _like(value, items)
    if isinstance(value, (tuple, list)):
        parts = [mapped(one, change) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _like(value: Any, items: dict[Any, Any]) -> Any:
    try:
        return type(value)(items)
    except TypeError:
        return items


def python_state(module: Any) -> dict[str, Any]:
    """What the modules keep beside parameters and buffers: numbers, texts, sizes of containers, versions of tensors."""
    found: dict[str, Any] = {}
    for path, inner in module.named_modules():
        for name, value in inner.__dict__.items():
            if name not in HELD:
                found[f"{path}.{name}".lstrip(".")] = _print_of(value, 2)
    return found


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
        return id(value), tuple((name, _print_of(one, depth - 1)) for name, one in list(held.items())[:MOST_ITEMS])
    return id(value)


def _wait_for(device: Any) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def autocast(kind: str) -> Any:
    """The autocast of the program's own passes, for a device of this kind."""
    import torch

    if not watch.autocast:
        return nullcontext()
    return torch.autocast(kind, dtype=torch.bfloat16 if watch.autocast == "bf16" else torch.float16)
