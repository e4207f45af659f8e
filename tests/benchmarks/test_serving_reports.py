"""The pages of reports about slow model servers, and the words for what `watch` concludes."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.serving_report_cases import CASES
from benchmarks.serving_reports import outcome, page
from gpuconsole.diagnosis.engine import all_rules

COUNTED = ("_total", "_bucket", "_sum", "_count")


@pytest.mark.parametrize("name", CASES)
def test_the_counters_of_a_page_only_grow_and_at_the_rates_of_the_report(name: str) -> None:
    case, seconds = CASES[name], 120.0  # whole bursts
    first, later = (
        {row.rpartition(" ")[0]: float(row.rpartition(" ")[2]) for row in text.splitlines()}
        for text in (page(case, 1200.0), page(case, 1200.0 + seconds))
    )
    grown = {row: later[row] - first[row] for row in first if row.split("{")[0].endswith(COUNTED)}
    assert grown
    assert min(grown.values()) >= 0
    on, off = case.loads[0].bursts
    rate = sum(load.tokens for load in case.loads) * on / (on + off)
    if case.engine.startswith("vllm"):
        made = sum(number for row, number in grown.items() if "generation_tokens_total" in row)
        assert made == pytest.approx(rate * seconds, abs=len(case.loads))


def fires(rule: str, title: str = "A fault", note: bool = False) -> dict[str, Any]:
    return {"rule": f"watch.{rule}", "title": title, "note": note}


HEALTHY = fires("underloaded_healthy", "Healthy: there is room", note=True)


@pytest.mark.parametrize(
    ("name", "found", "said", "word"),
    [
        ("stuck2", [fires("stands_still"), fires("kv_bound")], "", "right"),
        ("stuck2", [fires("kv_bound"), fires("stands_still")], "", "partly"),
        ("dp8", [fires("kv_bound")], "", "partly"),
        ("stuck2", [fires("kv_bound")], "", "wrong"),
        ("stuck2", [HEALTHY], "", "false clean bill"),
        ("stuck2", [], "no fault found: 9 rules", "false clean bill"),
        ("stuck2", [], "no conclusion: a signal is missing", "can't tell"),
        ("lora", [], "no conclusion: a signal is missing", "right"),
        ("lora", [fires("sequence_cap")], "", "wrong"),
        ("client100", [HEALTHY], "", "right"),
        ("busy", [HEALTHY], "", "right"),
        ("busy", [HEALTHY, fires("kv_bound")], "", "accused"),
    ],
)
def test_a_conclusion_is_judged_by_the_cause(
    name: str, found: list[dict[str, Any]], said: str, word: str
) -> None:
    assert outcome(CASES[name], found, said) == word


def test_every_expected_rule_exists() -> None:
    expected = {name for case in CASES.values() for name in case.accept | case.half}
    assert expected <= {rule.id.removeprefix("serve.") for rule in all_rules()}
