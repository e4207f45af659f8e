"""The NVLinks of a GPU, one by one: whether each is up, its traffic and its errors. Read every few seconds."""

from __future__ import annotations

from typing import Any

from gpuconsole.model.metrics.gpu import LINK_METRICS
from gpuconsole.telemetry.nvml.calls import GARBAGE, is_plausible
from gpuconsole.telemetry.nvml.fields import FieldReader, link_fields
from gpuconsole.telemetry.nvml.gpm import GpmReader, link_gpm_metrics
from gpuconsole.telemetry.nvml.library import NOT_SUPPORTED, CallFailed, call

_MAX_NVLINKS = 36  # NVML_NVLINK_MAX_LINKS of the newest driver; an older one refuses the links it does not know
_INVALID_ARGUMENT = 2
_NAMES = tuple(metric.name for metric in LINK_METRICS)
_UNTOLD = "the driver does not say"


def link_states(handle: Any) -> list[bool] | None:
    """Of each NVLink that the device has, whether it is up; None when the driver does not say. Raises CallFailed for a loss."""
    states = []
    for link in range(_MAX_NVLINKS):
        try:
            states.append(bool(call("nvmlDeviceGetNvLinkState", handle, link)))
        except CallFailed as failure:
            if failure.is_loss:
                raise
            if failure.code in (NOT_SUPPORTED, _INVALID_ARGUMENT):  # no such link: the one before was the last
                break
            return None
    return states


class LinksReader:
    """`read` yields, for each link of a device, its values and the reasons for what it lacks."""

    def __init__(self, handle: Any, links: int) -> None:
        self.links = links
        self._handle = handle
        self._gpm = GpmReader(handle, link_gpm_metrics(links))
        self._fields = FieldReader(handle, link_fields(links))

    def read(self) -> list[tuple[dict[str, float], dict[str, str]]]:
        """By link. Raises CallFailed for a loss only."""
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
    """One link's part of what is known of all."""
    found: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for name in _NAMES:
        value = values.get(f"{name}/{link}")
        if value is None:
            reasons[name] = str(failures.get(f"{name}/{link}", _UNTOLD))
        elif is_plausible(name, value):
            found[name] = value
        else:
            reasons[name] = GARBAGE
    return found, reasons
