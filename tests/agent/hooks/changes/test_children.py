"""What a program would notice of the workers of a change, and what these keep to themselves."""

from __future__ import annotations

import functools
import io
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from gpuconsole.agent.hooks.changes import loader as loaders_of
from gpuconsole.agent.hooks.changes import loader_switch
from gpuconsole.agent.hooks.changes.batch_sources import begin_worker
from gpuconsole.agent.hooks.changes.loader import NumWorkers
from gpuconsole.agent.hooks.watch import Watch
from tests.agent.hooks.changes.loaders import hooked, workers_alive
from tests.waiting import wait_until

PATIENCE_S = 20.0
WORKERS = NumWorkers()


@pytest.fixture
def watch() -> Iterator[Watch]:
    with hooked() as watch:
        yield watch


class Telling(Dataset[int]):
    """Sample i is i. Says so at some samples, long after workers were added."""

    def __init__(self, how: str, path: Path, length: int = 400) -> None:
        self.how, self.path, self.length = how, path, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index % 150 == 149 and self.how == "prints":
            os.write(1, f"loads {index}\n".encode())
        elif index % 150 == 149 and self.how == "prints by another program":
            os.system(f"echo loads {index}")
        return index


def changed(watch: Watch, loader: Any) -> list[int]:
    """An epoch in which workers are added at the beginning. Prints in its middle."""
    seen: list[int] = []
    pending = False
    for step, batch in enumerate(loader):
        seen += batch.tolist()
        if step == 1:
            WORKERS.set(watch, 2)
            pending = True
        if pending:
            time.sleep(0.05)  # a busy machine takes a second to start two workers
            pending = WORKERS.pending(watch)
        if step == 30:
            assert not pending and WORKERS.read(watch) == 2
        if step % 25 == 0:
            print("step", step, flush=True)
    return seen


@pytest.mark.parametrize("how", ["prints", "prints by another program"])
def test_a_dataset_that_prints_seldom_prints_what_it_prints_alone(
    watch: Watch, how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def alone() -> list[int]:
        seen: list[int] = []
        for step, batch in enumerate(loader):
            seen += batch.tolist()
            if step % 25 == 0:
                print("step", step, flush=True)
        return seen

    loader = DataLoader(Telling(how, Path()), 4)
    seen, output = alone(), capfd.readouterr().out
    assert "loads 299\n" in output
    assert (changed(watch, loader), capfd.readouterr().out) == (seen, output)
    assert loaders_of.lost == [f"{loader_switch.FALLEN}: {loader_switch.WRITES}"]
    assert not workers_alive()


def test_a_worker_gets_no_signal_of_the_programs_group_and_runs_no_handler_of_it(
    watch: Watch, tmp_path: Path
) -> None:
    path = tmp_path / "handled"
    before = signal.signal(signal.SIGUSR1, lambda *_: path.write_text("handled"))
    try:
        # on a busy machine workers take long to start
        iterator = iter(loader := DataLoader(Telling("", Path(), 400_000), 4))
        next(iterator)
        WORKERS.set(watch, 2)
        while WORKERS.pending(watch):
            next(iterator)
        workers = workers_alive()
        assert len(workers) == 2
        for pid in workers:
            assert os.getpgid(pid) not in (os.getpgrp(), os.getpgid(os.getppid()))
            os.kill(pid, signal.SIGUSR1)
        for _ in range(12):
            next(iterator)
        assert workers_alive() == workers and not path.exists()
        del iterator, loader
        wait_until(lambda: not workers_alive(), PATIENCE_S)
    finally:
        signal.signal(signal.SIGUSR1, before)


class Failing(Dataset[int]):
    """Sample i is the code with which another program ends."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return subprocess.run(["false"], check=False).returncode


def test_a_worker_learns_how_other_programs_end_whatever_handlers_torch_has() -> None:
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        loader = DataLoader(
            Failing(),
            1,
            num_workers=1,
            worker_init_fn=functools.partial(
                begin_worker, None, multiprocessing.Semaphore(0), False
            ),
        )
        assert [int(batch) for batch in loader] == [1, 1]
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_signal_of_a_worker_wakes_nothing_in_the_program() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    os.set_blocking(reading, False)
    before, wakeup = signal.signal(signal.SIGUSR1, lambda *_: None), signal.set_wakeup_fd(writing)
    try:
        loader = DataLoader(
            Signalled(),
            1,
            num_workers=1,
            worker_init_fn=functools.partial(
                begin_worker, None, multiprocessing.Semaphore(0), False
            ),
        )
        assert [int(batch) for batch in loader] == [0, 1]
        wrote = os.read(reading, 100) if _readable(reading) else b""
        assert signal.SIGUSR1 not in wrote
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGUSR1, before)
        os.close(reading)
        os.close(writing)


def _readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


class Signalled(Dataset[int]):
    """Sample i is i. Its process sends itself a signal."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), signal.SIGUSR1)
        return index


def test_what_a_program_has_put_in_place_of_its_output_is_left_as_it_is(tmp_path: Path) -> None:
    """The beginning of a worker may send its output to a file of the program."""
    path = tmp_path / "worker.log"
    path.write_text("kept\n")

    def to_file(number: int) -> None:
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, 1)

    loader = DataLoader(
        Telling("", Path()),
        100,
        num_workers=1,
        worker_init_fn=functools.partial(
            begin_worker, to_file, multiprocessing.Semaphore(0), False
        ),
    )
    assert len(list(loader)) == 4
    assert path.read_text() == "kept\n"


