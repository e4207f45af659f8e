"""Processes of a job that may run only on cores of another NUMA node than their GPU's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuconsole.diagnosis.signals.hardware import numa_signals
from gpuconsole.model.finding import Signal
from gpuconsole.model.job import JobFacts
from gpuconsole.model.machine import Device, Process
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import Devices, JobKnown, Processes, RankJoined, RunOpened
from tests.diagnosis.gpu_jobs import LAUNCH_BOUND, watched

NODES = {0: "0-15,32-47", 1: "16-31,48-63"}
"""The cores of each node."""


def cards(*nodes: str, near: dict[int, str] = NODES) -> list[Device]:
    """One GPU at each of these nodes; an empty text: the driver does not name it."""
    facts = [
        {"numa_node": node, "cpu_affinity": near[int(node)]}
        if node.isdigit()
        else {"numa_node": node}
        for node in nodes
    ]
    return [
        Device(f"gpu:{n}", "NVIDIA L4", uuid=f"GPU-{n}", facts=facts[n]) for n in range(len(nodes))
    ]


def signals(
    devices: list[Device],
    *cores: str,
    uuids: tuple[str, ...] = (),
    listed: bool = False,
    hosts: tuple[str, ...] = (),
) -> dict[str, Signal]:
    """The signals of a job with a process for each entry of `cores`. `uuids`: those of their GPUs;
    else `listed` says whether the driver lists the processes."""
    state = SessionState()
    state.apply(Devices(0.0, devices))
    state.apply(RunOpened(0.0, "1", "train.py", "job", {}, "gpu:0"))
    for rank, own in enumerate(cores):
        host, gpu = (hosts or ("here",) * len(cores))[rank], (uuids or ("",) * len(cores))[rank]
        if len(cores) > 1:  # a process that trains alone joins nobody
            state.apply(RankJoined(1.0, rank, host, 100 + rank, rank == 0, world_size=len(cores)))
        state.apply(
            JobKnown(
                1.0, rank, JobFacts("train.py", device=f"cuda:{rank}", device_uuid=gpu, cores=own)
            )
        )
    if listed:
        state.apply(
            Processes(1.0, [Process(100 + rank, f"gpu:{rank}") for rank in range(len(cores))])
        )
    assert state.record is not None
    return numa_signals(state, state.record)


def test_a_job_on_the_cores_of_the_other_node() -> None:
    found = signals(cards("1"), "0-15")
    assert found["host.off_node_processes"].value == 1 and found["hw.numa_node"].value == 1
    assert (
        "process 0 on cores 0-15, gpu:0 at NUMA node 1 with cores 16-31,48-63"
        in found["host.off_node_processes"].source
    )


@pytest.mark.parametrize("cores", ["16-31,48-63", "0-63", "63", "0-16"])
def test_one_core_beside_the_gpu_is_enough(cores: str) -> None:
    assert signals(cards("1"), cores)["host.off_node_processes"].value == 0


@pytest.mark.parametrize(
    ("devices", "cores"),
    [
        (cards(""), "0-15"),
        (cards("0-1"), "0-15"),
        (cards("0"), ""),
        (cards("0"), "nonsense"),
        ([], "0-15"),
        (cards("0", near={0: ""}), "4"),
    ],
    ids=[
        "the driver names no node",
        "several nodes",
        "the agent knows no cores",
        "no cores",
        "no GPU",
        "no cores of the GPU",
    ],
)
def test_nothing_is_said_of_what_is_not_known(devices: list[Device], cores: str) -> None:
    assert signals(devices, cores) == {}


def test_a_machine_of_one_node_is_clear() -> None:
    assert signals(cards("0", near={0: "0-63"}), "3")["host.off_node_processes"].value == 0


@pytest.mark.parametrize(
    "how", [{"uuids": ("0", "1", "2", "3")}, {"listed": True}], ids=["by uuid", "by process"]
)
def test_all_processes_on_the_cores_of_the_first_node(how: dict[str, object]) -> None:
    """The usual mistake: one CPU set for a whole job."""
    found = signals(cards("0", "0", "1", "1"), *["0-15"] * 4, **how)  # type: ignore[arg-type]
    assert found["host.off_node_processes"].value == 2 and found["hw.numa_node"].value == 1
    source = found["host.off_node_processes"].source
    assert (
        "process 2 on cores 0-15, gpu:2" in source
        and "process 3" in source
        and "process 0" not in source
    )


def test_processes_whose_gpus_are_not_known() -> None:
    assert signals(cards("0", "1"), "0-15", "0-15") == {}
    assert signals(cards("0", "1"), "0-15", "0-15", uuids=("0", "")) == {}, (
        "of one of them it is not known"
    )
    assert (
        signals(cards("0", "1"), "0-15", "0-15", uuids=("", "1"))["host.off_node_processes"].value
        == 1
    )
    assert signals(cards("0", "1"), "0-15", "0-15", listed=True, hosts=("here", "there")) == {}, (
        "process ids of another machine"
    )


def test_the_finding_is_a_note_without_a_gain_and_has_the_command() -> None:
    alone = watched(replace(LAUNCH_BOUND, on_cores="16-31")).of("host.numa_node")
    assert (alone.state, alone.note, alone.recoverable_ratio, alone.suggestions) == (
        "fires",
        True,
        0.0,
        (),
    )
    assert "`numactl --cpunodebind=0 --membind=0`" in alone.summary
    together = watched(replace(LAUNCH_BOUND, on_cores="16-31", processes=4)).of("host.numa_node")
    assert (
        together.title.startswith("4 processes")
        and "torchrun --numa-binding=node" in together.summary
    )
    assert watched(LAUNCH_BOUND).of("host.numa_node").state == "clear"
