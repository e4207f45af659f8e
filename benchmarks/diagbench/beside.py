"""Our figures next to those of other tools, on the cases that these tools ran."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.diagbench.rows import Row
from benchmarks.diagbench.score import is_clean, is_faulty, is_hit
from benchmarks.machine import RESULTS

HEADINGS = (
    "tool",
    "cause right",
    "of all",
    "family right",
    "of all",
    "misled",
    "false alarms",
    "seconds",
)
WIDTHS = (22, 14, 8, 14, 8, 8, 14, 8)


def peers(half: str, folder: Path = RESULTS) -> list[dict[str, Any]]:
    """The newest kept result of each tool."""
    newest = {
        path.name.rsplit(f"-{half}-", 1)[0]: path
        for path in sorted(folder.glob(f"diagbench-peers-*-{half}-*.json"))
    }
    return [json.loads(path.read_text()) for path in newest.values()]


def beside(rows: Sequence[Row], found: Sequence[dict[str, Any]]) -> str:
    """A table with one line per tool; empty if no other tool was run. A tool is not scored on
    causes that it has no word for."""
    if not found:
        return ""
    theirs = [{(row["case"], row["seed"]) for row in result["rows"]} for result in found]
    runs = set.intersection(*theirs) & {(row.case, row.seed) for row in rows}
    if not runs:
        return "no case that all peers ran was run with the same seed here: no table"
    cases = {case for case, _ in runs}
    lines = [_line(HEADINGS), _line(_ours([row for row in rows if (row.case, row.seed) in runs]))]
    lines += [_line(_theirs(result["report"])) for result in found]
    where = f"beside the peers, on the {len(cases)} cases that run as a plain script in one process"
    note = (
        "seconds: from the command to start to the verdict; the tools are told how long to watch"
        " (12 s, 22 s for a leak), the console is not. The console's own loop tells logging,"
        " checkpoints and evaluation apart; the tools see a plain script, as they would a user's."
    )
    return "\n".join([where, *lines, note])


def _ours(rows: Sequence[Row]) -> tuple[str, ...]:
    faulty, healthy = (
        [row for row in rows if is_faulty(row)],
        [row for row in rows if not row.truth],
    )
    hits = sum(map(is_hit, faulty))
    family = sum(
        bool(row.fired) and _family(row.fired[0]) in set(map(_family, row.truth)) for row in faulty
    )
    misled = sum(
        bool(row.fired) and _family(row.fired[0]) not in set(map(_family, row.truth))
        for row in faulty
    )
    alarms = sum(not is_clean(row) for row in healthy)
    n = len(faulty)
    stood = [row.diagnosed_s for row in rows if row.diagnosed_s is not None]
    return (
        "gpuconsole",
        f"{hits}/{n}",
        _percent(hits, n),
        f"{family}/{n}",
        _percent(family, n),
        f"{misled}/{n}",
        f"{alarms}/{len(healthy)}",
        f"{statistics.median(stood):.0f}" if stood else "n/a",
    )


def _theirs(report: dict[str, Any]) -> tuple[str, ...]:
    n = report["faulty_runs"]
    return (
        f"{report['tool']} {', '.join(report['versions'])}",
        f"{report['cause_right']}/{report['cause_runs']}",
        _percent(report["cause_right"], n),
        f"{report['family_right']}/{report['family_runs']}",
        _percent(report["family_right"], n),
        f"{report['misled']}/{n}",
        (
            f"{round((report['false_positive'] or 0.0) * report['healthy_runs'])}/"
            f"{report['healthy_runs']}"
        ),
        f"{report['seconds_median']:.0f}",
    )


def _line(cells: Sequence[str]) -> str:
    return "".join(f"{cell:<{width}}" for cell, width in zip(cells, WIDTHS, strict=True)).rstrip()


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "n/a"


def _family(rule: str) -> str:
    return rule.partition(".")[0]
