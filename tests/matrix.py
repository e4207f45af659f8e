"""The matrices of the suite: many cases of one behaviour, of which CI runs some of each kind.

`python -m pytest -m matrix` runs the further cases (CONTRIBUTING.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def matrix(cases: Iterable[Any], in_ci: Collection[Any]) -> list[Any]:
    """All `cases` as parameters of a test. Those that are not `in_ci` have the marker `matrix`.
    Raises ValueError where `in_ci` names no case."""
    cases = list(cases)
    if unknown := [case for case in in_ci if case not in cases]:
        raise ValueError(f"no such case: {unknown}")
    return [
        case if case in in_ci else pytest.param(*as_arguments(case), marks=pytest.mark.matrix)
        for case in cases
    ]


def as_arguments(case: Any) -> tuple[Any, ...]:
    """The arguments of a case: a tuple has one for each name of the test's parameters."""
    return case if isinstance(case, tuple) else (case,)
