"""The results as one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu_day.check import FAILED, NOT_RUN, PASSED, Check, Figure, Result

SIMULATED = (
    "**Simulated device: no figure on this page was measured on a GPU.** The page shows that the"
    " checks run. A failure may be a gap of the simulated device."
)
WITHOUT = Result(NOT_RUN, "not reached")


def page(
    checks: Sequence[Check],
    results: Mapping[str, Result],
    machine: Mapping[str, Any],
    simulated: bool,
) -> str:
    """The page in Markdown. A check that has no result was not run."""
    by_state = {
        state: [one for one in checks if results.get(one.name, WITHOUT).state == state]
        for state in (FAILED, PASSED, NOT_RUN)
    }
    dates = sorted({result.at[:10] for result in results.values() if result.at})
    lines = [f"# GPU checks{' on a simulated device' if simulated else ''}", ""]
    lines += [SIMULATED, ""] if simulated else []
    lines += [
        (
            f"{', '.join(f'{len(some)} {state}' for state, some in by_state.items())}. Date:"
            f" {' to '.join(dates[:: max(1, len(dates) - 1)])}."
        ),
        "",
    ]
    lines += [f"- {name}: {_text(value)}" for name, value in machine.items()]
    for state, some in by_state.items():
        lines += ["", f"## {state.capitalize()}", ""]
        if not some:
            lines.append("None.")
        elif state == NOT_RUN:
            lines += ["| check | question | reason |", "|---|---|---|"]
            lines += [
                _row(one.name, one.title, results.get(one.name, WITHOUT).reason) for one in some
            ]
        else:
            lines += ["| check | question | figures | s |", "|---|---|---|---|"]
            lines += [
                _row(
                    one.name,
                    one.title,
                    _figures(results[one.name]),
                    f"{results[one.name].seconds:.0f}",
                )
                for one in some
            ]
    return "\n".join(lines) + "\n"


def _figures(result: Result) -> str:
    words = [_figure(one) for one in sorted(result.figures, key=lambda one: one.holds)]
    return "<br>".join([*([result.reason] if result.reason else []), *words])


def _figure(one: Figure) -> str:
    value = one.value if isinstance(one.value, str) else f"{one.value:.4g}"
    bounds = [
        f"{words} {bound:.4g}"
        for words, bound in (("at least", one.low), ("at most", one.high))
        if bound is not None
    ]
    text = f"{one.name}: {value}{' ' + one.unit if one.unit else ''}" + (
        f" ({', '.join(bounds)})" if bounds else ""
    )
    return text if one.holds else f"**{text}**"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
