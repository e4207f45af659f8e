"""The zones of the main screen: no large blank area, no title cut, and the answer of each state."""

from __future__ import annotations

import asyncio
import re
from typing import Literal

import msgspec
import pytest

from gpuconsole.diagnosis.engine import all_rules
from gpuconsole.model.finding import Finding, Interval, Suggestion
from gpuconsole.model.knobs.catalogue import CATALOGUE, Value, describe_changes, in_words, show
from gpuconsole.model.metrics import series_key
from gpuconsole.report.machine.tiles import paint_devices, tiles
from gpuconsole.report.run.diagnosis import paint_details, paint_diagnosis
from gpuconsole.report.screen.answer import paint_answer
from gpuconsole.report.screen.chart import paint_throughput
from gpuconsole.session import facts
from gpuconsole.session.api import View
from gpuconsole.tui import keys
from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.screens.main import MainScreen
from gpuconsole.tui.screens.pages import DetailsScreen
from gpuconsole.tui.widgets.header import paint_header
from gpuconsole.tui.widgets.layout import plan
from gpuconsole.tui.widgets.live import CausesZone
from tests.tui.fake_session import cpu_view, gpu_view
from tests.tui.golden.pictures import SIZES
from tests.tui.golden.situations import SITUATIONS, FoldedSession
from tests.tui.test_paint import text
from tests.waiting import until

RUNNING = [name for name in SITUATIONS if name not in ("failed", "starting")]
MIN_ROWS = 3
"""A blank area has at least three rows: shorter gaps separate lines of text."""


def largest_blank(rows: list[str]) -> int:
    """The cells of the largest blank rectangle with at least MIN_ROWS rows."""
    best = 0
    heights = [0] * len(rows[0])
    for row in rows:
        heights = [
            height + 1 if char == " " else 0 for height, char in zip(heights, row, strict=True)
        ]
        for least in range(MIN_ROWS, len(rows) + 1):
            run = 0
            for height in heights:
                run = run + 1 if height >= least else 0
                best = max(best, run * least)
    return best


def zones_of(name: str, size: tuple[int, int]) -> dict[str, list[str]]:
    """The text of each zone in sight."""
    found: dict[str, list[str]] = {}

    async def main() -> None:
        app = ConsoleApp(FoldedSession(SITUATIONS[name]()), refresh_hz=20.0)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            screen = app.main_screen
            await until(lambda: all(zone.rows for zone in screen.zones if zone.display), 20.0)
            assert isinstance(app.screen, MainScreen)
            found.update(
                {
                    str(zone.id): text(zone.rows).splitlines()
                    for zone in screen.zones
                    if zone.display
                }
            )

    asyncio.run(main())
    return found


def test_the_largest_blank_area_is_found() -> None:
    assert largest_blank(["ab  ", "a   ", "b   ", "    "]) == 9
    assert largest_blank(["    ", "    ", "abcd"]) == 0


@pytest.mark.parametrize("name", RUNNING)
def test_no_zone_is_more_than_a_third_blank_on_a_large_terminal(name: str) -> None:
    for zone, rows in zones_of(name, SIZES["200x50"]).items():
        inner = [row[1:-1] for row in rows[1:-1]] if rows[0].startswith("╭") else rows
        blank, whole = largest_blank(inner), len(inner[0]) * len(inner)
        assert blank <= whole / 3, (zone, blank / whole)


# --- no title is cut ------------------------------------------------------------------------------

EIGHTY, USUAL = 80, 120
RULES = all_rules()


def every_finding() -> list[Finding]:
    """Each rule with each of its titles and a suggestion for each of its knobs, as large and as
    certain as it can be."""
    found = []
    for rule in RULES:
        suggestions = [
            Suggestion({name: _value(name)}, Interval(1.45, 11.69), "why", "code")
            for name in rule.knobs
        ] or []
        full = Finding(
            rule.id,
            "fires",
            rule.title,
            0.99,
            "medium",
            "summary",
            suggestions=tuple(suggestions),
            resource=rule.resource,
        )
        found += [full, msgspec.structs.replace(full, suggestions=())]
    return found


def _value(name: str) -> Value:
    """The longest of the values that the knob could have."""
    return max(CATALOGUE[name].examples, key=lambda value: len(show(value)))


def joined(painted: str) -> str:
    """The text of a panel without its edges: a title may take two rows. What is at stake stands
    beside the first row."""
    rows = [re.sub(r" {3,}.*", "", row.strip("│╭╮╰╯ ")) for row in painted.splitlines()]
    return " ".join(" ".join(rows).split())


def with_finding(finding: Finding, serves: bool) -> View:
    """A run in which one rule fires; its knobs have long old values."""
    base = gpu_view(trials=())
    knobs = {
        name: _value(name) for suggestion in finding.suggestions for name in suggestion.changes
    }
    workload = "inference.serving" if serves else "training.gpt"
    run = msgspec.structs.replace(
        base.runs[-1],
        workload=workload,
        findings=[finding],
        knobs={**base.runs[-1].knobs, **knobs},
        changes={},
    )
    return msgspec.structs.replace(base, runs=(run,))


