"""Live change of the optimizer's implementation: fused, foreach, or one operation at a time."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ...protocol import Value
from ..guard import from_outside, unseen
from ..identity import ByIdentity
from .batch_sources import in_one_line
from .change import (
    SAME_SAMPLES,
    ChangeRefused,
    TriedChange,
    on_this_device,
    require_room,
    why_bound,
)

if TYPE_CHECKING:
    from ..watch import Watch

Flags = tuple[Any, Any]
"""`fused` and `foreach` of a parameter group."""
TAKES_SCALE = "_step_supports_amp_scaling"
"""The attribute of a fused optimizer by which GradScaler leaves the scaling of gradients to the
step."""
OF_SCALER = ("grad_scale", "found_inf")
"""What GradScaler gives to such an optimizer for the time of a step."""
FLAGS: dict[str, Flags] = {
    "adamw": (False, False),
    "adamw_foreach": (False, True),
    "adamw_fused": (True, False),
}


class Optimizer(TriedChange):
    """Adam and AdamW. The flags are set for the time of a step only, so a checkpoint of the program
    holds its own flags.

    The moments are kept. A fused update rounds in another order.
    """

    knob, effect = "optim", SAME_SAMPLES

    def __init__(self) -> None:
        self._changed = ByIdentity()

    def read(self, watch: Watch) -> Value | None:
        optimizers = _optimizers(watch)
        if not optimizers:
            return None
        flagged = self._changed.get(optimizers[-1])
        return flagged.name if flagged is not None else present(optimizers[-1])

    def why_fixed(self, watch: Watch) -> str:
        optimizers = _optimizers(watch)
        if not optimizers:
            return "the program has no optimizer of torch"
        if reason := why_bound():
            return reason
        # one that does not fit: none is changed
        return next((reason for optimizer in optimizers if (reason := _why_not(optimizer))), "")

    @unseen
    def set(self, watch: Watch, value: Value) -> None:
        name = str(value)
        if reason := self.why_fixed(watch):
            raise ChangeRefused(reason)
        optimizers = _optimizers(watch)
        if name not in FLAGS:
            raise ChangeRefused(
                f"optim={name}: another algorithm has another state; only the implementation of"
                " Adam and AdamW can change"
            )
        for optimizer in optimizers:
            if name != present(optimizer):
                _try_out(optimizer, FLAGS[name])
            if FLAGS[name][1] and present(optimizer) != name:
                parameters = [
                    parameter for group in optimizer.param_groups for parameter in group["params"]
                ]
                needed = sum(
                    on_this_device(parameter).numel() * parameter.element_size()
                    for parameter in parameters
                )
                require_room(needed, parameters[0].device, "the temporary tensors of foreach")
        for optimizer in optimizers:
            flagged = self._changed.pop(optimizer)
            if flagged is not None:
                flagged.remove()
            if name != present(optimizer):
                self._changed.put(optimizer, Flagged(optimizer, name))


class Flagged:
    """An optimizer whose steps run with other flags."""

    def __init__(self, optimizer: Any, name: str) -> None:
        self.name = name
        self._optimizer = weakref.ref(optimizer)
        self._own: list[tuple[dict[str, Any], Flags]] = []
        """During an update: the groups, and the program's own flags of each. An update that raises
        leaves them here."""
        self._took_scale = bool(getattr(optimizer, TAKES_SCALE, False)) and not FLAGS[name][0]
        if self._took_scale:  # only the fused update can scale: the others raise
            setattr(optimizer, TAKES_SCALE, False)
        self._hooks = [
            optimizer.register_step_pre_hook(self._begin),
            optimizer.register_step_post_hook(lambda *_: self._put_back()),
            optimizer.register_state_dict_post_hook(self._saved),
        ]

    def remove(self) -> None:
        """The program's own flags again, and the step counters where they were."""
        for hook in self._hooks:
            hook.remove()
        self._put_back()
        optimizer = self._optimizer()
        if optimizer is not None:
            if self._took_scale:
                setattr(optimizer, TAKES_SCALE, True)
            for group in optimizer.param_groups:
                move_counters(optimizer, group, bool(group.get("fused")))

    def _begin(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Set the flags before the update: after the closure, which belongs to the program and may
        raise."""
        self._put_back()  # the last update may have raised
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            return self._set(optimizer)

        def then_set() -> Any:
            loss = closure()
            self._set(optimizer)
            return loss

        return (args[0], then_set), {}

    def _set(self, optimizer: Any) -> None:
        self._own = [(group, _flags(group)) for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            if FLAGS[self.name][1] and hasattr(type(group["lr"]), "data_ptr"):
                continue  # foreach takes no tensor: the program has set one for this update
            group["fused"], group["foreach"] = FLAGS[self.name]
            move_counters(optimizer, group, FLAGS[self.name][0])

    def _put_back(self) -> None:
        own, self._own = self._own, []
        for group, (fused, foreach) in own:
            if _flags(group) == FLAGS[self.name]:  # else the program has set them since then
                group["fused"], group["foreach"] = fused, foreach

    def _saved(self, optimizer: Any, state: dict[str, Any]) -> None:
        """A checkpoint, also one after an update that raised, holds the program's own flags."""
        own = {id(group): flags for group, flags in self._own}
        for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
            if id(group) in own and _flags(saved) == FLAGS[self.name]:
                saved["fused"], saved["foreach"] = own[id(group)]


def present(optimizer: Any) -> str:
    """The implementation that the program chose. Where it chose none, torch takes foreach on a GPU.
    Another optimizer has its own name."""
    import torch

    group = optimizer.param_groups[0]
    if isinstance(optimizer, torch.optim.SGD):
        return "sgd" if group.get("momentum") else "sgd_plain"
    if not isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        return type(optimizer).__name__.lower()
    fused, foreach = _flags(group)
    if fused:
        return "adamw_fused"
    on_gpu = any(parameter.is_cuda for parameter in group["params"][:1])
    return "adamw_foreach" if foreach or (foreach is None and on_gpu) else "adamw"


def move_counters(optimizer: Any, group: dict[str, Any], fused: bool) -> None:
    """Put the step counters where the implementation wants them: fused on the parameter's device,
    else on the CPU."""
    for parameter in group["params"]:
        step = optimizer.state.get(parameter, {}).get("step")
        if step is None or not hasattr(step, "device"):
            continue
        device = parameter.device if fused else "cpu"
        if step.device.type != (parameter.device.type if fused else "cpu"):
            optimizer.state[parameter]["step"] = step.to(device)


def _optimizers(watch: Watch) -> list[Any]:
    return [optimizer for ref in watch.optimizers if (optimizer := ref()) is not None]


def _flags(group: dict[str, Any]) -> Flags:
    return group.get("fused"), group.get("foreach")


def _why_not(optimizer: Any) -> str:
    import torch

    name = type(optimizer).__name__
    if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW):
        return (
            f"{name} is made by the program with one implementation; for Adam and AdamW it can"
            " change"
        )
    if not optimizer.state:
        return f"{name} has not stepped"
    if not hasattr(optimizer, "register_step_pre_hook"):
        return "this version of torch lacks register_step_pre_hook"
    for group in optimizer.param_groups:
        if group.get("capturable") or group.get("differentiable"):
            return f"{name} was made with capturable or differentiable: its state has another form"
        if not all(parameter.is_floating_point() for parameter in group["params"]):
            return "the fused kernel takes real numbers only"
    return ""


