"""The sampler's life as the engine sees it: lost, stuck, and a driver that goes and comes back."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from gpuconsole.engine.children import sampler as sampling
from gpuconsole.engine.children.signals import send_signal
from gpuconsole.experiments.session import LiveSession
from gpuconsole.model.machine import Process
from gpuconsole.report.prometheus.server import MetricsServer
from gpuconsole.session.api import SessionError
from tests.fakes.nvml.build import Script
from tests.waiting import children_that_run, until


@pytest.fixture
def script(fake_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    script = Script(tmp_path / "machine.txt", "gpus 2")
    for name, value in script.environment(fake_library).items():
        monkeypatch.setenv(name, value)
    return script


def with_engine(play: Callable[[LiveSession], Awaitable[None]]) -> None:
    async def main() -> None:
        engine = LiveSession(interval_s=0.1)
        await engine.open()
        try:
            await until(lambda: "gpu.power_w{device=gpu:1}" in engine.view().latest)
            await play(engine)
        finally:
            await engine.close()

    asyncio.run(main())


def stuck_s(engine: LiveSession) -> float:
    state = engine.view().sources.get("nvml")
    return state.stuck_s if state else 0.0


def samplers() -> list[psutil.Process]:
    return children_that_run("gpuconsole.telemetry.sampler")


def test_a_sampler_that_dies_is_started_again(script: Script) -> None:
    async def play(engine: LiveSession) -> None:
        (old,) = samplers()
        old.kill()
        await until(lambda: any("the sampler ended" in note for note in engine.view().notes))
        count = len(engine.state.readings.series["gpu.power_w{device=gpu:0}"])
        await until(
            lambda: len(engine.state.readings.series["gpu.power_w{device=gpu:0}"]) > count + 2
        )
        assert old.pid not in [one.pid for one in samplers()]

    with_engine(play)


def test_metrics_of_a_session_count_the_restarts_of_its_sampler(script: Script) -> None:
    def restarts(address: str) -> float:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return next(
            float(line.split()[1])
            for line in text.splitlines()
            if line.startswith("gpuconsole_sampler_restarts_total ")
        )

    async def main() -> None:
        engine = LiveSession(interval_s=0.1)
        server = MetricsServer("127.0.0.1", 0, engine.state)
        engine.services.append(server.serve)
        try:
            await engine.open()
            await until(lambda: "gpu.power_w{device=gpu:1}" in engine.view().latest)
            assert await asyncio.to_thread(restarts, server.address) == 0
            samplers()[0].kill()
            await until(lambda: any("the sampler ended" in note for note in engine.view().notes))
            assert await asyncio.to_thread(restarts, server.address) == 1
        finally:
            await engine.close()

    asyncio.run(main())


def test_a_sampler_that_cannot_be_started_now_is_tried_again(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sampling.Child.start
    refusals = iter([OSError(11, "Resource temporarily unavailable")])

    async def start(child: sampling.Child) -> None:
        for refusal in refusals:
            raise refusal
        await real(child)

    async def play(engine: LiveSession) -> None:
        (old,) = samplers()
        monkeypatch.setattr(sampling.Child, "start", start)
        old.kill()
        await until(
            lambda: any(
                "does not start: Resource temporarily unavailable" in note
                for note in engine.view().notes
            )
        )
        count = len(engine.state.readings.series["gpu.power_w{device=gpu:0}"])
        await until(
            lambda: len(engine.state.readings.series["gpu.power_w{device=gpu:0}"]) > count + 2
        )

    with_engine(play)


def test_the_environment_is_read_again_when_the_gpus_are_known(script: Script) -> None:
    """The driver opens after the console has: driver and devices are not left empty."""
    script.write("gpus 2", "init_delay 3500")

    async def play(engine: LiveSession) -> None:
        await until(lambda: engine.view().environment.driver == "580.159.03")
        assert [device.id for device in engine.view().environment.devices] == [
            "gpu:0",
            "gpu:1",
            "cpu",
        ]
        assert engine.view().environment.cuda == "13.0"

    with_engine(play)


@pytest.mark.slow
def test_a_stuck_source_is_reported_and_its_sampler_is_replaced(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "PATIENCE_S", (3.0,))

    async def play(engine: LiveSession) -> None:
        (old,) = samplers()
        script.write("gpus 2", "gpu * delay nvmlDeviceGetPowerUsage 60000")
        await until(lambda: stuck_s(engine) > 2)
        assert engine.view().sources["nvml"].detail.startswith("nvmlDeviceGetPowerUsage has not")
        before = engine.view().latest["host.cores_busy{device=cpu}"]
        # the host goes on
        await until(lambda: engine.view().latest["host.cores_busy{device=cpu}"] != before)
        await until(lambda: any("starting a new sampler" in note for note in engine.view().notes))
        await until(lambda: stuck_s(engine) > 5)  # the successor waits too: it is told as one wait
        script.write("gpus 2", "gpu * power_mw 123000")
        await until(lambda: engine.view().latest.get("gpu.power_w{device=gpu:1}") == 123)
        await until(lambda: not psutil.pid_exists(old.pid) or old.status() == psutil.STATUS_ZOMBIE)

    with_engine(play)


def test_a_sampler_that_falls_silent_is_replaced(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "SILENT_S", 1.0)

    async def play(engine: LiveSession) -> None:
        (old,) = samplers()
        old.suspend()
        await until(
            lambda: any("the sampler has sent nothing" in note for note in engine.view().notes)
        )
        count = len(engine.state.readings.series["gpu.power_w{device=gpu:0}"])
        await until(
            lambda: len(engine.state.readings.series["gpu.power_w{device=gpu:0}"]) > count + 2
        )
        assert not old.is_running() or old.status() == psutil.STATUS_ZOMBIE

    with_engine(play)


@pytest.mark.slow
def test_a_driver_unloaded_and_loaded_again_with_fewer_gpus(script: Script) -> None:
    async def play(engine: LiveSession) -> None:
        script.write("init_error 9", "gpus 2", "count_error 9", "gpu * error * 9")
        await until(lambda: [device.id for device in engine.view().devices] == ["cpu"])
        assert "kernel driver is not loaded" in engine.view().no_gpu_reason
        assert any("the driver or its GPUs have changed" in note for note in engine.view().notes)
        # nothing old is shown as if it were new
        assert not [key for key in engine.view().latest if key.startswith("gpu.")]
        script.write("gpus 1", "gpu * power_mw 99000")
        await until(lambda: engine.view().latest.get("gpu.power_w{device=gpu:0}") == 99, 20)
        assert [device.id for device in engine.view().devices] == ["gpu:0", "cpu"]
        assert not engine.view().no_gpu_reason

    with_engine(play)


def test_closing_does_not_wait_for_a_driver_call(script: Script) -> None:
    async def play(engine: LiveSession) -> None:
        script.write("gpus 2", "gpu * delay nvmlDeviceGetPowerUsage 60000")
        await until(lambda: stuck_s(engine) > 2)
        asked = time.monotonic()
        await engine.close()
        assert time.monotonic() - asked < 2

    with_engine(play)


def test_an_xid_is_a_note(script: Script) -> None:
    async def play(engine: LiveSession) -> None:
        script.write("gpus 2", "gpu 1 xid 79", "gpu 1 xid_serial 1")
        await until(
            lambda: any(
                "gpu:1: XID 79, the GPU has fallen off the bus" in note
                for note in engine.view().notes
            )
        )

    with_engine(play)


def process_of(child: psutil.Process) -> Process:
    return Process(
        child.pid, "gpu:0", name=child.name(), user=child.username(), started=child.create_time()
    )


def test_a_signal_reaches_its_process_and_no_other() -> None:
    child = psutil.Popen(["sleep", "60"])
    try:
        # one that had this pid before
        other = Process(child.pid, "gpu:0", name="train", started=child.create_time() - 100)
        with pytest.raises(SessionError, match="its pid belongs to another process now"):
            send_signal(other, signal.SIGTERM)
        assert child.is_running()
        send_signal(process_of(child), signal.SIGTERM)
        assert child.wait(5) == -signal.SIGTERM
        with pytest.raises(SessionError, match="has already ended"):
            send_signal(Process(child.pid, "gpu:0", started=1.0), signal.SIGTERM)
        with pytest.raises(SessionError, match="cannot be seen from here"):
            send_signal(Process(4242, "gpu:0"), signal.SIGTERM)
    finally:
        if child.is_running():
            child.kill()


def test_another_users_process_is_not_signalled_unless_root(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    child = psutil.Popen(["sleep", "60"])
    try:
        with pytest.raises(SessionError, match="only root may signal it"):
            send_signal(process_of(child), signal.SIGTERM)
        assert child.is_running()
    finally:
        child.kill()
