"""Rules about memory traffic, memory in pieces, and compilation."""

from __future__ import annotations

import dataclasses

import pytest

from gpuconsole.diagnosis.engine import evaluate, wanted_probes
from gpuconsole.diagnosis.rule import Case
from gpuconsole.model.finding import Finding
from gpuconsole.model.knobs.catalogue import Knobs
from tests.diagnosis.cases import case

DENSE: Knobs = {"sparse": False}
TABLE = {
    "embedding__rows_touched_ratio": 0.012,
    "embedding__table_bytes": 128e6,
    "forward_ratio": 0.01,
    "backward_ratio": 0.70,
    "optimizer_ratio": 0.28,
    "mfu_ratio": 0.003,
}
EAGER: Knobs = {"torch_compile": "off"}
CHAIN = {
    "profile__elementwise_ratio": 0.83,
    "profile__normalization_ratio": 0.02,
    "profile__reduction_ratio": 0.03,
}
COMPILED: Knobs = {"torch_compile": "default", "compile_dynamic": "false", "pad_to_multiple_of": 0}
MB = 1e6


def of(rule: str, a_case: Case) -> Finding:
    return next(finding for finding in evaluate(a_case) if finding.rule == rule)


def compiled(
    recompiles: float, steps: float, ratio: float = 0.9, given_up: float = 0.0, breaks: float = 0.0
) -> dict[str, float]:
    return {
        "compile__recompiles": recompiles,
        "compile__steps": steps,
        "compile__time_ratio": ratio,
        "compile__given_up": given_up,
        "compile__graph_breaks": breaks,
    }


def heap(
    allocated: float, reserved: float, at_rest: float = 120.0, limit: float = 512.0, **more: float
) -> dict[str, float]:
    """In MB."""
    return {
        "memory__limit_bytes": limit * MB,
        "memory__heap_allocated_bytes": at_rest * MB,
        "memory__heap_reserved_bytes": reserved * MB,
        "memory__heap_allocated_peak_bytes": allocated * MB,
        "memory__heap_reserved_peak_bytes": reserved * MB,
        **more,
    }


def test_a_dense_gradient_of_a_table_is_named_and_sparse_suggested() -> None:
    finding = of("gpu.dense_embedding_grad", case(knobs=DENSE, **TABLE))
    assert (finding.state, finding.confidence) == ("fires", "high")
    suggestion = finding.suggestions[0]
    assert suggestion.changes == {"sparse": True}
    assert suggestion.predicted_speedup is not None
    # what was measured on a CPU
    assert suggestion.predicted_speedup.low < 7.0 < suggestion.predicted_speedup.high


@pytest.mark.parametrize(
    ("knobs", "changes"),
    [
        (DENSE, {"embedding__rows_touched_ratio": 0.4}),
        (DENSE, {"forward_ratio": 0.75, "backward_ratio": 0.15, "optimizer_ratio": 0.05}),
        ({"sparse": True}, {}),
        ({**DENSE, "sharding": "zero3"}, {}),
        ({}, {}),
    ],
)
def test_a_table_that_is_mostly_touched_or_does_not_matter_is_left_alone(
    knobs: Knobs, changes: dict[str, float]
) -> None:
    assert (
        of("gpu.dense_embedding_grad", case(knobs=knobs, **{**TABLE, **changes})).state == "clear"
    )


@pytest.mark.parametrize(
    ("signals", "state"),
    [
        ({}, "fires"),
        ({"embedding__table_bytes": 0.0}, "clear"),
        # GPT-2: the tables are a third of the parameters, and the optimizer a tenth of the step
        (
            {
                "embedding__trained_ratio": 0.3,
                "forward_ratio": 0.3,
                "backward_ratio": 0.6,
                "optimizer_ratio": 0.1,
            },
            "clear",
        ),
        # the operators of a compiled job are not counted
        ({"embedding__table_bytes": float("nan")}, "cant_tell"),
        ({"embedding__table_bytes": float("nan"), "model__embeddings": 0.0}, "clear"),
    ],
)
def test_in_a_job_of_ones_own_the_operators_show_the_table(
    signals: dict[str, float], state: str
) -> None:
    job = dataclasses.replace(
        case(**{**TABLE, "embedding__trained_ratio": 1.0, "model__embeddings": 1.0, **signals}),
        is_job=True,
    )
    finding = of("gpu.dense_embedding_grad", job)
    assert finding.state == state
    assert [s.changes for s in finding.suggestions] == [{"sparse": True}] * (state == "fires")


