"""One slow or hung GPU of eight: the other seven go on each second, and the eighth says why."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from gpuconsole.wire.events import AnyEvent, Devices, Sample, SamplerEnded, SourceState
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
        child.wait(lambda now: why_slow(now.events), "the reason")
        events = list(child.events)
    assert all(longest_gap_s(events, gpu, since) < 2.5 for gpu in HEALTHY)
    assert [device.id for device in child.devices.devices if device.is_gpu] == [
        f"gpu:{n}" for n in range(8)
    ]
    assert "nvmlDevice" in why_slow(events)
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
