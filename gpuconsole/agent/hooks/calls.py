"""Functions that are a segment of their own: saving, logging, collectives, compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import tracing
from .guard import entry, switch
from .recorder import COMM, LOG, SAVE, WHOLE
from .watch import recorder

COLLECTIVES = (
    "all_reduce all_gather all_gather_into_tensor reduce_scatter_tensor broadcast barrier reduce all_gather_object broadcast_object_list"
)


def spanned(code: int, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, as a segment with `code` on the training thread. Its name, module and documentation stay."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if tracing.is_compiling() or not begin(code):
            return call(*args, **kwargs)
        try:
            return call(*args, **kwargs)
        finally:
            end()

    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        if hasattr(call, name):
            setattr(wrapper, name, getattr(call, name))
    wrapper.__wrapped__ = call  # type: ignore[attr-defined]
    return wrapper


@entry("calls.begin")
def begin(code: int) -> bool:
    """Begin a segment. Returns whether there is one to end."""
    if not recorder.watches() or code in recorder.stack or (code == WHOLE and not tracing.grad_enabled()):
        return False
    recorder.passes += code == WHOLE
    recorder.enter(code)
    return True


@entry("calls.end")
def end() -> None:
    if recorder.on:
        recorder.leave()


def around(*entries: tuple[str, str, int]) -> Callable[[Any], None]:
    """A hook that makes segments of functions: (class within the module, or empty; names; code)."""

    def hook(module: Any) -> None:
        for holder, names, code in entries:
            target = getattr(module, holder, None) if holder else module
            for name in names.split():
                if hasattr(target, name):
                    setattr(target, name, spanned(code, getattr(target, name)))

    return hook


def on_torch(module: Any) -> None:
    """`torch.save` is a name of its own for the function of torch.serialization."""
    import builtins
    import sys

    tracing.use(module.compiler.is_compiling, module.is_grad_enabled)
    module.save = sys.modules["torch.serialization"].save
    plain = builtins.print
    builtins.print = spanned(LOG, plain)
    switch.undo.append(lambda: setattr(builtins, "print", plain))


LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
HOOKS: dict[str, Callable[[Any], None]] = {
    "torch": on_torch,
    "torch.serialization": around(("", "save", SAVE)),
    "torch.distributed.distributed_c10d": around(("", COLLECTIVES, COMM)),
    "torch.distributed.checkpoint.state_dict_saver": around(("", "save async_save", SAVE)),
    "safetensors.torch": around(("", "save_file", SAVE)),
    "torch.utils.tensorboard.writer": around(("SummaryWriter", "add_scalar add_scalars add_histogram add_image flush", LOG)),
    "tqdm.std": around(("tqdm", "refresh", LOG)),
    "logging": around(("Logger", "handle", LOG)),
    "transformers.trainer": around(("Trainer", "compute_loss", WHOLE)),
    **{f"{name}.strategies.strategy": around(("Strategy", "training_step", WHOLE)) for name in LIGHTNING},
    **{f"{name}.core.module": around(("LightningModule", "log log_dict", LOG)) for name in LIGHTNING},
}
