"""The single NVLinks of a GPU: state, traffic and errors of each link. Read every few seconds."""

from __future__ import annotations

from typing import Any

from gpuconsole.model.metrics import LINK_METRICS
from gpuconsole.telemetry.nvml.calls import GARBAGE, is_plausible
from gpuconsole.telemetry.nvml.fields import FieldReader, link_fields
from gpuconsole.telemetry.nvml.gpm import GpmReader, link_gpm_metrics
from gpuconsole.telemetry.nvml.library import NOT_SUPPORTED, CallFailed, call

_MAX_NVLINKS = 36  # NVML_NVLINK_MAX_LINKS of the newest driver; an older driver rejects higher link numbers
_INVALID_ARGUMENT = 2
_NAMES = tuple(metric.name for metric in LINK_METRICS)
_NOT_REPORTED = "the driver does not report it"


def link_states(handle: Any) -> list[bool] | None:
    """Whether each NVLink of the device is active; None when the driver does not report it. Raises CallFailed for a lost device."""
    states = []
    for link in range(_MAX_NVLINKS):
        try:
            states.append(bool(call("nvmlDeviceGetNvLinkState", handle, link)))
        except CallFailed as failure:
            if failure.is_loss:
                raise
            if failure.code in (NOT_SUPPORTED, _INVALID_ARGUMENT):  # no such link: the previous link was the last
                break
            return None
    return states


class LinksReader:
    """`read` yields the values of each link of a device and the reasons for missing values."""

    def __init__(self, handle: Any, links: int) -> None:
        self.links = links
        self._handle = handle
        self._gpm = GpmReader(handle, link_gpm_metrics(links))
        self._fields = FieldReader(handle, link_fields(links))

    def read(self) -> list[tuple[dict[str, float], dict[str, str]]]:
        """Values and reasons by link. Raises CallFailed only for a lost device."""
        if not self.links:
            return []
        states = link_states(self._handle)
        values, failures = self._gpm.read()
        more_values, more_failures = self._fields.read(())
        values |= more_values
        failures |= more_failures
        if states is not None:
            values |= {f"gpu.link_up/{link}": float(up) for link, up in enumerate(states)}
        return [_of_link(link, values, failures) for link in range(self.links)]


def _of_link(link: int, values: dict[str, float], failures: dict[str, CallFailed]) -> tuple[dict[str, float], dict[str, str]]:
    """The part of the readings that belongs to one link."""
    of_link: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for name in _NAMES:
        value = values.get(f"{name}/{link}")
        if value is None:
            reasons[name] = str(failures.get(f"{name}/{link}", _NOT_REPORTED))
        elif is_plausible(name, value):
            of_link[name] = value
        else:
            reasons[name] = GARBAGE
    return of_link, reasons
