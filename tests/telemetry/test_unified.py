"""GPUs that share the memory of the host: a GB10 as its driver answers, and a GPU whose memory is a
NUMA node."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import pytest

from gpuconsole.model.machine import UNIFIED
from gpuconsole.telemetry.nvml.facts import is_memory_only, without_files
from gpuconsole.wire.events import Devices
from tests.cli.exporting import Exporter
from tests.conftest import Cli, Machine
from tests.telemetry.sampling import SamplerChild
from tests.waiting import wait_until

MEMORY = ("hbm_used", "hbm_free", "hbm_reserved", "hbm_total")
NO_MEMORY = ("gpu 0 error nvmlDeviceGetMemoryInfo 3", "gpu 0 error nvmlDeviceGetMemoryInfo_v2 3")
GB10 = (
    "gpus 1", "gpu 0 name NVIDIA GB10", "gpu 0 gpm_support 0", *NO_MEMORY,
    "gpu 0 utilization_pct 96", "gpu 0 error nvmlDeviceGetEnforcedPowerLimit 3",
    f"gpu 0 process {os.getpid()} compute 9e9 40", "gpu 0 process 4242 graphics 1e9 -1",
)  # fmt: skip


def test_the_memory_of_a_gb10_is_that_of_the_host(machine: Machine) -> None:
    """Used is what its processes hold, and free is what both can still allocate. No figure is a sum
    of host and GPU."""
    _, environment = machine(*GB10)
    with SamplerChild(environment) as child:
        child.wait(lambda now: "gpu.hbm_used_bytes" in now.values("gpu:0"), "the processes")
        gpu, host = child.devices.devices
        assert (
            gpu.is_unified
            and gpu.facts["memory_kind"] == UNIFIED
            and gpu.memory_bytes == psutil.virtual_memory().total
        )
        assert not host.is_unified and gpu.peaks.memory_bytes_per_s == 273e9
        values = child.values("gpu:0")
        assert values["gpu.hbm_used_bytes"] == 10e9
        assert values["gpu.hbm_total_bytes"] == psutil.virtual_memory().total
        assert values["gpu.hbm_free_bytes"] == pytest.approx(
            psutil.virtual_memory().available, rel=0.3
        )
        assert values["gpu.utilization_ratio"] == 0.96 and not child.losses
        assert child.substitutes("gpu:0")["gpu.hbm_total_bytes"] == "host"
        assert [name for name in MEMORY if f"gpu.{name}_bytes" in child.reasons("gpu:0")] == [
            "hbm_reserved"
        ]


def test_a_driver_that_answers_with_the_hosts_memory_does_not_count_the_page_cache(
    machine: Machine,
) -> None:
    total = psutil.virtual_memory().total
    _, environment = machine(
        "gpus 1",
        f"gpu 0 memory_total_bytes {total}",
        "gpu 0 memory_used_bytes 5e8",
        "gpu 0 process 4242 compute 1e8 -1",
    )
    with SamplerChild(environment) as child:
        child.wait(lambda now: "gpu.hbm_used_bytes" in now.values("gpu:0"), "the processes")
        assert (
            child.devices.devices[0].is_unified
            and child.values("gpu:0")["gpu.hbm_used_bytes"] == 1e8
        )


def test_processes_that_hold_more_than_a_driver_of_unified_memory_calls_used_are_listed(
    machine: Machine,
) -> None:
    total = psutil.virtual_memory().total
    _, environment = machine(
        "gpus 1",
        f"gpu 0 memory_total_bytes {total}",
        "gpu 0 memory_used_bytes 5e8",
        "gpu 0 process 4242 compute 9e9 -1",
    )
    with SamplerChild(environment) as child:
        child.wait(lambda now: now.values("gpu:0").get("gpu.hbm_used_bytes") == 9e9, "the process")


def test_processes_without_sizes_leave_the_used_memory_unknown(machine: Machine) -> None:
    _, environment = machine(*GB10, "gpu 0 process 77 compute 18446744073709551615 -1")
    with SamplerChild(environment) as child:
        child.wait(lambda now: "gpu.processes" in now.values("gpu:0"), "the processes")
        assert "gpu.hbm_used_bytes" not in child.values(
            "gpu:0"
        ) and "gpu.hbm_used_bytes" in child.reasons("gpu:0")
        assert "gpu.hbm_free_bytes" in child.values("gpu:0")


@pytest.mark.parametrize(
    "script",
    [
        ("gpu 0 error nvmlDeviceGetUtilizationRates 3", *NO_MEMORY),
        ("gpu 0 error nvmlDeviceGetMemoryInfo 999", "gpu 0 error nvmlDeviceGetMemoryInfo_v2 999"),
        ("gpu 0 mig 1", *NO_MEMORY),
    ],
    ids=["no utilization either", "another error", "MIG"],
)
def test_memory_that_is_only_not_known_is_not_called_unified(
    machine: Machine, script: tuple[str, ...]
) -> None:
    _, environment = machine("gpus 1", *script)
    with SamplerChild(environment) as child:
        child.rounds(2)
        devices = next(event for event in child.events if isinstance(event, Devices))
        assert not devices.devices[0].is_unified and devices.devices[0].memory_bytes == 0
        assert all(f"gpu.{name}_bytes" in child.reasons("gpu:0") for name in MEMORY)


def test_devices_and_the_exporter_say_unified(machine: Machine, cli: Cli) -> None:
    _, environment = machine(*GB10)
    (gpu, _) = json.loads(cli("devices", "--json", env=environment).stdout)["devices"]
    assert gpu["facts"]["memory_kind"] == UNIFIED and gpu["values"]["gpu.hbm_used_bytes"] == 10e9
    heads = [
        row
        for row in cli("devices", "--long", env=environment).stdout.splitlines()
        if row.startswith(("gpu:0", "cpu"))
    ]
    assert [UNIFIED in row for row in heads] == [True, False]
    with Exporter(environment).ready() as exporter:
        wait_until(
            lambda: exporter.value("gpuconsole_gpu_hbm_used_bytes", "gpu:0") == 10e9,
            15,
            "the processes",
        )
        assert exporter.value("gpuconsole_device_info", "gpu:0", memory=UNIFIED) == 1
        assert "DCGM_FI_DEV_FB_USED" not in exporter.get()[1], (
            "DCGM has no figures of unified memory"
        )


def test_files_in_the_memory_of_a_gpu_that_is_a_numa_node_are_free(tmp_path: Path) -> None:
    node = tmp_path / "node1"
    node.mkdir()
    (node / "cpulist").write_text("\n")
    (node / "meminfo").write_text(
        "Node 1 MemFree: 1 kB\nNode 1 Active(file): 1000 kB\nNode 1 Inactive(file): 4000 kB\n"
        "Node 1 SReclaimable: 500 kB\n"
    )
    values = {"gpu.hbm_used_bytes": 10_000 * 1024.0, "gpu.hbm_free_bytes": 3 * 1024.0}
    assert is_memory_only(1, tmp_path) and not is_memory_only(2, tmp_path)
    assert without_files(values, 1, tmp_path) == {
        "gpu.hbm_used_bytes": 4500 * 1024.0,
        "gpu.hbm_free_bytes": 5503 * 1024.0,
    }
    assert without_files(values, 2, tmp_path) == {} == without_files({}, 1, tmp_path)
    (node / "cpulist").write_text("0-71\n")
    assert not is_memory_only(1, tmp_path)
