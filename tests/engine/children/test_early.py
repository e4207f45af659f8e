"""A sampler that runs before the console: its first messages are read, and it is replaced like any
other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from gpuconsole.engine.children.early import early_sampler
from gpuconsole.experiments.session import LiveSession
from tests.fakes.nvml.build import Script
from tests.waiting import children_that_run, until

POWER = "gpu.power_w{device=gpu:1}"


@pytest.fixture
def driver(fake_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(tmp_path / "machine.txt", "gpus 2")
    for name, value in script.environment(fake_library).items():
        monkeypatch.setenv(name, value)


def samplers() -> list[psutil.Process]:
    return children_that_run("gpuconsole.telemetry.sampler")


def test_an_early_sampler_is_taken_over_and_replaced_when_it_ends(driver: None) -> None:
    async def main() -> None:
        sampler = early_sampler(0.1, None)
        assert sampler is not None
        engine = LiveSession(interval_s=0.1, sampler=sampler)
        await engine.open()
        try:
            await until(lambda: POWER in engine.view().latest)
            (running,) = samplers()
            assert running.pid == sampler.process.pid
            running.kill()
            await until(lambda: any("the sampler ended" in note for note in engine.view().notes))
            await until(lambda: POWER in engine.view().latest and samplers())
            assert [each.pid for each in samplers()] != [running.pid]
        finally:
            await engine.close()

    asyncio.run(main())
    assert not samplers()


def test_an_early_sampler_ends_where_nothing_takes_it_over(driver: None) -> None:
    sampler = early_sampler(0.1, None)
    assert sampler is not None
    sampler.socket.close()
    assert sampler.process.wait(10) == 0
    assert sampler.process.stdout is not None
    sampler.process.stdout.close()
