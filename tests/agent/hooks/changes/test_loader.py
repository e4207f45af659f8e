"""Live changes of a DataLoader in one process: the program sees the same indices in the same order,
whatever happens to the new workers."""

from __future__ import annotations

import ctypes
import gc
import itertools
import multiprocessing
import os
import random
import signal
import socket
import sys
import threading
import time
import warnings
import weakref
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data.dataloader as dataloader
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from gpuconsole.agent.hooks import job as hooks_of_job
from gpuconsole.agent.hooks.changes import batch_sources, loader_switch
from gpuconsole.agent.hooks.changes import loader as loaders_of
from gpuconsole.agent.hooks.changes.change import (
    MAY_DIFFER,
    NEEDS_PERMISSION,
    SAME_SAMPLES,
    ChangeRefused,
    site,
)
from gpuconsole.agent.hooks.changes.loader import (
    NumWorkers,
    PinMemory,
    PrefetchFactor,
    is_out_of_reach,
    lost,
)
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


def train(
    watch: Watch, loader: Any, num_workers: int, *, at: int = 2, step_s: float = 0.002
) -> tuple[list[int], str | None, float]:
    """One epoch with a change after step `at`. Returns the samples that the program saw, the reason
    of a refusal, and the seconds until the answer. The program waits with its last batches until
    the answer has come."""
    seen, answer, asked, answered = list[int](), None, 0.0, 0.0
    watch.loader = weakref.ref(loader)
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
        except ChangeRefused as refused:
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


# --- the permission -------------------------------------------------------------------------------


def test_a_change_that_the_user_has_not_allowed_starts_nothing_and_replaces_nothing() -> None:
    with hooked(allowed=False) as watch:
        iterator = iter(loader := DataLoader(Faultless(400), 4))
        next(iterator)
        assert WORKERS.effect_here(watch) == MAY_DIFFER
        before, plain = dict(vars(iterator)), DataLoader._get_iterator
        for act in (WORKERS.set, WORKERS.prepare):
            with pytest.raises(ChangeRefused) as refused:
                act(watch, 2)
            assert NEEDS_PERMISSION in str(refused.value)
        assert (
            vars(iterator) == before
            and DataLoader._get_iterator is plain
            and not WORKERS.pending(watch)
        )
        WORKERS.set(watch, 0)  # its own value: nothing changes
        assert WORKERS.read(watch) == 0 and not workers_alive()
        del loader


def arrow() -> Any:
    return (
        pytest.importorskip("datasets")
        .Dataset.from_dict({"x": list(range(400)), "y": [[1.0]] * 400})
        .with_format("torch")
    )


def test_a_loader_that_the_loop_cannot_reach_needs_no_permission() -> None:
    with hooked(allowed=False) as watch:
        iterator = iter(loader := DataLoader(range(400), 4))
        seen = next(iterator).tolist()
        assert WORKERS.effect_here(watch) == SAME_SAMPLES
        WORKERS.set(watch, 2)
        while WORKERS.pending(watch):
            seen += next(iterator).tolist()
            time.sleep(0.01)
        assert WORKERS.read(watch) == 2 and len(workers_alive()) == 2
        assert seen + [index for indices in iterator for index in indices.tolist()] == list(
            range(400)
        )
        del loader


class Ranges(DataLoader[Any]):
    """A class of the program."""


@pytest.mark.parametrize(
    ("made", "known"),
    [
        (lambda: DataLoader(range(9), sampler=RandomSampler(range(9))), True),
        (
            lambda: DataLoader(
                range(9), batch_sampler=BatchSampler(SequentialSampler(range(9)), 2, False)
            ),
            True,
        ),
        (lambda: DataLoader(range(9), sampler=DistributedSampler(range(9), 1, 0)), True),
        (lambda: DataLoader(arrow(), 4, shuffle=True), True),
        (lambda: DataLoader(arrow().with_transform(lambda row: row), 4), False),
        (lambda: DataLoader(range(9), shuffle=True, generator=torch.Generator()), False),
        (lambda: DataLoader(range(9), sampler=[1, 2]), False),
        (lambda: DataLoader(range(9), collate_fn=list), False),
        (lambda: DataLoader(range(9), num_workers=1, worker_init_fn=print), False),
        (lambda: DataLoader(TensorDataset(torch.zeros(9)), 4), False),
        (lambda: DataLoader(Subset(range(9), [1, 2]), 4), False),
        (lambda: DataLoader(list(range(9)), 4), False),
        (lambda: Ranges(range(9), 4), False),
    ],
)
def test_the_list_of_loaders_that_the_loop_cannot_reach(made: Any, known: bool) -> None:
    assert is_out_of_reach(made()) == known


