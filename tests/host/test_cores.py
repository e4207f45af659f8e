"""How many cores a process may use: those on which it may run, or fewer where a control group
limits their time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuconsole.host import cores
from gpuconsole.model.machine import named_cores


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):  # type: ignore[no-untyped-def]
    """Makes a machine of 16 cores with the control groups of this process and the files of these
    groups."""

    def make(group: str, files: dict[str, str]) -> None:
        for name, text in files.items():
            (path := tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        (tmp_path / "group").write_text(group)
        monkeypatch.setattr(
            cores.cpu_limit, "__defaults__", (tmp_path / "groups", tmp_path / "group")
        )
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)

    return make


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-2,7", {0, 1, 2, 7}),
        ("5", {5}),
        ("", set()),
        ("all", set()),
        ("3-", set()),
        ("2-1", set()),
    ],
)
def test_the_cores_that_a_text_names(text: str, expected: set[int]) -> None:
    assert named_cores(text) == expected


V1 = "5:memory:/docker/a\n4:cpu,cpuacct:/docker/a\n0::/system.slice\n"


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "400000 100000"}, 4),  # a container of version 2
        (
            "0::/a/b\n",
            {"a/b/cpu.max": "max 100000", "a/cpu.max": "250000 100000", "cpu.max": "800000 100000"},
            2,
        ),  # around it, and a fraction
        # the group lies outside of what the container sees
        ("0::/../elsewhere\n", {"cpu.max": "600000 100000"}, 6),
        (
            V1,
            {
                "cpu,cpuacct/docker/a/cpu.cfs_quota_us": "300000",
                "cpu,cpuacct/docker/a/cpu.cfs_period_us": "100000",
            },
            3,
        ),
        # a container of version 1
        (
            V1,
            {"cpu,cpuacct/cpu.cfs_quota_us": "700000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            7,
        ),
        (V1, {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 16),
        ("0::/\n", {"cpu.max": "50000 100000"}, 1),  # half a core
        ("0::/\n", {"cpu.max": "6400000 100000"}, 16),  # more than there is
        ("0::/\n", {"cpu.max": "max 100000"}, 16),
        ("0::/\n", {"cpu.max": "400000 0"}, 16),
        ("0::/\n", {"cpu.max": "nonsense"}, 16),
        ("0::/\n", {}, 16),
        ("nonsense\n", {"cpu.max": "400000 100000"}, 16),
        ("", {}, 16),
    ],
)
def test_the_cpu_limit_of_a_container_counts(
    machine, group: str, files: dict[str, str], expected: int
) -> None:  # type: ignore[no-untyped-def]
    machine(group, files)
    assert cores.cores() == expected
    assert cores.allowed_cores() == 16


def test_without_control_groups_the_allowed_cores_count(
    machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    machine("0::/\n", {})
    monkeypatch.setattr(
        cores.cpu_limit, "__defaults__", (tmp_path / "missing", tmp_path / "missing")
    )
    assert cores.cores() == 16