def _try_out(optimizer: Any, flags: Flags) -> None:
    """Run the update once on a copy of the smallest parameter of each kind. Raises ChangeRefused
    where it does not work.

    A kernel that fails within a step of the program would end the program. Gradients must lie in
    memory as their parameters do.
    """
    import torch

    kinds: dict[Any, tuple[Any, dict[str, Any]]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            if not state:
                continue
            beside = [
                value
                for value in (*state.values(), parameter.grad)
                if isinstance(value, torch.Tensor) and value.dim()
            ]
            if any(
                tensor.dtype != parameter.dtype or tensor.stride() != parameter.stride()
                for tensor in beside
                if tensor.shape == parameter.shape
            ):
                raise ChangeRefused(
                    "parameters, gradients and moments have different types or layouts: the fused"
                    " kernel would fail"
                )
            kind = (parameter.dtype, parameter.device, parameter.is_contiguous())
            if kind not in kinds or parameter.numel() < kinds[kind][0].numel():
                kinds[kind] = parameter, group
    try:
        with torch.no_grad():
            for parameter, group in kinds.values():
                _step_of_a_copy(optimizer, parameter, group, flags)
    except Exception as problem:
        if from_outside(problem):
            raise
        raise ChangeRefused(f"an update of a copy failed: {in_one_line(problem)}") from None


def _step_of_a_copy(optimizer: Any, parameter: Any, group: dict[str, Any], flags: Flags) -> None:
    import copy

    import torch

    replacement = torch.nn.Parameter(parameter.detach().clone(memory_format=torch.preserve_format))
    replacement.grad = (
        torch.zeros_like(replacement)
        if parameter.grad is None
        else parameter.grad.detach().clone(memory_format=torch.preserve_format)
    )
    other = object.__new__(type(optimizer))
    other.__dict__.update(
        {
            name: value
            for name, value in optimizer.__dict__.items()
            if name not in ("state", "param_groups", *OF_SCALER)
        }
    )
    other.state = {replacement: copy.deepcopy(dict(optimizer.state[parameter]))}
    other.param_groups = [
        {**group, "params": [replacement], "fused": flags[0], "foreach": flags[1]}
    ]
    move_counters(other, other.param_groups[0], bool(flags[0]))
    step = type(optimizer).step
    while getattr(step, "hooked", False):
        step = step.__wrapped__
    step(other)  # without the hooks of steps
