"""Several processes of a user's job: which of them are ranks of one run. Small programs take the
agent's part, because torch is slow to import."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from gpuconsole.agent.hooks import described
from gpuconsole.agent.hooks.connection import Connection
from gpuconsole.engine.children.job import JobChild, JobCommand
from gpuconsole.engine.children.worker import WorkerHandle
from gpuconsole.experiments.statistics import CHANGED
from gpuconsole.experiments.trial import OneWorker
from gpuconsole.wire.events import (
    AnyEvent,
    KnobsSet,
    Note,
    Profile,
    Profiled,
    RankJoined,
    SetKnobs,
    Steps,
)

AGENT = """
import base64, json, os, socket, struct, sys, time
def agent(rank, world_size, pid):
    line = socket.socket(socket.AF_UNIX)
    os.chdir(os.environ["GPUCONSOLE_AGENT"])
    line.connect("socket")
    line.settimeout(10)
    def send(**message):
        line.sendall(json.dumps({"t": 1.0, **message}).encode() + b"\\n")
    send(event="jobprocess", pid=pid, parent=1, script="train.py", python="3", torch="2", rank=0,
        world_size=1, token=os.environ["GPUCONSOLE_TOKEN"])
    send(event="rankjoined", rank=rank, host="here", pid=pid, leads=rank == 0,
        world_size=world_size)
    steps(line, 0, pid)
    return line
def steps(line, arm, *indices):
    packed = b"".join(struct.pack("<IdIIdBBHI", index, 1.0, 8, 0, 0.5, arm, 0, 0,
        1) + bytes([9]) + struct.pack("<d", 2.0) for index in indices)
    counts = dict(cpu_s=0.0, runq_s=0.0, overhead_s=0.0, memory_bytes=0.0, dropped=0, rank=0,
        counters={})
    line.sendall(json.dumps({"t": 1.0, "event": "segments",
        "packed": base64.b64encode(packed).decode(), **counts}).encode() + b"\\n")
def answer(line, step, knobs, error=None):
    line.sendall(json.dumps({"t": 2.0, "event": "knobsset", "request": 1, "step": step,
        "knobs": knobs, "error": error}).encode() + b"\\n")
def asked(*lines):
    for line in lines:
        line.recv(1000)
"""
TWO_RANKS = "lines = [agent(0, 2, 7), agent(1, 2, 8)]; time.sleep(0.3)"
TWO_TRAININGS = "first = agent(0, 1, 7); time.sleep(0.3); second = agent(0, 1, 8); second.recv(100)"
LEADER_LAST = """
leader, other = agent(0, 2, 7), agent(1, 2, 8)
asked(leader, other)
answer(other, 9, {"num_workers": 2})
time.sleep(0.2)
answer(leader, 8, {"num_workers": 4})
"""
OTHER_LEAVES = """
leader, other = agent(0, 2, 7), agent(1, 2, 8)
asked(leader, other)
answer(other, 9, {"num_workers": 2})
other.close()
time.sleep(0.2)
answer(leader, 8, {"num_workers": 4})
"""
OTHER_REFUSES = """
leader, other = agent(0, 2, 7), agent(1, 2, 8)
asked(leader, other)
answer(leader, 8, {"num_workers": 4})
answer(other, 9, {"num_workers": 2}, "no room")
"""
REHEARSES_LONGER = """
leader, other = agent(0, 2, 7), agent(1, 2, 8)
asked(leader, other)
answer(leader, 9, {"num_workers": 4})
steps(leader, 2, 9, 10)
time.sleep(0.2)
answer(other, 12, {"num_workers": 4})
time.sleep(0.2)
steps(leader, 2, 11, 12, 13)
"""

SILENT = "agent(0, 1, os.getpid()).close(); time.sleep(2)"
SLOW_END = """
import ctypes, torch
libc = ctypes.CDLL(None)
libc.on_exit(libc.sleep, None)  # the C library calls sleep(exit code) after the end of Python
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    weight.sum().backward()
    optimizer.step()
