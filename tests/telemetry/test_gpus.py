"""The sampler child and the real binding against the fake driver: values to the unit, and every failure with its reason."""

from __future__ import annotations

import math
import os

import pytest

from gpuconsole.model.metrics import CATALOGUE
from gpuconsole.wire.events import DeviceLost, Hello, Stop, Unavailable
from tests.telemetry.conftest import Machine
from tests.telemetry.sampling import SamplerChild

GPU_METRICS = {name for name in CATALOGUE if name.startswith("gpu.")}
MIB = 1 << 20
GPM_SCRIPT = ("gpu * gpm 2 78.5", "gpu * gpm 3 25", "gpu * gpm 5 31", "gpu * gpm 10 42", "gpu * gpm 20 290", "gpu * gpm 21 11500")
NVLINK_SCRIPT = ("gpu * gpm 60 1024", "gpu * gpm 61 2048")

# Which metrics hang on which call of the binding (as the fake names it), where GPM has answered for PCIe or not.
CALLS = {
    "nvmlDeviceGetUtilizationRates": {"gpu.utilization_ratio", "gpu.memory_utilization_ratio"},
    "nvmlDeviceGetPowerUsage": {"gpu.power_w"},
    "nvmlDeviceGetEnforcedPowerLimit": {"gpu.power_limit_w"},
    "nvmlDeviceGetTotalEnergyConsumption": {"gpu.energy_j"},
    "nvmlDeviceGetClockInfo": {"gpu.sm_clock_hz", "gpu.memory_clock_hz"},
    "nvmlDeviceGetMemoryInfo_v2": {"gpu.hbm_used_bytes", "gpu.hbm_total_bytes"},
    "nvmlDeviceGetTemperatureV": {"gpu.temperature_c"},
    "nvmlDeviceGetPcieThroughput": {"gpu.pcie_rx_bytes_per_s", "gpu.pcie_tx_bytes_per_s"},
    "nvmlGpmQueryDeviceSupport": {"gpu.sm_active_ratio", "gpu.hbm_bytes_per_s", "gpu.nvlink_rx_bytes_per_s"},
    "nvmlGpmSampleGet": {"gpu.sm_active_ratio", "gpu.hbm_bytes_per_s", "gpu.nvlink_rx_bytes_per_s"},
    "nvmlGpmMetricsGet": {"gpu.sm_active_ratio", "gpu.hbm_bytes_per_s", "gpu.nvlink_rx_bytes_per_s"},
    "nvmlDeviceGetName": set(),
    "nvmlDeviceGetUUID": set(),
    "nvmlDeviceGetNvLinkState": set(),
    "nvmlDeviceGetMigMode": set(),
    "nvmlDeviceGetMaxPcieLinkWidth": set(),
    "nvmlDeviceGetHandleByIndex": GPU_METRICS,
    "*": GPU_METRICS,
}
LOSSES = (15, 16)
FALLS_BACK = {"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperatureV"}  # to an older call, on these:
FALLBACK_CODES = (3, 13, 25)
ERRORS = (*range(1, 31), 999, 12345)


def assert_complete(child: SamplerChild, device: str) -> None:
    """Every metric is either a finite value or has a reason, never both."""
    values, reasons = child.values(device), child.reasons(device)
    assert values.keys() | reasons.keys() == GPU_METRICS
    assert not values.keys() & reasons.keys()
    assert all(map(math.isfinite, values.values()))
    assert all(reasons.values())


