"""The catalogue of scenarios and workloads, read from TOML files."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from gpuconsole.host.files import read_limited
from gpuconsole.host.folders import user_folder
from gpuconsole.model.knobs.catalogue import nearest
from gpuconsole.model.scenario import (
    Scenario,
    ScenarioError,
    ScenarioFile,
    Workload,
    check_scenario,
    check_workload,
)

PACKAGE = Path(str(files("gpuconsole")))
MAX_BYTES = 2**20
"""The largest TOML file that is read. The largest scenario of ours has 3 KB."""


def workloads() -> dict[str, Workload]:
    """All workloads by name, from the TOML files beside their code. The code is not imported."""
    by_name = {}
    for path in sorted((PACKAGE / "workloads").glob("*/*.toml")):
        workload = check_workload(_read(path, Workload), str(path))
        by_name[workload.name] = workload
    return by_name


def shipped_folder() -> Path:
    """Where the shipped scenarios lie: inside the wheel, or at the root of a checkout."""
    inside = PACKAGE / "scenarios"
    return inside if inside.is_dir() else PACKAGE.parent / "scenarios"


def scenarios_folder() -> Path:
    """The folder of the user's own scenarios (on Linux `~/.config/gpuconsole/scenarios`, or below
    `$XDG_CONFIG_HOME`)."""
    return user_folder("config") / "scenarios"


def read_scenario(path: Path) -> Scenario:
    """One scenario file; raises ScenarioError."""
    return check_scenario(_read(path, ScenarioFile), workloads(), str(path))


def scenarios() -> tuple[dict[str, Scenario], list[str]]:
    """Shipped and user scenarios by name, a user's replacing a shipped one; and a line per user
    file that has a mistake.

    A mistake in a shipped file raises ScenarioError.
    """
    by_name = {
        scenario.name: scenario
        for scenario in map(read_scenario, sorted(shipped_folder().glob("*.toml")))
    }
    mistakes = []
    for path in sorted(scenarios_folder().glob("*.toml")):
        try:
            scenario = read_scenario(path)
        except ScenarioError as error:
            mistakes.append(str(error))
            continue
        by_name[scenario.name] = scenario
    return by_name, mistakes


def find_scenario(name: str) -> Scenario:
    """A scenario by name, or by path when it looks like one; raises ScenarioError."""
    if name.endswith(".toml") or "/" in name:
        return read_scenario(Path(name))
    by_name, mistakes = scenarios()
    if name in by_name:
        return by_name[name]
    because = f" ({'; '.join(mistakes)})" if mistakes else ""
    raise ScenarioError(
        f"there is no scenario {name!r}{nearest(name, by_name)}; there are:"
        f" {', '.join(by_name)}{because}"
    )


def _read(path: Path, kind: type[Any]) -> Any:
    try:
        return msgspec.toml.decode(read_limited(path, MAX_BYTES), type=kind)
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ScenarioError(f"{path}: not UTF-8 text") from None
    except msgspec.ValidationError as error:
        allowed = ", ".join(kind.__struct_fields__)
        raise ScenarioError(f"{path}: {error}; allowed keys: {allowed}") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ScenarioError(f"{path}: not valid TOML: {error}") from None
