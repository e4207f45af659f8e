"""The two layouts of a report: rows of a width, and lines of text."""

from __future__ import annotations

import pytest

from gpuconsole.report.cells import row_width
from gpuconsole.report.page import labelled as page_labelled
from gpuconsole.report.parts import (
    BLANK,
    Column,
    Line,
    Report,
    Table,
    heading,
    labelled,
    lay_out,
    printed,
    text,
)
from gpuconsole.tui.screens.pages import READING, paint_help
from tests.tui.test_paint import HOSTILE
from tests.tui.test_paint import text as shown

TABLE = Table(
    (Column("model", least=8), Column("value", ">"), Column("source", least=6, drop=1)),
    [
        [
            ("Optimizer states of all parameters", ""),
            ("15.8 MiB", "accent"),
            ("counted by the allocator", "dim"),
        ],
        [("x", ""), ("9 B", ""), ("", "")],
    ],
)
REPORT: Report = [
    heading("A report"),
    text(
        "One sentence that is longer than a narrow screen, with a path /home/me/" + "x" * 60,
        indent=2,
    ),
    labelled("throughput", "18 240 ± 210 tokens/s", column=14),
    labelled("a label as long as its column", "the text of the label", column=20),
    Line([("1 Too few workers", "title")], right=[("41 % recoverable", "accent")]),
    BLANK,
    TABLE,
    labelled(HOSTILE, HOSTILE),
]


@pytest.mark.parametrize("width", range(24, 130, 5))
def test_rows_have_exactly_the_width(width: int) -> None:
    assert {row_width(row) for row in lay_out(REPORT, width)} == {width}


def test_both_layouts_hold_the_same_words() -> None:
    def words(page: str) -> list[str]:
        return page.split()

    assert words(shown(lay_out(REPORT, 200))) == words(printed(REPORT))
    narrow = "".join(shown(lay_out(REPORT[:6], 40)).split())
    assert narrow == "".join(printed(REPORT[:6]).split())


def test_a_table_drops_a_column_before_it_cuts_the_others() -> None:
    wide, narrow = shown(lay_out([TABLE], 120)), shown(lay_out([TABLE], 24))
    assert "counted by the allocator" in wide and "source" not in narrow
    assert "15.8 MiB" in narrow and "Optimizer sta…" in narrow
    rows = wide.splitlines()
    # figures end in the same column
    assert rows[1].index("15.8 MiB") + 8 == rows[2].index("9 B") + 3


def test_a_label_as_long_as_its_column_does_not_touch_the_text() -> None:
    rows = [
        row.rstrip()
        for row in shown(
            page_labelled("  where a request goes", "queue, prefill and decode", 80, 20)
        ).splitlines()
    ]
    assert rows == ["  where a request goes", " " * 20 + "queue, prefill and decode"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_help_separates_each_word_from_its_meaning(width: int) -> None:
    rows = shown(paint_help(width)).splitlines()
    for label, meaning in READING:
        at = [n for n, row in enumerate(rows) if row.startswith(f"  {label} ")]
        assert at and meaning.split()[0] in " ".join(rows[at[0] : at[0] + 2]), label
