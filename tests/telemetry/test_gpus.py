"""The sampler child and the real binding against the fake driver: values to the unit, and every
failure with its reason."""

from __future__ import annotations

import math
import os
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from gpuconsole.model.machine import Link
from gpuconsole.model.metrics import GPU_METRICS as DECLARED
from gpuconsole.model.metrics import LINK_METRICS
from gpuconsole.telemetry.nvml import gpm
from gpuconsole.wire.events import (
    DeviceLost,
    Devices,
    Hello,
    Processes,
    Stop,
    Topology,
    Unavailable,
    Xid,
)
from tests.conftest import Machine
from tests.fakes.nvml.scripted import MIB, SCRIPT, SCRIPTED
from tests.matrix import matrix
from tests.telemetry.sampling import Heard, SamplerChild

GPU_METRICS = {metric.name for metric in DECLARED}
GPM_ONLY = {metric.name for metric in DECLARED if metric.source == "nvml.gpm"} - {
    f"gpu.{link}_{way}_bytes_per_s" for link in ("pcie", "nvlink") for way in ("rx", "tx")
}
FIELDS = {metric.name for metric in DECLARED if metric.source == "nvml.field"}

# Which metrics hang on which call of the binding (as the fake names it).
CALLS = {
    "nvmlDeviceGetUtilizationRates": {"gpu.utilization_ratio", "gpu.memory_utilization_ratio"},
    "nvmlDeviceGetPowerUsage": {"gpu.power_w"},
    "nvmlDeviceGetEnforcedPowerLimit": {"gpu.power_limit_w"},
    "nvmlDeviceGetPowerManagementDefaultLimit": {"gpu.power_limit_default_w"},
    "nvmlDeviceGetPowerManagementLimitConstraints": {"gpu.power_limit_max_w"},
    "nvmlDeviceGetTotalEnergyConsumption": {"gpu.energy_j"},
    "nvmlDeviceGetClockInfo": {"gpu.sm_clock_hz", "gpu.memory_clock_hz"},
    "nvmlDeviceGetMaxClockInfo": {"gpu.sm_clock_max_hz", "gpu.memory_clock_max_hz"},
    "nvmlDeviceGetCurrentClocksEventReasons": {
        name for name in GPU_METRICS if name.startswith("gpu.clocks_")
    },
    "nvmlDeviceGetMemoryInfo_v2": {
        f"gpu.hbm_{part}_bytes" for part in ("used", "free", "reserved", "total")
    },
    "nvmlDeviceGetBAR1MemoryInfo": {"gpu.bar1_used_bytes", "gpu.bar1_total_bytes"},
    "nvmlDeviceGetTemperatureV": {"gpu.temperature_c"},
    "nvmlDeviceGetTemperatureThreshold": {"gpu.temperature_slowdown_c"},
    "nvmlDeviceGetFanSpeed": {"gpu.fan_ratio"},
    "nvmlDeviceGetPerformanceState": {"gpu.performance_state"},
    "nvmlDeviceGetFieldValues": FIELDS,
    "nvmlDeviceGetPcieThroughput": {"gpu.pcie_rx_bytes_per_s", "gpu.pcie_tx_bytes_per_s"},
    "nvmlDeviceGetCurrPcieLinkGeneration": {"gpu.pcie_link_generation"},
    "nvmlDeviceGetMaxPcieLinkGeneration": {"gpu.pcie_link_generation_max"},
    "nvmlDeviceGetCurrPcieLinkWidth": {"gpu.pcie_link_width"},
    "nvmlDeviceGetMaxPcieLinkWidth": {"gpu.pcie_link_width_max"},
    "nvmlDeviceGetPcieReplayCounter": {"gpu.pcie_replays"},
    "nvmlDeviceGetEncoderUtilization": {"gpu.encoder_utilization_ratio"},
    "nvmlDeviceGetDecoderUtilization": {"gpu.decoder_utilization_ratio"},
    "nvmlDeviceGetJpgUtilization": {"gpu.jpeg_utilization_ratio"},
    "nvmlDeviceGetOfaUtilization": {"gpu.optical_flow_utilization_ratio"},
    "nvmlGpmQueryDeviceSupport": GPM_ONLY,
    "nvmlGpmSampleGet": GPM_ONLY,
    "nvmlGpmMetricsGet": GPM_ONLY,
    "nvmlDeviceGetComputeRunningProcesses_v3": {"gpu.processes"},
    "nvmlDeviceGetGraphicsRunningProcesses_v3": {"gpu.processes"},
    "nvmlDeviceRegisterEvents": {"gpu.xid_errors"},
    "nvmlDeviceGetNvLinkState": {"gpu.nvlinks_active"},
    "nvmlDeviceGetHandleByIndex": GPU_METRICS,
    "*": GPU_METRICS,
    # Mere facts, and shares that a process may lack: without them no metric is missing.
    "nvmlDeviceGetProcessUtilization": set(),
    "nvmlDeviceGetName": set(),
    "nvmlDeviceGetUUID": set(),
    "nvmlDeviceGetMigMode": set(),
    "nvmlDeviceGetArchitecture": set(),
    "nvmlDeviceGetCudaComputeCapability": set(),
    "nvmlDeviceGetPciInfo_v3": set(),
    "nvmlDeviceGetCpuAffinity": set(),
    "nvmlDeviceGetMemoryAffinity": set(),
    "nvmlDeviceGetPersistenceMode": set(),
    "nvmlDeviceGetEccMode": set(),
    "nvmlDeviceGetComputeMode": set(),
    "nvmlDeviceGetNvLinkRemoteDeviceType": set(),
    "nvmlDeviceGetTopologyCommonAncestor": set(),
}
LOSSES = (15, 16)
FALLS_BACK = {
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetCurrentClocksEventReasons",
}  # to an older call, on these:
FALLBACK_CODES = (3, 13, 25)
NO_SUCH_LINK = (2, 3)
ERRORS = (*range(1, 31), 999, 12345)


