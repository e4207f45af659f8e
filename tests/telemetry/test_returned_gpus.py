"""A GPU that was lost and works again."""

from __future__ import annotations

import time

import pytest

from gpuconsole.wire.events import Devices
from tests.cli.exporting import Exporter
from tests.conftest import Machine
from tests.telemetry.sampling import SamplerChild
from tests.waiting import wait_until


@pytest.mark.slow
@pytest.mark.parametrize("line", ["lost 1", "error nvmlDeviceGetHandleByIndex 15"])
def test_a_gpu_that_works_again_is_not_lost_any_longer(machine: Machine, line: str) -> None:
    """The sampler ends with the exit code for a changed driver, and the console starts another
    one."""
    script, environment = machine("gpus 2", f"gpu 1 {line}")
    with SamplerChild(environment, piped=True) as child:
        child.wait(lambda now: now.losses, "the loss")
        script.write("gpus 2")
        assert child.process.wait(20) == 75
        assert child.process.stdout is not None
        assert b"gpu:1 answers again" in child.process.stdout.read()


@pytest.mark.slow
def test_a_gpu_that_gives_a_handle_and_no_more_does_not_end_the_sampler(machine: Machine) -> None:
    script, environment = machine("gpus 2")
    with SamplerChild(environment) as child:
        child.rounds()
        script.write("gpus 2", "gpu 1 error nvmlDeviceGetFieldValues 15")
        child.wait(lambda now: now.losses, "the loss")
        begun = time.monotonic()
        child.wait(lambda now: time.monotonic() - begun > 12 and now.round_count, "two looks")
        child.rounds()
        assert sum(isinstance(event, Devices) for event in child.events) == 1


@pytest.mark.slow
def test_the_exporter_has_the_values_of_a_returned_gpu(machine: Machine) -> None:
    script, environment = machine("gpus 2")
    with Exporter(environment).ready() as exporter:
        script.write("gpus 2", "gpu 1 lost 1")
        wait_until(lambda: exporter.value("gpuconsole_device_lost", "gpu:1") == 1, what="the loss")
        script.write("gpus 2", "gpu 1 power_mw 222000")
        wait_until(
            lambda: exporter.value("gpuconsole_gpu_power_watts", "gpu:1") == 222, 30, "the values"
        )
        assert exporter.values("gpuconsole_device_lost") == {}