def test_names_are_replaced_only_while_a_change_serves(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuconsole.agent.hooks.changes.loader_switch.IDLE_S", 0.0)
    plain = DataLoader._get_iterator
    iterator = iter(loader := DataLoader(Faultless(4000), 4))
    seen = next(iterator)[1].tolist()
    own = set(vars(iterator))
    seen += change_to(watch, iterator, 2)
    assert DataLoader._get_iterator is not plain and "_next_data" in vars(iterator)
    seen += change_to(watch, iterator, 0)
    for _ in range(3):
        seen += next(iterator)[1].tolist()
    assert (
        DataLoader._get_iterator is plain
        and set(vars(iterator)) == own
        and not loaders_of._controls
    )
    assert seen + [index for _, indices in iterator for index in indices.tolist()] == list(
        range(4000)
    )
    del loader


# --- the samples ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_random_changes_over_epochs(watch: Watch) -> None:
    """Programs with own samplers, persistent workers and breaks.
    `benchmarks/own_job/loader_changes.py` makes 1 000 such changes on two ranks."""
    changers = []
    for seed in (0, 2, 4, 7, 20):
        same, changer = compare(watch, seed)
        assert same, seed
        changers.append(changer)
    assert sum(changer.done for changer in changers) >= 20
    assert {reason for changer in changers for reason in changer.refused} <= {
        loaders_of.WORKERS_NEEDED
    }


@pytest.mark.parametrize(
    ("fault", "first"), [("raises", 0), ("dies", 0), ("raises", 200), ("dies", 200), ("hangs", 200)]
)
def test_workers_that_fail_are_replaced(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, fault: str, first: int
) -> None:
    monkeypatch.setattr("gpuconsole.agent.hooks.changes.batch_sources.HANG_S", 0.5)
    loader = DataLoader(Faulty(fault, first=first), 4)
    seen, _, _ = train(watch, loader, 2)
    assert seen == list(range(400)) and WORKERS.read(watch) == 0
    assert len(lost) == 1
    assert not workers_alive()


@pytest.fixture
def by_forkserver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default from Python 3.14 on."""
    monkeypatch.setattr(
        multiprocessing.context._default_context,
        "_actual_context",
        multiprocessing.get_context("forkserver"),
    )


@pytest.mark.slow
def test_workers_that_import_the_program_first(watch: Watch, by_forkserver: None) -> None:
    """The program does not wait for them."""
    iterator = iter(loader := DataLoader(Faultless(40_000), 4))
    seen = next(iterator)[1].tolist() + change_to(watch, iterator, 2)
    seen += next(iterator)[1].tolist()
    assert seen == list(range(len(seen))) and WORKERS.read(watch) == 2
    del loader


def test_a_script_that_workers_would_run_again_is_no_subject_of_a_trial(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, by_forkserver: None
) -> None:
    """The finding says so before anybody asks for the trial."""
    iterator = iter(loader := DataLoader(Faulty("none"), 4))
    next(iterator)
    assert loaders_of.training_loader(watch) == (loader, iterator) and not WORKERS.why_fixed(watch)
    monkeypatch.setattr(loaders_of, "_main_is_guarded", lambda: False)
    assert (
        "by forkserver here, and the script has no `if __name__ == '__main__'`"
        in WORKERS.why_fixed(watch)
    )
    assert not PrefetchFactor().why_fixed(watch)
    with pytest.raises(ChangeRefused, match="forkserver"):
        WORKERS.set(watch, 2)


def test_an_error_of_the_dataset_is_raised_as_without_us(watch: Watch) -> None:
    class Broken(Numbers):
        def __getitem__(self, index: int) -> Any:
            if index == 300:
                raise ValueError("sample 300 is broken")
            return torch.zeros(1), index

    loader = DataLoader(Broken(400), 4)
    with pytest.raises(ValueError, match=r"^sample 300 is broken$"):
        train(watch, loader, 2)
    assert lost == [f"{loader_switch.FALLEN}: ValueError: sample 300 is broken"]


def test_an_error_of_the_sampler_is_raised_when_it_is_due(watch: Watch) -> None:
    def order() -> Iterator[int]:
        yield from range(300)
        raise ValueError("no more")

    class Order:
        __iter__ = staticmethod(order)

    iterator = iter(loader := DataLoader(Faultless(400), 4, sampler=Order()))
    seen = next(iterator)[1].tolist() + change_to(watch, iterator, 2)
    with pytest.raises(ValueError, match="no more"):
        seen.extend(index for _, indices in iterator for index in indices.tolist())
    assert seen == list(range(300))
    del loader


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


def test_a_script_without_a_main_guard_is_not_run_again(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('trains')\n")
    monkeypatch.setattr(
        "sys.modules",
        {**__import__("sys").modules, "__main__": type("Main", (), {"__file__": str(script)})},
    )
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
    with pytest.raises(ChangeRefused, match="divides its samples"):
        WORKERS.set(watch, 2)


def test_prefetch_factor_and_the_reasons_of_pin_memory(watch: Watch) -> None:
    loader = DataLoader(Faulty("none"), 4)
    iterator = iter(loader)
    next(iterator)
    WORKERS.set(watch, 1)
    PrefetchFactor().set(watch, 4)
    wait_until(lambda: next(iterator) is not None and not WORKERS.pending(watch), 10)
    assert (WORKERS.read(watch), PrefetchFactor().read(watch)) == (1, 4)
    assert "no GPU" in PinMemory().why_fixed(watch)


def test_workers_of_the_program_stay(watch: Watch) -> None:
    iterator = iter(loader := DataLoader(Faultless(400), 4, num_workers=1))
    next(iterator)
    with pytest.raises(ChangeRefused, match="num_workers=0 needs a new start"):
        WORKERS.set(watch, 0)
    del loader


def test_page_locked_memory_without_workers_needs_neither_workers_nor_the_permission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with hooked(allowed=False) as watch:
        iterator = iter(loader := DataLoader(Faultless(400), 4))
        next(iterator)
        PinMemory().set(watch, True)
        monkeypatch.setattr(
            dataloader._utils.pin_memory,
            "pin_memory",
            lambda batch, device=None: [*batch, "pinned"],
        )
        while PinMemory().pending(watch):
            next(iterator)
        assert next(iterator)[-1] == "pinned" and PinMemory().read(watch) is True
        PinMemory().set(watch, False)
        while PinMemory().pending(watch):
            next(iterator)
        assert len(next(iterator)) == 2 and not workers_alive()
        del loader


def test_no_loader(watch: Watch) -> None:
    assert WORKERS.read(watch) is None
    assert "no DataLoader" in WORKERS.why_fixed(watch)
    with pytest.raises(ChangeRefused):
        WORKERS.set(watch, 2)


def test_missing_private_names_refuse(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(Faulty("none"), 4)
    iterator = iter(loader)
    next(iterator)
    del iterator._base_seed
    with pytest.raises(ChangeRefused, match="lacks _base_seed"):
        WORKERS.set(watch, 2)


# --- loaders and epochs ---------------------------------------------------------------------------


def test_the_next_loader_of_the_program_has_its_own_settings_and_a_note_says_so(
    watch: Watch,
) -> None:
    iterator = iter(loader := DataLoader(Faultless(400), 4))
    next(iterator)
    change_to(watch, iterator, 2)
    del loader
    assert lost == [loaders_of.NEW_LOADER] and WORKERS.read(watch) == 2
    assert [index for _, indices in iterator for index in indices.tolist()][-1] == 399
    assert not workers_alive()
    iterator = iter(loader := DataLoader(Faultless(400), 4))
    next(iterator)
    assert WORKERS.read(watch) == 0
    del loader


def test_two_loaders_in_turn_are_refused(watch: Watch) -> None:
    one, other = (
        iter(first := DataLoader(Faultless(400), 4)),
        iter(second := DataLoader(Faultless(400), 4)),
    )
    next(one), next(other)
    watch.loader = weakref.ref(first)
    change_to(watch, one, 2)
    watch.loader = weakref.ref(second)
    with pytest.raises(ChangeRefused, match="several DataLoaders"):
        WORKERS.set(watch, 2)
    del first, second


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
    noted = batch_sources._origins.get(iterator)
    assert noted is not None
    watch.loader = noted[0]
    del noted
    place = site(watch, "loader")
    other = DataLoader(Faulty("none"), 4)
    watch.note_made("loader", other)
    del loader
    assert site(watch, "loader") == place != ""
    del iterator
    assert watch.loader is not None and watch.loader() is None and site(watch, "loader") != place


class ManyEpochs(DataLoader[Any]):
    """Keeps one iterator, as timm's MultiEpochsDataLoader and other loaders do. `ended`: how often
    an instance has ended."""

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
def test_a_loader_that_keeps_its_iterator_ends_its_workers_with_its_last_reference(
    watch: Watch, persistent: bool
) -> None:
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


USES = [
    (program, values, use)
    for program, values in ((0, [2]), (0, [2, 0]), (1, [2]), (1, [2, 1]))
    for use in ("look", "whole", "in turn", "the change under way")
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "values", "use"), matrix(USES, in_ci=[USES[0], USES[5], USES[10], USES[15]])
)
def test_another_iterator_of_the_loader_leaves_the_epoch_as_it_is(
    watch: Watch, program: int, values: list[int], use: str
) -> None:
    """As `next(iter(loader))` for a picture, or a whole pass for an evaluation, in the middle of an
    epoch: the change ends."""
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
            beside += (
                [index for _, indices in [next(other)] for index in indices.tolist()]
                if len(beside) < 200
                else []
            )
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
        with suppress(ChangeRefused):
            while WORKERS.pending(watch):
                seen += next(iterator)[1].tolist()
                time.sleep(0.005)
        assert WORKERS.read(watch) == program, "the program's own settings are back"
        assert seen + [index for _, indices in iterator for index in indices.tolist()] == everything
    assert [index for _, indices in loader for index in indices.tolist()] == everything, (
        "the next epoch"
    )
    del iterator, loader
    wait_until(lambda: not workers_alive(), PATIENCE_S)


@pytest.mark.parametrize("next_epoch", [False, True])
def test_workers_of_a_change_that_was_taken_back_end(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, next_epoch: bool
) -> None:
    monkeypatch.setattr("gpuconsole.agent.hooks.changes.loader_switch.IDLE_S", 0.2)
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


def test_a_program_that_asks_for_no_batch_refuses_the_change(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuconsole.agent.hooks.changes.loader_switch.UNUSED_S", 0.1)
    iterator = iter(loader := DataLoader(Faultless(400), 4))
    next(iterator)
    WORKERS.set(watch, 2)
    next(iterator)
    with pytest.raises(ChangeRefused, match="asked for no batch"):
        wait_until(lambda: not WORKERS.pending(watch), PATIENCE_S)
    del loader


def test_settings_whose_workers_failed_in_a_block_are_refused_at_the_next_switch(
    watch: Watch,
) -> None:
    """The steps after the failure had the program's own settings: a trial that went on would
    compare these with themselves."""
    iterator = iter(loader := DataLoader(Faulty("dies", first=200), 4))
    seen = next(iterator)[1].tolist() + change_to(watch, iterator, 2)
    while WORKERS.read(watch) == 2:
        seen += next(iterator)[1].tolist()
    assert loader_switch.FALLEN in lost.pop() and not lost
    seen += change_to(watch, iterator, 0)
    with pytest.raises(ChangeRefused, match=r"the last change to these settings ended: .*died"):
        WORKERS.set(watch, 2)
    assert WORKERS.read(watch) == 0
    assert seen + [index for _, indices in iterator for index in indices.tolist()] == list(
        range(400)
    )
    assert not workers_alive()
    del loader


def test_a_trial_of_a_setting_that_the_program_does_not_have(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without workers there is no prefetch_factor before the trial. The change was begun, and then
    answered by an error: it stayed in force."""
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


def test_a_program_that_takes_one_batch_of_each_epoch_refuses_the_change(watch: Watch) -> None:
    loader = DataLoader(Faulty("none"), 4)
    iterator = iter(loader)
    next(iterator)
    WORKERS.set(watch, 2)
    for _ in range(4):
        iterator = iter(loader)
        assert next(iterator)[1].tolist() == [0, 1, 2, 3] and WORKERS.pending(watch)
    iterator = iter(loader)
    with pytest.raises(ChangeRefused) as refused:
        WORKERS.pending(watch)
    assert str(refused.value) == loader_switch.SHORT and not workers_alive()


class Leveled(Faultless):
    """A curriculum."""

    level = 0.0

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([self.level]), index


def test_workers_begin_anew_with_each_epoch_and_are_gone_between_two(watch: Watch) -> None:
    """As torch's own: they see what the program has changed, and a program may wait for all its
    children."""
    loader = DataLoader(data := Leveled(400), 4)
    watch.loader = weakref.ref(loader)
    levels: list[set[float]] = []
    for epoch in range(4):
        data.level = float(epoch)
        iterator = iter(loader)
        if epoch == 1:
            change_to(watch, iterator, 2)
            assert len(workers_alive()) == 2
        levels.append({level for found, _ in iterator for level in found.flatten().tolist()})
        del iterator
        assert not workers_alive()
    assert levels == [{0.0}, {1.0}, {2.0}, {3.0}] and WORKERS.read(watch) == 2


# --- what loading reads and writes ----------------------------------------------------------------


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


def test_a_dataset_that_writes_gets_no_other_workers(watch: Watch, tmp_path: Path) -> None:
    """Workers would write in another order."""
    path = tmp_path / "loaded"
    iterator = iter(loader := DataLoader(Telling("writes", str(path)), 4))
    seen = next(iterator)[1].tolist()
    WORKERS.set(watch, 2)
    while not (answer := refusal(watch)):
        seen += next(iterator)[1].tolist()
    assert answer == loader_switch.WRITES
    seen += [index for _, indices in iterator for index in indices.tolist()]
    assert seen == list(range(400)) == [int(line) for line in path.read_text().split()]
    del loader


def test_a_dataset_that_prints_gets_no_workers(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
    assert answer == loader_switch.WRITES
    assert (tmp_path / "output").read_text().split("\n") == [
        f"loads {index}" for index in range(400)
    ] + [""]
    del loader


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_the_first_batches_do_not_print_is_printed_by_the_programs_own_loader(
    watch: Watch, num_workers: int, capfd: Any
) -> None:
    class Late(Faultless):
        def __getitem__(self, index: int) -> tuple[Any, int]:
            if index >= 200:
                os.write(1, f"{index}\n".encode())
            return super().__getitem__(index)

    iterator = iter(loader := DataLoader(Late(400), 4, num_workers=num_workers))
    seen = next(iterator)[1].tolist() + change_to(watch, iterator, 2)
    seen += [index for _, indices in iterator for index in indices.tolist()]
    assert (
        seen == list(range(400))
        and WORKERS.read(watch) == num_workers
        and lost == [f"{loader_switch.FALLEN}: {loader_switch.WRITES}"]
    )
    assert capfd.readouterr().out.split() == [str(index) for index in range(200, 400)]
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


class Records(Faultless):
    """Keeps a file open: as an attribute, in an archive, or as a global variable, which only its
    position shows."""

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


@pytest.mark.parametrize(
    ("kind", "name"),
    [("attribute", "records.bin"), ("archive", "records.zip"), ("global", "records.bin")],
)
def test_a_dataset_that_keeps_a_file_open_has_no_new_workers(
    watch: Watch, tmp_path: Any, kind: str, name: str
) -> None:
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
    except ChangeRefused as refused:
        answer = str(refused)
    assert answer == (
        f"the dataset holds the open file {name}, which processes cannot share: open it in each"
        " worker"
    )
    assert seen + [index for _, indices in iterator for index in indices.tolist()] == list(
        range(400)
    )
    Records.files.pop("file", None)
    del loader


def test_a_dataset_that_asks_by_an_open_connection_has_no_new_workers(watch: Watch) -> None:
    """Kept in a global object, which no look at the dataset finds."""
    server = socket.create_server(("127.0.0.1", 0))
    client = [socket.create_connection(server.getsockname())]
    answers, _ = server.accept()

    class Asking(Faultless):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            os.write(sender, b"x")
            return torch.tensor([float(len(os.read(descriptor, 1)))]), index

    descriptor, sender = client[0].fileno(), answers.fileno()
    iterator = iter(loader := DataLoader(Asking(400), 4))
    next(iterator)
    WORKERS.set(watch, 2)
    while not (answer := refusal(watch)):
        next(iterator)
    assert "an open socket" in answer and not workers_alive()
    del loader
    for end in (*client, answers, server):
        end.close()


# --- exceptions from outside ----------------------------------------------------------------------


class Preempted(BaseException):
    """What a signal handler of the program raises."""


class Interrupting:
    """Raises an exception at a line of the changes, counted from the moment at which `waits` is
    set."""

    def __init__(self) -> None:
        self.waits = self.raised = 0

    def __call__(self, frame: Any, event: str, _: Any) -> Any:
        return (
            self._line
            if os.path.dirname(frame.f_code.co_filename) == os.path.dirname(loader_switch.__file__)
            else None
        )

    def _line(self, frame: Any, event: str, _: Any) -> Any:
        if self.waits and event == "line":
            self.waits -= 1
            if not self.waits:
                self.raised += 1
                raise Preempted
        return self._line


# CI has every third line with one way of loading and every fifth with the other: together the
# begin, the time in force and the end
LINES = range(1, 200, 9)


@pytest.mark.parametrize(
    ("program", "at"),
    matrix(
        itertools.product((0, 1), LINES),
        [(0, at) for at in LINES[::3]] + [(1, at) for at in LINES[1::5]],
    ),
)
def test_an_exception_from_outside_ends_the_wait_for_a_batch_and_loses_at_most_this_batch(
    watch: Watch, program: int, at: int
) -> None:
    """While a change begins, is in force, and goes; wherever it comes."""
    loader = DataLoader(Faultless(400), 4, num_workers=program)
    iterator, interrupting, seen, asked, values = (
        iter(loader),
        Interrupting(),
        list[int](),
        False,
        [2, program, 3],
    )
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
            except ChangeRefused:
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
def test_each_exception_of_a_signal_handler_or_another_thread_arrives(
    watch: Watch, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised, caught, seen, delays = 0, 0, list[int](), random.Random(0)
    dropped: list[Any] = []
    # a `__del__` of torch's, as without us
    monkeypatch.setattr(sys, "unraisablehook", lambda report: dropped.append(report.object))
    loader, main = DataLoader(Faultless(40_000), 4), threading.get_ident()
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
            try:
                seen += next(iterator)[1].tolist()
                # once, where an exception has ended the wait for a batch of the workers
                with suppress(ChangeRefused):
                    WORKERS.set(watch, 2)
                seen += change_to(watch, iterator, 2)
            except StopIteration:
                # an exception within a generator of torch's sampler ends it, as without us
                iterator, seen = iter(loader), []
                continue
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
    assert not [
        function
        for function in dropped
        if str(getattr(function, "__module__", "")).startswith("gpuconsole")
    ]
    del iterator, loader


# --- the children of the program ------------------------------------------------------------------


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
            rest = (
                [] if program else [index for _, indices in iterator for index in indices.tolist()]
            )
            del iterator
            gc.collect()
            failed = whole != list(range(400)) or (not program and seen + rest != list(range(400)))
        finally:
            os._exit(int(failed))
    assert os.waitpid(child, 0)[1] == 0
    assert workers_alive() == alive
    seen += [index for _, indices in iterator for index in indices.tolist()]
    assert seen == list(range(400)) and WORKERS.read(watch) == 2 and not lost