@pytest.mark.parametrize("width", [EIGHTY, USUAL])
def test_no_title_of_a_rule_is_cut(width: int) -> None:
    for finding in every_finding():
        for serves in (False, True):
            shown = with_finding(finding, serves)
            selected = next(iter(facts.suggestions(shown)), "")
            head, more = text(
                paint_answer(shown, selected, keys.for_answer(shown), width, 2)
            ).splitlines()
            assert finding.title in head and "…" not in head, head
            assert "%" in head and "…" not in more, (head, more)
            if finding.suggestions and width == USUAL:
                assert "Enter try" in head, head
                assert describe_changes(finding.suggestions[0].changes) in more.replace(
                    " -> ", " "
                ), more
            side = plan(width, 40).side or width
            causes = text(paint_diagnosis(shown, selected, side, 16, width >= 100))
            assert finding.title in joined(causes), causes


@pytest.mark.parametrize("state", ["clear", "cant_tell"])
def test_no_title_of_a_rule_in_order_is_cut(state: Literal["clear", "cant_tell"]) -> None:
    findings = [
        Finding(
            rule.id,
            state,
            rule.clear_title if state == "clear" else rule.title,
            summary="why " * 30,
        )
        for rule in RULES
    ]
    base = gpu_view(trials=())
    shown = msgspec.structs.replace(
        base, runs=(msgspec.structs.replace(base.runs[-1], findings=findings, changes={}),)
    )
    side = plan(USUAL, 40).side
    painted = text(paint_diagnosis(shown, "", side, 2 * len(findings), True))
    if state == "clear":  # one line, which the details open
        row = painted.splitlines()[1]
        assert f"✓ {len(findings)} checks passed" in row and "d lists them" in row
        assert findings[0].title not in painted
        painted = " ".join(text(paint_details(shown, EIGHTY)).split())
    for finding in findings:
        assert finding.title in (painted if state == "clear" else joined(painted)), finding.title


def test_a_click_on_the_checks_that_passed_opens_the_details() -> None:
    async def main() -> None:
        app = ConsoleApp(FoldedSession(SITUATIONS["healthy"]()), refresh_hz=20.0)
        async with app.run_test(size=SIZES["120x40"]) as pilot:
            await until(
                lambda: "checks passed" in text(app.main_screen.query_one(CausesZone).rows), 20.0
            )
            await pilot.click(CausesZone, offset=(5, 1))
            await until(lambda: isinstance(app.screen, DetailsScreen), 20.0)

    asyncio.run(main())


@pytest.mark.parametrize("height", [9, 12])
def test_the_list_of_causes_begins_with_the_first_where_headlines_make_room(height: int) -> None:
    """Two notes without a suggestion stand above the finding whose suggestion is selected."""
    notes = [
        Finding(f"input.{n}", "fires", f"note {n}", note=True, summary="many words " * 20)
        for n in (1, 2)
    ]
    last = Finding(
        "gpu.x",
        "fires",
        "the third",
        0.2,
        "high",
        "words",
        suggestions=(Suggestion({"num_workers": 4}, Interval(1.2, 1.4), "", ""),),
    )
    base = gpu_view(trials=())
    shown = msgspec.structs.replace(
        base, runs=(msgspec.structs.replace(base.runs[-1], findings=[*notes, last], changes={}),)
    )
    painted = text(
        paint_diagnosis(shown, next(iter(facts.suggestions(shown))), 58, height, True)
    ).splitlines()
    assert (
        painted[1].startswith("│ 1 note 1")
        and any("3 the third" in row for row in painted)
        and any("> " in row for row in painted)
    )


@pytest.mark.parametrize("value", [0.0, 3.456, 987.6, 18_240.0, 9_876_543.0, 98_765_432.0, 9.9e11])
@pytest.mark.parametrize("metric", ["workload.tokens_per_s", "workload.samples_per_s"])
def test_no_title_of_a_zone_is_cut_for_any_size_and_unit(metric: str, value: float) -> None:
    """At 120x40: the title row, the titles of the boxes with their figures, the names and figures
    of the devices."""
    base = gpu_view()
    latest = {key: value for key in base.latest if not key.startswith("workload.")} | {
        series_key(metric, "gpu:0"): value
    }
    for shown in (
        msgspec.structs.replace(base, latest=latest),
        cpu_view(latest={**cpu_view().latest, series_key(metric, "cpu"): value}),
    ):
        layout = plan(USUAL, 40)
        chart = text(
            paint_throughput(shown, lambda key, columns, seconds: [value] * columns, USUAL, 12)
        ).splitlines()
        assert chart[0].startswith("╭─ throughput, ") and "…" not in chart[0]
        devices = text(
            paint_devices(shown, lambda *_: [], USUAL - layout.side, 20, all_eight=True, boxed=True)
        )
        assert "…" not in "".join(row for row in devices.splitlines() if "n/a" not in row), devices
        for tile in tiles(shown, True):
            assert tile.title in devices
        title = text(paint_header(shown, USUAL, 1))
        assert "…" not in title and shown.runs[-1].scenario in title


def test_every_knob_that_a_rule_changes_has_words() -> None:
    for rule in RULES:
        for name in rule.knobs:
            for value in CATALOGUE[name].examples:
                assert not in_words({name: value}).startswith("set "), name
    assert (
        in_words({"num_workers": 4, "pin_memory": True})
        == "use 4 DataLoader workers and load batches into page-locked memory"
    )
    assert in_words({"d_model": 64}) == "set d_model to 64"
