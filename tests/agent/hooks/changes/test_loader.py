"""Live changes of a DataLoader in one process: the program sees the same samples in the same order, whatever happens to the new workers."""

from __future__ import annotations

import collections
import ctypes
import gc
import itertools
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import types
import warnings
import weakref
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.json import encode
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate

from gpuconsole.agent.hooks import job as hooks_of_job
from gpuconsole.agent.hooks.changes import control
from gpuconsole.agent.hooks.changes import loader as loaders_of
from gpuconsole.agent.hooks.changes.change import CHANGES_NUMERICS, Refused, site
from gpuconsole.agent.hooks.changes.control import FIRST_BATCHES, UNSEEN
from gpuconsole.agent.hooks.changes.loader import TOO_SHORT, NumWorkers, PinMemory, PrefetchFactor, control_of, lost
from gpuconsole.agent.hooks.watch import Watch
from tests.agent.hooks.changes.loaders import Numbers, compare, hooked, refusal, workers_alive
from tests.matrix import matrix
from tests.waiting import wait_until

PATIENCE_S = 20.0
WORKERS = NumWorkers()


@pytest.fixture
def watch() -> Iterator[Watch]:
    with warnings.catch_warnings(), hooked() as watch:
        warnings.simplefilter("ignore")
        yield watch


def train(watch: Watch, loader: Any, num_workers: int, *, at: int = 2, step_s: float = 0.002) -> tuple[list[int], str | None, float]:
    """One epoch with a change after step `at`. Returns the samples that the program saw, the reason of a refusal, and the seconds until
    the answer. The program waits with its last batches until the answer has come."""
    seen, answer, asked, answered = list[int](), None, 0.0, 0.0
    under_way = False
    for step, (_, index) in enumerate(loader):
        seen += index.tolist()
        time.sleep(step_s)
        try:
            if step == at:
                asked = time.monotonic()
                WORKERS.set(watch, num_workers)
                under_way = True
            while under_way and (step > at):
                under_way = WORKERS.pending(watch)
                if under_way and step < len(loader) - 20:
                    break
                time.sleep(0.01 if under_way else 0.0)
        except Refused as refused:
            answer, under_way = str(refused), False
        if not answered and not under_way and step >= at:
            answered = time.monotonic()
    return seen, answer, answered - asked


class Faulty(Dataset[Any]):
    """Works in the process that made it. In workers, samples from `first` on fail."""

    def __init__(self, fault: str, first: int = 0) -> None:
        self.fault, self.first, self.home = fault, first, os.getpid()

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if os.getpid() != self.home and index >= self.first:
            if self.fault == "raises":
                raise KeyError("only here")
            if self.fault == "dies":
                os._exit(3)
            if self.fault == "hangs":
                time.sleep(1000)
        return (torch.rand(1) if self.fault == "random" else torch.tensor([float(index)])), index


@pytest.mark.slow
def test_random_changes_over_epochs(watch: Watch) -> None:
    """Programs with own samplers, persistent workers and breaks. `benchmarks/own_job/loader_changes.py` makes 1 000 such changes on two ranks."""
    changers = []
    for seed in (0, 2, 4, 7, 20):
        same, changer = compare(watch, seed)
        assert same, seed
        changers.append(changer)
    assert sum(changer.done for changer in changers) >= 20
    assert not [reason for changer in changers for reason in changer.refused]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raises", "KeyError: 'only here'"),
        ("dies", "died before it had made a batch"),
        ("random", "the dataset is random"),
    ],
)
def test_a_rehearsal_finds_what_does_not_work(watch: Watch, fault: str, words: str) -> None:
    loader = DataLoader(Faulty(fault), 4)
    seen, answer, seconds = train(watch, loader, 2)
    assert answer is not None and words in answer
    assert seen == list(range(400))
    assert seconds < PATIENCE_S
    assert WORKERS.read(watch) == 0
    assert not workers_alive()
    assert WORKERS.effect_here(watch) == ("changes numerics" if fault == "random" else "same samples")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_that_is_left_early_leaves_the_programs_own_generator_as_without_us(watch: Watch, workers: int) -> None:
    """RandomSampler draws from it once more at its end. New workers ask the sampler earlier, so they may have come to that end."""

    def program(change: bool) -> list[int]:
        options = {"num_workers": 1, "prefetch_factor": 1, "persistent_workers": True} if workers else {}
        loader = DataLoader(Faulty("none"), 40, shuffle=True, generator=torch.Generator().manual_seed(3), **options)
        seen = []
        for stop in (8, 20):
            for step, (_, index) in enumerate(loader):
                seen += index.tolist()
                if change and step == 0 and stop == 8:
                    WORKERS.set(watch, 2)
                time.sleep(0.3 if change and WORKERS.pending(watch) else 0.02)  # a busy machine needs more time to rehearse
                if step == stop:
                    break
        assert not change or WORKERS.read(watch) == 2
        return seen

    assert program(True) == program(False)


