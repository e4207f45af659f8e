"""`gpuconsole explain` on recordings and rings."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path

import pytest

from gpuconsole.wire.events import encode
from gpuconsole.wire.recording import RingWriter
from tests.conftest import Cli
from tests.fakes.server_day import WALL, day

AT = 2400.0


def clock(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(WALL + seconds).strftime("%H:%M")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recording of an hour in which prompts became longer, and the same as a ring."""
    folder = tmp_path_factory.mktemp("day")
    file, ring, now = folder / "session.jsonl", folder / "ring", [0.0]
    writer = RingWriter(ring, clock=lambda: now[0], wall=lambda: WALL + now[0], file_s=900)
    with file.open("wb") as lines:
        for event in day({AT: "prompts"}, 3600):
            now[0] = event.t
            writer.write(event)
            lines.write(encode(event) + b"\n")
    writer.close()
    return file, ring


def test_a_recording_and_a_ring_give_the_same_answer(cli: Cli, files: tuple[Path, Path]) -> None:
    answers = [cli("explain", str(path), "--at", clock(AT)) for path in files]
    assert answers[0].returncode == 0, answers[0].stderr
    assert answers[0].stdout == answers[1].stdout
    lines = answers[0].stdout.splitlines()
    assert (
        " -> " in lines[0]
        and "(means of ten seconds; before: the median of 30 minutes)" in lines[0]
    )
    (changed,) = [line for line in lines if line.startswith("changed")]
    assert "longer prompts: " in changed and "tokens -> 1 2" in changed
    assert any(
        line.startswith("unchanged") and "preemptions" in line and "GPU clocks" in line
        for line in lines
    )


def test_as_json_and_without_a_time(cli: Cli, files: tuple[Path, Path]) -> None:
    found = json.loads(cli("explain", str(files[1]), "--json").stdout)
    assert (
        found["changes"][0]["name"] == "prompts"
        and found["peak"]["value"] > 2 * found["peak"]["before"]
    )


def test_a_time_without_a_peak(cli: Cli, files: tuple[Path, Path]) -> None:
    done = cli("explain", str(files[0]), "--at", clock(1200))
    first, nearest, *_ = done.stdout.splitlines()
    assert done.returncode == 0 and first.startswith("no latency peak, outage, standstill or ")
    assert nearest.startswith("nearest peak") and f"{clock(AT)}:40 to" in nearest


def test_the_servers_of_a_folder_are_named(cli: Cli, tmp_path: Path) -> None:
    for url in ("http://a:8000", "http://b:8000"):
        writer = RingWriter(tmp_path)
        for event in day({}, 30, url=url):
            writer.write(event)
        writer.close()
    done = cli("explain", str(tmp_path))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert all(word in done.stderr for word in ("http://a:8000", "http://b:8000", "--url"))
    assert cli("explain", str(tmp_path), "--url", "http://b:8000").returncode == 0


@pytest.mark.parametrize(
    ("words", "mistake"),
    [
        ("25:00", "must be HH:MM"),
        ("tomorrow", "must be HH:MM"),
        ("2020-01-01T03:14", "not in the recorded time"),
    ],
)
def test_a_wrong_time_is_one_line(
    cli: Cli, files: tuple[Path, Path], words: str, mistake: str
) -> None:
    done = cli("explain", str(files[0]), "--at", words)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and mistake in done.stderr


@pytest.mark.parametrize(
    "content",
    [
        "",
        "hello",
        '{"event":"hello","t":0,"role":"recording","pid":1,"version":"1","wall_time":0}\n',
    ],
)
def test_what_is_no_recording_is_one_line(cli: Cli, tmp_path: Path, content: str) -> None:
    (tmp_path / "f").write_text(content)
    for path in (tmp_path / "f", tmp_path / "nowhere", tmp_path):
        done = cli("explain", str(path))
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stdout == "", path


@pytest.mark.slow
def test_a_session_records_into_a_folder(cli: Cli, tmp_path: Path) -> None:
    """The same option as for a file; a folder that cannot be written is refused before anything
    starts."""
    ring = tmp_path / "ring"
    ring.mkdir()
    done = cli("run", "tiny-batch", "--headless", "--duration", "3", "--record", str(ring))
    assert done.returncode == 0, done.stderr
    (file,) = ring.iterdir()
    assert file.name.endswith(".jsonl.gz")
    answer = cli("explain", str(ring))
    assert answer.returncode == 0 and "TTFT: not in the recording" in answer.stdout
    if os.geteuid() != 0:
        ring.chmod(0o500)
        assert cli("run", "tiny-batch", "--headless", "--record", str(ring)).returncode == 2
