"""Scenarios and workload descriptions: the contents of the TOML files, checked."""

from __future__ import annotations

import msgspec

from gpuconsole.model.knobs.catalogue import CATALOGUE, GROUPS, KnobError, Knobs, check_knobs, nearest


class ScenarioError(ValueError):
    """A mistake in a scenario or in its use. The message is one line that names the file, the key and the allowed values."""


class Workload(msgspec.Struct, frozen=True):
    """The TOML file of a workload. `name` is for example `training.gpt`; `unit` is the unit of work in the throughput.

    `groups` are groups of knobs (see GROUPS) in addition to `knobs`. After the check `knobs` holds all knobs.
    """

    name: str
    title: str
    unit: str
    knobs: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    @property
    def serves(self) -> bool:
        """Whether the workload is a model server under load. Otherwise the workload trains."""
        return self.name.startswith("inference.")


class Teaches(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the scenario teaches: a sentence, the rule that should fire, and the knobs that should help."""

    see: str = ""
    rule: str = ""
    fix: dict[str, bool | int | float | str] = {}


class ScenarioFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a scenario file."""

    name: str
    title: str
    workload: str
    summary: str
    knobs: dict[str, bool | int | float | str] = {}
    cpu: dict[str, bool | int | float | str] = {}
    gpu: dict[str, bool | int | float | str] = {}
    teaches: Teaches = Teaches()


class Scenario(msgspec.Struct, frozen=True):
    """A checked scenario. `knobs_for` returns the knob values at one scale."""

    name: str
    title: str
    workload: Workload
    summary: str
    knobs: Knobs
    cpu: Knobs
    gpu: Knobs
    teaches: Teaches
    path: str = ""

    def knobs_for(self, scale: str) -> Knobs:
        """All knob values at `scale`, which is `cpu` or `gpu`."""
        defaults = {name: default for name in self.workload.knobs if (default := CATALOGUE[name].default) is not None}
        return {**defaults, **self.knobs, **(self.gpu if scale == "gpu" else self.cpu)}


def check_scenario(file: ScenarioFile, workloads: dict[str, Workload], path: str) -> Scenario:
    """The scenario in `file`, checked; raises ScenarioError."""
    workload = workloads.get(file.workload)
    if workload is None:
        raise ScenarioError(
            f"{path}: workload: {file.workload!r} does not exist{nearest(file.workload, workloads)}; there are: {', '.join(sorted(workloads))}"
        )
    tables: dict[str, Knobs] = {}
    for key in ("knobs", "cpu", "gpu"):
        try:
            tables[key] = check_knobs(getattr(file, key), workload.knobs, file.workload)
        except KnobError as error:
            raise ScenarioError(f"{path}: [{key}] {error}") from None
    for scale in ("cpu", "gpu"):
        missing = [name for name in workload.knobs if CATALOGUE[name].default is None and name not in {**tables["knobs"], **tables[scale]}]
        if missing:
            raise ScenarioError(f"{path}: [{scale}] no value for {', '.join(missing)} (give one here or in [knobs])")
    return Scenario(file.name, file.title, workload, file.summary, tables["knobs"], tables["cpu"], tables["gpu"], file.teaches, path)


def check_workload(workload: Workload, path: str) -> Workload:
    """`workload` with the knobs of its groups added. Raises ScenarioError for an unknown knob or group."""
    for group in workload.groups:
        if group not in GROUPS:
            raise ScenarioError(f"{path}: groups: {group!r} is not a group of knobs{nearest(group, GROUPS)}")
    for name in workload.knobs:
        if name not in CATALOGUE:
            raise ScenarioError(f"{path}: knobs: {name!r} is not in the knob catalogue{nearest(name, CATALOGUE)}")
    grouped = tuple(knob.name for group in workload.groups for knob in GROUPS[group])
    return msgspec.structs.replace(workload, knobs=(*grouped, *(name for name in workload.knobs if name not in grouped)))
