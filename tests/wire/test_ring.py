"""A ring of recordings: a folder that holds the last hours in a bounded number of bytes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from gpuconsole.engine.history import read_history
from gpuconsole.model.machine import Process
from gpuconsole.wire.events import AnyEvent, Hello, Processes, Sample, ServerState, Step, Steps
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
    """Steps, command lines, other users' names, and more than one reading per second."""
    foreign = Process(
        pid=5, device="gpu:0", name="python", user="somebody", uid=12345, command="python secret.py"
    )
    events: list[AnyEvent] = [
        Processes(t=0.0, processes=[foreign]),
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


def test_damage_of_an_older_file_is_a_note(tmp_path: Path) -> None:
    written(tmp_path, day({}, seconds=300), file_s=100).close()
    first = ring_files(tmp_path)[0]
    first.write_bytes(first.read_bytes()[:-200])
    history, notes = read_history(tmp_path)
    assert len(notes) == 1 and str(first) in notes[0] and history.ended == pytest.approx(WALL + 299)
    first.write_bytes(b"nothing")
    with pytest.raises(RecordingError, match="damaged"):
        read_history(tmp_path)


def test_an_empty_folder_is_no_ring(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="has no recording"):
        read_history(tmp_path)
