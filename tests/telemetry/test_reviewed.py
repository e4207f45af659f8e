"""What once went wrong, or could: each a case of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from gpuconsole.engine.children.once import read_devices
from gpuconsole.model.machine import Device, Link, Process
from gpuconsole.session.state import SessionState
from gpuconsole.telemetry.nvml import fields
from gpuconsole.telemetry.nvml.processes import ProcessDetails
from gpuconsole.wire.channel import LAST_RESORT_BYTES, ChildChannel
from gpuconsole.wire.events import DeviceLost, Devices, Hello, Processes, RunOpened, Sample
from tests.conftest import Machine
from tests.telemetry.sampling import SamplerChild
from tests.waiting import wait_until


def test_a_process_may_call_itself_by_any_bytes(machine: Machine, tmp_path: Path) -> None:
    odd = bytes(tmp_path / "x") + b"\xff\xfe"
    os.symlink("/bin/sleep", odd)
    child = subprocess.Popen([odd, b"300"])
    try:
        _, environment = machine("gpus 1", f"gpu 0 process {child.pid} compute 1e9 10")
        with SamplerChild(environment) as sampler:
            sampler.wait(
                lambda now: any(isinstance(event, Processes) for event in now.events),
                "the processes",
            )
            assert sampler.last(Processes).processes[0].name.startswith("x?")
            sampler.rounds()
    finally:
        child.kill()
        child.wait(10)


def test_a_cpu_share_is_of_the_process_on_every_gpu_and_none_at_first() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        owners = ProcessDetails()
        on_two = [Process(busy.pid, "gpu:0"), Process(busy.pid, "gpu:1")]
        assert [one.cpu_ratio for one in owners.complete(on_two)] == [None, None]

        def shares_a_core() -> bool:
            first, second = owners.complete(on_two)
            assert first.cpu_ratio == second.cpu_ratio
            return first.cpu_ratio is not None and first.cpu_ratio > 0.2

        wait_until(shares_a_core, 10, "a CPU share")
    finally:
        busy.kill()
        busy.wait(10)


def test_a_lost_gpu_takes_neither_the_others_nor_their_errors_with_it(machine: Machine) -> None:
    """The event set then says that a GPU is lost, of all that are in it."""
    script, environment = machine("gpus 3")
    with SamplerChild(environment) as child:
        child.rounds()
        script.write("gpus 3", "gpu 1 lost 1", "events_error 15")
        child.wait(lambda now: now.losses, "the loss")
        child.rounds(5)
        assert [loss.device for loss in child.losses] == ["gpu:1"]
        script.write("gpus 3", "gpu 1 lost 1", "gpu 2 xid 31", "gpu 2 xid_serial 1")
        child.wait(
            lambda now: now.values("gpu:2").get("gpu.xid_errors") == 1, "an error of another GPU"
        )


def test_a_driver_that_opens_slowly_is_looked_at_whole(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, environment = machine("gpus 1", "init_delay 2600", "gpu 0 error nvmlDeviceGetPowerUsage 3")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    state, error = read_devices(timeout_s=15)
    assert error == ""
    assert len(state.readings.present("gpu:0")) > 60
    assert state.processes == []


@pytest.mark.slow
def test_slices_that_come_later_are_seen(machine: Machine) -> None:
    script, environment = machine("gpus 2")
    with SamplerChild(environment, piped=True) as child:
        child.rounds()
        script.write("gpus 2", "gpu 1 mig 1", "gpu 1 mig_slice 3 19000000000 0")
        assert child.process.wait(15) == 75
        assert child.process.stdout is not None
        assert b"the MIG slices have changed" in child.process.stdout.read()


@pytest.mark.slow
def test_links_that_come_up_later_have_traffic_and_a_topology(machine: Machine) -> None:
    script, environment = machine("gpus 2", "gpu * nvlinks 0")
    with SamplerChild(environment) as child:
        child.wait(lambda now: "gpu.nvlink_rx_bytes_per_s" in now.reasons("gpu:0"), "no link")
        child.wait(
            lambda now: now.links == [Link("gpu:0", "gpu:1", "PIX")], "the topology without NVLink"
        )
        script.write("gpus 2", "gpu * gpm 60 100")
        child.wait(
            lambda now: now.values("gpu:0").get("gpu.nvlink_rx_bytes_per_s") == 100 * 2**20,
            "traffic",
        )
        child.wait(
            lambda now: now.links == [Link("gpu:0", "gpu:1", "NV18")], "the links in the topology"
        )


def test_graphics_that_is_not_supported_does_not_hide_compute(machine: Machine) -> None:
    _, environment = machine(
        "gpus 1",
        "gpu 0 process 4194303 compute 1e9 10",
        "gpu 0 error nvmlDeviceGetGraphicsRunningProcesses_v3 3",
    )
    with SamplerChild(environment) as child:
        child.rounds()
        assert [one.pid for one in child.last(Processes).processes] == [4194303]
        assert child.last(Processes).reasons == {}
        assert child.values("gpu:0")["gpu.processes"] == 1


def test_a_parent_that_has_stopped_costs_a_child_no_memory() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        channel = ChildChannel(theirs.detach())
        rows = [Process(n, "gpu:0", command="x" * 3000) for n in range(128)]
        for n in range(200):
            channel.send(Processes(float(n), rows))
            channel.send(DeviceLost(float(n), "gpu:0", "y" * 200_000))
        assert channel.dropped > 100
        assert len(channel._outbox) <= LAST_RESORT_BYTES + 10**6


def state_of(uuid: str) -> SessionState:
    state = SessionState()
    state.apply(Hello(0.0, "runtime", 1, "x", 1e9))
    state.apply(Devices(0.0, [Device("gpu:0", "H200", uuid=uuid)]))
    return state


def test_a_value_is_the_usual_sources_again() -> None:
    state = state_of("A")
    state.apply(
        Sample(
            1.0,
            "gpu:0",
            {"gpu.pcie_rx_bytes_per_s": 5.0},
            {"gpu.pcie_rx_bytes_per_s": "nvml.field"},
        )
    )
    assert state.readings.substitutes == {"gpu.pcie_rx_bytes_per_s{device=gpu:0}": "nvml.field"}
    state.apply(Sample(2.0, "gpu:0", {"gpu.pcie_rx_bytes_per_s": 6.0}))
    assert state.readings.substitutes == {}


def test_another_gpu_under_the_same_number_has_a_history_of_its_own() -> None:
    state = state_of("A")
    state.apply(Sample(1.0, "gpu:0", {"gpu.power_w": 700.0}))
    state.apply(Devices(2.0, [Device("gpu:0", "H200", uuid="B")]))
    state.apply(Sample(3.0, "gpu:0", {"gpu.power_w": 70.0}))
    assert state.readings.series["gpu.power_w{device=gpu:0}"].points() == ([3.0], [70.0])


def test_a_lost_gpus_links_go_with_it() -> None:
    state = state_of("A")
    state.apply(Sample(1.0, "gpu:0/link:3", {"gpu.link_up": 1.0}))
    state.apply(DeviceLost(2.0, "gpu:0", "GPU is lost"))
    assert not [key for key in state.readings.latest if key.startswith("gpu.")]


def test_a_new_run_shows_nothing_of_the_one_before() -> None:
    state = state_of("A")
    state.apply(RunOpened(0.0, "1", "train-gpt", "training.gpt", {"batch_size": 8}, "gpu:0"))
    state.add_point("workload.tokens_per_s", "gpu:0", 1.0, 10_000.0)
    state.apply(RunOpened(2.0, "2", "train-vision", "training.vision", {"batch_size": 8}, "gpu:0"))
    assert not [key for key in state.readings.latest if key.startswith("workload.")]


@pytest.mark.slow
def test_a_driver_that_comes_in_another_version_gets_a_fresh_process(machine: Machine) -> None:
    script, environment = machine("init_error 9")
    with SamplerChild(environment, piped=True) as child:
        child.wait(lambda now: any(isinstance(event, Devices) for event in now.events), "no driver")
        script.write("init_error 18")
        assert child.process.wait(15) == 75


class Answers:
    """What NVML says of fields, one reading after another: (value, seconds of its clock)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *readings: tuple[int, float]) -> None:
        self._readings = iter(readings)
        monkeypatch.setattr(fields, "call", self._call)

    def _call(
        self, name: str, handle: object, wanted: list[tuple[int, int]]
    ) -> list[pynvml.c_nvmlFieldValue_t]:
        value, t = next(self._readings)
        found = []
        for identifier, _ in wanted:
            answer = pynvml.c_nvmlFieldValue_t()
            answer.fieldId, answer.timestamp, answer.valueType = identifier, int(t * 1e6), 3
            answer.value.ullVal = value
            found.append(answer)
        return found


def test_a_rate_starts_anew_when_the_drivers_clock_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Answers(monkeypatch, (0, 1000.0), (100, 1001.0), (200, 400.0), (300, 401.0))
    reader = fields.FieldReader(None, (fields.Field("x", 198, 1.0, True),))
    told = [reader.read(()) for _ in range(4)]
    assert [values.get("x") for values, _ in told] == [None, 100.0, None, 100.0]
    assert [str(failures.get("x", "")) for _, failures in told] == [
        fields.FIRST_READING,
        "",
        fields.WENT_BACK,
        "",
    ]


def test_a_counter_with_nothing_new_waits_and_is_not_asked_of_another_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Answers(monkeypatch, (0, 1.0), (100, 2.0), (100, 2.0), (300, 3.0))
    reader = fields.FieldReader(None, (fields.Field("x", 198, 1.0, True),))
    told = [(reader.read(())[0].get("x"), reader.waiting) for _ in range(4)]
    assert told == [(None, []), (100.0, []), (None, ["x"]), (200.0, [])]
