"""What a loaded card does to a job: the power cap of an L4 lowers its clock, as NVML reports it;
freed memory of the driver makes the host wait."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cuda.conftest import Machines
from tests.fakes.cuda.machine import SimulatedMachine
from tests.matrix import matrix

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parent / "programs" / "loaded.py"


def job(machine: SimulatedMachine, folder: Path, way: str, seconds: int) -> dict[str, Any]:
    command = (
        sys.executable,
        "-m",
        "gpuconsole",
        "run",
        "--headless",
        "--snapshot",
        "x.json",
        "--",
        sys.executable,
        str(PROGRAM),
        way,
        str(seconds),
    )
    environment = machine.environment(OMP_NUM_THREADS="1")
    done = subprocess.run(
        command,
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "x.json").read_text())["runs"][-1]  # type: ignore[no-any-return]


@pytest.mark.parametrize("card", matrix(["l4", "t4"], in_ci=["l4"]))
def test_a_power_cap_that_the_card_is_sold_with_is_a_note_and_makes_no_job_slow(
    card: str, simulated: Machines, tmp_path: Path
) -> None:
    found = job(simulated(f"card {card}", "values none"), tmp_path, "plain", 15)
    findings = {finding["rule"]: finding for finding in found["findings"]}
    clock, power = (
        found["signals"][f"hw.{name}"]["value"] for name in ("sm_clock_ratio", "power_ratio")
    )
    assert 0.4 < clock < 0.8 and 0.9 < power <= 1.05
    assert findings["hw.power"]["state"] == "fires" and findings["hw.power"]["note"]
    assert findings["hw.clocks_low"]["state"] == findings["hw.thermal"]["state"] == "clear"
    assert findings["host.launch_bound"]["state"] == "clear"
    assert [
        rule
        for rule, finding in findings.items()
        if finding["state"] == "fires" and not finding.get("note") and not rule.endswith("_healthy")
    ] == []


def test_a_limit_that_a_person_has_lowered_is_a_fault_with_its_cure(
    simulated: Machines, tmp_path: Path
) -> None:
    found = job(
        simulated("card h100 power_w=350 default_w=700 demand_w=700", "values none"),
        tmp_path,
        "plain",
        15,
    )
    power = next(finding for finding in found["findings"] if finding["rule"] == "hw.power")
    assert power["state"] == "fires" and not power.get("note")
    assert "nvidia-smi -pl 700" in power["summary"]


@pytest.mark.rates
def test_a_cache_that_is_emptied_in_each_step_is_named_with_its_line(
    simulated: Machines, tmp_path: Path
) -> None:
    found = job(simulated("card h100", "values none"), tmp_path, "cache", 15)
    finding = next(
        finding for finding in found["findings"] if finding["rule"] == "mem.cache_emptied"
    )
    line = next(
        number
        for number, text in enumerate(PROGRAM.read_text().splitlines(), 1)
        if "empty_cache()" in text
    )
    assert (
        finding["state"] == "fires"
        and f"torch.cuda.empty_cache() in loaded.py:{line} runs once per step" in finding["summary"]
    )
