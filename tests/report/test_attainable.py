"""The share of the attainable rate in words."""

from __future__ import annotations

import pytest

from gpuconsole.model.figures import Attainable, RatePair, TimePart
from gpuconsole.model.run import Run
from gpuconsole.report.cells import row_width
from gpuconsole.report.parts import lay_out, printed
from gpuconsole.report.run.breakdown import attainable_report, share_text, why_no_share


def run(attainable: Attainable | None) -> Run:
    return Run("1", "train-gpt", "training.gpt", {}, "cpu", attainable=attainable)


@pytest.mark.parametrize(
    ("reached", "words"),
    [
        (41.0, "41 % of hardware limit"),
        (3.21, "3.2 % of hardware limit"),
        (108.0, "108 % of hardware limit"),
    ],
)
def test_the_share_in_a_few_words(reached: float, words: str) -> None:
    known = run(Attainable((RatePair("samples", "samples", "samples/s", reached, 100.0),)))
    assert share_text(known) == words and why_no_share(known) == ""


def test_without_a_share_there_is_a_reason() -> None:
    missing = run(Attainable(reason="the run is not steady yet"))
    assert share_text(missing) == "" and why_no_share(missing) == "the run is not steady yet"
    assert share_text(run(None)) == "" and "has not reported its facts" in why_no_share(run(None))


STEP = Attainable(
    (
        RatePair("tokens", "tokens", "tokens/s", 4259.0, 7487.0),
        RatePair("memory", "memory", "bytes/s", 1e9, 1.76e9),
    ),
    "compute",
    "fp32 matrix product, calibrated; copy, calibrated",
    "max(FLOPs / peak, bytes / bandwidth)",
    "step",
    (
        TimePart("attainable", "at the hardware limit", 0.1368),
        TimePart("data_wait", "data wait", 0.0003, 16.0),
        TimePart("logging", "logging", 0.0004, 21.0),
        TimePart("kernels", "kernels below the roofline", 0.1199, 3430.0),
        TimePart(
            "optimizer", "optimizer below the roofline", -0.0170, -239.0, "faster than its bytes"
        ),
    ),
    ("only arithmetic counts",),
)


def test_the_waterfall_is_a_table_whose_rows_add_up_and_fit_80_columns() -> None:
    report = attainable_report(run(STEP))
    rows = lay_out(report, 78)
    assert all(row_width(row) <= 78 for row in rows)
    words = ["".join(text for text, _ in row).rstrip() for row in rows]
    assert words[0] == "limit         57 % of hardware limit (7 487 tokens/s, limit: compute)"
    shown = {line.split("  ")[1]: line for line in words if " % " in line and line.startswith("  ")}
    assert "2 smaller parts" in shown and "data wait" not in shown
    assert "-37.0" in shown["2 smaller parts"]
    assert (
        "-17.0 ms" in shown["optimizer below the roofline"]
        and "+239" in shown["optimizer below the roofline"]
    )
    assert "100 %" in shown["reached"] and "4 259" in shown["reached"]
    assert words[-2:] == [
        "only arithmetic counts",
        "optimizer below the roofline: faster than its bytes",
    ]


def test_the_rows_of_the_waterfall_show_where_each_part_begins() -> None:
    lines = [line for line in printed(attainable_report(run(STEP))).splitlines() if " ms " in line]
    bars = [(line.find("█"), line.find("▒")) for line in lines]
    assert bars[0][0] >= 0 and bars[1][1] > bars[0][0] and bars[-1][0] == bars[0][0]


def test_a_run_without_facts_has_no_report_and_one_without_peaks_reads_na() -> None:
    assert attainable_report(run(None)) == []
    assert "n/a: no peak" in printed(attainable_report(run(Attainable(reason="no peak"))))
