"""Tests of the freshness of a value. The exporter's tests check the same rules at /metrics."""

from __future__ import annotations

from gpuconsole.model.machine import Device
from gpuconsole.model.snapshot import Environment
from gpuconsole.session.freshness import fresh_value, silent_devices, slow_gpus, why_not_fresh
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import make_snapshot
from gpuconsole.wire.events import (
    DeviceKnown,
    DeviceLost,
    Devices,
    RunOpened,
    Sample,
    SamplerEnded,
    SourceState,
    Steps,
    Unavailable,
)

POWER, SM = "gpu.power_w{device=gpu:0}", "gpu.sm_active_ratio{device=gpu:0}"


def watched() -> SessionState:
    state = SessionState()
    state.apply(Devices(0.0, [Device("gpu:0", "H200", uuid="A"), Device("cpu", "cpu")]))
    state.apply(Sample(1.0, "gpu:0", {"gpu.power_w": 350.0, "gpu.ecc_corrected": 0.0}))
    state.apply(Sample(1.0, "cpu", {"host.cores_busy": 1.0}))
    return state


def test_a_value_stands_while_its_reader_reports_anything() -> None:
    state = watched()
    state.apply(Sample(5.0, "gpu:0", {"gpu.temperature_c": 60.0}))
    assert fresh_value(state, POWER, "gpu:0", 10.0) == 350.0
    assert fresh_value(state, POWER, "gpu:0", 10.1) is None
    assert silent_devices(state, 10.1) == {"gpu:0": 5.1, "cpu": 9.1}


def test_another_reader_does_not_keep_the_values_of_a_silent_one() -> None:
    state = watched()
    for t in range(2, 12):
        state.apply(
            Sample(float(t), "gpu:0", {"gpu.sm_active_ratio": 0.5}, {"gpu.sm_active_ratio": "dcgm"})
        )
    assert fresh_value(state, SM, "gpu:0", 11.0) == 0.5
    assert fresh_value(state, POWER, "gpu:0", 11.0) is None
    assert silent_devices(state, 11.0) == {"gpu:0": 10.0, "cpu": 10.0}


def test_a_slow_source_has_three_of_its_periods() -> None:
    state = watched()
    state.apply(SourceState(1.0, "nvml", 4.0))
    assert fresh_value(state, POWER, "gpu:0", 13.0) == 350.0
    assert fresh_value(state, POWER, "gpu:0", 13.1) is None
    slow = SessionState(interval_s=15.0)
    slow.apply(Sample(0.0, "cpu", {"host.cores_busy": 1.0}))
    assert silent_devices(slow, 45.0) == {}


def test_a_gpu_that_is_stuck_by_itself_leaves_the_others_fresh() -> None:
    state = SessionState()
    state.apply(Devices(0.0, [Device("gpu:0", "H200"), Device("gpu:1", "unknown GPU")]))
    for t in range(1, 21):
        state.apply(Sample(float(t), "gpu:0", {"gpu.power_w": 350.0}))
        state.apply(SourceState(float(t), "gpu:1", 1.0, float(t), "nvmlDeviceGetName"))
    assert silent_devices(state, 20.0) == {"gpu:1": 20.0}
    assert slow_gpus(state) == {"gpu:1": "nvmlDeviceGetName"}
    assert why_not_fresh(state, 20.0) == ""
    assert fresh_value(state, POWER, "gpu:0", 20.0) == 350.0
    state.apply(SourceState(21.0, "gpu:1", 1.0))
    assert slow_gpus(state) == {} and "gpu:1" not in state.sources


def test_a_slow_gpu_has_three_of_its_own_periods() -> None:
    state = watched()
    state.apply(SourceState(1.0, "gpu:0", 4.0, 0.0, "nvmlDeviceGetPowerUsage takes 1.0 s"))
    assert fresh_value(state, POWER, "gpu:0", 13.0) == 350.0
    assert silent_devices(state, 12.0) == {"cpu": 11.0}


def test_known_gpus_stay_while_a_new_sampler_waits_for_the_driver() -> None:
    state = watched()
    state.apply(Devices(5.0, [Device("cpu", "cpu")], None, "not yet", opening=True))
    assert [device.id for device in state.devices] == ["gpu:0", "cpu"]
    assert state.no_gpu_reason == ""
    state.apply(Devices(6.0, [Device("cpu", "cpu")], None, "the driver is gone"))
    assert [device.id for device in state.devices] == ["cpu"]


