"""Percentiles from the differences of a server's histograms, with the bucket that each one is
in."""

from __future__ import annotations

import random

import pytest

from gpuconsole.session.figures.distributions import of_histogram, percentile

BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0)


def buckets(values: list[float]) -> dict[float, float]:
    return {bound: float(sum(value <= bound for value in values)) for bound in BOUNDS}


@pytest.mark.parametrize("seed", range(20))
def test_the_mean_is_exact_and_each_percentile_is_in_its_bucket(seed: int) -> None:
    draw = random.Random(seed)
    values = [
        draw.lognormvariate(-3.0, draw.choice((0.2, 0.6, 1.2)))
        for _ in range(draw.choice((3, 50, 2000)))
    ]
    found = of_histogram(
        "ttft_s", {"ttft_s_sum": sum(values), "ttft_s_count": float(len(values))}, buckets(values)
    )
    assert found is not None
    assert found.mean == pytest.approx(sum(values) / len(values)) and found.n == len(values)
    for label, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        low, high = found.within[label]
        exact = sorted(values)[max(0, -(-int(share * 1000) * len(values) // 1000) - 1)]
        assert low <= exact and (high is None or exact <= high), (
            label,
            percentile(sorted(values), share),
        )
        assert low <= getattr(found, label) and (high is None or getattr(found, label) <= high)


def test_values_above_the_last_bound_have_no_upper_bound() -> None:
    found = of_histogram(
        "e2e_s", {"e2e_s_sum": 40.0, "e2e_s_count": 4.0}, dict.fromkeys(BOUNDS, 0.0)
    )
    assert found is not None and found.within["p99"] == (1.0, None) and found.p99 == 1.0


def test_no_values_and_no_buckets_make_no_distribution() -> None:
    assert of_histogram("e2e_s", {"e2e_s_sum": 0.0, "e2e_s_count": 0.0}, buckets([])) is None
    assert of_histogram("e2e_s", {"e2e_s_sum": 4.0, "e2e_s_count": 2.0}, {}) is None