raise SystemExit(2)
"""


async def events_of(program: str, folder: Path) -> list[AnyEvent]:
    events: list[AnyEvent] = []
    child = JobChild(
        JobCommand((sys.executable, "-c", program)), folder, events.append, lambda code: None
    )
    await child.start()
    async with asyncio.timeout(60):
        await child.exited.wait()
    return events


def test_the_steps_of_each_process_belong_to_its_rank(tmp_path: Path) -> None:
    """The rank is the one of the first optimizer step: a program may start its processes itself,
    and set no RANK."""
    events = asyncio.run(events_of(AGENT + TWO_RANKS, tmp_path))
    assert [(steps.rank, steps.steps[0].index) for steps in events if isinstance(steps, Steps)] == [
        (0, 7),
        (1, 8),
    ]
    assert sorted(joined.rank for joined in events if isinstance(joined, RankJoined)) == [0, 1]


async def answer_of(program: str, folder: Path) -> KnobsSet:
    """The answer of a job of two ranks to a change."""
    events: list[AnyEvent] = []
    child = JobChild(
        JobCommand((sys.executable, "-c", AGENT + program)),
        folder,
        events.append,
        lambda code: None,
    )
    await child.start()
    async with asyncio.timeout(20):
        while sum(isinstance(event, RankJoined) for event in events) < 2:
            await asyncio.sleep(0.01)
        child.send(SetKnobs(1, {"num_workers": 4}))
        await child.exited.wait()
    (answer,) = (event for event in events if isinstance(event, KnobsSet))
    return answer


@pytest.mark.parametrize(
    "program", [LEADER_LAST, OTHER_LEAVES], ids=["comes last", "another has left"]
)
def test_the_answer_of_the_leading_rank_counts(program: str, tmp_path: Path) -> None:
    """Also where it comes last, and where a rank has answered and left."""
    assert asyncio.run(answer_of(program, tmp_path)).knobs == {"num_workers": 4}


def test_one_rank_that_refuses_refuses_for_all(tmp_path: Path) -> None:
    assert asyncio.run(answer_of(OTHER_REFUSES, tmp_path)).error == "no room"


def test_the_steps_of_a_trial_are_those_that_all_ranks_made_with_its_change(tmp_path: Path) -> None:
    """A rank may be ready some steps after the leader, and some of these steps reach the console
    after its answer."""

    async def counted() -> list[int]:
        ended, joined = asyncio.Event(), list[RankJoined]()
        program = (sys.executable, "-c", AGENT + REHEARSES_LONGER)
        worker = WorkerHandle(
            lambda event: joined.append(event) if isinstance(event, RankJoined) else None,
            lambda gone, code: ended.set(),
            job=JobCommand(program),
        )
        await worker.launch()
        async with asyncio.timeout(20):
            while len(joined) < 2:
                await asyncio.sleep(0.01)
            await OneWorker(worker, {"num_workers": 0}, {"num_workers": 4}).switch_to(CHANGED)
            await ended.wait()
        return [step.index for step in worker.trial_steps]

    assert asyncio.run(counted()) == [12, 13]


def test_the_console_may_end_while_the_job_is_connected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Python 3.11 logs a traceback where a handler of a connection is cancelled, as at the end of
    the console."""

    async def leave_at_once() -> None:
        program = "line = agent(0, 2, 7); line.recv(100)"
        child = JobChild(
            JobCommand((sys.executable, "-c", AGENT + program)),
            tmp_path,
            lambda event: None,
            lambda code: None,
        )
        await child.start()
        async with asyncio.timeout(20):
            while not child.processes:
                await asyncio.sleep(0.01)
        child.detach()

    asyncio.run(leave_at_once())
    assert caplog.text == ""


