"""A starved script of the user's own: the top suggestion is tried on its own steps, proven, kept,
and written as a patch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpuconsole.experiments.statistics import MIN_PAIRS

pytestmark = pytest.mark.xdist_group("a job")

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.rates
@pytest.mark.slow
def test_a_starved_script_is_found_tried_proven_and_patched(tmp_path: Path) -> None:
    script, ended = tmp_path / "starved.py", tmp_path / "end"
    shutil.copy(PROGRAMS / "starved.py", script)
    options = [
        "--device",
        "cpu",
        "--apply-top",
        "--allow-loader",
        "--patch",
        "p.diff",
        "--snapshot",
        "s.json",
    ]
    command = [
        sys.executable,
        "-m",
        "gpuconsole",
        "run",
        "--headless",
        *options,
        "--",
        sys.executable,
        str(script),
        str(ended),
    ]
    job = subprocess.Popen(
        command,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )
    watchdog = threading.Timer(90.0, ended.touch)
    watchdog.start()
    try:
        assert job.stderr is not None
        lines = []
        for line in job.stderr:
            lines.append(line)
            if "verdict" in line and not ended.exists():
                time.sleep(1.0)  # some steps of the next run
                ended.touch()
    finally:
        watchdog.cancel()
        ended.touch()
        assert job.wait(30) == 0
    text = "".join(lines)
    trial = json.loads((tmp_path / "s.json").read_text())["trials"][0]
    assert trial["verdict"] == "win" and trial["kept"], text
    assert trial["blocks"] == 2 * MIN_PAIRS, "as few as a verdict needs"
    assert trial["changes"]["num_workers"] >= 2
    speedup, predicted = trial["speedup"], trial["predicted"]
    assert speedup["low"] <= predicted["high"] and speedup["high"] >= predicted["low"], (
        speedup,
        predicted,
    )
    assert "patch written" in text
    subprocess.run(["git", "apply", "p.diff"], cwd=tmp_path, check=True)
    workers = trial["changes"]["num_workers"]
    assert f"shuffle=True, num_workers={workers},\n" in script.read_text()