def assert_complete(child: Heard, device: str) -> None:
    """Every metric is either a finite value or has a reason, never both."""
    values, reasons = child.values(device), child.reasons(device)
    assert values.keys() | reasons.keys() == GPU_METRICS
    assert not values.keys() & reasons.keys()
    assert all(map(math.isfinite, values.values()))
    assert all(reasons.values())


def test_every_metric_of_a_gpu_to_the_unit(machine: Machine) -> None:
    assert SCRIPTED.keys() == GPU_METRICS
    _, environment = machine("gpus 1", *SCRIPT)
    with SamplerChild(environment) as child:
        child.rounds(2)
        assert isinstance(child.events[0], Hello)
        assert child.events[0].role == "sampler"
        assert child.devices.driver == "580.159.03"
        assert child.devices.reason == ""
        gpu, cpu = child.devices.devices
        assert (gpu.id, gpu.name, gpu.pcie, gpu.nvlink) == (
            "gpu:0",
            "NVIDIA H200",
            "gen5 x16",
            "16 of 18 links",
        )
        assert gpu.uuid == "GPU-00000000-0000-0000-0000-000000000000"
        assert gpu.memory_bytes == 150754820096
        assert gpu.peaks.memory_bytes_per_s == 4.8e12
        assert cpu.id == "cpu"
        child.wait(lambda now: now.reasons("gpu:0") == {}, "all metrics")
        assert child.substitutes("gpu:0") == {}
        values = child.values("gpu:0")
        for metric, (_, expected) in SCRIPTED.items():
            # a rate of a counter in whole nanoseconds
            tolerance = 1e-3 if metric.endswith("_time_ratio") else 1e-9
            assert values[metric] == pytest.approx(expected, rel=tolerance), metric
        assert 0 <= child.values("sampler")["console.cpu_ratio"] < 1