def test_one_gpu_to_the_unit(machine: Machine) -> None:
    _, environment = machine("gpus 1", *GPM_SCRIPT, *NVLINK_SCRIPT)
    with SamplerChild(environment) as child:
        child.rounds()
        assert isinstance(child.events[0], Hello)
        assert child.events[0].role == "sampler"
        assert child.devices.driver == "580.159.03"
        assert child.devices.reason == ""
        gpu, cpu = child.devices.devices
        assert (gpu.id, gpu.name, gpu.pcie, gpu.nvlink) == ("gpu:0", "NVIDIA H200", "gen5 x16", "18 links")
        assert gpu.uuid == "GPU-00000000-0000-0000-0000-000000000000"
        assert gpu.memory_bytes == 150754820096
        assert gpu.peaks.memory_bytes_per_s == 4.8e12
        assert cpu.id == "cpu"
        assert child.reasons("gpu:0") == {}
        assert child.values("gpu:0") == pytest.approx(
            {
                "gpu.sm_active_ratio": 0.785,
                "gpu.sm_occupancy_ratio": 0.25,
                "gpu.tensor_active_ratio": 0.31,
                "gpu.dram_active_ratio": 0.42,
                "gpu.hbm_bytes_per_s": 0.42 * 4.8e12,
                "gpu.utilization_ratio": 1.0,
                "gpu.memory_utilization_ratio": 0.40,
                "gpu.hbm_used_bytes": 60e9,  # without the driver's reserve
                "gpu.hbm_total_bytes": 150754820096,
                "gpu.power_w": 350,
                "gpu.power_limit_w": 700,
                "gpu.energy_j": 5000,
                "gpu.temperature_c": 61,
                "gpu.sm_clock_hz": 1.98e9,
                "gpu.memory_clock_hz": 3.201e9,
                "gpu.pcie_tx_bytes_per_s": 290 * MIB,
                "gpu.pcie_rx_bytes_per_s": 11500 * MIB,
                "gpu.nvlink_rx_bytes_per_s": 1024 * MIB,
                "gpu.nvlink_tx_bytes_per_s": 2048 * MIB,
            },
            rel=1e-9,
        )
        assert 0 <= child.values("sampler")["console.cpu_ratio"] < 1


@pytest.mark.parametrize("count", [8, 64])
def test_many_gpus(machine: Machine, count: int) -> None:
    _, environment = machine(f"gpus {count}", *(f"gpu {index} power_mw {1000 * (100 + index)}" for index in range(count)))
    with SamplerChild(environment) as child:
        child.rounds()
        assert [device.id for device in child.devices.devices] == [*(f"gpu:{index}" for index in range(count)), "cpu"]
        assert [child.values(f"gpu:{index}")["gpu.power_w"] for index in range(count)] == [100 + index for index in range(count)]


def test_before_hopper_pcie_comes_from_nvml_and_the_rest_says_why(machine: Machine) -> None:
    _, environment = machine("gpus 1", "gpu 0 gpm_support 0", "gpu 0 name NVIDIA A100-SXM4-80GB")
    with SamplerChild(environment) as child:
        child.rounds()
        assert child.reasons("gpu:0")["gpu.sm_active_ratio"] == "GPM needs Hopper or newer"
        assert child.reasons("gpu:0")["gpu.hbm_bytes_per_s"] == "GPM needs Hopper or newer"
        assert child.values("gpu:0")["gpu.pcie_rx_bytes_per_s"] == 12e9
        assert child.values("gpu:0")["gpu.pcie_tx_bytes_per_s"] == 300e6
        assert_complete(child, "gpu:0")


def test_reasons_that_come_from_the_device(machine: Machine) -> None:
    _, environment = machine(
        "gpus 5",
        "gpu 0 nvlinks 0",
        "gpu 1 name Unheard Of",
        "gpu 2 gpm_error 5 3",
        "gpu 3 mig 1",
        "gpu 3 error nvmlGpmSampleGet 3",
        "gpu 4 error nvmlDeviceGetPowerUsage 3",
    )
    with SamplerChild(environment) as child:
        child.rounds(2)
        assert child.devices.devices[0].nvlink == "none"
        assert child.reasons("gpu:0") == dict.fromkeys(
            ["gpu.nvlink_rx_bytes_per_s", "gpu.nvlink_tx_bytes_per_s"], "no active NVLink on this device"
        )
        assert child.reasons("gpu:1") == {"gpu.hbm_bytes_per_s": "no datasheet bandwidth is known for this device"}
        assert child.reasons("gpu:2") == {"gpu.tensor_active_ratio": "not supported on this device"}
        assert child.reasons("gpu:3")["gpu.sm_active_ratio"] == "not supported while MIG mode is on"
        assert child.reasons("gpu:4") == {"gpu.power_w": "not supported on this device"}


