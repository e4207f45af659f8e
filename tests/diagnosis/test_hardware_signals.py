"""From telemetry to signals: what counts is read under load, and what is not known is left out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpuconsole.diagnosis.engine import evaluate
from gpuconsole.diagnosis.rule import Case
from gpuconsole.diagnosis.signals.hardware import (
    DeviceReadings,
    HardwareWatch,
    joined_by_nvlink,
    tensor_core_signals,
)
from gpuconsole.engine.diagnosis_loop import DiagnosisLoop
from gpuconsole.engine.run_control import RunLock
from gpuconsole.model.machine import Device, Link, Peaks, Process
from gpuconsole.model.peaks import peaks_of
from gpuconsole.model.run import Step
from gpuconsole.model.series import Series
from gpuconsole.model.serving import WATCHED, ServerFacts
from gpuconsole.session.run import RunRecord
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import (
    DeviceLost,
    Devices,
    Note,
    Processes,
    RunOpened,
    Sample,
    ServerKnown,
    Steps,
    Topology,
    Xid,
)
from tests.conftest import Machine
from tests.telemetry.sampling import SamplerChild

H200 = Device("gpu:0", "H200", peaks=Peaks(nvlink_bytes_per_s=900e9, source="datasheet"))
BUSY = {
    "utilization_ratio": 0.97,
    "clocks_idle": 0.0,
    "clocks_app_setting": 0.0,
    "sm_clock_hz": 1.9e9,
    "thermal_time_ratio": 0.0,
    "hw_thermal_time_ratio": 0.0,
    "power_cap_time_ratio": 0.9,
    "power_brake_time_ratio": 0.0,
    "sync_boost_time_ratio": 0.0,
    "power_w": 690.0,
    "pcie_rx_bytes_per_s": 1e9,
}
SELDOM = {
    "sm_clock_max_hz": 1.98e9,
    "power_limit_w": 700.0,
    "pcie_link_generation": 5.0,
    "pcie_link_generation_max": 5.0,
    "pcie_link_width": 16.0,
    "pcie_link_width_max": 16.0,
    "xid_errors": 0.0,
}
IDLE = {
    "utilization_ratio": 0.0,
    "clocks_idle": 1.0,
    "sm_clock_hz": 0.3e9,
    "pcie_link_generation": 1.0,
}


def opened(device: str = "gpu:0", workload: str = "training.gpt") -> tuple[SessionState, RunRecord]:
    state = SessionState()
    state.apply(Devices(0.0, [H200, Device("gpu:1", "H200"), Device("cpu", "cpu")]))
    state.apply(RunOpened(0.0, "1", "train-gpt", workload, {"max_num_seqs": 8}, device))
    assert state.record is not None
    return state, state.record


def sample(state: SessionState, t: float, values: dict[str, float], device: str = "gpu:0") -> None:
    state.apply(Sample(t, device, {f"gpu.{name}": value for name, value in values.items()}))


def signals(
    state: SessionState, record: RunRecord, watch: HardwareWatch | None = None
) -> dict[str, float]:
    watch = watch or HardwareWatch(lambda process: process.pid == 1)
    return {name: signal.value for name, signal in watch.signals(state, record).items()}


def busy(seconds: int = 10, **changes: float) -> tuple[SessionState, RunRecord]:
    state, record = opened()
    for t in range(1, seconds + 1):
        sample(state, float(t), {**BUSY, **(SELDOM if t % 5 == 0 else {}), **changes})
    return state, record


def server_of_others(
    workload: str, here: bool | None, *gpus: str, heat: Sequence[str] = ("gpu:0",)
) -> tuple[SessionState, RunRecord]:
    """A server that the console has not started, on a machine with these GPUs, of which some are
    hot."""
    state = SessionState()
    state.apply(Devices(0.0, [*(Device(gpu, "H200") for gpu in gpus), Device("cpu", "cpu")]))
    state.apply(RunOpened(0.0, "1", "http://server", workload, {}, "cpu", elsewhere=True))
    state.apply(ServerKnown(0.0, ServerFacts(here=here)))
    for t in range(1, 11):
        for gpu in gpus:
            hot = {"thermal_time_ratio": 0.9, "sm_clock_hz": 600e6} if gpu in heat else {}
            sample(state, float(t), {**BUSY, **SELDOM, "power_cap_time_ratio": 0.0, **hot}, gpu)
    assert state.record is not None
    return state, state.record


@pytest.mark.parametrize("workload", [WATCHED, "inference.serving"])
def test_the_gpu_of_a_server_of_others_on_this_machine_is_judged(workload: str) -> None:
    """A watched server on a GPU at 93 °C with XID 79 was called healthy."""
    state, record = server_of_others(workload, True, "gpu:0")
    assert signals(state, record)["hw.thermal_time_ratio"] == pytest.approx(0.9)
    assert "hw.other_processes" not in signals(state, record), "whose the processes are, is open"
    case = Case.of(record.run, HardwareWatch(lambda process: False).signals(state, record))
    assert {f.rule for f in evaluate(case) if f.state == "fires"} == {"hw.thermal"}


@pytest.mark.parametrize(("here", "gpus"), [(False, 1), (None, 1), (True, 2)])
def test_a_gpu_that_may_be_that_of_others_is_not_judged(here: bool | None, gpus: int) -> None:
    """The server is elsewhere, or nobody knows which of two GPUs it uses."""
    state, record = server_of_others(WATCHED, here, *("gpu:0", "gpu:1")[:gpus])
    found = signals(state, record)
    assert "is_gpu" not in found and not any(name.startswith("hw.") for name in found)


def test_of_several_gpus_of_a_server_the_worst_counts() -> None:
    state, record = server_of_others(WATCHED, True, "gpu:0", "gpu:1", heat=["gpu:1"])
    record.run.server_devices = ["gpu:0", "gpu:1"]
    assert signals(state, record)["hw.thermal_time_ratio"] == pytest.approx(0.9)


def test_a_cpu_run_has_no_signal_but_that() -> None:
    state, record = opened("cpu")
    assert signals(state, record) == {"is_gpu": 0.0}


def test_readings_under_load_become_signals() -> None:
    found = signals(*busy())
    assert found["hw.sm_clock_ratio"] == pytest.approx(1.9 / 1.98)
    assert found["hw.power_ratio"] == pytest.approx(690 / 700)
    assert found["hw.power_cap_time_ratio"] == pytest.approx(0.9)
    assert found["hw.thermal_time_ratio"] == 0.0
    assert found["link.pcie_peak_bytes_per_s"] == pytest.approx(16 * 3.938e9)
    assert found["hw.xid_errors"] == 0.0
    assert "hw.temperature_c" not in found  # never told


def test_an_idle_gpu_lowers_clocks_and_link_and_says_nothing_of_either() -> None:
    state, record = busy(10, **IDLE)
    found = signals(state, record)
    assert not [
        name
        for name in found
        if name.startswith(("hw.sm", "hw.thermal", "hw.power_cap", "link.pcie_gen", "link.pcie_rx"))
    ]
    assert found["hw.busy_ratio"] == 0.0
    for t in range(11, 15):  # load comes, and the link is read again only later
        sample(state, float(t), BUSY)
    found = signals(state, record)
    assert found["hw.sm_clock_ratio"] == pytest.approx(1.9 / 1.98)
    assert "link.pcie_generation" not in found


def test_without_counters_of_time_the_reasons_at_each_reading_count() -> None:
    state, record = opened()
    for t in range(1, 11):
        sample(
            state,
            float(t),
            {"utilization_ratio": 0.9, "clocks_sw_thermal": float(t > 5), "clocks_hw_thermal": 0.0},
        )
    found = signals(state, record)
    assert found["hw.thermal_time_ratio"] == pytest.approx(0.5)
    assert "hw.power_cap_time_ratio" not in found


def test_a_reason_counts_beside_the_counter_of_another_cause() -> None:
    state, record = opened()
    for t in range(1, 11):
        sample(
            state,
            float(t),
            {
                "utilization_ratio": 0.9,
                "thermal_time_ratio": 0.0,
                "sw_thermal_time_ratio": 0.1,
                "clocks_hw_thermal": float(t > 5),
            },
        )
    assert signals(state, record)["hw.thermal_time_ratio"] == pytest.approx(0.5)


def test_a_server_that_was_not_started_here_runs_on_nobody_knows_what() -> None:
    state, record = opened(workload="inference.serving")
    sample(state, 1.0, BUSY)
    assert signals(state, record) == {}
    record.facts["max_num_seqs"] = 8.0
    assert signals(state, record)["is_gpu"] == 1.0


def test_other_processes_count_only_where_ours_are_seen() -> None:
    state, record = opened()
    mine = Process(1, "gpu:0", memory_bytes=10**10, sm_ratio=0.6)
    others = [
        Process(2, "gpu:0", memory_bytes=10**9, sm_ratio=0.3),
        Process(3, "gpu:0", kind="graphics", memory_bytes=10**8),
        Process(4, "gpu:1", memory_bytes=10**9, sm_ratio=0.9),
    ]
    state.apply(Processes(1.0, [mine, *others]))
    found = signals(state, record)
    assert (
        found["hw.other_processes"],
        found["hw.other_sm_ratio"],
        found["hw.other_memory_bytes"],
    ) == (1.0, pytest.approx(0.3), 1e9)
    # a container that hides ours: the rest of the list is not to be trusted either
    state.apply(Processes(2.0, others))
    assert not [name for name in signals(state, record) if name.startswith("hw.other_p")]


def test_no_others_are_believed_only_where_memory_bears_it_out() -> None:
    state, record = opened()
    sample(state, 1.0, {"hbm_used_bytes": 40e9, "hbm_reserved_bytes": 1e9})
    state.apply(Processes(1.0, [Process(1, "gpu:0", memory_bytes=10**10)]))
    assert "hw.other_processes" not in signals(state, record), (
        "30 GB are in nobody's name: another container's job is hidden"
    )
    sample(state, 2.0, {"hbm_used_bytes": 10.2e9, "hbm_reserved_bytes": 1e9})
    assert signals(state, record)["hw.other_processes"] == 0.0


def test_only_errors_of_the_hardware_count_and_link_errors_since_watching_began() -> None:
    state, record = busy()
    watch = HardwareWatch(lambda process: False)
    link = {"link_replays": 7.0, "link_crc_errors": 100.0}
    sample(state, 10.0, link, "gpu:0/link:3")
    for harmless in (31, 63, 92, 94, 119, 120, 121, 147, 148, 154):
        state.apply(Xid(10.0, "gpu:0", harmless))
    state.apply(Xid(10.0, "gpu:1", 79))
    first = signals(state, record, watch)
    assert (first["hw.xid_errors"], first["hw.lost"]) == (0.0, 0.0)
    assert first["hw.nvlink_xids"] == 0.0
    assert "hw.nvlink_errors" not in first
    state.apply(Xid(11.0, "gpu:0", 79))
    sample(state, 20.0, {"link_replays": 9.0, "link_crc_errors": 1100.0}, "gpu:0/link:3")
    later = signals(state, record, watch)
    assert (later["hw.xid_errors"], later["hw.nvlink_errors"], later["hw.nvlink_crc_per_s"]) == (
        1.0,
        2.0,
        pytest.approx(100.0),
    )
    for fault in (136, 140, 143, 158):
        state.apply(Xid(20.0, "gpu:0", fault))
    for of_link in (144, 145, 146, 149, 150):
        state.apply(Xid(20.0, "gpu:0", of_link))
    more = signals(state, record, watch)
    assert (more["hw.xid_errors"], more["hw.nvlink_xids"]) == (5.0, 5.0)
    state.apply(DeviceLost(21.0, "gpu:0", "fell off the bus"))
    assert signals(state, record, watch)["hw.lost"] == 1.0


def test_nvlinks_between_the_gpus_of_the_run() -> None:
    links = [
        Link("gpu:0", "gpu:1", "NV18"),
        Link("gpu:0", "gpu:2", "SYS"),
        Link("gpu:1", "gpu:2", "SYS"),
    ]
    assert joined_by_nvlink(links, {"gpu:0", "gpu:1"}) is True
    assert joined_by_nvlink(links, {"gpu:0", "gpu:2"}) is False
    assert joined_by_nvlink(links, {"gpu:0", "gpu:1", "gpu:2"}) is None
    assert joined_by_nvlink(links, set()) is None  # which are used is not known, and they differ
    assert joined_by_nvlink([], {"gpu:0", "gpu:1"}) is None
    state, record = busy()
    state.apply(Topology(10.0, links[:1]))
    assert signals(state, record)["link.nvlink_peak_bytes_per_s"] == 450e9


def test_growth_of_memory_needs_fifty_steady_steps() -> None:
    state, record = opened()
    for t in range(1, 61):
        step = Step(t, float(t), 1.0, 1, 1, (0.0,) * 10)
        state.apply(Steps(float(t), [step], 0.0, 0.0, 0.0, 1e9 + 2e7 * t))
        sample(state, float(t), {"hbm_free_bytes": 5e9})
        if t == 30:
            assert "memory.growth_bytes_per_s" not in signals(state, record)
    assert record.steady_t is not None
    found = signals(state, record)
    assert found["memory.growth_bytes_per_s"] == pytest.approx(2e7)
    assert found["memory.room_bytes"] == 5e9
    record.run.knobs = {**record.run.knobs, "memory_limit_mb": 3000}
    assert signals(state, record)["memory.room_bytes"] == pytest.approx(
        3000 * 2**20 - values_at_the_end(60)
    )
    record.run.knobs = {**record.run.knobs, "memory_limit_mb": 110_000}
    assert signals(state, record)["memory.room_bytes"] == 5e9, (
        "a limit above the card gives no room"
    )


def values_at_the_end(t: int) -> float:
    """The allocator's peak at second t, in bytes."""
    return 1e9 + 2e7 * t