def test_the_temperature_of_the_slowdown_follows_from_its_distance_where_only_that_is_known(
    machine: Machine,
) -> None:
    """NVML announces this for Ada and newer."""
    refused = "error nvmlDeviceGetTemperatureThreshold 3"
    _, environment = machine(
        "gpus 2",
        *(f"gpu {n} {line}" for n in (0, 1) for line in ("temperature_c 61", refused)),
        "gpu 0 margin_c 26",
    )
    with SamplerChild(environment) as child:
        child.wait(
            lambda now: "gpu.fan_ratio" in now.values("gpu:1"), "the metrics that change rarely"
        )
        assert child.values("gpu:0")["gpu.temperature_slowdown_c"] == 87
        assert child.reasons("gpu:0").get("gpu.temperature_slowdown_c") is None
        assert (
            child.reasons("gpu:1")["gpu.temperature_slowdown_c"] == "not supported on this device"
        )


def test_the_facts_of_a_gpu(machine: Machine) -> None:
    _, environment = machine(
        "gpus 1", "gpu 0 affinity_low 4294967295", "gpu 0 numa_node 1", "gpu 0 persistence 0"
    )
    with SamplerChild(environment) as child:
        child.rounds()
        assert child.devices.devices[0].facts == {
            "architecture": "Hopper",
            "compute_capability": "9.0",
            "pci": "00000000:00:00.0",
            "numa_node": "1",
            "cpu_affinity": "0-31",
            "persistence": "off",
            "ecc": "on",
            "mig": "off",
            "compute_mode": "default",
        }


def test_a_gpu_whose_node_the_firmware_does_not_name(machine: Machine) -> None:
    _, environment = machine("gpus 1", "gpu 0 numa_node -1")
    with SamplerChild(environment) as child:
        child.rounds()
        facts = child.devices.devices[0].facts
        assert "numa_node" not in facts and facts["cpu_affinity"] == "0-1"


def test_the_errors_of_nvlink_on_blackwell(machine: Machine) -> None:
    """Its driver has no fields 161 to 163; 215 counts recoveries."""
    removed = [f"link_field_error {field} 3" for field in (161, 162, 163)]
    script = ["architecture 10", "link_field 1 215 4", *removed]
    _, environment = machine("gpus 1", *(f"gpu 0 {line}" for line in script))
    with SamplerChild(environment) as child:
        child.wait(lambda now: "gpu.link_up" in now.values("gpu:0/link:17"), "the links")
        assert child.values("gpu:0/link:1")["gpu.link_recoveries"] == 4
        reason = child.reasons("gpu:0/link:1")["gpu.link_crc_errors"]
        assert reason == "not supported on this device"


def test_every_nvlink_of_a_gpu(machine: Machine) -> None:
    script = [
        "nvlinks 2",
        "gpm 62 100",
        "gpm 63 200",
        "gpm 64 300",
        "link_field 0 161 7",
        "link_field 1 162 8",
        "link_field 1 163 9",
    ]
    _, environment = machine("gpus 1", *(f"gpu 0 {line}" for line in script))
    with SamplerChild(environment) as child:
        child.wait(lambda now: "gpu.link_up" in now.values("gpu:0/link:17"), "the links")
        assert child.values("gpu:0/link:0") == {
            "gpu.link_rx_bytes_per_s": 100 * MIB,
            "gpu.link_tx_bytes_per_s": 200 * MIB,
            "gpu.link_up": 1,
            "gpu.link_replays": 7,
            "gpu.link_recoveries": 0,
            "gpu.link_crc_errors": 0,
        }
        assert child.values("gpu:0/link:1")["gpu.link_rx_bytes_per_s"] == 300 * MIB
        assert child.values("gpu:0/link:1")["gpu.link_recoveries"] == 8
        assert child.values("gpu:0/link:1")["gpu.link_crc_errors"] == 9
        assert child.values("gpu:0/link:2")["gpu.link_up"] == 0
        assert child.values("gpu:0/link:0").keys() == {metric.name for metric in LINK_METRICS}


