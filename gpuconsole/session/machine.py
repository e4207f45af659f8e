"""What is known of the machine: the history of each metric, devices, processes, links, and the
sources with their state."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuconsole.model.machine import Device, Link, Process
from gpuconsole.model.metrics import CATALOGUE, series_key
from gpuconsole.model.run import Run
from gpuconsole.model.series import Series
from gpuconsole.session.idle import QuietTimes
from gpuconsole.wire.events import (
    DeviceKnown,
    DeviceLost,
    Devices,
    Event,
    Hello,
    Processes,
    RankJoined,
    Sample,
    SamplerEnded,
    SourceState,
    Topology,
    Unavailable,
    Xid,
)

USUAL = ""
"""The usual reader of a device has an empty name. A reader that adds other metrics has a name."""
WORKLOAD = "workload"
SERVER = "server"


class Readings:
    """Values by series key (`gpu.power_w{device=gpu:0}`). All times are session seconds.

    `latest` holds each value until its reader withdraws it. `session.freshness` decides whether the
    reader still reports.
    """

    def __init__(self, history: bool = True) -> None:
        """`history`: also keep the past values, about 10 KB per series."""
        self.series: dict[str, Series] = {}
        self.latest: dict[str, float] = {}
        self.sampled: dict[str, float] = {}
        """The time at which each value of `latest` was read."""
        self.substitutes: dict[str, str] = {}
        """The source of each value of `latest` that did not come from the source in the
        catalogue."""
        self.readers: dict[str, str] = {}
        """The reader of each value of `latest` that did not come from the usual reader of its
        device."""
        self.reported: dict[str, dict[str, float]] = {}
        """The time of the last report, by device and then by reader."""
        self._history = history
        self._only_recent = True
        self._by_device: dict[str, dict[str, tuple[str, Series | None]]] = {}

    def add_sample(self, event: Sample, at: float) -> None:
        reader = reader_of(event)
        self._store(event.device, event.values, at)
        if reader != USUAL or self.readers or event.sources or self.substitutes:
            for metric in event.values:
                key = series_key(metric, event.device)
                self._note_reader(key, reader)
                self._note_source(key, event.sources.get(metric))
        self.note_report(event.device, reader, at)

    def note_report(self, device: str, reader: str, at: float) -> None:
        """Record that `reader` has reported about `device`."""
        self.reported.setdefault(device, {})[reader] = at

    def add(
        self,
        metric: str,
        device: str,
        at: float,
        value: float,
        reader: str = USUAL,
        weight: float = 1.0,
    ) -> None:
        """Store a value of a sample. `weight`: see `Series`. A value that is not finite, for
        example a loss of NaN, deletes the present value. Metrics that are not in the catalogue come
        from a newer program and are ignored."""
        self._store(device, {metric: value}, at, weight)
        key = series_key(metric, device)
        self._note_reader(key, reader)
        if reader != USUAL and key in self.latest:
            self.note_report(device, reader, at)

    def _store(
        self, device: str, values: Mapping[str, float], at: float, weight: float = 1.0
    ) -> None:
        of_device = self._by_device.setdefault(device, {})
        latest, sampled = self.latest, self.sampled
        for metric, value in values.items():
            entry = of_device.get(metric)
            if entry is None:
                if metric not in CATALOGUE:
                    continue
                entry = of_device[metric] = self._begin(metric, device)
            key, series = entry
            if not math.isfinite(value):
                self.forget(key)
                continue
            if series is not None:
                series.add(at, value, weight)
            latest[key] = value
            sampled[key] = at

    def _begin(self, metric: str, device: str) -> tuple[str, Series | None]:
        """Return the key of a metric, and its series where a history is kept."""
        key, declared = series_key(metric, device), CATALOGUE[metric]
        if not (self._history and declared.history):
            return key, None
        return key, self.series.setdefault(key, Series(declared.source, self._only_recent))

    def keep_all(self) -> None:
        """Keep the whole history from now on: a run has a snapshot, rules and charts that read it.
        Without a run, the screen shows the last minutes."""
        self._only_recent = False
        for series in self.series.values():
            series.only_recent = False

    def values(self, device: str) -> Iterator[tuple[str, str, float]]:
        """Metric, series key and newest value of everything that `device` reports."""
        for metric, (key, _) in self._by_device.get(device, {}).items():
            if key in self.latest:
                yield metric, key, self.latest[key]

    def present(self, device: str) -> dict[str, float]:
        """The newest value of every metric that `device` reports."""
        return {metric: value for metric, _, value in self.values(device)}

    def devices(self) -> list[str]:
        """Devices that have reported anything: `gpu:0`, `gpu:0/link:3`, `cpu:5`, ..."""
        return list(self._by_device)

    def forget(self, key: str) -> None:
        """Delete the present value; the history remains."""
        for of_key in (self.latest, self.sampled, self.substitutes, self.readers):
            of_key.pop(key, None)

    def forget_all(self, *prefixes: str) -> None:
        """Delete the present value of every series whose key begins with one of these prefixes."""
        for key in [key for key in self.latest if key.startswith(prefixes)]:
            self.forget(key)

    def drop_all(self, *prefixes: str) -> None:
        """Delete the present value and the history of every series whose key begins with one of
        these prefixes."""
        self.forget_all(*prefixes)
        for key in [key for key in self.series if key.startswith(prefixes)]:
            del self.series[key]

    def forget_gpu(self, device: str) -> None:
        """Delete the present `gpu.*` values of a GPU, of its links and of its slices."""
        for name in [
            name for name in self._by_device if name == device or name.startswith(f"{device}/")
        ]:
            for key, _ in self._by_device[name].values():
                if key.startswith("gpu."):
                    self.forget(key)

    def drop_history(self, device: str) -> None:
        """Delete the history of a name that now belongs to another device."""
        for key, _ in self._by_device.pop(device, {}).values():
            self.series.pop(key, None)

    def _note_reader(self, key: str, reader: str) -> None:
        if reader != USUAL and key in self.latest:
            self.readers[key] = reader
        else:
            self.readers.pop(key, None)

    def _note_source(self, key: str, source: str | None) -> None:
        if source is None:
            self.substitutes.pop(key, None)
        else:
            self.substitutes[key] = source


def is_gpu_source(source: str) -> bool:
    """Return whether a source is one GPU that is slow or stuck by itself."""
    return source.startswith("gpu:")


def parent(device: str) -> str:
    """The GPU of a link or of a MIG slice. For any other device: the device itself."""
    return device.partition("/")[0]


GRAPHICS = "graphics"


def users_of(processes: Iterable[Process], *, displays: bool = True) -> dict[str, set[int]]:
    """Return the process ids by device. A process in a MIG slice uses the whole GPU, too. Without
    `displays`, processes that only draw (a display server has 4 MiB on each GPU of a box without a
    display) are left out."""
    users: dict[str, set[int]] = {}
    for process in processes:
        if process.kind == GRAPHICS and not displays:
            continue
        for place in {process.device, parent(process.device)}:
            users.setdefault(place, set()).add(process.pid)
    return users


def reader_of(event: Sample) -> str:
    """The reader of a sample: the named source if all values came from this one source, otherwise
    the usual reader."""
    others = set(event.sources.values())
    return (
        others.pop() if len(others) == 1 and event.sources.keys() == event.values.keys() else USUAL
    )


# --- the state of the machine, computed from the sampler's events ---------------------------------

XIDS = 100
CONSOLE = "console"
"""The device name in samples of the console's own process. All other samples come from the
sampler."""
NO_SAMPLE = "no sample has come yet"
FromSampler = (
    Sample
    | Unavailable
    | Devices
    | DeviceKnown
    | DeviceLost
    | Topology
    | Processes
    | Xid
    | SourceState
)


class MachineState:
    """Devices, their readings, and the reasons for missing readings.

    `t0` and the times of events are seconds on CLOCK_MONOTONIC; times without an event are session
    seconds, which begin at `t0`.
    """

    def __init__(self, interval_s: float, history: bool) -> None:
        self.interval_s = interval_s
        self.t0: float | None = None
        self.devices: list[Device] = []
        self.devices_t = 0.0
        self.driver: str | None = None
        self.no_gpu_reason = ""
        self.cuda = ""
        self.readings = Readings(history)
        self.unavailable: dict[str, dict[str, str]] = {}
        self.lost: dict[str, str] = {}
        self.reasons_version = 0
        """Incremented when `unavailable` or `lost` changes."""
        self.processes: list[Process] = []
        self.processes_missing: dict[str, str] = {}
        self.links: list[Link] = []
        self.xids: deque[Xid] = deque(maxlen=XIDS)
        self.xid_times: dict[str, dict[int, float]] = {}
        """The errors of each GPU since the start of the console or the last reset of the GPU, each
        code with its newest session time; the newest error last."""
        self.ecc_before: dict[str, float] = {}
        """Uncorrected memory errors of each GPU at the start of the console."""
        self.quiet = QuietTimes(interval_s)
        self.sources: dict[str, SourceState] = {}
        self.sampler_t: float | None = None
        """The time of the sampler's last event."""
        self.sampler_down = NO_SAMPLE
        """The reason why no sampler reports; empty while a sampler reports."""
        self.sampler_restarts = 0
        self.server_down = ""
        """The reason why the model server does not answer; empty while it answers."""
        self.server_period_s = 0.0
        """The usual time between two reports of the model server; 0 before there are two
        reports."""
        self._lost_t: dict[str, float] = {}
        self._may_return: set[str] = set()
        """GPUs that were lost and have a new handle. One that gives values has been reset."""

    def session_time(self, t: float) -> float:
        return t - (self.t0 if self.t0 is not None else t)

    def memory_used(self, device: str) -> tuple[float, float] | None:
        """Used and total bytes of memory on `device`; None if they are not measured. Of unified
        memory, what the host uses counts, too: a GPU cannot have it."""
        if any(listed.id == device and listed.is_unified for listed in self.devices):
            free, total = (
                self.readings.latest.get(series_key(f"gpu.hbm_{part}_bytes", device))
                for part in ("free", "total")
            )
            return (total - free, total) if free and total else None
        names = (
            ("host.memory_used_bytes", "host.memory_total_bytes")
            if device == "cpu"
            else ("gpu.hbm_used_bytes", "gpu.hbm_total_bytes")
        )
        used, total = (self.readings.latest.get(series_key(name, device)) for name in names)
        return (used, total) if used and total else None

    def apply_to_machine(self, event: Event) -> str:
        """Apply an event of the sampler; returns a line for the user, or an empty text. Other
        events change nothing."""
        if isinstance(event, FromSampler) and not (
            isinstance(event, Sample) and event.device == CONSOLE
        ):
            self.sampler_t = self.session_time(event.t)
        match event:
            case Hello(role="sampler"):
                self.sources = {}  # the sources of the previous sampler no longer exist
            case Devices():
                if not event.opening or not any(device.is_gpu for device in self.devices):
                    self._set_devices(event)
            case DeviceKnown():
                self._set_device(event.devices)
            case Sample():
                self._add_sample(event)
            case Unavailable():
                self.unavailable[event.device] = dict(event.reasons)
                self.reasons_version += 1
                for metric in event.reasons:
                    self.readings.forget(series_key(metric, event.device))
            case DeviceLost():
                self.lost[event.device], self._lost_t[event.device] = event.reason, event.t
                self._may_return.discard(event.device)
                self.reasons_version += 1
                self.readings.forget_gpu(event.device)
                return f"{event.device} is lost: {event.reason}"
            case Topology():
                self.links = event.links
            case Processes():
                self.processes, self.processes_missing = event.processes, event.reasons
                self._note_users(event)
            case Xid():
                self.xids.append(event)
                times = self.xid_times.setdefault(event.device, {})
                times.pop(event.code, None)
                times[event.code] = self.session_time(event.t)
                return (
                    f"{event.device}: XID {event.code}"
                    f"{f', {event.meaning}' if event.meaning else ''}"
                )
            case SourceState():
                self.sources[event.source] = event
                if is_gpu_source(event.source) and not event.stuck_s and not event.detail:
                    del self.sources[event.source]
            case SamplerEnded():
                self.sampler_down = event.text
                self.sampler_restarts += 1
                return event.text
        return ""

    def _add_sample(self, event: Sample) -> None:
        if event.device != CONSOLE:
            self.sampler_down = ""
        lost_t = max(
            self._lost_t.get(event.device, float("-inf")),
            self._lost_t.get(parent(event.device), float("-inf")),
        )
        is_lost = event.device in self.lost or parent(event.device) in self.lost
        if is_lost and (event.t <= lost_t or reader_of(event) != USUAL):
            # an old value: from the round in which the device was lost, or from the memory of
            # another reader
            return
        if event.values and self.lost.pop(event.device, None) is not None:
            self.reasons_version += 1
        if event.values and event.device in self._may_return:
            self._may_return.discard(event.device)
            self.xid_times.pop(event.device, None)
        if (errors := event.values.get("gpu.ecc_uncorrected")) is not None:
            # a reset of the GPU clears the count
            self.ecc_before[event.device] = min(errors, self.ecc_before.get(event.device, errors))
        self.readings.add_sample(event, self.session_time(event.t))
        self.quiet.add_sample(event.device, event.values, self.session_time(event.t))
        # Each reader of a device has its own thread, so a value may arrive before the event that
        # withdraws its reason.
        missing = self.unavailable.get(event.device)
        if missing and not missing.keys().isdisjoint(event.values):
            self.unavailable[event.device] = {
                metric: reason for metric, reason in missing.items() if metric not in event.values
            }
            self.reasons_version += 1

    def _set_device(self, known: list[Device]) -> None:
        """Replace a GPU of the list, and its MIG slices."""
        gpu = known[0].id
        places = [place for place, device in enumerate(self.devices) if parent(device.id) == gpu]
        if places:
            rest = [device for device in self.devices if parent(device.id) != gpu]
            self.devices = [*rest[: places[0]], *known, *rest[places[0] :]]
            self.reasons_version += 1

    def _note_users(self, event: Processes) -> None:
        users = users_of(event.processes, displays=False)
        known = [device.id for device in self.devices if parent(device.id) not in event.reasons]
        self.quiet.add_users(
            {device: users.get(device, set()) for device in known}, self.session_time(event.t)
        )

    def _set_devices(self, event: Devices) -> None:
        """Use a new list of devices. Earlier GPU readings belong to closed handles and are dropped.
        Another GPU starts a new history."""
        before = {device.id: device.uuid for device in self.devices}
        for device in event.devices:
            if device.uuid and before.get(device.id) not in (None, "", device.uuid):
                self.readings.drop_history(device.id)
            if device.uuid and before.get(device.id) not in (None, "", device.uuid):
                self.xid_times.pop(device.id, None)
                self.ecc_before.pop(device.id, None)
                self.quiet.forget(device.id)
        self.devices, self.driver, self.no_gpu_reason = event.devices, event.driver, event.reason
        self.devices_t = self.session_time(event.t)
        self.cuda = event.cuda
        self._may_return = set(self.lost)
        self.lost.clear()
        self._lost_t.clear()
        self.links = []
        self.processes, self.processes_missing = [], {}
        listed = {device.id for device in event.devices}
        self.xid_times = {gpu: times for gpu, times in self.xid_times.items() if gpu in listed}
        self.unavailable = {
            device: reasons
            for device, reasons in self.unavailable.items()
            if not device.startswith("gpu") or device in listed
        }
        self.reasons_version += 1
        self.readings.forget_all("gpu.")


