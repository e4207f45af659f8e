"""Two sources for the same devices: a fallback source provides the metrics that the preferred source cannot report."""

from __future__ import annotations

from gpuconsole.model.machine.device import Device
from gpuconsole.telemetry.source import Readings, Reasons, Source
from gpuconsole.wire.events import Sample


class Preferred:
    """The preferred source. While the fallback source provides a value, this source does not report a reason for the gap."""

    def __init__(self, source: Source) -> None:
        self.name = source.name
        self.source = source
        self.covered: dict[str, set[str]] = {}
        self.also_missing: Reasons = {}

    def devices(self) -> list[Device]:
        return self.source.devices()

    def prime(self) -> None:
        self.source.prime()

    def read(self, t: float) -> Readings:
        return self.source.read(t)

    def unavailable(self) -> Reasons:
        covered, others = self.covered, self.also_missing  # another thread replaces these dictionaries
        return {
            device: {
                metric: f"{why}; {others[device][metric]}" if metric in others.get(device, {}) else why
                for metric, why in reasons.items()
                if metric not in covered.get(device, ())
            }
            for device, reasons in self.source.unavailable().items()
        }

    def slow(self) -> str:
        return self.source.slow()

    def under_way(self) -> str:
        return self.source.under_way()


class Fallback:
    """The fallback source. Its values are used only where `first` has none, and each value carries the name of this source."""

    def __init__(self, source: Source, first: Preferred) -> None:
        self.name = source.name
        self._source = source
        self._first = first

    def devices(self) -> list[Device]:
        return []

    def prime(self) -> None:
        self._source.prime()

    def read(self, t: float) -> Readings:
        gaps = self._first.source.unavailable()
        readings: Readings = []
        covered: dict[str, set[str]] = {}
        for reading in self._source.read(t):
            if not isinstance(reading, Sample):
                continue
            values = {metric: value for metric, value in reading.values.items() if metric in gaps.get(reading.device, {})}
            if values:
                covered[reading.device] = set(values)
                readings.append(Sample(t, reading.device, values, dict.fromkeys(values, self.name)))
        self._first.covered, self._first.also_missing = covered, self._source.unavailable()
        return readings

    def unavailable(self) -> Reasons:
        """Always empty, because the preferred source reports the gaps of both sources."""
        return {}

    def slow(self) -> str:
        """The reason why this source provides no values; otherwise empty."""
        if self._first.covered:
            return self._source.slow()
        return next((why for reasons in self._source.unavailable().values() for why in reasons.values()), "")

    def under_way(self) -> str:
        return self._source.under_way()
