"""Secrets come in by many ways, and go out by none: a marker for each way in, and a search of
everything that gpuconsole writes, shows and sends."""

from __future__ import annotations

import importlib.util
import json
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.mcp.raw import HELLO, RawClient
from tests.pty.terminal import Terminal
from tests.waiting import wait_until

LIBRARIES = ("tensorboard", "wandb", "mlflow")
# looked for, not imported: each process collects this module, and only children need the libraries
MISSING = [library for library in LIBRARIES if importlib.util.find_spec(library) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("markers"),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]

WAYS_IN = {
    "argument": "mArgument1",
    "assignment in a line for a shell": "mAssignment2",
    "environment": "mEnvironment3",
    "name of a data file": "mFileName4",
    "password in an address of an error": "mPassword5",
    "query in an address of an error": "mQuery6",
    "header in an error": "mHeader7",
    "dictionary in an error": "mDictionary8",
    "assignment in an error": "mErrorName9",
    "form of a token in an error": "hf_mTokenForm10mTokenForm10",
    "word after an option": "mOption12",
    "JSON in an argument": "mJson13",
    "odd password in an address of an error": "mSlash14",
    "password in the address of a tracker": "mTracker11",
}
ERROR = (
    f"GET https://ann:{WAYS_IN['password in an address of an error']}@host.example/v1?api_key="
    f"{WAYS_IN['query in an address of an error']} failed: Authorization: Bearer"
    f" {WAYS_IN['header in an error']}, {{'token': '{WAYS_IN['dictionary in an error']}'}},"
    f" HF_TOKEN={WAYS_IN['assignment in an error']} {WAYS_IN['form of a token in an error']}"
    f" http://ann:{WAYS_IN['odd password in an address of an error']}/x?y@host.example/v1"
    # what argparse and other libraries repeat of the command line
    f" unrecognized arguments: --password {WAYS_IN['word after an option']};"
    f" {WAYS_IN['word after an option']} and {WAYS_IN['JSON in an argument']} were refused"
)
TRAINING = f"""
import signal, sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
until = time.monotonic() + float(sys.argv[1])
def end(*_):
    global until
    until = 0.0
signal.signal(signal.SIGINT, end)
while time.monotonic() < until:
    optimizer.zero_grad()
    model(torch.ones(8, 64)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
if sys.argv[2] == "fail":
    raise ConnectionError({ERROR!r})
"""
SCRIPT = "train.py"


def job(seconds: float, end: str) -> list[str]:
    words = shlex.join(
        [
            "exec",
            sys.executable,
            SCRIPT,
            str(seconds),
            end,
            f"{WAYS_IN['name of a data file']}.csv",
            f"--hf-token={WAYS_IN['argument']}",
            "--password",
            WAYS_IN["word after an option"],
            "--config",
            json.dumps({"api_key": WAYS_IN["JSON in an argument"], "lr": 0.1}),
        ]
    )
    return ["--", "bash", "-c", f"HF_TOKEN={WAYS_IN['assignment in a line for a shell']} {words}"]


def found_in(way_out: str, content: bytes | str) -> list[tuple[str, str]]:
    """Return the ways in whose markers are in `content`. Each comes with the way out."""
    data = content.encode() if isinstance(content, str) else content
    assert data, f"nothing came out by {way_out}"
    return [(way_in, way_out) for way_in, marker in WAYS_IN.items() if marker.encode() in data]


def files_below(folder: Path) -> bytes:
    return b"\0".join(
        str(path).encode() + b"\0" + path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    )


