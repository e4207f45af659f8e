"""Model servers by engine: the names on their metrics pages under our names, and what turns on what
is missing (data/engines.toml)."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

import msgspec

EMBEDDED = "gpuconsole"
"""The embedded server. It has the names of vLLM."""


class ServingEngine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One engine, or a router before engines (`front`). data/engines.toml explains the fields."""

    name: str
    title: str
    prefix: str
    pages: list[str]
    turn_on: str
    also: list[str] = []
    front: bool = False
    gauges: dict[str, list[str]] = {}
    totals: dict[str, list[str]] = {}
    times: dict[str, list[str]] = {}
    lacking: dict[str, str] = {}


@cache
def engines() -> tuple[ServingEngine, ...]:
    """All engines, in the order of the file. Raises msgspec.ValidationError if a key is
    misspelt."""
    text = files("gpuconsole").joinpath("data", "engines.toml").read_text(encoding="utf-8")
    return tuple(msgspec.convert(tomllib.loads(text)["engine"], list[ServingEngine]))


def engine_of(name: str) -> ServingEngine | None:
    """The engine with this name; None for an unknown one."""
    name = "vllm" if name == EMBEDDED else name
    return next((engine for engine in engines() if engine.name == name), None)


def why_lacking(name: str, signal: str) -> str:
    """Why the engine `name` does not report `signal`, and what turns it on, in one clause."""
    engine = engine_of(name)
    if engine is None:
        return "the metrics page does not have it"
    if name == EMBEDDED and signal in engine.lacking:
        return "the embedded server does not report it"
    return engine.lacking.get(signal) or f"{engine.title}'s page does not have it"
