"""The interface between the agent and a training loop, ours or a user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .clock import ThreadTimes
from .protocol import Knobs, Message, Signal
from .world import World

if TYPE_CHECKING:
    import torch

Signals = dict[str, Signal]
"""What a probe measured, by signal name."""
Probe = Callable[[], Signals]


class Breakdown(Protocol):
    """What the agent asks of a step breakdown."""

    tag: str
    """Of the messages with the steps."""
    times: ThreadTimes
    low_rate: bool

    @property
    def index(self) -> int:
        """The step under way, counted from 0."""
        ...

    def fields(self, sending_s: float, /) -> Message:
        """The fields `steps` or `packed`, `cpu_s`, `runq_s` and `overhead_s` of the message with
        the steps since the last call."""
        ...

    def finish(self) -> None: ...

    def restart(self) -> None:
        """Begin a new timeline: what happened before belongs to no step."""
        ...


class Loop(Protocol):
    """What the agent asks of a loop: steps, knobs, probes and memory figures.

    All calls come from the training thread, between two steps.
    """

    @property
    def breakdown(self) -> Breakdown: ...

    knobs: Knobs
    """The knobs in force. Only `set_knobs` changes them."""
    arm: int
    """The side of a trial that the steps belong to; 0 outside of trials."""
    kind: int
    """The kind that the next steps get: COUNTS or PROBE."""
    device: torch.device
    scratch: Path
    """A folder for files of this run."""

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer; None where nothing is trained."""
        ...

    @property
    def exchanges(self) -> bool:
        """Whether processes wait for each other within a step."""
        ...

    @property
    def probes(self) -> Mapping[str, Probe]:
        """The probes that this loop offers, by name; a probe raises ProbeError where it does not
        apply.

        Empty: there is nothing to probe.
        """
        ...

    def step(self) -> None:
        """Run one step, marked in the account."""
        ...

    def set_knobs(self, changes: Knobs, arm: int) -> None:
        """Put `changes` in force for the next step. Raises what goes wrong; the knobs are then as
        before."""
        ...

    def try_out(self) -> None:
        """Run what shows whether the knobs in force work: a step, or where processes wait for each
        other a pass of this process alone."""
        ...

    def recover(self) -> None:
        """Bring the loop back into a state in which all processes can go on, after a pass that
        broke off. Only called where `exchanges`."""
        ...

    def set_variant(self, arm: int) -> None:
        """Mark the next steps as that side of a trial."""
        ...

    def settle(self) -> None:
        """Begin a new timeline whose first steps do not count."""
        ...

    def counters(self) -> dict[str, float]:
        """Cumulative counters beside the steps."""
        ...

    def peak_memory_bytes(self) -> float:
        """Peak memory of the job, without what probes took."""
        ...

    def forget_peak_memory(self) -> None:
        """Restart the peak before the first step: buffers of calibrations do not count."""
        ...

    def restart_peak_memory(self) -> None:
        """Restart the peak after a change of knobs."""
        ...

    def beside_the_peak(self) -> AbstractContextManager[None]:
        """The memory that is used in this block does not count for the peak."""
        ...

    def release_cached_memory(self) -> None:
        """Free memory that the allocator caches, and drop gradients."""
        ...

    def close(self) -> None: ...


class Timed(Protocol):
    """What timed work of a probe needs: the device, the clocks of the training thread, and the
    other processes."""

    device: torch.device

    @property
    def breakdown(self) -> Breakdown: ...

    @property
    def world(self) -> World: ...


class Subject(Timed, Protocol):
    """A training loop whose forward and backward passes can also run outside of a step: what probes
    experiment on."""

    knobs: Knobs
    longest_hold_s: float
    """Seconds that a probe may hold up the loop; infinite for a loop of ours."""
    pass_note: str
    """What a source adds about the passes."""

    @property
    def model(self) -> torch.nn.Module: ...

    @property
    def batch(self) -> Any:
        """The batch of the last step, on the device. Raises ProbeError before the first step."""
        ...

    @property
    def passes_per_step(self) -> int: ...

    def repeated(self, batch: Any, factor: int) -> Any:
        """`batch`, `factor` times as large. Raises ProbeError where the size of a batch is not
        known."""
        ...

    def make_room(self, factor: int) -> bool:
        """Make room for a pass on `factor` times the batch. Returns whether it fits, as far as a
        pass on the batch itself has shown; True where that is not known."""
        ...

    def run_pass(self, batch: Any) -> None:
        """One forward and backward pass. Gradients are left only where `drop_gradients` drops
        them."""
        ...

    def drop_gradients(self) -> None: ...

    def silence(self) -> AbstractContextManager[Any]:
        """Passes in this block exchange nothing with other processes. Their gradients are
        worthless."""
        ...

    def preserved(self) -> AbstractContextManager[None]:
        """Passes in this block leave the loop's own state, beside model and random generators of
        torch, as it was."""
        ...

    def release_cached_memory(self) -> None:
        """Free memory that the allocator caches, and drop gradients."""
        ...
