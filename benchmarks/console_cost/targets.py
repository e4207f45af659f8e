"""The targets for gpuconsole's cost."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from benchmarks.console_cost.measure import Row
from benchmarks.console_cost.peers import OWN

Results = Mapping[tuple[str, int], Sequence[Row]]
REFERENCE = "nvitop"
RSS_MB, PSS_MB = 68, 55
FIRST_FIGURE_S = 0.25


def median(results: Results, name: str, gpus: int, column: str) -> float | None:
    values = [row[column] for row in results.get((name, gpus), ()) if column in row]
    return statistics.median(values) if values else None


def judge(results: Results) -> list[str]:
    """One line per target: met, missed or not measured, with the figures."""
    lines = []
    for gpus, most_cpu in ((1, 1.0), (8, 1.0), (64, 0.7)):

        def own(column: str, gpus: int = gpus) -> float | None:
            return median(results, OWN, gpus, column)

        def other(column: str, gpus: int = gpus) -> float | None:
            return median(results, REFERENCE, gpus, column)

        cpu, sent = "cpu_percent", "bytes_per_s"
        of = f"{gpus} GPUs" if gpus > 1 else "1 GPU"
        lines += [
            _line(
                f"{of}: CPU at most {most_cpu:g} x nvitop's", own(cpu), other(cpu), most_cpu, "%"
            ),
            _line(f"{of}: bytes/s at most nvitop's", own(sent), other(sent), 1.0, "B/s"),
            _line(f"{of}: first figure", own("first_figure_s"), FIRST_FIGURE_S, 1.0, "s"),
            _line(f"{of}: RSS of console and sampler", own("tree_rss_mb"), RSS_MB, 1.0, "MB"),
            _line(f"{of}: PSS of console and sampler", own("tree_pss_mb"), PSS_MB, 1.0, "MB"),
        ]
    return lines


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