def test_garbage_is_not_shown(machine: Machine) -> None:
    garbage = {
        "gpu.power_w": "power_mw 4294967295",
        "gpu.energy_j": "energy_mj 18446744073709551615",
        "gpu.utilization_ratio": "utilization_pct 4294967295",
        "gpu.memory_utilization_ratio": "memory_utilization_pct 107",
        "gpu.temperature_c": "temperature_c 2000",
        "gpu.sm_clock_hz": "sm_clock_mhz 4294967295",
        "gpu.sm_active_ratio": "gpm 2 nan",
        "gpu.sm_occupancy_ratio": "gpm 3 -1",
        "gpu.tensor_active_ratio": "gpm 5 1e9",
        "gpu.nvlink_rx_bytes_per_s": "gpm 60 inf",
    }
    _, environment = machine("gpus 1", *(f"gpu 0 {line}" for line in garbage.values()))
    with SamplerChild(environment) as child:
        child.rounds()
        assert child.reasons("gpu:0") == dict.fromkeys(garbage, "the driver reported an impossible value")
        assert_complete(child, "gpu:0")


def test_each_error_of_each_call_is_a_reason_and_never_a_crash_or_a_zero(machine: Machine) -> None:
    cases = [(call, code) for call in CALLS for code in ERRORS]
    assert len(cases) > 500
    for part in (cases[:300], cases[300:]):
        # PCIe is left to NVML, or its call would not be made.
        script = ["gpm_error 20 3", "gpm_error 21 3", *(f"gpm {metric} 50" for metric in (2, 3, 5, 10, 60, 61))]
        faults = [f"gpu {index} error {call} {code}" for index, (call, code) in enumerate(part)]
        _, environment = machine(f"gpus {len(part)}", *(f"gpu * {line}" for line in script), *faults)
        with SamplerChild(environment) as child:
            child.rounds(2)
            assert len(child.devices.devices) == len(part) + 1
            for index, (call, code) in enumerate(part):
                check_error(child, f"gpu:{index}", call, code)


def check_error(child: SamplerChild, device: str, call: str, code: int) -> None:
    assert_complete(child, device)
    values, reasons = child.values(device), child.reasons(device)
    context = (call, code, reasons)
    assert 0 not in values.values(), context
    is_loss = code in LOSSES and bool(CALLS[call])  # a mere fact may fail without the GPU being given up
    assert (device in {loss.device for loss in child.losses}) == is_loss, context
    if is_loss:
        assert reasons.keys() == GPU_METRICS, context
    elif call in FALLS_BACK and code in FALLBACK_CODES:
        assert not reasons, context
    else:
        assert CALLS[call] <= reasons.keys(), context


def test_a_transient_error_passes_and_the_value_comes_back(machine: Machine) -> None:
    script, environment = machine("gpus 1", "gpu 0 error nvmlDeviceGetPowerUsage 999", "gpu 0 error nvmlGpmSampleGet 10")
    with SamplerChild(environment) as child:
        child.rounds()
        assert child.reasons("gpu:0")["gpu.power_w"] == "unknown driver error"
        assert child.reasons("gpu:0")["gpu.sm_active_ratio"] == "the driver timed out"
        script.write("gpus 1")
        child.wait(lambda now: now.reasons("gpu:0") == {}, "the reasons taken back")
        child.rounds()
        assert child.values("gpu:0").keys() == GPU_METRICS


