"""`gpuconsole run --headless` on a loop with a mode of torch that slows each step: the finding
names the mode, and a loop without one has no such finding."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

from gpuconsole.agent.hooks import modes as modes_of_agent
from gpuconsole.agent.hooks.modes import Modes
from gpuconsole.agent.hooks.sampler import ANOMALY
from gpuconsole.agent.hooks.watch import recorder
from gpuconsole.agent.protocol import COUNTS, PROBE
from gpuconsole.model import stacks
from tests.agent.test_own_job import PROGRAMS, watched
from tests.matrix import matrix

FIRES = {
    "anomaly": ("host.debug_mode", "Anomaly mode is on in every step"),
    "passes": ("host.debug_mode", "Anomaly mode is on in every step"),
    "profiler": ("host.debug_mode", "A profiler runs in every step"),
    "deterministic": ("host.deterministic", "Only deterministic algorithms are allowed"),
}


@pytest.mark.slow
@pytest.mark.xdist_group("a job")
@pytest.mark.parametrize(
    "mode", matrix([*FIRES, "scheduled", "none"], in_ci=("passes", "profiler", "none"))
)
def test_the_mode_is_named_and_only_where_it_is_on(mode: str, tmp_path: Path) -> None:
    ran = watched(
        tmp_path, sys.executable, "-W", "ignore", str(PROGRAMS / "debugged.py"), mode, "8"
    )
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[-1] == f"on {mode == 'anomaly'} {mode == 'deterministic'}"
    findings = {finding["rule"]: finding for finding in ran.run["findings"]}
    for rule in ("host.debug_mode", "host.deterministic"):
        named, title = FIRES.get(mode, ("", ""))
        assert findings[rule]["state"] == ("fires" if rule == named else "clear"), findings[rule]
        assert rule != named or findings[rule]["title"] == title
    if mode in ("anomaly", "passes"):
        assert (
            "stack trace of each operator in the forward pass"
            in findings["host.debug_mode"]["summary"]
        )
        assert findings["gpu.elementwise_membw"]["title"] == "Covered by host.debug_mode"


def test_looks_are_counted_with_the_modes_that_they_find(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(modes_of_agent, "EVERY_S", 0.0)
    looks = Modes()
    with warnings.catch_warnings(action="ignore"), torch.autograd.detect_anomaly(check_nan=False):
        looks.look()
    looks.look()
    assert looks.read() == {"mode.looks": 2, "mode.anomaly": 1}
    with torch.autograd.profiler.profile():
        assert looks.read() == {"mode.looks": 3, "mode.anomaly": 1, "mode.profiler": 1}, (
            "without a look in a pass, one between two steps"
        )


def test_a_profiler_of_a_probe_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    looks = Modes()
    monkeypatch.setattr(recorder, "kind", PROBE)
    with torch.autograd.profiler.profile():
        looks.look()
    monkeypatch.setattr(recorder, "kind", COUNTS)
    assert looks.read() == {"mode.looks": 0}


def test_both_sides_have_the_same_name_for_the_stacks_of_anomaly_mode() -> None:
    assert ANOMALY == stacks.ANOMALY
