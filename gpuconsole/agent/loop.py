"""The interface between the agent and a training loop, ours or a user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .account import StepAccount
from .clock import ThreadTimes
from .protocol import Knobs, Message
from .world import World

if TYPE_CHECKING:
    import torch

Signals = dict[str, Any]
"""What a probe measured, by signal name; each value has `value`, `unit` and `source`."""
Probe = Callable[[], Signals]


class Account(Protocol):
    """What the agent asks of a step account."""

    times: ThreadTimes
    low_rate: bool

    @property
    def index(self) -> int:
        """The step under way, counted from 0."""
        ...

    def message(self, t: float, sending_s: float, memory_bytes: float, dropped: int, rank: int, counters: dict[str, float], /) -> Message:
        """The message with the steps since the last call."""
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
    def account(self) -> Account: ...

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
        """The probes that this loop offers, by name; a probe raises ProbeError where it does not apply.

        Empty: there is nothing to probe.
        """
        ...

    def step(self) -> None:
        """Run one step, marked in the account."""
        ...

    def set_knobs(self, changes: Knobs, arm: int) -> None:
        """Put `changes` in force for the next step. Raises what goes wrong; the knobs are then as before."""
        ...

    def try_out(self) -> None:
        """Run what shows whether the knobs in force work: a step, or where processes wait for each other a pass of this process alone."""
        ...

    def recover(self) -> None:
        """Bring the loop back into a state in which all processes can go on, after a pass that broke off. Only called where `exchanges`."""
        ...

    def set_arm(self, arm: int) -> None:
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


class PassLoop(Loop, Protocol):
    """A loop whose forward and backward passes can also run outside of a step: what probes and rehearsals need."""

    @property
    def account(self) -> StepAccount: ...

    last_batch: tuple[torch.Tensor, ...] | None
    """The batch of the last step, on the device."""

    @property
    def world(self) -> World: ...

    @property
    def model(self) -> torch.nn.Module: ...

    def forward(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The loss of `batch`, a scalar tensor."""
        ...

    def fresh_batch(self) -> tuple[torch.Tensor, ...]:
        """The next batch, on the device."""
        ...

    def drop_gradients(self) -> None: ...

    def silence(self) -> AbstractContextManager[Any]:
        """Passes in this block exchange nothing with other processes. Their gradients are worthless."""
        ...

    def preserved(self) -> AbstractContextManager[None]:
        """Passes in this block leave the loop's own state, beside model and random generators of torch, as it was."""
        ...
