"""Prometheus: the newest value of every metric of every device, under our own names and, where they mean the same, DCGM's.

A value is exported while its source still answers for the device and not a moment longer: what is old, lost or n/a is
absent, with a reason beside it, never a zero. (What changes seldom is read seldom: a value stands until its source takes it
back or falls silent.) `Board` is filled by whoever gets events and read by the HTTP server's threads.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuconsole import __version__
from gpuconsole.model.dcgm import FIELDS, XID_FIELD
from gpuconsole.model.device import Device
from gpuconsole.model.metric import Metric as Declared
from gpuconsole.model.metrics import CATALOGUE
from gpuconsole.model.text import visible
from gpuconsole.wire.events import AnyEvent, DeviceLost, Devices, Hello, Sample, SourceState, Unavailable, Xid

PREFIX = "gpuconsole_"
STALE_S, STALE_PERIODS = 5.0, 3
_UNITS = {"w": "watts", "j": "joules", "c": "celsius", "hz": "hertz", "s": "seconds"}
_PER = {"s": "second", "j": "joule"}

# Our metrics about the exporter itself; the values of devices are those of the catalogue.
OWN = {
    "gpuconsole_build_info": "The exporter's version.",
    "gpuconsole_device_info": "A device and what is fixed about it.",
    "gpuconsole_device_lost": "1 for a device that the driver has given up, with the reason.",
    "gpuconsole_unavailable": "1 for a metric that a device cannot report, with the reason.",
    "gpuconsole_sample_age_seconds": "Age of the newest sample of a device. Values that are too old are not exported.",
    "gpuconsole_sampler_up": "Whether the process that reads the devices runs and answers.",
    "gpuconsole_sampler_restarts_total": "Times that this process had to be started again.",
    "gpuconsole_source_stuck_seconds": "For how long a reader of metrics has not answered; 0 when it does.",
    "gpuconsole_source_period_seconds": "Time between two readings of a source as it really is.",
}


def exported_name(metric: Declared) -> str:
    """The series name of a catalogue metric: base units in words, and `_total` for counters."""
    words = metric.name.replace(".", "_").split("_")
    if len(words) > 2 and words[-2] == "per":
        words[-1] = _PER.get(words[-1], words[-1])
    else:
        words[-1] = _UNITS.get(words[-1], words[-1])
    return PREFIX + "_".join(words) + ("_total" if metric.kind == "counter" else "")


NAMES = {name: exported_name(metric) for name, metric in CATALOGUE.items()}
EXPORTED_FIELDS = tuple(field for field in FIELDS if field.kind != "rate")


def exported_names() -> set[str]:
    """Every series name that an exporter may show, but for the figures of its own process."""
    return {*NAMES.values(), *(field.field for field in EXPORTED_FIELDS), XID_FIELD, *OWN}


class Board:
    """What the sampler last said, and when it last said something of each device. Safe to share between threads."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._interval_s = interval_s
        self.lock = threading.Lock()
        self.devices: dict[str, Device] = {}
        self.driver = ""
        self.values: dict[str, dict[str, float]] = {}
        self.filled_in: dict[str, set[str]] = {}
        self.sampled: dict[str, float] = {}
        self.unavailable: dict[str, dict[str, str]] = {}
        self.lost: dict[str, tuple[float, str]] = {}
        self.xids: dict[str, int] = {}
        self.sources: dict[str, SourceState] = {}
        self.heard = clock()
        self.down = "no sample has come yet"
        self.restarts = 0

    def take(self, event: AnyEvent) -> None:
        with self.lock:
            self.heard = self.clock()
            match event:
                case Hello():
                    self.sources = {}
                case Devices():
                    # Not at Hello: until the new sampler knows its devices, what the last one said of a lost GPU stands.
                    self.devices = {device.id: device for device in event.devices}
                    self.driver = event.driver or ""
                    self.values, self.filled_in, self.sampled, self.unavailable, self.lost, self.xids = {}, {}, {}, {}, {}, {}
                case Sample():
                    self._sample(event)
                case Unavailable():
                    self.unavailable[event.device] = dict(event.reasons)
                    for metric in event.reasons:
                        self.values.get(event.device, {}).pop(metric, None)
                case DeviceLost():
                    self.lost[event.device] = (event.t, event.reason)
                    for device in [one for one in self.values if event.device in (one, parent(one))]:
                        del self.values[device]
                case Xid():
                    self.xids[event.device] = event.code
                case SourceState():
                    self.sources[event.source] = event

    @property
    def stale_s(self) -> float:
        """How old the newest sample of a device may be."""
        return max(STALE_S, STALE_PERIODS * max([self._interval_s, *(state.period_s for state in self.sources.values())]))

    def starting(self) -> None:
        """A sampler is about to be started: the silence before it does not count."""
        with self.lock:
            self.heard = self.clock()

    def stopped(self, reason: str) -> None:
        """The sampler is no more; what it said goes stale by itself."""
        with self.lock:
            self.down = reason
            self.restarts += 1

    def health(self) -> str:
        """Why samples are not fresh, in one line; empty when they are."""
        with self.lock:
            now = self.clock()
            if self.down:
                return self.down
            if (silent := self.silence(now)) > self.stale_s:
                return f"the sampler has said nothing for {silent:.0f} s"
            for name, state in self.sources.items():
                if (stuck := self.stuck_s(state, now)) > self.stale_s:
                    return f"{name} has not answered for {stuck:.0f} s" + (f": {visible(state.detail)}" if state.detail else "")
            for device, t in self.sampled.items():
                if now - t > self.stale_s and device in self.devices and device not in self.lost:
                    return f"the newest sample of {device} is {now - t:.0f} s old"
            return ""

    def longest_stuck(self) -> tuple[str, float]:
        """The source that has not answered for longest, and for how long (0: all do)."""
        with self.lock:
            now = self.clock()
            return max(
                ((name, self.stuck_s(state, now)) for name, state in self.sources.items()), key=lambda one: one[1], default=("", 0.0)
            )

    # The rest is called with the lock held.

    def _sample(self, event: Sample) -> None:
        self.down = ""
        lost_at, _ = self.lost.get(event.device) or self.lost.get(parent(event.device)) or (-math.inf, "")
        if event.t <= lost_at:
            return  # the rest of the round in which the device was lost
        if event.values:
            self.lost.pop(event.device, None)
        self.sampled[event.device] = event.t
        self.values.setdefault(event.device, {}).update(event.values)
        # Two sources of one device tell on their own threads: a value may overtake the news that it is no longer missing.
        for metric in event.values:
            self.unavailable.get(event.device, {}).pop(metric, None)
        self.filled_in[event.device] = self.filled_in.get(event.device, set()) - event.values.keys() | event.sources.keys()

    def silence(self, now: float) -> float:
        return now - self.heard

    @staticmethod
    def stuck_s(state: SourceState, now: float) -> float:
        """A source that was stuck when it last said so still is, and longer by now."""
        return state.stuck_s + (now - state.t) if state.stuck_s else 0.0

    def fresh(self, now: float) -> dict[str, dict[str, float]]:
        """The values of devices that are still sampled. Links are read less often than the GPU that they are of."""
        oldest = now - self.stale_s
        newest = {device: max(t, self.sampled.get(parent(device), t)) for device, t in self.sampled.items()}
        return {device: values for device, values in self.values.items() if newest[device] >= oldest}