def test_the_case_of_a_run_has_them() -> None:
    state, record = busy()
    loop = DiagnosisLoop(state, lambda event: None, lambda: None, RunLock())
    assert "hw.sm_clock_ratio" in loop._case(record).signals


def test_a_scripted_thermal_slowdown_and_an_xid_reach_their_rules(machine: Machine) -> None:
    """All the way from the (fake) driver, through the real sampler."""
    hot = (
        "utilization_pct 97",
        "clocks_reasons 64",
        "sm_clock_mhz 1300",
        "sm_clock_max_mhz 1980",
        "field_per_s 270 700000000",
    )
    script, environment = machine("gpus 1", *(f"gpu * {line}" for line in hot))
    with SamplerChild(environment) as child:
        child.rounds(8)
        script.write(
            "gpus 1", *(f"gpu * {line}" for line in hot), "gpu 0 xid 79", "gpu 0 xid_serial 1"
        )
        child.wait(lambda heard: any(isinstance(event, Xid) for event in heard.events), "an XID")
        events = list(child.events)
    state = SessionState()
    state.apply(RunOpened(events[0].t, "1", "train-gpt", "training.gpt", {}, "gpu:0"))
    for event in events:
        state.apply(event)
    assert state.record is not None
    case = Case({}, HardwareWatch(lambda process: False).signals(state, state.record))
    findings = {finding.rule: finding for finding in evaluate(case)}
    assert findings["hw.thermal"].state == findings["hw.errors"].state == "fires"
    assert case.value("hw.thermal_time_ratio") == pytest.approx(0.7, abs=0.05)
    assert (findings["hw.power"].state, findings["hw.clocks_low"].state) == ("clear", "clear")


