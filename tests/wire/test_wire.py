import socket
from pathlib import Path
from typing import get_args

import pytest

from gpuconsole.wire.channel import REPLACEABLE, ChildChannel
from gpuconsole.wire.events import (
    AnyEvent,
    MarkedSteps,
    Note,
    Progress,
    Sample,
    SetKnobs,
    decode_command,
    decode_event,
    encode,
)
from gpuconsole.wire.recording import RecordingError, RecordingWriter, read_recording


def test_commands_and_events_keep_their_types() -> None:
    command = SetKnobs(
        3, {"batch_size": 8, "pin_memory": True, "storage_latency_ms": 2.5, "precision": "bf16"}, 2
    )
    assert decode_command(encode(command)) == command
    event = Sample(1.5, "gpu:0", {"gpu.power_w": 300.0})
    assert decode_event(encode(event)) == event


def test_what_a_full_pipe_drops_are_events() -> None:
    kinds = (*get_args(AnyEvent), MarkedSteps)
    assert {kind.__struct_config__.tag for kind in kinds} >= REPLACEABLE


def test_a_full_pipe_drops_samples_and_counts_them_but_keeps_answers() -> None:
    ours, theirs = socket.socketpair()
    channel = ChildChannel(theirs.detach())
    big = Sample(0.0, "cpu", {f"host.{i}": float(i) for i in range(20_000)})
    for _ in range(40):
        channel.send(big)
    assert channel.dropped > 0
    channel.send(Progress(0.0, "last words"))
    received = b""
    ours.setblocking(False)
    while b"last words" not in received:
        try:
            received += ours.recv(1 << 20)
        except BlockingIOError:
            channel.flush()
    assert all(decode_event(line) for line in received.splitlines())


def test_a_recording_cut_short_by_a_crash_is_read_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    writer = RecordingWriter(path)
    writer.write(Note(1.0, "whole"))
    writer.close()
    path.write_bytes(path.read_bytes() + b'{"event":"note","t":2,"te')
    events = list(read_recording(path))
    assert [event.text for event in events if isinstance(event, Note)] == ["whole"]


@pytest.mark.parametrize(
    "content", [b"", b"hello\n", b'{"event":"note","t":1,"text":"no header"}\n', b"\xff\xfe\n"]
)
def test_what_is_no_recording_is_said(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(content)
    with pytest.raises(RecordingError):
        list(read_recording(path))
