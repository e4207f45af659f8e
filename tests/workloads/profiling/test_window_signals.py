"""What rules read of a profiler window on ordinary steps of a GPU. The trace is synthetic: it was
written by hand in Kineto's format, on no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuconsole.agent.hooks.evidence import probes
from gpuconsole.diagnosis.engine import all_rules, conclude
from gpuconsole.diagnosis.probes import PROBES
from gpuconsole.diagnosis.rule import Case
from gpuconsole.model.finding import Finding, Signal
from gpuconsole.model.profile import OP_MIX, SYNC_GAPS, ProfileReport, window_signals
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import ProbeDone, Profiled
from gpuconsole.workloads.profiling.summary import summarize
from gpuconsole.workloads.profiling.trace import read_trace
from tests.engine.test_diagnosis_loop import steady
from tests.workloads.profiling.test_summary import Json, kernel, op, span, written

STEPS, STEP_US = 3, 1000.0
FLOAT = "float"
SYNC = "aten::item"


def a_step(number: int) -> list[Json]:
    """A step: a batch that is augmented on the GPU by the loader, its copy, a pass, an update, and
    a loss that the host waits for. The GPU is idle for 300 µs after that wait."""
    t, first = number * STEP_US, 100 * number
    return [
        span("user_annotation", f"ProfilerStep#{number}", t, STEP_US),
        span(
            "user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", t, 100
        ),
        op("aten::mul", t + 10, 20, first + 1, (FLOAT, [64, 64]), (FLOAT, [])),
        kernel("vectorized_elementwise_kernel<4, MulFunctor>", t + 30, 70, first + 1),
        span("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", t + 100, 100, 7, bytes=1_000_000),
        op("aten::mm", t + 110, 20, first + 2, (FLOAT, [64, 128]), (FLOAT, [128, 64])),
        kernel("ampere_sgemm_128x64_tn", t + 200, 300, first + 2),
        op("aten::gelu", t + 140, 20, first + 3, (FLOAT, [64, 64])),
        kernel("vectorized_elementwise_kernel<4, GeluCUDAKernelImpl>", t + 500, 100, first + 3),
        span("user_annotation", "Optimizer.step#AdamW.step", t + 170, 40),
        op("aten::_foreach_add_", t + 175, 20, first + 4),
        kernel("multi_tensor_apply_kernel<BinaryOpListFunctor>", t + 600, 90, first + 4),
        op("aten::item", t + 225, 475, first + 5),
        span("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", t + 690, 10, 7, bytes=4),
        span("cuda_runtime", "cudaStreamSynchronize", t + 240, 460),
    ]


@pytest.fixture
def report(tmp_path: Path) -> ProfileReport:
    events: list[Any] = [event for number in range(STEPS) for event in a_step(number)]
    events.append(kernel("vectorized_elementwise_kernel<4, MulFunctor>", STEPS * STEP_US, 70, 0))
    return summarize(read_trace(written(events, tmp_path / "synthetic.json")), gpu=True)


def test_shares_are_those_of_the_passes_and_gaps_have_the_operator_that_waited(
    report: ProfileReport,
) -> None:
    signals = window_signals(report)
    shares = {
        name.removeprefix("profile.").removesuffix("_ratio"): round(signal.value, 2)
        for name, signal in signals.items()
        if "_ratio" in name
    }
    passes = STEPS * 400 + 70  # the last kernel was launched by no operator of the trace
    assert shares["gemm"] == round(STEPS * 300 / passes, 2)
    assert shares["elementwise"] == round((STEPS * 100 + 70) / passes, 2), (
        "neither the loader's kernel nor the update"
    )
    assert (shares["optimizer"], shares["copy"], shares["tensor_core"]) == (0, 0, 0)
    assert signals["probe.syncs_per_step"].value == 1
    assert signals["probe.sync_gaps_s"].value == pytest.approx(330e-6, rel=0.05)
    assert signals["probe.sync_gaps_s"].source.endswith(f"mostly in {SYNC}")
    assert all(signal.source.startswith("profile window of 3 steps") for signal in signals.values())
    for probe in PROBES:
        if probe.name in (OP_MIX, SYNC_GAPS):
            assert set(probe.signals) <= signals.keys(), "a window answers both probes as a whole"


def test_the_rules_conclude_from_a_window(report: ProfileReport) -> None:
    known = {
        "is_gpu": 1.0,
        "step_s": 1e-3,
        "forward_ratio": 0.3,
        "backward_ratio": 0.3,
        "optimizer_ratio": 0.1,
        "data_wait_ratio": 0.0,
        "mfu_ratio": 0.1,
    }
    case = Case(
        {"torch_compile": "off"},
        {name: Signal(value, "", "test") for name, value in known.items()} | window_signals(report),
    )
    found: dict[str, Finding] = {
        rule.id: conclude(rule, case)
        for rule in all_rules()
        if rule.id in ("host.sync_stall", "gpu.elementwise_membw")
    }
    assert found["host.sync_stall"].state == "fires"
    assert any(SYNC in evidence.source for evidence in found["host.sync_stall"].evidence)
    assert found["gpu.elementwise_membw"].state == "clear"


def test_a_window_that_the_user_takes_feeds_the_rules_of_the_run(report: ProfileReport) -> None:
    state: SessionState = steady("job")
    record = state.record
    assert record is not None
    for probe in (OP_MIX, SYNC_GAPS):
        state.apply(ProbeDone(11.0, 0, probe, error="allowed; it has not run yet"))
    state.apply(Profiled(12.0, 1, report))
    assert record.run.profile == report
    assert window_signals(report).items() <= record.probe_signals.items()
    assert not {f"probe.{OP_MIX}", f"probe.{SYNC_GAPS}"} & record.run.unavailable.keys()


def test_a_report_of_an_older_version_says_nothing_to_the_rules(report: ProfileReport) -> None:
    assert window_signals(msgspec.structs.replace(report, pass_classes=[], stalls=None)) == {}


def test_the_agent_and_the_analysis_agree_on_the_probes() -> None:
    assert set(probes.WINDOWED) == {OP_MIX, SYNC_GAPS}
