"""Datasheet peaks by device name, from data/devices.toml. A device that is not there has none: nothing is guessed."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files

import msgspec

from gpuconsole.model.device import Peaks


class _Entry(Peaks, frozen=True, kw_only=True, forbid_unknown_fields=True):
    match: str


@cache
def _table() -> list[_Entry]:
    """The table in its order. Raises msgspec.ValidationError when a key is misspelt, at the first use."""
    text = files("gpuconsole").joinpath("data", "devices.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text)["device"], list[_Entry])


def _stands_in(match: str, name: str) -> bool:
    """Whether `match` is in `name` as whole words, so that "H200" is not found in "GH200", nor "L4" in "L40"."""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(match)}(?![A-Za-z0-9])", name, re.IGNORECASE) is not None


def peaks_of(name: str) -> Peaks:
    """The peaks of the device that NVML calls `name`, or empty Peaks."""
    for entry in _table():
        if _stands_in(entry.match, name):
            return Peaks(**{field: getattr(entry, field) for field in Peaks.__struct_fields__})
    return Peaks()
