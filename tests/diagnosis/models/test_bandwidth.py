"""Bytes that must move, collectives over a ring, and the roofline."""

from __future__ import annotations

import pytest

from gpuconsole.diagnosis.models import roofline
from gpuconsole.diagnosis.models.bandwidth import step_bytes
from gpuconsole.diagnosis.models.collective import (
    exposed_s,
    last_bucket_share,
    ring_s,
    sharding_s,
)


def test_adamw_moves_28_bytes_a_parameter() -> None:
    moved = step_bytes(1e9, 1e9, "adamw_fused")
    assert (moved.optimizer, moved.weights, moved.gradients) == (28e9, 8e9, 4e9)
    assert moved.total == 40e9


def test_accumulation_reads_weights_in_every_pass_and_updates_once() -> None:
    one, four = (step_bytes(1e6, 1e6, "adamw", passes) for passes in (1, 4))
    assert four.weights == 4 * one.weights
    assert four.optimizer == one.optimizer
    assert four.gradients == 7 * one.gradients  # the first writes, the others read and write


def test_lora_updates_little_and_reads_all() -> None:
    moved = step_bytes(1e9, 1e6, "adamw", precision="bf16")
    assert moved.optimizer == 28e6
    assert moved.weights == 10e9  # the fp32 weight, its copy written, and read twice


def test_ring() -> None:
    assert ring_s("all_reduce", 16e9, 8, 400e9) == pytest.approx(2 * 7 / 8 * 16 / 400)
    halves = ring_s("all_gather", 16e9, 8, 400e9) + ring_s("reduce_scatter", 16e9, 8, 400e9)
    assert halves == pytest.approx(ring_s("all_reduce", 16e9, 8, 400e9))
    assert ring_s("all_reduce", 16e9, 1, 400e9) == 0
    assert ring_s("all_reduce", 0, 8, 400e9, latency_s=1e-6) == pytest.approx(14e-6)


def test_bus_bandwidth_as_nccl_tests_defines_it() -> None:
    """Over 200 Mbit/s between two processes 16 MiB take 713 ms: 188 Mbit/s on the bus, since 2
    (n-1)/n is 1 for two processes."""
    assert ring_s("all_reduce", 2**24, 2, 188e6 / 8) == pytest.approx(0.713, rel=0.01)


def test_zero3_sends_half_again_as_much_as_ddp() -> None:
    seconds = {
        sharding: sharding_s(sharding, 1e9, 1e9, 4, 1e9)
        for sharding in ("none", "ddp", "zero1", "zero2", "zero3")
    }
    assert seconds["zero2"] == pytest.approx(seconds["ddp"])
    assert seconds["zero1"] == seconds["zero3"] == pytest.approx(1.5 * seconds["ddp"])
    assert seconds["none"] == 0


def test_overlap_bounds() -> None:
    hidden = exposed_s(0.10, overlapped_s=0.30, last_share=0.2)
    assert (hidden.low, hidden.high) == pytest.approx((0.02, 0.10))
    assert exposed_s(0.50, overlapped_s=0.30).low == pytest.approx(0.20)


def test_the_last_bucket() -> None:
    mib = 2**20
    assert last_bucket_share(51 * mib, 25) == pytest.approx(25 / 51)
    assert last_bucket_share(36 * mib, 25) == pytest.approx(10 / 36)
    assert last_bucket_share(0.5 * mib, 25) == 1


def test_roofline() -> None:
    """H200 in bf16: 989.4 TFLOP/s over 4.8 TB/s have their ridge at 206 FLOP/B."""
    peak, bandwidth = 989.4e12, 4.8e12
    assert roofline.ridge(peak, bandwidth) == pytest.approx(206, abs=0.5)
    assert (roofline.side(10, peak, bandwidth), roofline.side(1000, peak, bandwidth)) == (
        "memory",
        "compute",
    )
    assert (
        roofline.attainable(10, peak, bandwidth),
        roofline.attainable(1000, peak, bandwidth),
    ) == (48e12, peak)
