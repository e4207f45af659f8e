"""Rows and figures as text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from benchmarks.diagbench.rows import Realised, Row, best
from benchmarks.diagbench.score import is_right


def one_line(row: Row) -> str:
    """One run in one line."""
    right = is_right(row)
    found = (
        f"{row.found_s - row.steady_known_s:4.1f} s"
        if row.found_s is not None and row.steady_known_s is not None
        else "     -"
    )
    words = row.error or ",".join(row.fired) or "nothing"
    if row.notes:
        words += f" (notes: {','.join(row.notes)})"
    gain = f"  {gained(row.top)}" if row.top else ""
    oracle = (
        f"  oracle: {gained(found_best) if (found_best := best(row)) else 'nothing'}"
        if row.oracle
        else ""
    )
    mark = "ok   " if right and not row.error else "WRONG"
    return (
        f"{mark} {row.case:<4} {row.name:<30} seed {row.seed} {found}  {row.elapsed_s:5.1f} s"
        f"  {words}{gain}{oracle}"
    )


def gained(one: Realised) -> str:
    """The predicted and the measured gain."""
    what = ",".join(f"{name}={value}" for name, value in one.changes.items())
    promised = (
        f" promised {one.predicted.low:.2f}-{one.predicted.high:.2f}x" if one.predicted else ""
    )
    got = (
        f" got {one.speedup.estimate:.2f} [{one.speedup.low:.2f} {one.speedup.high:.2f}]"
        if one.speedup
        else f" {one.error}"
    )
    return f"[{what}{promised}{got}]"


def page(rows: Sequence[Row], figures: dict[str, Any]) -> str:
    """A table of the cases, and the figures below it."""
    by_case: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_case[f"{row.case:<4} {row.name}"].append(row)
    lines = [f"{'case':<36} {'right':>6}  said instead"]
    for case, runs in by_case.items():
        right = sum(map(is_right, runs))
        others = [
            ",".join(row.fired[:2]) or row.error or "nothing" for row in runs if not is_right(row)
        ]
        lines.append(f"{case:<36} {right:>3}/{len(runs):<3} {' | '.join(others)}")
    lines += ["", *(f"{name:<22} {value}" for name, value in figures.items())]
    return "\n".join(lines)
