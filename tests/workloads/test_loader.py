"""The loader hands out the same batches however its knobs make it do so."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from gpuconsole.workloads.training import loader, vision
from gpuconsole.workloads.training.loader import LoaderStream
from gpuconsole.workloads.training.vision import RECORD, RECORDS, prepare_records
from tests.workloads.running import knobs_of
from tests.workloads.small import CPU


def test_epochs_are_counted_and_samples_handed_over_one_by_one_make_the_same_batch() -> None:
    knobs = knobs_of("vision-healthy", batch_size=4, num_workers=0, width=8, max_train_samples=8)
    task = vision.create(knobs, CPU, 0)
    stacked, listed = (task.open_stream({**knobs, "collate_fn": how}) for how in ("stack", "list"))
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(stacked.next(), listed.next(), strict=True))
    assert stacked.restarts == 2 and stacked.restart_s > 0


@pytest.mark.parametrize("collate", ["stack", "list"])
def test_an_image_in_strips_is_the_same_image(collate: str) -> None:
    knobs = knobs_of("vision-healthy", batch_size=4, num_workers=0, width=8)
    task = vision.create(knobs, CPU, 0)
    whole, strips = (
        task.open_stream(knobs),
        task.open_stream({**knobs, "tensors_per_sample": 5, "collate_fn": collate}),
    )
    assert all(torch.equal(a, b) for a, b in zip(whole.next(), strips.next(), strict=True))


def test_the_loader_hands_out_batches_in_order_or_not() -> None:
    dataset = torch.utils.data.TensorDataset(torch.arange(8))
    for in_order in (True, False):
        stream = LoaderStream(
            dataset, knobs_of("vision-healthy", batch_size=2, num_workers=0, in_order=in_order), 0
        )
        assert stream._loader.in_order is in_order
        stream.close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    vision._opened.cache_clear()
    yield tmp_path
    vision._opened.cache_clear()


def test_records_are_read_from_the_disk_and_batches_stay_the_same(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        prepare_records()
    except ValueError as error:
        pytest.skip(str(error))
    read: list[tuple[int, int]] = []
    preadv = os.preadv

    def counted(descriptor: int, buffers: Any, offset: int) -> int:
        read.append((offset, preadv(descriptor, buffers, offset)))
        return read[-1][1]

    monkeypatch.setattr(os, "preadv", counted)
    knobs = knobs_of("vision-healthy", batch_size=4, num_workers=0, width=8)
    task = vision.create(knobs, CPU, 0)
    plain, reading = task.open_stream(knobs), task.open_stream({**knobs, "storage_reads": 3})
    assert all(torch.equal(a, b) for a, b in zip(plain.next(), reading.next(), strict=True))
    assert (
        len(read) == 3 * 4
        and {size for _, size in read} == {RECORD}
        and len({offset for offset, _ in read}) > 2
    )
    assert prepare_records().stat().st_size == RECORD * RECORDS


def test_a_disk_that_cannot_be_read_directly_is_told_in_one_line(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: Path, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return opened(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)
    knobs = knobs_of("vision-healthy", storage_reads=3)
    with pytest.raises(ValueError, match="O_DIRECT"):
        vision.create(knobs, CPU, 0).check(knobs)


def test_batches_that_do_not_fit_into_shared_memory_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where /dev/shm is full, a DataLoader worker dies with a bus error and no message. Docker's
    default is 64 MB."""
    monkeypatch.setattr(loader, "total_bytes", lambda: 64 * 2**20)
    knobs = knobs_of("vision-healthy", batch_size=64, image_size=224, width=8, num_workers=0)
    task = vision.create(knobs, CPU, 0)
    task.open_stream(knobs).close()  # without workers nothing travels
    task.check({**knobs, "num_workers": 1, "prefetch_factor": 1, "batch_size": 32})
    too_many = {**knobs, "num_workers": 12}
    said = (
        r"/dev/shm has 64 MB, and 12 DataLoader workers keep 25 batches in it, 919 MB: give the"
        r" container more \(docker run --shm-size=8g"
    )
    for refused in (task.check, task.open_stream):
        with pytest.raises(ValueError, match=said) as caught:
            refused(too_many)
        assert "\n" not in str(caught.value)
    monkeypatch.setattr(loader, "total_bytes", lambda: None)
    task.check(too_many)  # a system without /dev/shm


def test_the_size_of_shared_memory_is_that_of_the_system() -> None:
    found = loader.total_bytes()
    assert found is None or found == shutil.disk_usage("/dev/shm").total