def test_a_gpu_that_hangs_for_a_new_sampler_keeps_its_history() -> None:
    state = watched()
    state.apply(Devices(5.0, [Device("gpu:0", "unknown GPU"), Device("cpu", "cpu")]))
    assert len(state.readings.series[POWER]) == 1
    state.apply(Devices(6.0, [Device("gpu:0", "H200", uuid="A"), Device("cpu", "cpu")]))
    assert len(state.readings.series[POWER]) == 1


def test_the_whole_history_is_kept_from_the_first_run_on() -> None:
    """Without a run the screen shows the last minutes; a run has a snapshot, rules and charts."""
    state, hours = watched(), 2 * 3600
    for second in range(1, hours):
        state.apply(Sample(float(second), "gpu:0", {"gpu.power_w": 350.0}))
    before = state.readings.series[POWER].points()[0]
    assert hours - 600 - 300 < before[0] < hours - 600
    state.apply(RunOpened(float(hours), "1", "train-gpt", "training.gpt", {}, "gpu:0"))
    for second in range(hours, 2 * hours):
        state.apply(Sample(float(second), "gpu:0", {"gpu.power_w": 350.0, "gpu.fan_ratio": 0.3}))
    assert state.readings.series[POWER].points()[0][0] == before[0]
    assert state.readings.series["gpu.fan_ratio{device=gpu:0}"].points()[0][0] == hours
    (run,) = make_snapshot(state, Environment(), 2.0 * hours).runs
    assert run.series[POWER].t[0] < hours + 64
    assert run.series[POWER].t[-1] == 2 * hours - 1


def test_a_gpu_that_answers_late_takes_its_place_in_the_list() -> None:
    state = SessionState()
    listed = [Device("gpu:0", "unknown GPU"), Device("gpu:1", "H200"), Device("cpu", "cpu")]
    state.apply(Devices(0.0, listed))
    state.apply(DeviceKnown(1.0, [Device("gpu:0", "H100"), Device("gpu:0/mig:0", "1g.10gb")]))
    assert [device.name for device in state.devices] == ["H100", "1g.10gb", "H200", "cpu"]


def test_readers_take_values_back() -> None:
    state = watched()
    state.apply(Unavailable(2.0, "gpu:0", {"gpu.power_w": "not supported"}))
    assert fresh_value(state, POWER, "gpu:0", 2.0) is None
    state.apply(Sample(3.0, "gpu:0", {"gpu.power_w": 351.0}))
    assert state.unavailable["gpu:0"] == {}
    state.apply(DeviceLost(3.0, "gpu:0", "fell off the bus"))
    state.apply(Sample(3.0, "gpu:0", {"gpu.power_w": 352.0}))  # of the same round
    assert fresh_value(state, POWER, "gpu:0", 3.0) is None
    state.apply(Sample(4.0, "gpu:0", {"gpu.power_w": 353.0}))
    assert (state.lost, fresh_value(state, POWER, "gpu:0", 4.0)) == ({}, 353.0)


def test_power_that_is_not_fresh_is_not_divided_by() -> None:
    state = watched()
    state.apply(RunOpened(1.0, "1", "train-gpt", "training.gpt", {}, "gpu:0"))
    assert state.record is not None
    assert state.power_w(state.record) == 350.0
    state.apply(Steps(7.0, [], 0.0, 0.0, 0.0, 0.0))
    assert state.power_w(state.record) is None


def test_the_end_of_a_sampler_counts_and_stands_until_a_sample_comes() -> None:
    state = watched()
    state.apply(SamplerEnded(2.0, "the sampler ended (exit -9)"))
    assert state.sampler_restarts == 1
    assert why_not_fresh(state, 2.0) == state.notes[-1] == "the sampler ended (exit -9)"
    state.apply(Sample(2.5, "console", {"console.cpu_ratio": 0.1}))  # the console's own
    assert why_not_fresh(state, 2.5)
    state.apply(Sample(3.0, "cpu", {"host.cores_busy": 1.0}))
    assert why_not_fresh(state, 3.0) == ""
