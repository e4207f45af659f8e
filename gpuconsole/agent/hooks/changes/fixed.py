"""Why the other settings of a program cannot change while it runs, and the code that sets them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..watch import Watch


class Fixed(NamedTuple):
    """`kind`: the object whose line decides the setting, as in `watch.made`."""

    reason: str
    code: str
    kind: str = ""


BUCKETS = "a process that built its buckets anew one step before another would exchange other sizes, and the job would hang"
"""DDP would rebuild its Reducer (`_ddp_init_helper`, as it does after unpickling). But the agent cannot make all processes do so in the same step: that
takes a collective of its own, and a process that fails would leave the others waiting. Hooks of communication would be lost, too."""
FIXED: dict[str, Fixed] = {
    "batch_size": Fixed("the sampler of the DataLoader has grouped the samples", "DataLoader(dataset, batch_size=...)", "loader"),
    "persistent_workers": Fixed("it acts only between two epochs", "DataLoader(dataset, persistent_workers=True, ...)", "loader"),
    "gradient_accumulation_steps": Fixed("the program's own loop decides when the optimizer steps", "if step % accumulation == 0: ..."),
    "nproc": Fixed("the processes were started together", "torchrun --nproc-per-node=..."),
    "sharding": Fixed("parameters and optimizer states were divided when the model was wrapped", "DistributedDataParallel(model)", "ddp"),
    "bucket_cap_mb": Fixed(BUCKETS, "DistributedDataParallel(model, bucket_cap_mb=...)", "ddp"),
}  # fmt: skip
OTHERS = Fixed("the program sets it when it starts", "")


def why(knob: str, watch: Watch) -> str:
    """The reason, and the code with file and line, in one line."""
    found = FIXED.get(knob, OTHERS)
    place = site(watch, found.kind)
    code = f": {found.code}" if found.code else ""
    return f"{found.reason}{code}{f' at {place}' if place else ''}"


def site(watch: Watch, kind: str) -> str:
    """`file:line` where the program made its newest object of this kind; empty where that is not known."""
    used = watch.loader() if kind == "loader" and watch.loader is not None else None
    made = [(file, line, one.ref()) for (of, file, line), one in watch.made.items() if of == kind]
    places = [(file, line) for file, line, one in made if one is used] or [(file, line) for file, line, one in made if one is not None]
    return f"{os.path.basename(places[-1][0])}:{places[-1][1]}" if places else ""
