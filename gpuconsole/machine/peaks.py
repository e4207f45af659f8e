"""Figures of devices by name: peaks of the datasheet (data/devices.toml) and published training throughput (data/published.toml). Nothing is guessed."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files

import msgspec

from gpuconsole.model.machine import Peaks, Published

# --- datasheet peaks by device name, from data/devices.toml --------------------------------------------------

OTHER_PRODUCT = r"(?!\s+(?:Ti|SUPER|D|Laptop|Max-Q|Mobile|NVL|PCIe)\b)"
"""Words that make another device if they follow a name: an "RTX 4090 Laptop GPU" is not an RTX 4090, and an "H200 NVL" is not an H200."""
PARTS = re.compile(r"-\d+[ABCQ]$|\bMIG\b", re.IGNORECASE)
"""Names of parts of a GPU, such as the vGPU "A40-12Q" or a MIG slice. A part does not reach the peaks of the whole GPU."""


class _Entry(Peaks, frozen=True, kw_only=True, forbid_unknown_fields=True):
    match: list[str]


@cache
def _table() -> list[_Entry]:
    """The table in the order of the file. Raises msgspec.ValidationError at the first use if a key is misspelt."""
    text = files("gpuconsole").joinpath("data", "devices.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text)["device"], list[_Entry])


def is_device(match: str, name: str) -> bool:
    """Whether NVML's `name` is the device `match`. Only whole words match: "H200" does not match "GH200", "L4" does not match "L40"."""
    words = rf"(?<![A-Za-z0-9]){re.escape(match)}(?![A-Za-z0-9]){OTHER_PRODUCT}"
    return re.search(words, name, re.IGNORECASE) is not None and PARTS.search(name) is None


def peaks_of(name: str) -> Peaks:
    """The peaks of the device with NVML's name `name`, or empty Peaks."""
    for entry in _table():
        if any(is_device(match, name) for match in entry.match):
            return Peaks(**{field: getattr(entry, field) for field in Peaks.__struct_fields__})
    return Peaks()


def known_devices() -> list[str]:
    """The names of the devices with peaks, without the manufacturer."""
    return [match for entry in _table() for match in entry.match]


# --- published training throughput of devices, from data/published.toml --------------------------------------


class _PublishedRun(Published, frozen=True, kw_only=True, forbid_unknown_fields=True):
    match: list[str]


@cache
def _published_runs() -> list[_PublishedRun]:
    """All entries. Raises msgspec.ValidationError at the first use if a key is misspelt or missing."""
    text = files("gpuconsole").joinpath("data", "published.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text)["run"], list[_PublishedRun])


def published_of(name: str) -> tuple[Published, ...]:
    """The published entries of the device with NVML's name `name`; empty if there are no entries."""
    found = [entry for entry in _published_runs() if any(is_device(match, name) for match in entry.match)]
    return tuple(Published(**{field: getattr(entry, field) for field in Published.__struct_fields__}) for entry in found)
