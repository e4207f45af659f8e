"""What is kept of loading belongs to the place in the program that makes DataLoaders, not to one of
them."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from gpuconsole.agent.hooks.evidence import loading as module
from gpuconsole.agent.hooks.evidence.loading import Loading

DATA = list(range(64))


@pytest.fixture
def loading() -> Loading:
    return Loading()


def make(loading: Loading, shuffle: bool = True) -> DataLoader[int]:
    """A helper of the program that makes all its loaders."""
    loader: DataLoader[int] = DataLoader(DATA, 8, shuffle=shuffle)  # type: ignore[arg-type]
    loading.made(loader)
    return loader


def epoch(loading: Loading, loader: DataLoader[int], batches: int = 8) -> None:
    """What the hooks report of an epoch."""
    place = loading.place_of(loader)
    loading.epoch_opened(loader, 0.001)
    for begun in range(batches):
        loading.batch_begins(float(begun))
        loading.batch_ends(place, float(begun))


def test_the_totals_of_a_loader_made_anew_in_each_epoch_grow(loading: Loading) -> None:
    seen = [0.0]
    for _ in range(5):
        epoch(loading, make(loading))
        seen.append(loading.read()["loader.here_s"])
    assert seen == sorted(set(seen)), "each epoch adds to the totals"
    assert loading.read()["loader.restarts"] == 4


def test_thousands_of_loaders_of_one_line_are_one_place(loading: Loading) -> None:
    places = set()
    for _ in range(3000):
        loader = make(loading)
        places.add(loading.place_of(loader))
        del loader
    gc.collect()
    assert len(places) == 1
    assert len(loading._places) == 1 and len(loading._place_of) == 0


def test_a_loader_with_the_id_of_an_earlier_one_is_not_taken_for_it(loading: Loading) -> None:
    training = make(loading, shuffle=True)
    epoch(loading, training)
    code = loading.place_of(training).code
    del training
    gc.collect()
    for _ in range(50):  # one of them may get the same id
        assert loading.place_of(make(loading, shuffle=False)).code != code


def test_a_helper_makes_the_loaders_of_training_and_evaluation(loading: Loading) -> None:
    training, evaluation = make(loading), make(loading)
    assert loading.place_of(training) is not loading.place_of(evaluation), "two calls of the helper"
    of_both = [make(loading, shuffle) for shuffle in (True, False)]
    assert [type(loader.sampler) for loader in of_both] == [RandomSampler, SequentialSampler]
    assert loading.place_of(of_both[0]) is not loading.place_of(of_both[1]), (
        "one call, and another order"
    )


def test_an_evaluation_with_fewer_batches_adds_nothing(loading: Loading) -> None:
    training, evaluation = make(loading), make(loading)
    for _ in range(3):
        epoch(loading, training)
        before = loading.read()
        epoch(loading, evaluation, 4)
        assert loading.read() == before


def test_totals_never_go_back_where_loaders_alternate(loading: Loading) -> None:
    loaders = [make(loading), make(loading)]
    seen = [0.0]
    for number in range(8):
        epoch(loading, loaders[number % 2], 8 + number)
        seen.append(loading.read()["loader.here_s"])
    assert seen == sorted(seen)


def test_a_loader_that_was_not_seen_while_it_was_made(loading: Loading) -> None:
    first, second = (DataLoader(DATA, 8) for _ in range(2))  # type: ignore[arg-type]
    assert loading.place_of(first) is loading.place_of(first)
    assert loading.place_of(first) is not loading.place_of(second)


def test_a_dataset_without_a_length_has_a_place_too(loading: Loading) -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(DATA)

    places = set()
    for _ in range(2):
        loader = DataLoader(Stream(), 8)
        loading.made(loader)
        places.add(loading.place_of(loader))
        epoch(loading, loader)
    assert len(places) == 1 and loading.read()["loader.restarts"] == 1


def test_a_loader_that_cannot_be_a_key(loading: Loading) -> None:
    class Equal(DataLoader[int]):
        def __eq__(self, other: object) -> bool:
            return True

    loader = Equal(DATA, 8)  # type: ignore[arg-type]
    loading.made(loader)
    assert loading.place_of(loader) is loading.place_of(loader)


def test_workers_of_each_epoch_count(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of an epoch are read at its start and with its batches, so that a short epoch
    counts too."""
    clock, cpu = iter(range(1000)), iter(range(1000))
    pids: Iterator[int] = iter(range(1, 100))
    present = [0]
    monkeypatch.setattr(module, "worker_pids", lambda watch: present)
    monkeypatch.setattr(module, "process_cpu_s", lambda pid: (0.5 * next(cpu), 0.0))
    monkeypatch.setattr(module, "now", lambda: float(next(clock)))
    epoch(loading, make(loading))
    for _ in range(3):
        present[0] = next(pids)
        epoch(loading, make(loading), 3)
    counters = loading.read()
    assert counters["loader.workers_s"] > 3 and counters["loader.workers_cpu_s"] > 1


def test_own_process_has_readings() -> None:
    assert module.process_cpu_s(os.getpid())[0] > 0


def test_the_tensors_of_a_batch_are_counted_without_running_code_of_the_program() -> None:
    class Graphs:
        def __init__(self) -> None:
            self._store = {"x": torch.zeros(4, 8), "edges": torch.zeros(2, 3, dtype=torch.int64)}

        def __getattribute__(self, name: str) -> object:
            raise AssertionError(name)

        def __iter__(self) -> object:
            raise AssertionError

    class Pair(NamedTuple):
        image: torch.Tensor
        label: int

    assert module.size_of(torch.zeros(10)) == (1, 40)
    assert module.size_of(
        [torch.zeros(2), {"y": torch.zeros(2, dtype=torch.uint8)}, "name", None, 3]
    ) == (2, 10)
    assert module.size_of(Graphs()) == (2, 128 + 48)
    assert module.size_of(Pair(torch.zeros(2), 1)) == (1, 8)
    assert module.size_of("text") == (0, 0)
    assert module.size_of([torch.zeros(2)] * 256) == (256, 2048)
    # too many parts to look at in the training thread
    assert module.size_of([[[0] * 64] * 64] * 64 + [torch.zeros(2)]) == (0, 0)


def test_one_batch_of_the_trainings_loader_is_looked_at(loading: Loading) -> None:
    assert loading.facts() == {}
    loading.batch = module.size_of([torch.zeros(2), torch.zeros(3)])
    assert loading.facts() == {"loader.batch_tensors": 2.0, "loader.batch_bytes": 20.0}
    loading.batch = (0, 0)
    assert loading.facts() == {}, "a batch of numbers or of another library"


def test_the_batch_is_one_of_the_training_where_a_validation_has_come_first() -> None:
    loading = module.Loading()
    validation, training = module.LoaderPlace(0), module.LoaderPlace(1)
    loading.batch_ends(validation, 0.0)
    loading.batch = (1, 8)
    for _ in range(2):
        loading.batch_ends(training, 0.0)
    assert loading.place is training and loading.batch is None


def test_a_step_that_is_only_counted_has_as_many_batches_as_a_marked_one(loading: Loading) -> None:
    loading.place = place = loading.place_of(make(loading))
    for batches in (1, 1, 1, 2):  # the last step of an epoch asks once more
        place.batches += batches
        loading.step_ended(True)
    for _ in range(10):
        loading.step_ended(False)
    assert place.batches == 5 + 10
