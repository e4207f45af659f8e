"""`devices` and `doctor` as users run them, against the fake driver."""

from __future__ import annotations

import json
import time

from tests.conftest import Cli
from tests.telemetry.conftest import Machine


def test_devices_lists_values_and_reasons_as_plain_text(cli: Cli, machine: Machine) -> None:
    _, environment = machine("gpus 2", "gpu * gpm 2 78.5", "gpu 0 name NVIDIA \\x1b]0;x\\x07H200", "gpu 1 gpm_support 0")
    done = cli("devices", env=environment)
    assert done.returncode == 0, done.stderr
    assert "gpu:0  NVIDIA \\x1b]0;x\\x07H200  140 GiB  gen5 x16  NVLink 18 links" in done.stdout
    assert "\x1b" not in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["gpu.sm_active_ratio", "78.5", "%", "nvml.gpm"] in lines
    assert ["gpu.sm_active_ratio", "n/a", "GPM", "needs", "Hopper", "or", "newer"] in lines
    assert any(line[:1] == ["host.cores_busy"] for line in lines)


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


def test_doctor_says_what_works_and_why_not(cli: Cli, machine: Machine) -> None:
    _, environment = machine("gpus 2", "gpu 1 gpm_support 0")
    done = cli("doctor", env=environment)
    assert done.returncode == 0, done.stderr
    told = " ".join(done.stdout.split())
    assert "driver 580.159.03" in told
    assert "NVML works, 2 GPUs" in told
    assert "gpu:0 NVIDIA H200; GPM works" in told
    assert "gpu:1 NVIDIA H200; GPM n/a: GPM needs Hopper or newer" in told
    assert "gpu.sm_active_ratio GPM needs Hopper or newer (gpu:1)" in told


def test_doctor_without_a_gpu(cli: Cli, machine: Machine) -> None:
    _, environment = machine("init_error 18")
    told = cli("doctor", env=environment).stdout
    assert "different versions: reboot, or reload the driver; the host CPU is the device" in told