@pytest.mark.parametrize(
    ("forward", "backward", "optimizer", "state"),
    [(0.03, 0.07, 0.9, "clear"), (0.15, 0.3, 0.55, "clear"), (0.3, 0.4, 0.3, "fires")],
)
def test_fixed_cost_of_the_optimizer_is_no_small_batch(
    forward: float, backward: float, optimizer: float, state: str
) -> None:
    """The passes scale in the same way in all three."""
    shares = case(
        forward_ratio=forward,
        backward_ratio=backward,
        optimizer_ratio=optimizer,
        probe__batch_cost_ratio=0.3,
    )
    assert of("gpu.small_batch", shares).state == state


def test_the_tables_milliseconds_are_neither_the_small_batchs_nor_those_of_unfused_operations() -> (
    None
):
    """Filling a dense gradient costs the same for any batch and is elementwise: both rules would
    name it, too."""
    both = case(knobs={**DENSE, **EAGER}, **TABLE, **CHAIN, probe__batch_cost_ratio=0.3)
    fired = {finding.rule for finding in evaluate(both) if finding.state == "fires"}
    assert fired == {"gpu.dense_embedding_grad"}


def test_an_unfused_chain_is_named_and_compiling_suggested() -> None:
    finding = of("gpu.elementwise_membw", case(knobs=EAGER, **CHAIN))
    assert (finding.state, finding.confidence) == ("fires", "high")
    suggestion = finding.suggestions[0]
    assert suggestion.changes == {"torch_compile": "default"}
    assert suggestion.predicted_speedup is not None
    # what was measured on a CPU
    assert suggestion.predicted_speedup.low < 2.8 < suggestion.predicted_speedup.high


def test_a_gpts_elementwise_operations_and_a_compiled_chain_are_left_alone() -> None:
    gpt = {
        "profile__elementwise_ratio": 0.067,
        "profile__normalization_ratio": 0.029,
        "profile__reduction_ratio": 0.014,
    }
    assert of("gpu.elementwise_membw", case(knobs=EAGER, **gpt)).state == "clear"
    assert (
        of("gpu.elementwise_membw", case(knobs={"torch_compile": "default"}, **CHAIN)).state
        == "clear"
    )


def test_the_profiler_window_is_asked_for_only_where_something_could_be_compiled() -> None:
    assert "op_mix" in wanted_probes(evaluate(case(knobs=EAGER)))
    assert "op_mix" not in wanted_probes(evaluate(case(knobs={"torch_compile": "default"})))


def test_recompiles_are_named_before_the_run_is_steady() -> None:
    early = case(knobs=COMPILED, **compiled(3, 4))
    pre_steady = {
        name: early.signals[name]
        for name in early.signals
        if name.startswith("compile.") or name == "seconds_not_steady"
    }
    finding = evaluate(Case(early.knobs, pre_steady))[0]
    assert (finding.rule, finding.state) == ("host.recompile_graphbreak", "fires")
    assert finding.recoverable_ratio == pytest.approx(0.9)
    assert [suggestion.changes for suggestion in finding.suggestions] == [
        {"compile_dynamic": "true"},
        {"pad_to_multiple_of": 64, "compile_dynamic": "auto"},
    ]
    # the call of torch.compile is the program's own, and no knob
    job = evaluate(Case({"torch_compile": "default"}, pre_steady, is_job=True))[0]
    assert not job.suggestions
    assert "dynamic=True" in job.summary and "pad each batch to a multiple of 64" in job.summary


def test_one_recompile_and_rare_ones_are_normal() -> None:
    assert of("host.recompile_graphbreak", case(knobs=COMPILED, **compiled(1, 2))).state == "clear"
    assert (
        of("host.recompile_graphbreak", case(knobs=COMPILED, **compiled(4, 400, 0.02))).state
        == "clear"
    )
    assert of("host.recompile_graphbreak", case(knobs=EAGER)).state == "clear"


def test_a_torch_that_has_given_up_is_named_for_good_and_nothing_is_predicted() -> None:
    finding = of(
        "host.recompile_graphbreak", case(knobs=COMPILED, **compiled(7, 5000, 0.01, given_up=1))
    )
    assert finding.state == "fires"
    assert "uncompiled" in finding.summary
    assert finding.suggestions[0].predicted_speedup is None


def test_graph_breaks_alone_inform() -> None:
    finding = of(
        "host.recompile_graphbreak", case(knobs=COMPILED, **compiled(0, 100, 0.0, breaks=2))
    )
    assert (finding.state, finding.note, finding.suggestions) == ("fires", True, ())


