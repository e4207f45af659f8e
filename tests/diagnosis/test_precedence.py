"""Which finding wins is declared in one module; rules do not know each other."""

from __future__ import annotations

import ast
import inspect
from itertools import groupby

import pytest

from gpuconsole.diagnosis.engine import all_rules
from gpuconsole.diagnosis.precedence import PRECEDENCE, rank, settle
from gpuconsole.model.finding import Finding
from tests.diagnosis.cases import case

RULES = {rule.id: rule for rule in all_rules()}


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_a_rule_imports_no_other_rule(rule: object) -> None:
    """The package `families` holds what rules share."""
    others = {type(entry).__module__ for entry in all_rules()}
    tree = ast.parse(inspect.getsource(inspect.getmodule(type(rule))))  # type: ignore[arg-type]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            named = {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
            assert not named & others


def test_every_entry_names_rules_and_losers_stand_together_before_they_win() -> None:
    assert {name for entry in PRECEDENCE for name in (entry.loser, entry.winner)} <= RULES.keys()
    losers = [loser for loser, _ in groupby(entry.loser for entry in PRECEDENCE)]
    assert len(losers) == len(set(losers))
    for number, entry in enumerate(PRECEDENCE):
        assert entry.winner not in [later.loser for later in PRECEDENCE[number:]], (
            f"{entry.winner} is settled only later"
        )


def finding(rule: str, state: str = "fires", **more: object) -> Finding:
    return Finding(rule, state, RULES[rule].title, level=1.2, **more)  # type: ignore[arg-type]


def settled(*findings: Finding, **changes: float) -> dict[str, Finding]:
    return {one.rule: one for one in settle(list(findings), case(**changes))}


def test_a_rule_that_yields_is_clear_and_names_the_winner() -> None:
    found = settled(finding("gpu.compute_bound_healthy", note=True), finding("gpu.attention_math"))[
        "gpu.compute_bound_healthy"
    ]
    assert (found.state, found.title, found.level) == (
        "clear",
        "Covered by gpu.attention_math",
        0.0,
    )
    assert found.summary


@pytest.mark.parametrize(("exposed_s", "state"), [(0.03, "clear"), (0.015, "fires")])
def test_a_small_batch_yields_to_an_exchange_that_takes_a_fifth_of_a_step(
    exposed_s: float, state: str
) -> None:
    """A larger batch changes the training; accumulation makes the exchange rarer with the same
    batch."""
    in_turn = case(
        knobs={"sharding": "ddp"},
        comm__exposed_s=exposed_s,
        comm__pass_s=0.1,
        comm__pass_alone_s=0.1 - exposed_s,
    )
    found = settle([finding("comm.exposed"), finding("gpu.small_batch")], in_turn)
    assert {one.rule: one.state for one in found} == {
        "comm.exposed": "fires",
        "gpu.small_batch": state,
    }


def test_a_note_and_a_finding_that_does_not_fire_win_nothing() -> None:
    note, clear = (
        finding("gpu.attention_math", note=True),
        finding("gpu.optimizer_unfused", "clear"),
    )
    assert (
        settled(finding("gpu.compute_bound_healthy"), note, clear)[
            "gpu.compute_bound_healthy"
        ].state
        == "fires"
    )


def test_where_the_winner_must_be_known_the_loser_waits_for_the_same_signal() -> None:
    unknown = finding("gpu.small_batch", "cant_tell", missing=("probe.batch_cost_ratio",))
    found = settled(finding("gpu.compute_bound_healthy"), unknown)["gpu.compute_bound_healthy"]
    assert (found.state, found.missing) == ("cant_tell", ("probe.batch_cost_ratio",))


def test_a_rule_that_yields_asks_for_no_probe() -> None:
    contention = finding("host.cpu_contention", note=True)
    waiting = finding("gpu.small_batch", "cant_tell", missing=("probe.batch_cost_ratio",))
    assert (
        settled(contention, waiting, runq_ratio=0.5, threads=9.0)["gpu.small_batch"].state
        == "clear"
    )
    assert (
        settled(contention, waiting, runq_ratio=0.5, threads=1.0)["gpu.small_batch"].state
        == "cant_tell"
    )


def test_what_fires_is_ranked_errors_first_then_by_weight_and_notes_last() -> None:
    findings = [
        finding("meta.not_steady", note=True),
        finding("host.logging_io", recoverable_ratio=0.3, confidence="low"),
        finding("input.jitter", "clear"),
        finding("hw.errors"),
        finding("host.eval_stall", recoverable_ratio=0.2, confidence="high"),
        finding("gpu.small_batch", "cant_tell"),
    ]
    ranked = [one.rule for one in rank(findings)]
    assert ranked == [
        "hw.errors",
        "host.eval_stall",
        "host.logging_io",
        "meta.not_steady",
        "gpu.small_batch",
        "input.jitter",
    ]