# --- the energy of a run --------------------------------------------------------------------------

OTHER_MACHINES = "the run uses devices of other machines, whose energy is not measured here"
FOREIGN_SERVER = "the server was not started here: its devices are not known"
NOT_KNOWN = "which {} of the {} GPUs the run uses is not known"
STARTED_HERE = "max_num_seqs"
"""A fact that a server reports only if gpuconsole started it."""


@dataclass
class _EnergySpan:
    """A device's counter at the first and at the last reading, in joules, with the tokens counted
    by then."""

    first_j: float
    first_tokens: int
    last_j: float
    last_tokens: int
    uuid: str


class Energy:
    """Counters of all devices while a run is steady. The devices of the run are known later than
    the first readings."""

    def __init__(self) -> None:
        self._tokens = 0
        self._spans: dict[str, _EnergySpan] = {}

    def add_tokens(self, tokens: int) -> None:
        self._tokens += tokens

    def add(self, device: str, uuid: str, joules: float) -> None:
        """Add one reading of a device's energy counter. If the `uuid` has changed, the counter
        belongs to another GPU, so counting starts again."""
        span = self._spans.get(device)
        if span is None or span.uuid != uuid:
            self._spans[device] = _EnergySpan(joules, self._tokens, joules, self._tokens, uuid)
        else:
            # the driver has restarted its counter: keep the energy that was counted before
            if joules < span.last_j:
                span.first_j += joules - span.last_j
            span.last_j, span.last_tokens = joules, self._tokens

    def total(self, devices: Collection[str]) -> tuple[float, float] | None:
        """Joules of all `devices` together, and the tokens of that time; None where a counter is
        missing or did not rise."""
        spans = [self._spans[device] for device in devices if device in self._spans]
        if (
            not spans
            or len(spans) < len(devices)
            or any(span.last_j <= span.first_j for span in spans)
        ):
            return None
        return sum(span.last_j - span.first_j for span in spans), statistics.fmean(
            span.last_tokens - span.first_tokens for span in spans
        )


