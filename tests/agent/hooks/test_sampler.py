"""Samples of the training thread's stack: what they tell, and that the program does not notice the
thread that takes them."""

from __future__ import annotations

import gc
import hashlib
import os
import re
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gpuconsole.agent.hooks.recorder import (
    BACKWARD,
    FORWARD,
    GAP,
    LOADER,
    LOG,
    NO_GRAD,
    OPTIMIZER,
    OWN,
)
from gpuconsole.agent.hooks.sampler import NATIVE, PYTHON, WAITS, StackSampler
from gpuconsole.agent.hooks.threads import SWITCH_S
from gpuconsole.agent.hooks.watch import recorder
from tests.agent.listener import Listener

PROGRAM = Path(__file__).parents[1] / "programs" / "sampled.py"


class StepwiseSampler(StackSampler):
    """A sampler whose step has ended whenever its samples are taken."""

    def take(self) -> list[tuple[str, str, float, str, list[str]]]:
        recorder.index += 1
        return [
            sample
            for sample in super().take()
            if not any("StepwiseSampler" in line for line in sample[4])
        ]  # this method is a line, too


@pytest.fixture
def sampler() -> Iterator[StackSampler]:
    """A sampler of this thread, which is the training thread meanwhile."""
    recorder.begin([])
    sampler = StepwiseSampler()
    sampler.faster(60)
    yield sampler
    sampler.stop()
    recorder.reset()


def work(sampler: StackSampler, what: Callable[[], object], least: int = 12) -> dict[str, float]:
    """Do `what` again and again until there are enough samples. The shares of what the thread did
    in its lines here."""
    sampler.resume()
    kinds: dict[str, float] = {}
    until = time.monotonic() + 20
    while sum(kinds.values()) < least and time.monotonic() < until:
        what()
        for _, kind, weight, _, lines in sampler.take():
            if any(line.startswith("test_sampler.py") for line in lines):
                kinds[kind] = kinds.get(kind, 0.0) + weight
    total = sum(kinds.values())
    assert total >= least, "too few samples"
    return {kind: weight / total for kind, weight in kinds.items()}


def compute() -> int:
    return sum(n * n for n in range(20_000))


@pytest.mark.rates
@pytest.mark.slow
def test_a_thread_that_sleeps_waits(sampler: StackSampler) -> None:
    assert work(sampler, lambda: time.sleep(0.05))[WAITS] > 0.8