def parent(device: str) -> str:
    """The GPU that a link or a MIG slice is of; any other device is its own."""
    return device.partition("/")[0]


class BoardCollector(Collector):
    """Turns the board into metric families at every scrape."""

    def __init__(self, board: Board, hostname: str | None = None) -> None:
        self._board = board
        self._hostname = visible(hostname or socket.gethostname())

    def collect(self) -> Iterable[Metric]:
        board = self._board
        with board.lock:
            now = board.clock()
            values = board.fresh(now)
            families = [*self._catalogue(values), *self._dcgm(values), *self._devices(), *self._health(now)]
        return families

    def _catalogue(self, values: dict[str, dict[str, float]]) -> Iterator[Metric]:
        for name, metric in CATALOGUE.items():
            having = [(device, found[name]) for device, found in values.items() if name in found]
            if not having:
                continue
            of_gpu = name.startswith("gpu.")
            family = _family(metric, ("device", "uuid", "model") if of_gpu else ("device",))
            for device, value in having:
                family.add_metric([visible(device), *(self._identity(device) if of_gpu else ())], value)
            yield family

    def _identity(self, device: str) -> tuple[str, str]:
        known = self._board.devices.get(device) or self._board.devices.get(parent(device))
        return (visible(known.uuid), visible(known.name)) if known else ("", "")

    def _dcgm(self, values: dict[str, dict[str, float]]) -> Iterator[Metric]:
        gpus = [(device, values.get(device.id, {})) for device in self._board.devices.values() if device.is_gpu and not device.is_mig]
        for field in EXPORTED_FIELDS:
            metric = CATALOGUE[field.metric]
            # dcgm-exporter's counters have no `_total`, which ours would get if they were typed as counters.
            family = Metric(field.field, f"As DCGM has it. {_help(metric)}", "gauge" if field.kind == "gauge" else "unknown")
            for device, found in gpus:
                if field.metric in found and (not field.only_with or field.only_with in found.keys() - self._board.filled_in[device.id]):
                    family.add_sample(field.field, self._dcgm_labels(device), _tidy(found[field.metric] / field.factor))
            if family.samples:
                yield family
        xids = Metric(XID_FIELD, "As DCGM has it. The last error (XID) of the GPU; 0 when there was none.", "gauge")
        for device, found in gpus:
            if "gpu.xid_errors" in found:  # else errors are not watched, and none seen says nothing
                xids.add_sample(XID_FIELD, self._dcgm_labels(device), self._board.xids.get(device.id, 0))
        if xids.samples:
            yield xids

    def _dcgm_labels(self, device: Device) -> dict[str, str]:
        index = device.id.rpartition(":")[2]
        labels = {
            "gpu": index,
            "UUID": visible(device.uuid),
            "device": f"nvidia{index}",
            "modelName": visible(device.name),
            "Hostname": self._hostname,
        }
        address = device.facts.get("pci", "").upper()
        return labels | ({"pci_bus_id": visible(address)} if address else {})

    def _devices(self) -> Iterator[Metric]:
        board = self._board
        info = InfoMetricFamily("gpuconsole_device", OWN["gpuconsole_device_info"])
        for device in board.devices.values():
            facts = {"uuid": device.uuid, "model": device.name, "pcie": device.pcie, "nvlink": device.nvlink}
            driver = board.driver if device.is_gpu else ""
            labels = {"device": device.id, **facts, "driver": driver}
            info.add_metric([], {name: visible(text) for name, text in labels.items()})
        lost = _own("gpuconsole_device_lost", "device", "reason")
        for name, (_, reason) in board.lost.items():
            lost.add_metric([visible(name), visible(reason)], 1)
        missing = _own("gpuconsole_unavailable", "device", "metric", "reason")
        for name, reasons in board.unavailable.items():
            for metric, reason in reasons.items():
                missing.add_metric([visible(name), visible(metric), visible(reason)], 1)
        yield from (info, lost, missing)

    def _health(self, now: float) -> Iterator[Metric]:
        board = self._board
        build = InfoMetricFamily("gpuconsole_build", OWN["gpuconsole_build_info"])
        build.add_metric([], {"version": __version__})
        up = _own("gpuconsole_sampler_up")
        up.add_metric([], 0 if board.down or board.silence(now) > board.stale_s else 1)
        restarts = CounterMetricFamily("gpuconsole_sampler_restarts", OWN["gpuconsole_sampler_restarts_total"], value=board.restarts)
        age = _own("gpuconsole_sample_age_seconds", "device")
        for device in board.devices:
            if device in board.sampled:
                age.add_metric([visible(device)], now - board.sampled[device])
        stuck = _own("gpuconsole_source_stuck_seconds", "source")
        stuck.add_metric(["sampler"], board.silence(now) if board.silence(now) > board.stale_s else 0)
        period = _own("gpuconsole_source_period_seconds", "source")
        for name, state in board.sources.items():
            stuck.add_metric([visible(name)], board.stuck_s(state, now))
            period.add_metric([visible(name)], state.period_s)
        yield from (build, up, restarts, age, stuck, period)


def _family(metric: Declared, labels: tuple[str, ...]) -> GaugeMetricFamily | CounterMetricFamily:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(NAMES[metric.name], _help(metric), labels=labels)


def _help(metric: Declared) -> str:
    return f"{metric.meaning}. Source: {metric.source}."


def _own(name: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, OWN[name], labels=labels)


def _tidy(value: float) -> float:
    """Without the last digit that turning a ratio back into percent leaves behind (56.99999999999999)."""
    return float(f"{value:.15g}")
