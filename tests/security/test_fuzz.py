"""Damaged files from elsewhere: each value in turn becomes an odd one. No command ends with a
traceback (exit code 70), and nothing that it prints controls a terminal.

`GPUCONSOLE_FUZZ=600 pytest tests/security/test_fuzz.py` goes on with further seeds for ten minutes.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuconsole.cli.main import main
from gpuconsole.model.snapshot import encode
from gpuconsole.wire.events import decode_event
from gpuconsole.wire.recording import RecordingError, read_recording
from gpuconsole.workloads.serving.scraping import read_families, server_state
from tests.report.small_session import small_session

SECONDS = float(os.environ.get("GPUCONSOLE_FUZZ", "0"))
MIN_CASES = 60
ODD: tuple[Any, ...] = (
    None, True, "", "x" * 3000, "\x1b]52;c;eA==\x07\x9b2J\u202e", "/approve", -1, 0, 1e39, -1e39,
    1e300, -1e308, 10**400, 5e-324, 2**63, [], {}, [[]], {"a": {}}, "NaN", "2026-13-45T99:99",
    "9" * 400,
)  # fmt: skip


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each value inside `value`."""
    for key in range(len(value)) if isinstance(value, list) else list(value):
        yield (*way, key)
        if isinstance(value[key], list | dict):
            yield from places(value[key], (*way, key))


def damaged(document: Any, chance: random.Random) -> Any:
    """Return a copy of `document` with one to three odd, missing or doubled values."""
    copy = json.loads(json.dumps(document))
    for _ in range(chance.randint(1, 3)):
        ways = list(places(copy))
        if not ways:
            break
        *above, last = chance.choice(ways)
        inside = copy
        for key in above:
            inside = inside[key]
        if chance.random() < 0.1:
            del inside[last]
        else:
            inside[last] = deepcopy(chance.choice(ODD))
    return copy


def seeds() -> Iterator[random.Random]:
    until = time.monotonic() + SECONDS
    number = 0
    while number < MIN_CASES or time.monotonic() < until:
        yield random.Random(number)
        number += 1


def check(words: list[str], capsys: pytest.CaptureFixture[str], seed: random.Random) -> None:
    state = seed.getstate()[1][:2]
    code = main(words)
    out, err = capsys.readouterr()
    assert code in (0, 1, 2, 3), (words, state, err[-2000:])
    text = (out + err).replace("\n", "").replace("\t", "")
    unseen = [char for char in text if not char.isprintable()]
    assert not unseen, (words, state, unseen[:5])
    assert code != 2 or err.count("\n") <= 12, err[:500]


def one_line(error: Exception) -> None:
    assert "\n" not in str(error)


SNAPSHOT = json.loads(encode(small_session()))
COMMANDS: dict[str, Callable[[str, str], list[str]]] = {
    "compare": lambda file, good: ["compare", good, file],
    "compare --json": lambda file, good: ["compare", file, good, "--json"],
    "gate": lambda file, good: ["compare", good, file, "--fail-below", "0.9"],
    "report": lambda file, good: ["report", file],
    "markdown": lambda file, good: ["report", file, "--markdown", "-"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_damaged_snapshot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(SNAPSHOT))
    for chance in seeds():
        bad.write_text(json.dumps(damaged(SNAPSHOT, chance)))
        check(COMMANDS[command](str(bad), str(good)), capsys, chance)


RESULT = {
    "date": "20261201-010203", "endpoint_type": "vllm", "backend": "vllm", "model_id": "m",
    "num_prompts": 30, "completed": 30, "failed": 0, "duration": 12.5, "request_rate": "inf",
    "total_input_tokens": 3000, "total_output_tokens": 3000, "request_throughput": 2.4,
    "output_throughput": 240.0, "mean_ttft_ms": 30.0, "median_ttft_ms": 29.0, "std_ttft_ms": 2.0,
    "input_lens": [100] * 30, "output_lens": [100] * 30, "ttfts": [0.03] * 30,
    "itls": [[0.01] * 9] * 30, "errors": [""] * 30,
}  # fmt: skip


def test_a_damaged_result_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(RESULT))
    for chance in seeds():
        bad.write_text(json.dumps(damaged(RESULT, chance)))
        check(["compare", str(good), str(bad), "--fail-below", "0.9"], capsys, chance)
        check(["compare", str(bad), str(good)], capsys, chance)


LINES = [
    {"event": "hello", "t": 100.0, "role": "recording", "pid": 1, "version": "1",
     "wall_time": 1.8e9},
    {"event": "runopened", "t": 100.5, "run": "r", "scenario": "http://h", "workload": "watched",
     "knobs": {}, "device": "cpu"},
    *({"event": "serverstate", "t": 101.0 + n, "gauges": {"requests_running": 2.0},
       "totals": {"generation_tokens": 10.0 * n}} for n in range(60)),
    {"event": "xid", "t": 130.0, "device": "gpu:0", "code": 79, "meaning": "off the bus"},
    {"event": "devicelost", "t": 131.0, "device": "gpu:0", "reason": "lost"},
    {"event": "sample", "t": 132.0, "device": "gpu:0", "values": {"gpu.sm_clock_hz": 1e9}},
]  # fmt: skip


def test_a_damaged_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.jsonl"
    for chance in seeds():
        lines = damaged(LINES, chance)
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        check(["explain", str(file)], capsys, chance)
        check(["explain", str(file), "--json"], capsys, chance)
        try:
            list(read_recording(file))
        except RecordingError as error:
            one_line(error)


def test_the_lines_are_events() -> None:
    for line in LINES:
        decode_event(json.dumps(line))


SETTINGS = {"price": 3, "color": "always", "interval": 0.5, "serve": "127.0.0.1:1", "quiet": True}


def toml(values: dict[str, Any]) -> str:
    """Lines of TOML: texts, numbers, lists and switches are written as in JSON."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    return "\n".join(lines).replace("null", '""')


def test_a_damaged_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gpuconsole.host.settings import SettingsError, load

    file = tmp_path / "config.toml"
    scenario = tmp_path / "s.toml"
    for chance in seeds():
        file.write_text(toml(damaged(SETTINGS, chance)), errors="backslashreplace")
        try:
            load(file, {})
        except SettingsError as error:
            one_line(error)
        values = {"name": "s", "workload": "train", "knobs": {"batch_size": 8}, "description": "d"}
        scenario.write_text(toml(damaged(values, chance)), errors="backslashreplace")
        check(["scenarios", str(scenario)], capsys, chance)


PIECES = ["", '"', "{", "}", "\n", "1e999", "-", "NaN", "\x9b", "9" * 400]


def test_a_damaged_metrics_page() -> None:
    page = 'vllm:num_requests_running{model_name="m",engine="0"} 4.0\n' * 3
    page += 'vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 3.0\n'
    for chance in seeds():
        odd = list(page)
        for _ in range(chance.randint(1, 6)):
            place = chance.randrange(len(odd))
            odd[place] = chance.choice(PIECES)
        try:
            state = server_state(read_families("".join(odd), buckets=True), 0.0)
        except ValueError as error:
            one_line(error)
        else:
            msgspec.json.encode(state)
