"""All number formats: three significant digits, a unit, and a constant width. No other module
formats numbers.

Rates and work have decimal prefixes (GB/s, TFLOP/s), memory and data sizes have binary prefixes
(GiB), shares are whole percents. Most functions return a fixed number of cells, so that figures
stay in their columns while they change; `strip` the text for a sentence.
"""

from __future__ import annotations

import math

NA = "n/a"
_LARGE = ("", "k", "M", "G", "T", "P", "E")
_SMALL = ("", "m", "µ", "n")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_FACTORS_FROM = 10.0
"""A relative difference of at least +1000 % is easier to read as a factor."""
_PREFIXED = ("bytes/s", "B/s", "Hz", "FLOP", "FLOP/s", "FLOP/s/W", "J", "W")


def digits(value: float) -> str:
    """Three significant digits in at most four cells, for |value| < 999.5: `2.00`, `12.1`,
    `440`."""
    return f"{value:.{_places(value)}f}" if value else "0"


def _places(*values: float) -> int:
    """The digits after the point that give the largest of `values` three significant digits."""
    size = max(map(abs, values))
    return 2 if size < 9.995 else 1 if size < 99.95 else 0


def plain(value: float) -> str:
    """Three significant digits for any size, without a prefix: `0.0123`, `0.500`, `12.1`,
    `18 240`."""
    size = abs(value)
    return (
        f"{value:#.3g}" if 0 < size < 0.995 else digits(value) if size < 999.5 else grouped(value)
    )


def grouped(value: float) -> str:
    """An integer with a blank between thousands: `18 240`."""
    return f"{value:,.0f}".replace(",", " ")


def _scale(value: float, base: float, steps: int) -> int:
    """The number of divisions of `value` by `base` until it has at most three digits; negative:
    multiplications of a small value."""
    size, power = abs(value), 0
    while size >= 999.5 and power < steps - 1:
        size /= base
        power += 1
    return power


def si(value: float | None, unit: str, width: int = 4) -> str:
    """`2.00 TB/s`: a rate in decimal prefixes. The same width for every value of a unit."""
    if value is None or not math.isfinite(value):
        return NA.rjust(width + len(unit) + 2)
    power = _scale(value, 1e3, len(_LARGE))
    return f"{digits(value / 1e3**power):>{width}} {(_LARGE[power] + unit):<{len(unit) + 1}}"


def size_bytes(value: float | None) -> str:
    """`61.0 GiB`, eight cells: memory and data sizes."""
    if value is None or not math.isfinite(value):
        return NA.rjust(8)
    power = _scale(value, 1024.0, len(_BINARY))
    return f"{digits(value / 1024.0**power):>4} {_BINARY[power]:<3}"


def used_of(used: float | None, total: float | None, places: int | None = None) -> str:
    """`61.2/140 GiB`: both in the unit of the total. `places`: digits after the point of the first,
    instead of three significant digits."""
    if used is None:
        return NA
    if not total:
        return size_bytes(used).strip()
    power = _scale(total, 1024.0, len(_BINARY))
    whole = digits(total / 1024.0**power)
    part = used / 1024.0**power
    return f"{digits(part) if places is None else f'{part:.{places}f}':>4}/{whole} {_BINARY[power]}"


def percent(ratio: float | None) -> str:
    """` 78 %`, five cells."""
    return f"{ratio * 100:>3.0f} %" if ratio is not None and math.isfinite(ratio) else NA.rjust(5)


def watts(power: float | None, limit: float | None = None) -> str:
    """`612/700 W`, ` 980/1400 W`: at least three digits of width, and those of the limit where it
    is known."""
    if power is None:
        return NA
    whole = f"{limit:.0f}" if limit else ""
    return f"{power:{max(3, len(whole))}.0f}{f'/{whole}' if whole else ''} W"


def degrees(celsius: float | None, unit: str = " °C") -> str:
    """`61 °C`: at least two digits of width."""
    return NA if celsius is None else f"{celsius:2.0f}{unit}"


def cores(busy: float | None) -> str:
    """` 3.2`, four cells: a number of CPU cores."""
    return NA if busy is None else f"{busy:4.1f}"


def precise_percent(ratio: float | None) -> str:
    """`31 %`, `3.4 %`, `0.21 %`: two significant digits, for shares that may be small."""
    if ratio is None or not math.isfinite(ratio):
        return NA
    size = abs(ratio) * 100
    return f"{ratio * 100:.0f} %" if size >= 9.95 or not size else f"{ratio * 100:.2g} %"


def duration(seconds: float | None) -> str:
    """`440 ms`, seven cells."""
    if seconds is None or not math.isfinite(seconds):
        return NA.rjust(7)
    power = _small(seconds)
    return f"{digits(seconds * 1e3**power):>4} {(_SMALL[power] + 's'):<2}"


def latency(seconds: float | None) -> str:
    """`440 ms`, seven cells. 0 is no latency: it means that nothing was measured."""
    return duration(seconds if seconds is None or seconds > 0 else None)


def durations(first: float | None, second: float | None) -> tuple[str, str, str]:
    """Two durations in the unit of the larger, and that unit: `440`, `530`, `ms`."""
    sizes = [abs(value) for value in (first, second) if value is not None]
    power = _small(max(sizes, default=0.0))
    texts = [
        digits(value * 1e3**power).rjust(4) if value is not None else NA.rjust(4)
        for value in (first, second)
    ]
    return texts[0], texts[1], _SMALL[power] + "s"