@pytest.mark.parametrize("hours", [0.1, 1, 3])
def test_the_rise_of_a_counter_is_over_the_time_of_its_first_value(hours: float) -> None:
    """Ten readings a second: older readings are stored as means, each with the time of its first
    reading."""
    state = SessionState()
    series = Series()
    for n in range(int(hours * 36_000)):
        series.add(n / 10, n / 10)
    state.readings.series["gpu.pcie_replays{device=gpu:0}"] = series
    state.apply(Note(0.0, ""))
    state.apply(Note(hours * 3600, ""))
    rise = DeviceReadings(state, "gpu:0", 0.0).rise("pcie_replays", 120.0)
    assert rise is not None and rise[1] > 30
    assert rise[0] / rise[1] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "ratios"),
    [
        ("NVIDIA A100-SXM4-80GB", {"bf16": 16.0, "tf32": 8.0}),
        ("NVIDIA GB10", {"bf16": 125 / 31, "tf32": 62.5 / 31}),
        ("Tesla T4", {"bf16": 1.0, "tf32": 1.0}),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", {"bf16": 500 / 120}),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", {}),
        ("NVIDIA Thor", {}),
    ],
)
def test_how_much_faster_tensor_cores_are_is_told_only_where_their_peak_is_known(
    name: str, ratios: dict[str, float]
) -> None:
    signals = tensor_core_signals(Device("gpu:0", name, peaks=peaks_of(name)))
    assert {key: signal.value for key, signal in signals.items()} == pytest.approx(
        {f"gpu.{key}_speed_ratio": v for key, v in ratios.items()}
    )