def gpuconsole(folder: Path, *words: str) -> bytes:
    """What a command writes on stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "gpuconsole", *words],
        cwd=folder,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def of_pages(folder: Path, session: str) -> list[tuple[str, str]]:
    gpuconsole(folder, "report", session, "--html", "page.html", "--markdown", "page.md")
    return [
        found
        for name in ("page.html", "page.md")
        for found in found_in(f"{name} of {session}", (folder / name).read_bytes())
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / SCRIPT).write_text(TRAINING)
    monkeypatch.setenv("SOME_API_KEY", WAYS_IN["environment"])
    return tmp_path


def test_files_trackers_exporter_and_process_list(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv(
        "MLFLOW_TRACKING_URI",
        f"http://mon:{WAYS_IN['password in the address of a tracker']}@127.0.0.1:{free_port()}",
    )
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    port = free_port()
    options = ["--headless", "--serve", f"127.0.0.1:{port}", "--probe", "--summary", "summary.txt"]
    options += [
        "--snapshot",
        "s.json",
        "--record",
        "r.jsonl",
        "--patch",
        "p.diff",
        "--save-baseline",
    ]
    options += [
        word for tracker in ("tensorboard", "wandb", "mlflow") for word in ("--log-to", tracker)
    ]
    words = [sys.executable, "-m", "gpuconsole", "run", *options, *job(9, "well")]
    console = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    exported, listed = b"", set[str]()

    def has_steps() -> bool:
        nonlocal exported
        for process in psutil.Process(console.pid).children(recursive=True):
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            # the user's own words are those of the user's own processes
            listed.update([] if SCRIPT in line else [line])
        time.sleep(0.2)  # the loop must not disturb the console
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                exported = answer.read()
        except OSError:
            return False
        return b"gpuconsole_workload" in exported and b"samples" in exported

    wait_until(
        lambda: has_steps() or console.poll() is not None, 60, "the exporter has figures of the job"
    )
    said = console.communicate(timeout=100)[1]
    assert console.returncode == 0, said
    assert b"--log-to mlflow: " in said and b"points were not delivered" in said
    session = json.loads((folder / "s.json").read_text())
    (folder / "later.json").write_text(
        (folder / "s.json")
        .read_text()
        .replace(session["runs"][0]["started"], "2026-01-01T00:00:00Z")
    )
    comment = gpuconsole(
        folder, "compare", "later.json", "s.json", "--fail-below", "0.5", "--markdown"
    )
    assert comment.startswith(b"**") and SCRIPT.encode() in comment
    found = [
        *found_in("stderr", said),
        *found_in("summary", (folder / "summary.txt").read_bytes()),
        *found_in("snapshot", (folder / "s.json").read_bytes()),
        *found_in("recording", (folder / "r.jsonl").read_bytes()),
        *found_in("HTML and Markdown", gpuconsole(folder, "report", "s.json")),
        *found_in("TensorBoard", files_below(folder / "runs")),
        *found_in("W&B offline", files_below(folder / "wandb")),
        *found_in("patch", gpuconsole(folder, "report", "s.json", "--patch", "q.diff")),
        *found_in("exporter", exported),
        *found_in("process list", "\n".join(listed)),
        *found_in(
            "baselines",
            gpuconsole(folder, "baselines") + gpuconsole(folder, "baselines", "--key", "s.json"),
        ),
        *found_in("comment", comment),
        *found_in("replay", gpuconsole(folder, "replay", "r.jsonl", "--headless")),
        *of_pages(folder, "s.json"),
    ]
    assert found == []
    assert session["runs"][0]["scenario"] == SCRIPT


def test_a_job_that_fails_with_secrets_in_its_error_before_a_coding_agent(folder: Path) -> None:
    client = RawClient(
        folder,
        "--probe",
        "--profile-dir",
        "traces",
        "--snapshot",
        "s.json",
        "--record",
        "r.jsonl",
        *job(60, "fail"),
    )
    client.answer(client.send("initialize", HELLO))
    client.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
    answers = [
        client.answer(client.send("tools/call", {"name": name, "arguments": given}), 90)
        for name, given in CALLS
    ]
    assert client.process.stdin is not None
    client.process.stdin.close()
    client.process.wait(30)
    text = json.dumps(answers)
    assert "ConnectionError" in text, text
    found = [
        *found_in("answers", text),
        *found_in("trace", files_below(folder / "traces")),
        *found_in("snapshot", (folder / "s.json").read_bytes()),
        *found_in("recording", (folder / "r.jsonl").read_bytes()),
        *of_pages(folder, "s.json"),
    ]
    assert found == []


CALLS = (
    ("status", {"wait_s": 30}), ("allow", {"what": "probes"}), ("profile", {"steps": 3}),
    ("stop", {}), ("status", {"wait_s": 20}), ("report", {}), ("status", {}), ("devices", {}),
)  # fmt: skip


def test_a_job_that_fails_with_secrets_in_its_error_on_the_screen(folder: Path) -> None:
    with Terminal(
        "run", "--snapshot", "s.json", *job(3, "fail"), cwd=folder, columns=200, rows=50
    ) as terminal:
        terminal.wait_for("ConnectionError", timeout_s=60)
        shown = [terminal.text]
        for key in "dhj":
            terminal.press(key)
            terminal.settle()
            shown.append(terminal.text)
            terminal.press("escape")
        found = found_in("screen", "\n".join(shown))
        terminal.press("q")
    assert found == []
