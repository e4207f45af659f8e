"""What the operating system tells of the processes that a driver lists: their state, why they
cannot be seen, and the job that they belong to. Reports: VisEdit 5, nvitop 152, 57."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from gpuconsole.model.machine import Process
from gpuconsole.telemetry.nvml.lineage import Relative, lineage_of
from gpuconsole.telemetry.nvml.processes import (
    ELSEWHERE,
    GONE,
    INVENTED,
    OLD_RECORDS,
    ProcessDetails,
    why_unseen,
)
from gpuconsole.wire.events import Processes
from tests.conftest import Machine
from tests.fakes.job import sleeper, torchrun
from tests.telemetry.sampling import SamplerChild
from tests.waiting import wait_until


def ended_pid() -> int:
    """The pid of a process that has ended."""
    child = subprocess.Popen(["true"])
    child.wait(10)
    return child.pid


def test_each_process_has_its_state_or_the_reason_why_it_is_not_seen(
    machine: Machine, tmp_path: Path
) -> None:
    gone = ended_pid()
    zombie = subprocess.Popen(["sleep", "300"])
    zombie.kill()
    with torchrun(tmp_path) as (launcher, ranks), sleeper() as stopped:
        os.kill(stopped, signal.SIGSTOP)
        listed = [*ranks, zombie.pid, stopped, gone]
        wait_until(lambda: psutil.Process(zombie.pid).status() == psutil.STATUS_ZOMBIE)
        _, environment = machine(
            "gpus 1", *(f"gpu 0 process {pid} compute 2e9 10" for pid in listed)
        )
        with SamplerChild(environment) as child:
            child.rounds()
            seen = {process.pid: process for process in child.last(Processes).processes}
    zombie.wait(10)
    assert [seen[pid].state for pid in (zombie.pid, stopped)] == ["Z", "T"]
    assert seen[zombie.pid].memory_bytes == 2e9 and seen[zombie.pid].unseen == ""
    assert (seen[gone].state, seen[gone].started) == ("", 0.0)
    assert seen[gone].unseen in (GONE, ELSEWHERE)
    assert [seen[rank].lineage for rank in ranks] == [(launcher,), (launcher,)]
    assert seen[ranks[0]].launcher.endswith("torchrun --nproc-per-node 2 train.py")
    assert (seen[stopped].lineage, seen[stopped].launcher) == ((), "")


def test_a_process_in_the_kernel_counts_from_the_second_reading_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with sleeper() as pid:
        details = ProcessDetails()
        monkeypatch.setattr(psutil.Process, "status", lambda self: psutil.STATUS_DISK_SLEEP)
        assert [details.complete([Process(pid, "gpu:0")])[0].state for _ in range(3)] == [
            "S",
            "D",
            "D",
        ]


def test_a_process_that_gets_another_parent_is_of_another_job(tmp_path: Path) -> None:
    """A rank that its launcher leaves behind."""
    with torchrun(tmp_path) as (launcher, ranks):
        details = ProcessDetails()
        listed = [Process(ranks[0], "gpu:0")]
        assert details.complete(listed)[0].lineage == (launcher,)
        os.kill(launcher, signal.SIGKILL)
        wait_until(lambda: psutil.Process(ranks[0]).ppid() != launcher)
        assert details.complete(listed)[0].lineage == ()
        for rank in ranks:
            os.kill(rank, signal.SIGKILL)


def test_a_pid_that_another_user_may_not_see_is_not_called_gone() -> None:
    """The process 1 runs; with hidepid, /proc does not show it."""
    assert why_unseen(1, psutil.NoSuchProcess(1)) != ELSEWHERE
    assert why_unseen(os.getpid(), psutil.AccessDenied()) == "this user cannot read it"
    assert why_unseen(ended_pid(), psutil.NoSuchProcess(0)) in (GONE, ELSEWHERE)


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        ("535.54.03", OLD_RECORDS),
        ("535.104.05", INVENTED),
        ("555.85", INVENTED),
        ("570.86.10", INVENTED),
        ("540.4.0", INVENTED),
    ],
)
def test_old_drivers_are_named_only_where_one_is_there(
    machine: Machine, driver: str, reason: str
) -> None:
    _, environment = machine("gpus 1", f"driver {driver}", "gpu 0 process 0 compute 1e6 -1")
    with SamplerChild(environment) as child:
        child.rounds()
        assert child.last(Processes).reasons == {"gpu:0": reason}


RANK = Relative(100, "python", "python train.py")
SHELL = Relative(90, "bash", "-bash")
SCRIPT = Relative(91, "bash", "bash train.sh")
TORCHRUN = Relative(80, "torchrun", "/usr/bin/python3 /opt/bin/torchrun --nproc 4 train.py")
CONSOLE = Relative(70, "gpuconsole", "/usr/bin/python3 /opt/bin/gpuconsole run -- torchrun t.py")
SWEEP = Relative(81, "python", "python sweep.py")
KERNEL = Relative(82, "python", "/usr/bin/python3 -m ipykernel_launcher -f kernel-1.json")
JUPYTER = Relative(83, "jupyter-lab", "/usr/bin/python3 /opt/bin/jupyter-lab")
PART = Relative(102, "python", "python -c from multiprocessing.spawn import spawn_main")
ENGINE = Relative(101, "VLLM::EngineCor", "VLLM::EngineCore")
VLLM = Relative(84, "vllm", "/usr/bin/python3 /opt/bin/vllm serve m --port 8000")


@pytest.mark.parametrize(
    ("own", "parents", "job", "console"),
    [
        (RANK, [SHELL], 100, 0),
        (RANK, [TORCHRUN, SHELL], 80, 0),
        (RANK, [TORCHRUN, SWEEP, SHELL], 80, 0),
        (RANK, [SCRIPT, TORCHRUN, SHELL], 80, 0),
        (RANK, [TORCHRUN, CONSOLE, SHELL], 80, 70),
        (RANK, [SCRIPT, CONSOLE], 100, 70),
        (RANK, [SWEEP, SHELL], 100, 0),
        (PART, [SWEEP, SHELL], 81, 0),
        (PART, [PART._replace(pid=99), SWEEP, SHELL], 81, 0),
        (RANK, [RANK._replace(pid=99), SWEEP], 99, 0),
        (RANK, [SCRIPT, KERNEL, JUPYTER], 82, 0),
        (KERNEL, [JUPYTER, SHELL], 82, 0),
        (ENGINE, [VLLM, SHELL], 84, 0),
        (ENGINE, [VLLM, Relative(79, "uv", "uv run vllm serve m"), SHELL], 84, 0),
        (ENGINE, [SWEEP, SHELL], 81, 0),
        (RANK, [Relative(1, "systemd", "/sbin/init")], 100, 0),
        (RANK, [Relative(60, "sshd", "sshd: ada@pts/0")], 100, 0),
        (RANK, [], 100, 0),
    ],
)
def test_the_job_of_a_process(
    own: Relative, parents: list[Relative], job: int, console: int
) -> None:
    lineage = lineage_of(own, parents)
    assert ((own.pid, *lineage.parents)[-1], lineage.console) == (job, console)
