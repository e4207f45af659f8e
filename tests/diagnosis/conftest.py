"""While the tests of the rules run, every read of a rule is compared with what the rule declares (`gpuconsole rules ID` prints it)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpuconsole.diagnosis.engine import all_rules
from gpuconsole.diagnosis.rule import Case, Rule
from gpuconsole.model.finding import Finding


def _compared(rule: type[Rule]) -> object:
    original = rule.check

    def check(self: Rule, case: Case) -> Finding:
        own = replace(case, read={})
        try:
            return original(self, own)
        finally:
            case.read.update(own.read)
            unlisted = own.read.keys() - set(self.reads)
            assert not unlisted, f"{self.id} reads {', '.join(unlisted)}, which it does not declare"

    return check


@pytest.fixture(autouse=True, scope="session")
def _reads_are_printed() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    for rule in all_rules():
        patch.setattr(type(rule), "check", _compared(type(rule)))
    yield
    patch.undo()
