"""Programs with a DataLoader, for the tests of live changes and for the stress command: what they
see with changes and without."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import torch.utils.data.dataloader as dataloader
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

from gpuconsole.agent.hooks.changes import loader as loaders_of
from gpuconsole.agent.hooks.changes import loader_switch
from gpuconsole.agent.hooks.changes.batch_sources import belongs_to
from gpuconsole.agent.hooks.changes.change import ChangeRefused
from gpuconsole.agent.hooks.changes.loader import NumWorkers, PrefetchFactor
from gpuconsole.agent.hooks.watch import Watch

KINDS = ("shuffle", "generator", "sampler", "batch_sampler", "single", "distributed")


@contextmanager
def hooked(*, allowed: bool = True) -> Iterator[Watch]:
    """What the changes need of the hooks, without the rest of the agent. `allowed`: the user has
    given the permission (--allow-loader)."""
    base = dataloader._BaseDataLoaderIter
    watch, init = Watch(), base.__init__
    watch.allows_loader = allowed

    def __init__(self: Any, loader: Any) -> None:
        init(self, loader)
        if not getattr(loader, "_gpuconsole_server", False):
            watch.note_origin(loader, belongs_to(self, loader))
            watch.iterators[:] = [one for one in watch.iterators if one() is not None]
            watch.iterators.append(weakref.ref(self))

    base.__init__ = __init__
    plain = DataLoader._get_iterator
    try:
        yield watch
    finally:
        base.__init__ = init
        loaders_of.leave()  # a loader in a reference cycle may outlive its test
        loader_switch.lost.clear()
        assert DataLoader._get_iterator is plain


def workers_alive() -> list[int]:
    """The children of this process that were forked: multiprocessing does not know the workers of a
    change."""
    own = Path("/proc/self/cmdline").read_bytes()
    found = {child.pid for child in multiprocessing.active_children() if child.pid is not None}
    for task in os.listdir("/proc/self/task"):
        with suppress(OSError):  # the thread has ended, or the child
            for pid in Path(f"/proc/self/task/{task}/children").read_text().split():
                if Path(f"/proc/{pid}/cmdline").read_bytes() == own:  # empty for a zombie
                    found.add(int(pid))
    return sorted(found)


def refusal(watch: Watch) -> str:
    """Why the change of the number of workers that is under way was refused; empty while it is
    under way."""
    try:
        assert NumWorkers().pending(watch)
    except ChangeRefused as refused:
        return str(refused)
    return ""


class Numbers(Dataset[Any]):
    """Sample i is i."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((3,), float(index)), "i": index}


class Shuffled(Sampler[int]):
    """Draws its order from torch's global generator at once."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.count).tolist())


class Batches:
    """A batch sampler that draws from Python's generator."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size

    def __len__(self) -> int:
        return self.count // self.size

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(self.count))
        random.shuffle(order)
        return iter([order[k : k + self.size] for k in range(0, self.count, self.size)])


class Program:
    """A training program with a random configuration, without the training."""

    def __init__(self, seed: int, rank: int = 0) -> None:
        choose = random.Random(seed)
        self.seed, self.rank = seed, rank
        self.kind = choose.choice(KINDS)
        self.count, self.size = choose.randrange(40, 160), choose.choice([1, 3, 8])
        self.epochs = choose.randrange(2, 5)
        self.breaks = [
            choose.randrange(3, 12) if choose.random() < 0.3 else None for _ in range(self.epochs)
        ]
        self.options: dict[str, Any] = {"num_workers": choose.choice([0, 0, 1, 2, 3])}
        if self.options["num_workers"]:
            self.options |= {
                "persistent_workers": choose.random() < 0.5,
                "prefetch_factor": choose.choice([1, 2, 4]),
            }

    def loader(self) -> Any:
        data, size, options = Numbers(self.count), self.size, self.options
        if self.kind == "shuffle":
            return DataLoader(data, size, shuffle=True, drop_last=bool(self.seed % 2), **options)
        if self.kind == "generator":
            return DataLoader(
                data, size, shuffle=True, generator=torch.Generator().manual_seed(5), **options
            )
        if self.kind == "sampler":
            return DataLoader(data, size, sampler=Shuffled(self.count), **options)
        if self.kind == "batch_sampler":
            return DataLoader(data, batch_sampler=Batches(self.count, size), **options)
        if self.kind == "single":
            return DataLoader(data, batch_size=None, sampler=Shuffled(self.count), **options)
        return DataLoader(
            data, size, sampler=DistributedSampler(data, num_replicas=2, rank=self.rank), **options
        )

    def run(self, after_step: Callable[[], None]) -> list[Any]:
        """What the program sees, and draws of its random generators in the end."""
        torch.manual_seed(self.seed)
        random.seed(self.seed)
        loader, seen = self.loader(), list[Any]()
        for epoch in range(self.epochs):
            if self.kind == "distributed":
                loader.sampler.set_epoch(epoch)
            for step, batch in enumerate(loader):
                index = batch["i"]
                seen.append(index.tolist() if isinstance(index, torch.Tensor) else index)
                torch.rand(1), random.random()  # what a model with dropout does
                after_step()
                if step == self.breaks[epoch]:
                    break
            seen.append(float(torch.rand(1)))
        return [*seen, float(torch.rand(1)), random.random()]


class Changer:
    """Makes random changes after steps of a program. `done`: changes in force; `refused`: the
    reasons of the others."""

    def __init__(self, watch: Watch, seed: int) -> None:
        self.done = 0
        self.refused: list[str] = []
        self._watch, self._choose = watch, random.Random(seed)
        self._workers, self._prefetch = NumWorkers(), PrefetchFactor()
        self._under_way = False

    def after_step(self) -> None:
        try:
            if self._under_way:
                self._under_way = self._workers.pending(self._watch)
                self.done += not self._under_way
                time.sleep(0.002 if self._under_way else 0.0)
            elif self._choose.random() < 0.3:
                workers = self._choose.randrange(4)
                self._workers.set(self._watch, workers)
                if workers and self._choose.random() < 0.5:
                    self._prefetch.set(self._watch, self._choose.choice([1, 2, 4]))
                self._under_way = True
        except ChangeRefused as refused:
            self.refused.append(str(refused))
            self._under_way = False


def compare(watch: Watch, seed: int, rank: int = 0) -> tuple[bool, Changer]:
    """Run a random program without changes and with random changes. Returns whether it saw the
    same, and the changes."""
    expected = Program(seed, rank).run(lambda: None)
    changer = Changer(watch, seed)
    return Program(seed, rank).run(changer.after_step) == expected, changer
