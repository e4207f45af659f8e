"""The charts of the report: accuracy by family with Wilson's interval, and predicted against
measured gains."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from benchmarks.diagbench.rows import Realised, Row
from benchmarks.diagbench.score import is_right, wilson
from gpuconsole.report.charts import empty_figure

WIDTH, HEIGHT, SCALE = 100, 24, 40


def families(rows: Sequence[Row]) -> str:
    """One line per family: the share of runs that were right (0 to 1), with the interval."""
    found: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        family = (
            "offer" if row.offer else row.truth[0].partition(".")[0] if row.truth else "healthy"
        )
        found[family].append(is_right(row))
    lines = ["right by family, with Wilson's 95 % interval"]
    for family, right in sorted(found.items()):
        low, high = wilson(sum(right), len(right))
        cells = ["·"] * (SCALE + 1)
        for n in range(round(low * SCALE), round(high * SCALE) + 1):
            cells[n] = "─"
        cells[round(sum(right) / len(right) * SCALE)] = "●"
        lines.append(
            f"  {family:<9} {sum(right):>3}/{len(right):<3} {''.join(cells)} {low:.0%} to"
            f" {high:.0%}"
        )
    return "\n".join(lines)


def gains(rows: Sequence[Row]) -> str:
    """One point per first suggestion: middle of the predicted interval on the x axis, measured gain
    on the y axis. On the diagonal both are equal."""
    tops = [row.top for row in rows if row.top and row.top.predicted and row.top.speedup]
    if len(tops) < 2:
        return ""
    figure = empty_figure(WIDTH, HEIGHT)
    across, upwards = (
        [math.log2(_promised(one)) for one in tops],
        [math.log2(one.speedup.estimate) for one in tops if one.speedup],
    )
    low, high = -0.5, max(*across, *upwards) * 1.05
    upwards = [max(low, one) for one in upwards]  # what went far wrong lies on the edge
    figure.draw(figure.signal([low, high], [low, high]).lines())
    figure.draw(figure.signal(across, upwards))
    ticks = [n / 2 for n in range(math.ceil(2 * low), math.floor(2 * high) + 1)]
    for axis in ("x", "y"):
        figure.ruler(axis).lim(low, high)
        figure.ruler(axis).ticks(ticks, [f"{2**tick:.2f}x" for tick in ticks])
    drawn: str = figure.build().string(colorless=True)
    return (
        f"measured (upwards) against promised (across), {len(tops)} first"
        f" suggestions\n{drawn.rstrip()}"
    )


def _promised(one: Realised) -> float:
    assert one.predicted is not None
    return one.predicted.middle
