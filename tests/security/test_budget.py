"""What a file from elsewhere may cost: bytes, memory, numbers, times. Each file took gigabytes, or
hung, or ended with a traceback, whose exit code meant "regression"."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gpuconsole.cli.main import main
from gpuconsole.engine import clients, history
from gpuconsole.engine.clients import read_results
from gpuconsole.engine.clients.fields import ClientFileError, finite_json
from gpuconsole.engine.history import read_history
from gpuconsole.model.encoding import has_large_number
from gpuconsole.wire import recording
from gpuconsole.wire.recording import RecordingError, read_recording

LARGE = 16 * 2**20
PARTS: dict[str, Callable[[int], bytes]] = {
    "numbers": lambda size: b'{"backend":"vllm","ttfts":[' + b"0," * (size // 2) + b"0]}",
    "lists": lambda size: b'{"backend":"vllm","itls":[' + b"[]," * (size // 3) + b"[]]}",
    "keys": lambda size: b"{" + b"".join(b'"%07x":1,' % n for n in range(size // 12)) + b'"a":1}',
    "objects in keys": lambda size: (
        b"{" + b"".join(b'"%07x":{},' % n for n in range(size // 13)) + b'"a":1}'
    ),
    "lines": lambda size: b"{}\n" * (size // 3),
}


@pytest.mark.parametrize("kind", PARTS)
def test_a_result_file_that_would_take_far_more_memory_than_it_has_bytes_is_refused(
    kind: str,
) -> None:
    data = PARTS[kind](LARGE)
    tracemalloc.start()
    try:
        with pytest.raises(ClientFileError, match="MiB of memory"):
            read_results(data)
        assert tracemalloc.get_traced_memory()[1] < len(data) + 2**20
    finally:
        tracemalloc.stop()


def test_a_large_honest_result_is_read() -> None:
    """The shapes of vLLM and of AIPerf, with 20 MiB."""
    gaps = ", ".join(f"{0.01 + n * 1e-9:.10f}" for n in range(400))
    lists = ", ".join(f"[{gaps}]" for _ in range(3500))
    clients.check_memory(f'{{"backend": "vllm", "itls": [{lists}]}}'.encode())
    values = ", ".join(
        f'"metric_{n}_of_a_request": {{"value": {n}.25, "unit": "ms"}}' for n in range(40)
    )
    line = f'{{"metadata": {{"request_start_ns": 1, "x": 2}}, "metrics": {{{values}}}}}\n'
    clients.check_memory(line.encode() * (20 * 2**20 // len(line)))


def test_words_that_json_does_not_have_take_little_memory() -> None:
    data = b'{"a":[' + b"NaN," * (2**20 // 4) + b'-Infinity],"NaN":"NaN [NaN]"}'
    tracemalloc.start()
    try:
        replaced = finite_json(data)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(data)
    finally:
        tracemalloc.stop()
    assert replaced.startswith(b'{"a":[null,null,') and b"null]" in replaced


# --- recordings and rings -------------------------------------------------------------------------

HELLO = {"event": "hello", "t": 100.0, "role": "recording", "pid": 1, "version": "1",
         "wall_time": 1.8e9}  # fmt: skip


def line(**fields: object) -> bytes:
    return msgspec.json.encode({"event": "serverstate", "t": 101.0, **fields}) + b"\n"


def write(path: Path, *lines: bytes, hello: dict[str, object] | None = None) -> Path:
    data = msgspec.json.encode({**HELLO, **(hello or {})}) + b"\n" + b"".join(lines)
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return path


GAUGES = {"gauges": {"requests_running": 1.0}, "totals": {}}
TIMES = {
    "wall_time 1e300": ({"wall_time": 1e300}, {}),
    "wall_time -1e18": ({"wall_time": -1e18}, {}),
    "year 10000": ({"wall_time": 253402300800.0}, {}),
    "begin 1e300": ({"t": 1e300}, {}),
    "far apart": ({}, {"t": 1e12}),
    "before": ({}, {"t": -1e12}),
}


@pytest.mark.parametrize("case", TIMES)
def test_times_out_of_range_are_one_line(
    tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hello, fields = TIMES[case]
    path = write(tmp_path / "r.jsonl", line(**GAUGES, **fields), hello=dict(hello))
    for words in (["explain", str(path)], ["explain", str(path), "--at", "03:14"]):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "out of range" in error, error


@pytest.mark.parametrize(
    "number", [b"1e308", b"-1e41", b"1" * 401, b"9" * 5000, b"1E+00300"], ids=len
)
def test_numbers_out_of_range_are_one_line(tmp_path: Path, number: bytes) -> None:
    path = write(
        tmp_path / "r.jsonl",
        b'{"event":"serverstate","t":101.0,"gauges":{"requests_running":' + number + b"}}\n",
        line(**GAUGES),
    )
    with pytest.raises(RecordingError, match="line 2: ") as refused:
        list(read_recording(path))
    assert "\n" not in str(refused.value)


def test_letters_and_usual_numbers_are_no_large_number() -> None:
    for text in ("1e+16", "[1e15, 123456789012345678]", '"hash e12 1e300"', '{"1e300": 0.5e-300}'):
        assert not has_large_number(text.encode()), text
    for text in ("[1e41]", '{"a": {"b": [-1e300]}}', "1" + "0" * 400):
        assert has_large_number(text.encode()), text


def test_all_files_of_a_ring_together_have_one_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_BYTES", 100_000)
    many = [line(**GAUGES)] * 500
    size = sum(map(len, many))
    for n in range(4):
        write(tmp_path / f"2026-11-29T0{n}0000.jsonl.gz", *many)
    read, notes = read_history(tmp_path)
    assert 2 * size < 100_000 < 4 * size
    assert read.begun is not None and any("too large" in note for note in notes), notes


def test_names_and_windows_of_a_ring_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_SIZE", 500)
    lines = [
        line(t=100.0 + n, gauges={f"g{n}_{m}": 1.0 for m in range(100)}, totals={})
        for n in range(10)
    ]
    write(tmp_path / "2026-11-29T000000.jsonl.gz", *lines)
    read, notes = read_history(tmp_path)
    assert read.size <= 600 and any("too many readings" in note for note in notes), notes


def test_a_pipe_in_a_folder_that_is_compared_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side in ("old", "new"):
        (tmp_path / side).mkdir()
        os.mkfifo(tmp_path / side / "run.json")
    assert (
        main(["compare", str(tmp_path / "old"), str(tmp_path / "new"), "--fail-below", ".9"]) == 2
    )
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "text",
    ["a = " + "9" * 5000, "[" * 20_000, 'quiet = "' + "x" * 9],
    ids=["digits", "levels", "no end"],
)
def test_a_damaged_configuration_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
) -> None:
    from gpuconsole.host.settings import SettingsError, load

    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(SettingsError) as refused:
        load(tmp_path / "config.toml", {})
    assert "\n" not in str(refused.value)
    (tmp_path / "scenario.toml").write_text(text)
    assert main(["run", str(tmp_path / "scenario.toml"), "--headless"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# --- the exit code of a traceback -----------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("odd"), OverflowError(), MemoryError(), OSError(75)])
def test_a_traceback_never_ends_with_the_code_of_a_regression(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    from gpuconsole.cli import main as module

    def fail(argv: list[str]) -> int:
        raise error

    monkeypatch.setattr(module, "_run", fail)
    assert main(["compare", "a", "b", "--fail-below", "0.9"]) == 70
    assert type(error).__name__ in capsys.readouterr().err


def test_a_damaged_snapshot_of_a_gate_is_bad_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpuconsole.model.snapshot import encode
    from tests.report.small_session import small_session

    whole = json.loads(encode(small_session()))
    for value in (-1e308, 1e308, -1.0, 0.0):
        for run in whole["runs"]:
            for name, series in run.get("series", {}).items():
                if name.startswith("workload."):
                    series["v"] = [value] * len(series["v"])
        path = tmp_path / "run.json"
        path.write_text(json.dumps(whole))
        code = main(["compare", str(path), str(path), "--fail-below", "0.9"])
        assert code in (0, 2, 3), capsys.readouterr()
