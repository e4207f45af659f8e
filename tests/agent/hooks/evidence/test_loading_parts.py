"""Which part of loading a stack belongs to, and what is told of many samples."""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data._utils import worker as worker_module

from gpuconsole.agent.hooks.evidence import loading_parts as module
from gpuconsole.agent.hooks.evidence.loading_parts import LoadingPart, part_of, signals_of
from gpuconsole.agent.hooks.sampler import sampler
from gpuconsole.agent.hooks.watch import recorder
from gpuconsole.agent.probes import ProbeError
from gpuconsole.agent.protocol import CodePlace
from tests.waiting import wait_until

HERE = os.path.basename(__file__)
LIBRARY = """
class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, value):
        for transform in self.transforms:
            value = transform(value)
        return value


class Blur:
    def __call__(self, value):
        return look(value)


class Image:
    def filter(self):
        return look(0.0)
"""
seen: list[LoadingPart | None] = []


def look(value: Any) -> Any:
    """Note the part in which the caller is."""
    seen.append(part_of(sys._getframe(1)))
    return value


library: dict[str, Any] = {"look": look}
exec(compile(LIBRARY, "/x/site-packages/photos/transforms.py", "exec"), library)


class Shift:
    def __call__(self, value: Any) -> Any:
        return look(value)


class Items(Dataset):
    def __init__(self, work: Callable[[Any], Any]) -> None:
        self.work = work

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> float:
        self.work(0.0)
        return 0.0


def decoded(value: Any) -> Any:
    return look(value)


def sampled(dataset: Dataset, **options: Any) -> LoadingPart:
    seen.clear()
    next(iter(DataLoader(dataset, **options)))
    (part,) = seen
    assert part is not None
    return part


def named(part: LoadingPart) -> tuple[str, str]:
    return part.name, os.path.basename(part.file)


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (library["Compose"]([Shift(), library["Blur"]()][1:]), ("Blur", "")),
        (library["Compose"]([Shift()]), ("Shift", HERE)),
        (library["Compose"]([library["Compose"]([library["Blur"]()])]), ("Blur", "")),
        (library["Compose"]([decoded]), ("decoded", HERE)),
        (library["Compose"]([functools.partial(decoded)]), ("decoded", HERE)),
        (nn.Sequential(nn.Identity(), nn.Identity()), None),
        (decoded, ("decoded", HERE)),
        (Shift(), ("Shift" if sys.version_info >= (3, 11) else "__call__", HERE)),
        (lambda _: library["Image"]().filter(), ("<lambda>", HERE)),
    ],
    ids=[
        "of a library",
        "of the program",
        "nested",
        "function",
        "partial",
        "modules",
        "called function",
        "called object",
        "lambda",
    ],
)
def test_the_part_is_the_transform_or_the_function_under_way(
    work: Callable[[Any], Any], expected: tuple[str, str] | None
) -> None:
    if expected is None:
        work[1].forward = look  # type: ignore[index]
        part = sampled(Items(lambda _: work(torch.zeros(1))))
        assert part.name == "Identity"
    else:
        assert named(sampled(Items(work))) == expected


def test_what_a_line_of_the_dataset_calls_is_named_with_the_line() -> None:
    class Photos(Items):
        def __getitem__(self, index: int) -> float:
            library["Image"]().filter()
            return 0.0

    part = sampled(Photos(decoded))
    assert part.name == ("Image.filter" if sys.version_info >= (3, 11) else "filter")
    assert (os.path.basename(part.file), part.line) == (
        HERE,
        Photos.__getitem__.__code__.co_firstlineno + 1,
    )


def in_a_thread(held: Any, work: Callable[[], Any]) -> LoadingPart | None:
    """The part in which a thread is that loads, while another one has `held`."""

    class Waiting(Dataset):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> float:
            work()
            return 0.0

    thread = threading.Thread(target=lambda: next(iter(DataLoader(Waiting()))))
    held.acquire()
    try:
        thread.start()
        wait_until(lambda: waits_at(thread, work), 10, "the thread waits")
        return waits_at(thread, work)
    finally:
        held.release()
        thread.join()


def waits_at(thread: threading.Thread, work: Callable[[], Any]) -> LoadingPart | None:
    part = part_of(sys._current_frames().get(thread.ident or 0))
    return part if part is not None and part.line > work.__code__.co_firstlineno else None


def test_a_lock_that_the_workers_share_is_a_part_with_the_line_that_waits_for_it() -> None:
    lock, inner = multiprocessing.Lock(), threading.Lock()

    def reads() -> None:
        with lock:
            pass

    def reads_alone() -> None:
        with inner:
            pass

    part = in_a_thread(lock, reads)
    assert part is not None
    assert part.locked and part.code == CodePlace(
        f"{HERE}:{reads.__code__.co_firstlineno + 1}", module.LOCK
    )
    part = in_a_thread(inner, reads_alone)
    assert part is not None and not part.locked, "each worker has a lock of threading for itself"


