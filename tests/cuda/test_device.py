"""The simulated device does what the assertions of this folder rely on: values, clock, streams,
copies, memory, random numbers."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cuda.conftest import Machines, run_script
from tests.fakes.cuda.build import NotHereError
from tests.fakes.cuda.cards import CARDS, machine_of
from tests.fakes.cuda.machine import SimulatedMachine, Used

PROGRAMS = Path(__file__).parent / "programs"


def test_a_card_that_never_waits_reads_as_busy_although_its_host_issues_in_lumps(
    tmp_path: Path, fake_library: Path
) -> None:
    try:
        machine = SimulatedMachine(tmp_path, ["card h100"], fake_library)
    except NotHereError as error:
        pytest.skip(str(error))
    used = dict.fromkeys(Used._fields, 0) | {"pid": 1}
    seconds = {"busy_s": 1.0, "active_s": 1.0, "sm_s": 0.9}
    lump = Used(**(used | seconds))
    read = [machine._rates(0, [lump], 0.25)]
    machine._before = {(1, 0): lump}
    read += [machine._rates(0, [lump], 0.25) for _ in range(4)]
    assert [rates["active_s"] for rates in read] == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert [rates["sm_s"] for rates in read] == pytest.approx([0.9, 0.9, 0.9, 0.9, 0.0])


@pytest.mark.slow
def test_a_card_computes_keeps_time_and_counts_memory(simulated: Machines) -> None:
    found = run_script(simulated("card h100", "values cpu"), PROGRAMS / "device.py")
    assert found["name"] == "simulated NVIDIA H100 80GB HBM3" and found["count"] == 1
    assert found["losses"]["cuda"] == pytest.approx(found["losses"]["cpu"], rel=1e-4), (
        "the values of the CPU"
    )
    assert found["attention_error"] < 1e-5
    assert (
        found["launch_s"] < 0.05 < 0.0999 < found["event_s"] < 0.102 and found["waited_s"] >= 0.1
    ), "the host does not wait for a kernel"
    assert found["pinned_host_s"] < 0.05 and found["overlapped_s"] < 0.09, (
        "a pinned copy returns at once and overlaps the kernel"
    )
    assert found["pageable_host_s"] > 3.5e-4, (
        "10 MB at half of the link: a pageable copy is waited for"
    )
    assert (
        found["allocated"] == found["kept_by_the_view"] == 30 * 2**20
        and found["freed"] == 0
        and found["view_shares"]
    )
    assert (
        "Tried to allocate 100.00 GiB. GPU 0 has a total capacity of 79.63 GiB"
        in found["out_of_memory"]
    )
    assert found["random_repeats"]
    assert found["freed_by_a_swap"] == 2 * 1024 * 1025, "half of the parameters' bytes"


@pytest.mark.slow
def test_a_forked_child_of_a_process_that_uses_cuda_cannot_use_it(simulated: Machines) -> None:
    found = run_script(simulated("card h100", "values cpu"), PROGRAMS / "fork.py")
    answers = {name: child["answer"] for name, child in found.items() if isinstance(child, dict)}
    assert (
        answers["before"] == "(False, 0.0)"
        and answers["after_device_count"] == answers["after_is_available_by_nvml"] == "False"
    )
    assert answers["after_is_available"] == "True" and answers["state"] == "(True, False, 0, 1)"
    for name in ("new_tensor", "lazy_init", "synchronize", "properties"):
        assert answers[name].startswith(
            "RuntimeError: Cannot re-initialize CUDA in forked subprocess."
        ), name
    for name in (
        "launch",
        "in_place",
        "item",
        "to_host",
        "empty_like",
        "record",
        "query",
        "wait",
        "elapsed",
        "pinned",
    ):
        assert answers[name] == "RuntimeError: CUDA error: initialization error (simulated)", name
    assert answers["seed_and_cpu"] == "(1, 3.0)"
    for name in ("free_tensors", "free_unused_event", "free_unused_pinned", "exit"):
        assert (found[name]["code"], found[name]["stderr"]) == (0, ""), name
    for name, freed in (
        ("free_event", "a CUDA event that has been recorded"),
        ("free_pinned", "pinned host memory that a stream has used"),
    ):
        assert found[name]["code"] == -signal.SIGABRT and f"freed {freed}" in found[name]["stderr"]
    assert found["unharmed"] and found["shared_bytes"][0] == found["shared_bytes"][1] != [0], (
        "the parent's figures are its own"
    )
    assert found["loader"] == [4, True, pytest.approx(found["expected"])], (
        "workers draw and compute on the CPU"
    )


@pytest.mark.slow
def test_a_capture_records_refuses_what_cuda_refuses_and_replays_in_one_launch(
    simulated: Machines,
) -> None:
    found = run_script(simulated("card h100", "values cpu"), PROGRAMS / "graphs.py")
    assert found["states"] == [False, True, False] and found["while_capturing"] == {
        "kernels": 0,
        "busy_s": 0,
    }
    assert found["replayed"] == pytest.approx(found["eager"]) and found["replayed"]["kernels"] == 10
    assert (
        found["replay_s"] == pytest.approx(found["eager"]["busy_s"], rel=0.2)
        and found["replays"] == 2
    )
    assert all(
        "operation not permitted on an event last recorded in a capturing stream" in error
        for error in found["event_after"]
    )
    for name, (error, end) in found["refused"].items():
        assert (
            error == "CUDA error: operation not permitted when stream is capturing (simulated)"
        ), name
        assert end.endswith("the capture was invalidated"), name
    assert all(errors == ["none", "none"] for errors in found["allowed"].values())
    assert found["usable_after"] == [3.0, False]
    assert found["side_captures"] and found["overlapped_s"] == pytest.approx(
        found["replay_s"], rel=0.2
    ), "two streams at the same time"
    assert (
        "non-default stream" in found["default_stream"]
        and "without a preceding successful capture" in found["never_captured"]
    )
    assert found["pool_bytes"] >= 100 * 2**20 and found["pool_bytes_after_reset"] == 0, (
        "a graph keeps its memory"
    )
    assert found["freed"].endswith("the graph reads memory that was freed"), (
        "a graph keeps addresses"
    )
    assert found["graphed_grad"]
    assert found["graphs_by_dynamo"] == 2 and found["graph_breaks"] == 1, (
        "torch.compile traces, guards and compiles again"
    )
    assert found["overwritten"] == [True, False], (
        "a replay writes over the outputs of the call before"
    )
    assert found["compiling_s"] > 0.3 and found["compiled"] == ["none", "none"]
    assert found["no_forward"] == "backend='compile_graph' raised:"
    assert (
        found["no_backward"][0] == "none"
        and "the backward pass cannot be compiled" in found["no_backward"][1]
    )


@pytest.mark.slow
def test_contexts_are_where_a_process_works_and_fp32_has_the_peak_of_the_settings(
    simulated: Machines,
) -> None:
    found = run_script(simulated("card h100", "card h100", "values none"), PROGRAMS / "places.py")
    places = found["places"]
    assert places == {
        "asked": [],
        "model_on_1": [1],
        "event_made": [1],
        "recorded_on_1": [1],
        "recorded_on_0": [0, 1],
    }
    assert found["devices"] == ["cuda:1", "cuda:0"], (
        "an event belongs to the device of its first record"
    )
    assert found["other_device"] == "Event device 1 does not match recording stream's device 0."
    fp32, tf32 = (
        pytest.approx(2 * 4096**3 / (0.75 * peak), rel=0.01)
        for peak in (CARDS["h100"].fp32, CARDS["h100"].tf32)
    )
    fast = pytest.approx(found["peaks"]["default"][1])
    slow = pytest.approx(
        found["peaks"]["default"][1] * CARDS["h100"].tf32 / CARDS["h100"].fp32, rel=0.05
    )
    assert found["peaks"] == {
        "default": [fp32, fast],
        "allow_tf32": [tf32, fast],
        "highest": [fp32, fast],
        "high": [tf32, fast],
        "no_cudnn": [fp32, slow],
        "new_matmul": [tf32, slow],
        "new_conv": [fp32, fast],
        "new_all": [tf32, fast],
        "ieee": [fp32, slow],
    }
    load = {
        name: {share: pytest.approx(value, abs=0.02) for share, value in shares.items()}
        for name, shares in found["load"].items()
    }
    assert load["bf16"]["sm_s"] == 0.95 and load["bf16"]["tensor_s"] == 0.75
    assert load["fp32"]["sm_s"] == 0.95 and load["fp32"]["tensor_s"] == 0, (
        "fp32 does not use the tensor cores"
    )
    assert load["copy"]["dram_s"] == 0.9 and load["copy"]["tensor_s"] == 0
    assert load["small"]["sm_s"] == 0.01 and found["load"]["small"]["active_s"] > 5, (
        "NVML counts periods with a kernel, however short"
    )


def test_a_script_of_a_machine_names_its_mistakes() -> None:
    assert [
        card.name for card in machine_of(["card l4 memory=8e9  # small", "card h100"]).cards
    ] == [CARDS["l4"].name, CARDS["h100"].name]
    for script, reason in (
        (["card b300"], "cards are h100"),
        (["card l4 size=1"], "no such figure"),
        ([], "1 to 8 cards"),
    ):
        with pytest.raises(ValueError, match=reason):
            machine_of(script)