def test_the_topology(machine: Machine) -> None:
    """Two GPUs on a switch, a third without NVLink."""
    _, environment = machine(
        "gpus 4", "gpu 2 nvlinks 0", "gpu 3 nvlinks 0", "path 0 2 50", "path 2 3 30"
    )
    with SamplerChild(environment) as child:
        child.rounds()
        assert child.last(Topology).links == [
            Link("gpu:0", "gpu:1", "NV18"),
            Link("gpu:0", "gpu:2", "SYS"),
            Link("gpu:0", "gpu:3", "PIX"),
            Link("gpu:1", "gpu:2", "PIX"),
            Link("gpu:1", "gpu:3", "PIX"),
            Link("gpu:2", "gpu:3", "PHB"),
        ]


def test_mig_slices_are_devices(machine: Machine) -> None:
    slices = [
        "mig 1",
        "mig_slice 3 19000000000 1000000000",
        "mig_slice 9 38000000000 2000000000",
        "mig_gpm 3 2 50",
        "mig_gpm 9 2 75",
        "mig_gpm 9 5 20",
    ]
    _, environment = machine("gpus 2", *(f"gpu 1 {line}" for line in slices))
    with SamplerChild(environment) as child:
        child.rounds(2)
        assert [device.id for device in child.devices.devices] == [
            "gpu:0",
            "gpu:1",
            "gpu:1/mig:0",
            "gpu:1/mig:1",
            "cpu",
        ]
        assert child.devices.devices[3].uuid == "MIG-00000000-0000-0000-0001-000000000001"
        assert child.devices.devices[3].memory_bytes == 38000000000
        assert child.values("gpu:1/mig:0")["gpu.sm_active_ratio"] == 0.5
        assert child.values("gpu:1/mig:1")["gpu.sm_active_ratio"] == 0.75
        assert child.values("gpu:1/mig:1")["gpu.tensor_active_ratio"] == 0.2
        assert child.values("gpu:1/mig:1")["gpu.hbm_used_bytes"] == 2e9
        assert (
            child.reasons("gpu:1/mig:1")["gpu.power_w"]
            == "reported for the whole GPU only, not for a MIG slice"
        )
        assert child.reasons("gpu:1")["gpu.sm_active_ratio"] == "not supported while MIG mode is on"
        assert child.values("gpu:1")["gpu.power_w"] == 350
        assert_complete(child, "gpu:1/mig:1")


def test_processes_with_their_details(machine: Machine) -> None:
    """One that is real, here, and one from another pid namespace."""
    me = os.getpid()
    _, environment = machine(
        "gpus 2", f"gpu 1 process {me} compute 5e9 37 12", "gpu 0 process 4194302 graphics 1e6 -1"
    )
    with SamplerChild(environment) as child:
        child.rounds()
        stranger, mine = child.last(Processes).processes
        assert (
            stranger.pid,
            stranger.device,
            stranger.kind,
            stranger.memory_bytes,
            stranger.sm_ratio,
        ) == (
            4194302,
            "gpu:0",
            "graphics",
            1000000,
            None,
        )
        assert (stranger.name, stranger.user, stranger.started) == ("", "", 0)
        assert (mine.pid, mine.device, mine.kind, mine.memory_bytes, mine.sm_ratio) == (
            me,
            "gpu:1",
            "compute",
            5000000000,
            0.37,
        )
        assert (mine.memory_time_ratio, stranger.memory_time_ratio, stranger.host_memory_bytes) == (
            0.12,
            None,
            None,
        )
        known = psutil.Process()
        assert (mine.name, mine.user, mine.parent) == (known.name(), known.username(), known.ppid())
        assert mine.started == pytest.approx(known.create_time(), abs=0.02)
        assert mine.command and " ".join(known.cmdline()).startswith(mine.command)


def test_an_xid_is_told_once_and_counted(machine: Machine) -> None:
    script, environment = machine("gpus 2")
    with SamplerChild(environment) as child:
        child.rounds()
        script.write("gpus 2", "gpu 1 xid 79", "gpu 1 xid_serial 1")
        child.wait(lambda now: now.values("gpu:1").get("gpu.xid_errors") == 1, "the error counted")
        child.rounds(2)
        found = [event for event in child.events if isinstance(event, Xid)]
        assert [(event.device, event.code, event.meaning) for event in found] == [
            ("gpu:1", 79, "the GPU has fallen off the bus")
        ]
        assert child.values("gpu:0")["gpu.xid_errors"] == 0


