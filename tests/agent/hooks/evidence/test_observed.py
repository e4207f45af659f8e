"""Counting the copies and the waits of a few steps leaves torch as the program has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gpuconsole.agent.hooks.evidence.observed import CopyCount, Waits
from gpuconsole.agent.hooks.guard import switch


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    undo, undo_part, synchronize = list(switch.undo), dict(switch.undo_part), torch.cuda.synchronize
    yield
    torch.cuda.synchronize = synchronize
    switch.undo[:], switch.undo_part = undo, undo_part


def test_the_methods_and_functions_are_torchs_own_afterwards() -> None:
    before = dict(vars(torch.Tensor)), torch.cuda.synchronize
    counting = CopyCount(Waits())
    assert torch.cuda.synchronize is not before[1]
    counting.stop()
    counting.stop()
    assert (dict(vars(torch.Tensor)), torch.cuda.synchronize) == before


def test_what_the_program_puts_in_place_of_a_function_stays() -> None:
    def synchronize(*args: Any) -> None:
        return None

    counting = CopyCount(Waits())
    torch.cuda.synchronize = synchronize
    counting.stop()
    assert torch.cuda.synchronize is synchronize
