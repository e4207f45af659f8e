"""A trial that starts a second vLLM on a card whose memory the first one holds: refused before the
second starts, with what would help."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from gpuconsole.engine.children.serving import ServingChoice
from gpuconsole.engine.devices import lacks_memory
from gpuconsole.experiments.session import LiveSession
from tests.conftest import Machine
from tests.waiting import children_that_run, until

STUB = Path(__file__).parents[1] / "fakes" / "vllm_stub"
CARD = ("gpus 1", "gpu 0 memory_total_bytes 80e9", "gpu 0 memory_reserved_bytes 0")
VLLM = {"server": "vllm", "enforce_eager": True, "output_tokens": 4}


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServingChoice:
    monkeypatch.setenv("VLLM_STUB_FLAGS", str(tmp_path / "flags"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(STUB), os.environ["PYTHONPATH"])))
    return ServingChoice({"model": "some/model", "vllm_python": sys.executable})


@pytest.mark.slow
def test_a_second_vllm_is_refused(
    machine: Machine, stub: ServingChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, environment = machine(*CARD, "gpu 0 memory_used_bytes 1e9")
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML_SCRIPT"):
        monkeypatch.setenv(name, environment[name])

    async def play() -> None:
        engine = LiveSession(interval_s=0.2, device="gpu:0", serving=stub)
        await engine.open()
        try:
            await engine.start("serve-chat", VLLM)
            await until(lambda: engine.view().running_s > 0, 60, "the first server answers")
            (server,) = [
                child.pid
                for child in children_that_run("vllm.entrypoints.openai.api_server", recursive=True)
            ]
            script.write(
                *CARD, "gpu 0 memory_used_bytes 73e9", f"gpu 0 process {server} compute 72e9 10"
            )
            await until(
                lambda: any(process.pid == server for process in engine.state.processes),
                20,
                "the driver lists the server",
            )
            (tmp_path / "flags").unlink()
            trial = await engine.try_change({"enforce_eager": False})
            assert trial.state == "failed" and not (tmp_path / "flags").exists(), (
                "the second vLLM was not started"
            )
            assert trial.error is not None
            assert (
                "vLLM does not fit on gpu:0: it takes 72.0 GB (gpu_memory_utilization 0.9 of"
                " 80.0 GB), and 7.0 GB are free"
            ) in trial.error
            assert (
                "the paused process of this run" in trial.error
                and "holds 72.0 GB of gpu:0" in trial.error
            )
            view = engine.view()
            assert view.state == "running", "the first server goes on"
        finally:
            await engine.close()

    asyncio.run(play())


@pytest.mark.parametrize(
    ("cause", "memory"),
    [
        ("out of memory at batch_size 64: CUDA out of memory", True),
        (
            (
                "the model server ended with exit code 1: ValueError: Free memory on device cuda:0"
                " (7.45/79.19 GiB) on startup is less than desired GPU memory utilization (0.9,"
                " 71.27 GiB)."
            ),
            True,
        ),
        (
            (
                "the model server ended with exit code 1: ValueError: No available memory for the"
                " cache blocks."
            ),
            True,
        ),
        ("the model server ended with exit code 1: ValueError: unknown model", False),
    ],
)
def test_what_says_that_memory_lacks(cause: str, memory: bool) -> None:
    assert lacks_memory(cause) is memory
