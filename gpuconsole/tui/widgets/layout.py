"""How many rows and columns each zone of the main screen gets."""

from __future__ import annotations

from typing import NamedTuple

ANSWER = 2
MIN_BAND = 12
"""Two rows for the box of the devices, a row for each of its metrics, and a gap."""
MIN_CHART = 5
MIN_CAUSES = 2
LEGEND_IN_A_ROW = 160
"""From this width on, the legend of the step takes one row."""


class LayoutNeeds(NamedTuple):
    """What the zones could use: lines of the `header` below the title, rows of the strip of many
    GPUs (`fleet`), rows of the `causes` and of the table of what was `tried`. `idle`: nothing runs.
    `legend`: rows of the legend of a step or of a request, `below`: rows below it. `trial`: rows of
    the trial to show."""

    header: int = 0
    fleet: int = 0
    causes: int = 12
    tried: int = 2
    idle: bool = False
    legend: int = 2
    below: int = 0
    trial: int = 0


class LayoutPlan(NamedTuple):
    """Heights in rows, from the top of the screen to its bottom; 0: not shown.

    `side`: the width of the causes and of the tried changes where both stand right of the devices;
    0: both stand below the devices.
    """

    header: int
    answer: int
    steps: int
    fleet: int
    chart: int
    devices: int
    causes: int
    tried: int
    trial: int
    side: int
    all_eight: bool
    boxed: bool


def plan(width: int, height: int, needs: LayoutNeeds = LayoutNeeds()) -> LayoutPlan:  # noqa: B008
    """The layout for a terminal of `width` x `height`. The most important zones keep their room
    longest; the chart and the devices grow."""
    wide, tall = width >= 100, height >= 30
    header = 1 + (min(needs.header, 3) if tall else 0)
    answer = min(ANSWER, max(0, height - 2))
    steps = (
        0
        if needs.idle
        else (1 + needs.legend if tall and width < LEGEND_IN_A_ROW else 2)
        + (needs.below if height >= 20 else 0)
    )
    steps = min(steps, max(0, height - header - answer - 2))
    fleet = min(needs.fleet, 8 if tall else 4 if height >= 20 else 0)
    trial = min(needs.trial, 4 if tall else 3 if height >= 20 else 1 if height >= 12 else 0)
    left = max(0, height - header - answer - steps - fleet - trial - 1)
    if wide and left >= 20:
        return _wide(
            width,
            left,
            needs,
            LayoutPlan(header, answer, steps, fleet, 0, 0, 0, 0, trial, 0, True, True),
        )
    eight = wide and left >= 16
    devices = 8 if eight else 4 if left >= 8 else 0
    left -= devices
    tried = 0 if left < 8 else min(1 + needs.tried, max(3, left // 3))
    return LayoutPlan(
        header, answer, steps, fleet, 0, devices, left - tried, tried, trial, 0, eight, False
    )


def _wide(width: int, left: int, needs: LayoutNeeds, rest: LayoutPlan) -> LayoutPlan:
    """The chart above; below it the devices at the left, the causes and what was tried at the
    right."""
    tried = min(needs.tried + 2, left * 3 // 10)
    band = max(MIN_BAND, min(needs.causes + tried, left * 3 // 5))
    return rest._replace(
        chart=left - band, devices=band, causes=band - tried, tried=tried, side=width - width // 2
    )


def leave_room(plan: LayoutPlan, rows: int) -> LayoutPlan:
    """The same zones with `rows` less, for a message of some seconds. Where no zone can spare them,
    the lowest rows of the screen are covered."""
    if plan.chart - rows >= MIN_CHART:
        return plan._replace(chart=plan.chart - rows)
    return plan._replace(causes=plan.causes - rows) if plan.causes - rows >= MIN_CAUSES else plan
