"""The targets for gpuconsole's cost."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from benchmarks.console_cost.measure import Row
from benchmarks.console_cost.peers import OWN

Results = Mapping[tuple[str, int], Sequence[Row]]
REFERENCE = "nvitop"
RSS_MB = 60


def median(results: Results, name: str, gpus: int, column: str) -> float | None:
    values = [row[column] for row in results.get((name, gpus), ()) if column in row]
    return statistics.median(values) if values else None


def judge(results: Results) -> list[str]:
    """One line per target: met, missed or not measured, with the figures."""

    def against(what: str, column: str, most: float, unit: str) -> str:
        return _line(
            what, median(results, OWN, 8, column), median(results, REFERENCE, 8, column), most, unit
        )

    return [
        against("8 GPUs: CPU at most nvitop's", "cpu_percent", 1.0, "%"),
        against("8 GPUs: bytes/s at most 2 x nvitop's", "bytes_per_s", 2.0, "B/s"),
        against("8 GPUs: first frame within 1.5 x nvitop's", "first_frame_s", 1.5, "s"),
        _line(
            f"8 GPUs: RSS of the console below {RSS_MB} MB",
            median(results, OWN, 8, "console_rss_mb"),
            RSS_MB,
            1.0,
            "MB",
        ),
        _line(
            f"8 GPUs: RSS of console and sampler below {RSS_MB} MB",
            median(results, OWN, 8, "tree_rss_mb"),
            RSS_MB,
            1.0,
            "MB",
        ),
        *(
            _line(
                f"64 GPUs: {what} at most 3 x that at 8",
                median(results, OWN, 64, column),
                median(results, OWN, 8, column),
                3.0,
                unit,
            )
            for what, column, unit in (
                ("CPU", "cpu_percent", "%"),
                ("bytes/s", "bytes_per_s", "B/s"),
            )
        ),
    ]


def _line(what: str, own: float | None, other: float | None, most: float, unit: str) -> str:
    if own is None or other is None:
        return f"{'not measured':<13} {what}"
    show: Callable[[float], str] = (
        (lambda v: f"{v:.2f}") if unit == "s" else (lambda v: f"{v:.1f}" if v < 100 else f"{v:.0f}")
    )
    limit = most * other
    return (
        f"{'met' if own <= limit else 'MISSED':<13} {what}: {show(own)} {unit}, limit {show(limit)}"
        f" {unit}"
    )