@pytest.mark.parametrize("count", [8, 64])
def test_many_gpus(machine: Machine, count: int) -> None:
    _, environment = machine(
        f"gpus {count}", *(f"gpu {index} power_mw {1000 * (100 + index)}" for index in range(count))
    )
    with SamplerChild(environment) as child:
        child.rounds()
        assert [device.id for device in child.devices.devices] == [
            *(f"gpu:{index}" for index in range(count)),
            "cpu",
        ]
        assert [child.values(f"gpu:{index}")["gpu.power_w"] for index in range(count)] == [
            100 + index for index in range(count)
        ]


def test_before_hopper_pcie_comes_from_nvml_and_the_rest_says_why(machine: Machine) -> None:
    _, environment = machine(
        "gpus 1",
        "gpu 0 gpm_support 0",
        "gpu 0 architecture 7",
        "gpu 0 name NVIDIA A100-SXM4-80GB",
        "gpu 0 field_error 197 3",
        "gpu 0 field_error 198 3",
    )
    with SamplerChild(environment) as child:
        child.rounds()
        assert child.reasons("gpu:0")["gpu.sm_active_ratio"] == "GPM needs Hopper or newer"
        assert child.reasons("gpu:0")["gpu.hbm_bytes_per_s"] == "GPM needs Hopper or newer"
        assert child.values("gpu:0")["gpu.pcie_rx_bytes_per_s"] == 12e9
        assert child.values("gpu:0")["gpu.pcie_tx_bytes_per_s"] == 300e6
        assert child.substitutes("gpu:0")["gpu.pcie_rx_bytes_per_s"] == "nvml"
        assert_complete(child, "gpu:0")


def test_before_hopper_counters_become_rates_by_the_drivers_own_clock(machine: Machine) -> None:
    rates = [
        "gpm_support 0",
        "field_per_s 198 2e9",
        "field_per_s 197 1e8",
        "field_per_s 139 1e6",
        "field_per_s 138 5e5",
    ]
    _, environment = machine("gpus 1", *(f"gpu 0 {line}" for line in rates))
    with SamplerChild(environment) as child:
        child.wait(lambda now: "gpu.nvlink_rx_bytes_per_s" in now.values("gpu:0"), "a rate")
        values = child.values("gpu:0")
        assert values["gpu.pcie_rx_bytes_per_s"] == pytest.approx(2e9, rel=1e-3)
        assert values["gpu.pcie_tx_bytes_per_s"] == pytest.approx(1e8, rel=1e-3)
        assert values["gpu.nvlink_rx_bytes_per_s"] == pytest.approx(1e6 * 1024, rel=1e-3)
        assert values["gpu.nvlink_tx_bytes_per_s"] == pytest.approx(5e5 * 1024, rel=1e-3)
        assert child.substitutes("gpu:0")["gpu.pcie_rx_bytes_per_s"] == "nvml.field"
        assert child.substitutes("gpu:0")["gpu.nvlink_rx_bytes_per_s"] == "nvml.field"


@pytest.mark.parametrize(
    "counter", [("field_32bit 198 1", "field_32bit 197 1"), ("field 198 4e9", "field 197 3e9")]
)
def test_a_pcie_counter_that_may_wrap_between_two_readings_is_not_believed(
    machine: Machine, counter: tuple[str, str]
) -> None:
    """12 GB/s wrap a counter of 32 bits twice or three times a second: its growth would read as
    less than 4.3 GB/s."""
    script = [
        "gpm_support 0",
        "field_per_s 198 12e9",
        "field_per_s 197 3e8",
        *counter,
        "pcie_rx_kb 12000000",
        "pcie_tx_kb 300000",
    ]
    _, environment = machine("gpus 1", *(f"gpu 0 {line}" for line in script))
    with SamplerChild(environment) as child:
        child.rounds(3)
        values = child.values("gpu:0")
        assert (values["gpu.pcie_rx_bytes_per_s"], values["gpu.pcie_tx_bytes_per_s"]) == (12e9, 3e8)
        assert child.substitutes("gpu:0")["gpu.pcie_rx_bytes_per_s"] == "nvml", (
            "the call that counts for 20 ms"
        )


