"""A ring of recordings: a folder that holds the last hours in a bounded number of bytes."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from gpuconsole.engine.history import read_history
from gpuconsole.engine.recording import SessionRecorder
from gpuconsole.model.machine import Process
from gpuconsole.wire import recording
from gpuconsole.wire.events import (
    AnyEvent,
    Hello,
    Note,
    Processes,
    Sample,
    ServerState,
    Step,
    Steps,
)
from gpuconsole.wire.recording import RecordingError, RingWriter, read_recording, ring_files
from tests.fakes.server_day import WALL, day


def written(folder: Path, events: Iterable[AnyEvent], **limits: float) -> RingWriter:
    """A ring with these events, each at its time."""
    now = [0.0]
    ring = RingWriter(folder, clock=lambda: now[0], wall=lambda: WALL + now[0], **limits)  # type: ignore[arg-type]
    for event in events:
        now[0] = event.t
        ring.write(event)
    return ring


def test_only_the_last_hours_are_kept(tmp_path: Path) -> None:
    written(tmp_path, day({}, seconds=1000), kept_s=400, file_s=100).close()
    history, notes = read_history(tmp_path)
    assert not notes and history.begun is not None
    assert 400 <= history.ended - history.begun <= 620 and history.ended == pytest.approx(
        WALL + 999
    )


def test_a_ring_stays_below_its_bytes_and_reads_more_seldom_before_it_loses_hours(
    tmp_path: Path,
) -> None:
    most = 40_000
    written(
        tmp_path, day({}, seconds=3000, gpus=4), kept_s=1000, file_s=100, most_bytes=most
    ).close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 1.3 * most
    history, _ = read_history(tmp_path)
    assert history.begun is not None and history.ended - history.begun > 700
    last = list(read_recording(ring_files(tmp_path)[-1]))
    assert sum(isinstance(event, ServerState) for event in last) < 60  # of 100 seconds


def test_a_day_of_one_gpu_takes_less_than_50_mb(tmp_path: Path) -> None:
    """An hour of it, times 24."""
    written(tmp_path, day({}, seconds=3600)).close()
    assert 24 * sum(file.stat().st_size for file in tmp_path.iterdir()) < 50e6


def test_each_file_is_a_recording_that_begins_with_what_stays_true(tmp_path: Path) -> None:
    written(tmp_path, day({}, seconds=300), file_s=100).close()
    files = ring_files(tmp_path)
    assert len(files) == 3
    for file in files:
        first, *others = read_recording(file)
        assert isinstance(first, Hello)
        begin = [
            type(event).__name__ for event in others if not isinstance(event, ServerState | Sample)
        ]
        assert begin == ["Devices", "Processes"]
        assert file.stat().st_mode & 0o777 == 0o600


def test_what_a_ring_leaves_out(tmp_path: Path) -> None:
    """Steps, command lines, other users' names, more than one reading per second, and lists of the
    same processes."""
    foreign = Process(
        pid=5, device="gpu:0", name="python", user="somebody", uid=12345,
        command="python secret.py", launcher="torchrun secret.py", state="S",
    )  # fmt: skip
    later = msgspec.structs.replace(foreign, state="R", host_memory_bytes=7, memory_time_ratio=0.5)
    events: list[AnyEvent] = [
        Processes(t=0.0, processes=[foreign]),
        Processes(t=0.05, processes=[later]),
        Steps(
            t=0.1,
            steps=[Step(1, 0.1, 0.1, 1, 1, ())],
            cpu_s=0.0,
            runq_s=0.0,
            overhead_s=0.0,
            memory_bytes=None,
        ),
    ]
    events += [
        Sample(t=0.2 * number, device="cpu", values={"host.cores_busy": 1.23456789})
        for number in range(11)
    ]
    written(tmp_path, events).close()
    kept = list(read_recording(ring_files(tmp_path)[0]))
    assert not any(isinstance(event, Steps) for event in kept)
    assert sum(isinstance(event, Processes) for event in kept) == 1
    samples = [event for event in kept if isinstance(event, Sample)]
    assert len(samples) == 3 and samples[0].values == {"host.cores_busy": 1.2346}
    assert "secret" not in str(kept) and "somebody" not in str(kept)


def test_a_ring_that_is_being_written_can_be_read(tmp_path: Path) -> None:
    ring = written(tmp_path, day({}, seconds=300), file_s=100)
    history, notes = read_history(tmp_path)
    assert not notes and history.ended >= WALL + 280  # a crash loses ten seconds
    ring.close()


def test_a_ring_goes_on_in_its_folder(tmp_path: Path) -> None:
    written(tmp_path, day({}, seconds=100)).close()
    now = [500.0]
    again = RingWriter(tmp_path, clock=lambda: now[0], wall=lambda: WALL + now[0])
    again.write(Sample(t=500.0, device="cpu", values={"host.cores_busy": 1.0}))
    again.close()
    history, _ = read_history(tmp_path)
    assert (history.begun, history.ended) == (WALL, WALL + 500)


def cut(whole: bytes) -> bytes:
    return whole[:-200]


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        lambda whole: b"",
        lambda whole: bytes(len(whole)),
        lambda whole: b"nothing",
        lambda whole: whole[:5],
        lambda whole: whole[: len(whole) // 2] + bytes(50) + whole[len(whole) // 2 + 50 :],
        lambda whole: gzip.compress(b"hello"),
        lambda whole: gzip.compress(b""),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_damaged_file_is_one_line_and_the_rest_is_read(
    tmp_path: Path, damage: Callable[[bytes], bytes], place: int
) -> None:
    written(tmp_path, day({}, seconds=300), file_s=100).close()
    file = ring_files(tmp_path)[place]
    file.write_bytes(damage(file.read_bytes()))
    history, notes = read_history(tmp_path)
    # the last file may be written just now
    assert [str(file) in note for note in notes] == ([] if damage is cut and place == 2 else [True])
    assert history.begun is not None and history.ended - history.begun > 180


def test_a_ring_without_a_file_that_can_be_read_is_an_error(tmp_path: Path) -> None:
    written(tmp_path, day({}, seconds=300), file_s=100).close()
    for file in ring_files(tmp_path):
        file.write_bytes(b"")
    with pytest.raises(RecordingError, match="empty"):
        read_history(tmp_path)


def test_a_file_is_never_empty(tmp_path: Path) -> None:
    ring = written(tmp_path, day({}, seconds=1))
    read_history(tmp_path)
    ring.close()


def test_two_watchers_of_one_server_that_start_in_one_second(tmp_path: Path) -> None:
    rings = [written(tmp_path, day({60.0: "restart"}, seconds=100), file_s=40) for _ in range(2)]
    for ring in rings:
        ring.close()
    assert len(ring_files(tmp_path)) == 6
    history, notes = read_history(tmp_path)
    assert not notes and [event.name for event in history.events] == ["restart"]
    assert history.ended == pytest.approx(WALL + 99)


def test_two_servers_in_one_folder_are_never_mixed(tmp_path: Path) -> None:
    urls = ["http://127.0.0.1:8000", "http://127.0.0.1:8001"]
    for seed, url in enumerate(urls):
        written(tmp_path, day({}, seconds=100, seed=seed, url=url), file_s=40).close()
    with pytest.raises(RecordingError, match=f"2 servers, {urls[0]}, {urls[1]}: .*--url"):
        read_history(tmp_path)
    for url in urls:
        history, notes = read_history(tmp_path, f"{url}/")
        assert not notes and not history.events and history.ended == pytest.approx(WALL + 99)
    with pytest.raises(RecordingError, match=urls[0]):
        read_history(tmp_path, "http://127.0.0.1:9999")


@pytest.mark.parametrize("unwritten", [2**21, 1000])
def test_a_ring_goes_on_when_a_full_disk_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unwritten: int
) -> None:
    """What a disk could not take is written later, also over the end of an hour; where it is too
    much, a gap remains."""
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(recording, "MAX_UNWRITTEN", unwritten)
    now, notes, recorder = [0.0], list[Note | None](), SessionRecorder()
    recorder._writer = ring = RingWriter(
        tmp_path, clock=lambda: now[0], wall=lambda: WALL + now[0], file_s=200
    )
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for event in day({}, seconds=600):
            now[0] = event.t
            full = 100 <= event.t < 250  # no file can grow beyond 50 bytes
            resource.setrlimit(resource.RLIMIT_FSIZE, (50, before[1]) if full else before)
            notes.append(recorder.write(event))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert recorder.close() == ""
    stopped, goes_on = (note for note in notes if note is not None)
    assert (stopped.level, goes_on.level) == ("error", "warning")
    assert "stopped: File too large" in stopped.text and "goes on" in goes_on.text
    history, damaged = read_history(tmp_path)
    readings = sum(
        isinstance(event, ServerState) for file in ring_files(tmp_path) for event in readable(file)
    )
    assert history.ended == pytest.approx(WALL + 599)
    if unwritten > 1000:
        assert "nothing is lost" in goes_on.text and not damaged and readings == 600
    else:
        assert 400 < readings < 500 and history.silences and len(damaged) == 1
        (begun, ended), *_ = history.silences
        assert 120 < ended - begun < 180 and f"{ring.lost_s:.0f} s are lost" in goes_on.text


def readable(file: Path) -> Iterator[AnyEvent]:
    with contextlib.suppress(RecordingError):
        yield from read_recording(file)


def test_an_empty_folder_is_no_ring(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="has no recording"):
        read_history(tmp_path)
