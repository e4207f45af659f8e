"""The NVLinks of a GPU, one by one: whether each is up, its traffic and its errors. Read every few seconds."""

from __future__ import annotations

from typing import Any

from gpuconsole.model.gpu_metrics import LINK_METRICS
from gpuconsole.telemetry.nvml.calls import GARBAGE, is_plausible
from gpuconsole.telemetry.nvml.fields import FieldReader, link_fields
from gpuconsole.telemetry.nvml.gpm import GpmReader, link_gpm_metrics
from gpuconsole.telemetry.nvml.library import NOT_SUPPORTED, CallFailed, call

_MAX_NVLINKS = 36  # NVML_NVLINK_MAX_LINKS of the newest driver; an older one refuses the links it does not know
_INVALID_ARGUMENT = 2
_NAMES = tuple(metric.name for metric in LINK_METRICS)
_NO_COUNTER = "GPM counts only 18 links"


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
        self._fields = [FieldReader(handle, link_fields(link)) for link in range(links)]

    def read(self) -> list[tuple[dict[str, float], dict[str, str]]]:
        """By link. Raises CallFailed for a loss only."""
        if not self.links:
            return []
        states = link_states(self._handle)
        traffic, failures = self._gpm.read()
        found = []
        for link, fields in enumerate(self._fields):
            values, missing = fields.read(())
            for name in ("gpu.link_rx_bytes_per_s", "gpu.link_tx_bytes_per_s"):
                if f"{name}/{link}" in traffic:
                    values[name] = traffic[f"{name}/{link}"]
                else:
                    missing[name] = failures.get(f"{name}/{link}", CallFailed(-1, _NO_COUNTER))
            if states is not None and link < len(states):
                values["gpu.link_up"] = float(states[link])
            else:
                missing["gpu.link_up"] = CallFailed(-1, "the driver does not say")
            reasons = {name: str(failure) for name, failure in missing.items()}
            for name in [name for name, value in values.items() if not is_plausible(name, value)]:
                del values[name]
                reasons[name] = GARBAGE
            found.append((values, reasons))
        return found
