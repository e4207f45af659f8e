"""Scenarios and workload descriptions: the contents of the TOML files, checked."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, get_args

import msgspec

from gpuconsole.model.job import JOB
from gpuconsole.model.knobs.catalogue import (
    CATALOGUE,
    GROUPS,
    KnobError,
    Knobs,
    check_knobs,
    nearest,
)
from gpuconsole.model.machine import Device
from gpuconsole.model.serving import WATCHED

SIZE = re.compile(r"([1-9][0-9]*)GB")
"""The name of a table such as `[gpu.80GB]`."""
ROUNDING = 0.92
"""A card belongs to a size if it has at least this share of it: product names round, and ECC takes
a part. 128 GB are no 141 GB."""

Group = Literal[
    "start here", "training", "input", "memory", "several GPUs", "serving", "calibration"
]
"""What a scenario is about."""
OWN = "your own"
"""The heading of scenarios whose file names no group."""


class ScenarioError(ValueError):
    """A mistake in a scenario or in its use. The message is one line that names the file, the key
    and the allowed values."""


class Workload(msgspec.Struct, frozen=True):
    """The TOML file of a workload. `name` is for example `training.gpt`; `unit` is the unit of work
    in the throughput.

    `groups` are groups of knobs (see GROUPS) in addition to `knobs`. After the check `knobs` holds
    all settings.
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
    """What the scenario teaches: a sentence, the rule that should fire, and the knobs that should
    help.

    `gpu_fix`: the knobs that should help on a GPU, where `fix` does not. `limits`: limits of the
    scheduler that make the fault; they hold for every server, while other limits are left to a
    server that is not ours.
    """

    see: str = ""
    rule: str = ""
    fix: dict[str, bool | int | float | str] = {}
    gpu_fix: dict[str, bool | int | float | str] = {}
    limits: tuple[str, ...] = ()

    def fix_on(self, device: Device) -> Knobs:
        """The knobs that should help on `device`."""
        return self.gpu_fix if device.is_gpu and self.gpu_fix else self.fix


class ScenarioFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a scenario file.

    `gpu` holds values for every GPU, and tables for GPUs with more memory: `[gpu.80GB]` applies to
    a GPU with about 80 GB or more.
    """

    name: str
    title: str
    workload: str
    summary: str
    group: Group | None = None
    knobs: dict[str, bool | int | float | str] = {}
    cpu: dict[str, bool | int | float | str] = {}
    gpu: dict[str, bool | int | float | str | dict[str, bool | int | float | str]] = {}
    teaches: Teaches = Teaches()


class Scenario(msgspec.Struct, frozen=True):
    """A checked scenario. `knobs_on` returns the knob values for a device, `knobs_for` those at one
    scale.

    `gpu_sizes`: values for GPUs with at least so many GB, in ascending order. A GPU takes the
    values of `gpu` and of every size that it has.
    """

    name: str
    title: str
    workload: Workload
    summary: str
    knobs: Knobs
    cpu: Knobs
    gpu: Knobs
    teaches: Teaches
    path: str = ""
    gpu_sizes: dict[str, Knobs] = {}
    group: str = OWN

    @property
    def healthy(self) -> bool:
        """Whether the scenario shows a good run: it has no fix, and no rule fires for a fault."""
        return not self.teaches.fix and (
            not self.teaches.rule or self.teaches.rule.endswith("_healthy")
        )

    def knobs_on(self, device: Device) -> Knobs:
        """All knob values for a run on `device`."""
        return self.knobs_for("gpu" if device.is_gpu else "cpu", device.memory_bytes)

    def knobs_for(self, scale: str, memory_bytes: float = 0) -> Knobs:
        """All knob values at `scale`, which is `cpu` or `gpu`. `memory_bytes`: of the GPU; 0 where
        it is not known: the values for the smallest."""
        defaults = {
            name: default
            for name in self.workload.knobs
            if (default := CATALOGUE[name].default) is not None
        }
        if scale != "gpu":
            return {**defaults, **self.knobs, **self.cpu}
        knobs = {**defaults, **self.knobs, **self.gpu}
        for size, values in self.gpu_sizes.items():
            if memory_bytes >= ROUNDING * gigabytes(size) * 1e9:
                knobs.update(values)
        return knobs


def gigabytes(size: str) -> int:
    """The number in `80GB`. Raises ValueError for another name."""
    match = SIZE.fullmatch(size)
    if match is None:
        raise ValueError(f"{size!r} is no memory size: write for example [gpu.80GB]")
    return int(match[1])


def check_scenario(file: ScenarioFile, workloads: dict[str, Workload], path: str) -> Scenario:
    """The scenario in `file`, checked; raises ScenarioError."""
    workload = workloads.get(file.workload)
    if workload is None:
        raise ScenarioError(
            f"{path}: workload: {file.workload!r} does not"
            f" exist{nearest(file.workload, workloads)}; there are: {', '.join(sorted(workloads))}"
        )
    sizes = {name: values for name, values in file.gpu.items() if isinstance(values, dict)}
    gpu = {name: value for name, value in file.gpu.items() if not isinstance(value, dict)}
    tables: dict[str, Knobs] = {}
    given: dict[str, dict[str, Any]] = {
        "knobs": file.knobs,
        "cpu": file.cpu,
        "gpu": gpu,
        **{f"gpu.{size}": values for size, values in sizes.items()},
    }
    for key, values in given.items():
        try:
            if key.startswith("gpu."):
                gigabytes(key.removeprefix("gpu."))
            tables[key] = check_knobs(values, workload.knobs, file.workload)
        except (KnobError, ValueError) as error:
            raise ScenarioError(f"{path}: [{key}] {error}") from None
    for scale in ("cpu", "gpu"):
        missing = [
            name
            for name in workload.knobs
            if CATALOGUE[name].default is None and name not in {**tables["knobs"], **tables[scale]}
        ]
        if missing:
            raise ScenarioError(
                f"{path}: [{scale}] no value for {', '.join(missing)} (give one here or in [knobs])"
            )
    ascending = {size: tables[f"gpu.{size}"] for size in sorted(sizes, key=gigabytes)}
    return Scenario(
        file.name,
        file.title,
        workload,
        file.summary,
        tables["knobs"],
        tables["cpu"],
        tables["gpu"],
        file.teaches,
        path,
        ascending,
        file.group or OWN,
    )


def grouped(scenarios: Iterable[Scenario]) -> dict[str, list[Scenario]]:
    """The scenarios by group, in the order of `Group`; in each group the healthy runs come first,
    then the order of `scenarios`."""
    given = list(scenarios)
    by_group = {
        group: [scenario for scenario in given if scenario.group == group]
        for group in (*get_args(Group), OWN)
    }
    return {
        group: sorted(some, key=lambda scenario: not scenario.healthy)
        for group, some in by_group.items()
        if some
    }


def check_workload(workload: Workload, path: str) -> Workload:
    """`workload` with the knobs of its groups added. Raises ScenarioError for an unknown knob or
    group."""
    for group in workload.groups:
        if group not in GROUPS:
            raise ScenarioError(
                f"{path}: groups: {group!r} is not a group of settings{nearest(group, GROUPS)}"
            )
    for name in workload.knobs:
        if name not in CATALOGUE:
            raise ScenarioError(
                f"{path}: knobs: {name!r} is not in the catalogue of"
                f" settings{nearest(name, CATALOGUE)}"
            )
    grouped = tuple(knob.name for group in workload.groups for knob in GROUPS[group])
    return msgspec.structs.replace(
        workload, knobs=(*grouped, *(name for name in workload.knobs if name not in grouped))
    )


JOB_GROUPS, JOB_KNOBS = ("loop", "loader", "parallel"), ("channels_last", "cudnn_benchmark")
"""The settings of the user's own job, by group and by name."""


def watched_scenario(url: str) -> Scenario:
    """What stands for a scenario in a run that watches the model server at `url`."""
    return Scenario(
        url,
        url,
        Workload(WATCHED, "a model server that runs already", "tokens"),
        "",
        {},
        {},
        {},
        Teaches(),
    )


def job_scenario(name: str) -> Scenario:
    """What stands for a scenario in a run of the user's own job: the name of its script. Its knobs
    are known once the job trains."""
    knobs = (*(knob.name for group in JOB_GROUPS for knob in GROUPS[group]), *JOB_KNOBS)
    workload = Workload(JOB, "the user's own training job", "samples", knobs)
    return Scenario(name, name, workload, "", {}, {}, {}, Teaches())
