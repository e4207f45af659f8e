"""While the tests of the rules run, every read of a rule is compared with what the rule declares
(`gpuconsole rules ID` prints it).

The rules need no torch. Where torch is not installed, the files that compare a model of ours with
torch are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from gpuconsole.diagnosis.engine import all_rules
from gpuconsole.diagnosis.rule import Case, Rule
from gpuconsole.model.finding import Finding

COMPARE_WITH_TORCH = (
    "test_activations.py",
    "test_code_to_copy.py",
    "test_flops.py",
    "test_memory.py",
    "test_peak.py",
)


@cache
def torch_is_there() -> bool:
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if collection_path.name in COMPARE_WITH_TORCH and not torch_is_there() else None


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