def test_a_lost_gpu_is_told_once_and_the_others_go_on(machine: Machine) -> None:
    script, environment = machine("gpus 8")
    with SamplerChild(environment) as child:
        child.rounds()
        script.write("gpus 8", "gpu * power_mw 123000", "gpu 3 lost 1")
        child.wait(lambda now: now.losses, "the loss")
        child.forget()
        child.rounds(3)
        assert child.losses == []
        assert child.values("gpu:3") == {}
        assert all(child.values(f"gpu:{index}")["gpu.power_w"] == 123 for index in (0, 1, 2, 4, 5, 6, 7))


def test_a_loss_takes_all_metrics_with_it(machine: Machine) -> None:
    script, environment = machine("gpus 2")
    with SamplerChild(environment) as child:
        child.rounds()
        script.write("gpus 2", "gpu 1 error nvmlDeviceGetTemperatureV 16")
        child.wait(lambda now: now.losses, "the loss")
        child.rounds()
        assert [(loss.device, loss.reason) for loss in child.losses] == [("gpu:1", "GPU needs a reset")]
        assert child.reasons("gpu:1") == dict.fromkeys(GPU_METRICS, "GPU needs a reset")
        assert child.reasons("gpu:0") == {}


def test_a_gpu_lost_before_the_start_is_listed_and_lost(machine: Machine) -> None:
    _, environment = machine("gpus 3", "gpu 1 lost 1", "gpu 2 error nvmlDeviceGetHandleByIndex 4")
    with SamplerChild(environment) as child:
        child.rounds(2)
        assert [device.name for device in child.devices.devices[:3]] == ["NVIDIA H200", "unknown GPU", "unknown GPU"]
        assert [loss.device for loss in child.losses] == ["gpu:1"]
        assert child.reasons("gpu:2") == dict.fromkeys(GPU_METRICS, "no permission")


def test_unavailable_is_sent_only_when_it_changes(machine: Machine) -> None:
    _, environment = machine("gpus 1", "gpu 0 gpm_support 0")
    with SamplerChild(environment) as child:
        child.rounds(4)
        assert sum(isinstance(event, Unavailable) and event.device == "gpu:0" for event in child.events) == 1
        assert not any(isinstance(event, DeviceLost) for event in child.events)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("init_error 18", "different versions: reboot"),
        ("init_error 4", "no permission to use the NVIDIA driver"),
        ("init_error 9", "kernel driver is not loaded"),
        ("init_error 999", "NVML does not start: unknown driver error"),
        ("count_error 999", "NVML does not start: unknown driver error"),
        ("gpus 0", "reports no GPU"),
    ],
)
def test_no_nvml_is_a_reason_and_the_host_goes_on(machine: Machine, line: str, reason: str) -> None:
    _, environment = machine(line)
    check_host_only(environment, reason)


def test_no_library_is_a_reason() -> None:
    check_host_only({**os.environ, "LD_LIBRARY_PATH": "/nonexistent"}, "libnvidia-ml.so.1 is missing")


def check_host_only(environment: dict[str, str], reason: str) -> None:
    with SamplerChild(environment) as child:
        child.rounds()
        assert [device.id for device in child.devices.devices] == ["cpu"]
        assert reason in child.devices.reason
        assert child.values("cpu")


def test_stop_ends_the_sampler(machine: Machine) -> None:
    _, environment = machine("gpus 1")
    with SamplerChild(environment, interval_s=60) as child:
        child.rounds()
        child.send(Stop())
        assert child.process.wait(5) == 0


def test_a_closed_socket_ends_a_sampler_that_sits_in_a_driver_call(machine: Machine) -> None:
    _, environment = machine("gpus 1", "gpu 0 delay nvmlDeviceGetPowerUsage 60000")
    with SamplerChild(environment) as child:
        child.wait(lambda now: len(now.events) >= 2, "the devices")
        child.socket.shutdown(2)
        assert child.process.wait(5) == 0
