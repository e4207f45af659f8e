import sys

import pytest

from gpuconsole.model.metrics import GPU_METRICS
from gpuconsole.model.series import BUCKETS, FOLD, RAW, RECENT_S, Series


def filled(n: int, period: int = 10) -> Series:
    series = Series()
    for i in range(n):
        series.add(float(i), float(i % period))
    return series


def test_keeps_the_mean_of_old_samples_in_order() -> None:
    series = filled(100_000)
    times, values = series.points()
    assert len(times) <= RAW + BUCKETS + 1
    assert len(series) == 100_000
    assert times == sorted(times)
    assert times[0] == 0.0
    old = len(times) - RAW
    assert sum(values[:old]) / old == pytest.approx(4.5, abs=0.01)


def test_recent_samples_are_whole() -> None:
    series = Series()
    for i in range(5000):
        series.add(float(i), float(i))
    assert series.since(4900.0)[0] == [float(i) for i in range(4900, 5000)]
    assert series.last == 4999.0


def test_a_series_of_which_only_the_recent_part_is_read_forgets_the_rest() -> None:
    whole, recent = Series(), Series(only_recent=True)
    for i in range(5000):
        whole.add(float(i), float(i % 7))
        recent.add(float(i), float(i % 7))
    begin = recent.points()[0][0]
    assert 4999.0 - RECENT_S - 8 * FOLD <= begin <= 4999.0 - RECENT_S + RAW
    assert len(recent.points()[0]) < RAW + RECENT_S / FOLD + 1
    assert recent.since(4900.0) == whole.since(4900.0)
    recent.only_recent = False
    for i in range(5000, 9000):
        recent.add(float(i), 1.0)
    assert recent.points()[0][0] == begin or recent.points()[0][0] == pytest.approx(begin, abs=64)


def test_older_samples_are_found_by_their_buckets() -> None:
    series = filled(1000)
    times, values = series.since(500.0)
    assert times == sorted(times)
    assert times[0] <= 508.0
    assert times[-1] == 999.0
    assert len(times) == len(values)


@pytest.mark.parametrize("hours", [1, 4])
def test_a_mean_over_stored_points_is_that_of_the_samples(hours: int) -> None:
    """One sample a second: 100, and 50 in the last 200 s. The mean of the stored points without
    weights is 79.5 and 76.8."""
    series, seconds = Series(), hours * 3600
    for second in range(seconds):
        series.add(float(second), 100.0 if second < seconds - 200 else 50.0)
    kept = list(series.weighed())
    assert sum(sample.weight for sample in kept) == seconds
    mean = sum(sample.value * sample.weight for sample in kept) / seconds
    assert mean == pytest.approx(100 - 50 * 200 / seconds)


def test_a_day_of_64_gpus_stays_under_60_mb() -> None:
    """The bytes of every array of a full series, for all metrics that have a history."""
    series = filled(24 * 3600)
    columns = (
        series._t,
        series._v,
        series._bucket_t,
        series._w,
        series._bucket_v,
        series._bucket_w,
    )
    kept = sum(metric.history for metric in GPU_METRICS)
    assert sum(map(sys.getsizeof, columns)) * kept * 64 < 60e6