@pytest.mark.parametrize(
    ("driver", "first"), [("580.159.03", 269), ("580.65.06", 251), ("575.57.08", 251)]
)
def test_counters_of_held_clocks_are_asked_by_the_numbers_that_the_driver_gives_them(
    machine: Machine, driver: str, first: int
) -> None:
    _, environment = machine(
        "gpus 1",
        f"driver {driver}",
        f"gpu 0 field_per_s {first} 4e8",
        f"gpu 0 field_per_s {first + 1} 1.02e9",
    )
    with SamplerChild(environment) as child:
        child.wait(
            lambda now: "gpu.sw_thermal_time_ratio" in now.values("gpu:0"), "a share of time"
        )
        assert child.values("gpu:0")["gpu.sw_thermal_time_ratio"] == pytest.approx(0.4, rel=1e-2)
        assert child.values("gpu:0")["gpu.hw_thermal_time_ratio"] == 1.0, (
            "a counter in steps may say a little more than all the time"
        )


def test_what_an_older_driver_does_not_know_is_not_asked(machine: Machine) -> None:
    _, environment = machine(
        "gpus 1", "driver 570.133.20", "gpu 0 field_error 251 999", "gpu 0 gpm_error 100 999"
    )
    with SamplerChild(environment) as child:
        child.rounds(2)
        found = child.reasons("gpu:0")
        assert {
            found[name]
            for name in (
                "gpu.sw_thermal_time_ratio",
                "gpu.power_brake_time_ratio",
                "gpu.c2c_rx_bytes_per_s",
            )
        } == {"needs driver 575 or newer"}
        assert_complete(child, "gpu:0")


@pytest.mark.parametrize(
    ("refused", "lost"),
    [
        ((100, 101), {"gpu.c2c_tx_bytes_per_s", "gpu.c2c_rx_bytes_per_s"}),
        ((60,), {"gpu.nvlink_rx_bytes_per_s"}),
        ((9, 60), {"gpu.tensor_imma_active_ratio", "gpu.nvlink_rx_bytes_per_s"}),
    ],
)
def test_a_driver_that_refuses_the_whole_call_for_one_counter_gives_the_others(
    machine: Machine, refused: tuple[int, ...], lost: set[str]
) -> None:
    _, environment = machine("gpus 1", *SCRIPT, *(f"gpu 0 gpm_refused {id} 2" for id in refused))
    with SamplerChild(environment) as child:
        child.wait(lambda now: "gpu.sm_active_ratio" in now.values("gpu:0"), "the counters")
        child.rounds()
        values, reasons = child.values("gpu:0"), child.reasons("gpu:0")
        assert {"gpu.tensor_active_ratio", "gpu.dram_active_ratio"} <= values.keys()
        for name in lost - values.keys():  # NVLink's traffic has fields, too
            assert reasons[name] == "the driver refuses the call (invalid argument)"
        assert {name for name in lost if "nvlink" not in name}.isdisjoint(values)
        assert_complete(child, "gpu:0")


def test_a_gpu_without_a_link_to_a_grace_cpu_is_not_asked_for_its_traffic(
    machine: Machine,
) -> None:
    _, environment = machine("gpus 1", "gpu 0 field 170 0", "gpu 0 gpm_refused 101 2")
    with SamplerChild(environment) as child:
        child.wait(lambda now: "gpu.sm_active_ratio" in now.values("gpu:0"), "the counters")
        reason = "no chip-to-chip link on this device"
        assert child.reasons("gpu:0")["gpu.c2c_tx_bytes_per_s"] == reason