def test_what_is_not_known_on_a_busy_machine_is_as_it_was_last_known(
    sampler: StackSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where neither thread had a core, a late sample does not show who had the lock."""
    left, right = torch.ones(512, 512), torch.ones(512, 512)
    answers: list[str] = []

    def kind(late_s: float) -> tuple[str, int]:
        answers.append(NATIVE if len(answers) < 3 else "")
        return answers[-1], 0

    monkeypatch.setattr(sampler, "_kind", kind)
    assert work(sampler, lambda: torch.mm(left, right)) == {NATIVE: 1.0}
    assert answers.count("") > 3


@pytest.mark.rates
@pytest.mark.slow
def test_python_and_code_without_the_interpreter_lock_are_told_apart(sampler: StackSampler) -> None:
    assert work(sampler, compute, 40)[PYTHON] > 0.7
    assert (
        work(sampler, lambda: hashlib.pbkdf2_hmac("sha256", b"a", b"b", 100_000), 40)[NATIVE] > 0.7
    )


@pytest.mark.parametrize(
    ("ended", "code", "part"),
    [
        ((), FORWARD, "forward"),
        ((FORWARD,), BACKWARD, "backward"),
        ((), LOADER, "data_wait"),
        ((OPTIMIZER,), None, "between"),
        ((LOADER,), None, "feed"),
        ((FORWARD,), None, "loss"),
        ((FORWARD, FORWARD, NO_GRAD), None, "loss"),
        ((OPTIMIZER, NO_GRAD), None, "between"),  # generation
        ((FORWARD, FORWARD, BACKWARD), None, "clip"),
        ((FORWARD, BACKWARD, LOG), None, "clip"),
    ],
)
def test_a_sample_has_the_part_of_the_step_and_the_lines_of_the_program(
    sampler: StackSampler, ended: tuple[int, ...], code: int | None, part: str
) -> None:
    for segment in ended:
        recorder.enter(segment)
        recorder.leave()
    if code is not None:
        recorder.enter(code)
    sampler.resume()
    until = time.monotonic() + 10
    samples = []
    while not samples and time.monotonic() < until:
        compute()
        # A stack may end at a generator's frame: the generator has ended while the sampler walked.
        samples = [
            sample
            for sample in sampler.take()
            if len(sample[4]) > 1 and "test_a_sample_has" not in sample[4][0]
        ]
    assert {sample[0] for sample in samples} == {part}
    lines = samples[0][4]
    assert re.fullmatch(r"test_sampler\.py:\d+ compute", lines[0]), (
        "a comprehension belongs to its function"
    )
    assert "test_a_sample_has_the_part_of_the_step" in lines[1], lines


def test_the_agents_own_work_and_the_steps_of_a_trial_have_no_samples(
    sampler: StackSampler,
) -> None:
    recorder.enter(OWN)
    sampler.resume()
    time.sleep(0.1)
    recorder.leave()
    recorder.arm = 1
    time.sleep(0.1)
    assert sampler.take() == []
    recorder.arm = 0
    assert work(sampler, lambda: time.sleep(0.02), 2)


def tasks() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def test_the_thread_is_hidden_receives_no_signal_and_is_gone_before_a_fork(
    sampler: StackSampler,
) -> None:
    threads, before = threading.enumerate(), tasks()
    work(sampler, lambda: time.sleep(0.02), 2)
    (task,) = tasks() - before
    assert threading.enumerate() == threads and threading.active_count() == len(threads)
    blocked = int(
        re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/self/task/{task}/status").read_text())[1], 16
    )  # type: ignore[index]
    assert blocked >> (signal.SIGTERM - 1) & 1 and blocked >> (signal.SIGCHLD - 1) & 1
    seen: list[set[str]] = []
    for _ in range(20):
        sampler.resume()
        pid = os.fork()
        if pid == 0:
            os._exit(len(tasks()) != 1)
        seen.append(tasks() - before)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert seen == [set()] * 20
    work(sampler, lambda: time.sleep(0.02), 2)


def test_no_garbage_is_collected_in_the_thread(sampler: StackSampler) -> None:
    collected: list[int] = []
    note = lambda phase, info: collected.append(threading.get_ident())  # noqa: E731
    gc.callbacks.append(note)
    try:
        work(sampler, lambda: [[n] for n in range(3000)], 60)
    finally:
        gc.callbacks.remove(note)
    others = [ident for ident in collected if ident != threading.get_ident()]
    assert len(collected) > 20 and len(others) <= len(collected) / 50


def test_the_end_of_the_sampled_thread_is_no_failure(sampler: StackSampler) -> None:
    def train() -> None:
        recorder.begin([])
        sampler.resume()
        time.sleep(0.1)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    time.sleep(0.05)
    recorder.begin([])
    assert work(sampler, lambda: time.sleep(0.02), 2)


def test_exceptions_of_the_program_in_its_thread_do_not_reach_the_sampler(
    sampler: StackSampler,
) -> None:
    """`take` runs in the program's thread; what a frame of the program holds is not asked for
    anything."""

    class Globals(dict[str, object]):
        def get(self, *_: object) -> object:
            raise SystemExit

    sampler.resume()
    names = Globals(time=time, __builtins__=__builtins__)
    exec(
        compile(
            "for _ in range(10): time.sleep(0.02)",
            os.path.dirname(os.__file__) + "/a_library.py",
            "exec",
        ),
        names,
    )
    assert sampler.take()


def test_a_sample_keeps_nothing_of_the_program_alive(sampler: StackSampler) -> None:
    """The frames of all threads, with that of the sampling function itself among them, would keep
    each other and all their variables alive."""

    class Tensor:
        pass

    def step() -> weakref.ref[Tensor]:
        tensor = Tensor()
        sampler._thread = threading.get_ident()
        for code in (GAP, OWN):  # the agent's own work is no part of a step
            recorder.stack[-1] = code
            thread = threading.Thread(target=sampler._sample, args=(0.0,))
            thread.start()
            thread.join()
        recorder.stack[-1] = GAP
        return weakref.ref(tensor)

    gc.disable()
    try:
        assert step()() is None
    finally:
        gc.enable()


def test_the_switch_interval_is_the_programs_own_outside_of_samples(sampler: StackSampler) -> None:
    usual_s, seen = sys.getswitchinterval(), set[float]()
    work(sampler, lambda: seen.add(sys.getswitchinterval()), 10)
    assert seen <= {usual_s, SWITCH_S} and usual_s in seen
    sampler.stop()
    assert sys.getswitchinterval() == usual_s


def test_a_switch_interval_that_the_program_sets_is_left_alone(sampler: StackSampler) -> None:
    usual_s = sys.getswitchinterval()
    work(sampler, lambda: None, 5)
    try:
        sys.setswitchinterval(0.002)
        seen = set[float]()
        work(sampler, lambda: seen.add(sys.getswitchinterval()), 10)
        sampler.stop()
        assert seen == {sys.getswitchinterval()} == {0.002}
    finally:
        sys.setswitchinterval(usual_s)


def test_a_watchdog_that_names_each_thread_with_a_frame_knows_all_of_them(
    sampler: StackSampler,
) -> None:
    """`names[ident] for ident in sys._current_frames()` ended with KeyError. A look may still find
    the thread where the kernel has stopped it within a sample."""
    looks, strangers, before, until = 0, 0, sampler.cpu_s, time.monotonic() + 20
    known = sys._current_frames().keys()  # among them those of a program that runs the tests
    sampler.resume()
    while looks < 2000 or (sampler.cpu_s == before and time.monotonic() < until):
        strangers += not sys._current_frames().keys() <= known
        looks += 1
        time.sleep(0.0002)
    assert sampler.cpu_s > before and strangers <= looks / 50


def test_two_files_with_one_name_are_told_apart(sampler: StackSampler) -> None:
    assert sampler._place("/a/first/utils.py", 3) == "utils.py:3"
    assert (
        sampler._place("/a/second/utils.py", 3) == "second/utils.py:3"
        and sampler._place("/a/first/utils.py", 4) == "utils.py:4"
    )


@pytest.mark.slow
@pytest.mark.rates
def test_the_shares_of_the_places_of_a_job_are_those_of_its_own_clock(tmp_path: Path) -> None:
    listener = Listener(tmp_path)
    done = listener.run(sys.executable, str(PROGRAM))
    assert done.returncode == 0, done.stderr
    (watched,) = listener.watched
    assert watched.off is None
    truth = {
        name: float(share) for name, share in (line.split() for line in done.stdout.splitlines())
    }
    total = sum(sample.weight for sample in watched.samples)
    assert total > 60
    for name, part, kind in (
        ("match", "loss", PYTHON), ("ask", "between", WAITS), ("forward", "forward", None),
        ("read", "data_wait", WAITS),
    ):  # fmt: skip
        inside = [s for s in watched.samples if any(line.endswith(name) for line in s.lines)]
        share = sum(sample.weight for sample in inside) / total
        assert share == pytest.approx(truth[name], abs=0.1), name
        most = sum(
            sample.weight
            for sample in inside
            if sample.part == part and kind in (None, sample.kind)
        )
        assert most >= 0.6 * share * total, name


def test_what_torch_does_counts_as_torchs_whatever_library_calls_it(sampler: StackSampler) -> None:
    """A trainer of another library, and a model of one, are no code of the program."""
    names: dict[str, Any] = {"__name__": "fw.trainer", "torch": torch}
    code = (
        "def fit(x):\n    for _ in range(20):\n        torch.nn.functional.interpolate(x,"
        " scale_factor=4, mode='bicubic')\n"
    )
    exec(compile(code, "/lib/site-packages/fw/trainer.py", "exec"), names)
    sampler.resume()
    callees: set[str] = set()
    until = time.monotonic() + 20
    while "torch.interpolate" not in callees and time.monotonic() < until:
        names["fit"](torch.ones(1, 3, 64, 64))
        callees |= {
            callee
            for _, _, _, callee, lines in sampler.take()
            if lines and "test_what_torch_does" in lines[0]
        }
    assert "torch.interpolate" in callees and callees <= {"torch.interpolate", "fw.fit"}


class OwnOptimizer(torch.optim.Optimizer):
    """An optimizer of the program, which computes in a method of its own."""

    def __init__(self, weights: list[torch.Tensor]) -> None:
        super().__init__(weights, {})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.compute()

    def compute(self) -> None:
        torch.linalg.eigh(torch.eye(96))


@pytest.mark.parametrize("what", ["optimizer", "backward", "closure"])
def test_frames_tell_the_part_of_a_step_that_is_only_counted(
    sampler: StackSampler, what: str
) -> None:
    """Most steps of a few ms are only counted: nothing marks their parts."""
    recorder.enter(OPTIMIZER)
    recorder.leave()
    weight = torch.eye(160, requires_grad=True)
    own, plain = OwnOptimizer([weight]), torch.optim.SGD([weight], lr=0.0)

    def closure() -> torch.Tensor:
        return torch.linalg.svdvals(weight.detach()).sum()

    def pass_back() -> None:
        torch.linalg.svdvals(weight).sum().backward()

    actions = {
        "optimizer": own.step,
        "backward": pass_back,
        "closure": lambda: plain.step(closure),
    }
    sampler.resume()
    parts: dict[str, float] = {}
    until = time.monotonic() + 20
    while sum(parts.values()) < 10 and time.monotonic() < until:
        actions[what]()  # type: ignore[operator]
        for part, _, weight_of, callee, _ in sampler.take():
            if what != "backward" or callee == "torch.Tensor.backward":
                parts[part] = parts.get(part, 0.0) + weight_of
    expected = {"closure": "between"}.get(what, what)
    assert parts[expected] > 0.8 * sum(parts.values()), parts


def test_lines_of_a_program_that_has_no_file_are_the_programs(sampler: StackSampler) -> None:
    sampler.resume()
    names = {"__name__": "__main__", "time": time}
    exec(
        compile(
            "def wait():\n    time.sleep(0.05)\nfor _ in range(4):\n    wait()\n",
            "<string>",
            "exec",
        ),
        names,
    )
    assert [lines for *_, lines in sampler.take() if lines and lines[0] == "<string>:2 wait"]


def test_what_the_program_does_after_its_last_step_belongs_to_no_step(
    sampler: StackSampler,
) -> None:
    sampler.resume()
    until = time.monotonic() + 20
    while not sampler._of_step and time.monotonic() < until:
        sum(range(1000))
    assert sampler._of_step and StackSampler.take(sampler) == []
    recorder.index += 1
    assert StackSampler.take(sampler)
