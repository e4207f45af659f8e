"""Lists of processes that cannot be true, and processes that are not those of the GPU. The cases
are of public issues: nvitop 75 79 88 226, pynvml 50, nv-monitor 17, nvtop 432."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from gpuconsole.telemetry.nvml.processes import INVENTED, is_stranger
from gpuconsole.wire.events import Processes
from tests.conftest import Machine
from tests.telemetry.sampling import SamplerChild


@pytest.mark.parametrize("size", [16, 32])
def test_records_of_another_size_are_no_processes(machine: Machine, size: int) -> None:
    tasks = [
        f"gpu 0 process {4101 + n} compute {held}e9 -1" for n, held in enumerate((20, 15, 10, 5))
    ]
    _, environment = machine(
        "gpus 2", f"gpu 0 record_bytes {size}", *tasks, "gpu 1 process 4200 compute 1e9 -1"
    )
    with SamplerChild(environment) as child:
        child.rounds(2)
        listed = child.last(Processes)
        assert [process.pid for process in listed.processes] == [4200]
        assert listed.reasons == {"gpu:0": INVENTED}
        assert (
            "gpu.processes" not in child.values("gpu:0")
            and child.reasons("gpu:0")["gpu.processes"] == INVENTED
        )


@pytest.mark.parametrize(
    "task",
    [
        "0 compute 1e6 -1",
        "4294967295 graphics 1.8446744073708503e19 -1",
        "4194304 compute 1e6 -1",
        "77 compute 2e11 -1",
        "77 compute 1.2e11 -1",
    ],
    ids=[
        "pid 0",
        "pid -1",
        "pid above the largest",
        "more than the card has",
        "far more than is used",
    ],
)
def test_a_process_that_cannot_exist_makes_the_list_unknown(machine: Machine, task: str) -> None:
    _, environment = machine("gpus 1", f"gpu 0 process {task}", "gpu 0 process 4200 compute 1e9 -1")
    with SamplerChild(environment) as child:
        child.rounds(2)
        assert child.last(Processes).processes == [] and child.last(Processes).reasons == {
            "gpu:0": INVENTED
        }


def test_a_thread_of_the_kernel_is_shown_by_its_pid_alone(machine: Machine) -> None:
    thread = next(
        (one for one in psutil.process_iter() if one.pid == 2 and one.name() == "kthreadd"), None
    )
    if thread is None:
        pytest.skip("no thread of the kernel is visible here")
    _, environment = machine("gpus 1", "gpu 0 process 2 compute 1e9 -1")
    with SamplerChild(environment) as child:
        child.rounds()
        (process,) = child.last(Processes).processes
        assert (process.pid, process.memory_bytes, process.name, process.user, process.started) == (
            2,
            1_000_000_000,
            "",
            "",
            0,
        )


def test_a_process_without_a_file_of_the_gpu_is_a_stranger(tmp_path: Path) -> None:
    devices, processes = tmp_path / "dev", tmp_path / "proc"
    devices.mkdir()

    def process(pid: int, *files: str, flags: int = 0x400000) -> bool:
        (processes / str(pid) / "fd").mkdir(parents=True)
        (processes / str(pid) / "stat").write_text(f"{pid} (a (b) c) S 1 1 1 0 -1 {flags} 0 0")
        for n, file in enumerate(files):
            os.symlink(file, processes / str(pid) / "fd" / str(n))
        return is_stranger(pid, processes, devices)

    assert not process(10, "/dev/null"), "without device files here, nothing can be told"
    (devices / "nvidiactl").touch()
    assert process(11, "/dev/null", "pipe:[3]")
    assert not process(12, "/dev/null", f"{devices}/nvidia0")
    assert not process(13, f"{devices}/dri/renderD128")
    assert process(14, f"{devices}/nvidia0", flags=0x208040), "a thread of the kernel"
    assert not is_stranger(99, processes, devices), "a process whose files cannot be read"