def test_workers_that_hang_are_refused(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuconsole.agent.hooks.changes.rehearsal.LIMIT_S", 0.5)
    loader = DataLoader(Faulty("hangs"), 4)
    seen, answer, _ = train(watch, loader, 2, step_s=0.01)
    assert answer is not None and "made no batch within" in answer
    assert seen == list(range(400))
    assert not workers_alive()


@pytest.fixture
def by_forkserver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default from Python 3.14 on."""
    monkeypatch.setattr(multiprocessing.context._default_context, "_actual_context", multiprocessing.get_context("forkserver"))


@pytest.mark.slow
def test_workers_that_import_the_program_first_have_longer(watch: Watch, monkeypatch: pytest.MonkeyPatch, by_forkserver: None) -> None:
    """Each imports torch, which takes longer than the limit of workers that are forked."""
    monkeypatch.setattr("gpuconsole.agent.hooks.changes.rehearsal.LIMIT_S", 0.5)
    loader = DataLoader(Faulty("none"), 4)
    seen, answer, _ = train(watch, loader, 2, step_s=0.1)
    assert answer is None and WORKERS.read(watch) == 2
    assert seen == list(range(400))


def test_a_script_that_workers_would_run_again_is_no_subject_of_a_trial(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, by_forkserver: None
) -> None:
    """The finding says so before anybody asks for the trial."""
    iterator = iter(loader := DataLoader(Faulty("none"), 4))
    next(iterator)
    assert loaders_of.training_loader(watch) == (loader, iterator) and not WORKERS.why_fixed(watch)
    monkeypatch.setattr(loaders_of, "_main_is_guarded", lambda: False)
    assert "by forkserver here, and the script has no `if __name__ == '__main__'`" in WORKERS.why_fixed(watch)
    assert not PrefetchFactor().why_fixed(watch)
    with pytest.raises(Refused, match="forkserver"):
        WORKERS.set(watch, 2)


@pytest.mark.parametrize("fault", ["raises", "dies", "hangs"])
def test_workers_that_fail_later_are_replaced(watch: Watch, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr("gpuconsole.agent.hooks.changes.servers.HANG_S", 0.5)
    loader = DataLoader(Faulty(fault, first=200), 4)
    seen, answer, _ = train(watch, loader, 2)
    assert answer is None
    assert seen == list(range(400))
    assert WORKERS.read(watch) == 0
    assert not workers_alive()


def test_an_error_of_the_dataset_is_raised_as_without_us(watch: Watch) -> None:
    class Broken(Numbers):
        def __getitem__(self, index: int) -> Any:
            if index == 300:
                raise ValueError("sample 300 is broken")
            return torch.zeros(1), index

    loader = DataLoader(Broken(400), 4)
    with pytest.raises(ValueError, match=r"^sample 300 is broken$"):
        train(watch, loader, 2)
    assert not loaders_of.under_way() and lost == [f"{loaders_of.FALLEN}: ValueError: sample 300 is broken"]


def test_a_dataset_that_spawn_cannot_pickle(watch: Watch) -> None:
    class Local(Numbers):
        """A class in a function cannot be pickled."""

        def __getitem__(self, index: int) -> Any:
            return torch.zeros(1), index

    loader = DataLoader(Local(400), 4)
    loader._DataLoader__multiprocessing_context = multiprocessing.get_context("spawn")
    seen, answer, _ = train(watch, loader, 2)
    assert answer is not None and "workers could not be started" in answer and "Local" in answer
    assert seen == list(range(400))
    assert not workers_alive()


def test_a_script_without_a_main_guard_is_not_run_again(watch: Watch, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('trains')\n")
    monkeypatch.setattr("sys.modules", {**__import__("sys").modules, "__main__": type("Main", (), {"__file__": str(script)})})
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False: "forkserver")
    from gpuconsole.agent.hooks.changes import loader as changes

    changes._main_is_guarded.cache_clear()
    seen, answer, _ = train(watch, DataLoader(Faulty("none"), 4), 2)
    changes._main_is_guarded.cache_clear()
    assert answer is not None and "forkserver" in answer and "__name__" in answer
    assert seen == list(range(400))


def test_an_iterable_dataset_is_refused(watch: Watch) -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(range(8))

    loader = DataLoader(Stream(), 4)
    iterator = iter(loader)
    next(iterator)
    assert "divides its samples" in WORKERS.why_fixed(watch)
    with pytest.raises(Refused, match="divides its samples"):
        WORKERS.set(watch, 2)


def test_a_sampler_that_draws_for_each_batch_is_refused(watch: Watch) -> None:
    """Asked earlier, it would take other random numbers than the program gave it."""

    class Drawing(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            for _ in range(400):
                yield random.randrange(400)

        def __len__(self) -> int:
            return 400

    random.seed(1)
    expected = [random.randrange(400) for _ in range(400)]
    random.seed(1)
    seen, answer, _ = train(watch, DataLoader(Faulty("none"), 4, sampler=Drawing()), 2)
    assert answer is not None and "random generators" in answer
    assert seen == expected


def test_the_next_loader_of_a_random_dataset_is_known_as_random(watch: Watch) -> None:
    """Programs make a new DataLoader in each epoch. The validation data have the class of the training data, and another length."""

    class Validation(Faulty):
        def __len__(self) -> int:
            return 40

    _, answer, _ = train(watch, DataLoader(Faulty("random"), 4), 2)
    assert answer is not None and answer.endswith("so this change needs your permission: N, or --allow-numerics")
    for dataset, effect in (
        (Faulty("random"), "changes numerics"),
        (Validation("none"), "same samples"),
        (Faulty("none", 1), "changes numerics"),
    ):
        iterator = iter(DataLoader(dataset, 4))
        next(iterator)
        assert WORKERS.effect_here(watch) == effect


def test_random_datasets_are_allowed_where_the_user_agrees(watch: Watch) -> None:
    loader = DataLoader(Faulty("random"), 4)
    iterator = iter(loader)
    next(iterator)
    WORKERS.set(watch, 1)
    control = control_of(loader)
    assert control is not None
    control.allows_numerics = True
    wait_until(lambda: next(iterator) is not None and not WORKERS.pending(watch), 10)
    assert WORKERS.read(watch) == 1


def test_without_workers_the_dataset_and_the_generators_of_a_program_with_workers_stay_as_they_were(watch: Watch) -> None:
    class Opens(Dataset[Any]):
        """Opens its file at the first sample, as datasets on HDF5 do."""

        file: object = None

        def __len__(self) -> int:
            return 80

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            self.file = self.file or object()
            torch.rand(1)
            return torch.zeros(1), index

    data = Opens()
    before = torch.get_rng_state()
    loader = DataLoader(data, 2, num_workers=1, generator=torch.Generator())
    seen, answer, _ = train(watch, loader, 0)
    assert answer is None and seen == list(range(80))
    assert data.file is None
    assert torch.equal(torch.get_rng_state(), before)


def test_prefetch_factor_and_the_reasons_of_pin_memory(watch: Watch) -> None:
    loader = DataLoader(Faulty("none"), 4)
    iterator = iter(loader)
    next(iterator)
    WORKERS.set(watch, 1)
    PrefetchFactor().set(watch, 4)
    wait_until(lambda: next(iterator) is not None and not WORKERS.pending(watch), 10)
    assert (WORKERS.read(watch), PrefetchFactor().read(watch)) == (1, 4)
    assert "no GPU" in PinMemory().why_fixed(watch)


def test_no_loader(watch: Watch) -> None:
    assert WORKERS.read(watch) is None
    assert "no DataLoader" in WORKERS.why_fixed(watch)
    with pytest.raises(Refused):
        WORKERS.set(watch, 2)


def test_missing_private_names_refuse(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(Faulty("none"), 4)
    iterator = iter(loader)
    next(iterator)
    del iterator._base_seed
    with pytest.raises(Refused, match="lacks _base_seed"):
        WORKERS.set(watch, 2)


def epoch_of(watch: Watch, data: Any, change: int | None = None, *, held: list[Any] | None = None, **options: Any) -> tuple[list[int], int]:
    """One epoch of a new DataLoader, with a change of num_workers at its start. `held` keeps the loader. Returns the samples and the workers at
    the end of the epoch."""
    seen, workers, loader = list[int](), 0, DataLoader(data, 4, **options)
    if held is not None:
        held.append(loader)
    for step, (_, index) in enumerate(loader):
        seen += index.tolist()
        if change is not None and step == 1:
            WORKERS.set(watch, change)
        time.sleep(0.02 if loaders_of.under_way() or WORKERS.pending(watch) else 0.0)  # the rehearsal goes on with each batch
        workers = len(workers_alive())
    return seen, workers


def test_the_next_loader_of_the_program_keeps_the_change(watch: Watch) -> None:
    data, other = Faulty("none"), Numbers(80)
    everything = list(range(400))
    assert epoch_of(watch, data, change=2) == (everything, 2)
    assert not workers_alive()
    assert epoch_of(watch, data) == (everything, 2)
    assert list(DataLoader(other, 4)) and not workers_alive()  # an evaluation with another dataset
    assert epoch_of(watch, data, change=0)[0] == everything  # its workers stay for a while: a trial goes to and fro
    assert not workers_alive()
    assert epoch_of(watch, data) == (everything, 0)
    assert not lost


@dataclass
class Collator:
    """As those of transformers: without a hash, and with a model."""

    model: Any

    def __call__(self, samples: list[Any]) -> Any:
        return default_collate(samples)


def test_the_collator_of_a_dropped_loader_is_not_kept(watch: Watch) -> None:
    model, data = Numbers(1), Faulty("none")
    assert epoch_of(watch, data, change=2, collate_fn=Collator(model))[1] == 2
    held = weakref.ref(model)
    del model
    assert held() is None
    assert epoch_of(watch, data, collate_fn=Collator(None)) == (list(range(400)), 2)
    assert not lost


def test_the_next_loader_of_the_same_data_has_workers_from_its_first_batch_on(watch: Watch) -> None:
    data, held = Faulty("none"), list[Any]()
    assert epoch_of(watch, data, change=2)[1] == 2
    assert next(iter(DataLoader(data, 4)))[1].tolist() == [0, 1, 2, 3] and not workers_alive()
    for change in (2, None, None):
        assert epoch_of(watch, data, change, held=held) == (list(range(400)), 2)
    held.append(DataLoader(data, 4))
    assert next(iter(held[-1])) and not lost
    assert epoch_of(watch, data, held=held) == (list(range(400)), 2)
    assert not loaders_of.under_way() and not lost


def test_where_epochs_are_too_short_for_workers_the_programs_own_settings_are_back(watch: Watch) -> None:
    """A dataset that has changed may be random now: its workers are compared again."""
    data, held = Faulty("none"), list[Any]()
    assert epoch_of(watch, data, change=2, held=held)[1] == 2
    data.first = 1
    held.append(DataLoader(data, 4))
    assert next(iter(held[-1])) and loaders_of.under_way()
    assert epoch_of(watch, data, held=held) == (list(range(400)), 0)
    assert not loaders_of.under_way() and lost.pop() == TOO_SHORT


def test_a_refusal_by_the_next_loader_is_named_once(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Faulty("none")
    epoch_of(watch, data, change=2)
    monkeypatch.setattr(loaders_of, "why_no_workers", lambda loader: "no main guard")
    for _ in range(2):
        assert epoch_of(watch, data) == (list(range(400)), 0)
    assert lost.pop().endswith("are back: no main guard") and not lost


def test_dropped_loaders_end_their_workers(watch: Watch) -> None:
    def program() -> None:
        loader = DataLoader(Faulty("none"), 4)
        iterator = iter(loader)
        next(iterator)
        WORKERS.set(watch, 2)
        wait_until(lambda: next(iterator) is not None and not WORKERS.pending(watch), 10)
        assert len(workers_alive()) == 2

    program()
    assert not workers_alive()


def test_a_persistent_loader_may_be_dropped_while_its_iterator_lives(watch: Watch) -> None:
    """As in `batches = iter(DataLoader(..., persistent_workers=True))`."""
    iterator = iter(DataLoader(Faulty("none"), 4, num_workers=1, persistent_workers=True))
    seen = next(iterator)[1].tolist()
    assert WORKERS.read(watch) == 1
    WORKERS.set(watch, 2)
    while WORKERS.pending(watch):
        seen += next(iterator)[1].tolist()
        time.sleep(0.02)
    assert WORKERS.read(watch) == 2
    seen += [index for _, indices in iterator for index in indices.tolist()]
    assert seen == list(range(400))
    del iterator
    assert not workers_alive()


def test_a_changed_loader_may_be_dropped_while_its_iterator_lives(watch: Watch) -> None:
    loader = DataLoader(Faulty("none"), 4, num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    seen = next(iterator)[1].tolist()
    WORKERS.set(watch, 2)
    while WORKERS.pending(watch):
        seen += next(iterator)[1].tolist()
        time.sleep(0.02)
    del loader
    assert WORKERS.read(watch) == 2
    seen += [index for _, indices in iterator for index in indices.tolist()]
    assert seen == list(range(400))
    del iterator
    assert not workers_alive()


def test_the_line_of_a_loader_that_the_program_has_dropped_stays_known(watch: Watch) -> None:
    loader = DataLoader(Faulty("none"), 4)
    watch.note_made("loader", loader)
    iterator = iter(loader)
    watch.loader = iterator.__dict__["_gpuconsole_loader"]
    place = site(watch, "loader")
    other = DataLoader(Faulty("none"), 4)
    watch.note_made("loader", other)
    del loader
    assert site(watch, "loader") == place != ""
    del iterator
    assert watch.loader is not None and watch.loader() is None and site(watch, "loader") != place


class ManyEpochs(DataLoader[Any]):
    """Keeps one iterator, as timm's MultiEpochsDataLoader and other loaders do. `ended`: how often an instance has ended."""

    ended = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.iterator = super().__iter__()

    def __iter__(self) -> Any:
        for _ in range(len(self)):
            yield next(self.iterator)

    def __del__(self) -> None:
        type(self).ended += bool(self.iterator)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_that_keeps_its_iterator_ends_its_workers_with_its_last_reference(watch: Watch, persistent: bool) -> None:
    ended = ManyEpochs.ended
    gc.disable()
    try:
        loader = ManyEpochs(Faulty("none"), 4, num_workers=1, persistent_workers=persistent)
        assert next(iter(loader))[1].tolist() == [0, 1, 2, 3]
        kinds = sum(type(candidate) is ManyEpochs for candidate in gc.get_objects())
        del loader
        assert not workers_alive()
        assert (kinds, ManyEpochs.ended - ended) == (1, 1)
    finally:
        gc.enable()


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_that_keeps_its_iterator_changes_live(watch: Watch, persistent: bool) -> None:
    gc.disable()
    try:
        loader = ManyEpochs(Faulty("none"), 4, num_workers=1, persistent_workers=persistent)
        seen, answer, _ = train(watch, loader, 2)
        assert (seen, answer, WORKERS.read(watch)) == (list(range(400)), None, 2)
        assert len(workers_alive()) >= 2
        del loader
        assert not workers_alive()
    finally:
        gc.enable()


class Faultless(Faulty):
    def __init__(self, count: int) -> None:
        super().__init__("none")
        self.count = count

    def __len__(self) -> int:
        return self.count


def change_to(watch: Watch, iterator: Any, num_workers: int) -> list[int]:
    """The samples of the batches until the change is in force."""
    seen = list[int]()
    WORKERS.set(watch, num_workers)
    while WORKERS.pending(watch):
        seen += next(iterator)[1].tolist()
        time.sleep(0.005)
    return seen


USES = [
    (program, values, use)
    for program, values in ((0, [2]), (0, [2, 0]), (1, [2]), (1, [2, 1]))
    for use in ("look", "whole", "in turn", "the change under way")
]


@pytest.mark.slow
@pytest.mark.parametrize(("program", "values", "use"), matrix(USES, in_ci=[USES[0], USES[5], USES[10], USES[15]]))
def test_another_iterator_of_the_loader_leaves_the_epoch_as_it_is(watch: Watch, program: int, values: list[int], use: str) -> None:
    """As `next(iter(loader))` for a picture, or a whole pass for an evaluation, in the middle of an epoch."""
    everything = list(range(2000))
    loader = DataLoader(Faultless(2000), 4, num_workers=program)
    iterator = iter(loader)
    seen = next(iterator)[1].tolist()
    for value in values:
        seen += change_to(watch, iterator, value)
    if use == "in turn":
        other = iter(loader)
        beside = next(other)[1].tolist()
        for batch in iterator:
            seen += batch[1].tolist()
            beside += [index for _, indices in [next(other)] for index in indices.tolist()] if len(beside) < 200 else []
        beside += [index for _, indices in other for index in indices.tolist()]
        assert seen == beside == everything
    else:
        if use == "the change under way":
            WORKERS.set(watch, 3)
        for _ in range(2):
            seen += next(iterator)[1].tolist()
            if use == "whole":
                assert [index for _, indices in loader for index in indices.tolist()] == everything
            else:
                assert next(iter(loader))[1].tolist() == [0, 1, 2, 3]
        while WORKERS.pending(watch):
            seen += next(iterator)[1].tolist()
            time.sleep(0.005)
        assert WORKERS.read(watch) == (3 if use == "the change under way" else values[-1])
        assert seen + [index for _, indices in iterator for index in indices.tolist()] == everything
    assert [index for _, indices in loader for index in indices.tolist()] == everything, "the next epoch"
    del iterator, loader
    wait_until(lambda: not workers_alive(), PATIENCE_S)


def test_a_batch_that_cannot_be_copied_reaches_the_program(watch: Watch) -> None:
    """Batches that carry a graph of autograd, for example: the agent copies some of them for a comparison."""
    weight = torch.ones(1, requires_grad=True)

    def collate(rows: list[Any]) -> Any:
        values, indices = default_collate(rows)
        return values * weight, indices

    seen, answer, _ = train(watch, DataLoader(Faulty("none"), 4, collate_fn=collate), 2)
    assert answer is not None and ("cannot be compared" in answer or "worker" in answer)
    assert seen == list(range(400))
    assert not workers_alive()


@pytest.mark.parametrize("next_epoch", [False, True])
def test_workers_of_a_change_that_was_taken_back_end(watch: Watch, monkeypatch: pytest.MonkeyPatch, next_epoch: bool) -> None:
    monkeypatch.setattr("gpuconsole.agent.hooks.changes.control.IDLE_S", 0.2)
    loader = DataLoader(Faultless(4000), 4)
    iterator = iter(loader)
    next(iterator)
    change_to(watch, iterator, 2)
    change_to(watch, iterator, 0)
    assert len(workers_alive()) == 2

    def over() -> bool:
        if next_epoch:
            assert next(iter(loader))
        else:
            next(iterator)
        return not workers_alive()

    wait_until(over, 10)


@pytest.mark.parametrize("program", [0, 1])
def test_a_program_with_slow_steps_has_the_time_that_the_comparison_takes(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, program: int
) -> None:
    """The limits of seconds here are a fiftieth of the real ones: steps of 4 s."""
    monkeypatch.setattr("gpuconsole.agent.hooks.changes.rehearsal.LIMIT_S", 0.3)
    monkeypatch.setattr("gpuconsole.agent.hooks.changes.control.LIMIT_S", 0.3)
    monkeypatch.setattr("gpuconsole.agent.hooks.changes.control.UNUSED_S", 0.06)
    iterator = iter(loader := DataLoader(Faultless(400), 4, num_workers=program))
    seen = next(iterator)[1].tolist()
    WORKERS.set(watch, 2)
    for _ in range(20):
        time.sleep(0.08)
        if not WORKERS.pending(watch):
            break
        seen += next(iterator)[1].tolist()
    assert WORKERS.read(watch) == 2
    assert seen + [index for _, indices in iterator for index in indices.tolist()] == list(range(400))
    del loader


def test_batches_that_take_longer_than_the_limit_of_a_rehearsal(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """New workers have a multiple of the time that the program itself needs for a batch."""

    class Slow(Faultless):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            time.sleep(0.1)
            return super().__getitem__(index)

    monkeypatch.setattr("gpuconsole.agent.hooks.changes.rehearsal.LIMIT_S", 0.1)
    monkeypatch.setattr("gpuconsole.agent.hooks.changes.control.LIMIT_S", 0.1)
    monkeypatch.setattr("gpuconsole.agent.hooks.changes.control.UNUSED_S", 0.02)
    iterator = iter(loader := DataLoader(Slow(60), 2))
    seen = next(iterator)[1].tolist() + change_to(watch, iterator, 2)
    assert WORKERS.read(watch) == 2
    assert seen + [index for _, indices in iterator for index in indices.tolist()] == list(range(60))
    del loader


def test_a_program_that_asks_for_no_batch_refuses_the_change(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuconsole.agent.hooks.changes.control.LIMIT_S", 0.1)
    monkeypatch.setattr("gpuconsole.agent.hooks.changes.control.UNUSED_S", 0.1)
    iterator = iter(loader := DataLoader(Faultless(400), 4))
    next(iterator)
    WORKERS.set(watch, 2)
    next(iterator)
    with pytest.raises(Refused, match="asked for no batch"):
        wait_until(lambda: not WORKERS.pending(watch), PATIENCE_S)
    del loader


def test_settings_whose_workers_failed_in_a_block_are_refused_at_the_next_switch(watch: Watch) -> None:
    """The steps after the failure had the program's own settings: a trial that went on would compare these with themselves."""
    iterator = iter(loader := DataLoader(Faulty("dies", first=200), 4))
    seen = next(iterator)[1].tolist() + change_to(watch, iterator, 2)
    while WORKERS.read(watch) == 2:
        seen += next(iterator)[1].tolist()
    assert not loaders_of.under_way() and loaders_of.FALLEN in lost.pop() and not lost
    seen += change_to(watch, iterator, 0)
    with pytest.raises(Refused, match=r"the last change to these settings ended: .*died"):
        WORKERS.set(watch, 2)
    assert WORKERS.read(watch) == 0
    assert seen + [index for _, indices in iterator for index in indices.tolist()] == list(range(400))
    assert not workers_alive()
    del loader


def test_a_trial_of_a_setting_that_the_program_does_not_have(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without workers there is no prefetch_factor before the trial. The change was begun, and then answered by an error: it stayed in force."""
    monkeypatch.setattr("gpuconsole.agent.hooks.watch.watch", watch)
    monkeypatch.setattr(hooks_of_job, "watch", watch)
    iterator = iter(loader := DataLoader(Faultless(4000), 4))
    next(iterator)
    loop = hooks_of_job.JobLoop()
    changes = {"num_workers": 2, "prefetch_factor": 4}
    loop.set_knobs(changes, 2)
    wait_until(lambda: next(iterator) is not None and not loop.pending(changes), 10)
    assert (WORKERS.read(watch), PrefetchFactor().read(watch)) == (2, 4)
    loop.leave_trial()
    wait_until(lambda: next(iterator) is not None and not loop.pending(changes), 10)
    assert WORKERS.read(watch) == 0
    loop.close()
    del loader


# --- loaders that the program does not keep ---------------------------------------------------------------------

EPOCHS = 6


def in_the_header(data: Any) -> Iterator[Any]:
    for _ in range(EPOCHS):
        yield from DataLoader(data, 4)


def by_a_function(data: Any) -> Iterator[Any]:
    def batches() -> Iterator[Any]:
        loader = DataLoader(data, 4)
        yield from loader

    for _ in range(EPOCHS):
        yield from batches()


def dropped(data: Any) -> Iterator[Any]:
    for _ in range(EPOCHS):
        loader = DataLoader(data, 4)
        iterator = iter(loader)
        del loader
        yield from iterator


def in_turn(data: Any) -> Iterator[Any]:
    loaders = DataLoader(data, 4), DataLoader(Faultless(200), 4)
    for epoch in range(EPOCHS):
        yield from loaders[epoch % 2]


def after_the_end(data: Any) -> Iterator[Any]:
    """The program holds the former iterator while it makes the next one, with a dataset of its own."""
    iterator = iter(DataLoader(data, 4))
    for _ in range(EPOCHS - 1):
        yield from iterator
        iterator = iter(DataLoader(Faulty("none"), 4))


def broken_off(data: Any) -> Iterator[Any]:
    for _ in range(EPOCHS):
        for step, batch in enumerate(DataLoader(data, 4)):
            yield batch
            if step == 60:
                break


PROGRAMS = [in_the_header, by_a_function, dropped, after_the_end, in_turn, broken_off]


@pytest.mark.parametrize("program", matrix(PROGRAMS, [in_the_header, after_the_end, in_turn, broken_off]))
def test_a_change_goes_on_with_the_next_loader(watch: Watch, program: Callable[[Any], Iterator[Any]]) -> None:
    """It is asked for at the end of an epoch, so that the loader is gone before the new workers are ready."""
    expected = [batch[1].tolist() for batch in program(Faulty("none"))]
    seen, under_way, done = list[Any](), False, 0
    for step, (_, index) in enumerate(program(Faulty("none"))):
        seen.append(index.tolist())
        time.sleep(0.01 if loaders_of.under_way() else 0.0)  # the second of two loaders in turn rehearses on its own
        if step == (58 if program is broken_off else 98):
            WORKERS.prepare(watch, 2)
            under_way = True
        elif under_way:
            time.sleep(0.01)
            if WORKERS.prepared(watch, 2):
                WORKERS.set(watch, 2)
                under_way, done = False, step
        elif done and program is not in_turn and step in range(done + 20, done + 200, 20):
            assert not WORKERS.pending(watch) and WORKERS.read(watch) == 2 and len(workers_alive()) == 2
    assert seen == expected
    assert done and not lost


def test_a_change_that_waits_has_not_ended_with_its_loader(watch: Watch) -> None:
    """`for batch in DataLoader(...)`: the loader is gone before its first batch."""
    data, answers = Faulty("none"), list[bool]()
    for epoch in range(2):
        for step, _ in enumerate(DataLoader(data, 4)):
            if (epoch, step) == (0, 98):
                WORKERS.set(watch, 2)
            elif (epoch, step) > (0, 98):
                answers.append(WORKERS.pending(watch))
                time.sleep(0.01)
    assert answers[:3] == [True] * 3 and not answers[-1]
    assert WORKERS.read(watch) in (2, None)


def test_a_program_that_takes_one_batch_of_each_epoch_refuses_the_change(watch: Watch) -> None:
    loader = DataLoader(Faulty("none"), 4)
    iterator = iter(loader)
    next(iterator)
    WORKERS.set(watch, 2)
    for _ in range(4):
        iterator = iter(loader)
        assert next(iterator)[1].tolist() == [0, 1, 2, 3] and WORKERS.pending(watch)
    iterator = iter(loader)
    with pytest.raises(Refused) as refused:
        WORKERS.pending(watch)
    assert str(refused.value) == FIRST_BATCHES and not workers_alive()


# --- the state of the dataset --------------------------------------------------------------------------------


class Leveled(Faultless):
    """A curriculum."""

    level = 0

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(self.level)]), index


def test_workers_see_the_dataset_as_it_is_at_the_begin_of_their_epoch(watch: Watch) -> None:
    data = Leveled(400)
    loader = DataLoader(data, 4)
    pids, wanted = list[Any](), 2
    for level in (0, 0, 1, 2, 2):
        data.level, seen = level, list[int]()
        for step, (levels, index) in enumerate(loader):
            seen += index.tolist()
            assert levels.unique().tolist() == [level]
            if wanted and step == 1:
                WORKERS.set(watch, 2)
                wanted = 0
            time.sleep(0.02 if loaders_of.under_way() or WORKERS.pending(watch) else 0.0)
        assert seen == list(range(400)) and WORKERS.read(watch) == 2
        pids.append(workers_alive())
    assert pids[0] == pids[1] and pids[3] == pids[4], "where nothing has changed, the workers stay"
    assert not {*pids[1]} & {*pids[2]} and not {*pids[2]} & {*pids[3]}
    assert not lost


@pytest.mark.parametrize("in_force", [False, True])
def test_a_dataset_that_changes_within_an_epoch_has_no_new_workers(watch: Watch, in_force: bool) -> None:
    data = Leveled(400)
    iterator = iter(loader := DataLoader(data, 4))
    seen = [next(iterator)]
    WORKERS.set(watch, 2)
    while in_force and WORKERS.pending(watch):
        seen.append(next(iterator))
        time.sleep(0.005)
    data.level = 1
    before = len(seen)
    seen += iterator
    assert [levels.unique().tolist() for levels, _ in seen] == [[0.0]] * before + [[1.0]] * (100 - before)
    assert [index for _, indices in seen for index in indices.tolist()] == list(range(400))
    if in_force:
        assert not loaders_of.under_way() and lost.pop().endswith(UNSEEN)
    else:
        with pytest.raises(Refused, match=UNSEEN):
            WORKERS.pending(watch)
    assert not workers_alive() and WORKERS.read(watch) == 0
    del loader


class Filling(Faultless):
    """Fills a cache, or counts, in its own code. `kind`: where."""

    def __init__(self, count: int, kind: str) -> None:
        super().__init__(count)
        self.kind, self.calls = kind, 0
        self.cache: dict[int, Any] = {}
        self.slots: list[Any] = [None] * count
        self.seen: set[int] = set()
        self.times: dict[int, int] = {}

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.kind in ("dictionary", "both"):
            return self.cache.setdefault(index, torch.full((3,), float(index))), index
        if self.kind == "list":
            self.slots[index] = self.slots[index] if self.slots[index] is not None else torch.full((3,), float(index))
            return self.slots[index], index
        if self.kind == "counter":
            self.calls += 1
        elif self.kind == "set":
            self.seen.add(index)
        elif self.kind == "numbers":
            self.times[index] = self.times.get(index, 0) + 1
        return torch.full((3,), float(index)), index


@pytest.mark.parametrize("kind", ["dictionary", "list"])
def test_a_dataset_that_fills_a_cache_gets_workers_and_loses_them_where_the_program_changes_it(watch: Watch, kind: str) -> None:
    data = Filling(400, kind)
    iterator = iter(loader := DataLoader(data, 4))
    seen = [next(iterator)]
    WORKERS.set(watch, 2)
    while WORKERS.pending(watch):
        seen.append(next(iterator))
        time.sleep(0.005)
    assert WORKERS.read(watch) == 2
    seen += [next(iterator) for _ in range(10)]
    assert WORKERS.read(watch) == 2 and len(workers_alive()) == 2
    data.kind = "none"  # what a curriculum does
    seen += iterator
    assert [index for _, indices in seen for index in indices.tolist()] == list(range(400))
    assert all(values[:, 0].tolist() == indices.tolist() for values, indices in seen)
    assert not loaders_of.under_way() and lost.pop().endswith(UNSEEN) and not workers_alive()
    del loader


def test_a_cache_that_the_program_changes_is_no_cache(watch: Watch) -> None:
    """As a buffer of what the model has seen: workers would not get what the program adds."""
    data = Filling(400, "none")
    iterator = iter(loader := DataLoader(data, 4))
    next(iterator)
    WORKERS.set(watch, 2)
    for step in range(3):
        data.cache[step] = torch.zeros(3)
        next(iterator)
    with pytest.raises(Refused, match=UNSEEN):
        WORKERS.pending(watch)
    assert not workers_alive()
    del loader


@pytest.mark.parametrize("kind", ["counter", "set", "numbers"])
def test_a_dataset_that_counts_needs_the_permission_of_the_user(watch: Watch, kind: str) -> None:
    """The next sample may depend on the number of those before: a rehearsal of two batches does not show a threshold."""
    data = Filling(400, kind)
    iterator = iter(loader := DataLoader(data, 4))
    seen = next(iterator)[1].tolist()
    WORKERS.set(watch, 2)
    while not (answer := refusal(watch)):
        seen += next(iterator)[1].tolist()
    assert "needs your permission" in answer
    assert not workers_alive() and WORKERS.effect_here(watch) == CHANGES_NUMERICS
    watch.allows_numerics = True
    WORKERS.set(watch, 2)
    while WORKERS.pending(watch):
        seen += next(iterator)[1].tolist()
        time.sleep(0.005)
    assert WORKERS.read(watch) == 2
    WORKERS.set(watch, 0)
    for _ in range(8):
        seen += next(iterator)[1].tolist()
    assert WORKERS.read(watch) == 0
    WORKERS.set(watch, 2)
    seen += next(iterator)[1].tolist()
    assert WORKERS.read(watch) == 2, "the other side of a trial"
    seen += [index for _, indices in iterator for index in indices.tolist()]
    assert seen == list(range(400)) and not lost
    del loader


LEVEL = 0
USED: collections.Counter[int] = collections.Counter()
DRAWS = random.Random(0)


class Outside(Dataset):
    """Uses what is no attribute of its own. `use`: what."""

    loads = 0

    def __init__(self, use: str) -> None:
        self.use = use

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> tuple[float, int]:
        if self.use == "counter of the class":
            Outside.loads += 1
        elif self.use == "global counter":
            USED[index % 4] += 1
        elif self.use == "global generator":
            DRAWS.random()
        elif self.use == "random numbers without effect":
            torch.rand(())
        return float(LEVEL), index


@pytest.mark.parametrize("use", ["counter of the class", "global counter", "global generator", "random numbers without effect"])
def test_a_dataset_that_changes_what_it_does_not_hold_needs_the_permission_of_the_user(watch: Watch, use: str) -> None:
    iterator = iter(loader := DataLoader(Outside(use), 4))
    next(iterator)
    WORKERS.set(watch, 1)
    while not (answer := refusal(watch)):
        next(iterator)
    assert "needs your permission" in answer and not workers_alive()
    del loader


def test_workers_begin_anew_with_each_epoch_and_are_gone_between_two(watch: Watch) -> None:
    """As torch's own: they see what the program has changed, and a program may wait for all its children."""
    global LEVEL
    loader = DataLoader(Outside("nothing"), 4)
    levels: list[set[float]] = []
    try:
        for LEVEL in range(4):
            iterator = iter(loader)
            if LEVEL == 1:
                change_to(watch, iterator, 2)
                assert len(workers_alive()) == 2
            levels.append({level for levels, _ in iterator for level in levels.tolist()})
            del iterator
            assert not workers_alive()
    finally:
        LEVEL = 0
    assert levels == [{0.0}, {1.0}, {2.0}, {3.0}] and WORKERS.read(watch) == 2


def test_a_program_that_draws_from_the_generator_of_its_sampler_keeps_its_order(watch: Watch) -> None:
    generator = torch.Generator().manual_seed(7)
    iterator = iter(loader := DataLoader(Faultless(400), 4, shuffle=True, generator=generator))
    next(iterator)
    WORKERS.set(watch, 2)
    while not (answer := refusal(watch)):
        next(iterator)
        torch.rand((), generator=generator)
    assert "draws from the program's random generators" in answer
    del loader


SCORES = [0.0] * 400


class Hard(Sampler[int]):
    """Yields the sample of the highest score. The loop of the program knows the scores."""

    def __init__(self, own: list[float]) -> None:
        self.own = own

    def __len__(self) -> int:
        return 400

    def __iter__(self) -> Iterator[int]:
        for _ in range(400):
            yield max(range(400), key=lambda index: self.own[index] + SCORES[index])


def hard_of_a_function(scores: list[float]) -> Sampler[int]:
    class Inner(Hard):
        def __iter__(self) -> Iterator[int]:
            for _ in range(400):
                yield max(range(400), key=scores.__getitem__)

    return Inner([0.0] * 400)


class Teacher:
    """Knows which sample is the hardest."""

    def __init__(self) -> None:
        self.lowest = 0

    def hardest(self) -> int:
        return self.lowest


LIBRARY = types.ModuleType("library_of_a_test")
"""A package that the sampler uses. `state` is no data, and `choose` keeps it."""
exec("state = None\ndef choose():\n    return state.hardest()", LIBRARY.__dict__)


class Asking(Hard):
    """Asks a library for each sample."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(400):
            yield LIBRARY.choose()


class Counting(Hard):
    """Takes each sample from an iterator that is no attribute. The loop takes some too."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(400):
            yield next(NUMBERS[0]) % 400


NUMBERS = [itertools.count()]


def sharing(numbers: random.Random) -> Sampler[int]:
    class Sharing(Hard):
        def __iter__(self) -> Iterator[int]:
            for _ in range(400):
                yield numbers.randrange(400)

    return Sharing([])


def taught(how: str) -> tuple[Sampler[int], Callable[[int], None]]:
    """A sampler, and what the loop does after each sample."""
    own, numbers, teacher = [0.0] * 400, random.Random(4), Teacher()
    LIBRARY.state, NUMBERS[0] = teacher, itertools.count()
    samplers: dict[str, tuple[Sampler[int], Callable[[int], None]]] = {
        "attribute": (Hard(own), lambda index: own.__setitem__(index, own[index] - 1.0)),
        "global": (Hard(own), lambda index: SCORES.__setitem__(index, SCORES[index] - 1.0)),
        "variable of a function": (hard_of_a_function(own), lambda index: own.__setitem__(index, own[index] - 1.0)),
        "generator": (sharing(numbers), lambda _: numbers.seed(numbers.randrange(1000))),
        "object of a library": (Asking([]), lambda index: setattr(teacher, "lowest", (index + 1) % 400)),
        "iterator": (Counting([]), lambda _: next(NUMBERS[0]) and None),
    }
    return samplers[how]


@pytest.mark.parametrize("how", ["attribute", "global", "variable of a function", "generator", "object of a library", "iterator"])
@pytest.mark.parametrize("begin", ["at the beginning", "in the middle"])
def test_a_sampler_that_reads_what_the_loop_learns_gives_the_samples_that_it_gives_alone(watch: Watch, how: str, begin: str) -> None:
    """Workers, and a rehearsal, would ask it before the loop has learned from the batches before."""

    def indices(change: bool) -> list[int]:
        SCORES[:] = [0.0] * 400
        sampler, learn = taught(how)
        seen: list[int] = []
        for step, (_, batch) in enumerate(loader := DataLoader(Faultless(400), 4, sampler=sampler)):
            seen += batch.tolist()
            if change and step == (1 if begin == "at the beginning" else 40):
                WORKERS.set(watch, 2)
            if change and step > 40 and WORKERS.read(watch) == 0:
                with suppress(Refused):
                    WORKERS.pending(watch)
            for index in batch.tolist():
                learn(index)
        assert not change or control_of(loader) is not None
        return seen

    alone = indices(change=False)
    assert len(set(alone)) > 20
    assert indices(change=True) == alone and not workers_alive()


def test_a_sampler_of_the_program_that_nobody_changes_gets_workers(watch: Watch) -> None:
    order = random.Random(1).sample(range(400), 400)
    loader = DataLoader(Faultless(400), 4, sampler=Ordered(order))
    seen, answer, _ = train(watch, loader, 2)
    assert answer is None and WORKERS.read(watch) == 2 and seen == order


class Compiled(Hard):
    """Uses a compiled function of a library, which could keep a state."""

    def __iter__(self) -> Iterator[int]:
        for index in range(400):
            yield int(encode(index))


def test_a_sampler_that_uses_what_cannot_be_compared_needs_the_permission_of_the_user(watch: Watch) -> None:
    iterator = iter(loader := DataLoader(Faultless(400), 4, sampler=Compiled([])))
    next(iterator)
    WORKERS.set(watch, 2)
    while not (answer := refusal(watch)):
        next(iterator)
    assert answer == control.UNKNOWN_SAMPLER
    watch.allows_numerics = True
    assert change_to(watch, iterator, 2) and WORKERS.read(watch) == 2
    del loader


class Ordered(Sampler[int]):
    """Counts what it gives: the loop does not change it, the draws do."""

    def __init__(self, order: list[int]) -> None:
        self.order, self.given = order, 0

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[int]:
        for index in self.order:
            self.given += 1
            yield index


class Telling(Faultless):
    """Prints, or appends to a file."""

    def __init__(self, how: str, path: str) -> None:
        super().__init__(400)
        self.how, self.path = how, path

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if self.how == "prints":
            print("loads", index, file=sys.__stdout__)
        else:
            with open(self.path, "a", encoding="ascii") as file:
                file.write(f"{index}\n")
        return super().__getitem__(index)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_dataset_that_writes_gets_no_other_workers(watch: Watch, num_workers: int, tmp_path: Path) -> None:
    """A rehearsal would write twice, and workers in another order."""
    path = tmp_path / "loaded"
    iterator = iter(loader := DataLoader(Telling("writes", str(path)), 4, num_workers=num_workers))
    seen = next(iterator)[1].tolist()
    WORKERS.set(watch, 2)
    while not (answer := refusal(watch)):
        seen += next(iterator)[1].tolist()
    assert answer == control.WRITES
    seen += [index for _, indices in iterator for index in indices.tolist()]
    assert seen == list(range(400)) == [int(line) for line in path.read_text().split()]
    del loader


def test_a_dataset_that_prints_gets_no_workers(watch: Watch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with open(tmp_path / "output", "w", encoding="ascii") as output:
        monkeypatch.setattr(sys, "stdout", output)
        monkeypatch.setattr(sys, "__stdout__", output)
        iterator = iter(loader := DataLoader(Telling("prints", ""), 4))
        next(iterator)
        WORKERS.set(watch, 2)
        while not (answer := refusal(watch)):
            next(iterator)
        for _ in iterator:
            pass
        monkeypatch.undo()
    assert answer == control.WRITES
    assert (tmp_path / "output").read_text().split("\n") == [f"loads {index}" for index in range(400)] + [""]
    del loader


@pytest.mark.parametrize("below", [False, True])
def test_a_program_that_is_told_of_its_children_gets_no_workers(watch: Watch, below: bool) -> None:
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        if below:  # torch's handler calls the one before
            list(DataLoader(Faultless(8), 4, num_workers=1))
        iterator = iter(loader := DataLoader(Faultless(400), 4))
        next(iterator)
        WORKERS.set(watch, 2)
        while not (answer := refusal(watch)):
            next(iterator)
        assert "SIGCHLD" in answer
        del loader
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_caches_for_which_the_machine_has_no_room(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "free_host_bytes", lambda: 2 * 2 * 400 * 12 - 1.0)
    data = Filling(400, "dictionary")
    iterator = iter(loader := DataLoader(data, 4))
    next(iterator)
    WORKERS.set(watch, 2)
    while not (answer := refusal(watch)):
        next(iterator)
    assert "each worker fills a cache of its own" in answer
    assert not workers_alive()
    del loader


# --- open files ----------------------------------------------------------------------------------------------


class Records(Faultless):
    """Keeps a file open: as an attribute, in an archive, or as a global variable, which only its position shows."""

    files: dict[str, Any] = {}

    def __init__(self, kind: str, folder: Any) -> None:
        super().__init__(400)
        path = folder / "records.bin"
        path.write_bytes(b"".join(index.to_bytes(2, "little") * 5000 for index in range(400)))
        if kind == "attribute":
            self.file = open(path, "rb")  # noqa: SIM115
        elif kind == "archive":
            with zipfile.ZipFile(folder / "records.zip", "w") as archive:
                archive.write(path, "records.bin")
            self.nested = [{"archive": zipfile.ZipFile(folder / "records.zip")}]
        elif kind == "global":
            Records.files["file"] = open(path, "rb")  # noqa: SIM115

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        file = self.__dict__.get("file") or self.files.get("file")
        if file is not None:
            file.seek(index * 10000)
            assert int.from_bytes(file.read(10000)[:2], "little") == index, "another record"
        return torch.zeros(1), index


@pytest.mark.parametrize(("kind", "name"), [("attribute", "records.bin"), ("archive", "records.zip"), ("global", "records.bin")])
def test_a_dataset_that_keeps_a_file_open_has_no_new_workers(watch: Watch, tmp_path: Any, kind: str, name: str) -> None:
    """Forked processes share the position in the file."""
    data = Records(kind, tmp_path)
    iterator = iter(loader := DataLoader(data, 4))
    seen, answer = next(iterator)[1].tolist(), ""
    try:
        WORKERS.set(watch, 2)
        for _, index in iterator:
            seen += index.tolist()
            assert not workers_alive()
            if not answer:
                WORKERS.pending(watch)
    except Refused as refused:
        answer = str(refused)
    assert answer == f"the dataset holds the open file {name}, which processes cannot share: open it in each worker"
    assert seen + [index for _, indices in iterator for index in indices.tolist()] == list(range(400))
    Records.files.pop("file", None)
    del loader


# --- exceptions from outside -----------------------------------------------------------------------------------


class Preempted(BaseException):
    """What a signal handler of the program raises."""


class Interrupting:
    """Raises an exception at a line of the changes, counted from the moment at which `waits` is set."""

    def __init__(self) -> None:
        self.waits = self.raised = 0

    def __call__(self, frame: Any, event: str, _: Any) -> Any:
        return self._line if os.path.dirname(frame.f_code.co_filename) == os.path.dirname(control.__file__) else None

    def _line(self, frame: Any, event: str, _: Any) -> Any:
        if self.waits and event == "line":
            self.waits -= 1
            if not self.waits:
                self.raised += 1
                raise Preempted
        return self._line


# CI has every third line with one way of loading and every fifth with the other: together the begin, the time in force and the end
LINES = range(1, 200, 9)


@pytest.mark.parametrize(
    ("program", "at"), matrix(itertools.product((0, 1), LINES), [(0, at) for at in LINES[::3]] + [(1, at) for at in LINES[1::5]])
)
def test_an_exception_from_outside_ends_the_wait_for_a_batch_and_loses_at_most_this_batch(watch: Watch, program: int, at: int) -> None:
    """While a change begins, is in force, and goes; wherever it comes."""
    loader = DataLoader(Faultless(400), 4, num_workers=program)
    iterator, interrupting, seen, asked, values = iter(loader), Interrupting(), list[int](), False, [2, 0, 3]
    before = sys.gettrace()
    sys.settrace(interrupting)
    try:
        while True:
            try:
                if values and not asked:
                    WORKERS.set(watch, values[0])
                    interrupting.waits, asked = at, True
                seen += next(iterator)[1].tolist()
                if asked and not WORKERS.pending(watch):
                    interrupting.waits, asked = at if len(values) > 1 else 0, False
                    values.pop(0)
                time.sleep(0.003 if asked else 0.0)
            except Refused:
                interrupting.waits, asked = 0, False
                values.pop(0)
            except Preempted:
                continue
            except StopIteration:
                break
    finally:
        sys.settrace(before)
    assert interrupting.raised and seen == sorted(set(seen)), "no sample comes twice"
    assert len(seen) >= 400 - 4 * interrupting.raised
    del iterator, loader
    wait_until(lambda: not workers_alive(), PATIENCE_S)


class Ended(Exception):
    """As Preempted, and none of those that Python itself takes for a request to end."""


@pytest.mark.parametrize("how", ["signal", "thread"])
def test_each_exception_of_a_signal_handler_or_another_thread_arrives(watch: Watch, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raised, caught, seen, delays = 0, 0, list[int](), random.Random(0)
    dropped: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: dropped.append(report.object))  # a `__del__` of torch's, as without us
    loader, main = DataLoader(Faultless(4000), 4), threading.get_ident()
    iterator = iter(loader)

    def handle(*_: Any) -> None:
        nonlocal raised
        raised += 1
        raise Ended

    def end_main() -> None:
        nonlocal raised
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(Ended))
        raised += 1

    before = signal.signal(signal.SIGALRM, handle)
    try:
        while raised < 20:
            expected = raised + 1
            seen += next(iterator)[1].tolist()
            with suppress(Refused):  # once, where an exception has ended the wait for a batch of the workers
                WORKERS.set(watch, 2)
            seen += change_to(watch, iterator, 2)
            timer = threading.Timer(seconds := delays.uniform(0.002, 0.03), end_main)
            try:
                timer.start() if how == "thread" else signal.setitimer(signal.ITIMER_REAL, seconds)
                while raised < expected:
                    seen += next(iterator)[1].tolist()
                time.sleep(0.5)  # another thread's exception comes a moment later
            except Ended:
                caught += 1
            assert seen == sorted(set(seen))
            if len(seen) > 3000:
                iterator, seen = iter(loader), []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert caught + len(dropped) == raised
    assert not [function for function in dropped if str(getattr(function, "__module__", "")).startswith("gpuconsole")]
    del iterator, loader


# --- the children of the program -------------------------------------------------------------------------------


def test_the_program_cannot_join_the_workers(watch: Watch) -> None:
    iterator = iter(loader := DataLoader(Faultless(400), 4))
    next(iterator)
    change_to(watch, iterator, 2)
    assert not multiprocessing.active_children() and len(workers_alive()) == 2
    del iterator, loader
    wait_until(lambda: not workers_alive(), PATIENCE_S)


@pytest.mark.parametrize("program", [0, 1])
def test_a_forked_child_loads_by_itself(watch: Watch, program: int) -> None:
    """As an evaluation in a child does. The workers of the parent stay."""
    iterator = iter(loader := DataLoader(Faultless(400), 4, num_workers=program))
    seen = next(iterator)[1].tolist() + change_to(watch, iterator, 2)
    alive = workers_alive()
    child = os.fork()
    if not child:
        failed = 1
        try:
            whole = [index for _, indices in loader for index in indices.tolist()]
            rest = [] if program else [index for _, indices in iterator for index in indices.tolist()]
            del iterator
            gc.collect()
            failed = whole != list(range(400)) or (not program and seen + rest != list(range(400)))
        finally:
            os._exit(int(failed))
    assert os.waitpid(child, 0)[1] == 0
    assert workers_alive() == alive
    seen += [index for _, indices in iterator for index in indices.tolist()]
    assert seen == list(range(400)) and WORKERS.read(watch) == 2 and not lost
