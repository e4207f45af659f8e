"""GPU memory of a user's job: its owners over the run, and what was known when an allocation
failed."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Owner(NamedTuple):
    """Who owns GPU memory. `metric`: its series; empty where the owner has none."""

    name: str
    title: str
    metric: str
    about: str


OWNERS = {
    owner.name: owner
    for owner in (
        Owner(
            "parameters",
            "parameters",
            "workload.memory_parameters_bytes",
            "Parameters of the job on its GPU",
        ),
        Owner(
            "gradients",
            "gradients",
            "workload.memory_gradients_bytes",
            "Gradients of the job, as after a backward pass: bytes of the trained parameters",
        ),
        Owner(
            "optimizer",
            "optimizer states",
            "workload.memory_optimizer_bytes",
            "Optimizer states of the job on its GPU",
        ),
        Owner(
            "activations",
            "activations and other tensors",
            "workload.memory_activations_bytes",
            (
                "Peak of the job's allocated memory over the run (since the program reset it, if it"
                " does), less parameters, gradients and optimizer states"
            ),
        ),
        Owner(
            "cache",
            "cache",
            "workload.memory_cache_bytes",
            (
                "Memory that torch's allocator has reserved beyond the peak of the allocated memory"
                " over the run"
            ),
        ),
        Owner(
            "unknown",
            "activations and cache",
            "workload.memory_unknown_bytes",
            (
                "Activations and cache together, after an allocation failed: the peak is that of"
                " the failed attempt"
            ),
        ),
        Owner(
            "others",
            "context and other processes",
            "workload.memory_others_bytes",
            (
                "Used memory of the card that torch's allocator in the job has not reserved: the"
                " CUDA context, libraries, other processes"
            ),
        ),
    )
}
"""The owners whose bytes add up to the used memory of the card, in the order of a stack."""
KEPT = Owner(
    "kept",
    "kept between two steps",
    "workload.memory_kept_bytes",
    (
        "Allocated memory at the end of a step beyond parameters, gradients and optimizer states;"
        " it grows where a program keeps graphs or batches"
    ),
)
CARD = Owner(
    "total",
    "the card",
    "workload.memory_card_bytes",
    "Memory of the card that the job trains on, as CUDA reports it",
)


MAX_FAILURES = 8
"""Failed allocations that are kept of a run: a search for the largest batch makes one for each
batch that does not fit."""


class Fit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change that would make room. `frees_bytes`: what it frees at the peak of a step; None: not
    known. `enough`: whether it alone suffices by the memory model; None: not known."""

    change: str
    reason: str
    frees_bytes: float | None = None
    enough: bool | None = None


class MemoryLine(msgspec.Struct, frozen=True):
    """Bytes in so many `blocks` that one line of the program holds. Without a `file`, `function`
    says what the blocks have in common."""

    file: str
    line: int
    function: str
    bytes: float
    blocks: int

    @property
    def place(self) -> str:
        """`train.py:41 train_step`."""
        return (
            f"{self.file.rpartition('/')[2]}:{self.line} {self.function}"
            if self.file
            else self.function
        )


class MemoryByLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """The lines of the program that hold most GPU memory, the largest first, and `total_bytes`,
    what all lines hold: at the largest allocation of the run's end, or with `failed` when an
    allocation failed. `reason`: why it is not known."""

    device: str
    lines: list[MemoryLine] = []
    total_bytes: float = 0.0
    failed: bool = False
    reason: str = ""
    rank: int = 0


class MemoryFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An allocation on a GPU that failed in a user's job. Bytes are those of one process and one
    card; None: not known.

    `message`: the text of the error. `file`, `line`, `function`: the innermost line of the program;
    `within`: the line of a library that ran for it. `phase`: forward, backward, optimizer, eval,
    move (a module goes to the GPU), or another phase of a step. `steps`: finished steps.
    `batch_size`: samples of the pass under way, 0: not known. `step_peak_bytes`, `step_batch`: peak
    of the finished steps and their largest batch; 0: no step was finished, or an earlier attempt
    has hidden the peak. `allocated_bytes` ... `total_bytes`: figures of the allocator and of the
    driver when the error was seen. `trained`: elements of the trained parameters; `trained_bytes`:
    their bytes. `moments`: values that the optimizer keeps for each of them, -1: not known.
    `foreach`: its update works on lists of tensors, and so has temporary tensors.
    `pass_peak_bytes`: the peak before the first update, where this is it. `blocks`: the length of
    the longest list of equal layers. `evaluates`: the model is in evaluation mode. `settings`:
    those of torch's allocator. `change`: a change of the console's whose first steps these were,
    such as `precision=bf16`; empty: there was none.

    From the message, by the console: `asked_bytes`; `limit_bytes`, what torch may reserve at most;
    `context_bytes`; `processes`, the memory of other processes by process id. `fits`: what would
    make room. `caught`: the program caught the error and made further steps, or ended well.
    """

    message: str
    file: str = ""
    line: int = 0
    function: str = ""
    within: str = ""
    device: str = ""
    phase: str = "other"
    steps: int = 0
    batch_size: int = 0
    step_peak_bytes: float = 0.0
    step_batch: int = 0
    settings: str = ""
    change: str = ""
    allocated_bytes: float | None = None
    peak_bytes: float | None = None
    reserved_bytes: float | None = None
    split_bytes: float | None = None
    free_bytes: float | None = None
    total_bytes: float | None = None
    parameters_bytes: float = 0.0
    trained_bytes: float = 0.0
    trained: int = 0
    gradients_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    optimizer: str = ""
    moments: int = -1
    foreach: bool = False
    pass_peak_bytes: float = 0.0
    blocks: int = 0
    evaluates: bool = False
    autocast: str = ""
    asked_bytes: float | None = None
    limit_bytes: float | None = None
    context_bytes: float | None = None
    processes: dict[int, float] = {}
    fits: list[Fit] = []
    caught: bool = False
    rank: int = 0
    t: float = 0.0

    @property
    def place(self) -> str:
        """`train.py:41 train_step`: the file without its folder; empty where no line of the program
        is known."""
        return f"{self.file.rpartition('/')[2]}:{self.line} {self.function}" if self.file else ""

    @property
    def activations_bytes(self) -> float | None:
        """What is allocated beyond parameters, gradients and optimizer states at this moment."""
        if self.allocated_bytes is None:
            return None
        return max(
            0.0,
            self.allocated_bytes
            - self.parameters_bytes
            - self.gradients_bytes
            - self.optimizer_bytes,
        )

    @property
    def unallocated_bytes(self) -> float | None:
        """What torch has reserved, and no tensor uses."""
        if self.reserved_bytes is None or self.allocated_bytes is None:
            return None
        return max(0.0, self.reserved_bytes - self.allocated_bytes)
