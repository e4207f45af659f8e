"""From the account of a run, or the requests of a server, to signals."""

from __future__ import annotations

import asyncio

import pytest

from gpuconsole.diagnosis.signals.run import DATA_WAIT, run_signals
from gpuconsole.engine.diagnosis_loop import DiagnosisLoop
from gpuconsole.engine.run_control import RunLock
from gpuconsole.model.finding import Finding, Signal
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.model.machine import Device, Peaks
from gpuconsole.model.run import Step, Summary
from gpuconsole.model.serving import Fact, Request, ServerFacts
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import (
    AnyEvent,
    Devices,
    Found,
    Requests,
    RunOpened,
    ServerKnown,
    ServerState,
    Steps,
)


def test_long_waits_are_told_by_how_many_and_how_long() -> None:
    state = SessionState()
    state.apply(Devices(0.0, [Device("cpu", "cpu")]))
    state.apply(RunOpened(0.0, "1", "train-vision", "training.vision", {}, "cpu"))
    steps = []
    for n in range(200):
        phases = [0.0] * 10
        phases[DATA_WAIT] = 0.3 if n % 10 == 0 else 0.01
        steps.append(Step(n, 0.1 * n, 0.1, 16, 0, tuple(phases)))
    state.apply(Steps(20.0, steps, 0.0, 0.0, 0.0, 1e6))
    assert state.record is not None
    state.record.steady_t = 0.0
    found = {
        name: signal.value for name, signal in run_signals(state.record, Summary(), 2, None).items()
    }
    assert found["data_wait_long_s"] == pytest.approx(0.29)
    assert found["data_wait_long_steps"] == pytest.approx(20.0)
    assert found["data_wait_excess_ratio"] == pytest.approx(20 * 0.29 / 20.0)


@pytest.mark.parametrize(("device", "free"), [("cpu", 2e9), ("gpu:0", 6e9)])
def test_the_memory_that_workers_can_use_is_that_of_the_host(device: str, free: float) -> None:
    """On a GPU the memory of the run is that of its card."""
    state = SessionState()
    state.apply(Devices(0.0, [Device(device, device)]))
    state.apply(RunOpened(0.0, "1", "train-vision", "training.vision", {}, device))
    state.apply(
        Steps(
            20.0,
            [Step(n, 0.1 * n, 0.1, 16, 0, (0.01,) * 10) for n in range(200)],
            0.0,
            0.0,
            0.0,
            1e6,
        )
    )
    assert state.record is not None
    state.record.steady_t = 0.0
    signals = run_signals(state.record, Summary(), 2, (8e9, 10e9), host_memory=(10e9, 16e9))
    assert signals["host.memory_available_bytes"].value == free


VLLM: Knobs = {
    name: knob.default
    for name, knob in CATALOGUE.items()
    if knob.serving and knob.default is not None
} | {
    "server": "vllm",
    "max_num_seqs": 32,
    "concurrency": 1,
}
H200 = Device("gpu:0", "H200", peaks=Peaks(memory_bytes_per_s=4.8e12, source="datasheet"))
"""A model of 16 GB in bf16: reading the weights takes 3.3 ms."""


class Unused:
    async def probe(self, name: str) -> None:
        raise AssertionError(f"probe {name}")


def served(device: Device, gap_s: float, **knobs: int) -> dict[str, Finding]:
    """What is found for a vLLM that answers one user on this device, with tokens every `gap_s`."""
    state, emitted = SessionState(), list[AnyEvent]()
    state.apply(Devices(0.0, [device]))
    state.apply(
        RunOpened(0.0, "1", "serve-chat", "inference.serving", {**VLLM, **knobs}, device.id)
    )
    record = state.record
    assert record is not None
    record.run.facts |= {"max_num_seqs": 32.0, "weight_bytes": 16e9, "kv_bytes_per_token": 131072.0}
    for n in range(20):
        t = 0.5 * (n + 1)
        state.apply(Steps(t, [Step(n, t, 0.5, 2, 20, (0.0,) * 10)], 0.0, 0.0, 0.0, 1e6))
        state.apply(
            Requests(
                t, [Request(t, 0.0, 0.05, 0.05 + 63 * gap_s, 64, 64, (gap_s,) * 63, (1.0,) * 63)]
            )
        )
        state.apply(ServerState(t, {"requests_running": 1.0, "requests_waiting": 0.0}, {}))
    record.steady_t = 0.0
    loop = DiagnosisLoop(state, emitted.append, lambda: None, RunLock())
    asyncio.run(loop.evaluate(record, Unused()))  # type: ignore[arg-type]
    asyncio.run(loop.evaluate(record, Unused()))  # type: ignore[arg-type]
    found = [event for event in emitted if isinstance(event, Found)][-1]
    return {finding.rule: finding for finding in found.findings}


