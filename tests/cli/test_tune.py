"""`gpuconsole tune`, also with --verify, for real."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuconsole.cli.commands.experiments import tune
from gpuconsole.model.certificate import Certificate
from gpuconsole.model.snapshot import Environment, Snapshot, encode
from tests.conftest import Cli
from tests.waiting import wait_until


@pytest.mark.slow
def test_a_console_that_is_killed_leaves_what_was_proven(cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "tuned.json"
    words = ("tune", "chatty-logging", "--device", "cpu", "--budget", "200", "--snapshot", target)
    console = subprocess.Popen(
        [sys.executable, "-m", "gpuconsole", *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(target.exists, 200, "the first trial has ended")
    finally:
        console.kill()
        console.wait()
    assert json.loads(target.read_text())["tuning"]["attempts"]
    assert cli("tune", "--verify", str(target)).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_win_is_kept_and_the_snapshot_holds(cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "tuned.json"
    for budget in (24, 120):  # on a busy machine the small budget may have no room for a trial
        done = cli(
            "tune",
            "chatty-logging",
            "--device",
            "cpu",
            "--budget",
            str(budget),
            "--snapshot",
            str(target),
            "--json",
        )
        assert done.returncode == 0, done.stderr
        session = json.loads(target.read_text())
        made = session["tuning"]
        if any(one["trial"].get("kept") for one in made["attempts"]):
            break
    assert session == json.loads(done.stdout)
    kept = [one for one in made["attempts"] if one["trial"].get("kept")]
    assert kept and "log_every" in kept[0]["trial"]["changes"], made
    assert (
        made["end"]["log_every"]
        == kept[0]["trial"]["changes"]["log_every"]
        != made["start"]["log_every"]
    )
    assert made["stopped"] and session["environment"]["cores"] > 0

    held = cli("tune", "--verify", str(target))
    assert (
        held.returncode == 0 and "all intervals and verdicts follow from the pairs" in held.stdout
    )
    made["attempts"][0]["trial"]["speedup"]["estimate"] *= 2
    target.write_text(json.dumps(session))
    broken = cli("tune", "--verify", str(target))
    assert broken.returncode == 1 and "does not follow from the" in broken.stderr


@pytest.mark.slow
def test_an_interrupted_session_keeps_its_snapshot(tmp_path: Path) -> None:
    target = tmp_path / "tuned.json"
    recording = tmp_path / "tuned.jsonl"
    words = (
        "tune",
        "gemm-peak",
        "--device",
        "cpu",
        "--snapshot",
        str(target),
        "--record",
        str(recording),
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuconsole", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "diagnosing the run" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    wait_until(lambda: process.poll() is not None, 20)
    assert process.stdout is not None
    assert process.returncode == 130 and "interrupted" in process.stdout.read()
    assert json.loads(target.read_text())["tuning"]["stopped"] == "interrupted"
    assert '"runopened"' in recording.read_text()


def test_a_session_is_continued_with_its_settings_at_the_end_and_refused_with_others(
    cli_here: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []

    async def session(args: object, knobs: object, resumed: object) -> int:
        started.append(knobs)
        return 0

    monkeypatch.setattr(tune, "_main", session)
    start = {"batch_size": 8, "log_every": 1}
    made = Certificate(
        scenario="chatty-logging", device="cpu", start=start, end={**start, "log_every": 20},
        only=["log_every"],
    )  # fmt: skip
    session_of_tune = Snapshot(
        created="", gpuconsole="", environment=Environment(), runs=[], trials=[], tuning=made
    )
    (tmp_path / "c.json").write_bytes(encode(session_of_tune))
    for words, reason in (
        (("train-gpt",), "the session tuned chatty-logging"),
        (("chatty-logging", "--only", "optim"), "the session had another --only: log_every"),
        (("chatty-logging", "--set", "batch_size=4"), "the session had other values of --set"),
        (("chatty-logging", "--only", "log_every", "--set", "batch_size=8"), ""),
    ):
        done = cli_here("tune", *words, "--resume", str(tmp_path / "c.json"))
        assert (done.returncode, reason in done.stderr) == (2 if reason else 0, True), done.stderr
    assert started == [made.end]


def test_bad_usage_is_reported_in_one_line(cli_here: Cli, tmp_path: Path) -> None:
    (tmp_path / "no.json").write_text("{}")
    (tmp_path / "run.json").write_bytes(
        encode(Snapshot(created="", gpuconsole="", environment=Environment(), runs=[], trials=[]))
    )
    allowed = "allowed is what gpuconsole tune --snapshot FILE has written"
    for words, reason in (
        (("tune", "no-such"), "no-such"),
        (
            ("tune", "train-gpt", "--resume", str(tmp_path / "run.json")),
            f"not a snapshot of tune; {allowed}",
        ),
        (
            ("tune", "train-gpt", "--only", "optim,no_such"),
            "--only no_such: no setting of train-gpt",
        ),
        (("tune", "train-gpt", "--only", ","), "argument --only: names no setting"),
        (("tune", "--verify", str(tmp_path / "gone.json")), "cannot be read"),
        (("tune", "--verify", str(tmp_path / "no.json")), allowed),
        (("tune", "--verify", str(tmp_path / "run.json")), allowed),
        (
            ("tune", "--verify", str(tmp_path / "no.json"), "--record", str(tmp_path / "f.jsonl")),
            "--record goes with --measure",
        ),
        (("tune", "train-gpt", "--record", str(tmp_path / "no" / "f.jsonl")), "--record"),
    ):
        done = cli_here(*words)
        assert done.returncode == 2 and reason in done.stderr and done.stderr.count("\n") == 1
