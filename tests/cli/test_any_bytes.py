"""Names that are no UTF-8, signals without a name, and damaged files: each gives what was measured,
or one line."""

from __future__ import annotations

import gzip
import json
import os
import signal
import sys
from importlib import resources
from pathlib import Path

import pytest

from gpuconsole.engine.recording import DEMO
from tests.conftest import Cli

LATIN_1 = os.fsdecode(b'caf\xe9 "q".py')


def test_a_job_whose_name_is_no_utf8_is_saved_recorded_and_shared(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / LATIN_1).write_text("print('hello')\n")
    files = [
        "--snapshot",
        "s.json",
        "--record",
        "r.jsonl",
        "--summary",
        "sum.txt",
        "--store-command",
    ]
    done = cli("run", "--headless", *files, "--", sys.executable, LATIN_1, LATIN_1)
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")
    (run,) = json.loads((tmp_path / "s.json").read_bytes())["runs"]
    assert run["scenario"] == 'caf\\udce9 "q".py'
    assert "caf\\udce9" in cli("replay", "r.jsonl", "--headless").stdout
    # as in a UTF-8 locale
    done = cli(
        "report",
        "s.json",
        "--html",
        LATIN_1 + ".html",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    assert (done.returncode, done.stdout) == (0, 'wrote caf\\udce9 "q".py.html\n')


TRAINS = """
import torch
layer = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for _ in range(200):
    layer(torch.ones(2, 8)).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_job_whose_name_is_no_utf8_is_measured(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / LATIN_1).write_text(TRAINS)
    done = cli("run", "--headless", "--snapshot", "s.json", "--", sys.executable, LATIN_1)
    assert done.returncode == 0
    (run,) = json.loads((tmp_path / "s.json").read_bytes())["runs"]
    assert run["knobs"]["optim"] == "sgd_plain"


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="no real-time signals")
def test_a_job_that_a_signal_without_a_name_ends_has_failed(cli: Cli, tmp_path: Path) -> None:
    done = cli(
        "run",
        "--headless",
        "--snapshot",
        "s.json",
        "--",
        sys.executable,
        "-c",
        "import os; os.kill(os.getpid(), 40)",
    )
    assert done.returncode == -40
    (run,) = json.loads((tmp_path / "s.json").read_bytes())["runs"]
    assert (run["state"], run["error"].partition(";")[0]) == (
        "failed",
        "the job was ended by signal 40",
    )


def test_a_recording_with_bytes_that_are_no_utf8_is_one_line(cli: Cli, tmp_path: Path) -> None:
    lines = gzip.decompress(DEMO.read_bytes()).splitlines(keepends=True)
    (tmp_path / "r.jsonl").write_bytes(
        b"".join([*lines[:5], b'{"event":"note","t":1,"text":"\xff"}\n'])
    )
    done = cli("replay", "r.jsonl", "--headless")
    assert (done.returncode, done.stderr) == (
        2,
        "gpuconsole: r.jsonl: line 6: not a gpuconsole recording: not UTF-8: invalid start byte\n",
    )


@pytest.mark.parametrize(
    "words",
    [("report", "s.json"), ("compare", "s.json#1", "s.json#2"), ("diagnose", "s.json")],
    ids=lambda words: words[0],
)
def test_a_snapshot_whose_series_are_damaged_is_one_line(
    cli: Cli, tmp_path: Path, words: tuple[str, ...]
) -> None:
    with resources.as_file(DEMO) as demo:
        session = json.loads(cli("replay", str(demo), "--json").stdout)
    next(iter(session["runs"][0]["series"].values()))["v"].pop()
    (tmp_path / "s.json").write_text(json.dumps(session))
    done = cli(*words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("gpuconsole: s.json: not a valid snapshot: a series has ")


def test_a_snapshot_with_a_number_beyond_all_figures_is_one_line(cli: Cli, tmp_path: Path) -> None:
    with resources.as_file(DEMO) as demo:
        session = json.loads(cli("replay", str(demo), "--json").stdout)
    session["runs"][0]["signals"]["host.others_cpu_ratio"]["value"] = 1e308
    (tmp_path / "s.json").write_text(json.dumps(session))
    done = cli("diagnose", "s.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "gpuconsole: s.json: a number is out of range: 1e+308 at"
        " $.runs[0].signals['host.others_cpu_ratio'].value\n"
    )


@pytest.mark.parametrize("t", ["1e308", "4611686018427387904", "-1e15"])
def test_a_recording_with_a_time_that_no_calendar_has_is_one_line(
    cli: Cli, tmp_path: Path, t: str
) -> None:
    lines = gzip.decompress(DEMO.read_bytes()).splitlines(keepends=True)
    (tmp_path / "r.jsonl").write_bytes(
        b"".join([*lines[:40], b'{"event":"note","t":%s,"text":"late"}\n' % t.encode()])
    )
    done = cli("replay", "r.jsonl", "--headless", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "line 41: " in done.stderr and done.stderr.count("\n") == 1


def test_a_damaged_calibration_counts_as_none(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "gpuconsole").mkdir()
    (tmp_path / "gpuconsole" / "calibration.json").write_bytes(b'{"schema":"\xff","records":[]}')
    done = cli(
        "calibrate",
        "--show",
        "--device",
        "cpu",
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
    )
    assert done.returncode == 1 and done.stderr.startswith(
        "gpuconsole: there is no calibration of cpu"
    )