def test_fragments_are_named_on_a_cpu_with_what_glibc_can_do() -> None:
    finding = of(
        "mem.fragmentation",
        case(knobs={"malloc_mmap_threshold_kb": 0, "pad_to_multiple_of": 0}, **heap(240, 430)),
    )
    assert (finding.state, finding.resource) == ("fires", "memory")
    assert finding.recoverable_ratio == pytest.approx(190 / 512)
    assert [suggestion.changes for suggestion in finding.suggestions] == [
        {"malloc_mmap_threshold_kb": 256}
    ]


def test_fragments_are_named_on_a_gpu_with_what_its_allocator_can_do() -> None:
    knobs: Knobs = {
        "pytorch_alloc_conf": "default",
        "pad_to_multiple_of": 0,
        "malloc_mmap_threshold_kb": 0,
    }
    peaks = {
        "memory__allocated_peak_bytes": 50e9,
        "memory__reserved_peak_bytes": 90e9,
        "memory__limit_bytes": 100e9,
        "memory__inactive_split_bytes": 38e9,
    }
    finding = of("mem.fragmentation", case(knobs=knobs, is_gpu=1.0, **peaks))
    assert finding.state == "fires"
    assert [suggestion.changes for suggestion in finding.suggestions] == [
        {"pytorch_alloc_conf": "expandable_segments:True"},
        {"pad_to_multiple_of": 64},
    ]
    assert not finding.note and finding.confidence == "medium", "no allocation failed"
    failed = of(
        "mem.fragmentation", case(knobs=knobs, is_gpu=1.0, **peaks, memory__alloc_retries=3.0)
    )
    assert (failed.confidence, failed.recoverable_ratio) == ("high", pytest.approx(0.4)), (
        "whole free segments, too: an allocation has failed beside them"
    )
    half_empty = {
        "memory__allocated_peak_bytes": 25e9,
        "memory__reserved_peak_bytes": 45e9,
        "memory__limit_bytes": 100e9,
        "memory__inactive_split_bytes": 19e9,
    }
    assert of("mem.fragmentation", case(knobs=knobs, is_gpu=1.0, **half_empty)).note, (
        "no allocation is likely to fail"
    )


def test_a_cache_of_whole_segments_and_pools_of_graphs_are_no_fragments() -> None:
    """A program that resets the peaks makes the allocated peak small, and the cache stays. Pools of
    CUDA graphs hold free parts that no other tensor may use."""
    reset = {
        "memory__allocated_peak_bytes": 25e9,
        "memory__reserved_peak_bytes": 90e9,
        "memory__limit_bytes": 100e9,
        "memory__inactive_split_bytes": 9e9,
    }
    for state, more in (
        ("clear", {}),
        ("clear", {"memory__alloc_retries": 1.0, "memory__peaks_reset": 1.0}),
        ("fires", {"memory__alloc_retries": 1.0}),
    ):
        assert of("mem.fragmentation", case(is_gpu=1.0, **reset, **more)).state == state
    for pools in (1.0, 0.0):
        more = {"memory__graph_pools": pools}
        finding = of("mem.fragmentation", case(is_gpu=1.0, **{**reset, **more}))
        assert finding.state == ("cant_tell" if pools else "clear")


def test_memory_that_waits_for_the_next_step_is_not_lost() -> None:
    """At rest most of the heap is unused; when memory is fullest hardly any is. Only a probe tells,
    and it is asked for only then."""
    assert of("mem.fragmentation", case(**heap(400, 430))).state == "clear"
    open_case = case(without=("memory.heap_allocated_peak_bytes",), **heap(0, 430))
    assert wanted_probes([of("mem.fragmentation", open_case)]) == ["heap_peaks"]
    little = case(without=("memory.heap_allocated_peak_bytes",), **heap(0, 430, at_rest=400))
    assert of("mem.fragmentation", little).state == "clear"
    roomy = case(without=("memory.heap_allocated_peak_bytes",), **heap(0, 430, limit=24_000))
    assert of("mem.fragmentation", roomy).state == "clear"


def test_a_stream_at_full_bandwidth_is_healthy_and_waste_is_not_taken_for_it() -> None:
    stream = case(without=("mfu_ratio",), mbu_ratio=0.9)
    assert [finding.rule for finding in evaluate(stream) if finding.state == "fires"] == [
        "gpu.bandwidth_bound_healthy"
    ]
    assert (
        of("gpu.bandwidth_bound_healthy", case(without=("mfu_ratio",), mbu_ratio=0.05)).state
        == "clear"
    )
    assert (
        of(
            "gpu.bandwidth_bound_healthy",
            case(without=("mfu_ratio",), mbu_ratio=0.9, data_wait_ratio=0.3),
        ).state
        == "clear"
    )
    assert of("gpu.bandwidth_bound_healthy", case()).state == "clear"
