"""A box with GPUs, as far as NVML goes: the engine and the screen over the fake driver."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpuconsole.experiments.session import LiveSession
from tests.fakes.nvml.build import Script
from tests.matrix import matrix
from tests.no_torch import without_torch
from tests.pty.terminal import Terminal
from tests.waiting import until

GPM = ("gpu * gpm 2 78.5", "gpu * gpm 5 31", "gpu * gpm 10 42")


@pytest.fixture
def script(fake_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    script = Script(tmp_path / "machine.txt", "gpus 8", *GPM)
    for name, value in script.environment(fake_library).items():
        monkeypatch.setenv(name, value)
    return script


def test_a_gpu_lost_in_mid_session_is_marked_and_the_others_go_on(script: Script) -> None:
    async def main() -> None:
        engine = LiveSession(interval_s=0.2)
        await engine.open()
        try:
            await until(lambda: "gpu.sm_active_ratio{device=gpu:7}" in engine.view().latest)
            assert engine.view().device == "gpu:0"
            script.write("gpus 8", *GPM, "gpu 3 lost 1")
            await until(lambda: "gpu:3" in engine.view().lost)
            count = len(engine.state.readings.series["gpu.power_w{device=gpu:4}"])
            await until(
                lambda: len(engine.state.readings.series["gpu.power_w{device=gpu:4}"]) > count + 2
            )
            view = engine.view()
            assert list(view.lost) == ["gpu:3"]
            assert "gpu.sm_active_ratio{device=gpu:3}" not in view.latest
            assert "lost" in view.unavailable["gpu.sm_active_ratio{device=gpu:3}"]
            assert any("gpu:3 is lost" in note for note in view.notes)
        finally:
            await engine.close()

    asyncio.run(main())


@pytest.mark.slow
def test_a_torch_that_cannot_use_the_gpu_says_so_and_what_to_do(script: Script) -> None:
    async def main() -> None:
        engine = LiveSession(interval_s=0.2)
        await engine.open()
        try:
            await engine.start("train-gpt", {"d_model": 64, "n_layer": 1})
            await until(lambda: engine.view().state == "failed", 60)
            run = engine.view().run
            assert run is not None
            assert "--device cpu" in (run.error or "")
        finally:
            await engine.close()

    asyncio.run(main())


@pytest.mark.parametrize("gpus", matrix([1, 64], in_ci=(64,)))
def test_the_screen_shows_the_values_of_gpm_for_one_and_for_many_gpus(
    script: Script, tmp_path: Path, gpus: int
) -> None:
    script.write(f"gpus {gpus}", *GPM)
    with Terminal(cwd=tmp_path, env=without_torch(tmp_path)) as terminal:
        terminal.wait_for("GPU-Util", "H200", "78 %", timeout_s=30)
        terminal.press("i")
        terminal.wait_for("gpu.sm_active_ratio", "78.5 %", "31.0 %", "42.0 %", timeout_s=30)
        terminal.press("q")
        terminal.wait_for("GPU-Util")
        terminal.press("q")
        assert terminal.wait_exit() == 0
