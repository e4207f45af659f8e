"""From rows to figures: accuracy with Wilson's interval, false positives, and the accuracy of
predictions."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from benchmarks.diagbench.rows import (
    UNDOES,
    WORTH,
    Realised,
    Row,
    best,
    covered,
    meets,
    relative_error,
    untold,
)

Z = 1.96
NEARLY = 0.9
"""Of the best knob's gain."""


def wilson(hits: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a share (E. B. Wilson, Probable inference, 1927)."""
    if n == 0:
        return 0.0, 1.0
    share, z2 = hits / n, Z * Z
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def report(rows: Sequence[Row]) -> dict[str, Any]:
    """The figures of `rows`. A faulty run without a result counts as missed.

    `offers_right`: runs without a fault in which a knob gains. They count neither as faulty nor as
    healthy.
    """
    disputed = disputed_cases(rows)
    kept = [row for row in rows if row.case not in disputed]
    offered = [row for row in kept if row.offer]
    return {
        **_accuracy([row for row in kept if row.truth and not row.offer]),
        "top1_disputed_too": _share(
            sum(is_hit(row) for row in rows if is_faulty(row)), sum(map(is_faulty, rows))
        ),
        "offers_right": _share(sum(map(is_hit, offered)), len(offered)) if offered else None,
        "offer_runs": len(offered),
        **_accusations([row for row in kept if not row.truth]),
        **_gains([row for row in kept if row.top and not row.offer]),
        **_against_oracle(
            [
                row
                for row in kept
                if row.fix and row.oracle and not (row.top and UNDOES & row.top.changes.keys())
            ]
        ),
        **_times([row for row in kept if is_faulty(row)]),
        "cases": len({row.case for row in kept}),
        "seeds": min((len(seeds) for seeds in _seeds(kept).values()), default=0),
        **_nulls([one for row in rows for one in row.nulls if not one.error]),
        "not_blind": sorted({row.case for row in rows if not row.blind}),
        "disputed": disputed,
        "failing": sorted({row.case for row in kept if not is_right(row)}),
        "commits": sorted({row.commit for row in rows}),
    }


def _accuracy(faulty: Sequence[Row]) -> dict[str, Any]:
    """Accuracy by runs, and by cases: a case is right if all its seeds are right, because two runs
    of one case are not independent.

    `extra`: the share of runs in which another rule fires too, below or above the right one.
    """
    hits, right_cases = sum(map(is_hit, faulty)), _right_cases(faulty)
    family = sum(
        bool(row.fired)
        and row.fired[0].partition(".")[0] in {one.partition(".")[0] for one in row.truth}
        for row in faulty
    )
    low, high = wilson(hits, len(faulty))
    return {
        "top1": _share(hits, len(faulty)),
        "top1_low": round(low, 4),
        "top1_high": round(high, 4),
        "top1_cases": _share(*right_cases),
        "top1_cases_low": round(wilson(*right_cases)[0], 4),
        "family": _share(family, len(faulty)),
        "abstained": _share(sum(not row.fired for row in faulty), len(faulty)),
        "extra": _share(
            sum(any(rule not in row.truth for rule in row.fired) for row in faulty), len(faulty)
        ),
        "faulty_runs": len(faulty),
    }


def _accusations(healthy: Sequence[Row]) -> dict[str, Any]:
    """`ever_accused`: includes accusations that were withdrawn later. `offered`: runs without an
    accusation, but with a note that promises 5 %.

    `healthy_undecided`: runs in which a probe's answer was missing, so that clear may mean unknown.
    """
    wrong, right_cases = sum(not is_clean(row) for row in healthy), _right_cases(healthy)
    return {
        "false_positive": _share(wrong, len(healthy)),
        "false_positive_high": round(wilson(wrong, len(healthy))[1], 4),
        "false_positive_cases_high": round(
            wilson(right_cases[1] - right_cases[0], right_cases[1])[1], 4
        ),
        "ever_accused": _share(sum(bool(row.accused) for row in healthy), len(healthy)),
        "offered": _share(sum(bool(row.offers) for row in healthy), len(healthy)),
        "offered_by_rule": _by_rule(healthy),
        "healthy_undecided": _share(sum(bool(row.undecided) for row in healthy), len(healthy)),
        "healthy_runs": len(healthy),
    }


def _by_rule(healthy: Sequence[Row]) -> dict[str, float | None]:
    """Share of the runs in which each rule offers something."""
    rules = sorted({rule for row in healthy for rule in row.offers})
    return {
        rule: _share(sum(rule in row.offers for row in healthy), len(healthy)) for rule in rules
    }


def _gains(tried: Sequence[Row]) -> dict[str, Any]:
    """Gains of first suggestions that change a knob which a user has. `undoing`: suggestions that
    turn off the injected fault; left out, and counted.

    `untold`: trials without a usable result are not compared with a prediction;
    `gain_covered_untold_too` includes them.
    """
    tops = [row.top for row in tried if row.top]
    undoing = [one for one in tops if not UNDOES.isdisjoint(one.changes)]
    others = [one for one in tops if UNDOES.isdisjoint(one.changes)]
    measured = [one for one in others if one.predicted and one.speedup and not one.error]
    gains = [one for one in measured if not untold(one)]
    errors = [error for one in gains if (error := relative_error(one)) is not None]
    widths = [one.predicted.high / one.predicted.low for one in gains if one.predicted]
    inside = sum(map(covered, gains))
    return {
        "gain_median_error": round(math.exp(statistics.median(errors)) - 1, 4) if errors else None,
        "gain_covered": _share(inside, len(gains)),
        "gain_covered_low": round(wilson(inside, len(gains))[0], 4),
        "gain_median_width": round(statistics.median(widths), 2) if widths else None,
        "gain_meets": _share(sum(map(meets, gains)), len(gains)),
        "gains": len(gains),
        "untold": len(measured) - len(gains),
        "gain_covered_untold_too": _share(sum(map(covered, measured)), len(measured)),
        "undoing": len(undoing),
        "top_won": sum(one.verdict == "win" for one in others),
        "top_tried": len(others),
    }


def _times(faulty: Sequence[Row]) -> dict[str, Any]:
    """Times in seconds; a run without a lasting right finding counts as infinite.

    `time_to_finding_s`: from the moment when the run is known to be steady to the finding that
    lasted. `_p90_s`: its ninth decile. `time_from_first_steady_step_s`: the same from the first
    steady step, which is known some seconds later. `time_stood_s`: from there to the moment that
    the benchmark waits for, when no rule is in doubt.
    """
    found = [_since(row.steady_known_s, row.found_s) if is_hit(row) else math.inf for row in faulty]
    first = [_since(row.steady_from_s, row.found_s) if is_hit(row) else math.inf for row in faulty]
    stood = [_since(row.steady_from_s, row.stood_s) for row in faulty]
    return {
        "time_to_finding_s": _quantile(found, 0.5),
        "time_to_finding_p90_s": _quantile(found, 0.9),
        "time_from_first_steady_step_s": _quantile(first, 0.5),
        "time_stood_s": _quantile(stood, 0.5),
    }


def _nulls(nulls: Sequence[Realised]) -> dict[str, Any]:
    """`null_by_knob`: false wins and trials. The knob decides how it was tried (see
    `run.NULLS`)."""
    wins = sum(one.verdict == "win" for one in nulls)
    by_knob: dict[str, tuple[int, int]] = {}
    for one in nulls:
        name = ",".join(one.changes)
        won, tried = by_knob.get(name, (0, 0))
        by_knob[name] = won + (one.verdict == "win"), tried + 1
    return {
        "null_trials": len(nulls),
        "null_false_wins": wins,
        "null_false_wins_high": round(wilson(wins, len(nulls))[1], 4),
        "null_by_knob": {name: [won, tried] for name, (won, tried) in sorted(by_knob.items())},
        "null_no_gain": _share(sum(one.verdict == "no_gain" for one in nulls), len(nulls)),
    }


def _since(begun: float | None, ended: float | None) -> float:
    return math.inf if begun is None or ended is None else ended - begun


def _quantile(values: Sequence[float], share: float) -> float | None:
    """None if there is no value, or if it is infinite."""
    if not values:
        return None
    found = sorted(values)[min(len(values) - 1, int(share * len(values)))]
    return round(found, 2) if math.isfinite(found) else None


def _right_cases(rows: Sequence[Row]) -> tuple[int, int]:
    """The number of cases that are right with every seed, and the number of cases."""
    cases = {row.case for row in rows}
    return len(cases - {row.case for row in rows if not is_right(row)}), len(cases)


def is_faulty(row: Row) -> bool:
    """Whether the run has a fault, which is more than a knob that gains."""
    return bool(row.truth) and not row.offer


def is_hit(row: Row) -> bool:
    return bool(row.fired) and row.fired[0] in row.truth


def is_clean(row: Row) -> bool:
    """A healthy run that was evaluated and has no finding. A run that failed or never became steady
    does not count."""
    return not row.fired and not row.error and row.steady_from_s is not None


def is_right(row: Row) -> bool:
    return is_hit(row) if row.truth else is_clean(row)


def _against_oracle(swept: Sequence[Row]) -> dict[str, Any]:
    """Of the faulty runs with an oracle and a fix that a user has.

    `top_realises`: the share in which the first suggestion has 90 % of the best knob's gain, among
    the `top_realises_runs` runs in which some knob certainly gains. `rivals_excluded`: the share of
    all of them in which the interval of every other knob ends below the first suggestion's
    estimate.
    """
    looked = [(row, found) for row in swept if (found := best(row))]
    return {
        "oracle_runs": len(swept),
        "top_realises": _share(
            sum(_gain(row.top) >= NEARLY * _gain(found) for row, found in looked), len(looked)
        )
        if looked
        else None,
        "top_realises_runs": len(looked),
        "rivals_excluded": _share(sum(map(_no_rival, swept)), len(swept)) if swept else None,
    }


def _gain(one: Realised | None) -> float:
    return one.speedup.estimate - 1 if one and one.speedup else 0.0


def _no_rival(row: Row) -> bool:
    if row.top is None or row.top.speedup is None:
        return False
    others = [one for one in row.oracle if one.changes.keys() != row.top.changes.keys()]
    return all(
        one.speedup is not None and one.speedup.high <= row.top.speedup.estimate for one in others
    )


def disputed_cases(rows: Sequence[Row]) -> dict[str, str]:
    """Cases whose label disagrees with the oracle in most of its sweeps, each with the oracle's
    result."""
    words: dict[str, list[str]] = defaultdict(list)
    sweeps: dict[str, int] = defaultdict(int)
    for row in rows:
        if not row.oracle:
            continue
        sweeps[row.case] += 1
        found = best(row)
        if not row.truth and found is not None:
            words[row.case].append(f"called healthy, but {_words(found)}")
        elif row.fix and found is not None and not set(found.changes) & set(row.fix):
            words[row.case].append(f"meant for {', '.join(row.fix)}, but {_words(found)}")
        elif (
            row.fix
            and found is None
            and all(one.speedup and one.speedup.high < WORTH for one in row.oracle)
        ):
            # not: none was seen to
            words[row.case].append(f"meant for {', '.join(row.fix)}, but no knob gains 5 %")
    return {case: said[0] for case, said in words.items() if 2 * len(said) > sweeps[case]}


def _words(one: Realised) -> str:
    assert one.speedup is not None
    return (
        f"{', '.join(f'{name}={value}' for name, value in one.changes.items())} gains"
        f" {one.speedup.estimate:.2f}x"
    )


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


def _seeds(rows: Sequence[Row]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        found[row.case].add(row.seed)
    return found
