"""What is fixed about a GPU: its name, memory and links. A fact that the driver withholds stays empty."""

from __future__ import annotations

from typing import Any

from gpuconsole.model.device import Device
from gpuconsole.telemetry.nvml.calls import CALLS, ask, is_plausible
from gpuconsole.telemetry.nvml.library import NOT_SUPPORTED, CallFailed, call
from gpuconsole.telemetry.peaks import peaks_of

UNKNOWN_NAME = "unknown GPU"
_MAX_NVLINKS = 36  # NVML_NVLINK_MAX_LINKS of the newest driver; an older one refuses the links it does not know
_INVALID_ARGUMENT = 2
_MEMORY = next(question for question in CALLS if "gpu.hbm_total_bytes" in question.metrics)


def describe(index: int, handle: Any, nvlinks: int | None) -> Device:
    name = str(_fact("nvmlDeviceGetName", handle) or UNKNOWN_NAME)
    return Device(
        id=f"gpu:{index}",
        name=name,
        uuid=str(_fact("nvmlDeviceGetUUID", handle) or ""),
        memory_bytes=_memory_bytes(handle),
        peaks=peaks_of(name),
        pcie=_pcie(handle),
        nvlink=_nvlink_text(nvlinks),
    )


def count_nvlinks(handle: Any) -> int | None:
    """The active NVLinks; None when the driver does not say."""
    active = 0
    for link in range(_MAX_NVLINKS):
        try:
            active += bool(call("nvmlDeviceGetNvLinkState", handle, link))
        except CallFailed as failure:
            if failure.code in (NOT_SUPPORTED, _INVALID_ARGUMENT):  # no such link: the one before was the last
                break
            return None
    return active


def is_mig_on(handle: Any) -> bool:
    modes = _fact("nvmlDeviceGetMigMode", handle)
    return modes is not None and modes[0] == 1


def _fact(function: str, handle: Any) -> Any:
    try:
        return call(function, handle)
    except CallFailed:
        return None


def _memory_bytes(handle: Any) -> int:
    try:
        total = ask(_MEMORY, handle)["gpu.hbm_total_bytes"]
    except CallFailed:
        return 0
    return int(total) if is_plausible("gpu.hbm_total_bytes", total) else 0


def _pcie(handle: Any) -> str:
    """The best the link can do: an idle GPU lowers its current generation to save power."""
    generation = _fact("nvmlDeviceGetMaxPcieLinkGeneration", handle)
    width = _fact("nvmlDeviceGetMaxPcieLinkWidth", handle)
    return f"gen{generation} x{width}" if generation and width else ""


def _nvlink_text(links: int | None) -> str:
    if links is None:
        return ""
    return {0: "none", 1: "1 link"}.get(links, f"{links} links")
