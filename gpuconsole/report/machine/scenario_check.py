"""What each scenario should show on a card."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from gpuconsole.expected.card import Card
from gpuconsole.expected.check import Check
from gpuconsole.model import units
from gpuconsole.model.text import percent
from gpuconsole.report.cells import Segment
from gpuconsole.report.parts import Column, Report, Table, text

WHY = 38
"""Cells of the last column: with the others, a row has less than 120 cells."""
TEACHES = {True: ("yes", "good"), False: ("no", "alert"), None: ("not known", "dim")}
COLUMNS = (Column("scenario"), Column("memory", ">"), Column("step", ">"), Column("limit"), Column("teaches"), Column("because"))


def check_report(card: Card, checks: Sequence[Check]) -> Report:
    """The table of `gpuconsole scenarios --check`, with the figures of the card above it and a summary below."""
    rows = [row for check in checks for row in _rows(check)]
    return [
        text(f"{card.name}: {_figures(card)}", "title"),
        text("By arithmetic, not measured. memory: the peak on one GPU, of what the run may use.", "dim"),
        text("step: of a server one iteration. limit: the largest part of a step.", "dim"),
        Table(COLUMNS, rows),
        text(_summary(checks)),
    ]


def _figures(card: Card) -> str:
    peaks = card.peaks
    parts = [
        f"{card.memory_bytes / 1e9:.0f} GB",
        f"memory {units.si(peaks.memory_bytes_per_s, 'B/s').strip()}" if peaks.memory_bytes_per_s else "memory bandwidth not known",
        f"bf16 {units.si(peaks.bf16_flops_per_s, 'FLOP/s').strip()}" if peaks.bf16_flops_per_s else "no bf16 peak known",
        f"NVLink {units.si(peaks.nvlink_bytes_per_s, 'B/s').strip()}" if peaks.nvlink_bytes_per_s else "no NVLink",
        f"at most {peaks.tdp_w:.0f} W" if peaks.tdp_w else "",
    ]
    return ", ".join(part for part in parts if part)


def _rows(check: Check) -> list[list[Segment]]:
    """One row, and further rows where the reason does not fit into its column."""
    memory = units.NA if check.memory_bytes is None else f"{check.memory_bytes / 1e9:.1f}/{check.usable_bytes / 1e9:.1f} GB"
    limit = "" if check.limit_ratio is None else f"{check.limit} {percent(check.limit_ratio)}"
    first, *more = textwrap.wrap(check.why, WHY) or [""]
    head: list[Segment] = [
        (check.scenario, ""),
        (memory, "" if check.fits else "alert"),
        (units.latency(check.step_s).strip(), ""),
        (limit, ""),
        TEACHES[check.teaches],
        (first, ""),
    ]
    return [head, *([*[("", "")] * (len(COLUMNS) - 1), (line, "")] for line in more)]


def _summary(checks: Sequence[Check]) -> str:
    taught = sum(check.teaches is True for check in checks)
    unknown = sum(check.teaches is None for check in checks)
    not_fitting = [check.scenario for check in checks if not check.fits]
    summary = f"{taught} of {len(checks)} scenarios teach what they say here"
    summary += f", {unknown} cannot be predicted" if unknown else ""
    return summary + (f". Do not run: {', '.join(not_fitting)}." if not_fitting else ". All of them fit.")
