"""Time: what a slow, stuck or vanishing driver does to the sampler, and what the sampler says of
it."""

from __future__ import annotations

import time

import pytest

from gpuconsole.telemetry.source import DRIVER_GONE_EXIT
from gpuconsole.wire.events import Devices, Sample, SourceState, Stop
from tests.conftest import Machine
from tests.telemetry.sampling import SamplerChild

# PCIe only by the slow call
OLDER = ("gpu * gpm_support 0", "gpu * field_error 197 3", "gpu * field_error 198 3")


def host_samples(child: SamplerChild) -> int:
    return sum(isinstance(event, Sample) and event.device == "cpu" for event in child.events)


def test_a_call_that_hangs_is_named_and_the_host_goes_on(machine: Machine) -> None:
    script, environment = machine("gpus 2")
    with SamplerChild(environment) as child:
        child.rounds()
        script.write("gpus 2", "gpu 1 delay nvmlDeviceGetPowerUsage 6000")
        child.wait(
            lambda now: (state := now.state("gpu:1")) is not None and state.stuck_s > 2,
            "the stuck GPU",
        )
        state = child.state("gpu:1")
        assert state is not None
        assert state.detail.startswith("nvmlDeviceGetPowerUsage has not returned for")
        before = host_samples(child)
        child.wait(lambda now: host_samples(now) > before + 5, "samples of the host")
        script.write("gpus 2")
        child.wait(
            lambda now: (state := now.state("gpu:1")) is not None and not state.stuck_s,
            "the GPU answers again",
        )
        asked = time.monotonic()
        child.send(Stop())
        assert child.process.wait(5) == 0
        assert time.monotonic() - asked < 3


def test_a_driver_that_hangs_as_it_opens_leaves_the_host_to_watch(machine: Machine) -> None:
    _, environment = machine("gpus 2", "init_delay 4000")
    with SamplerChild(environment) as child:
        child.wait(
            lambda now: any(isinstance(event, Devices) for event in now.events), "a list of devices"
        )
        assert [device.id for device in child.devices.devices] == ["cpu"]
        assert child.devices.reason == "the NVIDIA driver has not answered yet"
        child.wait(
            lambda now: (state := now.state("nvml")) is not None and state.stuck_s > 2,
            "the stuck source",
        )
        child.wait(lambda now: len(now.last(Devices).devices) == 3, "the GPUs")
        child.rounds()
        assert child.values("gpu:1")["gpu.power_w"] == 350


def test_slow_calls_get_turns_and_hold_up_no_round(machine: Machine) -> None:
    """16 GPUs with two calls of 20 ms each would take 640 ms of every round of 100 ms."""
    _, environment = machine(
        "gpus 16",
        *OLDER,
        "gpu * delay nvmlDeviceGetPcieThroughput 20",
        *(f"gpu {n} pcie_rx_kb {n + 1}" for n in range(16)),
    )
    with SamplerChild(environment) as child:
        child.wait(
            lambda now: all("gpu.pcie_rx_bytes_per_s" in now.values(f"gpu:{n}") for n in range(16)),
            "PCIe of every GPU",
        )
        assert [child.values(f"gpu:{n}")["gpu.pcie_rx_bytes_per_s"] for n in range(16)] == [
            1000 * (n + 1) for n in range(16)
        ]
        child.wait(
            lambda now: (
                (state := now.state("nvml")) is not None
                and "nvmlDeviceGetPcieThroughput" in state.detail
            ),
            "why",
        )
        child.forget()
        child.rounds(20)
        samples = [
            event for event in child.events if isinstance(event, Sample) and event.device == "gpu:0"
        ]
        # what is quick is in every round; on a busy machine, a GPU may be late for one or two
        assert sum("gpu.power_w" in sample.values for sample in samples) >= 18
        assert sum("gpu.pcie_rx_bytes_per_s" in sample.values for sample in samples) < 10


def test_a_slow_driver_stretches_the_period_and_says_so(machine: Machine) -> None:
    _, environment = machine("gpus 1", "gpu 0 delay nvmlDeviceGetPowerUsage 150")
    with SamplerChild(environment) as child:
        child.wait(
            lambda now: (state := now.state("nvml")) is not None and state.period_s > 0.25,
            "a longer period",
        )
        child.wait(lambda now: host_samples(now) > 10, "the host at its own beat")


def test_one_hiccup_makes_no_call_a_slow_one(machine: Machine) -> None:
    script, environment = machine("gpus 1", *OLDER)
    with SamplerChild(environment) as child:
        child.rounds(5)
        script.write("gpus 1", *OLDER, "gpu 0 delay nvmlDeviceGetPcieThroughput 200")
        child.rounds(1)
        script.write("gpus 1", *OLDER)
        child.rounds(6)
        child.forget()
        child.rounds(5)
        samples = [
            event for event in child.events if isinstance(event, Sample) and event.device == "gpu:0"
        ]
        assert all("gpu.pcie_rx_bytes_per_s" in sample.values for sample in samples)


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        # unloaded under us
        (("gpus 2", "count_error 9", "gpu * error * 9"), "kernel driver is not loaded"),
        # replaced by an update
        (("gpus 2", "count_error 18", "gpu * error * 18"), "different versions"),
        (("gpus 2", "count_error 1", "gpu * error * 1"), "not initialised"),
        (("gpus 1",), "the number of GPUs went from 2 to 1"),
    ],
)
def test_a_driver_that_goes_away_ends_the_sampler_with_a_word(
    machine: Machine, lines: tuple[str, ...], word: str
) -> None:
    script, environment = machine("gpus 2")
    with SamplerChild(environment, piped=True) as child:
        child.rounds()
        script.write(*lines)
        assert child.process.wait(15) == DRIVER_GONE_EXIT
        assert child.process.stdout is not None
        assert word in child.process.stdout.read().decode()


def test_one_call_that_fails_as_without_a_driver_is_only_a_reason(machine: Machine) -> None:
    script, environment = machine("gpus 1")
    with SamplerChild(environment) as child:
        child.rounds()
        script.write("gpus 1", "gpu 0 error nvmlDeviceGetPowerUsage 9")
        child.wait(lambda now: "gpu.power_w" in now.reasons("gpu:0"), "the reason")
        child.rounds(3)
        assert child.process.poll() is None


def test_a_source_tells_its_beat_once(machine: Machine) -> None:
    _, environment = machine("gpus 1")
    with SamplerChild(environment, 0.1) as child:
        child.rounds(15)
        told = [
            event
            for event in child.events
            if isinstance(event, SourceState) and event.source == "host"
        ]
        assert len(told) <= 3
        assert told[0].period_s == pytest.approx(0.1)


def test_after_one_long_call_the_beat_is_what_it_was(machine: Machine) -> None:
    script, environment = machine("gpus 1", "gpu 0 delay nvmlDeviceGetPowerUsage 1500")
    with SamplerChild(environment) as child:
        child.rounds(1)
        script.write("gpus 1")
        child.rounds(1)
        began = time.monotonic()
        child.rounds(5)
        assert time.monotonic() - began < 2.5
