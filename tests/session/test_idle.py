"""What counts as free, idle and busy, and since when a GPU is idle: from samples and lists of
processes."""

from __future__ import annotations

import pytest

from gpuconsole.model.machine import Device, Process
from gpuconsole.session.gpu_state import MIN_IDLE_S, GpuState, gpu_states
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import seen_now
from gpuconsole.wire.events import Devices, Hello, Processes, Sample, Unavailable

GIB = 2**30
NOTEBOOK = Process(4242, "gpu:0", user="anna", memory_bytes=39 * GIB)
MINUTE = 60


class Box:
    """One GPU, or a GPU in MIG mode with its slices, sampled once a second."""

    def __init__(self, *devices: Device) -> None:
        self.now = 100.0
        self.state = SessionState()
        self.state.apply(Hello(self.now, "sampler", 1, "x", 1e9))
        self.list(*(devices or (Device("gpu:0", "NVIDIA H200", uuid="A"),)))

    def list(self, *devices: Device) -> None:
        self.devices = devices
        self.state.apply(Devices(self.now, list(devices)))

    def hold(self, *processes: Process) -> None:
        self.state.apply(Processes(self.now, list(processes)))

    def read(self, device: str = "gpu:0", **values: float) -> None:
        usual = {"power_w": 80.0, "processes": 0.0, "hbm_used_bytes": 1.0 * GIB}
        named = {f"gpu.{name}": value for name, value in (usual | values).items()}
        self.state.apply(Sample(self.now, device, named))

    def run(self, seconds: float, sm: float | None = 0.0, util: float | None = 0.0) -> None:
        for _ in range(int(seconds)):
            self.now += 1
            known = {"sm_active_ratio": sm, "utilization_ratio": util}
            self.read(**{name: value for name, value in known.items() if value is not None})

    def does(self, device: str = "gpu:0") -> GpuState:
        seen = seen_now(self.state, self.state.session_time(self.now))
        return gpu_states(seen, self.devices)[device]


@pytest.mark.parametrize(
    ("sm", "util", "kind"),
    [
        (0.0, 0.0, "free"),
        (0.007, 1.0, "busy"),  # one block on one of 132 SMs
        (0.0, 0.5, "busy"),
        (0.5, 0.0, "busy"),
        (None, 0.0, "free"),
        (None, 1.0, "busy"),
    ],
)
def test_free_needs_both_measures_low(sm: float | None, util: float | None, kind: str) -> None:
    box = Box()
    box.hold()
    box.run(3, sm, util)
    assert box.does().kind == kind


def test_memory_that_is_held_without_work_is_idle_after_a_while() -> None:
    box = Box()
    box.hold(NOTEBOOK)
    box.run(MIN_IDLE_S)
    assert box.does() == GpuState("busy", "1 process"), "a pause between two steps"
    box.run(2)
    state = box.does()
    assert (state.kind, state.words) == ("idle", "idle 3+ min"), "before the console it may be idle"
    box.run(11 * MINUTE)
    assert box.does().words == "idle 14+ min"
    assert box.does().idle_s == pytest.approx(14 * MINUTE, abs=2)


def test_one_spike_of_work_ends_idleness_and_the_time_after_it_is_exact() -> None:
    box = Box()
    box.hold(NOTEBOOK)
    box.run(10 * MINUTE)
    assert box.does().kind == "idle"
    box.run(1, sm=0.004, util=0.2)
    assert box.does() == GpuState("busy", "1 process")
    box.run(MIN_IDLE_S - 2)
    assert box.does().kind == "busy"
    box.run(14 * MINUTE - MIN_IDLE_S + 4)
    assert box.does().words == "idle 14 min"


def test_a_process_that_comes_starts_the_time_anew() -> None:
    """A quiet GPU is free, and a job that begins loads its data first."""
    box = Box()
    box.hold()
    box.run(30 * MINUTE)
    assert box.does().kind == "free"
    box.hold(NOTEBOOK)
    box.run(MINUTE)
    assert box.does() == GpuState("busy", "1 process")
    box.run(4 * MINUTE)
    assert box.does().words == "idle 5 min"
    box.hold(NOTEBOOK, Process(5000, "gpu:0"))
    box.run(MINUTE)
    assert box.does() == GpuState("busy", "2 processes")
    box.hold(NOTEBOOK)
    box.run(4 * MINUTE)
    assert box.does().words == "idle 5 min", "a process that goes does not start it anew"


