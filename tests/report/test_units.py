"""Numbers as they stand on the screen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gpuconsole
from gpuconsole.model import units
from gpuconsole.model.text import percent


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.3, "0.30"),
        (2.0, "2.00"),
        (9.994, "9.99"),
        (9.996, "10.0"),
        (12.14, "12.1"),
        (99.96, "100"),
        (440.4, "440"),
        (999.4, "999"),
    ],
)
def test_three_digits_in_four_cells(value: float, text: str) -> None:
    assert units.digits(value) == text
    assert len(text) <= 4


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.02e12, "2.02 TB/s"),
        (0.3e9, " 300 MB/s"),
        (999.6e9, "1.00 TB/s"),
        (420.0, " 420 B/s "),
        (0.0, "   0 B/s "),
        (None, "      n/a"),
    ],
)
def test_rates_keep_their_width(value: float | None, text: str) -> None:
    assert units.si(value, "B/s").rjust(9) == text


def test_pairs_share_the_unit_of_the_larger() -> None:
    assert units.rates(12.1e9, 0.3e9, "B/s") == ("12.1", "0.30", "GB/s")
    assert units.rates(None, 5.0, "B/s") == (" n/a", "5.00", "B/s")
    assert units.durations(0.440, 0.530) == (" 440", " 530", "ms")
    assert units.durations(0.9, 1.24) == ("0.90", "1.24", "s")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.44, " 440 ms"),
        (1.24, "1.24 s "),
        (85e-6, "85.0 µs"),
        (0.9996, "1.00 s "),
        (0.0, "   0 s "),
        (None, "    n/a"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert units.duration(seconds) == text


def test_memory_is_binary_and_shares_a_unit() -> None:
    assert units.used_of(61.2 * 2**30, 140.4 * 2**30) == "61.2/140 GiB"
    assert units.used_of(0.4 * 2**30, 16 * 2**30) == "0.40/16.0 GiB"
    assert units.used_of(None, 1.0) == "n/a"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (18_240.4, "   18 240"),
        (71.23, "     71.2"),
        (999.7, "    1 000"),
        (12_300_000.0, "   12.3 M"),
        (None, "      n/a"),
        (float("nan"), "      n/a"),
    ],
)
def test_throughput(value: float | None, text: str) -> None:
    assert units.rate(value) == text


def test_the_rest() -> None:
    assert units.spread(18_240, 210, 0) == "18 240 ± 210"
    assert units.spread(636, 143.6, 0) == "636 ± 144"
    assert units.spread(636, 83.2, 0) == "636 ± 83"
    assert units.percent(0.784) == " 78 %"
    assert units.clock(102) == "01:42"
    assert units.clock(3723) == "1:02:03"
    assert units.speedup(1.534) == "1.53x"
    assert units.interval(1.45, 1.69) == "1.45-1.69x"
    assert units.quantity(0.412, "ratio") == "41.2 %"
    assert units.quantity(2.0, "workers") == "2.00 workers"


@pytest.mark.parametrize(
    ("ratios", "texts"),
    [
        ((3.41, 3.392, 12.2), ["4.41x", "4.39x", "13.2x"]),
        ((9.0, -0.5, 9.9994), ["+900.0 %", "-50.0 %", "+999.9 %"]),
        ((9.0, -0.5, 10.0), ["10.0x", "0.50x", "11.0x"]),
        ((0.004,), ["+0.4 %"]),
        ((998.4,), ["999x"]),
        ((998.6, 12.0), [">999x", "13.0x"]),
        ((-0.995, -0.999, -0.4), ["-99.5 %", "-99.9 %", "-40.0 %"]),
    ],
)
def test_differences_that_belong_together_have_one_unit(
    ratios: tuple[float, ...], texts: list[str]
) -> None:
    assert units.changes(*ratios) == texts
    assert units.change(ratios[0]) == texts[0] or len(ratios) > 1


def test_both_ends_of_a_speedup_have_the_digits_of_the_larger() -> None:
    assert units.interval(9.452, 9.994) == "9.45-9.99x"
    assert units.interval(9.452, 9.996) == "9.5-10.0x"
    assert units.interval(12.34, 99.96) == "12-100x"
    assert units.measured(11.04, 9.452, 13.219) == "11.0x [9.5, 13.2]"
    assert units.measured(1.534, 1.454, 1.614) == "1.53x [1.45, 1.61]"


def test_bytes_have_their_prefix_before_the_unit() -> None:
    """Signals of the rules have the units `B` and `B/s`."""
    assert units.quantity(303e6, "B") == units.quantity(303e6, "bytes") == "289 MiB"
    assert units.quantity(14.6e9, "B/s") == "14.6 GB/s"


def test_a_share_has_one_spelling() -> None:
    """`31 %`, as in all columns. Python's own format writes `31%`."""
    package = Path(gpuconsole.__file__).parent
    files = [
        path for path in package.rglob("*.py") if path.relative_to(package).parts[0] != "agent"
    ]
    assert [path.name for path in files if re.search(r":\.\d%\}", path.read_text())] == []
    assert (percent(0.314), percent(0.0036, 1)) == ("31 %", "0.4 %")