def devices_used(
    run: Run, joined: Sequence[RankJoined], device_of: Mapping[int, str], devices: Sequence[Device]
) -> tuple[frozenset[str], str]:
    """The devices of the run. If they are not known: no device, and the reason.

    `joined`: the processes of the run. `device_of`: the GPU of each process id, as the driver lists
    them (in a container it may list none).
    """
    if not run.device.startswith("gpu"):
        return frozenset((run.device,)), ""
    if run.server_devices:
        return frozenset(run.server_devices), ""
    if run.serves and STARTED_HERE not in run.facts:
        return frozenset(), FOREIGN_SERVER
    if len({rank.host for rank in joined}) > 1:
        return frozenset(), OTHER_MACHINES
    processes = max(len(joined), _processes_wanted(run))
    if processes == 1:
        return frozenset((run.device,)), ""
    listed = frozenset(device_of[rank.pid] for rank in joined if rank.pid in device_of)
    if joined and all(rank.pid in device_of for rank in joined):
        return listed, ""
    gpus = frozenset(device.id for device in devices if device.is_gpu and not device.is_mig)
    return (
        (gpus, "")
        if len(gpus) == processes
        else (frozenset(), NOT_KNOWN.format(processes, len(gpus)))
    )


def _processes_wanted(run: Run) -> int:
    name = "tensor_parallel_size" if run.serves else "nproc"
    processes = run.knobs.get(name, 1)
    return processes if isinstance(processes, int) else 1
