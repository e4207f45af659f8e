"""The variables of the environment that slow a job on a GPU, as the agent reports them."""

from __future__ import annotations

import pytest

from gpuconsole.agent.hooks import described


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in described.SWITCHES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(described, "device", lambda: "cuda:0")
    monkeypatch.setattr(described, "place", lambda: (0, 1))
    return monkeypatch


@pytest.mark.parametrize(("value", "set_to_slow"), [("1", 1.0), ("0", 0.0), ("", 0.0), (None, 0.0)])
def test_a_variable_counts_where_its_value_slows_a_job(
    gpu: pytest.MonkeyPatch, value: str | None, set_to_slow: float
) -> None:
    if value is not None:
        gpu.setenv("CUDA_LAUNCH_BLOCKING", value)
    assert described._switches()["environment.CUDA_LAUNCH_BLOCKING"] == set_to_slow


def test_those_of_nccl_count_for_several_processes(gpu: pytest.MonkeyPatch) -> None:
    gpu.setenv("NCCL_P2P_DISABLE", "1")
    assert not [name for name in described._switches() if "NCCL" in name]
    gpu.setattr(described, "place", lambda: (0, 2))
    assert described._switches()["environment.NCCL_P2P_DISABLE"] == 1


def test_a_job_on_a_cpu_has_none(gpu: pytest.MonkeyPatch) -> None:
    gpu.setattr(described, "device", lambda: "cpu")
    assert described._switches() == {}
