"""`gpuconsole run --headless` on a loop whose loading has one slow transform: the finding names the
transform, its share and the gain without it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.matrix import matrix

pytestmark = [pytest.mark.slow, pytest.mark.rates, pytest.mark.xdist_group("slow part")]

PROGRAM = Path(__file__).parent / "programs" / "slow_part.py"
BLUR_S = 0.0015


@pytest.mark.parametrize("method", matrix(["none", "fork", "spawn"], in_ci=("fork",)))
def test_the_finding_names_the_slow_transform(method: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "gpuconsole", "run", "--headless", "--snapshot", "snapshot.json"]
    command = [*words, "--", sys.executable, str(PROGRAM), method, "13"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    run = json.loads((tmp_path / "snapshot.json").read_text())["runs"][-1]
    finding = run["findings"][0]
    assert finding["rule"].startswith("input."), finding
    told = re.search(
        (
            r"Blur at slow_part\.py:(\d+) takes (\d+) % of loading \(speedup about (\d\.\d)x"
            r" without this part\)"
        ),
        finding["summary"],
    )
    assert told, (finding["summary"], run["unavailable"])
    line = PROGRAM.read_text().splitlines()[int(told[1]) - 1]
    assert f"used({BLUR_S})" in line or "while time.thread_time() < end" in line
    assert int(told[2]) / 100 == pytest.approx(
        BLUR_S * run["signals"]["probe.loader_samples_per_s"]["value"], abs=0.15
    )
    assert (
        next(
            other["signal"]
            for other in finding["evidence"]
            if other["signal"].startswith("loading.")
        )
        == "loading.first_ratio"
    )
