"""`devices` and `doctor` as users run them, against the fake driver."""

from __future__ import annotations

import getpass
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuconsole.cli.commands.machine import doctor
from tests.conftest import Cli, Machine
from tests.fakes.torch_build import torch_build


def test_devices_lists_values_and_reasons_as_plain_text(cli: Cli, machine: Machine) -> None:
    _, environment = machine(
        "gpus 2",
        "gpu * gpm 2 78.5",
        "gpu 0 name NVIDIA \\x1b]0;x\\x07H200",
        "gpu 1 gpm_support 0",
        "gpu 1 architecture 7",
    )
    done = cli("devices", "--long", env=environment)
    assert done.returncode == 0, done.stderr
    assert "gpu:0  NVIDIA \\x1b]0;x\\x07H200  140 GiB  gen5 x16  NVLink 18 links" in done.stdout
    assert "\x1b" not in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["gpu.sm_active_ratio", "78.5", "%", "nvml.gpm"] in lines
    assert ["gpu.sm_active_ratio", "n/a", "GPM", "needs", "Hopper", "or", "newer"] in lines
    assert any(line[:1] == ["host.cores_busy"] for line in lines)


def test_devices_has_a_line_for_each_gpu_and_its_reasons(cli: Cli, machine: Machine) -> None:
    """For `watch -n 1` and scripts."""
    idle = ("gpu * utilization_pct 0", "gpu * gpm 2 0", "gpu * memory_used_bytes 7.8e6")
    _, environment = machine(
        "gpus 8",
        *idle,
        f"gpu 0 process {os.getpid()} compute 60e9 90",
        "gpu 0 memory_used_bytes 60e9",
        "gpu 0 gpm 2 78.5",
        "gpu 0 utilization_pct 97",
        "gpu 2 error nvmlDeviceGetHandleByIndex 4",
        "gpu 5 lost 1",
    )
    done = cli("devices", env=environment)
    assert done.returncode == 0, done.stderr
    driver, heads, *lines = done.stdout.splitlines()
    assert "driver 580.159.03" in driver and "8x H200" in driver
    assert heads.split() == [
        *("device", "state", "SM", "GPU-Util", "HBM", "used", "power", "temp", "who")
    ]
    words = [line.split() for line in lines]
    assert [row[0] for row in words[:9]] == [*(f"gpu:{n}" for n in range(8)), "cpu"]
    user = getpass.getuser()
    assert words[0][1:9] == ["1", "process", "78", "%", "97", "%", "55.9/140", "GiB"]
    assert words[0][-1] == f"{user}/{os.getpid()}" and "W" in words[0]
    assert words[1][:6] == ["gpu:1", "free", "0", "%", "0", "%"]
    assert (words[2][1], words[5][1]) == ("n/a", "lost")
    reasons = {row[0]: " ".join(row[1:]) for row in words[9:]}
    assert reasons.keys() == {"gpu:2", "gpu:5"}
    assert "no permission" in reasons["gpu:2"] and "GPU is lost" in reasons["gpu:5"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("init_error 18", 1),  # the driver and its library have different versions
        ("init_error 9", 1),  # the driver is not loaded
        ("init_error 4", 1),  # no permission
        ("init_error 12", 0),  # no driver
        ("gpus 0", 0),  # no GPU
    ],
)
def test_devices_fails_where_the_driver_cannot_be_used(
    cli: Cli, machine: Machine, line: str, code: int
) -> None:
    _, environment = machine(line)
    done = cli("devices", env=environment)
    told = json.loads(cli("devices", "--json", env=environment).stdout)
    assert (done.returncode, [device["id"] for device in told["devices"]]) == (code, ["cpu"])
    assert told["no_gpu"] in done.stdout


def test_devices_json_holds_the_same(cli: Cli, machine: Machine) -> None:
    _, environment = machine("gpus 1", "gpu 0 error nvmlDeviceGetPowerUsage 3")
    done = cli("devices", "--json", env=environment)
    told = json.loads(done.stdout)
    gpu, cpu = told["devices"]
    assert told["driver"] == "580.159.03"
    assert gpu["values"]["gpu.power_limit_w"] == 700
    assert gpu["unavailable"] == {"gpu.power_w": "not supported on this device"}
    assert gpu["peaks"]["memory_bytes_per_s"] == 4.8e12
    assert cpu["id"] == "cpu"


def test_a_driver_that_hangs_costs_the_timeout_and_no_more(cli: Cli, machine: Machine) -> None:
    _, environment = machine("gpus 1", "init_delay 60000")
    start = time.monotonic()
    done = cli("devices", "--timeout", "1", env=environment)
    assert time.monotonic() - start < 8
    assert done.returncode == 1
    assert "the driver does not answer" in done.stderr


def test_a_sampler_that_dies_leaves_its_last_words(cli: Cli, machine: Machine) -> None:
    _, environment = machine("no such statement")
    done = cli("devices", env=environment)
    assert done.returncode == 1
    assert "cannot understand: no such statement" in done.stderr


