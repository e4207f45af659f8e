"""From rows to figures: accuracy with Wilson's interval, false positives, and how true the predictions were."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from benchmarks.diagbench.run import Realised, Row, relative_error

WORTH = 1.05
"""A knob that gains less is no cause."""
Z = 1.96


def wilson(hits: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a share (E. B. Wilson, Probable inference, 1927)."""
    if n == 0:
        return 0.0, 1.0
    share, z2 = hits / n, Z * Z
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def report(rows: Sequence[Row]) -> dict[str, Any]:
    """The figures of `rows`. A run that came to nothing counts as a miss."""
    disputed = disputed_cases(rows)
    kept = [row for row in rows if row.case not in disputed]
    faulty, healthy = [row for row in kept if row.truth], [row for row in kept if not row.truth]
    hits = sum(map(is_hit, faulty))
    family = sum(bool(row.fired) and row.fired[0].partition(".")[0] in {one.partition(".")[0] for one in row.truth} for row in faulty)
    wrong = sum(not is_clean(row) for row in healthy)
    found = [row for row in faulty if is_hit(row) and row.found_s is not None]
    times = [row.found_s - row.steady_known_s for row in found if row.found_s is not None and row.steady_known_s is not None]
    whole_times = [row.found_s - row.steady_from_s for row in found if row.found_s is not None and row.steady_from_s is not None]
    gains = [row.top for row in kept if row.top and row.top.predicted and row.top.speedup and not row.top.error]
    errors = [error for one in gains if (error := relative_error(one)) is not None]
    low, high = wilson(hits, len(faulty))
    return {
        "top1": _share(hits, len(faulty)),
        "top1_low": round(low, 4),
        "top1_high": round(high, 4),
        "family": _share(family, len(faulty)),
        "false_positive": _share(wrong, len(healthy)),
        "false_positive_high": round(wilson(wrong, len(healthy))[1], 4),
        "abstained": _share(sum(not row.fired for row in faulty), len(faulty)),
        "gain_median_error": round(math.exp(statistics.median(errors)) - 1, 4) if errors else None,
        "gain_covered": _share(sum(map(covered, gains)), len(gains)),
        "gain_meets": _share(sum(map(meets, gains)), len(gains)),
        "gains": len(gains),
        "top_realises": top_realises(kept),
        "time_to_finding_s": round(statistics.median(times), 2) if times else None,
        "time_from_first_steady_step_s": round(statistics.median(whole_times), 2) if whole_times else None,
        "faulty_runs": len(faulty),
        "healthy_runs": len(healthy),
        "cases": len({row.case for row in kept}),
        "seeds": min((len(seeds) for seeds in _seeds(kept).values()), default=0),
        "null_trials": sum(not one.error for row in rows for one in row.nulls),
        "null_false_wins": sum(one.verdict == "win" for row in rows for one in row.nulls),
        "not_blind": sorted({row.case for row in rows if not row.blind}),
        "disputed": disputed,
        "failing": sorted({row.case for row in kept if not is_right(row)}),
    }


def is_hit(row: Row) -> bool:
    return bool(row.fired) and row.fired[0] in row.truth


def is_clean(row: Row) -> bool:
    """A healthy run that was looked at, and nothing was said of it: one that failed, or never became steady, proves nothing."""
    return not row.fired and not row.error and row.steady_from_s is not None


def is_right(row: Row) -> bool:
    return is_hit(row) if row.truth else is_clean(row)


def covered(one: Realised) -> bool:
    """Whether what was measured lies in the predicted interval."""
    assert one.predicted is not None and one.speedup is not None
    return one.predicted.low <= one.speedup.estimate <= one.predicted.high


def meets(one: Realised) -> bool:
    """Whether the predicted interval and the measured one have anything in common: what was measured is not certain either."""
    assert one.predicted is not None and one.speedup is not None
    return one.predicted.low <= one.speedup.high and one.speedup.low <= one.predicted.high


def best(row: Row) -> Realised | None:
    """The knob that the oracle found to gain most: surely, and at least 5 %."""
    sure = [
        one
        for one in (*row.oracle, *([row.top] if row.top else []))
        if one.speedup and one.speedup.low > 1 and one.speedup.estimate >= WORTH
    ]
    return max(sure, key=lambda one: one.speedup.estimate if one.speedup else 0.0, default=None)


def top_realises(rows: Sequence[Row]) -> float | None:
    """Of the faulty runs with an oracle and a cure: the share in which the first suggestion has 90 % of the best knob's gain."""
    looked = [(row, found) for row in rows if row.truth and row.fix and row.oracle and (found := best(row))]
    if not looked:
        return None
    good = sum(
        row.top is not None
        and row.top.speedup is not None
        and found.speedup is not None
        and row.top.speedup.estimate - 1 >= 0.9 * (found.speedup.estimate - 1)
        for row, found in looked
    )
    return _share(good, len(looked))


def disputed_cases(rows: Sequence[Row]) -> dict[str, str]:
    """Cases whose label the oracle does not bear out, in most of its sweeps: each with what it found."""
    words: dict[str, list[str]] = defaultdict(list)
    sweeps: dict[str, int] = defaultdict(int)
    for row in rows:
        if not row.oracle:
            continue
        sweeps[row.case] += 1
        found = best(row)
        if not row.truth and found is not None:
            words[row.case].append(f"called healthy, but {_words(found)}")
        elif row.fix and (found is None or not set(found.changes) & set(row.fix)):
            words[row.case].append(f"meant for {', '.join(row.fix)}, but " + (_words(found) if found else "no knob gains 5 %"))
    return {case: said[0] for case, said in words.items() if 2 * len(said) > sweeps[case]}


def _words(one: Realised) -> str:
    assert one.speedup is not None
    return f"{', '.join(f'{name}={value}' for name, value in one.changes.items())} gains {one.speedup.estimate:.2f}x"


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


def _seeds(rows: Sequence[Row]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        found[row.case].add(row.seed)
    return found
