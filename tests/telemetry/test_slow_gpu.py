"""One of eight GPUs is slow or hangs. The other seven are read each second, and the console names
the driver call of the eighth."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time

import psutil
import pytest

from gpuconsole.wire.events import (
    AnyEvent,
    Devices,
    Processes,
    Sample,
    SamplerEnded,
    SourceState,
    Topology,
)
from tests.cli.exporting import Exporter
from tests.conftest import Machine
from tests.telemetry.sampling import SamplerChild
from tests.waiting import wait_until

NEVER = 10_000_000
SICK = "gpu:5"
HEALTHY = [f"gpu:{n}" for n in range(8) if n != 5]
DELAYS = [50, 100, 200, 500, 1500, NEVER]


def samples(events: list[AnyEvent], device: str) -> list[Sample]:
    return [event for event in events if isinstance(event, Sample) and event.device == device]


def why_slow(events: list[AnyEvent]) -> str:
    """The reason that the newest state of the sick GPU gives."""
    states = [event for event in events if isinstance(event, SourceState) and event.source == SICK]
    return states[-1].detail if states else ""


def why_slow_of(child: SamplerChild, gpu: str) -> str:
    child.wait(lambda now: now.state(gpu) is not None, "the state of the GPU")
    state = child.state(gpu)
    assert state is not None
    return state.detail


def longest_gap_s(events: list[AnyEvent], device: str, since: float) -> float:
    times = [since, *(event.t for event in samples(events, device) if event.t > since)]
    return max(b - a for a, b in zip(times, [*times[1:], time.monotonic()], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("milliseconds", DELAYS)
@pytest.mark.parametrize("begins", ["at the start", "in mid-run"])
def test_seven_gpus_go_on_beside_a_slow_one(
    machine: Machine, milliseconds: int, begins: str
) -> None:
    slow = ("gpus 8", f"gpu 5 delay * {milliseconds}")
    script, environment = machine(*(slow if begins == "at the start" else ("gpus 8",)))
    with SamplerChild(environment) as child:
        child.wait(lambda now: all(samples(now.events, gpu) for gpu in HEALTHY), "seven GPUs")
        script.write(*slow)
        since = time.monotonic()
        child.wait(lambda _: time.monotonic() - since > 6, "six seconds")
        if milliseconds > 50:  # a turn of 20 calls ends within 2 s
            child.wait(lambda now: why_slow(now.events), "the reason")
        events = list(child.events)
    assert all(longest_gap_s(events, gpu, since) < 2.5 for gpu in HEALTHY)
    assert [device.id for device in child.devices.devices if device.is_gpu] == [
        f"gpu:{n}" for n in range(8)
    ]
    assert milliseconds == 50 or "nvml" in why_slow(events)
    assert not any(isinstance(event, SamplerEnded) for event in events)
    assert sum(isinstance(event, Devices) for event in events) == 1
    assert not any(
        event.stuck_s
        for event in events
        if isinstance(event, SourceState) and event.source == "nvml"
    )
    if milliseconds <= 500:  # four vital calls take at most 2 s
        assert longest_gap_s(events, SICK, since) < 6


@pytest.mark.slow
def test_a_gpu_that_is_quick_again_is_read_as_the_others(machine: Machine) -> None:
    script, environment = machine("gpus 2", "gpu 1 delay * 100")
    with SamplerChild(environment) as child:
        child.wait(lambda now: samples(now.events, "gpu:1"), "a vital reading")
        assert "gpu.sm_active_ratio" not in child.values("gpu:1")
        assert child.values("gpu:1")["gpu.power_w"] == 350
        script.write("gpus 2")
        child.wait(lambda now: "gpu.sm_active_ratio" in now.values("gpu:1"), "all of its metrics")


@pytest.mark.parametrize("milliseconds", [100, NEVER])
def test_devices_ends_soon_beside_a_slow_gpu(machine: Machine, milliseconds: int) -> None:
    _, environment = machine("gpus 8", f"gpu 5 delay * {milliseconds}")
    command = [sys.executable, "-m", "gpuconsole", "devices", "--json"]
    began = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert time.monotonic() - began < 8  # 2 s on a machine that does nothing else
    shown = {device["id"]: device for device in json.loads(done.stdout)["devices"]}
    assert all("gpu.power_w" in shown[gpu]["values"] for gpu in HEALTHY)
    assert SICK in shown


@pytest.mark.slow
def test_the_exporter_serves_seven_gpus_and_names_the_stuck_one(machine: Machine) -> None:
    script, environment = machine("gpus 8")
    with Exporter(environment).ready() as exporter:
        script.write("gpus 8", f"gpu 5 delay * {NEVER}")
        wait_until(
            lambda: (
                (exporter.values("gpuconsole_source_stuck_seconds", source=SICK) or {"": 0})[""] > 6
            ),
            what="the stuck GPU",
        )
        wait_until(
            lambda: sorted(exporter.values("gpuconsole_gpu_power_watts")) == HEALTHY,
            what="seven GPUs",
        )
        status, text = exporter.get("/healthz")
        assert status == 200 and f"{SICK} is silent: nvml" in text


def test_the_brief_form_makes_few_driver_calls(machine: Machine) -> None:
    """nvitop makes 187 calls for 8 GPUs."""
    _, environment = machine("gpus 8")
    code = (
        "import time\n"
        "from gpuconsole.telemetry.nvml.library import meter\n"
        "from gpuconsole.telemetry.nvml.source import NvmlSource\n"
        "source = NvmlSource(0.3, brief=True)\n"
        "source.devices()\n"
        "source.prime()\n"
        "time.sleep(0.15)\n"
        "values = [sample.values for sample in source.read(time.monotonic())[:8]]\n"
        "print(meter.calls, all('gpu.sm_active_ratio' in one for one in values))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    calls, has_sm = done.stdout.split()
    assert int(calls) <= 200 and has_sm == "True"


@pytest.mark.slow
def test_three_slow_gpus_take_nothing_from_the_others(machine: Machine) -> None:
    """The usual time of a call is that of the GPU: slow ones make no call of a healthy one rare."""
    script, environment = machine("gpus 8")
    with SamplerChild(environment) as child:
        child.rounds(3)
        script.write("gpus 8", *(f"gpu {n} delay * 100" for n in (1, 2, 3, 4)))
        since = time.monotonic()
        child.wait(lambda _: time.monotonic() - since > 10, "ten seconds")
        told = [event.t for event in samples(child.events, "gpu:0") if event.t > since]
        vital = [
            event.t
            for event in samples(child.events, "gpu:0")
            if event.t > since and "gpu.utilization_ratio" in event.values
        ]
    assert vital == told and len(told) > 40
    assert max(b - a for a, b in itertools.pairwise(told)) < 2.5


@pytest.mark.slow
@pytest.mark.parametrize("milliseconds", [8, 20])
def test_a_driver_that_takes_its_time_for_every_gpu_makes_none_of_them_slow(
    machine: Machine, milliseconds: int
) -> None:
    script, environment = machine("gpus 4")
    with SamplerChild(environment, 1.0) as child:
        child.rounds(2)
        script.write("gpus 4", f"gpu * delay * {milliseconds}")
        since = time.monotonic()
        child.wait(lambda _: time.monotonic() - since > 12, "a reading of rare metrics")
        events = list(child.events)
        assert not any(
            isinstance(event, SourceState) and event.source.startswith("gpu:") for event in events
        )
        assert sum(isinstance(event, Topology) for event in events) == 1
        assert all("gpu.sm_active_ratio" in child.values(f"gpu:{n}") for n in range(4))


@pytest.mark.slow
def test_gpus_without_persistence_mode_open_together_and_are_not_slow(machine: Machine) -> None:
    _, environment = machine("gpus 4", "gpu * delay nvmlDeviceGetHandleByIndex 1500")
    command = [sys.executable, "-m", "gpuconsole", "devices", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    shown = [one for one in json.loads(done.stdout)["devices"] if one["id"] != "cpu"]
    assert [one["name"] for one in shown] == ["NVIDIA H200"] * 4
    assert {one["state"] for one in shown} == {"busy"}


@pytest.mark.slow
def test_the_processes_of_a_gpu_stay_listed_while_its_driver_is_slow(machine: Machine) -> None:
    own = f"gpu 1 process {os.getpid()} compute 1e9 40"
    script, environment = machine("gpus 2", own)
    with SamplerChild(environment) as child:
        child.wait(lambda now: any(isinstance(one, Processes) for one in now.events), "a list")
        script.write("gpus 2", own, "gpu 1 delay * 300")
        child.wait(lambda now: (state := now.state("gpu:1")) and not state.stuck_s, "a slow GPU")
        child.forget()
        child.wait(lambda now: any(isinstance(one, Processes) for one in now.events), "a list")
        assert [one.pid for one in child.last(Processes).processes] == [os.getpid()]


@pytest.mark.slow
@pytest.mark.parametrize("call", ["nvmlDeviceGetMigMode", "*"])
def test_a_slow_call_about_slices_is_no_change_of_the_slices(machine: Machine, call: str) -> None:
    slices = ("gpus 2", "gpu 0 mig 1", *(f"gpu 0 mig_slice {n} 1e10 1e9" for n in range(1, 8)))
    script, environment = machine(*slices)
    with SamplerChild(environment, 0.5) as child:
        child.rounds(2)
        script.write(*slices, f"gpu 0 delay {call} 300")
        since = time.monotonic()
        child.wait(lambda _: time.monotonic() - since > 12, "two looks at the slices")
        assert len([one for one in child.devices.devices if one.is_mig]) == 7
        assert longest_gap_s(list(child.events), "gpu:1", since) < 3


@pytest.mark.slow
def test_a_gpu_that_hangs_beside_one_that_comes_and_goes_keeps_few_threads(
    machine: Machine,
) -> None:
    script, environment = machine("gpus 4")
    with SamplerChild(environment) as child:
        child.rounds(2)
        for _ in range(3):
            script.write("gpus 4", f"gpu 1 delay * {NEVER}", "gpu 2 delay * 1000")
            child.wait(lambda now: now.state("gpu:2") is not None, "a slow GPU")
            begun = time.monotonic()
            child.wait(lambda _, begun=begun: time.monotonic() - begun > 3, "three seconds")
            script.write("gpus 4", f"gpu 1 delay * {NEVER}")
            child.forget()
        assert psutil.Process(child.process.pid).num_threads() <= 9
        assert "nvml" in why_slow_of(child, "gpu:1")
