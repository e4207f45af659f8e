"""The newest value and the history of every metric of every device."""

from __future__ import annotations

from collections.abc import Iterator

from gpuconsole.model.metrics import CATALOGUE, series_key
from gpuconsole.model.series import Series
from gpuconsole.wire.events import Sample

USUAL = ""
"""The usual reader of a device has an empty name. A reader that adds other metrics has a name."""
WORKLOAD = "workload"
SERVER = "server"


class Readings:
    """Values by series key (`gpu.power_w{device=gpu:0}`). All times are session seconds.

    `latest` holds each value until its reader withdraws it. `session.freshness` decides whether the reader still reports.
    """

    def __init__(self, history: bool = True) -> None:
        """`history`: also keep the past values, about 10 KB per series."""
        self.series: dict[str, Series] = {}
        self.latest: dict[str, float] = {}
        self.sampled: dict[str, float] = {}
        """The time at which each value of `latest` was read."""
        self.substitutes: dict[str, str] = {}
        """The source of each value of `latest` that did not come from the source in the catalogue."""
        self.readers: dict[str, str] = {}
        """The reader of each value of `latest` that did not come from the usual reader of its device."""
        self.reported: dict[str, dict[str, float]] = {}
        """The time of the last report, by device and then by reader."""
        self._history = history
        self._by_device: dict[str, dict[str, tuple[str, Series | None]]] = {}

    def add_sample(self, event: Sample, at: float) -> None:
        reader = reader_of(event)
        for metric, value in event.values.items():
            self.add(metric, event.device, at, value, reader)
            if event.sources or self.substitutes:
                self._note_source(series_key(metric, event.device), event.sources.get(metric))
        self.note_report(event.device, reader, at)

    def note_report(self, device: str, reader: str, at: float) -> None:
        """Record that `reader` has reported about `device`."""
        self.reported.setdefault(device, {})[reader] = at

    def add(self, metric: str, device: str, at: float, value: float, reader: str = USUAL) -> None:
        """Store the values of a sample. Metrics that are not in the catalogue come from a newer program and are ignored."""
        of_device = self._by_device.setdefault(device, {})
        entry = of_device.get(metric)
        if entry is None:
            if metric not in CATALOGUE:
                return
            key = series_key(metric, device)
            keep = self._history and CATALOGUE[metric].history
            entry = of_device[metric] = (key, self.series.setdefault(key, Series(CATALOGUE[metric].source)) if keep else None)
        key, series = entry
        if series is not None:
            series.add(at, value)
        self.latest[key] = value
        self.sampled[key] = at
        if reader != USUAL:
            self.readers[key] = reader
            self.note_report(device, reader, at)
        elif self.readers:
            self.readers.pop(key, None)

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

    def forget_gpu(self, device: str) -> None:
        """Delete the present `gpu.*` values of a GPU, of its links and of its slices."""
        for name in [name for name in self._by_device if name == device or name.startswith(f"{device}/")]:
            for key, _ in self._by_device[name].values():
                if key.startswith("gpu."):
                    self.forget(key)

    def drop_history(self, device: str) -> None:
        """Delete the history of a name that now belongs to another device."""
        for key, _ in self._by_device.pop(device, {}).values():
            self.series.pop(key, None)

    def _note_source(self, key: str, source: str | None) -> None:
        if source is None:
            self.substitutes.pop(key, None)
        else:
            self.substitutes[key] = source


def parent(device: str) -> str:
    """The GPU of a link or of a MIG slice. For any other device: the device itself."""
    return device.partition("/")[0]


def reader_of(event: Sample) -> str:
    """The reader of a sample: the named source if all values came from this one source, otherwise the usual reader."""
    others = set(event.sources.values())
    return others.pop() if len(others) == 1 and event.sources.keys() == event.values.keys() else USUAL
