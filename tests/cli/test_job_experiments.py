"""`sweep` and `tune` on the steps of a user's own job, a script with PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpuconsole.model.snapshot import json_schema

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("a job")]

STARVED = Path(__file__).parents[1] / "agent" / "programs" / "starved.py"


def until_said(folder: Path, words: str, *command: str) -> tuple[str, dict[str, Any]]:
    """Run a command of gpuconsole on the starved script, which ends when `words` are on stderr. The
    text of stderr, and the snapshot."""
    ended = folder / "end"
    options = [
        "--device",
        "cpu",
        "--snapshot",
        "s.json",
        "--",
        sys.executable,
        str(STARVED),
        str(ended),
    ]
    job = subprocess.Popen(
        [sys.executable, "-m", "gpuconsole", *command, *options],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    watchdog = threading.Timer(100.0, ended.touch)
    watchdog.start()
    lines = []
    assert job.stderr is not None
    try:
        for line in job.stderr:
            lines.append(line)
            if words in line:
                ended.touch()
    finally:
        watchdog.cancel()
        ended.touch()
        assert job.wait(30) == 0
        job.stderr.close()
    snapshot = json.loads((folder / "s.json").read_text())
    jsonschema.validate(snapshot, json_schema())
    return "".join(lines), snapshot


def test_a_sweep_measures_settings_in_turn_and_leaves_the_job_as_it_was(tmp_path: Path) -> None:
    text, snapshot = until_said(
        tmp_path,
        "the sweep has ended",
        "sweep",
        "--vary",
        "num_workers=0,2",
        "--repeat",
        "2",
        "--allow-loader",
    )
    points = {point["knobs"]["num_workers"]: point for point in snapshot["sweeps"][0]["points"]}
    assert all(len(point["rates"]) == 2 for point in points.values()), text
    assert min(points[2]["rates"]) > 1.2 * max(points[0]["rates"])
    assert "best" in text
    assert [run["knobs"]["num_workers"] for run in snapshot["runs"]] == [0]


def test_a_trial_that_the_end_of_the_job_interrupts_says_so(tmp_path: Path) -> None:
    text, snapshot = until_said(
        tmp_path,
        "trial: num_workers 0 -> 2",
        "run",
        "--headless",
        "--try",
        "num_workers=2",
        "--allow-loader",
    )
    (trial,) = snapshot["trials"]
    assert (trial["state"], trial["error"]) == (
        "failed",
        "the job ended before the trial was decided",
    ), text
    assert "before a trial of num_workers 0 -> 2 could be decided: that takes about" in text
    assert "to try it in your own code: DataLoader(..., num_workers=2) at starved.py:28" in text


@pytest.mark.slow
@pytest.mark.rates
def test_tuning_keeps_what_is_proven_until_the_job_ends(tmp_path: Path) -> None:
    text, snapshot = until_said(
        tmp_path, "faster: kept", "tune", "--only", "num_workers", "--allow-loader"
    )
    certificate = snapshot["tuning"]
    assert certificate["scenario"] == "starved.py" and certificate["command_digest"]
    # the job ends as soon as a change is kept: a machine that is slow to end the job looks for the
    # next change first
    assert certificate["stopped"] in (
        "the job has ended",
        "no further change is predicted to gain 5 %",
    )
    assert any(attempt["trial"].get("kept") for attempt in certificate["attempts"]), text
    workers = certificate["end"]["num_workers"]
    assert workers >= 2 and snapshot["runs"][-1]["knobs"]["num_workers"] == workers
    assert snapshot["runs"][-1]["at_step"] > 0
    assert f"num_workers 0 -> {workers}" in text and "gpuconsole run starved.py" not in text