def test_the_bandwidth_of_the_gpu_decides_whether_vllm_decodes_at_its_bound() -> None:
    bound = served(H200, 0.005)["serve.decode_bandwidth_bound"]
    assert (bound.state, bound.suggestions[0].changes) == ("fires", {"quantization": "fp8"})
    peak = next(item for item in bound.evidence if item.signal == "server.peak_bytes_per_s")
    assert (peak.value, peak.source) == (4.8e12, "datasheet")
    assert served(H200, 0.02)["serve.decode_bandwidth_bound"].state == "clear"


def test_the_sequence_slots_of_a_server_elsewhere_are_those_that_it_reports() -> None:
    """The scenario has 32 sequence slots, the server has 4, and 4 requests run in each reading."""
    state = SessionState()
    state.apply(RunOpened(0.0, "1", "serve-chat", "inference.serving", VLLM, "cpu", elsewhere=True))
    record = state.record
    assert record is not None
    for n in range(8):
        t = 0.5 * (n + 1)
        state.apply(Steps(t, [Step(n, t, 0.5, 2, 20, (0.0,) * 10)], 0.0, 0.0, 0.0, 1e6))
        state.apply(ServerState(t, {"requests_running": 4.0, "requests_waiting": 3.0}, {}))
    record.steady_t = 0.0
    assert "server.slots_taken_ratio" not in run_signals(record, Summary(), 2, None), (
        "the server reports no limit"
    )
    facts = ServerFacts(max_num_seqs=Fact(4.0, "/props"), kv_cache_tokens=Fact(65536.0, "/props"))
    state.apply(ServerKnown(5.0, facts))
    found = run_signals(record, Summary(), 2, None)
    assert found["server.slots_taken_ratio"].value == 1.0
    assert found["server.kv_cache_tokens"] == Signal(65536.0, "tokens", "the server, /props")


def test_gpus_that_share_the_weights_read_them_together() -> None:
    """Two GPUs reach the bound at half of the time per token."""
    assert (
        served(H200, 0.005, tensor_parallel_size=2)["serve.decode_bandwidth_bound"].state == "clear"
    )
    both = served(H200, 0.0025, tensor_parallel_size=2)["serve.decode_bandwidth_bound"]
    peak = next(item for item in both.evidence if item.signal == "server.peak_bytes_per_s")
    assert (both.state, peak.value, peak.source) == ("fires", 9.6e12, "2 x datasheet")


def test_without_a_known_bandwidth_the_rule_names_the_reason() -> None:
    unknown = served(Device("gpu:0", "a new GPU"), 0.005)["serve.decode_bandwidth_bound"]
    assert (unknown.state, unknown.missing) == ("cant_tell", ("server.peak_bytes_per_s",))
    assert "memory bandwidth of this device is not known" in unknown.summary


@pytest.mark.parametrize(
    ("workers", "rate", "more"), [(0, 16 / 0.08, 16 / 0.08), (2, 16 / 0.1, 16 / 0.1 * 3 / 2)]
)
def test_the_loader_of_a_job_is_observed_without_a_probe(
    workers: int, rate: float, more: float
) -> None:
    """Steps of 0.1 s wait 0.08 s for a batch of 16 samples, and the loader uses a quarter of a
    core."""
    state = SessionState()
    state.apply(Devices(0.0, [Device("cpu", "cpu")]))
    state.apply(RunOpened(0.0, "1", "train.py", "job", {"num_workers": workers}, "cpu"))
    phases = tuple(0.08 if n == DATA_WAIT else 0.02 if n == 2 else 0.0 for n in range(10))
    for message in range(4):
        steps = [
            Step(50 * message + n, 0.1 * (50 * message + n), 0.1, 16, 0, phases) for n in range(50)
        ]
        total = 50.0 * (message + 1)
        who = "workers" if workers else "here"
        counters = {
            "work.steps": total,
            f"loader.{who}_cpu_s": 0.25 * 0.08 * total,
            f"loader.{who}_s": 0.08 * total,
        }
        state.apply(Steps(5.0 * (message + 1), steps, 0.0, 0.0, 0.0, 1e6, counters=counters))
    assert state.record is not None
    state.record.steady_t = 0.0
    found = {
        name: signal.value for name, signal in run_signals(state.record, Summary(), 2, None).items()
    }
    assert found["probe.loader_samples_per_s"] == pytest.approx(rate)
    assert found["probe.loader_plus_1_samples_per_s"] == pytest.approx(more)
    assert found["probe.loader_cpu_ratio"] == pytest.approx(0.25)
    assert ("loader.receive_s" in found) == ("loader.send_s" in found) == (workers == 0)
    if not workers:
        assert found["loader.receive_s"] == pytest.approx(0.0013), (
            "two tensors, where none was seen"
        )
        state.record.run.facts.update({"loader.batch_tensors": 5.0, "loader.batch_bytes": 1e6})
        seen = run_signals(state.record, Summary(), 2, None)
        assert seen["loader.receive_s"].value == pytest.approx(0.0006 + 5 * 0.00035 + 0.0002)
        assert (
            seen["loader.send_s"].value == pytest.approx(0.0006 + 5 * 0.00035 + 0.0012)
            and "5 tensors, 1 MB" in seen["loader.send_s"].source
        )
