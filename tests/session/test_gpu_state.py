"""What is wrong with a GPU: errors since the start of the console and from before, and all by which
it is sick."""

from __future__ import annotations

import pytest

from gpuconsole.diagnosis.signals.hardware import HARDWARE_XIDS, NVLINK_XIDS
from gpuconsole.model.machine import Device, Process
from gpuconsole.session.gpu_state import (
    HARMLESS_XIDS,
    UNKNOWN_ERROR,
    Fault,
    GpuState,
    faults,
    gpu_states,
)
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import seen_now
from gpuconsole.telemetry.nvml.xid import MEANINGS
from gpuconsole.wire.events import (
    DeviceLost,
    Devices,
    Hello,
    Processes,
    Sample,
    SourceState,
    Unavailable,
    Xid,
)


def started(*errors: float) -> SessionState:
    state = SessionState()
    state.apply(Hello(100.0, "sampler", 1, "x", 1e9))
    state.apply(Devices(100.0, [Device("gpu:0", "H200", uuid="A")]))
    for n, count in enumerate(errors):
        state.apply(Sample(101.0 + n, "gpu:0", {"gpu.ecc_uncorrected": count}))
    return state


def found(state: SessionState) -> list[Fault]:
    return faults(seen_now(state, state.session_time(state.now)), "gpu:0")


def test_memory_errors_from_before_the_start_are_old() -> None:
    assert found(started(0.0, 0.0)) == []
    assert found(started(4.0, 4.0)) == [Fault("4 ECC errors before", is_new=False)]
    assert found(started(4.0, 5.0)) == [
        Fault("1 ECC error", breaks=True),
        Fault("4 before", is_new=False),
    ]
    assert found(started(4.0, 0.0, 1.0)) == [Fault("1 ECC error", breaks=True)], (
        "a reset of the GPU clears the count"
    )


def test_an_xid_stays_with_its_gpu_when_the_sampler_starts_again() -> None:
    state = started()
    state.apply(Xid(110.0, "gpu:0", 79))
    assert found(state) == [Fault("XID 79", True, 10.0, breaks=True)]
    state.apply(DeviceLost(111.0, "gpu:0", "GPU is lost"))
    for uuid in ("", "A"):  # it has no handle for a while
        state.apply(Devices(112.0, [Device("gpu:0", "H200", uuid=uuid)]))
        assert found(state) == [Fault("XID 79", True, 10.0, breaks=True)]
    state.apply(Devices(113.0, [Device("gpu:0", "H200", uuid="A")]))
    state.apply(Devices(114.0, [Device("gpu:0", "H200", uuid="B")]))
    assert found(state) == [], "another GPU has this number now"


QUIET = {
    "gpu.sm_active_ratio": 0.0,
    "gpu.utilization_ratio": 0.0,
    "gpu.power_w": 80.0,
    "gpu.processes": 0.0,
    "gpu.hbm_used_bytes": 1e9,
}


def free_box(*names: str) -> SessionState:
    """GPUs that do nothing."""
    state = SessionState()
    state.apply(Hello(100.0, "sampler", 1, "x", 1e9))
    state.apply(Devices(100.0, [Device(f"gpu:{n}", name) for n, name in enumerate(names)]))
    for n in range(len(names)):
        state.apply(Sample(101.0, f"gpu:{n}", QUIET))
    return state


def does(state: SessionState, gpu: str = "gpu:0") -> GpuState:
    seen = seen_now(state, state.session_time(state.now))
    return gpu_states(seen, state.devices)[gpu]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"gpu.row_remap_pending": 1.0}, "row remap pending"),
        ({"gpu.row_remap_failed": 1.0}, "worn memory"),
        ({"gpu.clocks_hw_thermal": 1.0}, "heat slowdown"),
        (
            {"gpu.row_remap_failed": 1.0, "gpu.row_remap_pending": 1.0},
            "worn memory, row remap pending",
        ),
    ],
)
def test_a_gpu_with_a_fault_of_its_own_is_sick_and_the_state_does_not_repeat_the_fault(
    values: dict[str, float], words: str
) -> None:
    state = free_box("NVIDIA H200")
    assert does(state) == GpuState("free", "free")
    state.apply(Sample(102.0, "gpu:0", QUIET | values))
    assert does(state) == GpuState("sick", "sick", words)
    assert does(state).text == f"sick: {words}"
    state.apply(Sample(103.0, "gpu:0", QUIET | values | {"gpu.utilization_ratio": 0.9}))
    state.apply(Processes(103.0, [Process(1, "gpu:0")]))
    assert does(state) == GpuState("sick", "1 process", words), "it works all the same"
    assert does(state).text == f"sick: {words} (1 process)"


@pytest.mark.parametrize("reason", ["gpu.clocks_power_brake", "gpu.clocks_hw_slowdown"])
def test_a_slowdown_from_outside_does_not_make_a_gpu_sick(reason: str) -> None:
    state = free_box("NVIDIA H200")
    state.apply(Sample(102.0, "gpu:0", QUIET | {reason: 1.0}))
    assert does(state).kind == "free" and len(found(state)) == 1