def p50_p99(p50: float | None, p99: float | None) -> tuple[str, str]:
    """A median and a tail. If both have the same unit, it is shown once: `440`, `530 ms`; otherwise
    `20.0 ms`, `1.24 s`. No digit is lost."""
    first, second = duration(p50).strip(), duration(p99).strip()
    same = first.rpartition(" ")[2] == second.rpartition(" ")[2]
    return (first.rpartition(" ")[0] if same and " " in first else first), second


def rates(first: float | None, second: float | None, unit: str) -> tuple[str, str, str]:
    """Two rates in the prefix of the larger: `12.1`, `0.30`, `GB/s`."""
    sizes = [abs(value) for value in (first, second) if value is not None]
    power = _scale(max(sizes, default=0.0), 1e3, len(_LARGE))
    texts = [
        digits(value / 1e3**power).rjust(4) if value is not None else NA.rjust(4)
        for value in (first, second)
    ]
    return texts[0], texts[1], _LARGE[power] + unit


def _small(seconds: float) -> int:
    power, size = 0, abs(seconds)
    while 0 < size < 0.9995 and power < len(_SMALL) - 1:
        size *= 1e3
        power += 1
    return power


def rate(value: float | None, width: int = 9) -> str:
    """`18 240`: a throughput; from 1 000 on a whole number, below three significant digits."""
    if value is None or not math.isfinite(value):
        return NA.rjust(width)
    return (plain(value) if abs(value) < 9_999_999.5 else si(value, "").strip()).rjust(width)


def axis(value: float, step: float, top: float) -> str:
    """A figure of an axis with even steps up to `top`: `0`, `50`, `100`; `0.5`, `1.0`; `1.0M`. At
    most seven cells, and all figures of an axis have the same prefix and the same digits after the
    point."""
    prefix, size = next(
        ((prefix, size) for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)) if top >= size),
        ("", 1.0),
    )
    places = max(0, -math.floor(math.log10(step / size) + 1e-9))
    return (f"{value / size:.{places}f}" if places else grouped(value / size)) + prefix * bool(
        value
    )


def spread(mean: float | None, std: float | None, width: int = 16) -> str:
    """`18 240 ± 210`."""
    if mean is None:
        return NA.rjust(width)
    # `.2g` would write 143 as 1.4e+02
    whole = std is not None and (abs(mean) >= 999.5 or std >= 99.5)
    error = "" if std is None else f" ± {grouped(std) if whole else f'{std:.2g}'}"
    return (rate(mean, 0) + error).rjust(width)


def clock(seconds: float) -> str:
    """`01:42`, or `1:02:03`."""
    whole = max(0, int(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes:02}:{whole % 60:02}"


def age(seconds: float) -> str:
    """`42s`, `12m03s`, `2h01m`, `3d04h`: at most six cells for three years."""
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days}d{hours % 24:02}h" if days < 100 else f"{days}d"
    return (
        f"{hours}h{minutes % 60:02}m"
        if hours
        else f"{minutes}m{whole % 60:02}s"
        if minutes
        else f"{whole}s"
    )


def about(seconds: float) -> str:
    """`about 45 s`, `about 2 min 10 s`: rounded to 5 s above 20 s."""
    whole = round(seconds) if seconds < 20 else 5 * round(seconds / 5)
    minutes, rest = divmod(whole, 60)
    return "about " + (
        f"{minutes} min {rest} s"
        if minutes and rest
        else f"{minutes} min"
        if minutes
        else f"{rest} s"
    )


def speedup(ratio: float | None) -> str:
    """`1.53x`, five cells."""
    return f"{digits(ratio):>4}x" if ratio is not None else NA.rjust(5)


def interval(low: float, high: float) -> str:
    """`1.45-1.69x`: a predicted speedup. Both ends have the digits of the larger."""
    places = _places(low, high)
    return f"{low:.{places}f}-{high:.{places}f}x"


def bounds(low: float, high: float) -> str:
    """`[1.45, 1.61]`: the interval of a measured speedup. Both ends have the digits of the
    larger."""
    places = _places(low, high)
    return f"[{low:.{places}f}, {high:.{places}f}]"


def measured(estimate: float, low: float, high: float) -> str:
    """`1.53x [1.45, 1.61]`: a measured speedup with its interval."""
    return f"{speedup(estimate).strip()} {bounds(low, high)}"


def change(ratio: float) -> str:
    """`+0.4 %`: a relative difference; `120x` from a factor of eleven on."""
    return changes(ratio)[0]


def changes(*ratios: float) -> list[str]:
    """Relative differences that belong together, all in the unit of the largest: `+0.4 %`,
    `-1.2 %`; or `4.39x`, `13.2x`; `>999x`."""
    if max(map(abs, ratios)) < _FACTORS_FROM:
        return [f"{ratio * 100:+.1f} %" for ratio in ratios]
    return [f"{digits(ratio + 1)}x" if ratio + 1 < 999.5 else ">999x" for ratio in ratios]


def quantity(value: float | None, unit: str) -> str:
    """Any declared unit, for tables: `41.2 %`, `182 ms`, `12.1 GB/s`, `612 W`, `61.0 GiB`."""
    if value is None or not math.isfinite(value):
        return NA
    if unit == "ratio":
        return f"{plain(value * 100)} %"
    if unit == "x":
        return speedup(value).strip()
    if unit == "0/1":
        return "yes" if value else "no"
    if unit in ("", "lanes", "links") and value == int(value):
        return f"{grouped(value)} {unit}".strip()
    if unit in ("bytes", "B"):
        return size_bytes(value).strip()
    if unit == "s":
        return duration(value).strip()
    if unit in _PREFIXED:
        return si(value, "B/s" if unit == "bytes/s" else unit).strip()
    return f"{rate(value, 0)} {unit}".strip()
