"""A live change of a user's job: a knob with its observed value, and how to set it between two
steps; why other settings cannot change while the program runs, and the code that sets them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ...free_memory import free_and_total
from ...protocol import PlainError, Value
from ..memory import first_steps
from ..watch import place_name

if TYPE_CHECKING:
    from ..watch import Watch

SAME_BITS, SAME_SAMPLES, MAY_DIFFER, CHANGES_NUMERICS = (
    "same bits",
    "same samples",
    "samples may differ",
    "changes numerics",
)
"""Effects of a change on what the program computes. SAME_SAMPLES: the same batches in the same
order, but other rounding is possible. MAY_DIFFER: the same indices in the same order, but of a
dataset that the loop may have changed meanwhile."""
NEEDS_PERMISSION = (
    "workers load ahead, from copies of the dataset: samples that your loop changes meanwhile,"
    " random numbers and counters may differ. It needs your permission: N, or --allow-loader"
)
"""Why a change of the loader is refused without the permission."""


class ChangeRefused(PlainError):
    """The change is not possible in this program. The message is the reason, in one line."""


def why_bound() -> str:
    """Why the program's CUDA graph, or a mode of the program that sees each operator, forbids a
    change of the model or the optimizer; empty where the program has none of both."""
    from ..graphs import why_fixed
    from ..modes import modes

    return why_fixed() or modes.why_fixed()


def on_this_device(weight: Any) -> Any:
    """The part of a parameter that this process has, where several processes share it."""
    return getattr(weight, "_local_tensor", weight)


def require_room(needed: float, device: Any, what: str) -> None:
    """Raises ChangeRefused where `what`, of so many bytes, does not fit into the GPU: the
    allocation would fail within a pass of the program, and end it."""
    if device.type != "cuda":
        return
    import torch

    figures = torch.cuda.memory_stats_as_nested_dict(device)
    never_used = (
        figures["reserved_bytes"]["all"]["current"] - figures["allocated_bytes"]["all"]["peak"]
    )
    free = free_and_total(device)[0] + max(0, never_used)
    if needed > free:
        raise ChangeRefused(
            f"no room for {what}: {needed / 1e9:.2g} GB are needed, and {free / 1e9:.2g} GB are"
            " free"
        )


class Change:
    """One knob of a user's job. All methods run on the training thread, between two steps."""

    knob: ClassVar[str]
    """A name of the knob catalogue."""
    effect: ClassVar[str]

    def effect_here(self, watch: Watch) -> str:
        """What the change does to the numbers of this program, as far as it is known."""
        return self.effect

    def read(self, watch: Watch) -> Value | None:
        """The value in force, as observed; None where it is not known or does not exist in this
        program."""
        raise NotImplementedError

    def why_fixed(self, watch: Watch) -> str:
        """Why the knob cannot change while the program runs, in one line; empty where it can."""
        return ""

    def set(self, watch: Watch, value: Value) -> None:
        """Put `value` in force from the next step on. Raises ChangeRefused; everything is then as
        before."""
        raise NotImplementedError

    def prepare(self, watch: Watch, value: Value) -> None:
        """Begin what a change to `value` needs beforehand, and change nothing. `set` makes the
        change later. Raises ChangeRefused."""

    def prepared(self, watch: Watch, value: Value) -> bool:
        """Whether `set` can put `value` in force before the next step. Called between two steps.
        Raises ChangeRefused where it cannot at all."""
        return True

    def pending(self, watch: Watch) -> bool:
        """Whether a change that `set` began is still under way. Called between two steps. Raises
        ChangeRefused where the change failed."""
        return False


class TriedChange(Change):
    """A change of the model or the optimizer: its first steps show whether there is room for it."""

    def pending(self, watch: Watch) -> bool:
        """Whether the first steps are under way. Raises ChangeRefused where an allocation has
        failed in them."""
        if why := first_steps.why_failed():
            raise ChangeRefused(why)
        return first_steps.under_way


# --- the other settings of a program --------------------------------------------------------------


class Fixed(NamedTuple):
    """`kind`: the object whose line decides the setting, as in `watch.made`."""

    reason: str
    code: str
    kind: str = ""


BUCKETS = (
    "a process that built its buckets anew one step before another would exchange other sizes, and"
    " the job would hang"
)
"""DDP would rebuild its Reducer (`_ddp_init_helper`, as it does after unpickling). But the agent
cannot make sure that all processes do so in the same step: that takes a collective of its own,
because a process that is past an agreed step, or fails, would leave the others waiting. Hooks of
communication would be lost, too."""
FIXED: dict[str, Fixed] = {
    "batch_size": Fixed(
        "the sampler of the DataLoader has grouped the samples",
        "DataLoader(dataset, batch_size=...)",
        "loader",
    ),
    "persistent_workers": Fixed(
        "it acts only between two epochs",
        "DataLoader(dataset, persistent_workers=True, ...)",
        "loader",
    ),
    "gradient_accumulation_steps": Fixed(
        "the program's own loop decides when the optimizer steps",
        "if step % accumulation == 0: ...",
    ),
    "nproc": Fixed("the processes were started together", "torchrun --nproc-per-node=..."),
    "sharding": Fixed(
        "parameters and optimizer states were divided when the model was wrapped",
        "DistributedDataParallel(model)",
        "ddp",
    ),
    "sync_each_batch": Fixed(
        "the program's own loop decides which passes exchange gradients",
        "with model.no_sync(): loss_function(model(inputs), targets).backward()",
    ),
    "comm_hook": Fixed(
        "DistributedDataParallel takes one hook, before the first pass",
        "model.register_comm_hook(None, ...)",
        "ddp",
    ),
    "bucket_cap_mb": Fixed(BUCKETS, "DistributedDataParallel(model, bucket_cap_mb=...)", "ddp"),
}
NO_LOADER = Fixed("the program makes its batches itself", "")
"""For the size of a batch, where the program has no DataLoader."""
OTHERS = Fixed("the program sets it when it starts", "")


def why(knob: str, watch: Watch) -> str:
    """The reason, and the code with file and line, in one line."""
    fixed = FIXED.get(knob, OTHERS)
    if knob == "batch_size" and watch.loader is None and watch.last_loader is None:
        fixed = NO_LOADER
    place = site(watch, fixed.kind)
    code = f": {fixed.code}" if fixed.code else ""
    return f"{fixed.reason}{code}{f' at {place}' if place else ''}"


def site(watch: Watch, kind: str) -> str:
    """`file:line` where the program made its newest object of this kind; empty where that is not
    known."""
    used = watch.loader() if kind == "loader" and watch.loader is not None else None
    made = [
        (file, line, made_object)
        for (of, file, line), record in watch.made.items()
        if of == kind and (made_object := record.ref()) is not None
    ]
    places = [(file, line) for file, line, made_object in made if made_object is used] or [
        (file, line) for file, line, _ in made
    ]
    return place_name(*places[-1]) if places else ""