def test_a_gpu_that_answers_only_in_part_is_sick() -> None:
    """dcgm-exporter 319: temperature, clocks and utilization fail, memory and power answer."""
    state = free_box("NVIDIA H200")
    dead = ("gpu.utilization_ratio", "gpu.temperature_c", "gpu.sm_clock_hz", "gpu.sm_active_ratio")
    state.apply(Unavailable(102.0, "gpu:0", dict.fromkeys(dead[1:2], UNKNOWN_ERROR)))
    assert does(state).kind == "free", "one failure may be a matter of the driver"
    state.apply(Unavailable(103.0, "gpu:0", dict.fromkeys(dead, "not supported on this device")))
    assert does(state).kind == "n/a"
    state.apply(Unavailable(104.0, "gpu:0", dict.fromkeys(dead, UNKNOWN_ERROR)))
    assert does(state) == GpuState("sick", "sick", "4 of 6 readings fail")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        *((code, "free") for code in (13, 31, 43, 45, 63, 92, 94, 121, 147, 148)),
        *((code, "sick") for code in (48, 64, 74, 79, 95, 119, 140, 143, 149, 154, 158, 999)),
    ],
)
def test_an_xid_makes_a_gpu_sick_where_the_catalogue_asks_for_more_than_a_restart_of_the_job(
    code: int, kind: str
) -> None:
    state = free_box("NVIDIA B200")
    state.apply(Xid(102.0, "gpu:0", code))
    assert does(state).kind == kind
    assert found(state)[0].words == f"XID {code}"


def test_the_lists_of_xids_agree() -> None:
    assert not HARMLESS_XIDS & (HARDWARE_XIDS | NVLINK_XIDS)
    assert MEANINGS.keys() >= HARDWARE_XIDS | NVLINK_XIDS


def linked(name: str, *active: int, links: int = 18) -> SessionState:
    """Return GPUs of one name. Each has this number of active NVLinks, out of `links`; -1: the GPU
    has no NVLink."""
    state = free_box(*[name] * len(active))
    for n, up in enumerate(active):
        if up >= 0:
            state.apply(Sample(102.0, f"gpu:{n}", QUIET | {"gpu.nvlinks_active": float(up)}))
            for link in range(links):
                up_now = {"gpu.link_up": float(link < up)}
                state.apply(Sample(102.0, f"gpu:{n}/link:{link}", up_now))
    return state


@pytest.mark.parametrize(
    ("name", "active", "links", "sick"),
    [
        ("NVIDIA H200", (18, 12, 0), 18, {"gpu:1": "12 of 18", "gpu:2": "0 of 18"}),
        ("NVIDIA H200", (18, 18), 18, {}),
        ("NVIDIA H200", (17, 17), 18, {"gpu:0": "17 of 18", "gpu:1": "17 of 18"}),
        # a virtual machine without its switch
        ("NVIDIA H200", (0, 0), 18, {}),
        # only one pair has a bridge
        ("NVIDIA RTX A6000", (4, 4, 0), 4, {}),
        ("NVIDIA A100 80GB PCIe", (12, 8), 12, {"gpu:1": "8 of 12"}),
        ("NVIDIA H100 NVL", (12, 12), 18, {}),
        # half of a mesh of eight
        ("Tesla V100-SXM2-32GB", (4, 4), 6, {}),
        ("NVIDIA L40S", (-1, -1), 0, {}),
    ],
)
def test_a_gpu_with_fewer_nvlinks_than_its_neighbours_or_than_it_has_is_sick(
    name: str, active: tuple[int, ...], links: int, sick: dict[str, str]
) -> None:
    state = linked(name, *active, links=links)
    states = {device.id: does(state, device.id) for device in state.devices}
    assert {gpu: one.reason for gpu, one in states.items() if one.kind == "sick"} == {
        gpu: f"{words} NVLinks" for gpu, words in sick.items()
    }


def test_an_ecc_mode_that_waits_for_a_reset_stands_in_the_row() -> None:
    state = free_box("NVIDIA A100")
    state.apply(Devices(102.0, [Device("gpu:0", "NVIDIA A100", facts={"ecc_pending": "off"})]))
    state.apply(Sample(103.0, "gpu:0", QUIET))
    assert found(state) == [Fault("ECC off after a reset")]
    assert does(state).kind == "free", "somebody has set it"


def test_a_gpu_whose_driver_is_slow_is_sick_and_one_that_does_not_answer_is_silent() -> None:
    state = SessionState()
    state.apply(Hello(100.0, "sampler", 1, "x", 1e9))
    state.apply(Devices(100.0, [Device("gpu:0", "H200"), Device("gpu:1", "unknown GPU")]))
    state.apply(Sample(101.0, "gpu:0", {"gpu.utilization_ratio": 1.0}))
    state.apply(SourceState(101.0, "gpu:0", 1.0, 0.0, "nvmlDeviceGetPowerUsage takes 200 ms"))
    state.apply(SourceState(101.0, "gpu:1", 1.0, 1.0, "nvmlDeviceGetName has not returned"))
    states = gpu_states(seen_now(state, 1.0), state.devices)
    assert states["gpu:0"] == GpuState("sick", "busy", "slow driver")
    assert states["gpu:1"] == GpuState("silent", "silent", "nvmlDeviceGetName has not returned")
    state.apply(SourceState(109.0, "gpu:0", 1.0, 8.0, "nvmlDeviceGetPowerUsage has not returned"))
    states = gpu_states(seen_now(state, 9.0), state.devices)
    assert states["gpu:0"].kind == "silent"
    assert states["gpu:0"].reason == "nvmlDeviceGetPowerUsage has not returned"
