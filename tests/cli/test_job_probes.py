"""`gpuconsole run --headless --probe -- python train.py`: the probes and the profiler window reach
the rules, and the job is as without them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("jobs")]

PROGRAM = Path(__file__).parents[1] / "agent" / "programs" / "probed.py"
STEPS = ("1800", "1")


def test_rules_of_a_job_conclude_from_probes_and_a_window_of_its_own_steps(tmp_path: Path) -> None:
    job = (sys.executable, str(PROGRAM), *STEPS)
    console = (
        sys.executable,
        "-m",
        "gpuconsole",
        "run",
        "--headless",
        "--probe",
        "--snapshot",
        "s.json",
        "--",
        *job,
    )
    probed = subprocess.run(
        console, capture_output=True, text=True, cwd=tmp_path, timeout=270, check=False
    )
    assert probed.returncode == 0, probed.stderr[-3000:]
    alone = subprocess.run(job, capture_output=True, text=True, timeout=100, check=True)
    assert probed.stdout == alone.stdout, "the same losses, weights and random state"
    run = json.loads((tmp_path / "s.json").read_text())["runs"][-1]
    signals = run["signals"]
    assert re.match(
        r"profile window of \d+ steps: operators by their own time",
        signals["profile.gemm_ratio"]["source"],
    )
    assert signals["probe.cached_pass_s"]["value"] > 0
    states = {finding["rule"]: finding["state"] for finding in run["findings"]}
    concluded = {
        "gpu.elementwise_membw",
        "gpu.small_batch",
        "gpu.fp32_no_tensor_core",
        "gpu.conv_layout_autotune",
    }
    assert not {rule for rule in concluded if states[rule] == "cant_tell"}
    assert not [key for key in run["unavailable"] if key == "probe.op_mix"]
    assert run.get("profile") is None, "the user did not ask for a profile"
    assert [path.name for path in tmp_path.iterdir()] == ["s.json"], "the trace is not kept"
