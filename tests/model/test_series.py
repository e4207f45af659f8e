import sys

from gpuconsole.model.series import BUCKETS, RAW, Series


def test_keeps_minimum_mean_and_maximum_of_old_samples() -> None:
    series = Series()
    for i in range(100_000):
        series.add(float(i), float(i % 10))
    buckets = series.buckets()
    assert len(buckets) <= BUCKETS + 1
    assert {bucket.low for bucket in buckets[:100]} == {0.0}
    assert {bucket.high for bucket in buckets[:100]} == {9.0}
    assert abs(sum(b.mean * b.n for b in buckets) / sum(b.n for b in buckets) - 4.5) < 0.01
    assert len(series) == 100_000
    times, _ = series.points()
    assert times == sorted(times)
    assert times[0] == 0.0


def test_recent_samples_are_whole() -> None:
    series = Series()
    for i in range(5000):
        series.add(float(i), float(i))
    assert series.recent(300) == [float(i) for i in range(4700, 5000)]
    assert series.since(4990.0)[0] == [float(i) for i in range(4990, 5000)]


def test_a_day_of_eight_gpus_stays_under_150_mb() -> None:
    """24 h at 1 Hz, 8 GPUs with 20 metrics each: the bytes of every array, measured on a full series."""
    series = Series()
    for i in range(24 * 3600):
        series.add(float(i), 1.0)
    size = sum(sys.getsizeof(column) for column in (series._t, series._v, *series._buckets))
    assert size <= (RAW * 2 + (BUCKETS + RAW) * 5) * 8 * 1.2
    assert size * 8 * 20 < 150e6