def test_doctor_says_what_works_and_why_not(cli: Cli, machine: Machine, tmp_path: Path) -> None:
    _, environment = machine("gpus 2", "gpu 1 gpm_support 0", "gpu 1 architecture 7")
    environment = torch_build(tmp_path / "torch", "2.13.0+cpu", "", environment)
    done = cli("doctor", env=environment)
    assert done.returncode == 0, done.stderr
    told = " ".join(done.stdout.split())
    assert "driver 580.159.03, runs CUDA 13.0" in told
    assert "2.13.0+cpu, CPU only" in told
    assert (
        "gpu:0-1 torch torch 2.13.0 (a CPU build) cannot use the GPU: pip install"
        " --force-reinstall torch==2.13.0 "
    ) in told
    assert "paths NV18 1 pair" in told
    assert "NUMA node 0 CPUs 0-1: gpu:0, gpu:1" in told
    assert "NVML works, 2 GPUs" in told
    assert "gpu:0 NVIDIA H200; GPM works" in told
    assert "gpu:1 NVIDIA H200; GPM n/a: GPM needs Hopper or newer" in told
    assert "gpu:1 GPM needs Hopper or newer: gpu.graphics_active_ratio, gpu.sm_active_ratio" in told
    assert (
        "gpu:1/link:0-17 GPM needs Hopper or newer: gpu.link_rx_bytes_per_s,"
        " gpu.link_tx_bytes_per_s"
    ) in told


def test_doctor_without_a_gpu(cli: Cli, machine: Machine) -> None:
    _, environment = machine("init_error 18")
    told = cli("doctor", env=environment).stdout
    assert "different versions: reboot, or reload the driver; the host CPU is the device" in told
    assert "/dev/shm" in told


def test_doctor_says_that_a_gpu_of_amd_or_apple_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "DRM", tmp_path)
    assert doctor.other_gpu_rows() == []
    for node, vendor in (
        ("renderD128", "0x10de"),
        ("renderD129", "0x1002"),
        ("renderD130", "0x1002"),
    ):
        (tmp_path / node / "device").mkdir(parents=True)
        (tmp_path / node / "device" / "vendor").write_text(f"{vendor}\n")
    assert doctor.other_gpu_rows() == [
        ("AMD GPU", "is there; gpuconsole measures NVIDIA GPUs only")
    ]
    monkeypatch.setattr(doctor, "DRM", tmp_path / "none")
    monkeypatch.setattr(doctor.sys, "platform", "darwin")
    monkeypatch.setattr(doctor.platform, "machine", lambda: "arm64")
    assert doctor.other_gpu_rows() == [
        ("Apple GPU", "is there; gpuconsole measures NVIDIA GPUs only")
    ]


def test_doctor_reports_a_shared_memory_that_is_too_small(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sizes = {"total": 64 * 2**20}
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: SimpleNamespace(**sizes))
    assert doctor.shared_memory_text(tmp_path).startswith(
        "64.0 MiB: DataLoader workers with large batches die with a bus error (docker run --shm"
    )
    sizes["total"] = 8 * 2**30
    assert doctor.shared_memory_text(tmp_path) == "8.00 GiB"
    monkeypatch.undo()
    assert doctor.shared_memory_text(tmp_path / "none").startswith("No such file or directory; ")


def test_doctor_says_what_is_set_or_worn(cli: Cli, machine: Machine) -> None:
    worn = ["persistence 0", "ecc 0", "pcie_width_now 4", "power_limit_mw 450000", "field 145 1"]
    _, environment = machine("gpus 1", *(f"gpu 0 {line}" for line in worn))
    told = " ".join(cli("doctor", env=environment).stdout.split())
    for words in (
        "persistence mode is off",
        "ECC is off",
        "4 of 16 PCIe lanes",
        "450 of 700 W of power limit",
        "uncorrectable memory errors",
    ):
        assert words in told


def test_devices_lists_links_paths_and_processes(cli: Cli, machine: Machine) -> None:
    script = [
        "gpu 0 gpm 62 100",
        "gpu 0 link_field 0 163 4",
        "gpu 1 process 4194303 compute 1048576 20 7",
    ]
    _, environment = machine("gpus 2", *script)
    told = cli("devices", "--long", env=environment).stdout
    words = [line.split() for line in told.splitlines()]
    assert ["NVLink", "up", "in", "out", "replays", "recoveries", "CRC", "errors"] in words
    assert ["link:0", "yes", "105", "MB/s", "0", "B/s", "0", "0", "4"] in words
    assert "gpu:1 NV18" in told
    assert "process 4194303" in told
    assert "1.00 MiB  compute  no such process" in told
    told_json = json.loads(cli("devices", "--json", env=environment).stdout)
    assert told_json["topology"] == [{"a": "gpu:0", "b": "gpu:1", "path": "NV18"}]
    (process,) = told_json["devices"][1]["processes"]
    assert process.pop("unseen").startswith("no such process")
    assert process == {
        "pid": 4194303,
        "memory_bytes": 1048576,
        "sm_ratio": 0.2,
        "memory_time_ratio": 0.07,
    }
    assert told_json["devices"][0]["links"]["link:0"]["gpu.link_crc_errors"] == 4


def test_no_command_line_of_a_process_is_told(cli: Cli, machine: Machine) -> None:
    _, environment = machine("gpus 1", f"gpu 0 process {os.getpid()} compute 1e9 10")
    told = cli("devices", "--json", env=environment).stdout
    process = json.loads(told)["devices"][0]["processes"][0]
    assert process["name"]
    assert not process.keys() & {"command", "launcher"} and "pytest" not in told


def test_a_bad_address_of_dcgm_is_one_line(cli: Cli) -> None:
    done = cli("devices", "--dcgm", "localhost")
    assert done.returncode == 2
    assert (
        done.stderr.strip()
        == "gpuconsole: --dcgm localhost: must be an address such as http://127.0.0.1:9400/metrics"
    )