@pytest.mark.parametrize("state", ["detached", "closed"])
def test_a_program_without_a_stdout_may_have_workers(
    monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    stream = io.TextIOWrapper(io.BytesIO())
    stream.close() if state == "closed" else stream.detach()
    monkeypatch.setattr(sys, "__stdout__", stream)
    loader = DataLoader(
        Telling("", Path()),
        100,
        num_workers=1,
        worker_init_fn=functools.partial(begin_worker, None, multiprocessing.Semaphore(0), False),
    )
    assert len(list(loader)) == 4


class Tensors(Telling):
    """Sample i is a tensor. The main thread of a worker makes the batch in shared memory."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), index)


@pytest.mark.parametrize(
    "case", ["tensors are shared by files", "the beginning of a worker prints"]
)
def test_what_is_written_beside_the_loading_ends_no_change(watch: Watch, case: str) -> None:
    strategy = torch.multiprocessing.get_sharing_strategy()
    if "files" in case:
        torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        loader = DataLoader(
            Tensors("", Path()), 4, worker_init_fn=None if "files" in case else _greet
        )
        iterator = iter(loader)
        next(iterator)
        WORKERS.set(watch, 2)
        while WORKERS.pending(watch):
            next(iterator)
            time.sleep(0.01)
        for _ in range(12):
            next(iterator)
        assert WORKERS.read(watch) == 2 and not loaders_of.lost
        del iterator, loader
        wait_until(lambda: not workers_alive(), PATIENCE_S)
    finally:
        torch.multiprocessing.set_sharing_strategy(strategy)


def _greet(number: int) -> None:
    print("worker", number)


def test_the_workers_end_at_once_where_the_group_of_the_program_is_killed(watch: Watch) -> None:
    reading, writing = os.pipe()
    program = os.fork()
    if not program:
        try:
            os.setpgid(0, 0)
            iterator = iter(DataLoader(Telling("", Path()), 4))
            next(iterator)
            WORKERS.set(watch, 2)
            while WORKERS.pending(watch):
                next(iterator)
                time.sleep(0.01)
            os.write(writing, " ".join(map(str, workers_alive())).encode())
            time.sleep(PATIENCE_S)
        finally:
            os._exit(1)
    os.close(writing)
    workers = [int(pid) for pid in os.read(reading, 100).split()]
    os.close(reading)
    assert len(workers) == 2
    os.killpg(program, signal.SIGKILL)
    os.waitpid(program, 0)
    # torch's own workers look for their parent every 5 s
    wait_until(lambda: not any(map(_runs, workers)), 2.0)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
