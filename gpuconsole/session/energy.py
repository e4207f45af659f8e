"""The energy of a run: the increase of its devices' energy counters while the run was steady, and the tokens of the same time."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpuconsole.model.machine.device import Device
from gpuconsole.model.run import Run
from gpuconsole.wire.events import RankJoined

OTHER_MACHINES = "the run uses devices of other machines, whose energy is not measured here"
FOREIGN_SERVER = "the server was not started here: its devices are not known"
NOT_KNOWN = "which {} of the {} GPUs the run uses is not known"
STARTED_HERE = "max_num_seqs"
"""A fact that a server reports only if gpuconsole started it."""


@dataclass
class _Span:
    """A device's counter at the first and at the last reading, in joules, with the tokens counted by then."""

    first_j: float
    first_tokens: int
    last_j: float
    last_tokens: int
    uuid: str


class Energy:
    """Counters of all devices while a run is steady. The devices of the run are known later than the first readings."""

    def __init__(self) -> None:
        self._tokens = 0
        self._spans: dict[str, _Span] = {}

    def add_tokens(self, tokens: int) -> None:
        self._tokens += tokens

    def add(self, device: str, uuid: str, joules: float) -> None:
        """Add one reading of a device's energy counter. If the `uuid` has changed, the counter belongs to another GPU, so counting starts again."""
        span = self._spans.get(device)
        if span is None or span.uuid != uuid:
            self._spans[device] = _Span(joules, self._tokens, joules, self._tokens, uuid)
        else:
            span.last_j, span.last_tokens = joules, self._tokens

    def total(self, devices: Collection[str]) -> tuple[float, float] | None:
        """Joules of all `devices` together, and the tokens of that time; None where a counter is missing or did not rise."""
        spans = [self._spans[device] for device in devices if device in self._spans]
        if not spans or len(spans) < len(devices) or any(span.last_j <= span.first_j for span in spans):
            return None
        return sum(span.last_j - span.first_j for span in spans), statistics.fmean(span.last_tokens - span.first_tokens for span in spans)


def devices_used(
    run: Run, joined: Sequence[RankJoined], device_of: Mapping[int, str], devices: Sequence[Device]
) -> tuple[frozenset[str], str]:
    """The devices of the run. If they are not known: no device, and the reason.

    `joined`: the processes of the run. `device_of`: the GPU of each process id, as the driver lists them (in a container it may list none).
    """
    if not run.device.startswith("gpu"):
        return frozenset((run.device,)), ""
    if run.serves and STARTED_HERE not in run.facts:
        return frozenset(), FOREIGN_SERVER
    if len({one.host for one in joined}) > 1:
        return frozenset(), OTHER_MACHINES
    wanted = max(len(joined), _processes_wanted(run))
    if wanted == 1:
        return frozenset((run.device,)), ""
    listed = frozenset(device_of[one.pid] for one in joined if one.pid in device_of)
    if joined and all(one.pid in device_of for one in joined):
        return listed, ""
    gpus = frozenset(device.id for device in devices if device.is_gpu and not device.is_mig)
    return (gpus, "") if len(gpus) == wanted else (frozenset(), NOT_KNOWN.format(wanted, len(gpus)))


def _processes_wanted(run: Run) -> int:
    name = "tensor_parallel_size" if run.serves else "nproc"
    wanted = run.knobs.get(name, 1)
    return wanted if isinstance(wanted, int) else 1
