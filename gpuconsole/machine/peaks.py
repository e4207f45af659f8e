"""Datasheet peaks by device name, from data/devices.toml. A device that is not there has none: nothing is guessed."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files

import msgspec

from gpuconsole.model.machine.device import Peaks

OTHER_PRODUCT = r"(?!\s+(?:Ti|SUPER|D|Laptop|Max-Q|Mobile|NVL|PCIe)\b)"
"""What may not follow a name: an "RTX 4090 Laptop GPU" is no RTX 4090, and an "H200 NVL" no plain H200."""
PARTS = re.compile(r"-\d+[ABCQ]$|\bMIG\b", re.IGNORECASE)
"""Names of parts of a GPU, such as the vGPU "A40-12Q" or a MIG slice: they do not reach what all of it does."""


class _Entry(Peaks, frozen=True, kw_only=True, forbid_unknown_fields=True):
    match: list[str]


@cache
def _table() -> list[_Entry]:
    """The table in its order. Raises msgspec.ValidationError when a key is misspelt, at the first use."""
    text = files("gpuconsole").joinpath("data", "devices.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text)["device"], list[_Entry])


def is_device(match: str, name: str) -> bool:
    """Whether NVML's `name` means the device `match`: whole words, so that "H200" is not found in "GH200", nor "L4" in "L40"."""
    words = rf"(?<![A-Za-z0-9]){re.escape(match)}(?![A-Za-z0-9]){OTHER_PRODUCT}"
    return re.search(words, name, re.IGNORECASE) is not None and PARTS.search(name) is None


def peaks_of(name: str) -> Peaks:
    """The peaks of the device that NVML calls `name`, or empty Peaks."""
    for entry in _table():
        if any(is_device(match, name) for match in entry.match):
            return Peaks(**{field: getattr(entry, field) for field in Peaks.__struct_fields__})
    return Peaks()