def test_a_job_outlives_the_transport_of_its_process(tmp_path: Path) -> None:
    """asyncio closes the transport at the end of the console, from Python 3.12 on, and kills a
    process that runs then."""

    async def leave() -> psutil.Process:
        child = JobChild(
            JobCommand((sys.executable, "-c", "import time; time.sleep(60)")),
            tmp_path,
            lambda event: None,
            lambda code: None,
        )
        await child.start()
        child.detach()
        assert child._process is not None
        child._process._transport.close()  # type: ignore[attr-defined]
        return psutil.Process(child._process.pid)

    job = asyncio.run(leave())
    try:
        with pytest.raises(psutil.TimeoutExpired):
            job.wait(0.5)
    finally:
        job.kill()
        job.wait()


def test_a_long_tmpdir_does_not_keep_the_job_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address of a Unix socket has at most 107 bytes."""
    long = tmp_path / ("x" * 120)
    long.mkdir()
    assert [
        steps.rank
        for steps in asyncio.run(events_of(AGENT + TWO_RANKS, long))
        if isinstance(steps, Steps)
    ] == [0, 1]
    listener = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(long)
    listener.bind("socket")
    listener.listen()
    Connection(str(long / "socket")).close()
    listener.close()


def test_a_second_training_of_its_own_is_not_mixed_into_the_first(tmp_path: Path) -> None:
    events = asyncio.run(events_of(AGENT + TWO_TRAININGS, tmp_path))
    assert [steps.steps[0].index for steps in events if isinstance(steps, Steps)] == [7]
    assert [event.text for event in events if isinstance(event, Note)] == [
        "process 8 of the job trains too, apart from the others: only the first training is shown"
    ]


def test_a_process_that_closes_its_connection_and_goes_on_is_named(tmp_path: Path) -> None:
    (note,) = (
        event.text
        for event in asyncio.run(events_of(AGENT + SILENT, tmp_path))
        if isinstance(event, Note)
    )
    assert note.endswith(
        "goes on without its connection to the console: its steps are not measured any more"
    )


@pytest.mark.slow
def test_a_process_that_takes_long_to_end_has_ended(tmp_path: Path) -> None:
    events = asyncio.run(events_of(SLOW_END, tmp_path))
    assert sum(len(event.steps) for event in events if isinstance(event, Steps)) == 3
    assert [event.text for event in events if isinstance(event, Note)] == []


def test_the_rank_comes_from_the_process_group_and_else_from_the_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    group = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: False,
        get_rank=lambda: 1,
        get_world_size=lambda: 2,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    assert described.place() == (3, 4)
    group.is_initialized = lambda: True
    assert described.place() == (1, 2)


def test_a_python_that_is_too_old_is_named(tmp_path: Path) -> None:
    async def why() -> str:
        words = ("sh", "-c", r"printf '7\tpython\t3.8.18\t\n' >> $GPUCONSOLE_AGENT/seen")
        child = JobChild(JobCommand(words), tmp_path, lambda event: None, lambda code: None)
        await child.start()
        async with asyncio.timeout(20):
            await child.exited.wait()
        return child.why_no_steps

    assert asyncio.run(why()) == "the job's Python is 3.8.18: the agent needs Python 3.10 or newer"


WINDOW_LEAVES = """
leader, other = agent(0, 2, 7), agent(1, 2, 8)
asked(leader, other)
other.close()
asked(leader)
"""


def test_a_process_that_leaves_before_its_profile_is_an_answer(tmp_path: Path) -> None:
    """The other processes go on, and the console asks nobody else."""

    async def answer() -> Profiled:
        events: list[AnyEvent] = []
        child = JobChild(
            JobCommand((sys.executable, "-c", AGENT + WINDOW_LEAVES)),
            tmp_path,
            events.append,
            lambda code: None,
        )
        await child.start()
        async with asyncio.timeout(20):
            while sum(isinstance(event, Steps) for event in events) < 2:
                await asyncio.sleep(0.01)
            child.send(Profile(1, 3, "", rank=1))
            while not any(isinstance(event, Profiled) for event in events):
                await asyncio.sleep(0.01)
        child.detach()
        return next(event for event in events if isinstance(event, Profiled))

    assert asyncio.run(answer()).error == "process 1 ended before its profile was there"
