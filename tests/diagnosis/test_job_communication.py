"""Signals of the communication in a user's job, and what the rules make of them: from the messages
of its processes, without a probe."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from gpuconsole.diagnosis.engine import evaluate
from gpuconsole.diagnosis.rule import Case
from gpuconsole.diagnosis.signals.run import run_signals
from gpuconsole.model.finding import CodePlace, Finding, Signal
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device
from gpuconsole.model.run import (
    COLLECTIVE_KINDS,
    PHASES,
    Arrival,
    CollectiveKind,
    Collectives,
    Exchange,
    Step,
    Summary,
)
from gpuconsole.session.segments import (
    BACKWARD,
    COMM,
    FORWARD,
    GAP,
    OPTIMIZER,
    RawStep,
    SegmentFold,
)
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import Devices, RankJoined, RunOpened, Started, Steps
from tests.diagnosis.cases import case, check

KNOBS: Knobs = {
    "nproc": 2,
    "sharding": "ddp",
    "bucket_cap_mb": 25.0,
    "gradient_accumulation_steps": 1,
    "precision": "fp32",
}
FACTS = {"threads": 1.0, "world_size": 2.0, "exchange.bytes": 2e7, "trainable_parameters": 5e6}
Times = Callable[[int, int], tuple[float, float, float]]
"""Rank and iteration -> seconds of the forward pass, of the backward computation, and of the
wait."""


def job(
    times: Times,
    knobs: Knobs | None = None,
    facts: dict[str, float] | None = None,
    rest_s: float = 0.01,
    first_s: float = 0.1,
    per_step: int = 1,
) -> tuple[dict[str, Signal], dict[str, Finding]]:
    """Signals and conclusions of a job of two processes after 100 steps. `rest_s`: what a step
    takes beside its pass. `first_s`: DDP's first exchange. `per_step`: exchanges in a step; 0: DDP
    is not used."""
    state = SessionState()
    state.apply(Devices(0.0, [Device("cpu", "cpu")]))
    state.apply(RunOpened(0.0, "1", "train.py", "job", {}, "cpu"))
    for rank in (0, 1):
        state.apply(RankJoined(0.0, rank, "here", 100 + rank, rank == 0))
    state.apply(Started(0.0, {**KNOBS, **(knobs or {})}, {**FACTS, **(facts or {})}, {}))
    t = 0.0
    for message in range(10):
        for rank in (0, 1):
            steps, exchanges = [], []
            for index in range(10 * message, 10 * message + 10):
                forward, compute, exposed = times(rank, index + 1)
                wall = forward + compute + exposed + rest_s
                t += wall if rank == 0 else 0.0
                phases = dict.fromkeys(PHASES, 0.0) | {
                    "forward": forward,
                    "backward": compute,
                    "comm": exposed,
                    "other": rest_s,
                }
                steps.append(
                    Step(index, t, wall, 16, 0, tuple(phases.values()), (0.0,) * len(PHASES))
                )
                comm = first_s if index == 0 else exposed + 0.5 * compute
                if per_step:
                    exchanges.append(
                        Exchange(
                            0,
                            per_step * index + 1,
                            index + 1,
                            forward,
                            compute,
                            comm,
                            exposed / per_step,
                        )
                    )
            state.apply(
                Steps(
                    t,
                    steps,
                    0.0,
                    0.0,
                    0.0,
                    1e6,
                    0,
                    rank,
                    {"work.steps": 10.0 * (message + 1)},
                    exchanges,
                )
            )
    record = state.record
    assert record is not None
    record.steady_t = 0.0
    signals = run_signals(record, Summary(), 4, None)
    return signals, {finding.rule: finding for finding in evaluate(Case.of(record.run, signals))}


def test_exposed_communication_is_the_first_finding_without_a_probe() -> None:
    signals, findings = job(lambda rank, iteration: (0.01, 0.02, 0.06))
    assert signals["comm.exposed_s"].value == pytest.approx(0.06)
    assert "DistributedDataParallel's own timer" in signals["comm.exposed_s"].source
    timed = {
        name
        for name in ("forward_ratio", "backward_ratio", "comm_ratio")
        if "own timer" in signals[name].source
    }
    assert timed == {"backward_ratio", "comm_ratio"}, (
        "the timer moves time from the one to the other"
    )
    assert signals["ranks.least_comm_ratio"].value == pytest.approx(0.6)
    first = next(iter(findings.values()))
    assert (first.rule, first.state) == ("comm.exposed", "fires")
    assert "20 MB of gradients" in first.summary
    assert first.suggestions[0].changes == {"gradient_accumulation_steps": 4}
    assert {
        findings[rule].state
        for rule in (
            "comm.straggler",
            "comm.small_buckets",
            "comm.accum_without_no_sync",
            "comm.slow_link",
        )
    } == {"clear"}


def test_a_computing_job_is_not_accused() -> None:
    _, findings = job(lambda rank, iteration: (0.03, 0.06, 0.002))
    assert {findings[rule].state for rule in findings if rule.startswith("comm.")} == {"clear"}


def test_processes_that_are_late_in_turn_do_not_make_the_exchange_slow() -> None:
    """Each waits for the other in every second step, so both wait for a fifth of their time. The
    exchange itself takes 2 ms."""
    signals, findings = job(
        lambda rank, iteration: (
            0.02,
            0.05 + 0.03 * (iteration % 2 == rank),
            0.002 + 0.03 * (iteration % 2 != rank),
        )
    )
    assert signals["comm.exposed_s"].value == pytest.approx(0.002)
    assert findings["comm.exposed"].state == findings["comm.straggler"].state == "clear"


def test_a_slow_backward_pass_is_named_with_its_process() -> None:
    _, findings = job(lambda rank, iteration: (0.02, 0.04 + 0.04 * rank, 0.042 - 0.04 * rank))
    straggler = findings["comm.straggler"]
    assert (
        straggler.state == "fires"
        and "rank 1" in straggler.summary
        and "backward" in straggler.summary
    )
    assert straggler.recoverable_ratio == pytest.approx(0.04 / 0.112, rel=0.05)
    assert findings["comm.exposed"].state == "clear"


def test_exchanges_in_each_pass_are_counted_and_one_would_do() -> None:
    signals, findings = job(
        lambda rank, iteration: (0.01, 0.02, 0.06),
        {"gradient_accumulation_steps": 4, "sync_each_batch": True},
        per_step=4,
    )
    assert signals["comm.exchanges_per_step"].value == 4.0
    assert signals["comm.exposed_s"].value == pytest.approx(0.015), "of one exchange"
    found = findings["comm.accum_without_no_sync"]
    assert found.state == "fires" and found.recoverable_ratio == pytest.approx(0.45)
    assert found.suggestions[0].changes == {"sync_each_batch": False}


def test_the_first_iteration_stands_for_larger_buckets() -> None:
    crumbs = {"exchange.buckets": 150.0, "exchange.first_buckets": 1.0}
    signals, findings = job(
        lambda rank, iteration: (0.01, 0.02, 0.06), {"bucket_cap_mb": 0.1}, crumbs, first_s=0.01
    )
    assert (signals["comm.exchange_now_s"].value, signals["comm.exchange_large_s"].value) == (
        pytest.approx(0.06),
        pytest.approx(0.01),
    )
    assert findings["comm.small_buckets"].state == "fires"
    assert findings["comm.small_buckets"].recoverable_ratio == pytest.approx(0.5)
    assert findings["comm.exposed"].recoverable_ratio == pytest.approx(0.1 * 3 / 4)
    slower, as_large = job(
        lambda rank, iteration: (0.01, 0.02, 0.06), {"bucket_cap_mb": 0.1}, crumbs, first_s=0.07
    )
    assert as_large["comm.small_buckets"].state == "clear" and "comm.exchange_large_s" in slower


def test_collectives_of_the_program_itself_count_without_ddp() -> None:
    signals, findings = job(
        lambda rank, iteration: (0.01, 0.02, 0.06), per_step=0, facts={"exchange.bytes": 0.0}
    )
    assert signals["comm.exposed_s"].value == pytest.approx(0.06)
    assert signals["comm.bytes_per_step"].value == 2e7
    assert findings["comm.exposed"].state == "fires" and findings["comm.straggler"].state == "clear"


def test_a_slow_process_is_named_without_ddp() -> None:
    _, findings = job(
        lambda rank, iteration: (0.02, 0.04 + 0.04 * rank, 0.042 - 0.04 * rank),
        per_step=0,
        facts={"exchange.bytes": 0.0},
    )
    assert (
        findings["comm.straggler"].state == "fires"
        and "rank 1" in findings["comm.straggler"].summary
    )


def test_sharded_models_have_no_figure() -> None:
    """Their collectives run within the passes, and nothing times them: the few that the training
    thread calls are not their communication."""
    signals, findings = job(
        lambda rank, iteration: (0.01, 0.02, 0.001),
        {"sharding": "zero3"},
        {"exchange.bytes": 0.0},
        per_step=0,
    )
    assert "comm.exposed_s" not in signals
    assert findings["comm.exposed"].state == "cant_tell" and findings["comm.exposed"].missing == (
        "comm.exposed_s",
    )
    signals, findings = job(
        lambda rank, iteration: (0.01, 0.02, 0.03),
        {"sharding": "zero3"},
        {"exchange.bytes": 0.0},
        per_step=0,
    )
    assert signals["comm.exposed_s"].value == pytest.approx(0.03)
    assert findings["comm.exposed"].state == "fires", "so much is exposed at least"
    assert findings["comm.straggler"].state == "cant_tell"


def reduced(outside: float, steps: float = 1.0, least: float = 0.6, **more: float) -> Case:
    """A job of two processes under DistributedDataParallel whose exchange of gradients takes 2 ms
    of a step of 100 ms."""
    on = {
        "comm__outside_ratio": outside,
        "comm__outside_steps_ratio": steps,
        "comm__outside_calls_per_step": 11.0 * steps,
    }
    times = {
        "comm__exposed_s": 0.002,
        "comm__pass_s": 0.03,
        "comm__pass_alone_s": 0.028,
        "ranks__least_comm_ratio": least,
    }
    times |= {
        "comm__bytes_per_step": 2e7,
        "comm__straggler_ratio": 1.01,
        "comm__late_s": 0.0003,
        "comm__straggler_spread": 0.001,
    }
    found = case(knobs=KNOBS, **{**times, **on, "ranks__busiest": 0.0, **more})
    place = Signal(
        0.6,
        "ratio",
        "400 stack samples of ordinary steps: in collectives",
        CodePlace("train.py:9", "log_all", caller="train.py:30 <module>"),
    )
    return dataclasses.replace(
        found, is_job=True, signals={**found.signals, "stack.comm_ratio": place}
    )


def test_metrics_that_are_reduced_in_each_step_are_named_with_their_line_without_no_sync() -> None:
    findings = {finding.rule: finding for finding in evaluate(reduced(0.55))}
    finding = findings["comm.outside_backward"]
    assert finding.state == "fires" and finding.recoverable_ratio == pytest.approx(0.55 * 0.95)
    assert (
        "11 collectives" in finding.summary
        and "train.py:9 log_all, called by train.py:30 <module>" in finding.summary
    )
    assert not finding.suggestions and "no_sync" not in finding.summary
    assert findings["comm.exposed"].state == "clear"


@pytest.mark.parametrize(
    ("phase", "rule"), [("logging", "host.logging_io"), ("checkpoint", "host.checkpoint_stall")]
)
def test_side_work_is_named_with_its_line(phase: str, rule: str) -> None:
    found = case(**{f"{phase}_ratio": 0.3, "probe__step_no_side_work_s": 0.07})
    place = Signal(
        0.3, "ratio", "400 stack samples of ordinary steps", CodePlace("train.py:9", "write")
    )
    finding = evaluate(
        dataclasses.replace(found, signals={**found.signals, f"stack.{phase}_ratio": place})
    )[0]
    assert finding.rule == rule and finding.summary.endswith(
        "most of that time at train.py:9 write"
    )
    assert [
        evidence.signal for evidence in finding.evidence if evidence.signal.startswith("stack.")
    ] == [f"stack.{phase}_ratio"]


@pytest.mark.parametrize("found", [reduced(0.05), reduced(0.3, steps=0.05), reduced(0.0)])
def test_metrics_that_are_reduced_seldom_are_no_fault(found: Case) -> None:
    assert check("comm.outside_backward", found).state == "clear"


def test_exchanges_of_gradients_still_count_beside_metrics() -> None:
    findings = {finding.rule: finding for finding in evaluate(reduced(0.2, comm__exposed_s=0.03))}
    assert findings["comm.exposed"].state == findings["comm.outside_backward"].state == "fires"
    assert findings["comm.exposed"].suggestions[0].changes == {"gradient_accumulation_steps": 4}


def test_no_process_is_slow_where_collectives_divide_their_time_unevenly() -> None:
    assert check("comm.straggler", reduced(0.55, ranks__busy_ratio=1.21)).state == "clear"
    late = check("comm.straggler", reduced(0.02, ranks__busy_ratio=1.5))
    assert late.state == "fires" and "rank 0" in late.summary


def test_collectives_between_backward_pass_and_optimizer_may_exchange_gradients() -> None:
    fold = SegmentFold()

    def step(*codes: int) -> None:
        fold.step(
            RawStep(
                1, 0.0, list(codes), [float(n + 1) for n in range(len(codes))], 1, 0, None, 0, 0
            )
        )

    step(FORWARD, BACKWARD, GAP, COMM, GAP, OPTIMIZER)
    # buffers of DistributedDataParallel, within the pass
    step(FORWARD, COMM, FORWARD, BACKWARD, OPTIMIZER)
    assert fold._outside_calls == 0
    step(FORWARD, BACKWARD, GAP, OPTIMIZER, GAP, COMM, GAP, COMM, GAP)
    assert (fold._outside_calls, fold._outside_s, fold._outside_steps) == (2, 2.0, 1)
    step(FORWARD, GAP, COMM, GAP, BACKWARD, OPTIMIZER)
    assert fold._outside_calls == 3


STEP_S, STEPS = 0.1, 40
"""Of a job without a timer."""


def recorded(
    late_s: float,
    device: str = "cpu",
    lasts_s: float = 0.0,
    hosts: tuple[str, str] = ("here", "here"),
    reason: str = "",
) -> tuple[dict[str, Signal], dict[str, Finding], dict[str, str]]:
    """Signals, conclusions and reasons of a job with FSDP in two processes. In each step of STEP_S:
    a gather, for which process 1 comes `late_s` later, and a scatter. `lasts_s`: of a collective on
    the GPU without a wait; 0: not known."""
    state = SessionState()
    state.apply(Devices(0.0, [Device(device, "a device")]))
    state.apply(RunOpened(0.0, "1", "train.py", "job", {}, device))
    for rank in (0, 1):
        state.apply(RankJoined(0.0, rank, hosts[rank], 100 + rank, rank == 0))
    state.apply(
        Started(0.0, {**KNOBS, "sharding": "zero3"}, {"world_size": 2.0, "threads": 1.0}, {})
    )
    gather, scatter = (COLLECTIVE_KINDS.index(kind) for kind in ("all_gather", "reduce_scatter"))
    phases = tuple((dict.fromkeys(PHASES, 0.0) | {"forward": 0.05, "backward": 0.05}).values())
    for rank in (0, 1):
        steps = [
            Step(index, STEP_S * (index + 1), STEP_S, 16, 0, phases, (0.0,) * len(PHASES))
            for index in range(STEPS)
        ]
        arrivals = []
        for index in range(STEPS):
            for number, kind, wait_s in ((0, gather, late_s), (1, scatter, 0.0)):
                at_s = 1e6 + STEP_S * index + 0.01 + (0.03 + late_s) * number + wait_s * rank
                lasts = lasts_s + wait_s * (1 - rank) if lasts_s else 0.0
                arrivals.append(
                    Arrival("0", 2, 2 * index + number, kind, round(1e6 * at_s), lasts, 5e7)
                )
        kinds = [
            CollectiveKind(COLLECTIVE_KINDS[kind], STEPS, 100_000_000 * STEPS, 0.0, 0)
            for kind in (gather, scatter)
        ]
        read = Collectives(0, [], [], reason) if reason else Collectives(STEPS, kinds, arrivals, "")
        state.apply(
            Steps(
                STEP_S * STEPS,
                steps,
                0.0,
                0.0,
                0.0,
                1e6,
                0,
                rank,
                {"work.steps": float(STEPS)},
                [],
                read,
            )
        )
    record = state.record
    assert record is not None
    record.steady_t = 0.0
    signals = run_signals(record, Summary(), 4, None)
    return (
        signals,
        {finding.rule: finding for finding in evaluate(Case.of(record.run, signals))},
        record.run.unavailable,
    )


@pytest.mark.parametrize(("device", "lasts_s"), [("cpu", 0.0), ("gpu:0", 0.002)])
def test_the_late_process_of_a_sharded_job_is_named_with_kind_and_bytes(
    device: str, lasts_s: float
) -> None:
    signals, findings, unavailable = recorded(0.04, device, lasts_s)
    straggler = findings["comm.straggler"]
    assert (
        straggler.state == "fires"
        and "rank 1" in straggler.summary
        and "all_gather" in straggler.summary
    )
    assert straggler.recoverable_ratio == pytest.approx(0.4, rel=0.1)
    assert signals["comm.late_s"].value == pytest.approx(0.04, rel=0.1)
    evidence = {item.signal: item for item in straggler.evidence}
    assert evidence["comm.late_kind_bytes"].value == 1e8
    assert evidence["comm.late_kind_calls"].value == 1.0
    assert "comm.collectives" not in unavailable


def test_the_time_of_all_collectives_bounds_the_exposed_time() -> None:
    signals, findings, _ = recorded(0.0, "gpu:0", lasts_s=0.002)
    assert signals["comm.collectives_s"].value == pytest.approx(0.004, rel=0.05)
    assert signals["comm.bus_bytes_per_s"].value == pytest.approx(5e7 / 0.002)
    assert signals["comm.bytes_per_step"].value == 2e8
    assert findings["comm.exposed"].state == findings["comm.straggler"].state == "clear"
    _, findings, _ = recorded(0.0, "gpu:0", lasts_s=0.02)
    exposed = findings["comm.exposed"]
    assert exposed.state == "cant_tell" and "40 ms" in exposed.summary, "it may be hidden"


def test_torchs_record_decides_which_process_is_late_where_most_of_a_step_is_communication() -> (
    None
):
    """The time without communication is short, so its ratio is large and its place is not known."""
    late = {
        "comm__straggler_ratio": 1.6,
        "comm__late_s": 0.0375,
        "comm__slowest_rank": 1.0,
        "comm__late_before": 1.0,
        "ranks__busy_ratio": 8.0,
    }
    found = check(
        "comm.straggler",
        case(
            knobs={**KNOBS, "sharding": "zero3"},
            step_s=0.1,
            comm__pass_alone_s=0.1,
            comm__straggler_spread=0.1,
            comm__late_in_backward_ratio=0.0,
            ranks__busiest=1.0,
            **late,
        ),
    )
    assert found.state == "fires" and "all_gather" in found.summary and "data" not in found.summary
    assert found.recoverable_ratio == pytest.approx(0.375)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"device": "gpu:0"}, "TORCH_NCCL_ENABLE_TIMING"),
        ({"hosts": ("a", "b")}, "hosts"),
        ({"reason": "torch keeps none"}, "torch keeps none"),
    ],
)
def test_where_processes_cannot_be_compared_nobody_is_accused(
    fields: dict[str, Any], reason: str
) -> None:
    signals, findings, unavailable = recorded(0.04, **fields)
    assert "comm.slowest_rank" not in signals
    assert findings["comm.straggler"].state == findings["comm.exposed"].state == "cant_tell"
    assert reason in unavailable["comm.collectives"]


@pytest.mark.parametrize(
    ("buffers", "in_steps", "title", "accumulates"),
    [
        (16.8e6, 0.6, "Buffers are sent to all processes in every forward pass", False),
        # the gradients take the time, and are larger than the buffers of batch norm
        (4e4, 0.6, "The step waits for communication", True),
        # the buffers are large, and take no time
        (16.8e6, 0.1, "The step waits for communication", True),
    ],
)
def test_buffers_that_are_sent_before_each_forward_pass_are_no_gradients(
    buffers: float, in_steps: float, title: str, accumulates: bool
) -> None:
    exchanged = case(
        knobs={"sharding": "ddp", "gradient_accumulation_steps": 1, "comm_hook": "none"},
        step_s=0.1,
        comm__exposed_s=0.002 if buffers > 1e6 and in_steps > 0.5 else 0.02,
        comm__exposed_spread_s=0.0,
        comm__pass_s=0.09,
        comm__pass_alone_s=0.08,
        comm__exchanges_per_step=1.0,
        comm__bytes_per_step=2e5,
        comm__buffer_bytes=buffers,
        ranks__least_comm_ratio=in_steps,
    )
    finding = check("comm.exposed", exchanged)
    assert (finding.state, finding.title) == ("fires", title)
    changes = [set(suggestion.changes) for suggestion in finding.suggestions]
    assert ({"gradient_accumulation_steps"} in changes) == accumulates
