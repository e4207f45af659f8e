"""Processes on GPUs, grouped into jobs."""

from __future__ import annotations

import pytest

from gpuconsole.model.machine import Listener, Process
from gpuconsole.model.programs import program_name, program_of
from gpuconsole.session.jobs import (
    PORTS_NOT_READ,
    PORTS_REFUSED,
    Ports,
    jobs_of,
    pids_of,
    starters_of,
)

GIB = 2**30
RANKS = [
    Process(
        100 + n, f"gpu:{n}", user="ada", command="python train.py", started=1000.0 + n,
        memory_bytes=10 * GIB, sm_ratio=0.5, lineage=(80,), launcher="python /bin/torchrun t.py",
    )
    for n in range(4)
]  # fmt: skip
ENGINES = [
    Process(
        200 + n, f"gpu:{4 + n}", user="root", command="VLLM::Worker", started=500.0,
        memory_bytes=30 * GIB, lineage=(190, 180), launcher="/bin/vllm serve m",
    )
    for n in range(2)
]  # fmt: skip
ALONE = Process(300, "gpu:6", user="eve", uid=7, command="python x.py", started=900.0)


def test_ranks_of_a_launcher_are_one_job() -> None:
    job = next(job for job in jobs_of([*RANKS, ALONE], {}) if job.pid == 80)
    assert (job.kind, job.title, job.users) == ("launcher", "torchrun", ["ada"])
    assert (job.memory_bytes, job.sm_ratio, job.started) == (40 * GIB, 0.5, 1000.0)
    assert job.devices == ["gpu:0", "gpu:1", "gpu:2", "gpu:3"]
    assert job.command == "python /bin/torchrun t.py"


def test_ranks_of_a_parent_that_is_no_launcher_are_one_job() -> None:
    """Other processes of this parent, and others with the same command, are not of this job."""

    def process(pid: int, parent: int, command: str) -> Process:
        return Process(pid, "gpu:0", parent=parent, command=command, started=1.0)

    listed = [
        process(20, 7, "python train.py --rank 0"),
        process(21, 7, "python train.py --rank 1"),
        process(22, 7, "python other.py"),
        process(23, 8, "python train.py --rank 0"),
        process(24, 1, "python orphan.py"),
        process(25, 1, "python orphan.py"),
    ]
    assert starters_of(listed) == {20: 7, 21: 7, 22: 22, 23: 23, 24: 24, 25: 25}


def test_a_process_on_two_gpus_is_one_process_of_one_job() -> None:
    on_two = [
        Process(9, f"gpu:{n}", started=1.0, sm_ratio=share) for n, share in ((0, 0.2), (1, 1.0))
    ]
    (job,) = jobs_of(on_two, {})
    assert job.sm_ratio == pytest.approx(0.6) and job.devices == ["gpu:0", "gpu:1"]


@pytest.mark.parametrize(
    ("ports", "port", "why"),
    [
        ({180: (Listener(8000),), 190: (), 200: (Listener(41000),), 201: ()}, 8000, ""),
        ({180: (Listener(41001),), 190: (), 200: (Listener(41000),), 201: ()}, 41000, ""),
        ({180: None, 190: (), 200: (), 201: ()}, 0, PORTS_REFUSED),
        ({}, 0, PORTS_NOT_READ),
        ({180: (), 190: (), 200: (), 201: ()}, 0, "it listens at none"),
    ],
)
def test_a_server_has_the_port_of_any_of_its_processes(ports: Ports, port: int, why: str) -> None:
    assert pids_of(ENGINES) == {180, 190, 200, 201}
    (job,) = jobs_of(ENGINES, ports)
    assert (job.kind, job.title, job.why_no_port) == ("server", "vLLM", why)
    assert job.address == (f"http://127.0.0.1:{port}" if port else "")


@pytest.mark.parametrize(
    ("command", "kind", "kernel_port"),
    [
        ("python x.py", "unknown", 40000),
        ("python -m http.server", "listens", 8123),
        ("python -m ipykernel_launcher -f k.json", "notebook", 9000),
        ("", "unknown", 40000),
    ],
)
def test_kinds(command: str, kind: str, kernel_port: int) -> None:
    (job,) = jobs_of(
        [Process(9, "gpu:0", command=command, started=1.0)], {9: (Listener(kernel_port),)}
    )
    assert job.kind == kind
    assert job.listener == (Listener(kernel_port) if kind == "listens" else None)


def test_a_job_under_a_console_and_graphics() -> None:
    under = Process(9, "gpu:0", command="python x.py", started=1.0, console=70)
    (job,) = jobs_of([under], {9: (Listener(8000),)})
    assert (job.kind, job.console, job.listener) == ("gpuconsole", 70, None)
    assert jobs_of([Process(9, "gpu:0", name="VLLM::EngineCor")], {})[0].title == "vLLM"
    assert (
        jobs_of([Process(9, "gpu:0", "graphics", command="/usr/lib/Xorg")], {})[0].kind
        == "graphics"
    )


@pytest.mark.parametrize(
    ("command", "name", "kind"),
    [
        ("/usr/bin/python3 -u -m torch.distributed.run x.py", "torch.distributed.run", "launcher"),
        ("python3.11 -X dev -W error /opt/bin/accelerate launch t.py", "accelerate", "launcher"),
        ("VLLM::EngineCore_DP0", "VLLM::EngineCore_DP0", "server"),
        ("python train.py --tool vllm", "train.py", ""),
        ("python vllm_train.py", "vllm_train.py", ""),
        ("python -c 'import vllm'", "", ""),
        ("slurmstepd: [12.0]", "slurmstepd:", "launcher"),
        ("", "", ""),
    ],
)
def test_programs(command: str, name: str, kind: str) -> None:
    program = program_of(command)
    assert program_name(command) == name and (program.kind if program else "") == kind


def test_a_server_at_one_address_is_watched_there() -> None:
    ports = {180: (Listener(8000, "10.0.0.7"),), 190: (), 200: (), 201: ()}
    (job,) = jobs_of(ENGINES, ports)
    assert job.address == "http://10.0.0.7:8000"
