"""Published training throughput of devices, from data/published.toml."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

import msgspec

from gpuconsole.machine.peaks import is_device
from gpuconsole.model.machine.device import Published


class _Entry(Published, frozen=True, kw_only=True, forbid_unknown_fields=True):
    match: list[str]


@cache
def _table() -> list[_Entry]:
    """All entries. Raises msgspec.ValidationError at the first use if a key is misspelt or missing."""
    text = files("gpuconsole").joinpath("data", "published.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text)["run"], list[_Entry])


def published_of(name: str) -> tuple[Published, ...]:
    """The published entries of the device with NVML's name `name`; empty if there are no entries."""
    found = [entry for entry in _table() if any(is_device(match, name) for match in entry.match)]
    return tuple(Published(**{field: getattr(entry, field) for field in Published.__struct_fields__}) for entry in found)