def test_the_samples_of_a_reader_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at a lost card makes a new reader each time."""
    freed: list[object] = []

    def call(name: str, *arguments: Any) -> Any:
        if name == "nvmlGpmSampleFree":
            freed.append(arguments[0])
        if name == "nvmlGpmQueryDeviceSupport":
            return SimpleNamespace(isSupportedDevice=1)
        return name if name == "nvmlGpmSampleAlloc" else None

    monkeypatch.setattr(gpm, "call", call)
    reader = gpm.GpmReader("handle", {"gpu.sm_active_ratio": gpm.GpmMetric(2, 0.01)})
    reader.read()
    del reader
    assert freed == ["nvmlGpmSampleAlloc"] * 2


def test_counters_are_not_read_before_the_driver_has_refreshed_them(machine: Machine) -> None:
    _, environment = machine("gpus 1", "gpu 0 gpm 21 1000", "gpu 0 gpm 2 80")
    with SamplerChild(environment, 0.05) as child:
        for _ in range(12):
            child.rounds(1)
            values = child.values("gpu:0")
            assert (values["gpu.pcie_rx_bytes_per_s"], values["gpu.sm_active_ratio"]) == (
                1000 * MIB,
                pytest.approx(0.8),
            ), "else 0 and NaN"


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
        assert child.devices.devices[0].nvlink == "0 of 18 links"
        assert child.reasons("gpu:0") == dict.fromkeys(
            ["gpu.nvlink_rx_bytes_per_s", "gpu.nvlink_tx_bytes_per_s"],
            "no active NVLink on this device",
        )
        assert child.reasons("gpu:1") == {
            "gpu.hbm_bytes_per_s": "the datasheet bandwidth of this device is not known"
        }
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
    _, environment = machine(
        "gpus 1", "gpu 0 field_error 139 3", *(f"gpu 0 {line}" for line in garbage.values())
    )
    with SamplerChild(environment) as child:
        child.rounds()
        assert child.reasons("gpu:0") == dict.fromkeys(
            garbage, "the driver reported an impossible value"
        )
        assert_complete(child, "gpu:0")


@pytest.mark.parametrize("part", matrix(range(3), in_ci=(0,)))
def test_each_error_of_each_call_is_a_reason_and_never_a_crash_or_a_zero(
    machine: Machine, part: int
) -> None:
    cases = [(call, code) for call in CALLS for code in ERRORS]
    assert len(cases) > 1000
    cases = cases[part::3]
    # What GPM and the fields know of PCIe is left to NVML, or its call would not be made.
    script = [
        *SCRIPT,
        "gpu * gpm_error 20 3",
        "gpu * gpm_error 21 3",
        "gpu * field_error 197 3",
        "gpu * field_error 198 3",
        "gpu * field_error 165 3",
    ]
    script += ["gpu * field_per_s 138 1000", "gpu * field_per_s 139 1000"]
    faults = [f"gpu {index} error {call} {code}" for index, (call, code) in enumerate(cases)]
    _, environment = machine(f"gpus {len(cases)}", *script, *faults)
    with SamplerChild(environment) as child:
        child.wait(
            lambda now: any(
                isinstance(event, Devices) and len(event.devices) > len(cases)
                for event in now.events
            ),
            "all devices",
        )
        child.rounds(2)
    heard = child.by_device()
    for index, (call, code) in enumerate(cases):
        check_error(heard[f"gpu:{index}"], f"gpu:{index}", call, code)


def check_error(child: Heard, device: str, call: str, code: int) -> None:
    assert_complete(child, device)
    values, reasons = child.values(device), child.reasons(device)
    context = (call, code, reasons)
    zeros = {name for name, (_, value) in SCRIPTED.items() if value == 0}
    assert (
        not {name for name, value in values.items() if value == 0} - zeros - {"gpu.nvlinks_active"}
    ), context
    is_read = (
        bool(CALLS[call]) and call != "nvmlDeviceRegisterEvents"
    ) or call == "nvmlDeviceGetProcessUtilization"
    is_loss = code in LOSSES and is_read  # a mere fact may fail without the GPU being given up
    assert (device in {loss.device for loss in child.losses}) == is_loss, context
    if is_loss:
        assert reasons.keys() == GPU_METRICS, context
    elif call in FALLS_BACK and code in FALLBACK_CODES:
        # the older call does not tell it apart
        assert reasons.keys() <= {"gpu.hbm_reserved_bytes"}, context
    elif call == "nvmlDeviceGetNvLinkState" and code in NO_SUCH_LINK:
        assert values["gpu.nvlinks_active"] == 0, context
    else:
        told_apart = {"gpu.nvlinks_active"} if code in NO_SUCH_LINK else set()
        # a device without graphics
        if call == "nvmlDeviceGetGraphicsRunningProcesses_v3" and code == 3:
            told_apart = {"gpu.processes"}
        assert CALLS[call] - told_apart <= reasons.keys(), context


def test_a_transient_error_passes_and_the_value_comes_back(machine: Machine) -> None:
    script, environment = machine(
        "gpus 1", "gpu 0 error nvmlDeviceGetPowerUsage 999", "gpu 0 error nvmlGpmSampleGet 10"
    )
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
        assert all(
            child.values(f"gpu:{index}")["gpu.power_w"] == 123 for index in (0, 1, 2, 4, 5, 6, 7)
        )


def test_a_loss_takes_all_metrics_with_it(machine: Machine) -> None:
    script, environment = machine("gpus 2")
    with SamplerChild(environment) as child:
        child.rounds()
        script.write("gpus 2", "gpu 1 error nvmlDeviceGetTemperatureV 16")
        child.wait(lambda now: now.losses, "the loss")
        child.rounds()
        assert [(loss.device, loss.reason) for loss in child.losses] == [
            ("gpu:1", "GPU needs a reset")
        ]
        assert child.reasons("gpu:1") == dict.fromkeys(GPU_METRICS, "GPU needs a reset")
        assert child.reasons("gpu:0") == {}


def test_a_gpu_lost_before_the_start_is_listed_and_lost(machine: Machine) -> None:
    _, environment = machine("gpus 3", "gpu 1 lost 1", "gpu 2 error nvmlDeviceGetHandleByIndex 4")
    with SamplerChild(environment) as child:
        child.rounds(2)
        assert [device.name for device in child.devices.devices[:3]] == [
            "NVIDIA H200",
            "unknown GPU",
            "unknown GPU",
        ]
        assert [loss.device for loss in child.losses] == ["gpu:1"]
        assert child.reasons("gpu:2") == dict.fromkeys(GPU_METRICS, "no permission")


def test_unavailable_is_sent_only_when_it_changes(machine: Machine) -> None:
    _, environment = machine("gpus 1", "gpu 0 gpm_support 0")
    with SamplerChild(environment) as child:
        child.rounds(4)
        assert (
            sum(
                isinstance(event, Unavailable) and event.device == "gpu:0" for event in child.events
            )
            == 1
        )
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
    check_host_only(
        {**os.environ, "LD_LIBRARY_PATH": "/nonexistent"}, "libnvidia-ml.so.1 is missing"
    )


def check_host_only(environment: dict[str, str], reason: str) -> None:
    with SamplerChild(environment) as child:
        child.rounds()
        assert [device.id for device in child.devices.devices] == ["cpu"]
        assert reason in child.devices.reason
        assert child.values("cpu")


def test_stop_ends_the_sampler(machine: Machine) -> None:
    _, environment = machine("gpus 1")
    with SamplerChild(environment, interval_s=60) as child:
        # the next round begins a minute later
        child.wait(lambda now: now.round_count >= 1, "the first round")
        child.send(Stop())
        assert child.process.wait(5) == 0


def test_a_closed_socket_ends_a_sampler_that_sits_in_a_driver_call(machine: Machine) -> None:
    _, environment = machine("gpus 1", "gpu 0 delay nvmlDeviceGetPowerUsage 60000")
    with SamplerChild(environment) as child:
        child.wait(lambda now: len(now.events) >= 2, "the devices")
        child.socket.shutdown(2)
        assert child.process.wait(5) == 0