def test_a_gpu_without_samples_is_not_idle_and_begins_again_after_them() -> None:
    box = Box()
    box.hold(NOTEBOOK)
    box.run(10 * MINUTE)
    box.now += 4
    assert box.does().kind == "idle", "one late sample"
    box.now += 10
    assert box.does().kind == "silent"
    box.now += 60
    box.run(MINUTE)
    assert box.does() == GpuState("busy", "1 process"), "nothing is known of the gap"
    box.run(3 * MINUTE)
    assert box.does().words == "idle 3+ min"


def test_a_gpu_whose_utilization_is_not_known_is_not_idle() -> None:
    box = Box()
    box.hold(NOTEBOOK)
    box.run(10 * MINUTE)
    for name in ("sm_active_ratio", "utilization_ratio"):
        box.state.apply(Unavailable(box.now, "gpu:0", {f"gpu.{name}": "not supported"}))
    assert box.does() == GpuState("busy", "1 process")


def test_another_gpu_of_the_same_number_has_a_history_of_its_own() -> None:
    box = Box()
    box.hold(NOTEBOOK)
    box.run(10 * MINUTE)
    box.list(Device("gpu:0", "NVIDIA H200", uuid="A"))  # a new sampler
    box.hold(NOTEBOOK)
    box.run(2)
    assert box.does().words == "idle 10+ min"
    box.list(Device("gpu:0", "NVIDIA H200", uuid="B"))
    box.hold(NOTEBOOK)
    box.run(2)
    assert box.does() == GpuState("busy", "1 process")


@pytest.mark.parametrize(
    ("second", "kinds"), [(0.0, ("idle", "idle", "free")), (0.5, ("busy", "idle", "busy"))]
)
def test_a_gpu_in_mig_mode_does_what_its_slices_do(
    second: float, kinds: tuple[str, str, str]
) -> None:
    slices = [Device(f"gpu:0/mig:{n}", "MIG 1g", uuid=f"M{n}") for n in range(2)]
    box = Box(Device("gpu:0", "NVIDIA H200", uuid="A"), *slices)
    box.hold(Process(4242, "gpu:0/mig:0"))
    for _ in range(5 * MINUTE):
        box.now += 1
        box.read()
        box.read("gpu:0/mig:0", sm_active_ratio=0.0)
        box.read("gpu:0/mig:1", sm_active_ratio=second)
    assert tuple(box.does(device.id).kind for device in box.devices) == kinds


def test_long_times_have_larger_units() -> None:
    box = Box()
    box.hold(NOTEBOOK)
    box.run(2)
    told = {}
    for hours in (1.5, 3, 47, 50):
        box.state.quiet._since["gpu:0"] = (box.state.session_time(box.now) - hours * 3600, False)
        told[hours] = box.does().words
    assert told == {1.5: "idle 90 min", 3: "idle 3 h", 47: "idle 47 h", 50: "idle 2 days"}


def test_a_display_server_does_not_hold_a_gpu() -> None:
    """Xorg has 4 MiB on each GPU of a box without a display."""
    box = Box()
    display = Process(910, "gpu:0", "graphics", "Xorg", memory_bytes=4 << 20)
    box.hold(display)
    box.run(MIN_IDLE_S + 2)
    assert box.does().kind == "free"
    box.run(1, util=0.3)
    assert box.does() == GpuState("busy", "1 process"), "it draws"
    box.run(5)
    box.hold(display, NOTEBOOK)
    box.run(MINUTE)
    box.hold(display, NOTEBOOK, Process(911, "gpu:0", "graphics"))
    box.run(MIN_IDLE_S)
    assert box.does().words == "idle 4 min", "a window that opens is no work"
    box.hold(display)
    for _ in range(int(MIN_IDLE_S) + 2):
        box.now += 1
        box.read(sm_active_ratio=0.0, utilization_ratio=0.0, hbm_used_bytes=5.0 * GIB)
    assert box.does().kind == "idle", "5 GiB are somebody's"
