"""The rules on communication, each on ten lines of data."""

from __future__ import annotations

import pytest

from gpuconsole.diagnosis.rule import Case
from gpuconsole.model.finding import Signal
from gpuconsole.model.knobs.catalogue import Knobs
from tests.diagnosis.cases import check

DDP: Knobs = {
    "sharding": "ddp",
    "tensor_parallel": 1,
    "gradient_accumulation_steps": 1,
    "comm_hook": "none",
    "bucket_cap_mb": 25.0,
    "nproc": 2,
}
STEP = {
    "step_s": 0.1,
    "optimizer_ratio": 0.05,
    "comm.pass_s": 0.09,
    "comm.pass_alone_s": 0.06,
    "comm.bytes_per_step": 2e7,
}
EVEN = {
    "comm.straggler_ratio": 1.02,
    "comm.straggler_spread": 0.03,
    "comm.slowest_rank": 1.0,
    "comm.late_s": 0.001,
}


def case(signals: dict[str, float], knobs: Knobs | None = None) -> Case:
    return Case(
        {**DDP, **(knobs or {})},
        {name: Signal(value, "", "test") for name, value in signals.items()},
    )


def test_exposed_communication_is_worth_what_accumulation_saves() -> None:
    found = check("comm.exposed", case({**STEP, "comm.exposed_s": 0.03}))
    assert found.state == "fires" and found.recoverable_ratio == pytest.approx(0.3 * 3 / 4)
    first = found.suggestions[0]
    assert first.changes == {"gradient_accumulation_steps": 4}
    assert first.predicted_speedup is not None
    assert first.predicted_speedup.low < 1 / (1 - 0.35 * 3 / 4) < first.predicted_speedup.high


def test_accumulation_saves_gradients_and_not_the_parameters_that_shards_gather_in_every_pass() -> (
    None
):
    shards = check("comm.exposed", case({**STEP, "comm.exposed_s": 0.03}, {"sharding": "zero3"}))
    assert shards.recoverable_ratio == pytest.approx(0.3 / 3 * 3 / 4)
    several_passes = case(
        {**STEP, "comm.exposed_s": 0.03}, {"sharding": "zero3", "gradient_accumulation_steps": 2}
    )
    assert check("comm.exposed", several_passes).level == pytest.approx(
        0.3 * (1 / 3 + 2 * 2 / 3) / 0.10
    )


def test_a_slow_process_is_waited_for_in_every_pass_of_a_step() -> None:
    late = {
        **STEP,
        **EVEN,
        "comm.straggler_ratio": 1.3,
        "comm.late_s": 0.02,
        "comm.late_in_backward_ratio": 0.0,
    }
    assert check(
        "comm.straggler", case(late, {"gradient_accumulation_steps": 2})
    ).recoverable_ratio == pytest.approx(0.4)


def test_hidden_communication_is_no_finding() -> None:
    assert check("comm.exposed", case({**STEP, "comm.exposed_s": 0.005})).state == "clear"


def test_the_time_of_the_last_process_in_ordinary_steps_counts_if_more_than_in_the_probe() -> None:
    found = check(
        "comm.exposed", case({**STEP, "comm.exposed_s": 0.005, "ranks.least_comm_ratio": 0.2})
    )
    assert found.state == "fires" and found.recoverable_ratio == pytest.approx(0.2 * 3 / 4)
    four = case(
        {
            **STEP,
            "comm.exposed_s": 0.005,
            "ranks.least_comm_ratio": 0.2,
            "comm.exchanges_per_step": 4.0,
        }
    )
    # of one exchange; that there are four is another rule's
    assert check("comm.exposed", four).state == "clear"


def test_split_matrices_should_become_replicas() -> None:
    found = check(
        "comm.exposed",
        case({**STEP, "comm.exposed_s": 0.04}, {"sharding": "none", "tensor_parallel": 2}),
    )
    assert found.suggestions[0].changes == {"tensor_parallel": 1, "sharding": "ddp"}


def test_one_process_communicates_with_nobody() -> None:
    alone = case(STEP, {"sharding": "none", "nproc": 1})
    assert [
        check(rule, alone).state
        for rule in ("comm.exposed", "comm.small_buckets", "comm.straggler")
    ] == ["clear"] * 3


def test_small_buckets_claim_what_large_ones_save_and_no_more() -> None:
    signals = {
        **STEP,
        "comm.exposed_s": 0.05,
        "comm.exchange_now_s": 0.08,
        "comm.exchange_large_s": 0.02,
        "comm.bus_bytes_per_s": 1e9,
    }
    crumbs = case(signals, {"bucket_cap_mb": 0.1})
    small, exposed = check("comm.small_buckets", crumbs), check("comm.exposed", crumbs)
    assert small.recoverable_ratio == pytest.approx(0.5 * 0.75)
    assert exposed.recoverable_ratio == pytest.approx(0.5 * 0.25 * 3 / 4)
    assert small.suggestions[0].changes == {"bucket_cap_mb": 25.0}


def test_a_slow_backward_pass_is_named_with_its_process() -> None:
    found = check(
        "comm.straggler",
        case(
            {
                **STEP,
                **EVEN,
                "comm.straggler_ratio": 1.8,
                "comm.late_s": 0.04,
                "comm.late_in_backward_ratio": 0.97,
            }
        ),
    )
    assert found.state == "fires" and "rank 1" in found.summary and "backward" in found.summary
    assert found.recoverable_ratio == pytest.approx(0.4)


@pytest.mark.parametrize(
    "signals", [EVEN, {**EVEN, "comm.straggler_ratio": 1.15, "comm.straggler_spread": 0.1}]
)
def test_noise_makes_nobody_slow(signals: dict[str, float]) -> None:
    assert check("comm.straggler", case({**STEP, **signals})).state == "clear"


def test_a_process_that_waits_for_its_data_shows_in_the_account() -> None:
    found = check(
        "comm.straggler", case({**STEP, **EVEN, "ranks.busy_ratio": 1.5, "ranks.busiest": 0.0})
    )
    assert found.state == "fires" and "rank 0" in found.summary and "data" in found.summary


def test_of_late_data_and_slower_passes_the_larger_loss_is_named() -> None:
    """Another program that takes a core makes the passes of one process a little slower."""
    slower = {"comm.straggler_ratio": 1.3, "comm.late_s": 0.008, "comm.late_in_backward_ratio": 0.9}
    data = check(
        "comm.straggler",
        case({**STEP, **EVEN, **slower, "ranks.busy_ratio": 2.0, "ranks.busiest": 0.0}),
    )
    assert (
        "rank 0 takes 100 % longer" in data.summary
        and "data" in data.summary
        and data.recoverable_ratio == pytest.approx(0.5)
    )
    passes = check(
        "comm.straggler",
        case(
            {
                **STEP,
                **EVEN,
                **slower,
                "comm.late_s": 0.03,
                "ranks.busy_ratio": 1.5,
                "ranks.busiest": 1.0,
            }
        ),
    )
    assert "rank 1 takes 30 % longer" in passes.summary and "backward" in passes.summary
    assert data.summary.endswith(
        "Give rank 0 less work, or check its loader"
    ) and passes.summary.endswith("or check its device")
