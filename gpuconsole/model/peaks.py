"""Figures of devices by name: peaks of the datasheet (data/devices.toml) and published training
throughput (data/published.toml). A device that the files do not name has no figures."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

from gpuconsole.model.machine import Peaks, Published

# --- datasheet peaks by device name, from data/devices.toml ---------------------------------------

T = TypeVar("T")

OTHER_PRODUCT = r"(?!\s+(?:Ti|SUPER|D|Laptop|Max-Q|Mobile|NVL|PCIe)\b)"
"""Words that, after the name of a device, make the name of another device: an "RTX 4090 Laptop GPU"
is not an RTX 4090, and an "H200 NVL" is not an H200."""
PARTS = re.compile(r"-\d+[ABCQ]$|\bMIG\b", re.IGNORECASE)
"""Names of parts of a GPU, such as the vGPU "A40-12Q" or a MIG slice. A part does not reach the
peaks of the whole GPU."""


class _DevicePeaks(Peaks, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of data/devices.toml. `match`: the names of the device."""

    match: list[str]


class _PublishedRun(Published, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of data/published.toml. `match`: the names of the device."""

    match: list[str]


@cache
def _entries(file: str, table: str, kind: type[T]) -> list[T]:
    """Return the entries of `table` in data/`file`, in the order of the file. Raise
    msgspec.ValidationError at the first call if a key is misspelt."""
    # importlib.resources would take 1 MB of the sampler
    text = (Path(__file__).parents[1] / "data" / file).read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text)[table], list[kind])  # type: ignore[valid-type]


def _device_peaks() -> list[_DevicePeaks]:
    return _entries("devices.toml", "device", _DevicePeaks)


def is_device(match: str, name: str) -> bool:
    """Return whether NVML's `name` is a name of the device `match`. Only whole words match: "H200"
    does not match "GH200", and "L4" does not match "L40"."""
    pattern = rf"(?<![A-Za-z0-9]){re.escape(match)}(?![A-Za-z0-9]){OTHER_PRODUCT}"
    return re.search(pattern, name, re.IGNORECASE) is not None and PARTS.search(name) is None


def peaks_of(name: str) -> Peaks:
    """Return the peaks of the device with NVML's name `name`; empty Peaks if no entry names it."""
    for entry in _device_peaks():
        if any(is_device(match, name) for match in entry.match):
            return Peaks(**{field: getattr(entry, field) for field in Peaks.__struct_fields__})
    return Peaks()


def known_devices() -> list[str]:
    """Return the names of the devices with peaks, without the manufacturer."""
    return [match for entry in _device_peaks() for match in entry.match]


# --- published training throughput of devices, from data/published.toml ---------------------------


def published_of(name: str) -> tuple[Published, ...]:
    """Return the published throughput of the device with NVML's name `name`; empty if there is
    none."""
    runs = [
        run
        for run in _entries("published.toml", "run", _PublishedRun)
        if any(is_device(match, name) for match in run.match)
    ]
    return tuple(
        Published(**{field: getattr(run, field) for field in Published.__struct_fields__})
        for run in runs
    )
