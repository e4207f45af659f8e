"""CPU time of other programs: on the CPUs that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from gpuconsole.host import load


class Times(tuple):
    """Like psutil's named tuples: a sum of all fields, and fields by name."""

    idle = 1000.0

    def __new__(cls, user: float) -> Times:
        return super().__new__(cls, (user, cls.idle))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):  # type: ignore[no-untyped-def]
    def make(online: str, usable: set[int], busy: list[float]) -> None:
        (tmp_path / "online").write_text(online + "\n")
        monkeypatch.setattr(load, "ONLINE", tmp_path / "online")
        monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [Times(user) for user in busy])
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: usable)

    return make


@pytest.mark.parametrize(
    ("online", "usable", "expected"),
    [
        ("0-3", {1, 2}, 20.0 + 30.0),
        # CPU 1 is offline: psutil lists CPUs 0, 2, 3 and 4, without their numbers
        ("0,2-4", {2, 4}, 20.0 + 40.0),
        # a container: four CPUs are listed, with numbers of their own, and all belong to the
        # container
        ("0-7", {5, 6}, 100.0),
        ("", {0, 1}, 100.0),
    ],
)
def test_the_time_of_a_cpu_is_found_by_its_number(
    machine, online: str, usable: set[int], expected: float
) -> None:  # type: ignore[no-untyped-def]
    machine(online, usable, [10.0, 20.0, 30.0, 40.0])
    assert load.busy_s() == pytest.approx(expected)


def test_without_the_list_of_cpus_all_count(
    machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    machine("0-3", {1}, [10.0, 20.0])
    monkeypatch.setattr(load, "ONLINE", tmp_path / "missing")
    assert load.busy_s() == pytest.approx(30.0)


def test_what_this_process_and_its_ended_children_use_is_not_the_load_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy, clock, own = [100.0], [0.0], [os.times_result((1.0, 2.0, 3.0, 4.0, 0.0))]
    monkeypatch.setattr(load, "busy_s", lambda: busy[0])
    monkeypatch.setattr(load.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(os, "times", lambda: own[0])
    others = load.OtherCores()
    # 10 s of ours, so 10 s of others in 10 s
    busy[0], clock[0], own[0] = 120.0, 10.0, os.times_result((2.0, 4.0, 6.0, 8.0, 0.0))
    assert others.mean() == pytest.approx(1.0)
