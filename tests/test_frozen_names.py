"""The frozen names: every rule, knob and signal stands in frozen_names.txt. A change of this list
is a decision (CONTRIBUTING, "The brake")."""

from __future__ import annotations

from pathlib import Path

from gpuconsole.diagnosis.engine import all_rules
from gpuconsole.model.knobs.catalogue import CATALOGUE

FROZEN = Path(__file__).with_name("frozen_names.txt")


def names() -> set[str]:
    """A line for each name, with its kind."""
    rules = list(all_rules())
    signals = {signal for rule in rules for signal in rule.reads}
    return (
        {f"rule {rule.id}" for rule in rules}
        | {f"knob {name}" for name in CATALOGUE}
        | {f"signal {name}" for name in signals}
    )


def test_no_rule_no_knob_and_no_signal_comes_or_goes_unnoticed() -> None:
    frozen = set(FROZEN.read_text().splitlines())
    present = names()
    assert {"new": sorted(present - frozen), "gone": sorted(frozen - present)} == {
        "new": [],
        "gone": [],
    }