def test_a_line_that_takes_a_lock_without_a_frame_is_a_part_of_its_own(tmp_path: Path) -> None:
    program = tmp_path / "read.py"
    program.write_text(
        "def read(path):\n    fcntl.flock(file, fcntl.LOCK_EX)\n    return file.read()\n"
    )
    parts = Counter(
        {LoadingPart("read", str(program), 2): 60, LoadingPart("read", str(program), 3): 40}
    )
    signals = signals_of(parts, 100, "of the loading processes")
    assert signals[module.LOCKED].value == 0.6
    assert signals[module.LOCKED].place == CodePlace("read.py:2", module.LOCK)
    assert signals[module.SHOWN[1]].place == CodePlace("read.py:3", "read")


def test_generators_and_collate_functions_are_parts() -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Any:
            yield look(0.0)

    assert sampled(Stream()).line == Stream.__iter__.__code__.co_firstlineno + 1

    def stacked(values: Any) -> Any:
        return look(values)

    assert sampled(Items(lambda value: value), collate_fn=stacked).name == "stacked"


def test_a_thread_that_does_not_load_is_in_no_part() -> None:
    assert part_of(sys._getframe()) is None


class Hidden:
    """Code of the program that must not run for a sample."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("__dict__", "transforms", "_modules"):
            raise AssertionError(name)
        return object.__getattribute__(self, name)

    def __call__(self, value: Any) -> Any:
        return look(value)


def test_a_sample_runs_no_code_of_the_program() -> None:
    assert named(sampled(Items(Hidden())))[1] == HERE


# --- many samples ---------------------------------------------------------------------------------


def test_a_function_is_one_part_and_a_line_of_the_dataset_another() -> None:
    own = "/home/u/train.py"
    parts = Counter(
        {
            LoadingPart("blur", own, 10): 30,
            LoadingPart("blur", own, 11): 31,
            LoadingPart("Image.open", own, 50, by_line=True): 20,
            LoadingPart("Image.open", own, 51, by_line=True): 10,
            LoadingPart("Flip", "", 0): 9,
        }
    )
    signals = signals_of(parts, 100, "of the loading processes")
    assert list(signals) == [*module.SHOWN, module.LOCKED]
    shown = [signals[name] for name in module.SHOWN]
    assert [round(signal.value, 2) for signal in shown] == [0.61, 0.2, 0.1]
    assert signals[module.LOCKED].value == 0
    assert [signal.place for signal in shown] == [
        CodePlace("train.py:11", "blur"),
        CodePlace("train.py:50", "Image.open"),
        CodePlace("train.py:51", "Image.open"),
    ]


def test_too_few_samples_are_a_refusal() -> None:
    with pytest.raises(
        ProbeError, match="only 3 stack samples of the loading processes were possible"
    ):
        signals_of(Counter({LoadingPart("blur", "", 0): 3}), 3, "of the loading processes")


def test_a_transform_of_a_library_stands_at_the_line_that_makes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "augment.py"
    program.write_text("import v2\n\nflip = v2.Flip()\nchain = [v2.Blur(3), v2.Flip()]\n")
    monkeypatch.setattr(module, "_program_files", lambda: [str(program)])
    signals = signals_of(
        Counter({LoadingPart("Blur", "", 0): 80, LoadingPart("Flip", "", 0): 20}),
        100,
        "of the loading processes",
    )
    assert [signal.place for signal in signals.values()] == [
        CodePlace("augment.py:4", "Blur"),
        CodePlace("", "Flip"),
        None,
    ]


# --- samples of a thread, and of workers ----------------------------------------------------------


class Busy(Dataset):
    """Most of the time is in `slow`. `stamps`: the seconds there, and all seconds, over all
    processes."""

    def __init__(self) -> None:
        self.stamps = torch.zeros(2, dtype=torch.float64).share_memory_()

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> float:
        begun = time.perf_counter()
        self.slow()
        self.stamps[0] += time.perf_counter() - begun
        time.sleep(0.0005)
        self.stamps[1] += time.perf_counter() - begun
        return 0.0

    def slow(self) -> None:
        time.sleep(0.0045)


@pytest.mark.parametrize("context", [None, "fork"])
def test_a_window_names_the_slow_part_and_leaves_nothing(
    context: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LENGTH_S", 1.5)
    monkeypatch.setattr(module, "_folder", [str(tmp_path)])
    plain = worker_module._worker_loop

    def worker_loop(*args: Any, **kwargs: Any) -> Any:
        """As Python shows the agent that the function begins."""
        module.begin_worker(sys._getframe())
        return plain(*args, **kwargs)

    monkeypatch.setattr(worker_module, "_worker_loop", worker_loop)
    recorder.begin([])
    try:
        workers = 0 if context is None else 2
        data = Busy()
        batches = iter(DataLoader(data, 8, num_workers=workers, multiprocessing_context=context))
        switch_s = sys.getswitchinterval()
        next(batches)
        module.window.begin(workers, 7)
        while not module.window.due():
            next(batches)
            sampler.resume()
        assert module.window.request == 7
        signal = module.window.answer()[module.SHOWN[0]]
        assert not module.window.request and not module.window.due()  # it goes on
    finally:
        module.window.end()
        sampler.stop()
        sampler._forget()
        recorder.reset()
    assert signal.place is not None
    assert signal.place.function == ("Busy.slow" if sys.version_info >= (3, 11) else "slow")
    assert signal.value == pytest.approx(float(data.stamps[0] / data.stamps[1]), abs=0.12)
    assert sys.getswitchinterval() == switch_s
    wait_until(lambda: not list(tmp_path.iterdir()), 10, "the workers leave no file")
